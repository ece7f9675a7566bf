"""Who loaded data and who waited, from spans alone and from what is known of workers."""

import pytest

from kinetoscope.combine.extend import extend
from kinetoscope.combine.processes import merge_processes
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder

WAIT = "enumerate(DataLoader)#_SingleProcessDataLoaderIter.__next__"
FETCH, COLLATE, PIN = "DataLoader.fetch", "DataLoader.collate", "DataLoader.pin"


def process(number, *ranges, stop_ns=1000, thread="main", info=None):
    """A trace of one process with ranges (name, start, duration) on one thread."""
    builder = TraceBuilder()
    builder.thread(thread, os_tid=number)
    builder.stop_ns = stop_ns
    for name, start_ns, duration_ns in ranges:
        builder.annotation(name, start_ns, duration_ns)
    return extend(builder.build(), info={"process": number, **(info or {})})


def workers_of(*workers):
    names = ("process", "loader", "worker", "begun_realtime_ns", "ended_realtime_ns")
    return {
        "data_loading": {
            "loaders": {},
            "workers": [dict(zip(names, worker, strict=True)) for worker in workers],
        }
    }


def rows(trace, *names):
    return [tuple(row[name] for name in names) for row in trace.table("data_loading").to_pylist()]


def test_a_loop_without_workers_waits_for_what_it_makes_itself():
    trace = process(
        1,
        (WAIT, 100, 100),
        (FETCH, 110, 80),
        (COLLATE, 160, 20),
        (WAIT, 500, 50),
        (FETCH, 500, 40),
        (COLLATE, 530, 10),
    )
    (row,) = trace.table("data_loading").to_pylist()
    assert row == {
        "role": "loop", "process": 1, "rank": None, "thread_name": "main", "loader": None, "worker": None, "batches": 2,
        "alive_ns": 1000, "wait_ns": 150, "longest_wait_ns": 100, "wait_percent": 15.0, "fetch_ns": 90, "collate_ns": 30,
        "pin_ns": None, "longest_ns": 80, "busy_ns": None, "idle_ns": None, "busy_percent": None,
    }  # fmt: skip


def test_the_last_call_that_finds_no_batch_is_a_wait_and_no_batch():
    trace = process(1, (WAIT, 0, 100), (FETCH, 10, 80), (COLLATE, 60, 20), (WAIT, 200, 10), (FETCH, 202, 5))
    assert rows(trace, "batches", "wait_ns", "fetch_ns") == [(1, 110, 65)]


def test_a_loader_within_the_dataset_of_another_counts_once():
    trace = process(
        1,
        (WAIT, 0, 100),
        (FETCH, 10, 80),
        (WAIT, 20, 50),
        (FETCH, 25, 40),
        (COLLATE, 60, 5),
        (COLLATE, 80, 5),
    )
    assert rows(trace, "wait_ns", "fetch_ns", "collate_ns") == [(100, 70, 10)]


def test_workers_are_processes_with_their_own_row():
    loop = process(
        1, (WAIT, 0, 300), info=workers_of((2, 0, 0, 0, None), (3, 0, 1, START_REALTIME_NS + 600, None))
    )
    trace = merge_processes(
        [
            loop,
            process(2, (FETCH, 100, 400), (COLLATE, 400, 100), thread="w0"),
            process(3, (FETCH, 700, 100), (COLLATE, 780, 20), thread="w1"),
        ],
        [0, 0, 0],
    )
    names = (
        "role",
        "process",
        "loader",
        "worker",
        "batches",
        "alive_ns",
        "busy_ns",
        "idle_ns",
        "busy_percent",
    )
    assert rows(trace, *names) == [
        ("loop", 1, None, None, 1, 1000, None, None, None),
        ("worker", 2, 0, 0, 1, 1000, 400, 600, 40.0),
        ("worker", 3, 0, 1, 1, 400, 100, 300, 25.0),
    ]
    assert rows(trace, "wait_ns", "fetch_ns", "collate_ns", "longest_ns")[1] == (None, 300, 100, 400)


def test_a_worker_that_had_nothing_to_do_has_a_row_and_one_that_ended_was_there_until_then():
    loop = process(
        1, (WAIT, 0, 10), info=workers_of((2, 0, 0, 0, START_REALTIME_NS + 250), (3, 0, 1, 0, None))
    )
    trace = merge_processes([loop, process(2, thread="w0"), process(3, thread="w1")], [0, 0, 0])
    assert rows(trace, "worker", "batches", "alive_ns", "busy_ns", "busy_percent", "longest_ns")[1:] == [
        (0, 0, 250, 0, 0.0, None),
        (1, 0, 1000, 0, 0.0, None),
    ]


def test_pinning_has_a_thread_of_its_own():
    builder = TraceBuilder()
    builder.thread("main")
    pin = builder.thread("pt_data_pin")
    builder.stop_ns = 1000
    builder.annotation(WAIT, 0, 100)
    builder.span(PIN, 50, 30, thread=pin, scope=7)
    builder.span(PIN, 200, 20, thread=pin, scope=7)
    assert rows(builder.build(), "role", "thread_name", "batches", "pin_ns", "busy_ns", "busy_percent")[1] == (
        "pinning", "pt_data_pin", 2, 50, 50, 5.0,
    )  # fmt: skip


def test_a_part_of_a_trace_counts_what_lies_in_it():
    loop = process(
        1, (WAIT, 0, 300), (WAIT, 600, 100), info=workers_of((2, 0, 0, START_REALTIME_NS + 400, None))
    )
    trace = merge_processes([loop, process(2, (FETCH, 500, 400), thread="w0")], [0, 0])
    names = ("batches", "alive_ns", "wait_ns", "busy_ns")
    assert rows(trace, *names) == [(2, 1000, 400, None), (0, 600, None, 400)]
    assert rows(trace.window(300, 700), *names) == [(1, 400, 100, None), (0, 300, None, 200)]


def test_waits_are_given_to_the_steps_they_begin_in():
    builder = TraceBuilder()
    builder.thread()
    for number in range(3):
        builder.step(number, number * 100, 90)
    builder.annotation(WAIT, 5, 20)
    builder.annotation(WAIT, 105, 30)
    builder.annotation(WAIT, 140, 5)
    assert builder.build().table("steps")["data_wait_ns"].to_pylist() == [20, 35, 0]


def test_without_loaders_the_table_is_empty():
    assert process(1, ("forward", 0, 10)).table("data_loading").num_rows == 0


@pytest.mark.parametrize(
    "told",
    [
        "workers", [], {"workers": 3}, {"workers": [1, None]}, {"workers": [{"process": "2"}]},
        {"workers": [{"process": 2, "loader": 0, "worker": 0, "begun_realtime_ns": 2**70}]},
    ],
    ids=range(6),
)  # fmt: skip
def test_what_a_file_tells_of_workers_may_be_nonsense(told):
    trace = process(1, (WAIT, 0, 10), info={"data_loading": told, "cycles": [told, {"data_loading": told}]})
    assert rows(trace, "role", "alive_ns") == [("loop", 1000)]


def test_what_workers_do_is_not_the_work_of_the_program():
    loop = process(1, ("ProfilerStep#0", 0, 100), (WAIT, 0, 50), stop_ns=1000)
    alone = loop.table("breakdown", by="trace").to_pylist()
    trace = merge_processes([loop, process(2, (FETCH, 200, 700), (COLLATE, 800, 50), thread="w0")], [0, 0])
    both = trace.table("breakdown", by="trace").to_pylist()
    assert [{**row, "device": None} for row in both[:1]] == [{**row, "device": None} for row in alone]
    assert (both[1]["process"], both[1]["host_wait_ns"], both[1]["idle_ns"]) == (2, 700, 300)
