"""What torch.compile cost: the tables say what torch's own metrics say, and recording changes nothing of what is compiled."""

from __future__ import annotations

import gc
import json
import subprocess
import sys
import textwrap
import threading
from functools import cache

import pytest
import torch
from torch._dynamo.utils import clear_compilation_metrics, counters, get_compilation_metrics

import kinetoscope
from kinetoscope.collect.sources import compiling
from kinetoscope.collect.sources.compiling import COMPILE_HOOKS
from kinetoscope.trace import merge_processes
from kinetoscope.viewer.server.routes import answer
from tests.support.compiled_cache import compiler_cache
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)
from tests.support.torch_release import TORCH

__all__ = ["compiler_cache"]

CPU = [kinetoscope.ProfilerActivity.CPU]
PHASES = ("dynamo_ns", "aot_ns", "inductor_ns", "codegen_ns", "kernel_compile_ns", "autotune_ns")
pytestmark = pytest.mark.filterwarnings(
    # The compiler looks at it where a graph goes on after a break.
    "ignore:The .grad attribute of a Tensor that is not a leaf.*",
    # On inputs that it was not made for.
    "ignore:Dynamo does not know how to trace.*",
)


def helper(x):
    print(end="")
    return x * 2


def two_breaks(x):
    y = helper(x).sin()
    if y.sum() > 0:
        y = y + 1
    return y.cos()


def whole(x, factor):
    return (x * factor).relu().sum()


def fresh(function, **options):
    """A function as if it were compiled for the first time in this process."""
    torch._dynamo.reset()
    clear_compilation_metrics()
    counters.clear()
    return torch.compile(function, backend="aot_eager", **options)


def two_sizes(compiled, *more):
    for size in (3, 3, 4, 5):
        compiled(torch.ones(size, 4, requires_grad=True), *more).sum().backward()


def recorded(run, engine="native", **options):  # noqa: F811
    with kinetoscope.profile(activities=CPU, engine=engine, **options) as prof:
        run()
    return prof.trace


def rows(trace, name):
    return trace.table(name).to_pylist()


@cache
def recorded_with_breaks(engine):  # noqa: F811
    """A trace of a program that is compiled in it, recorded once with each engine, and what torch measured of it."""
    compiled = fresh(two_breaks)
    return recorded(lambda: two_sizes(compiled), engine), get_compilation_metrics()


def test_the_table_says_what_torch_measured(engine):  # noqa: F811
    trace, theirs = recorded_with_breaks(engine)
    ours = rows(trace, "compiles")
    assert [row["compile_id"] for row in ours] == [one.compile_id for one in theirs]
    assert {row["stage"] for row in ours} <= {"frame", "backward"}
    for row, one in zip(ours, theirs, strict=True):
        assert row["duration_ns"] == (one.end_time_us - one.start_time_us) * 1000
        assert (row["reason"] or None) == one.recompile_reason
        assert row["recompile"] == (one.recompile_reason is not None)
        assert 0 < sum(row[phase] or 0 for phase in PHASES) <= row["duration_ns"]
        if one.co_name:
            assert (row["function"], row["file"], row["line"]) == (
                one.co_name,
                one.co_filename,
                one.co_firstlineno,
            )
            assert (row["guards"], row["operators"]) == (one.guard_count, one.graph_op_count)
    # Every compilation has its range on the timeline, on its thread.
    spans = trace.table("spans").select(["name", "thread", "start_ns", "duration_ns"]).to_pylist()
    for row in ours:
        span = spans[row["span"]]
        assert span["name"].endswith("(dynamo_timed)")
        assert span["thread"] == row["thread"]
        # They read their clocks one after the other: on a busy machine, at any distance.
        assert row["start_ns"] < span["start_ns"] + span["duration_ns"]
        assert span["start_ns"] < row["start_ns"] + row["duration_ns"]
    assert len({row["span"] for row in ours}) == len(ours)


def test_recompilations_name_the_guard(native):  # noqa: F811
    compiled = fresh(whole, dynamic=False)

    def run():
        for factor in (1.0, 2.0):
            compiled(torch.ones(3), factor)

    first, again = rows(recorded(run), "compiles")
    assert (first["recompile"], first["reason"]) == (False, None)
    assert again["recompile"]
    assert "factor == 1.0" in again["reason"]
    assert again["reason"] == get_compilation_metrics()[-1].recompile_reason
    if TORCH >= (2, 11):  # older ones name the guard only
        assert f"{whole.__code__.co_firstlineno + 1}" in again["reason"]


def test_graph_breaks_have_their_reason_line_and_cost(engine):  # noqa: F811
    trace, _ = recorded_with_breaks(engine)
    found = rows(trace, "graph_breaks")
    printing = helper.__code__.co_firstlineno + 1
    branch = two_breaks.__code__.co_firstlineno + 2
    assert {(row["file"], row["line"]) for row in found} == {(__file__, printing), (__file__, branch)}
    # The call of the helper ends the caller's graph as well as its own.
    assert sorted(len(row["stack"].split(";")) for row in found if row["line"] == printing) == [1, 2]
    for row in found:
        assert row["count"] == 4
        assert row["time_ns"] > 0
        assert not row["skipped"]
        wanted = "print" if row["line"] == printing else "Data-dependent branching"
        assert wanted in row["reason"]


def test_what_was_compiled_before_is_known_too(native):  # noqa: F811
    compiled = fresh(two_breaks)
    two_sizes(compiled)
    with kinetoscope.profile(
        activities=CPU, schedule=kinetoscope.schedule(wait=0, warmup=1, active=2, repeat=1)
    ) as prof:
        for _ in range(3):
            two_sizes(compiled)
            prof.step()
    trace = prof.trace
    assert rows(trace, "compiles") == []
    for row in rows(trace, "graph_breaks"):
        assert row["count"] == 2 * 4
        assert 0 < row["time_per_step_ns"] <= row["time_ns"] // 2
    assert set(trace.table("steps")["compile_ns"].to_pylist()) == {0}


def test_breaks_of_programs_that_do_not_run_are_left_out(native):  # noqa: F811
    def another(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    compiled, not_called = fresh(two_breaks), torch.compile(another, backend="aot_eager")
    two_sizes(compiled)
    two_sizes(not_called)
    trace = recorded(lambda: two_sizes(compiled))
    printing, branch = helper.__code__.co_firstlineno + 1, two_breaks.__code__.co_firstlineno + 2
    assert {row["line"] for row in rows(trace, "graph_breaks")} == {printing, branch}
    assert "another" not in trace.columns("compiles")["function"]
    other = recorded(lambda: two_sizes(not_called))
    assert {row["line"] for row in rows(other, "graph_breaks")} == {another.__code__.co_firstlineno + 2}


def test_chrome_traces_show_guards_and_phases(native, tmp_path):  # noqa: F811
    compiled = fresh(whole, dynamic=False)
    trace = recorded(lambda: [compiled(torch.ones(3), factor) for factor in (1.0, 2.0)])
    *_, again = rows(trace, "compiles")
    trace.save(tmp_path / "trace.json")
    spans = rows(kinetoscope.open(tmp_path / "trace.json"), "spans")
    (arguments,) = (
        json.loads(row["arguments"]) for row in spans if row["arguments"] and "factor" in row["arguments"]
    )
    assert arguments["reason"] == again["reason"]
    assert (arguments["function"], arguments["dynamo_ns"]) == ("whole", again["dynamo_ns"])


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch")
def test_the_timeline_has_a_track_of_compilations_and_their_phases(native, compiler_cache):  # noqa: F811
    torch._dynamo.reset()
    trace = recorded(lambda: [torch.compile(whole, dynamic=False)(torch.ones(3), by) for by in (1.0, 2.0)])
    found = answer(trace, "tracks", {})
    (track,) = (
        one for group in found["groups"] for one in group["tracks"] if one["label"] == "torch.compile"
    )
    shown = answer(
        trace,
        "window",
        {"start": "0", "end": str(found["duration_ns"]), "width": "8000", "tracks": str(track["id"])},
    ).to_pylist()
    first, again = [row for row in shown if row["row"] == 0]
    assert first["name"] == "compile whole [0/0]"
    assert again["name"].startswith("recompile whole [0/1]: factor == 1.0")
    names = {row["name"] for row in shown}
    assert {"AOTAutograd", "Inductor", "Code generation"} <= names
    # torch 2.7 does not time the building of guards.
    assert ("Guards" in names) == (TORCH >= (2, 8))
    # Phases lie in what they are phases of.
    for row in shown:
        if row["row"]:
            assert any(
                outer["row"] == row["row"] - 1
                and outer["start"] <= row["start"]
                and row["start"] + row["duration"] <= outer["start"] + outer["duration"]
                for outer in shown
            )


@pytest.mark.filterwarnings("ignore::DeprecationWarning:torch", "ignore::UserWarning:torch")
def test_the_time_of_the_cpp_compiler_is_that_of_kernels(native, compiler_cache):  # noqa: F811
    torch._dynamo.reset()
    clear_compilation_metrics()
    trace = recorded(lambda: torch.compile(lambda x: (x * 0.8125).tanh())(torch.ones(5)))
    (row,), (theirs,) = rows(trace, "compiles"), get_compilation_metrics()
    compilers = sum(
        span["duration_ns"] for span in rows(trace, "spans") if span["name"] == "compile_file (dynamo_timed)"
    )
    assert row["kernel_compile_ns"] == compilers > 0
    assert row["codegen_ns"] < theirs.inductor_code_gen_cumulative_compile_time_us * 1000
    assert sum(row[phase] or 0 for phase in PHASES) <= row["duration_ns"]


def test_steps_say_how_much_of_them_was_compiling(engine):  # noqa: F811
    compiled = fresh(whole)
    with kinetoscope.profile(
        activities=CPU, engine=engine, schedule=lambda step: kinetoscope.ProfilerAction.RECORD
    ) as prof:
        for size in (3, 3, 4, 4):
            compiled(torch.ones(size), 2.0)
            prof.step()
    trace = prof.trace
    steps = rows(trace, "steps")
    assert [row["compile_ns"] > 0 for row in steps[:4]] == [True, False, True, False]
    assert all(row["compile_ns"] <= row["duration_ns"] for row in steps)
    assert [row["step"] for row in rows(trace, "compiles")] == [0, 2]
    # Nothing but the ranges of these two compilations is counted.
    assert sum(row["compile_ns"] for row in steps) <= sum(
        row["duration_ns"] for row in rows(trace, "compiles")
    )


def test_a_function_that_cannot_be_compiled_is_skipped(native):  # noqa: F811
    def generator_in_a_try(x):
        try:
            torch._dynamo.graph_break()
            return x.sin()
        finally:
            x.cos()

    compiled = fresh(generator_in_a_try)
    trace = recorded(lambda: compiled(torch.ones(3)))
    failed = [row for row in rows(trace, "compiles") if row["failure"]]
    skipped = [row for row in rows(trace, "graph_breaks") if row["skipped"]]
    assert len(failed) == len(skipped) == sum(one.fail_type is not None for one in get_compilation_metrics())
    for row in skipped:
        assert (row["file"], row["count"], row["time_ns"]) == (__file__, None, None)


def test_files_parts_and_merged_traces_have_the_tables(native, tmp_path):  # noqa: F811
    trace, _ = recorded_with_breaks(native)
    trace.save(tmp_path / "a.ktrace")
    read = kinetoscope.open(tmp_path / "a.ktrace")
    for name in ("compiles", "graph_breaks"):
        assert rows(read, name) == rows(trace, name)
    whole_table = rows(trace, "compiles")
    last = whole_table[-1]
    part = trace.window(last["start_ns"], last["start_ns"] + last["duration_ns"] // 2)
    (kept,) = rows(part, "compiles")
    assert kept["compile_id"] == last["compile_id"]
    assert abs(kept["start_ns"]) < 1_000
    assert len(rows(part, "graph_breaks")) == len(rows(trace, "graph_breaks"))
    both = merge_processes([trace, read], [0, 1_000])
    merged = rows(both, "compiles")
    assert len(merged) == 2 * len(whole_table)
    assert sorted(row["start_ns"] for row in merged) == sorted(
        row["start_ns"] + shift for row in whole_table for shift in (0, 1_000)
    )
    assert sum(row["count"] for row in rows(both, "graph_breaks")) == 2 * sum(
        row["count"] for row in rows(trace, "graph_breaks")
    )


@pytest.mark.filterwarnings("ignore:warmup=0")
def test_cycles_of_a_session_have_their_own(native):  # noqa: F811
    compiled = fresh(whole)
    with kinetoscope.profile(
        activities=CPU, schedule=kinetoscope.schedule(wait=0, warmup=0, active=1, repeat=2), acc_events=True
    ) as prof:
        for size in (3, 4):
            compiled(torch.ones(size), 2.0)
            prof.step()
    first, second = prof.cycles
    assert [row["compile_id"] for row in rows(first, "compiles")] == ["0/0"]
    assert [row["compile_id"] for row in rows(second, "compiles")] == ["0/1"]
    together = rows(prof.cycles.together(), "compiles")
    of_each = [row for cycle in prof.cycles for row in rows(cycle, "compiles")]
    for name in ("compile_id", "function", "duration_ns", "reason", "operators"):
        assert [row[name] for row in together] == [row[name] for row in of_each]
    assert [row["compile_id"] for row in together] == ["0/0", "0/1"]
    assert together[0]["start_ns"] < together[1]["start_ns"]


def counted(record):
    """What torch counts while a program is compiled that has breaks, recompilations and dynamic sizes."""
    compiled = fresh(two_breaks)
    record(lambda: two_sizes(compiled))
    found = {name: dict(values) for name, values in counters.items()}
    counted = ["compile_id", "co_name", "guard_count", "graph_op_count", "recompile_reason"]
    if TORCH >= (2, 11):
        counted.append("graph_node_shapes")
    return found, [[getattr(one, name) for name in counted] for one in get_compilation_metrics()]


@pytest.fixture(scope="module")
def without():
    """What torch counts without a recording."""
    numbers = counted(lambda run: run())
    assert numbers[0]["frames"]["ok"] > 0
    assert any(function is None for _, function, *_ in numbers[1]), "backward is compiled, too"
    return numbers


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_flops": True},
        {"module_spans": True, "samples": True},
    ],
)
def test_a_program_compiles_as_without_a_recording(engine, options, without):  # noqa: F811
    if engine == "kineto" and options.get("with_flops"):
        pytest.skip("torch's collector itself makes dynamic sizes constant, see docs/differences.md")
    if engine == "kineto" and "samples" in options:
        options = {"module_spans": False}
    assert counted(lambda run: recorded(run, engine, **options)) == without


def torchs_state():
    from torch._dynamo import utils

    return utils.add_compilation_metrics_to_chromium, COMPILE_HOOKS._import in sys.meta_path


def test_torch_is_as_before_afterwards(engine):  # noqa: F811
    before = torchs_state()
    during = []
    recorded(lambda: during.append(torchs_state()), engine)
    assert during[0][0].__wrapped__ is before[0]
    assert torchs_state() == before == (before[0], False)


def test_what_was_compiled_before_is_described_once_for_all_sessions(native):  # noqa: F811
    two_sizes(fresh(two_breaks))
    described = []
    for _ in range(2):
        with kinetoscope.profile(engine=native):
            described.append(COMPILE_HOOKS.breaks())
    assert described[0]
    assert [*map(id, described[0])] == [*map(id, described[1])]


def test_a_session_that_is_dropped_leaves_nothing_to_the_next_one(native):  # noqa: F811
    def breaks(x):
        x = x.sin()
        torch._dynamo.graph_break()
        return x.cos()

    dropped = kinetoscope.profile(engine=native)
    dropped.start()
    torch.compile(breaks, backend="eager")(torch.ones(3))
    del dropped
    gc.collect()
    torch._dynamo.reset()
    torch._dynamo.utils.graph_break_reasons.clear()
    with kinetoscope.profile(engine=native) as session:
        torch.compile(torch.sin, backend="eager")(torch.ones(3))
    assert session.trace.table("compiles").num_rows > 0
    assert session.trace.table("graph_breaks").num_rows == 0


def test_compilations_of_other_threads_are_seen(native):  # noqa: F811
    compiled = fresh(whole)

    ids = []

    def compile_here():
        ids.append(threading.get_native_id())
        compiled(torch.ones(3), 2.0)

    def elsewhere():
        thread = threading.Thread(target=compile_here)
        thread.start()
        thread.join()

    trace = recorded(elsewhere)
    (row,) = rows(trace, "compiles")
    assert [trace.table("threads").to_pylist()[row["thread"]]["os_tid"]] == ids


def test_metrics_that_cannot_be_read_are_a_loss(native):  # noqa: F811
    from torch._dynamo import utils

    class Unreadable:
        def __getattr__(self, name):
            raise RuntimeError(f"no {name} here")

    # As the report of a release of torch that keeps its metrics in another way.
    trace = recorded(lambda: COMPILE_HOOKS._note(Unreadable()))
    assert utils.add_compilation_metrics_to_chromium.__name__ == "add_compilation_metrics_to_chromium"
    (loss,) = (row for row in rows(trace, "losses") if row["code"] == "compiling_unreadable")
    assert "no compile_id here" in loss["why"] or "no " in loss["why"]


def test_without_torchs_compilation_metrics_there_is_a_loss(native, monkeypatch):  # noqa: F811
    monkeypatch.setattr(compiling, "_REPORT", "report_of_no_release")
    compiled = fresh(whole)
    trace = recorded(lambda: compiled(torch.ones(3), 2.0))
    (loss,) = (row for row in rows(trace, "losses") if row["code"] == "compiling_unreadable")
    assert loss["why"] == "this torch has no torch._dynamo.utils.report_of_no_release"
    quiet = recorded(lambda: torch.ones(3).sum())
    assert "compiling_unreadable" not in {row["code"] for row in rows(quiet, "losses")}


def test_the_compiler_is_imported_by_what_compiles_only_and_what_it_does_then_is_seen():
    program = """
        import sys, torch, kinetoscope
        before = "torch._dynamo" in sys.modules
        with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine="native") as prof:
            torch.ones(3).sum()
        prof.trace.table("compiles"), prof.trace.table("graph_breaks")
        print(before, "torch._dynamo" in sys.modules)
        with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine="native") as prof:
            assert "torch._dynamo" not in sys.modules
            torch.compile(lambda x: x.sin(), backend="eager")(torch.ones(3))
        (row,) = prof.trace.table("compiles").to_pylist()
        module = sys.modules["torch._dynamo.utils"]
        assert "exec_module" not in vars(module.__loader__), vars(module.__loader__)
        print(row["compile_id"], row["span"] is not None)
        """
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["False", "False", "0/0", "True"]
