"""Live programs watched by torch.profiler and by us at once: every attribute of every event, every column of the table.

What differs on purpose is listed here with its reason; everything else must be equal.
"""

from __future__ import annotations

import gc
import json
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the comparison is with torch's own profiler")

import torch

import kinetoscope
from kinetoscope import ProfilerActivity
from tests.support.programs import PROGRAMS
from tests.support.torch_engines import engine, native  # noqa: F401  (fixtures)
from tests.support.torch_release import METADATA

if TYPE_CHECKING:
    from collections.abc import Callable

FLAGS: dict[str, Any] = {"activities": [ProfilerActivity.CPU], "record_shapes": True, "profile_memory": True}
WATCHED = (
    "mlp_training", "convolutional_training", "custom_autograd_function", "checkpointing", "function_transforms",
    "scripted", "inference", "mixed_precision", "nested_ranges", "fourier_and_complex", "recurrent_training",
)  # fmt: skip

EQUAL = (
    "name", "key", "trace_name", "count", "thread", "fwd_thread", "sequence_nr", "scope", "node_id", "is_async", "is_remote",
    "is_legacy", "is_user_annotation", "is_python_function", "device_type", "use_device", "kernels", "input_shapes",
    "cpu_memory_usage", "self_cpu_memory_usage", "device_memory_usage", "self_device_memory_usage", "device_time",
    "device_time_total", "self_device_time_total", METADATA, "linked_correlation_id", "flops", "python_id",
    "python_parent_id", "python_module_id", "device_time_str", "device_time_total_str", "self_device_time_total_str",
)  # fmt: skip
# torch leaves these out of its [memory] events, where a program that reads them of every event would fail.
EQUAL_OF_SPANS = (
    "activity_type", "device_index", "device_resource_id", "structured_input_shapes", "structured_input_strides", "input_dtypes", "kwinputs", "flow_type",
    "flow_start", "overload_name",
)  # fmt: skip
DIFFERENT = {
    "id": "torch counts its events from 1, here it is the row of the span",
    "external_id": "torch counts from 1 anew, here it is that of the exported trace, which is compared below",
    "flow_id": "torch numbers its arrows anew; which events belong together is compared below",
    "concrete_inputs": "ours has strings and devices, too; numbers are compared below",
    "stack": "stacks are taken without being asked for; torch's are empty unless `verbose` is set, too",
    "cpu_time": "two clocks; the same events through both tables are compared in test_event_list_against_torch.py",
    "cpu_time_total": "two clocks",
    "self_cpu_time_total": "two clocks",
    "time_range": "two clocks a microsecond apart",
    "cpu_time_str": "the text of a time",
    "cpu_time_total_str": "the text of a time",
    "self_cpu_time_total_str": "the text of a time",
    "cpu_children": "compared by name below",
    "cpu_parent": "compared by name below",
    "metadata_json": "deprecated, warns",
    "event_metadata": "deprecated, warns from torch 2.15 on; before, it is compared",
    "cuda_time": "deprecated, warns",
    "cuda_time_total": "deprecated, warns",
    "self_cuda_time_total": "deprecated, warns",
    "self_cuda_memory_usage": "deprecated, warns",
    "self_cpu_percent": "a note that torch's table leaves",
    "total_cpu_percent": "a note that torch's table leaves",
    "total_device_percent": "a note that torch's table leaves",
    "append_kernel": "builds events by hand",
    "append_cpu_child": "builds events by hand",
    "set_cpu_parent": "builds events by hand",
}
# Of the averages: what stands in front is the earliest event's in torch, the group's here.
OF_AVERAGES = (
    "key", "count", "node_id", "is_async", "is_remote", "is_legacy", "use_device", "input_shapes", "overload_name", "scope", "device_type", "is_user_annotation", "cpu_memory_usage", "self_cpu_memory_usage", "device_memory_usage",
    "self_device_memory_usage", "device_time_total", "self_device_time_total", "device_time", "flops",
)  # fmt: skip


@pytest.fixture(scope="module", params=WATCHED)
def pair(request: pytest.FixtureRequest) -> tuple[Any, Any]:
    """A program's recordings by torch and by us, made at once."""
    for _ in range(8):
        run = PROGRAMS[request.param]()
        run()
        run()
        found = recorded_by_both(run)
        if not frees_by_hearsay(*found):
            break
    return found


def recorded_by_both(run: Callable[[], object]) -> tuple[Any, Any]:
    # What the collector of cycles lets go of while watched depends on what ran before.
    gc.collect()
    gc.disable()
    try:
        with (
            torch.profiler.profile(
                **FLAGS,
                experimental_config=torch._C._profiler._ExperimentalConfig(capture_overload_names=True),
            ) as theirs,
            kinetoscope.profile(**FLAGS, engine="native") as ours,
        ):
            run()
    finally:
        gc.enable()
    return theirs, ours


def frees_by_hearsay(theirs: Any, ours: Any) -> bool:
    """Whether torch said of the free of a block from before the recording how large it was.

    It keeps the size of a block that was recorded and then freed while nothing was, and says it of whatever is later freed
    at that address: which addresses come back is the allocator's luck.
    """
    allocations, spans = ours.trace.columns("allocations"), ours.trace.columns("spans")
    unknown = (allocations["bytes"] == 0) & (allocations["match"] < 0) & (allocations["freed_bytes"] == 0)
    around = set()
    for span in allocations["span"][unknown].tolist():
        while span >= 0 and span not in around:
            around.add(span)
            span = int(spans["parent"][span])
    pairs = zip(ours.events(), theirs.events(), strict=False)
    return any(mine.id in around and mine.cpu_memory_usage != its.cpu_memory_usage for mine, its in pairs)


def test_every_event_is_there_in_order(pair):
    theirs, ours = pair
    assert [event.name for event in ours.events()] == [event.name for event in theirs.events()]


def test_attributes_are_equal(pair):
    theirs, ours = pair
    for mine, its in zip(ours.events(), theirs.events(), strict=True):
        names = EQUAL if its.name == "[memory]" else EQUAL + EQUAL_OF_SPANS
        for name in names:
            # torch has no FLOPs for what is no operator, and no row of ours is without a number.
            wanted = getattr(its, name) or 0 if name == "flops" else getattr(its, name)
            assert getattr(mine, name) == wanted, (name, mine, its)
        assert 0 <= mine.self_cpu_time_total <= mine.cpu_time_total == mine.cpu_time
        numbers = [None if isinstance(value, str) else value for value in mine.concrete_inputs]
        assert rounded(numbers) == rounded(its.concrete_inputs or []), mine


def rounded(value: Any) -> Any:
    """The recorder writes numbers with 16 digits."""
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return float(f"{value:.12g}") if isinstance(value, float) else value


def test_events_are_in_the_same_events(pair):
    theirs, ours = pair
    for mine, its in zip(ours.events(), theirs.events(), strict=True):
        assert (mine.cpu_parent and mine.cpu_parent.name) == (its.cpu_parent and its.cpu_parent.name)
        assert [child.name for child in mine.cpu_children] == [child.name for child in its.cpu_children]


def test_arrows_lead_from_the_same_forward_operators_to_the_same_backward_functions(pair):
    theirs, ours = pair

    def arrows(events: Any) -> set[tuple[int, int]]:
        starts = {event.flow_id: place for place, event in enumerate(events) if event.flow_start}
        return {
            (starts[event.flow_id], place)
            for place, event in enumerate(events)
            if event.flow_id and not event.flow_start and event.flow_id in starts
        }

    assert arrows(ours.events()) == arrows(theirs.events())


def test_every_public_attribute_is_compared_or_listed(pair):
    theirs, ours = pair
    compared = {*EQUAL, *EQUAL_OF_SPANS, *DIFFERENT}
    its = {name for name in dir(theirs.events()[0]) if not name.startswith("_")}
    assert its <= compared
    by_hand = {"append_kernel", "append_cpu_child", "set_cpu_parent"}
    assert its - by_hand <= set(dir(ours.events()[0]))
    of_averages = {name for name in dir(theirs.key_averages()[0]) if not name.startswith("_")}
    assert of_averages <= compared | {"add"}
    assert of_averages <= set(dir(ours.key_averages()[0]))


GROUPINGS = [
    {}, {"group_by_input_shape": True}, {"group_by_overload_name": True},
    {"group_by_input_shape": True, "group_by_overload_name": True},
]  # fmt: skip


@pytest.mark.parametrize("grouping", GROUPINGS, ids=str)
def test_averages_are_equal(pair, grouping):
    theirs, ours = pair
    mine, its = ours.key_averages(**grouping), theirs.key_averages(**grouping)
    assert [(event.key, event.count) for event in mine] == [(event.key, event.count) for event in its]
    for one, other in zip(mine, its, strict=True):
        for name in OF_AVERAGES:
            wanted = getattr(other, name)
            assert getattr(one, name) == (wanted or 0 if name == "flops" else wanted), (name, one, other)
        assert (one.cpu_parent is None) == (other.cpu_parent is None)
    assert mine.total_average().count == its.total_average().count
    assert mine.total_average().cpu_memory_usage == its.total_average().cpu_memory_usage


def cells(text: str) -> tuple[list[str], list[list[str]], list[str]]:
    """Headings, rows and the lines around a table, which is cut at the gaps of its first rule."""
    lines = text.split("\n")
    rules = [place for place, line in enumerate(lines) if line.startswith("-")]
    top, _, bottom = rules
    edges, start = [], 0
    for part in lines[top].split("  "):
        edges.append((start, start + len(part)))
        start += len(part) + 2
    table = [[line[begin:end].strip() for begin, end in edges] for line in lines[top + 1 : bottom]]
    around = [line for line in (*lines[:top], *lines[bottom + 1 :]) if line]
    return table[0], table[2:], around


OPTIONS = [
    {}, {"row_limit": 3}, {"row_limit": -1}, {"row_limit": 0}, {"header": "A heading"}, {"top_level_events_only": True},
    {"time_unit": "us", "row_limit": -1}, {"time_unit": "s"}, {"max_name_column_width": 20}, {"max_name_column_width": None},
    {"max_shapes_column_width": 12}, {"max_src_column_width": 30, "header": "", "top_level_events_only": True},
]  # fmt: skip


@pytest.mark.parametrize("options", OPTIONS, ids=str)
@pytest.mark.parametrize("grouping", GROUPINGS[:3], ids=str)
def test_tables_have_the_same_headings_and_rows(pair, grouping, options):
    theirs, ours = pair
    mine = cells(ours.key_averages(**grouping).table(**options))
    its = cells(theirs.key_averages(**grouping).table(**options))
    assert mine[0] == its[0]
    fixed = [place for place, name in enumerate(mine[0]) if "CPU" not in name or "Mem" in name]
    assert [[row[place] for place in fixed] for row in mine[1]] == [
        [row[place] for place in fixed] for row in its[1]
    ]
    assert len(mine[2]) == len(its[2])
    for one, other in zip(mine[2], its[2], strict=True):
        assert one.split(":")[0] == other.split(":")[0]
    if "time_unit" in options:
        times = [mine[0].index(name) for name in ("Self CPU", "CPU total", "CPU time avg")]
        units = {row[place].lstrip("0123456789.") for row in mine[1] for place in times}
        assert units == {options["time_unit"]}


def test_the_table_of_single_events_has_the_same_headings_and_rows(pair):
    theirs, ours = pair
    its = cells(theirs.events().table(row_limit=-1))
    mine = cells(ours.events().table(row_limit=-1))
    # torch was asked for overloads; it shows them of single events only then.
    assert [name for name in its[0] if name != "Overload Name"] == mine[0]
    assert [row[0] for row in mine[1]] == [row[0] for row in its[1]]
    assert [row[mine[0].index("Input Shapes")] for row in mine[1]] == [
        row[its[0].index("Input Shapes")] for row in its[1]
    ]


def test_deprecated_names_warn_as_in_torch(pair):
    for profiler in pair:
        for event in (profiler.events()[0], profiler.key_averages()[0]):
            with pytest.warns(FutureWarning, match="`cuda_time` is deprecated"):
                assert event.cuda_time == 0
        with pytest.warns(FutureWarning, match="`self_cuda_memory_usage` is deprecated"):
            assert profiler.events()[0].self_cuda_memory_usage == 0


def test_work_of_process_groups_is_asynchronous_and_beside_the_tree():
    from torch import distributed

    flags = {"activities": [ProfilerActivity.CPU]}
    x = torch.ones(8)
    distributed.init_process_group("gloo", store=distributed.HashStore(), rank=0, world_size=1)
    try:
        with torch.profiler.profile(**flags) as theirs, kinetoscope.profile(**flags, engine="native") as ours:
            distributed.all_reduce(x)
            distributed.broadcast(x, 0)
    finally:
        distributed.destroy_process_group()
    facts = [
        sorted(
            (event.name, event.is_async, event.self_cpu_time_total > 0, event.cpu_parent is None)
            for event in profiler.events()
            if event.name.startswith(("gloo:", "c10d::"))
        )
        for profiler in (ours, theirs)
    ]
    assert facts[0] == facts[1]
    assert ("gloo:all_reduce", True, False, True) in facts[0]


@pytest.mark.parametrize("with_stack", [False, True])
def test_events_have_the_numbers_of_the_exported_trace(engine, with_stack, tmp_path):  # noqa: F811
    def program():
        x = torch.ones(3, 4, requires_grad=True)
        (x.t() @ x).sum().backward()

    more = {
        "activities": [torch.profiler.ProfilerActivity.CPU],
        "record_shapes": True,
        "with_stack": with_stack,
    }
    with kinetoscope.profile(engine=engine, **more) as session:
        program()
    session.export_chrome_trace(tmp_path / "trace.json")
    written = json.loads((tmp_path / "trace.json").read_text(encoding="utf-8"))["traceEvents"]
    operators = {
        event["args"]["External id"]: (event["name"], event["args"].get("Input Strides", []))
        for event in written
        if event.get("cat") == "cpu_op"
    }
    events = [event for event in session.events() if not event.is_python_function]
    # Lists of events leave out an operator directly inside one of the same name.
    for event in events:
        assert operators[event.external_id] == (event.name, event.structured_input_strides)
    assert len({event.external_id for event in events}) == len(events) > 10
    arrows = {(event["id"], event["ph"] == "s") for event in written if event.get("cat") == "fwdbwd"}
    assert {(event.flow_id, event.flow_start) for event in events if event.flow_id} == arrows
    assert len(arrows) == 6
    if engine == "kineto":
        with torch.profiler.profile(**more) as theirs:
            program()
        expected = [
            event.structured_input_strides for event in theirs.events() if not event.is_python_function
        ]
        assert [event.structured_input_strides for event in events] == expected
