"""The traces of the ranks of a job as one: which clock they are on, and how sure that is."""

import re
import warnings

import pytest
from click.testing import CliRunner

import kinetoscope
from kinetoscope import ArgumentError, merge
from kinetoscope.cli import main
from kinetoscope.combine.processes import merge_processes
from kinetoscope.trace import Trace
from tests.support.real_traces import ranks_of_a_job
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder

MS = 1_000_000
GROUPS = {"pg_config": [{"pg_name": "0", "ranks": [0, 1]}]}


def rank(number: int, calls=(), *, name="all_reduce", steps=True, **info) -> Trace:
    """A rank that called others at these (begin, end) of its clock, carried out by kernels, one in each step."""
    builder = TraceBuilder().know("distributedInfo", {"rank": number, **GROUPS})
    builder.thread("main")
    builder.stream(7)
    for place, (begin, end) in enumerate(calls):
        if steps:
            builder.step(place, begin - 200, end - begin + 300)
        facts = {"call": name, "group": "0", "type": "Float", "size": 2, "ranks": "[0, 1]"}
        facts |= {"in_elements": 64, "out_elements": 64}
        builder.runtime("cudaLaunchKernel", begin - 100, 10, correlation=place)
        builder.kernel("ncclDevKernel_Generic(x)", begin, end - begin, correlation=place, facts=facts)
    trace = builder.build()
    trace.info.update(process=100 + number, **info)
    return trace


def places(trace: Trace) -> list[tuple]:
    """What is said of the clock of each process."""
    return [
        (row["rank"], row["start_ns"], row["clock"], row["error_ns"])
        for row in trace.table("processes").to_pylist()
    ]


def met(trace: Trace, *marks: tuple[int, int], begin_ns: int = 0, boot: str = "") -> Trace:
    """The same trace, which was at barriers at these moments of its monotonic clock."""
    trace.info["clock_marks"] = {f"job/0/{place}": list(mark) for place, mark in enumerate(marks)}
    trace.info["start_monotonic_ns"] = begin_ns
    if boot:
        trace.info["boot_id"] = boot
    return trace


def test_ranks_of_one_machine_are_on_its_clock():
    traces = [rank(number, start_monotonic_ns=1_000 * number, boot_id="x") for number in (2, 0, 1)]
    merged = merge(traces)
    assert places(merged) == [
        (0, 0, "monotonic", 0),
        (1, 1_000, "monotonic", 2_000),
        (2, 2_000, "monotonic", 2_000),
    ]
    assert merged.complete


def test_barriers_bound_the_difference_of_two_clocks():
    # In truth the second clock shows 5 ms more. Both leave each barrier 30 us after the first of them came.
    first = met(rank(0, [(10 * MS, 11 * MS)]), (0, 30_000), (20 * MS, 20 * MS + 30_000), boot="a")
    second = met(rank(1), (5 * MS + 10_000, 5 * MS + 40_000), (25 * MS, 25 * MS + 30_000), boot="b")
    merged = merge([first, second])
    (_, first_ns, _, _), (_, second_ns, clock, error_ns) = places(merged)
    assert clock == "barriers"
    assert abs(second_ns - first_ns + 5 * MS) <= error_ns <= 40_000
    assert merged.info["processes"][1]["barriers"] == 2
    assert merged.complete


def test_collectives_bound_the_difference_of_two_clocks():
    # In truth the second clock shows 70 us less.
    true_calls = [
        [(1_000_000, 1_050_000), (1_020_000, 1_060_000)],
        [(9_000_000, 9_040_000), (9_010_000, 9_041_000)],
    ]
    first = rank(0, [calls[0] for calls in true_calls])
    second = rank(1, [(begin - 70_000, end - 70_000) for _, (begin, end) in true_calls])
    merged = merge([first, second])
    (_, first_ns, _, first_error), (_, second_ns, clock, error_ns) = places(merged)
    assert (clock, first_error) == ("collectives", 0)
    assert abs(second_ns - first_ns - 70_000) <= error_ns
    assert error_ns < 50_000
    # On one axis every call of both began before either ended.
    rows = merged.table("collectives").to_pylist()
    assert [row["rank"] for row in rows] == [0, 1, 0, 1]
    assert {row["process"] for row in rows} == {100, 101}
    assert {row["group_ranks"] for row in rows} == {"[0, 1]"}
    for step in (0, 1):
        ours = [row for row in rows if row["step"] == step]
        begun = max(row["transfer_start_ns"] for row in ours)
        assert begun <= min(row["transfer_start_ns"] + row["transfer_ns"] for row in ours) + error_ns


def test_ranks_that_meet_by_way_of_a_third_are_tied_to_it():
    def at(*moments):
        return {name: [moment, moment + 1_000] for name, moment in moments}

    chain = []
    for number, marks in enumerate((at(("a", 0)), at(("a", 500_000), ("b", 600_000)), at(("b", 900_000)))):
        trace = met(rank(number), boot=f"machine {number}")
        trace.info["clock_marks"] = marks
        chain.append(trace)
    found = places(merge(chain))
    assert [clock for _, _, clock, _ in found] == ["own", "barriers", "barriers"]
    starts = [start for _, start, _, _ in found]
    assert [start - starts[0] for start in starts] == pytest.approx([0, -500_000, -800_000], abs=2_100)
    assert found[1][3] < found[2][3]


def test_a_machine_of_several_ranks_is_placed_as_a_whole():
    traces = [
        met(rank(0), (0, 1_000), boot="a"),
        met(rank(1), (700_000, 701_000), begin_ns=600_000, boot="b"),
        rank(2, start_monotonic_ns=640_000, boot_id="b"),
    ]
    found = places(merge(traces))
    starts = [start for _, start, _, _ in found]
    assert starts[2] - starts[1] == 40_000
    assert starts[1] - starts[0] == pytest.approx(-100_000, abs=1_100)
    assert [clock for _, _, clock, _ in found] == ["own", "barriers", "barriers"]


def test_calls_that_cannot_be_told_apart_are_not_compared():
    first, second = rank(0, [(1_000, 2_000)], name="broadcast"), rank(1, [(1_000, 2_000)], name="broadcast")
    assert places(merge([first, second]))[1][2] == "wall"
    # Without steps, a rank that began to record one call later.
    first, second = (
        rank(0, [(1_000, 2_000), (5_000, 6_000)], steps=False),
        rank(1, [(5_000, 6_000)], steps=False),
    )
    assert places(merge([first, second]))[1][2] == "wall"


def test_ranks_that_nothing_ties_together_say_so():
    first, second = rank(0), rank(1)
    second.info["start_realtime_ns"] = START_REALTIME_NS + 777
    merged = merge([first, second])
    assert places(merged) == [(0, 0, "own", 0), (1, 777, "wall", None)]
    assert [loss["code"] for loss in merged.losses] == ["uncompared_clocks"]


def test_bounds_that_contradict_each_other_are_told():
    first = met(rank(0), (0, 10), (1_000_000, 1_000_010), (2_000_000, 2_000_010), boot="a")
    second = met(rank(1), (0, 10), (1_500_000, 1_500_010), (2_000_000, 2_000_010), boot="b")
    merged = merge([first, second])
    assert merged.info["processes"][1]["violated_ns"] > 100_000
    assert [loss["code"] for loss in merged.losses] == ["contradictory_clock"]


@pytest.mark.parametrize(
    "marks", [None, [], {"a": 1}, {"a": [1]}, {"a": ["x", "y"]}, {"a": [5, 1]}, {"a": [True, 1.5]}]
)
def test_marks_that_are_none_are_passed_over(marks):
    traces = [met(rank(number), boot=f"{number}") for number in range(2)]
    for trace in traces:
        trace.info["clock_marks"] = marks
    assert places(merge(traces))[1][2] == "wall"


def of_no_rank(begin_ns, **info) -> Trace:
    """A recording of 10 ns of a process that is no rank."""
    trace = TraceBuilder().span("aten::add", 0, 10).build()
    trace.info.update(process=1, boot_id="x", start_monotonic_ns=begin_ns, **info)
    return trace


def test_recordings_of_one_process_are_refused_and_equal_numbers_of_two_are_not(tmp_path):
    for begin_ns in (10, 0, 500):
        with pytest.raises(ArgumentError, match="of one process"):
            merge([of_no_rank(0), of_no_rank(begin_ns)])
    # Two containers of one machine, recorded at the same time; and of two machines.
    assert len(merge([of_no_rank(0), of_no_rank(5)]).table("processes")) == 2
    assert len(merge([of_no_rank(0, host="a"), of_no_rank(500, host="b")]).table("processes")) == 2
    assert len(merge([of_no_rank("soon", host="a"), of_no_rank(5, host="b")]).table("processes")) == 2


def test_one_trace_alone_is_on_its_own_clock():
    assert places(merge([rank(3)])) == [(3, 0, "own", 0)]


def test_merged_traces_can_be_merged_and_saved(tmp_path):
    calls = [(1_000_000, 1_050_000), (9_000_000, 9_040_000)]
    children = [merge_processes([rank(number, calls), known_child(number)], [0, 10]) for number in range(2)]
    merged = merge(children)
    assert [row["rank"] for row in merged.table("processes").to_pylist()] == [0, None, 1, None]
    assert merged.table("processes").column("clock").to_pylist()[2:] == ["given, collectives"] * 2
    merged.save(tmp_path / "merged.ktrace")
    assert kinetoscope.open(tmp_path / "merged.ktrace").table("processes").equals(merged.table("processes"))


def known_child(number: int) -> Trace:
    """A process that a rank has started."""
    trace = TraceBuilder().span("aten::cat", 0, 10).build()
    trace.info.update(process=1_000 + number, parent_process=100 + number)
    return trace


def test_eight_ranks_of_a_real_job_are_on_one_axis():
    paths = ranks_of_a_job()
    merged = merge(paths)
    table = merged.table("processes").to_pylist()
    assert [row["rank"] for row in table] == list(range(8))
    assert all(row["clock"] == "collectives" and row["error_ns"] < 400_000 for row in table[1:])
    # Their clocks on the wall are those of one machine; the calls bring them to the same place.
    traces = [kinetoscope.open(path) for path in paths]
    for row, trace in zip(table, traces, strict=True):
        wall_ns = trace.info["start_realtime_ns"] - traces[0].info["start_realtime_ns"]
        assert abs(row["start_ns"] - table[0]["start_ns"] - wall_ns) <= row["error_ns"]
    calls = merged.table("collectives").to_pylist()
    assert len(calls) == sum(len(trace.table("collectives")) for trace in traces)
    # Each collective is over for all at once, also those that the clocks were not compared by.
    calls.sort(key=lambda row: row["start_ns"])
    for name, count in (("all_reduce", 3), ("all_to_all", 5)):
        of_ranks = [[row for row in calls if (row["name"], row["rank"]) == (name, rank)] for rank in range(8)]
        assert [len(rows) for rows in of_ranks] == [count] * 8
        for together in zip(*of_ranks, strict=True):
            begun = [row["transfer_start_ns"] for row in together]
            over = [row["transfer_start_ns"] + row["transfer_ns"] for row in together]
            assert max(over) - min(over) <= 12_000
            assert max(begun) <= min(over)
    for number, trace in enumerate(traces):
        alone = merged.select_ranks([number])
        for name in ("kernels", "launches"):
            assert len(alone.table(name)) == len(trace.table(name)), name
    assert sorted(merged.table("breakdown").column("rank").to_pylist()) == list(range(8))


def program(*command):
    return {"program": {"command": list(command), "ended": "exit code 0"}}


def later(seconds, **more):
    return {"start_realtime_ns": START_REALTIME_NS + seconds * 10**9, **more}


@pytest.mark.parametrize(
    ("first", "second", "reason"),
    [
        (program("train.py", "--rank", "0"), program("infer.py"), "trace 1 is of train.py and trace 2 of infer.py"),
        (program("-m", "a.train"), program("-m", "b.train"), "trace 1 is of -m a.train and trace 2 of -m b.train"),
        ({}, later(3600), "trace 2 began 1 h 00 min after trace 1 had ended"),
        ({"start_monotonic_ns": 0, "boot_id": "x"}, {"start_monotonic_ns": 90 * 10**9, "boot_id": "x"},
         "trace 2 began 90 s after trace 1 had ended"),
        ({}, {"distributedInfo": None}, "trace 1 has a rank and trace 2 has none"),
    ],
)  # fmt: skip
def test_traces_of_unrelated_runs_are_merged_with_a_warning(first, second, reason):
    with pytest.warns(UserWarning, match=f"{re.escape(reason)}. Check that these are traces of one job"):
        merged = merge([rank(0, **first), rank(1, **second)])
    assert len(merged.columns("processes")) == 2


@pytest.mark.parametrize(
    ("first", "second"),
    [
        (program("/a/train.py", "--local-rank=0"), program("/b/train.py", "--local-rank=1")),
        ({}, later(5)),
        ({}, program("train.py")),
    ],
)
def test_ranks_of_one_job_are_merged_without_a_warning(first, second):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        merge([rank(0, **first), rank(1, **second)])


def test_ranks_that_called_each_other_belong_together_whatever_their_clocks_show():
    calls = [(1_000 * MS * step, 1_000 * MS * step + 10) for step in range(1, 4)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert places(merge([rank(0, calls), rank(1, calls, **later(3600))]))[1][2] == "collectives"


def test_the_command_says_it_too(tmp_path):
    for number, command in enumerate(("train.py", "infer.py")):
        rank(number, **program(command)).save(tmp_path / f"{number}.ktrace")
    told = CliRunner().invoke(
        main,
        [
            "merge",
            *(str(tmp_path / f"{number}.ktrace") for number in (0, 1)),
            "-o",
            str(tmp_path / "x.ktrace"),
        ],
    )
    assert told.exit_code == 0
    assert "warning: " in told.stderr
    assert "is of train.py and" in told.stderr
