"""Findings about torch.compile name the guard, the reason and the line, and what a slow step was compiling."""

import pytest
import torch

import kinetoscope
from kinetoscope.analyses.findings import examine
from kinetoscope.combine.extend import extend
from kinetoscope.comparison.measures import run_of
from kinetoscope.model.compile_facts import Compilation, CompileFacts
from tests.support.trace_builder import TraceBuilder


def scaled(x, factor):
    return torch.relu(x) * factor


def in_two_parts(x):
    y = torch.relu(x)
    print(end="")
    return y + 1


def findings_of(run, steps):
    """The findings of a loop, by their codes; `run` is called with the number of each step."""
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=steps, repeat=1)
    with kinetoscope.profile(
        activities=[kinetoscope.ProfilerActivity.CPU], engine="native", schedule=schedule
    ) as prof:
        for number in range(steps + 1):
            run(number)
            prof.step()
    return {row["code"]: row for row in prof.trace.table("findings").to_pylist()}


@pytest.mark.parametrize(
    ("arguments", "guard", "advice", "line"),
    [
        (
            lambda n: (torch.ones(8 + n, 8), 2.0),
            "tensor 'x' size mismatch at index 0",
            "mark_dynamic(x, 0)",
            0,
        ),
        (lambda n: (torch.ones(8, 8), 2.0 + n), "factor == ", "pass it as a tensor", 1),
    ],
)
def test_a_recompilation_names_its_guard_and_how_to_avoid_it(arguments, guard, advice, line):
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    row = findings_of(lambda number: compiled(*arguments(number)), 4)["recompiles"]
    assert guard in row["finding"]
    assert advice in row["advice"]
    assert (row["file"], row["function"]) == (__file__, "scaled")
    assert row["line"] == scaled.__code__.co_firstlineno + line


def test_findings_and_comparisons_count_the_same_compilations():
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="aot_eager", dynamic=False)
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=4, repeat=1)
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], schedule=schedule) as prof:
        for sizes in ([8], [8], [9, 12], [10], [10]):
            # Backward is compiled, too, and is no compilation of its own.
            for size in sizes:
                compiled(torch.ones(size, requires_grad=True), 2.0).sum().backward()
            prof.step()
    (row,) = [row for row in prof.trace.table("findings").to_pylist() if row["code"] == "recompiles"]
    assert run_of(prof.trace).run_counts["recompiles"] == 3
    assert "torch.compile compiles 3 times after the first step" in row["finding"]


def test_the_second_step_is_late_where_the_first_is_left_out():
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    weight = torch.nn.Parameter(torch.ones(8))
    optimizer = torch.optim.SGD([weight], 0.1)
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], engine="native") as prof:
        for number in range(
            4
        ):  # steps are found from the optimizer, and the first one holds what came before
            compiled(weight, 2.0 if number == 0 else 3.0).sum().backward()
            optimizer.step()
    (row,) = [row for row in prof.trace.table("findings").to_pylist() if row["code"] == "recompiles"]
    assert "factor == 2.0" in row["finding"]


def test_a_recompilation_of_a_module_of_torch_names_the_line_that_calls_it():
    torch._dynamo.reset()
    compiled = torch.compile(torch.nn.Sequential(torch.nn.ReLU()), backend="eager", dynamic=False)

    def run(number):
        compiled(torch.ones(8 + number, 8))

    row = findings_of(run, 4)["recompiles"]
    assert "size mismatch" in row["finding"]
    assert (row["file"], row["line"]) == (__file__, run.__code__.co_firstlineno + 1)


def test_a_function_that_is_given_up_names_its_last_guard():
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        found = findings_of(lambda number: compiled(torch.ones(8, 8), 2.0 + number), 5)
    row = found["recompile-limit"]
    assert row["finding"].startswith("torch.compile has given up scaled (test_compiled.py:")
    assert "after 2 compilations" in row["finding"]
    assert "factor == 3.0" in row["finding"]
    assert "pass it as a tensor" in row["advice"]
    assert (row["file"], row["function"]) == (__file__, "scaled")
    assert row["share_percent"] > 0


@pytest.mark.parametrize("reset", [False, True])
def test_a_function_that_was_given_up_before_the_session_is_named(reset):
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    with torch._dynamo.config.patch(recompile_limit=2):
        for number in range(5):
            compiled(torch.ones(8, 8), 2.0 + number)
    if reset:
        # It is compiled again, and nothing is given up.
        torch._dynamo.reset()
        compiled(torch.ones(8, 8), 9.0)
    found = findings_of(lambda number: compiled(torch.ones(8, 8), 9.0), 5)
    if reset:
        assert "recompile-limit" not in found
        return
    row = found["recompile-limit"]
    assert row["finding"].startswith("torch.compile has given up scaled (test_compiled.py:")
    assert "after 2 compilations" in row["finding"]
    assert (row["file"], row["function"]) == (__file__, "scaled")
    assert row["share_percent"] > 0


def test_recompilations_below_the_limit_give_nothing_up():
    torch._dynamo.reset()
    compiled = torch.compile(scaled, backend="eager", dynamic=False)
    assert "recompile-limit" not in findings_of(lambda number: compiled(torch.ones(8, 8), 2.0 + number), 3)


@pytest.mark.filterwarnings("ignore:Dynamo does not know how to trace.*")
def test_a_graph_break_names_its_line_and_reason_without_stacks():
    torch._dynamo.reset()
    compiled = torch.compile(in_two_parts, backend="eager")
    x = torch.ones(8, 8)
    row = findings_of(lambda _: compiled(x), 3)["graph-breaks"]
    assert "print" in row["finding"] or "builtin" in row["finding"]
    assert (row["file"], row["line"]) == (__file__, in_two_parts.__code__.co_firstlineno + 2)
    assert row["gain_ns"] > 0


def test_a_slow_step_says_that_it_was_compiling():
    slow = TraceBuilder()
    for number in range(8):
        at = number * 10_000_000
        slow.step(number, at, 9_000_000 if number == 5 else 1_000_000)
        slow.span("aten::mm", at + 100, 200_000)
    slow.span("_compile.compile_inner (dynamo_timed)", 50_300_000, 8_000_000)
    trace = slow.build()
    assert trace.table("steps")["compile_ns"].to_pylist() == [0] * 5 + [8_000_000] + [0] * 2
    (finding,) = (
        row for row in trace.table("findings").to_pylist() if row["code"] in ("step-outlier", "recompiles")
    )
    assert "compiles" in finding["finding"]


@pytest.mark.parametrize(("compiling", "found"), [(True, []), (False, ["autograd-in-inference"])])
def test_what_the_compiler_traces_is_not_what_the_program_runs(compiling, found):
    """torch.compile runs a function with gradients to trace it, under torch.no_grad() too."""
    builder = TraceBuilder()
    layer = builder.module("Linear")
    builder.annotation("_compile.compile_inner (dynamo_timed)" if compiling else "my range", 0, 1_000_000)
    for call in range(40):
        builder.span("aten::linear", 1000 + call * 1000, 500, module=layer, sequence=call)
    builder.span("aten::mm", 2_000_000, 500_000)
    assert [one.code for one in examine(builder.build()).findings] == found


def skipped(reason, share):
    """A loop that runs a function for a part of its time, which torch could not compile."""
    builder = TraceBuilder()
    inside = builder.stack(("/code/train.py", 3, "main"), ("/code/net.py", 8, "Net.forward"))
    outside = builder.stack(("/code/train.py", 5, "main"))
    for step in range(8):
        at = step * 10_000_000
        builder.step(step, at, 10_000_000)
        builder.span("aten::mm", at, round(10_000_000 * share), stack=inside)
        builder.span("aten::relu", at + 9_000_000, 1_000_000, stack=outside)
    trace = builder.build()
    own = {"compile_id": "0/0", "stage": "frame", "function": "forward", "file": "/code/net.py", "line": 6}
    facts = CompileFacts([Compilation({**own, "failure": reason}, 0, 0, (reason, "/code/net.py", 8))])
    trace = extend(trace, tables=facts.tables(trace.strings, [0], 0))
    return {row["code"]: row for row in trace.table("findings").to_pylist()}


@pytest.mark.parametrize(
    ("reason", "share", "found"),
    [
        ("Unsupported Tensor.item() call", 0.5, True),
        ("Unsupported Tensor.item() call", 0.01, False),
        ("recompile_limit reached with fullgraph=True", 0.5, False),
    ],
)
def test_a_function_that_is_not_compiled_at_all_is_named_with_the_reason(reason, share, found):
    """A break inside a loop makes torch skip the whole function, so that no compiled code runs."""
    rows = skipped(reason, share)
    assert ("graph-breaks" in rows) == found
    if found:
        row = rows["graph-breaks"]
        assert row["finding"].startswith(f"torch.compile does not compile forward (net.py:8): {reason}")
        assert (row["file"], row["line"], round(row["share_percent"])) == ("/code/net.py", 8, 50)
