"""Programs that wait in the midst of something, and their stacks as Python shows them. Needs the standard library only."""

from __future__ import annotations

import asyncio
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

PATIENCE_S = 60.0


def stack_in_python(thread: threading.Thread) -> tuple[tuple[str, str, int], ...]:
    """The stack of a thread, as Python's own frames say."""
    found = []
    frame: Any = sys._current_frames()[thread.ident or 0]
    while frame is not None:
        code = frame.f_code
        found.append((code.co_qualname, code.co_filename, frame.f_lineno))
        frame = frame.f_back
    return tuple(reversed(found))


class Blocked:
    """A program that waits in the midst of something until it is let go."""

    def __init__(self) -> None:
        self.waits, self.may_go = threading.Event(), threading.Lock()
        self.may_go.acquire()

    def wait(self) -> None:
        self.waits.set()
        self.may_go.acquire(timeout=PATIENCE_S)


WAITING_LINE = max(line for *_, line in Blocked.wait.__code__.co_lines() if line is not None)


@contextmanager
def blocked(program: Callable[[Blocked], object]) -> Iterator[threading.Thread]:
    """Runs a program in a thread up to where it waits."""
    here = Blocked()
    thread = threading.Thread(target=program, args=(here,), name="blocked")
    thread.start()
    assert here.waits.wait(PATIENCE_S)
    until = time.monotonic() + PATIENCE_S
    # On a busy machine, it may not have left the call yet by which it said that it waits.
    while stack_in_python(thread)[-1] != ("Blocked.wait", __file__, WAITING_LINE):
        assert time.monotonic() < until, "the program did not begin to wait"
    try:
        yield thread
    finally:
        here.may_go.release()
        thread.join()


def in_a_generator(here: Blocked) -> None:
    def numbers() -> Iterator[int]:
        yield 1
        here.wait()
        yield 2

    list(numbers())


def in_a_coroutine(here: Blocked) -> None:
    async def inner() -> None:
        here.wait()

    async def outer() -> None:
        await inner()

    asyncio.run(outer())


def in_a_sort(here: Blocked) -> None:
    def key(number: int) -> int:
        if number == 2:
            here.wait()
        return number

    sorted([3, 2, 1], key=key)


def in_a_class_body(here: Blocked) -> None:
    class Wäre:  # noqa: PLC2401
        [here.wait() for _ in range(1)]


def in_a_lambda_over_lines(here: Blocked) -> None:
    value = 3
    (  # noqa: PLC3002
        lambda: (
            value,
            here.wait(),
        )
    )()


def in_built_code(here: Blocked) -> None:
    text = "\n" * 70_000 + "def built(wait):\n    x = 1\n    wait()\n    y = 2\nbuilt(wait)\n"
    exec(compile(text, "somewhere/文件 \ud800.py", "exec"), {"wait": here.wait})


def in_a_handler(here: Blocked) -> None:
    try:
        raise ValueError
    except ValueError:
        try:
            raise KeyError
        finally:
            try:
                here.wait()
            finally:
                here = None  # type: ignore[assignment]


def in_a_with_block(here: Blocked) -> None:
    class Waiting:
        def __enter__(self) -> None: ...

        def __exit__(self, *error: object) -> None:
            here.wait()

    with Waiting():
        x = 1
        del x


PROGRAMS = [
    in_a_generator, in_a_coroutine, in_a_sort, in_a_class_body, in_a_lambda_over_lines, in_built_code, in_a_with_block,
]  # fmt: skip
