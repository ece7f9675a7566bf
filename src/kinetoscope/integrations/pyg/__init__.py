"""The names of `torch_geometric.profile`, for any model, with or without PyG.

Each works as PyG's does, or better where `docs/pyg.md` says so.
"""

from kinetoscope.integrations.pyg.checks import DeviceError, NotAModuleError
from kinetoscope.integrations.pyg.memory import (
    byte_to_megabyte,
    count_parameters,
    get_cpu_memory_from_gc,
    get_data_size,
    get_gpu_memory_from_gc,
    get_gpu_memory_from_ipex,
    get_gpu_memory_from_nvidia_smi,
    get_model_size,
    medibyte_to_megabyte,
    read_from_memlab,
)
from kinetoscope.integrations.pyg.profiling import (
    CPUStats,
    CPUStatsSummary,
    CUDAStats,
    CUDAStatsSummary,
    GPUStats,
    GPUStatsSummary,
    benchmark,
    get_stats_summary,
    profileit,
    timeit,
)
from kinetoscope.integrations.pyg.recording import (
    format_prof_time,
    nvtxit,
    print_time_total,
    rename_profile_file,
    save_profile_data,
    torch_profile,
    trace_handler,
    xpu_profile,
)

__all__ = [
    "CPUStats",
    "CPUStatsSummary",
    "CUDAStats",
    "CUDAStatsSummary",
    "DeviceError",
    "GPUStats",
    "GPUStatsSummary",
    "NotAModuleError",
    "benchmark",
    "byte_to_megabyte",
    "count_parameters",
    "format_prof_time",
    "get_cpu_memory_from_gc",
    "get_data_size",
    "get_gpu_memory_from_gc",
    "get_gpu_memory_from_ipex",
    "get_gpu_memory_from_nvidia_smi",
    "get_model_size",
    "get_stats_summary",
    "medibyte_to_megabyte",
    "nvtxit",
    "print_time_total",
    "profileit",
    "read_from_memlab",
    "rename_profile_file",
    "save_profile_data",
    "timeit",
    "torch_profile",
    "trace_handler",
    "xpu_profile",
]
