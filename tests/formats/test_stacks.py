"""Collapsed stacks: the format, the sums, and errors."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope import StateError
from kinetoscope.formats.stacks import collapsed_lines
from kinetoscope.trace import Trace
from tests.support.hostile import HOSTILE_NAMES, hostile_text
from tests.support.trace_builder import TraceBuilder


def parsed(text: str) -> dict[tuple[str, ...], int]:
    """Parse collapsed stacks as flamegraph.pl does: text, the last white space, and a number."""
    found: dict[tuple[str, ...], int] = {}
    assert text == "" or text.endswith("\n")
    for line in text.split("\n")[:-1]:
        matched = re.fullmatch(r"(.*)\s+?(\d+(?:\.\d*)?)", line)
        assert matched is not None, line
        stack, number = matched[1], matched[2]
        # With a second number at the end of a stack, it would be a differential file.
        assert re.fullmatch(r"(.*)\s+?(\d+(?:\.\d*)?)", stack) is None, line
        frames = tuple(stack.split(";"))
        assert frames not in found, "equal stacks are one line"
        found[frames] = int(number)
    return found


def exported(trace_or_events, path, *metric):
    trace_or_events.export_stacks(path, *metric)
    return parsed(path.read_text(encoding="utf-8"))


def with_stacks() -> Trace:
    builder = TraceBuilder()
    main, go = ("my file.py", 1, "a;b"), ("c.py", 2, "go")
    inner = builder.stack(main, go)
    builder.span("aten::add", 0, 7_900, stack=inner).span("aten::mul", 1_000, 900, stack=builder.stack(main))
    builder.span("aten::tiny", 9_000, 300, stack=builder.stack(("d.py", 1, "tiny")))
    builder.span("aten::bare", 10_000, 5_000)
    return builder.build()


def test_frames_are_joined_from_the_root_and_safe(tmp_path):
    trace = with_stacks()
    trace.events().export_stacks(tmp_path / "x.txt")
    assert (tmp_path / "x.txt").read_text() == "my_file.py(1):_a_b 1\nmy_file.py(1):_a_b;c.py(2):_go 7\n"
    assert exported(trace.events(), tmp_path / "y.txt") == exported(
        trace.events(), tmp_path / "z.txt", "self_cpu_time_total"
    )


def test_equal_stacks_are_added_up_before_they_are_rounded(tmp_path):
    builder = TraceBuilder()
    stack = builder.stack(("a.py", 1, "f"))
    for place in range(10):
        builder.span("aten::add", place * 1000, 600, stack=stack)
    assert exported(builder.build().events(), tmp_path / "x.txt") == {("a.py(1):_f",): 6}


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 5000)), max_size=12))
def test_the_whole_is_rounded_once(parts):
    weights: dict[tuple[str, ...], int] = {}
    for name, nanoseconds in parts:
        weights[(name,)] = weights.get((name,), 0) + nanoseconds
    lines = collapsed_lines(weights)
    numbers = {line.rsplit(" ", 1)[0]: int(line.rsplit(" ", 1)[1]) for line in lines}
    assert sum(numbers.values()) == (sum(weights.values()) + 500) // 1000
    for (name,), nanoseconds in weights.items():
        assert abs(numbers.get(name, 0) - nanoseconds / 1000) < 1
    assert 0 not in numbers.values()


@given(st.lists(st.lists(hostile_text, min_size=1, max_size=3), max_size=5))
def test_any_names_give_lines_that_parse(stacks):
    weights = {tuple(stack): 3_000 for stack in stacks}
    text = "".join(line + "\n" for line in collapsed_lines(weights))
    text.encode(errors="backslashreplace")
    assert sum(parsed(text).values()) == 3 * len(weights)


def test_collapsed_stacks_hold_one_line_each_whatever_the_names(tmp_path):
    builder = TraceBuilder()
    for place, name in enumerate(HOSTILE_NAMES):
        builder.span("x", place * 10_000, 2_000, stack=builder.stack((name, 1, name), (name, 2, name)))
    builder.build().save(tmp_path / "x.folded")
    found = parsed((tmp_path / "x.folded").read_bytes().decode("utf-8"))
    assert sum(found.values()) == 2 * len(HOSTILE_NAMES)
    assert all(len(frames) == 2 for frames in found)


@pytest.mark.parametrize("suffix", [".collapsed", ".folded"])
def test_a_trace_is_saved_by_suffix(tmp_path, suffix):
    with_stacks().save(tmp_path / f"x{suffix}")
    assert sum(parsed((tmp_path / f"x{suffix}").read_text()).values()) == 8


def test_the_sum_is_that_of_the_table(tmp_path):
    trace = with_stacks()
    events = trace.events()
    of_stacks = sum(event.self_cpu_time_total for event in events if event.stack)
    assert sum(exported(events, tmp_path / "x.txt").values()) == round(of_stacks)


def test_backward_counts_where_its_forward_ran(tmp_path):
    builder = TraceBuilder()
    builder.thread("main")
    builder.span("aten::mul", 0, 1_000, sequence=3, stack=builder.stack(("model.py", 7, "forward")))
    builder.backward("MulBackward0", 5_000, 2_000, sequence=3)
    assert exported(builder.build().events(), tmp_path / "x.txt") == {("model.py(7):_forward",): 3}


def test_device_times_go_to_the_stacks_that_launched(tmp_path):
    trace = Trace.from_columns(
        {
            "spans": {
                "thread": [0, 0, 1], "start_ns": [0, 10, 5_000], "duration_ns": [4_000, 1_000, 9_000],
                "name": [1, 2, 3], "kind": [0, 9, 6], "stream": [-1, -1, 0], "own_stack": [0, 0, -1],
            },
            "threads": {"os_tid": [5, 0], "torch_tid": [1, 0]},
            "streams": {"device_type": [1], "device_index": [0], "number": [7]},
            "launches": {"host": [1], "device": [2]},
            "stacks": {"parent": [-1], "frame": [0]},
            "frames": {"function": [4], "file": [5], "line": [3]},
        },
        strings=["", "aten::mm", "cudaLaunchKernel", "gemm", "forward", "m.py"],
    )  # fmt: skip
    events = trace.events()
    assert exported(events, tmp_path / "c.txt", "self_cuda_time_total") == {("m.py(3):_forward",): 9}
    assert exported(events, tmp_path / "d.txt", "self_device_time_total") == {("m.py(3):_forward",): 9}
    assert exported(events, tmp_path / "h.txt") == {("m.py(3):_forward",): 4}


def test_a_part_of_the_events_gives_a_part_of_the_stacks(tmp_path):
    events = with_stacks().events()
    assert exported(events[:1], tmp_path / "a.txt") == {("my_file.py(1):_a_b", "c.py(2):_go"): 7}
    chosen = kinetoscope_list(event for event in events if event.name == "aten::mul")
    assert exported(chosen, tmp_path / "b.txt") == {("my_file.py(1):_a_b",): 1}
    assert exported(events[::-1], tmp_path / "c.txt") == exported(events, tmp_path / "d.txt")


def kinetoscope_list(events):
    from kinetoscope.torch_events.event_list import EventList

    return EventList(events)


def test_sums_grouped_by_stack_write_the_frames_that_keep_them_apart(tmp_path):
    trace = with_stacks()
    by_frame = trace.key_averages(group_by_stack_n=1)
    assert exported(by_frame, tmp_path / "x.txt") == {("c.py(2):_go",): 7, ("my_file.py(1):_a_b",): 1}
    with pytest.raises(StateError, match="not grouped by stack: use key_averages"):
        trace.key_averages().export_stacks(tmp_path / "y.txt", "self_cpu_time_total")
    assert not (tmp_path / "y.txt").exists()


def test_a_recording_with_stacks_that_found_none_is_an_empty_file(tmp_path):
    trace = TraceBuilder().know("with_stack", 1).span("aten::add", 0, 1_000).build()
    assert exported(trace.events(), tmp_path / "x.txt") == {}
    assert exported(TraceBuilder().build().events(), tmp_path / "y.txt") == {}
    assert exported(TraceBuilder().build().key_averages(), tmp_path / "z.txt") == {}
