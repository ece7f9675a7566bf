"""A plain loop in steps: when it records, how it ends, and that what it loops over is left alone."""

import gc
import warnings
import weakref

import pytest
import torch
from torch.utils.data import DataLoader, IterableDataset

import kinetoscope
from kinetoscope import StateError, schedule, steps
from tests.support.noting_engine import NotingEngine
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

CPU = [kinetoscope.ProfilerActivity.CPU]
EVERY = {"wait": 0, "warmup": 1, "active": 2}


def noting(items, **keywords):
    read = {"on_trace_ready": lambda prof: prof.trace}
    keywords = {"schedule": schedule(**EVERY), "data_loading": False} | read | keywords
    return steps(items, engine=NotingEngine(), **keywords)


def calls(loop):
    """What the engine was told, leaving out what became of its traces."""
    return [call for call in loop.session._options.engine.log if call not in ("build", "discard")]


@pytest.mark.parametrize(
    ("items", "numbers"),
    [(range(6), [0, 1, 2, 3, 4, 5]), (iter(range(4)), [0, 1, 2, 3]), ([], []), ("ab", [0, 1])],
    ids=["sized", "unsized", "empty", "text"],
)
def test_each_item_is_a_step_and_passed_on_unchanged(items, numbers):
    expected = [*range(6)][: len(numbers)] if not isinstance(items, (str, list)) else list(items)
    loop = noting(items, schedule=lambda step: kinetoscope.ProfilerAction.RECORD)
    seen = [(item, loop.session.step_num) for item in loop]
    assert seen == list(zip(expected, numbers, strict=True))
    assert calls(loop) == ["prepare", "start", "stop"]


def test_a_loop_of_known_length_has_no_step_after_its_last():
    loop = noting(range(3))
    list(loop)
    assert loop.session.step_num == 2
    wrong = noting(Lying(2))
    assert list(wrong) == [0, 1, 2, 3]
    assert wrong.session.step_num >= 3


class Lying:
    """Has more items than it says."""

    def __init__(self, length):
        self.length = length

    def __len__(self):
        return self.length

    def __iter__(self):
        return iter(range(2 * self.length))


def test_step_numbers_continue_in_the_next_epoch():
    ready = []
    loop = noting(range(3), on_trace_ready=lambda prof: ready.append((prof.step_num, prof.trace)))
    for epoch in range(2):
        assert [loop.session.step_num for _ in loop] == [3 * epoch, 3 * epoch + 1, 3 * epoch + 2]
    # Steps 1 and 2, 4 and 5: a loop ends what it began.
    assert [step for step, _ in ready] == [2, 5]


@pytest.mark.parametrize("items", [range(3), iter(range(3))], ids=["sized", "unsized"])
def test_a_cycle_that_the_end_of_a_loop_cuts_short_is_not_continued(items):
    ready = []
    loop = noting(
        items,
        schedule=schedule(wait=0, warmup=1, active=5, repeat=2),
        on_trace_ready=lambda prof: ready.append(prof.step_num),
    )
    list(loop)
    loop._items = range(9)
    with pytest.warns(UserWarning, match="dropped because"):
        assert [loop.session.step_num for _ in loop] == list(range(6, 15))
    assert ready == [2 if isinstance(items, range) else 3, 12]


def test_after_the_last_cycle_nothing_is_recorded_without_a_warning():
    loop = noting(range(4), schedule=None)
    for _ in range(3):
        assert list(loop) == [0, 1, 2, 3]
    assert calls(loop) == ["prepare", "start", "stop"]


def test_after_the_last_cycle_the_items_are_iterated_directly():
    items = range(5)
    loop = noting(
        items, schedule=schedule(wait=1, warmup=1, active=1, repeat=2, skip_first=1, skip_first_wait=1)
    )
    # Cycles end with the steps 2 and 5: at 4 one is under way.
    assert [type(iter(loop)) is type(iter(items)) for _ in range(3) if list(loop)] == [False, True, True]
    endless = noting(items)
    list(endless), list(endless)
    assert type(iter(endless)) is not type(iter(items))


def test_a_loop_too_short_to_record_warns():
    with pytest.warns(UserWarning, match="nothing was recorded: the schedule needs 2 calls to step"):
        list(noting(range(1), schedule=None))


def test_break_ends_the_session_at_once():
    ready = []
    loop = noting(range(9), on_trace_ready=ready.append)
    for item in loop:
        if item == 1:
            break
    assert calls(loop) == ["prepare", "start", "stop"]
    assert ready == [loop.session]
    # The broken step is over, and with it the cycle of steps 1 and 2: the next loop begins behind it.
    assert next(iter(loop)) == 0
    assert loop.session.step_num == 3


def test_an_exception_of_the_body_comes_out_and_ends_the_session():
    loop = noting(range(9))

    def body():
        for item in loop:
            if item == 2:
                raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        body()
    assert calls(loop) == ["prepare", "start", "stop"]


def test_an_exception_of_the_items_comes_out_and_ends_the_session():
    def fails():
        yield 1
        yield 2
        raise KeyError("third")

    loop = noting(fails())
    with pytest.raises(KeyError, match="third"):
        list(loop)
    assert calls(loop) == ["prepare", "start", "stop"]


def test_a_session_that_cannot_start_is_not_active():
    class Broken:
        def __iter__(self):
            raise OSError("no such folder")

    loop = noting(Broken(), schedule=lambda step: kinetoscope.ProfilerAction.RECORD)
    with pytest.raises(OSError, match="no such folder"):
        list(loop)
    assert calls(loop) == ["prepare", "start", "stop"]


def test_two_loops_at_once_are_an_error_of_the_second():
    loop = noting(range(3))
    first = iter(loop)
    next(first)
    with pytest.raises(StateError, match="already recording"):
        next(iter(loop))
    assert next(first) == 1
    first.close()


def test_no_batch_is_kept_alive():
    class Batch:
        pass

    alive = []

    def batches():
        for _ in range(4):
            alive.append(sum(one() is not None for one in made))
            batch = Batch()
            made.append(weakref.ref(batch))
            yield batch
            del batch

    made = []
    gc.disable()
    try:
        for batch in noting(batches()):
            del batch
    finally:
        gc.enable()
    assert alive == [0, 0, 0, 0]


def test_a_handler_that_fails_at_the_end_is_heard_and_after_break_is_a_warning():
    def fails(_prof):
        raise ValueError("no space left")

    with pytest.raises(ValueError, match="no space left"):
        list(noting(range(2), on_trace_ready=fails))
    loop = iter(noting(range(5), on_trace_ready=fails))
    next(loop), next(loop)
    with pytest.warns(UserWarning, match="on_trace_ready failed: ValueError: no space left"):
        loop.close()


def test_each_cycle_is_saved_under_its_own_name(native, tmp_path):  # noqa: F811
    ready = []
    loop = steps(
        range(6),
        schedule=schedule(wait=0, warmup=1, active=1, repeat=3),
        save=tmp_path / "run.json.gz",
        on_trace_ready=ready.append,
        activities=CPU,
        engine=native,
    )
    for _ in loop:
        torch.ones(3) + 1
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "run.1.json.gz",
        "run.2.json.gz",
        "run.json.gz",
    ]
    assert len(ready) == 3
    with kinetoscope.open(tmp_path / "run.2.json.gz") as trace:
        assert trace.table("steps")["number"].to_pylist() == [5]
    assert loop.trace.table("steps")["number"].to_pylist() == [5]


def test_a_loader_is_not_made_to_complain_of_a_length_that_only_we_asked_for():
    class Longer(IterableDataset):
        def __len__(self):
            return 2

        def __iter__(self):
            return iter(range(4))

    loader = DataLoader(Longer(), batch_size=None)
    loop = noting(loader)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert [[item for item in loop] for _ in range(2)] == [[0, 1, 2, 3]] * 2  # noqa: C416  (a list asks for its length)


class Stream(IterableDataset):
    def __iter__(self):
        return iter(torch.arange(8.0).split(1))


def test_a_step_is_the_wait_for_a_batch_and_what_is_done_with_it(native):  # noqa: F811
    loop = steps(DataLoader(Stream(), batch_size=1), activities=CPU, engine=native)
    for batch in loop:
        batch.sum()
    table = loop.trace.table("steps").to_pylist()
    assert [row["number"] for row in table] == [2, 3, 4]
    assert all(0 < row["data_wait_ns"] < row["duration_ns"] for row in table)
    (row,) = loop.trace.table("data_loading").to_pylist()
    assert (row["role"], row["batches"]) == ("loop", 3)


def test_steps_have_the_length_of_their_items():
    assert len(noting(range(7))) == 7
    with pytest.raises(TypeError):
        len(noting(iter(())))
