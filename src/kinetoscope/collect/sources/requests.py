"""Requests of a server: which intervals of which threads belong to each request, while many are in progress; and the names of the server's steps.

Each interval is a range on its thread, see `model.marks`. A coroutine runs in intervals, from one suspension to the next. For decorated functions and the
middleware they are known with any event loop, because each resumption goes through an object of ours. For a `with` block in a coroutine, and for tasks
that a request starts, they are known with asyncio's event loop, because it runs each step by a method that we wrap. Work that a request hands to a thread
pool is wrapped when it is handed over.

While nothing is recorded, a request is only an object in a context variable, without a number, a name or ranges. If it is still in progress when a
recording begins, it gets a number at its next interval.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextvars
import functools
import importlib
import inspect
import json
import threading
import types
from typing import TYPE_CHECKING, Any, Protocol, Self, TypeVar, cast

from kinetoscope._after_import import AfterImport
from kinetoscope._errors import ArgumentTypeError
from kinetoscope._runtime import Follower, RequestState
from kinetoscope.model.marks import PREFIX, SUBMITTED, begin_text, end_text, step_mark

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Generator, Iterator
    from types import TracebackType

    from kinetoscope.collect.recorder.library import Recorder

    Function = TypeVar("Function", bound=Callable[..., Any])

MOST_TEXTS = 4_096
"""How many different names and arguments a process records; later ones lose their arguments and, if the name is new too, the name."""

_MOST_LETTERS = 500
_CURRENT: contextvars.ContextVar[RequestState | None] = contextvars.ContextVar(
    "kinetoscope request", default=None
)


class LimitedTexts:
    """Limits how many different texts this process records, because a recording keeps each of them."""

    def __init__(self, overflow: str) -> None:
        """Begin without texts; `overflow` replaces names after too many different ones."""
        self._known: set[tuple[str, str]] = set()
        self._overflow = overflow

    def limited(self, name: str, arguments: str) -> tuple[str, str]:
        """Return the name and arguments to record: as given or, after too many different ones, without arguments or with the name replaced."""
        for wanted in ((name, arguments), (name, "")):
            if wanted in self._known:
                return wanted
            if len(self._known) < MOST_TEXTS:
                self._known.add(wanted)
                return wanted
        return self._overflow, ""


_TEXTS = LimitedTexts("other requests")


_opens_ranges: Recorder | None = None


def _open_range(name: str) -> Any:
    """Open a range, and from now on have the recorder called first, which may do it faster. Called only during a recording."""
    # Here, because they need torch.
    from kinetoscope.collect.recorder.library import loaded_recorder
    from kinetoscope.collect.sources.quick_ranges import begin_range

    global _opens_ranges
    recorder = loaded_recorder()
    if recorder is not None and recorder is not _opens_ranges:
        _opens_ranges = recorder
        _FOLLOWER.set_marks(recorder.range_marks())
    return begin_range(name)


def _close_range(opened: Any) -> None:
    from kinetoscope.collect.sources.quick_ranges import end_range

    end_range(opened)


class StepNames:
    """Names the steps of an engine, one after the other, on one thread: by a range in each, see `model.marks`."""

    def __init__(self) -> None:
        self._texts = LimitedTexts("other steps")
        self._range: Any = None

    def begin(self, name: str, arguments: dict[str, int]) -> None:
        """Record the name and arguments of the step that has begun; see `MOST_TEXTS` for their limit."""
        self.end()
        text = json.dumps(arguments) if arguments else ""
        self._range = _open_range(step_mark(*self._texts.limited(name, text)))

    def end(self) -> None:
        """Close the range of the name, if one is open."""
        opened, self._range = self._range, None
        if opened is not None:
            _close_range(opened)


class Description(Protocol):
    """Names and describes a request; called only while a recording is running."""

    def at_begin(self) -> tuple[str, str]:
        """Return the name as one line, and the arguments as JSON text of an object; empty without arguments."""

    def at_end(self) -> str:
        """Return arguments to add when the request has ended, as JSON text of an object; there should be few different texts."""


class Described:
    """A name and arguments that are known at the begin; they become text when they are recorded for the first time."""

    __slots__ = ("_arguments", "_name", "_texts")

    def __init__(self, name: str, arguments: dict[str, Any]) -> None:
        self._name, self._arguments = name, arguments
        self._texts: tuple[str, str] | None = None

    def at_begin(self) -> tuple[str, str]:
        """Return the name as one line, and the arguments as JSON text."""
        if self._texts is None:
            self._texts = _plain(self._name), _as_json(self._arguments)
            self._arguments = {}
        return self._texts

    def at_end(self) -> str:
        """Return an empty text: the end of the request adds no arguments."""
        return ""


# Room for more texts than are recorded, since the others all become the same.
@functools.lru_cache(2 * MOST_TEXTS)
def _begin_text(name: str, arguments: str) -> str:
    return _encodable(begin_text(*_TEXTS.limited(_plain(name), arguments)))


@functools.lru_cache(2 * MOST_TEXTS)
def _end_text(status: str, arguments: str) -> str:
    if not arguments or len(arguments) > _MOST_LETTERS:
        return end_text(status, "")
    limited = _TEXTS.limited(status, arguments)
    return _encodable(end_text(status, limited[1] if limited[0] == status else ""))


def _encodable(text: str) -> str:
    """Remove what has no UTF-8, and NUL, which would end the text in C."""
    return text.encode(errors="replace").decode().replace("\0", "?")


def _status(error: type[BaseException] | None) -> str:
    if error is None:
        return "finished"
    return "canceled" if issubclass(error, (asyncio.CancelledError, GeneratorExit)) else "error"


# torch's own flag, which is set while its profiler or one of our sessions records, see `TorchRanges`.
_FOLLOWER = Follower(
    "torch.autograd.profiler",
    "_is_profiler_enabled",
    _CURRENT,
    types.CoroutineType,
    PREFIX,
    _begin_text,
    _end_text,
    _open_range,
    _close_range,
    _status,
)
is_recording = _FOLLOWER.is_recording
follow = _FOLLOWER.follow
"""Takes an awaitable and its `Description`, and returns an awaitable that awaits the first one as a request. `install_request_hooks` comes first."""


class Request:
    """Marks a request of a server, as `kinetoscope.request`, so that its time and its operators can be told from those of other requests.

    A context manager for a block, and a decorator for functions, coroutine functions and generators. Many requests may be in progress at once, on
    one event loop or on many threads; work that a request hands to a pool of threads, by `asyncio.to_thread`, `loop.run_in_executor`,
    an executor's `submit` or anyio, belongs to it. A request inside another one belongs to the outer one, and is a range in it unless an event loop is running. The tables are `requests`, `request_names` and
    `request_modules`. While nothing records, a request costs one or two microseconds, less than a `record_function`. Errors of the recording do not reach the program.

    A `with` block in a coroutine is followed through its `await`s on asyncio's own event loop; with another one, such as uvloop, decorate the coroutine
    function or use the middleware.

    Args:
        name: What kind of request it is, such as `generate`. Requests of one name are compared with each other, so it should not contain an id.
        **arguments: Details, such as `tokens=512`, as values that JSON has. A process records up to 4,096 different ones.

    Raises:
        ArgumentTypeError: The name is not a string.
    """

    def __init__(self, name: str, /, **arguments: Any) -> None:
        """Describe a request, which begins when the block or function does."""
        if not isinstance(name, str):
            raise ArgumentTypeError(
                f"name={name!r} of a request is not valid: need a string, such as 'generate'"
            )
        self._description = Described(name, arguments)
        # One object may be entered by several tasks and threads at once, and again in each of them.
        self._entered: dict[object, list[_Block]] = {}

    def __enter__(self) -> Self:
        """Begin a request on this thread or in this task; inside another request, a range of that one.

        Returns:
            This object, which may be entered again, also by other threads and tasks at once.
        """
        block = _Block(self._description)
        self._entered.setdefault(_owner(), []).append(block)
        block.begin()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the request that this thread or task began last, with the status `finished`, `error` or `canceled`.

        Args:
            kind: The type of the exception that ends the block; None without one.
            error: That exception. It is not suppressed.
            traceback: Its traceback.
        """
        # A generator may be closed elsewhere than it was begun.
        owner = _owner()
        owner = owner if owner in self._entered else next(iter(self._entered))
        blocks = self._entered[owner]
        block = blocks.pop()
        if not blocks:
            del self._entered[owner]
        block.finish(kind)

    async def __aenter__(self) -> Self:
        """Do as `__enter__` does, for `async with`."""
        return self.__enter__()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """Do as `__exit__` does, for `async with`."""
        self.__exit__(kind, error, traceback)

    def __call__(self, function: Function) -> Function:
        """Make each call of a function a request, as a decorator.

        Args:
            function: A function, coroutine function, generator function or asynchronous generator function. What the consumer of a generator does
                between two items is not part of the request.

        Returns:
            A function of the same kind and signature; exceptions pass through it.
        """
        traced: Callable[..., Any]
        description = self._description
        # Now, because the arguments may be changed later.
        description.at_begin()
        if inspect.iscoroutinefunction(function):

            async def traced(*args: Any, **kwargs: Any) -> Any:
                if not _installed:
                    install_request_hooks()
                return await follow(function(*args, **kwargs), description)

        elif inspect.isasyncgenfunction(function):

            async def traced(*args: Any, **kwargs: Any) -> AsyncIterator[Any]:
                async for item in _follow_items(description, function(*args, **kwargs)):
                    yield item

        elif inspect.isgeneratorfunction(function):

            def traced(*args: Any, **kwargs: Any) -> Any:
                return _follow_generator(description, function(*args, **kwargs))

        else:

            def traced(*args: Any, **kwargs: Any) -> Any:
                # Without `with`, which would take a tenth of what a short request costs.
                block = _Block(description)
                block.begin()
                kind: type[BaseException] | None = None
                try:
                    return function(*args, **kwargs)
                except BaseException as raised:
                    kind = type(raised)
                    raise
                finally:
                    block.finish(kind)

        return cast("Function", functools.wraps(function)(traced))


class _Block:
    """A request that is current in a context, from `begin` to `finish`; inside another request, a range of that one."""

    __slots__ = ("_before", "_description", "_range", "open")

    def __init__(self, description: Description) -> None:
        if not _installed:
            install_request_hooks()
        self._description = description
        self._before: contextvars.Token[RequestState | None] | None = None
        self._range: Any = None
        self.open: RequestState | None = None
        if _CURRENT.get() is None:
            self.open = _FOLLOWER.begun(description) if is_recording() else RequestState()
        elif is_recording() and not _in_event_loop():
            # Ranges of coroutines that take turns on a thread would not nest.
            self._range = _open_range(description.at_begin()[0])

    def begin(self) -> None:
        """Make it the current request, and begin an interval."""
        if self.open is not None:
            self._before = _CURRENT.set(self.open)
            if self.open.number >= 0:
                _FOLLOWER.enter(self.open)

    def make_current(self) -> None:
        self._before = _CURRENT.set(self.open)

    def make_other_current(self) -> None:
        """Make the previous request current again."""
        before, self._before = self._before, None
        if before is not None:
            try:
                _CURRENT.reset(before)
            except ValueError:
                # It ended in another context than it began in, as a garbage-collected generator does.
                _CURRENT.set(None)

    def finish(self, error: type[BaseException] | None, *_: object) -> None:
        """End the request, perhaps with an exception."""
        self.make_other_current()
        if self._range is not None:
            _close_range(self._range)
            self._range = None
        if self.open is not None:
            _FOLLOWER.end(self.open, self._description, error)

    def __enter__(self) -> Self:
        return self

    __exit__ = finish


def _owner() -> object:
    task = asyncio.current_task() if _in_event_loop() else None
    return threading.get_ident() if task is None else task


def _in_event_loop() -> bool:
    return asyncio._get_running_loop() is not None  # noqa: SLF001  (Python's own)


async def _follow_items(description: Description, items: AsyncIterator[Any]) -> AsyncIterator[Any]:
    """Iterate over an asynchronous generator as a request; what its consumer does in between is not part of it."""
    with _Block(description) as block:
        try:
            while True:
                block.make_current()
                try:
                    item = await (
                        anext(items) if block.open is None else _FOLLOWER.stretches(anext(items), block.open)
                    )
                except StopAsyncIteration:
                    return
                finally:
                    block.make_other_current()
                    # The step of the event loop goes on in the consumer.
                    if block.open is not None:
                        _FOLLOWER.leave(block.open)
                yield item
        finally:
            await cast("Any", items).aclose()


def _follow_generator(description: Description, items: Iterator[Any]) -> Generator[Any, Any, Any]:
    """Iterate over a generator as a request, without the time that its consumer takes in between."""
    inner = cast("Generator[Any, Any, Any]", items)

    def in_request(call: Callable[..., Any], *values: Any) -> Any:
        block.make_current()
        is_new = block.open is not None and _FOLLOWER.enter(block.open)
        try:
            return call(*values)
        finally:
            if is_new and block.open is not None:
                _FOLLOWER.leave(block.open)
            block.make_other_current()

    with _Block(description) as block:
        try:
            item = in_request(next, inner)
            while True:
                try:
                    sent = yield item
                except GeneratorExit:
                    in_request(inner.close)
                    raise
                except BaseException as thrown:  # noqa: BLE001  (it is thrown into the generator)
                    item = in_request(inner.throw, thrown)
                else:
                    item = in_request(inner.send, sent)
        except StopIteration as stopped:
            return stopped.value


def _run_in_request(request: RequestState, function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    before = _CURRENT.set(request)
    is_new = _FOLLOWER.enter(request)
    try:
        return function(*args, **kwargs)
    finally:
        if is_new:
            _FOLLOWER.leave(request)
        _CURRENT.reset(before)


def _handed_over(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function handed to a thread pool so that it belongs to the request that hands it over, if there is one."""
    request = _CURRENT.get()
    if request is None or request.has_ended:
        return function
    _FOLLOWER.note(request, SUBMITTED)
    return functools.partial(_run_in_request, request, function)


_installing = threading.Lock()
_installed = False


def install_request_hooks() -> None:
    """Wrap, once, the functions that hand work to threads or run the steps of tasks. The wrappers stay, and read one context variable per call."""
    global _installed
    with _installing:
        if _installed:
            return
        _wrap_steps()
        _wrap_submit()
        AfterImport("anyio.to_thread", _wrap_anyio).wait()
        _installed = True


def _wrap_steps() -> None:
    """Record the steps that asyncio's event loop runs in the context of a request as its intervals."""
    run_step = asyncio.events.Handle._run  # noqa: SLF001  (Python's own)

    begin_step, end_step = _FOLLOWER.begin_step, _FOLLOWER.end_step

    @functools.wraps(run_step)
    def run(self: Any) -> None:
        depth = begin_step(self._context)
        try:
            run_step(self)
        finally:
            # Also the interval of a block that was entered in this step and is not left yet.
            end_step(depth)

    asyncio.events.Handle._run = run  # type: ignore[method-assign]  # noqa: SLF001  (Python's own)


def _wrap_submit() -> None:
    submit: Callable[..., Any] = concurrent.futures.ThreadPoolExecutor.submit

    @functools.wraps(submit)
    def handing_over(self: Any, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        return submit(self, _handed_over(function), *args, **kwargs)

    concurrent.futures.ThreadPoolExecutor.submit = handing_over  # type: ignore[method-assign]


def _wrap_anyio() -> None:
    """Also wrap anyio, in whose threads Starlette and FastAPI call plain functions."""
    # Not by `anyio.to_thread`, which is only set after the module is imported.
    module: Any = importlib.import_module("anyio.to_thread")
    run_sync: Callable[..., Any] = module.run_sync

    @functools.wraps(run_sync)
    async def handing_over(function: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        return await run_sync(_handed_over(function), *args, **kwargs)

    module.run_sync = handing_over


def _plain(name: str) -> str:
    return " ".join(name.split())[:_MOST_LETTERS]


_encode = json.JSONEncoder(default=str, allow_nan=False).encode


def _as_json(arguments: dict[str, Any]) -> str:
    """Arguments as JSON; empty without any, and only their names if they cannot be serialized."""
    if not arguments:
        return ""
    for wanted in (arguments, dict.fromkeys(arguments)):
        try:
            text = _encode(wanted)
        except (TypeError, ValueError, RecursionError):
            continue
        if len(text) <= _MOST_LETTERS:
            return text
    return ""
