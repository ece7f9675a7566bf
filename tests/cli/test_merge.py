"""`kinetoscope merge`: ranks as one trace, and what is said of their clocks."""

import pytest
from click.testing import CliRunner

import kinetoscope
from kinetoscope.cli import main
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder


@pytest.fixture
def ranks(tmp_path):
    """Two ranks of one machine and one of nowhere."""
    paths = []
    for rank in range(3):
        trace = TraceBuilder().step(0, 0, 50).span("aten::add", 5, 10).know("host", f"node{rank}").build()
        trace.info.update(rank=rank, process=100 + rank, start_realtime_ns=START_REALTIME_NS + 500 * rank)
        if rank < 2:
            trace.info.update(boot_id="one", start_monotonic_ns=2_000 * rank)
        trace.save(tmp_path / f"{rank}.ktrace")
        paths.append(str(tmp_path / f"{rank}.ktrace"))
    return paths


def merged(*arguments):
    return CliRunner().invoke(main, ["merge", *map(str, arguments)])


def test_ranks_of_one_machine_become_one_trace(ranks, tmp_path):
    done = merged(*ranks[:2], "-o", tmp_path / "all.ktrace")
    assert done.exit_code == 0, done.output
    lines = done.stdout.splitlines()
    assert lines[0] == "rank 0 on node0: 2 spans, starts at 0 ns, by the machine's clock (exact to 0 ns)"
    assert lines[1] == "rank 1 on node1: 2 spans, starts at 2 µs, by the machine's clock (exact to 2 µs)"
    assert lines[2].startswith(f"{tmp_path / 'all.ktrace'}: ")
    assert done.stderr == ""
    trace = kinetoscope.open(tmp_path / "all.ktrace")
    assert trace.table("spans").column("rank").to_pylist() == [0, 0, 1, 1]


def test_a_rank_that_nothing_ties_to_the_others_is_said(ranks, tmp_path):
    done = merged(*ranks, "-o", tmp_path / "all.json.gz")
    assert "rank 2 on node2: 2 spans, starts at 1 µs, by the wall clock (error unknown)" in done.stdout
    assert "incomplete: process clocks that were not aligned (1)" in done.stderr


def test_wrong_use_is_one_line_and_writes_nothing(ranks, tmp_path):
    for arguments, said in [
        ((*ranks, "-o", tmp_path / "all.mp4"), "mp4"),
        (
            (ranks[0], ranks[0], "-o", tmp_path / "all.ktrace"),
            f"{ranks[0]} and {ranks[0]} are both of rank 0",
        ),
        ((*ranks, "-o", ranks[0]), "is one of the traces"),
        ((tmp_path / "none.ktrace", "-o", tmp_path / "all.ktrace"), "none.ktrace"),
    ]:
        done = merged(*arguments)
        assert done.exit_code == 1, done.output
        assert said in done.stderr
        assert done.stderr.count("\n") == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["0.ktrace", "1.ktrace", "2.ktrace"]
