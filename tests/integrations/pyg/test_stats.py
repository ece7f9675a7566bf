import dataclasses
import math

import pytest

from kinetoscope.integrations.pyg import (
    CPUStats,
    CPUStatsSummary,
    CUDAStats,
    CUDAStatsSummary,
    GPUStats,
    GPUStatsSummary,
    get_stats_summary,
)

SUMMARY = "time_mean time_std max_allocated_gpu max_reserved_gpu max_active_gpu"


@pytest.mark.parametrize(
    ("stats", "names"),
    [
        (GPUStats, "time max_allocated_gpu max_reserved_gpu max_active_gpu"),
        (
            CUDAStats,
            "time max_allocated_gpu max_reserved_gpu max_active_gpu nvidia_smi_free_cuda nvidia_smi_used_cuda",
        ),
        (GPUStatsSummary, SUMMARY),
        (
            CUDAStatsSummary,
            f"{SUMMARY} min_nvidia_smi_free_cuda max_nvidia_smi_used_cuda",
        ),
    ],
)
def test_the_fields_are_those_of_pyg_in_its_order(stats, names):
    assert [field.name for field in dataclasses.fields(stats)] == names.split()


@pytest.mark.parametrize(
    ("calls", "summary"),
    [
        (
            [CUDAStats(1.0, 10, 25, 30, 500, 400), CUDAStats(2.0, 12, 20, 31, 450, 480)],
            CUDAStatsSummary(1.5, math.sqrt(0.5), 12, 25, 31, 450, 480),
        ),
        (
            [GPUStats(1.0, 3, 5, 7), GPUStats(3.0, 4, 4, 4), GPUStats(2.0, 1, 1, 1)],
            GPUStatsSummary(2.0, 1.0, 4, 5, 7),
        ),
        ([CPUStats(1.0, 100, 3), CPUStats(1.0, 90, 5)], CPUStatsSummary(1.0, 0.0, 100, 5)),
    ],
)
def test_calls_in_short(calls, summary):
    assert get_stats_summary(calls) == summary
    assert type(get_stats_summary(calls)) is type(summary)


def test_a_peak_that_is_not_known_does_not_hide_the_known_ones():
    nothing = math.nan
    assert (
        get_stats_summary([CPUStats(1, 1, nothing), CPUStats(1, 1, 5), CPUStats(1, 1, 4)]).max_allocated_cpu
        == 5
    )
    assert math.isnan(get_stats_summary([CPUStats(1, 1, nothing)] * 2).max_allocated_cpu)


def test_one_call_has_no_deviation():
    assert math.isnan(get_stats_summary([GPUStats(1.0, 3, 5, 7)]).time_std)
