"""A device for torch that needs no hardware, as a plug-in that `import torch` finds: `torch.device("testdevice")`.

Built and laid out by `tests.support.test_device_plugin`.
"""

import ctypes
import types
from pathlib import Path

import torch

NAME = "testdevice"


def begin():
    """Give the device its name and let torch know its memory, streams and operators. The entry point."""
    library = ctypes.CDLL(str(Path(__file__).with_name("libtest_device.so")), mode=ctypes.RTLD_GLOBAL)
    torch.utils.rename_privateuse1_backend(NAME)
    library.test_device_begin()
    torch._register_device_module(NAME, _module())


def _module():
    """What stands where `torch.cuda` stands for NVIDIA's devices."""
    module = types.ModuleType(f"torch.{NAME}")
    module.is_available = lambda: True
    module.is_initialized = lambda: True
    module.device_count = lambda: 2
    module.current_device = torch.accelerator.current_device_index
    module.synchronize = torch.accelerator.synchronize
    module.get_device_name = lambda index=0: f"Test device {index}"
    module.get_amp_supported_dtype = lambda: [torch.float32]
    module._is_in_bad_fork = lambda: False
    module.manual_seed_all = lambda seed: None
    return module
