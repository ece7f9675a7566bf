"""Traces that released versions wrote stay readable: tools/record_golden.py --release records one for each."""

from pathlib import Path

import pytest

import kinetoscope

RELEASES = sorted((Path(__file__).parents[1] / "golden" / "releases").glob("*.ktrace"))


def test_there_is_a_trace_of_a_release():
    assert RELEASES != []


@pytest.fixture(scope="module", params=RELEASES, ids=lambda path: path.stem)
def trace(request):
    with kinetoscope.open(request.param) as opened:
        yield opened


def test_it_is_complete(trace):
    assert trace.complete
    assert trace.losses == []


def test_it_has_the_program_that_was_recorded(trace):
    calls = {row["name"]: row["count"] for row in trace.table("ops").to_pylist()}
    assert calls["aten::addmm"] == 6  # two layers in each of three steps
    assert calls["aten::relu"] == 3
    assert {row["path"] for row in trace.table("modules").to_pylist()} >= {"up", "tail", "tail.1"}
    assert trace.table("steps").num_rows == 3
    assert any(row["function"] == "Block.forward" for row in trace.table("lines").to_pylist())


@pytest.mark.parametrize(
    "name", ["spans", "allocations", "stacks", "memory_peak", "breakdown", "flops", "account"]
)
def test_its_tables_can_be_made(trace, name):
    assert trace.table(name).num_rows > 0


def test_what_is_judged_of_it_can_be_said(trace):
    assert trace.account().kinds[0].duration_ns > 0
    assert trace.overview().report.count == 2  # without the first one, which warms up


def test_it_can_be_written_again(trace, tmp_path):
    trace.save(tmp_path / "again.ktrace")
    with kinetoscope.open(tmp_path / "again.ktrace") as again:
        assert again.table("spans").equals(trace.table("spans"))
