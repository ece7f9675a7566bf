"""What makes an incident: a step that is much slower than the ones before or has no end, a loss that is no number, a device without memory, and the end
of the program by an exception that nothing catches, by `sys.exit` with a code other than 0, or by SIGTERM.
"""

from __future__ import annotations

import math
import os
import signal
import sys
import threading
import weakref
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from types import FrameType, TracebackType
from typing import Any, NoReturn

from kinetoscope._replacements import Replacements
from kinetoscope.model import units
from kinetoscope.storage.system_files import text_of

LEAST_OVERDUE_S = 1.0
"""No step is overdue before."""

MEMORY_SHORT = 0.95
"""The share of the memory that a process may have from which it is likely to be killed."""

_OVERDUE_TIMES = 2.0
# The first steps compile, and load what later ones have.
_FIRST_OVERDUE_S = 60.0
_KEPT = 128
_FEWEST = 20
# Sorting takes as long as some tenths of a short step: so many of those pass before it is done again, else fewer.
_LOOK_EVERY, _LOOK_EVERY_SHORT = 32, 128
_SHORT_NS = 10e6
_SLOW_RATIO = 1.5
_SLOW_DEVIATIONS = 5.0
_IN_A_ROW = 3
# Short steps are slow for a moment whenever another program needs the processor.
_LEAST_SLOW_NS = 1e9


class StepTimes:
    """The durations of the last steps, and what is unusual for them.

    Attributes:
        median_ns: The median; 0 while too few steps have ended.
        overdue_ns: A step that takes longer is overdue.
    """

    def __init__(self, least_s: float = LEAST_OVERDUE_S, first_s: float = _FIRST_OVERDUE_S) -> None:
        self._least_ns = least_s * 1e9
        self._last: deque[float] = deque(maxlen=_KEPT)
        # Without slow ones, which would else become usual before they have lasted long enough.
        self._usual: deque[float] = deque(maxlen=_KEPT)
        self._since_look = 0
        self._slow_from_ns = math.inf
        self._slow_steps, self._slow_ns = 0, 0.0
        self.median_ns = 0.0
        self.overdue_ns = first_s * 1e9

    def add(self, step_ns: float) -> tuple[int, float]:
        """Add the duration of a step that has ended.

        Returns:
            How many of the last steps were all unusually slow, at least three, and for a second, and how long they took together;
            0 and 0 if they were not.
        """
        if step_ns > self._slow_from_ns:
            self._slow_steps += 1
            self._slow_ns += step_ns
        else:
            self._slow_steps, self._slow_ns = 0, 0.0
            self._usual.append(step_ns)
        self._last.append(step_ns)
        self._since_look += 1
        every = _LOOK_EVERY_SHORT if 0 < self.median_ns < _SHORT_NS else _LOOK_EVERY
        if self._since_look >= every or len(self._last) == _FEWEST:
            self._look()
        if self._slow_steps < _IN_A_ROW or self._slow_ns < _LEAST_SLOW_NS:
            return 0, 0.0
        slow = self._slow_steps, self._slow_ns
        self._slow_steps, self._slow_ns = 0, 0.0
        # What is slow from now on is the usual duration, until it changes again.
        self._slow_from_ns = math.inf
        self._usual.clear()
        return slow

    def _look(self) -> None:
        """Find again what is usual."""
        self._since_look = 0
        if len(self._last) >= _FEWEST:
            longest_ns = sorted(self._last)[int(0.99 * (len(self._last) - 1))]
            self.overdue_ns = max(self._least_ns, _OVERDUE_TIMES * longest_ns)
        ordered = sorted(self._usual)
        if len(ordered) < _FEWEST:
            return
        self.median_ns = ordered[len(ordered) // 2]
        deviation_ns = sorted(abs(step_ns - self.median_ns) for step_ns in ordered)[len(ordered) // 2]
        self._slow_from_ns = max(
            _SLOW_RATIO * self.median_ns, self.median_ns + _SLOW_DEVIATIONS * deviation_ns
        )


def loss_value(loss: Any) -> float | None:
    """The value of a loss: a number of Python, or a tensor of the CPU with one element; None of anything else.

    A tensor on a device is never read, because that would wait for the device.
    """
    if isinstance(loss, (int, float)):
        return float(loss)
    device = getattr(loss, "device", None)
    if getattr(device, "type", None) != "cpu" or loss.numel() != 1:
        return None
    return float(loss.detach())


def is_no_number(loss: Any) -> bool:
    """Whether a loss is NaN or infinite; False if it cannot be read, see `loss_value`."""
    value = None if loss is None else loss_value(loss)
    return value is not None and not math.isfinite(value)


def memory_limit_bytes(
    groups: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")
) -> int | None:
    """The memory that this process may have by its control groups, such as those of a container, of a batch system's job or of a service.

    Args:
        groups: Where the control groups are mounted.
        own: The file that says which ones the process is in.

    Returns:
        The least of the limits of its group and of those around it; None without a limit, or where the system does not tell.
    """
    limits = []
    for line in [*text_of(own).splitlines(), "0::/", "0:memory:/"]:
        _, kinds, path = line.split(":", 2)
        if kinds and "memory" not in kinds.split(","):
            continue
        # Of the older kind, each controller has a tree of its own.
        tree, name = (groups / "memory", "memory.limit_in_bytes") if kinds else (groups, "memory.max")
        folder = tree / path.lstrip("/")
        for group in (folder, *folder.parents[: len(folder.relative_to(tree).parts)]):
            # "max" is no limit; a group outside of what a container sees has no file here.
            with suppress(OSError, ValueError):
                limits.append(int((group / name).read_text()))
    # Without a limit, the older one is close to 2^63.
    return min((limit for limit in limits if limit < 1 << 60), default=None)


def on_device_out_of_memory(tell: Callable[[str], object]) -> None:
    """Have a method called with what happened, each time the CUDA allocator finds no memory, also if the program catches the exception.

    torch calls it on the thread that allocates, without the allocator's lock and before the exception, from the moment on that the program has used a device.
    torch never lets go of it, so the method is not kept alive. Without CUDA nothing happens.
    """
    torch = sys.modules["torch"]
    attach = getattr(torch._C, "_cuda_attach_out_of_memory_observer", None)
    if attach is None:
        return
    heard, process = weakref.WeakMethod(tell), os.getpid()

    def observer(device: int, wanted_bytes: int, total_bytes: int, free_bytes: int) -> None:
        method = heard()
        if method is None or os.getpid() != process:
            return
        wanted, total, free = map(units.size, (wanted_bytes, total_bytes, free_bytes))
        method(f"cuda:{device} has no memory for {wanted}: {free} of {total} are free")

    torch.cuda._lazy_call(lambda: attach(observer))  # noqa: SLF001  (torch's own)


@dataclass(eq=False)
class Endings:
    """Tells of the end of a program before it ends.

    Attributes:
        on_exception: Called with an exception that ends the program; None: not to be told.
        on_exit: Called on SIGTERM; None: not to be told.
        on_code: Called by `sys.exit` on the main thread with its argument, and the exception that is being handled. Whether the program
            ends by it is not known yet.
        on_exec: Called with True before another program takes the place of this one, and with False if that failed.
        on_hard_exit: Called with the code before `os._exit` ends the program, on whatever thread.
    """

    on_exception: Callable[[BaseException], object] | None
    on_exit: Callable[[], object] | None
    on_code: Callable[[object, BaseException | None], object] | None = None
    on_exec: Callable[[bool], object] | None = None
    on_hard_exit: Callable[[int], object] | None = None
    _process: int = field(default_factory=os.getpid, init=False)
    _handler: Any = field(default=None, init=False)
    _replaced: Replacements = field(default_factory=Replacements, init=False)

    def watch(self) -> None:
        """Begin to watch; of SIGTERM only where the program does not ignore it, and on the main thread."""
        if self.on_exception is not None:
            self._replaced.put(sys, "excepthook", partial(self._ends_by_exception, sys.excepthook))
        if self.on_code is not None:
            self._replaced.put(sys, "exit", self._exit)
        if self.on_exec is not None:
            # The other functions of this family call these.
            for name in ("execv", "execve"):
                self._replaced.put(os, name, partial(self._exec, getattr(os, name)))
        if self.on_hard_exit is not None:
            self._replaced.put(os, "_exit", partial(self._hard_exit, os._exit))
        if self.on_exit is None or threading.current_thread() is not threading.main_thread():
            return
        before = signal.getsignal(signal.SIGTERM)
        if before is signal.SIG_IGN or before is None:
            return
        self._handler = before
        signal.signal(signal.SIGTERM, self._ends_by_signal)

    def stop(self) -> None:
        """Watch no longer, where nobody has taken our place meanwhile."""
        self._replaced.restore()
        on_main = threading.current_thread() is threading.main_thread()
        if self._handler is not None and on_main and signal.getsignal(signal.SIGTERM) == self._ends_by_signal:
            signal.signal(signal.SIGTERM, self._handler)
        self.on_exception = self.on_exit = self.on_code = self.on_exec = self.on_hard_exit = None

    def _tell(self, call: Callable[..., object] | None, *arguments: object) -> None:
        """Call a function if it is to be told, and this is no child of the process that watches."""
        if call is not None and os.getpid() == self._process:
            call(*arguments)

    def _exit(self, status: object = None, /) -> NoReturn:
        """In place of `sys.exit`: tell of its code."""
        if threading.current_thread() is threading.main_thread():
            self._tell(self.on_code, status, sys.exception())
        raise SystemExit(status)

    def _exec(self, call: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        """In place of `os.execv` and `os.execve`, which return only if they fail."""
        tell = self.on_exec
        self._tell(tell, True)
        try:
            return call(*arguments, **named)
        finally:
            self._tell(tell, False)

    def _hard_exit(self, call: Callable[[int], NoReturn], status: int) -> NoReturn:
        """In place of `os._exit`: tell of its code."""
        with suppress(Exception):
            self._tell(self.on_hard_exit, status)
        call(status)

    def _ends_by_exception(
        self,
        hook: Callable[..., Any],
        kind: type[BaseException],
        error: BaseException,
        trace: TracebackType | None,
    ) -> None:
        """Tell of an exception, then do what is usual. At the prompt of an interactive Python, it ends nothing."""
        is_prompt = hasattr(sys, "ps1") or sys.flags.interactive
        if not is_prompt and not isinstance(error, KeyboardInterrupt):
            self._tell(self.on_exception, error)
        hook(kind, error, trace)

    def _ends_by_signal(self, number: int, frame: FrameType | None) -> None:
        """Tell of SIGTERM, then do what would have been done."""
        self._tell(self.on_exit)
        if callable(self._handler):
            self._handler(number, frame)
        elif self._handler == signal.SIG_DFL:
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)
