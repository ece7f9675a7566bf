"""Files of torch.profiler, compared with torch's events of the same session."""

from collections import Counter

import pytest

from kinetoscope import open as open_trace
from kinetoscope.model.schema import SpanKind

torch = pytest.importorskip("torch", reason="records a session with torch's own profiler")


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """Return a finished session of torch.profiler on the CPU, and the trace read from its export."""
    model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.ReLU(), torch.nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    def step():
        with torch.profiler.record_function("forward pass"):
            loss = model(torch.ones(4, 8)).sum()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    step()
    path = tmp_path_factory.mktemp("torch") / "export.json.gz"
    with torch.profiler.profile(
        activities=[torch.profiler.ProfilerActivity.CPU],
        record_shapes=True,
        with_stack=True,
        profile_memory=True,
    ) as profiler:
        for _ in range(3):
            step()
            profiler.step()
    profiler.export_chrome_trace(str(path))
    return list(profiler.events()), open_trace(path)


def is_call(name):
    """Return whether an event is a Python call, which our list of events does not contain."""
    return "): " in name or name.startswith(("<built-in", "nn.Module: "))


def around(event):
    """Return the name of the operator or range around an event, ignoring Python calls."""
    above = event.cpu_parent
    while above is not None and is_call(above.name):
        above = above.cpu_parent
    return None if above is None else above.name


def test_it_is_all_there(session):
    _, trace = session
    assert trace.complete
    assert trace.info["engine"] == "kineto"
    assert len(trace.columns("allocations")) > 0
    assert len(trace.columns("stacks")) > 0


def test_events_are_as_many_with_the_same_times_and_parents(session):
    theirs, trace = session
    expected, found = (
        Counter(
            (event.name, round(event.time_range.elapsed_us() * 1000), around(event))
            for event in events
            if event.name != "[memory]" and not is_call(event.name)
        )
        for events in (theirs, trace.events())
    )
    assert len(expected) > 50
    assert found == expected


def test_events_have_the_same_shapes(session):
    theirs, trace = session
    expected, found = (
        Counter((event.name, str(event.input_shapes)) for event in events if event.name.startswith("aten::"))
        for events in (theirs, trace.events())
    )
    assert found == expected


def test_backward_functions_have_their_operators_phases_and_steps(session):
    _, trace = session
    rows = {row["id"]: row for row in trace.table("spans").to_pylist()}
    backward = [row for row in rows.values() if row["name"] == "AddmmBackward0"]
    assert len(backward) == 6
    assert {rows[row["forward"]]["name"] for row in backward} == {"aten::addmm"}
    assert {row["phase"] for row in backward} == {"backward"}
    assert Counter(row["step"] for row in backward) == {0: 2, 1: 2, 2: 2}
    assert {row["phase"] for row in rows.values() if row["name"].startswith("Optimizer.step")} == {
        "optimizer"
    }
    assert {row["module_class"] for row in backward} == {"Linear"}


def test_python_calls_are_around_operators(session):
    _, trace = session
    rows = [row for row in trace.table("spans").to_pylist() if row["name"] == "aten::addmm"]
    assert all("test_read_torch.py" in row["stack"] for row in rows)
    assert {row["module_class"] for row in rows} == {"Linear"}
    assert len({row["module"] for row in rows}) == 2


def test_memory_of_events_is_the_same(session):
    theirs, trace = session
    expected, found = (
        Counter((event.name, event.cpu_memory_usage) for event in events if event.name.startswith("aten::"))
        for events in (theirs, trace.events())
    )
    assert any(changed for _, changed in expected)
    assert found == expected
    assert (trace.column("spans", "kind") == SpanKind.MODULE).any()
