"""Programs written against torch.profiler that read events, sums, tables and stacks, on both engines."""

from __future__ import annotations

import threading
from collections import Counter
from typing import Any

import pytest

pytest.importorskip("torch", reason="the programs are torch's")

import torch
from torch import nn

import kinetoscope
from kinetoscope import ProfilerActivity, record_function

CPU = [ProfilerActivity.CPU]


@pytest.fixture(params=["native", "kineto"])
def engine(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def profiled(engine: str, run: Any, **options: Any) -> Any:
    with kinetoscope.profile(activities=CPU, engine=engine, **options) as prof:
        run()
    return prof


def named(events: Any, name: str) -> Any:
    found = [event for event in events if event.key == name]
    assert len(found) == 1, name
    return found[0]


def test_input_shapes_of_layers_are_those_of_the_model(engine):
    model = nn.Sequential(nn.Linear(20, 30), nn.Linear(30, 40))
    x = torch.ones(128, 20)
    events = profiled(engine, lambda: model(x), record_shapes=True).events()
    linear = [event.input_shapes for event in events if event.name == "aten::linear"]
    assert linear == [[[128, 20], [30, 20], [30]], [[128, 30], [40, 30], [40]]]
    assert all(event.input_shapes == [] for event in profiled(engine, lambda: model(x)).events())


def test_grouping_by_shape_keeps_the_whole(engine):
    model = nn.LSTM(6, 8, num_layers=2)
    x = torch.ones(5, 3, 6)
    prof = profiled(engine, lambda: model(x), record_shapes=True)
    plain, by_shape = prof.key_averages(), prof.key_averages(group_by_input_shape=True)
    assert len(by_shape) > len(plain)
    for key in {event.key for event in plain}:
        for name in ("count", "cpu_time_total", "self_cpu_time_total"):
            whole = sum(getattr(event, name) for event in by_shape if event.key == key)
            assert whole == pytest.approx(getattr(named(plain, key), name)), (key, name)
    total = prof.events().total_average()
    assert total.count == len(prof.events())
    assert total.self_cpu_time_total == pytest.approx(prof.events().self_cpu_time_total)
    top = [event for event in prof.events() if event.cpu_parent is None]
    assert sum(event.cpu_time_total for event in top) == pytest.approx(total.self_cpu_time_total)


def test_events_lie_in_their_parents_and_come_in_order(engine):
    def run() -> None:
        with record_function("outer"):
            (torch.ones(4, requires_grad=True) * 2).sum().backward()

    events = profiled(engine, run).events()
    starts = [event.time_range.start for event in events]
    assert starts == sorted(starts)
    for event in events:
        assert event.cpu_time_total == pytest.approx(event.time_range.elapsed_us())
        assert all(child.cpu_parent == event for child in event.cpu_children)
        if event.cpu_parent is not None:
            around = event.cpu_parent.time_range
            assert around.start <= event.time_range.start <= event.time_range.end <= around.end
            assert event in event.cpu_parent.cpu_children
    outer = named(events, "outer")
    assert outer.is_user_annotation
    assert outer.cpu_children
    assert not named(events, "aten::sum").is_user_annotation


def test_memory_goes_to_the_ranges_that_allocate_and_free(engine):
    def run() -> None:
        with record_function("allocates"):
            x = torch.rand(10, 10)
        with record_function("frees"):
            del x
        y = torch.ones(1000)
        del y

    prof = profiled(engine, run, profile_memory=True, record_shapes=True)
    sums = prof.key_averages()
    assert named(sums, "allocates").cpu_memory_usage == 400
    assert named(sums, "frees").cpu_memory_usage == named(sums, "frees").self_cpu_memory_usage == -400
    assert named(sums, "aten::empty").self_cpu_memory_usage == 4400
    assert named(sums, "[memory]").cpu_memory_usage == -4000
    assert [event.cpu_memory_usage for event in prof.events() if event.name == "[memory]"] == [-4000]
    text = sums.table(sort_by="self_cpu_memory_usage")
    assert "Self CPU Mem" in text
    assert "-3.91 KB" in text
    assert "Mem" not in profiled(engine, run).key_averages().table()


def test_flops_have_a_column_only_when_asked_for(engine):
    model = nn.Sequential(nn.Conv2d(16, 33, 18), nn.ReLU(), nn.Linear(243, 243))
    x = torch.ones(4, 16, 18, 260)
    prof = profiled(engine, lambda: model(x), with_flops=True, record_shapes=True)
    text = prof.key_averages().table(sort_by="flops", row_limit=10)
    assert "FLOPs" in text.splitlines()[1].split()[-1]
    flops = {event.key: event.flops for event in prof.key_averages() if event.flops}
    # torch's own count of the same layers: two operations for each product that is added up.
    convolution = 2 * 4 * 33 * 16 * 18 * 18 * 243
    linear = 2 * 4 * 33 * 243 * 243
    assert sum(flops.values()) >= convolution + linear
    assert convolution in flops.values()
    assert linear in flops.values()
    assert (
        prof.key_averages().total_average().flops
        == prof.events().total_average().flops
        == sum(flops.values())
    )
    plain = profiled(engine, lambda: model(x), record_shapes=True)
    assert "FLOPs" not in plain.key_averages().table()
    assert all(event.flops == 0 for event in plain.events())


def test_stacks_name_the_source_and_can_be_exported(engine, tmp_path):
    def run() -> None:
        here()

    def here() -> None:
        for _ in range(20):
            torch.rand(64, 64) @ torch.rand(64, 64)

    prof = profiled(engine, run, with_stack=True)
    operators = [event for event in prof.events() if event.name == "aten::matmul"]
    assert len(operators) == 20
    assert any("here" in entry and "test_torch_events_programs.py" in entry for entry in operators[0].stack)
    (around,) = (event for event in prof.events() if event.name.endswith(": here"))
    assert around.is_python_function
    assert around.count == 1
    sums = prof.key_averages(group_by_stack_n=5)
    assert "Source Location" in sums.table(row_limit=-1)
    prof.export_stacks(str(tmp_path / "stacks.txt"), "self_cpu_time_total")
    lines = (tmp_path / "stacks.txt").read_text().splitlines()
    assert lines
    found: Counter[str] = Counter()
    for line in lines:
        stack, _, number = line.rpartition(" ")
        assert int(number) > 0
        found[stack.split(";")[-1]] += int(number)
    assert any("here" in line for line in lines)
    of_table = sum(
        event.self_cpu_time_total for event in prof.events() if event.stack and not event.is_python_function
    )
    assert sum(found.values()) == pytest.approx(of_table, abs=1)


def test_steps_are_one_row_and_keep_their_numbers(engine):
    schedule = kinetoscope.schedule(wait=0, warmup=1, active=2, repeat=1)
    with kinetoscope.profile(activities=CPU, schedule=schedule, engine=engine) as prof:
        for _ in range(3):
            torch.ones(3) + 1
            prof.step()
    steps = [event for event in prof.events() if event.name == "ProfilerStep*"]
    assert [event.trace_name for event in steps] == ["ProfilerStep#1", "ProfilerStep#2"]
    average = named(prof.key_averages(), "ProfilerStep*")
    assert average.count == 2
    assert average.is_user_annotation
    assert "ProfilerStep*" in prof.key_averages().table(sort_by="cpu_time_total", top_level_events_only=True)


def test_autograd_gives_forward_and_backward_one_number(engine):
    x = torch.ones(4, requires_grad=True)
    events = profiled(engine, lambda: x.mul(3).sum().backward()).events()
    forward = {
        event.sequence_nr: event for event in events if event.sequence_nr >= 0 and event.fwd_thread == 0
    }
    backward = [event for event in events if event.scope == 1 and event.sequence_nr >= 0]
    assert [event.name for event in backward] == ["SumBackward0", "MulBackward0"]
    for event in backward:
        assert event.fwd_thread == forward[event.sequence_nr].thread
        assert event.cpu_parent.name == f"autograd::engine::evaluate_function: {event.name}"
        assert event.cpu_parent.sequence_nr == event.sequence_nr


def test_other_threads_are_seen_with_numbers_of_their_own():
    def run() -> None:
        thread = threading.Thread(target=lambda: torch.ones(8).mul(2))
        thread.start()
        thread.join()
        torch.ones(8).div(2)

    events = profiled("native", run).events()
    assert named(events, "aten::mul").thread != named(events, "aten::div").thread
    assert all(child.thread == event.thread for event in events for child in event.cpu_children)


def test_sorting_and_limits_as_programs_use_them(engine):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    prof = profiled(engine, lambda: model(torch.ones(2, 8)).sum().backward(), profile_memory=True)
    sums = prof.key_averages()
    by_time = sorted(sums, key=lambda event: event.self_cpu_time_total, reverse=True)
    text = sums.table(sort_by="self_cpu_time_total", row_limit=5, max_name_column_width=None)
    rows = [line.strip().split("  ")[0] for line in text.splitlines()[3:8]]
    assert rows == [event.key.strip() for event in by_time[:5]]
    assert text.splitlines()[-1].startswith("Self CPU time total: ")
    assert prof.events()[:3].table().count("aten::") >= 1
    assert {event.key for event in sums} == {event.name for event in prof.events()}
    frame = [(event.key, event.count, event.cpu_time) for event in sums if event.key.startswith("aten::")]
    assert all(count * time > 0 for _, count, time in frame)


def test_calls_on_the_timeline_change_no_event(tmp_path):
    model = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 2))
    x = torch.ones(3, 8)

    def run() -> None:
        model(x).sum().backward()

    run()
    plain = profiled("native", run, record_shapes=True, profile_memory=True)
    full = profiled(
        "native", run, record_shapes=True, profile_memory=True, python_calls=True, module_spans=True
    )
    assert len(full.trace.columns("spans")) > len(plain.trace.columns("spans")) + 10

    def facts(prof: Any) -> list[Any]:
        return [
            (
                event.name,
                event.input_shapes,
                event.cpu_memory_usage,
                event.cpu_parent and event.cpu_parent.name,
            )
            for event in prof.events()
            if event.name != "[memory]"
        ]

    assert facts(full) == facts(plain)
    assert not any(event.is_python_function for event in full.events())
    counts = [
        [(event.key, event.count) for event in prof.key_averages() if event.first] for prof in (full, plain)
    ]
    assert counts[0] == counts[1]
    full.export_stacks(tmp_path / "stacks.txt")
    assert (tmp_path / "stacks.txt").stat().st_size > 0
