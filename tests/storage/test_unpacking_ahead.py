"""A second thread that produces blocks ahead of their use."""

import threading

import pytest

from kinetoscope.storage.unpacking import _DEPTH, ahead


def test_blocks_come_in_order_from_another_thread():
    makers = set()

    def make():
        for number in range(100):
            makers.add(threading.get_ident())
            yield b"%d" % number

    assert list(ahead(make())) == [b"%d" % number for number in range(100)]
    assert len(makers) == 1
    assert threading.get_ident() not in makers


def test_no_more_is_made_than_may_wait():
    made = []
    ready = threading.Event()

    def make():
        for number in range(100):
            made.append(number)
            if number == _DEPTH + 1:
                ready.set()
            yield b"."

    blocks = ahead(make())
    next(blocks)
    assert ready.wait(60)
    blocks.close()
    # The queued blocks, the one in use, and the one that did not fit the queue.
    assert len(made) == _DEPTH + 2


def test_an_error_comes_after_what_was_made_before_it():
    def make():
        yield b"first"
        raise LookupError("gone")

    blocks = ahead(make())
    assert next(blocks) == b"first"
    with pytest.raises(LookupError, match="gone"):
        next(blocks)


def test_a_maker_that_was_stopped_is_closed_and_its_thread_is_over():
    closed = threading.Event()

    def make():
        try:
            while True:
                yield b"."
        finally:
            closed.set()

    before = threading.active_count()
    blocks = ahead(make())
    next(blocks)
    assert threading.active_count() == before + 1
    blocks.close()
    assert closed.is_set()
    assert threading.active_count() == before
