"""What devices can do at most, and model FLOP utilisation."""

import re

import pytest

import kinetoscope
from kinetoscope.model.schema import SpanKind
from kinetoscope.tables.costs.peaks import hardware_peaks, known_peaks
from kinetoscope.trace import Trace
from tests.support.counting import recorded
from tests.support.trace_builder import TraceBuilder


@pytest.mark.parametrize(
    ("device", "dtype", "tera"),
    [
        ("Tesla V100-SXM2-16GB", "float16", 125),
        ("Tesla T4", "float16", 65),
        ("NVIDIA A100-SXM4-80GB", "bfloat16", 312),
        ("NVIDIA A100 80GB PCIe", "tf32", 156),
        ("NVIDIA H100 80GB HBM3", "bfloat16", 989.4),
        ("NVIDIA H100 PCIe", "bfloat16", 756),
        ("NVIDIA H200", "float8", 1978.9),
        ("NVIDIA B200", "bfloat16", 2250),
        ("NVIDIA L4", "float16", 121),
        ("NVIDIA L40S", "float32", 91.6),
        ("NVIDIA GeForce RTX 4090", "bfloat16", 165.2),
        ("AMD Instinct MI250X", "float16", 191.5),
        ("AMD Instinct MI300X", "bfloat16", 1307.4),
    ],
)
def test_data_sheets(device, dtype, tera):
    assert known_peaks(device)[dtype] == pytest.approx(tera * 1e12)


@pytest.mark.parametrize(
    "device",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA GeForce RTX 4090 D", "NVIDIA H100", "NVIDIA L40", "NVIDIA A100-SXM4-40GB MIG 1g.5gb",
     "NVIDIA H200 MIG 1g.18gb", "cpu", "", "GeForce GTX 1080"],
)  # fmt: skip
def test_other_devices_are_unknown(device):
    assert known_peaks(device) is None


def test_no_device_fits_two_rows():
    names = [
        "Tesla T4",
        "NVIDIA H200",
        "NVIDIA H200 NVL",
        "NVIDIA L4",
        "NVIDIA L40S",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA A10",
    ]
    for name in names:
        assert sum(re.fullmatch(names_of_row, name) is not None for names_of_row in hardware_peaks()) == 1


def test_smaller_types_are_never_slower():
    order = ("float64", "float32", "tf32", "bfloat16", "float8")
    for device, tera in hardware_peaks().items():
        speeds = [tera[dtype] for dtype in order if dtype in tera]
        assert speeds == sorted(speeds), device


def steps(info, types=("c10::BFloat16", "c10::BFloat16"), name="aten::mm", streams=True, **options):
    """A step of one microsecond with a product of 64 x 64 matrices."""
    trace = Trace.from_columns(
        {
            "threads": {"index": [0], "os_tid": [1], "torch_tid": [1], "name": ["main"]},
            "streams": {"device_type": [1] * streams, "device_index": [0] * streams, "number": [7] * streams},
            "spans": {
                "thread": [0, 0], "start_ns": [0, 10], "duration_ns": [1000, 100], "name": [1, 2], "scope": [7, 0],
                "kind": [SpanKind.STEP, SpanKind.OPERATOR], "shapes": [-1, 0],
            },
            "shapes": {"dims": ["[[64, 64], [64, 64]]"], "types": [str(list(types)).replace("'", '"')], "concrete": ["[]"]},
        },
        strings=["", "ProfilerStep#3", name],
        info=info,
    )  # fmt: skip
    (row,) = trace.table("steps", **options).to_pylist()
    return row


H200 = {"devices": [{"type": "cuda", "index": 0, "name": "NVIDIA H200"}]}
WORK = 2 * 64**3


def test_mfu_is_the_time_at_the_peak_by_the_time_it_took():
    row = steps(H200)
    assert (row["flops"], row["flops_per_s"]) == (WORK, pytest.approx(WORK / 1e-6))
    assert row["mfu"] == pytest.approx(WORK / 989.4e12 / 1e-6)


def test_each_type_has_its_own_peak():
    assert steps(H200, ("float", "float"))["mfu"] == pytest.approx(WORK / 67e12 / 1e-6)
    short = H200 | {"float32_matmul_precision": "high"}
    assert steps(short, ("float", "float"))["mfu"] == pytest.approx(WORK / 494.7e12 / 1e-6)
    assert steps(H200, ("c10::complex<float>",) * 2)["mfu"] == pytest.approx(4 * WORK / 67e12 / 1e-6)
    assert steps(H200, ("c10::Float8_e4m3fn",) * 2, "aten::_scaled_mm")["mfu"] == pytest.approx(
        WORK / 1978.9e12 / 1e-6
    )


@pytest.mark.parametrize(
    "info",
    [{}, {"devices": None}, {"devices": [{"type": "cuda", "index": 1, "name": "NVIDIA H200"}]}, {"devices": [5]},
     {"devices": [{"type": "cuda", "index": 0, "name": "NVIDIA H300"}]}, {"devices": [{"type": "cuda", "index": 0}]}],
)  # fmt: skip
def test_an_unknown_device_has_no_mfu(info):
    row = steps(info)
    assert row["mfu"] is None
    assert row["flops"] == WORK


def test_a_type_the_device_has_no_number_for_has_no_mfu():
    assert steps(H200, ("long int", "long int"))["mfu"] is None


def test_pointwise_work_is_no_matrix_work():
    assert steps(H200, name="aten::add")["mfu"] is None


def test_the_host_is_unknown_until_someone_says():
    assert steps({}, streams=False)["mfu"] is None
    assert steps({}, streams=False, peak_flops=1e12)["mfu"] == pytest.approx(WORK / 1e12 / 1e-6)
    assert steps({}, streams=False, peak_flops={"bfloat16": 2e12})["mfu"] == pytest.approx(WORK / 2e12 / 1e-6)
    assert steps({}, streams=False, peak_flops={"float32": 2e12})["mfu"] is None
    kinetoscope.register_peak_flops("cpu", 4e12)
    assert steps({}, streams=False)["mfu"] == pytest.approx(WORK / 4e12 / 1e-6)


def test_a_processor_can_be_named():
    info = {"devices": [{"type": "cpu", "index": -1, "name": "Fast 9000"}]}
    kinetoscope.register_peak_flops("Fast 9000", {"bfloat16": 3e12})
    assert steps(info, streams=False)["mfu"] == pytest.approx(WORK / 3e12 / 1e-6)
    assert steps({}, streams=False)["mfu"] is None


def test_what_is_registered_goes_before_the_table():
    kinetoscope.register_peak_flops("NVIDIA H200", {"bfloat16": 500e12})
    assert steps(H200)["mfu"] == pytest.approx(WORK / 500e12 / 1e-6)


@pytest.mark.parametrize("peak", [0, -1, "fast", True, float("inf"), {"float32": 0}, {"float32": None}])
def test_a_peak_that_is_none_is_refused(peak):
    with pytest.raises(kinetoscope.ArgumentError, match="not a number above 0"):
        kinetoscope.register_peak_flops("cpu", peak)
    with pytest.raises(kinetoscope.ArgumentError, match="not a number above 0"):
        TraceBuilder().step(0, 0, 1).build().table("steps", peak_flops=peak)


@pytest.mark.parametrize("device", ["", None, 5])
def test_a_device_without_name_is_refused(device):
    with pytest.raises(kinetoscope.ArgumentError, match="pass the name of a device"):
        kinetoscope.register_peak_flops(device, 1e12)


def test_a_recording_names_its_processor():
    import torch

    trace = recorded(lambda: torch.ones(2) + 1).trace
    (cpu,) = [device for device in trace.info["devices"] if device["type"] == "cpu"]
    assert cpu["name"]
    assert trace.info["float32_matmul_precision"] == torch.get_float32_matmul_precision()
