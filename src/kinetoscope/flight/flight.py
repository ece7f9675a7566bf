"""`kinetoscope.leave_on`: record all the time, within a budget, and keep what led to an incident."""

from __future__ import annotations

import atexit
import json
import os
import select
import shutil
import socket
import stat
import threading
import time
import traceback
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from kinetoscope._runtime import StepCount
from kinetoscope.collect import (
    OPTIMIZER_STEPS,
    STREAM,
    DeferredSignals,
    ProfilerActivity,
    is_out_of_memory,
    own_rank,
    profile,
    rank_count,
    warn_safely,
    warn_user,
)
from kinetoscope.flight import settings as flight_settings
from kinetoscope.flight import triggers
from kinetoscope.flight.budget import FEWEST, FIRST_SHARE, OverheadBudget, StepPlan, level_for
from kinetoscope.flight.control import in_job
from kinetoscope.flight.hangs import QUIET_S, WAITS, HangWatch, is_hang, verdict_of
from kinetoscope.flight.incidents import CAPTURES, IncidentCalls, Incidents, rank_name
from kinetoscope.flight.jobs import Attempt, forget_ended, list_folder, sweep
from kinetoscope.flight.live_stacks import sight, sight_of_exception, thread_stacks
from kinetoscope.flight.other_ranks import OtherRanks
from kinetoscope.flight.own_threads import OwnThreads
from kinetoscope.flight.step_log import SIZE_BYTES, SUFFIX, StepLogWriter, interpreter_layout
from kinetoscope.flight.unclean_exits import rescue_rings, rescue_rings_of
from kinetoscope.model import units
from kinetoscope.model.step_plan import PLAN_KEY
from kinetoscope.storage.recording_parts import keep_from

_CPU = frozenset({ProfilerActivity.CPU})
_LEAST_RING_BYTES = 1 << 20
# So long after this rank has followed an incident of another one, what it notices of the same kind is the same incident.
_SAME_INCIDENT_S = 90.0
# A loss that is no number within so many steps of another one belongs to the same episode, which is one incident.
_SAME_EPISODE_STEPS = 100
# Of the free space of the disk, or of /dev/shm, which is small in containers.
_MOST_OF_DISK = 2
# A copy of the ring has at least so many recorded steps, however long ago they were.
_FEWEST_KEPT = 64
# How long steps may follow the plan before Python looks at what they took: it takes as long for one as for many.
_LOOK_EVERY_NS = 500_000_000
_LOOKS_AT_FIRST = 8
# So often is a step that is overdue looked at before it can be said to hang.
_LOOKS = 8
# So many rings of the size that was asked for may incidents and captures take, for each rank.
_MOST_RINGS = 8
# How many changes of the share, and captures, are in the recording.
_STRETCHES = 256


@dataclass(frozen=True)
class FlightStatus:
    """The state of a flight recorder.

    Attributes:
        on: Whether it records.
        problem: Why it does not, or what failed last; empty if nothing did.
        step: The number of the step that is under way.
        overhead: What it costs, in words: `0.6 % (0.4 to 0.8 %) of 1 %`.
        share: The share of the steps that is recorded, 1 for all.
        ring: The file with the last steps.
        folder: The folder of this attempt of the job.
        incidents: The recordings of the incidents so far, the oldest first.
        refused: How many incidents were not kept because there were too many within an hour.
        capture: What a capture that is running will write; None if none is.
    """

    on: bool
    problem: str
    step: int
    overhead: str
    share: float
    ring: Path | None
    folder: Path
    incidents: tuple[Path, ...]
    refused: int
    capture: Path | None = None

    def __str__(self) -> str:
        """The state in one line."""
        if not self.on:
            return f"off: {self.problem or 'stopped'}"
        parts = [
            "on",
            f"step {self.step:,}" if self.step >= 0 else "no step began",
            f"overhead {self.overhead}",
            "all steps recorded" if self.share >= 1 else f"1 of {round(1 / self.share):,} steps recorded",
            units.count(len(self.incidents), "incident"),
            self.problem,
        ]
        return ", ".join(filter(None, parts))


@dataclass
class _Capture:
    """A capture that is running.

    Attributes:
        path: The recording that it will write.
        steps: How many steps it takes.
        then: Called with the recording and what failed.
        numbers: Those of the steps that have begun.
        began_ns: When the first of them began, by the monotonic clock.
    """

    path: Path
    steps: int
    then: Callable[[Path, str], object] | None
    numbers: list[int] = field(default_factory=list)
    began_ns: int = 0

    def is_complete(self, step: int) -> bool:
        """Whether the last step has ended, now that this one begins; if not, it is one of the capture."""
        if len(self.numbers) == self.steps:
            return True
        if not self.numbers:
            self.began_ns = time.monotonic_ns()
        self.numbers.append(step)
        return False


class FlightRecorder:
    """Records the last steps of a job into a ring, and copies it when something happens; `leave_on` makes it.

    No method raises an exception: a failure is a warning, and a part of `status()`.
    """

    def __init__(self, wanted: flight_settings.FlightSettings) -> None:
        """Prepare; `start` begins."""
        self._settings = wanted
        self._rank = own_rank() or 0
        self._attempt = wanted.folder / flight_settings.job_name() / flight_settings.attempt_name()
        self._plan = StepPlan(flight_settings.plan_name(), level_for(FIRST_SHARE))
        self._budget = OverheadBudget(wanted.budget)
        self._times = triggers.StepTimes()
        self._incidents = Incidents(
            self._attempt,
            self._rank,
            wanted.most_in_an_hour,
            most_bytes=_MOST_RINGS * wanted.keep_bytes,
        )
        self._calls = IncidentCalls()
        self._others = OtherRanks(self._attempt, self._rank, self._follow)
        # The incident of another rank or of a device: its reason, when, and the step. Another one of that reason soon after it is the same.
        self._followed = ("", float("-inf"), -1)
        self._lock = threading.RLock()
        self._process = os.getpid()
        self._session: profile | None = None
        self._endings: triggers.Endings | None = None
        # What its control groups allow, 0 without a limit or if nobody is to look.
        self._most_bytes = 0
        self._log: StepLogWriter | None = None
        self._log_path: Path | None = None
        # Where this process's stacks are found.
        self._layout: dict[str, int] = {}
        # The system's id of the one that marks the steps; 0 before the first.
        self._thread = 0
        # Readable when the native watcher has noticed something.
        self._signal = -1
        self._listener: threading.Thread | None = None
        # Of a `sys.exit` that is no success: the step, the reason, and the facts.
        self._exit: tuple[int, str, dict[str, Any]] | None = None
        # The last step whose loss was no number.
        self._nan_step: int | None = None
        self._optimizer: int | None = None
        self.problem = ""
        # Whether another session has to end before recording starts.
        self.waits = False
        self.quiet_s = QUIET_S
        # When recording had begun, and when the last recorded steps began.
        self._started_ns = 0
        self._recorded_ns: deque[int] = deque(maxlen=_FEWEST_KEPT)
        # Whether the step under way can be compared with others.
        self._comparable = False
        # Follows the plan without Python between two looks at what it has noted, where nothing else is to be done.
        self._count = StepCount(self._step_or_count)
        # When the last look was, and how many steps have been counted since that ended without Python.
        self._looked_ns, self._drained = 0, 0
        self._threads = OwnThreads()
        self._capture: _Capture | None = None
        # From which step on which share of the steps is recorded, and the first and last steps of captures.
        self._stretches: deque[tuple[int, float]] = deque(maxlen=_STRETCHES)
        self._asked: deque[tuple[int, int]] = deque(maxlen=_STRETCHES)
        self._control: in_job.Control | None = None

    # ------------------------------------------------------------------------------------------------------- user

    def step(self, number: int | None = None, loss: Any = None) -> None:
        """Mark the start of the next step.

        Args:
            number: The number of the step that begins, such as that of the job in a resumed job; None: one more than before.
            loss: The loss of the step that has ended, a number or a tensor of the CPU: NaN or an infinite one is an incident. A
                tensor on a device is not read.
        """
        self._count.step(number, loss)

    def end_step(self, loss: Any = None) -> None:
        """Mark the end of the step under way, where something else than the next step follows, such as an evaluation or a checkpoint.

        What follows belongs to no step, up to the next call of `step`: it is not recorded, and is neither slow nor a hang. A second
        call only looks at the loss.

        Args:
            loss: The loss of the step, as for `step`.
        """
        self._leave_step(detach=True)
        with self._warns_of("a loss could not be looked at"):
            if self.is_on:
                self._look_at_loss(loss)

    def idle(self) -> None:
        """Mark the end of the step, where none begins before the next call of `step`, as `end_step` does, but record on.

        What passes until then, such as the wait of a server for requests, is not part of a step, and is neither slow nor taken to hang.
        """
        self._leave_step(detach=False)

    def _leave_step(self, *, detach: bool) -> None:
        """End the step under way, and watch none until the next one begins; nothing if none is under way."""
        if os.getpid() != self._process:
            return
        entered_ns = time.monotonic_ns()
        with self._warns_of("the end of a step could not be marked"), self._lock:
            session, count = self._session, self._count
            if session is None or not count.began_ns:
                return
            self._end_step(entered_ns)
            count.began_ns = 0
            if detach:
                self._detach(session)
            elif count.recording:
                session.close_mark()
                count.end_mark()
            count.log_begin(0)
            count.closing_ns = time.monotonic_ns() - entered_ns

    def snapshot(self, reason: str = "snapshot") -> Path | None:
        """Copy the ring now; return the recording, or None with a warning if that failed."""
        return self._incident(reason, {}, asked=True)

    def capture(self, steps: int = 5, then: Callable[[Path, str], object] | None = None) -> Path | str:
        """Record each of the next steps, and copy them from the ring after the last of them.

        Args:
            steps: How many steps, 1 or more.
            then: Called when the last step has ended, or the recorder stops, with the recording and what failed (empty if nothing did).

        Returns:
            The recording, which is there once the steps have ended; or why there will be none. A file with the same name and the
            suffix `.json` says which steps they were.
        """
        with self._lock:
            if self._session is None:
                return f"nothing is recorded: {self.problem or 'stopped'}"
            if self._capture is not None:
                return f"another capture is running: {self._capture.path}"
            if steps < 1:
                return f"steps={steps!r}: need 1 step or more"
            self._look_at_next()
            path = self._incidents.new_capture(self._count.number + 1)
            self._capture = _Capture(path, steps, then)
            return path

    def cancel_capture(self) -> None:
        """End a capture that is running, without a recording."""
        with self._lock:
            self._capture = None

    def on_incident(self, call: Callable[[Path], object]) -> None:
        """Call a function with the recording of each incident, such as `kinetoscope.log_to_tracker`.

        Args:
            call: Called on a thread of its own, also while the program hangs, in the context variables of now. A program that ends waits
                for it, at most 30 s, or 5 s if it is terminated. Its exceptions are warnings.
        """
        self._calls.add(call)

    def status(self) -> FlightStatus:
        """The state, with what recording costs."""
        with self._lock:
            self._drain()
            plan = self._plan
            return FlightStatus(
                on=self._session is not None,
                problem=self.problem,
                step=self._count.number,
                overhead=self._budget.overhead(plan.share).text(self._settings.budget),
                share=1.0 if plan.level == 0 else plan.share,
                ring=None if self._session is None else STREAM.path(),
                folder=self._attempt,
                incidents=tuple(self._incidents.paths),
                refused=self._incidents.refused,
                capture=None if self._capture is None else self._capture.path,
            )

    def facts(self) -> dict[str, Any]:
        """The state as JSON values, with shares in percent, for those who ask from outside."""
        with self._lock:
            status, budget = self.status(), self._settings.budget
            cost = self._budget.overhead(self._plan.share)
        is_measured = cost.comparisons >= FEWEST
        return {
            "recorded_percent": 100 * status.share,
            "overhead": status.overhead,
            "budget_percent": 100 * budget,
            "overhead_percent": 100 * cost.share if is_measured else None,
            "overhead_low_percent": 100 * cost.low if is_measured else None,
            "overhead_high_percent": 100 * cost.high if is_measured else None,
            "incidents": [str(path) for path in status.incidents],
            "refused": status.refused,
            "problem": status.problem,
            "capture": None if status.capture is None else str(status.capture),
        }

    @property
    def is_on(self) -> bool:
        """Whether it records in this process."""
        return self._session is not None and os.getpid() == self._process

    def stop(self) -> None:
        """Stop recording and remove the ring; incidents stay. A second call does nothing."""
        with DeferredSignals() as deferred:
            self._keep_exit()
            self._stop()
        deferred.raise_error()
        self._calls.finish()

    def _stop(self) -> None:
        """Stop recording; nothing may interrupt this."""
        with self._lock:
            session, self._session = self._session, None
            self.__dict__.pop("step", None)
            self._look_at_next()
            if self.waits and os.getpid() == self._process:
                self.waits, self.problem = False, ""
                self._stop_following()
            if session is None or os.getpid() != self._process:
                return
            with self._warns_of("the flight recorder could not be stopped"):
                atexit.unregister(self.stop)
                self._stop_following()
                if self._endings is not None:
                    self._endings.stop()
                self._others.stop()
                # One that is running, for which the job has too few steps.
                self._end_capture()
                if self._control is not None:
                    self._control.stop()
                ring = STREAM.path()
                leaves_ring = self._incidents.uncopied is not None
                self._stop_watching(leaves_ring=leaves_ring)
                self._count.end_mark()
                self._count.set_switch(0)
                session.stop()
                if leaves_ring:
                    # It has what led to an incident. To move it needs no room on the disk.
                    rescue_rings_of(Attempt(self._attempt))
                elif ring is not None and ring.parent == self._attempt:
                    ring.unlink(missing_ok=True)
                # Those that are empty.
                for folder in (self._attempt / CAPTURES, self._attempt, self._attempt.parent):
                    with suppress(OSError):
                        folder.rmdir()

    def training_failed(self, error: BaseException) -> None:
        """Keep what led to an exception that ends a training, while the step that raised it is still the one under way."""
        if isinstance(error, Exception):
            self._crashed(error)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _traceback: object) -> None:
        if isinstance(error, Exception):
            self._crashed(error)
        elif isinstance(error, SystemExit) and error.code not in (None, 0):
            self._exits(error.code, error.__context__, error)
        self.stop()

    # ------------------------------------------------------------------------------------------------------ start

    def start(self) -> None:
        """Begin to record; called by `leave_on`."""
        try:
            self._start()
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            self._session = None
            self._failed("the flight recorder is off", error)
        except BaseException:
            # An interrupt: the caller gets nothing that could be stopped.
            self.stop()
            raise

    def _start_after_waiting(self) -> bool:
        """Begin to record if another session prevented it, and has ended; whether it records now."""
        if not self.waits or STREAM.sessions:
            return False
        self.waits, self.problem = False, ""
        self.start()
        return self._session is not None

    def _start(self) -> None:
        if STREAM.sessions:
            # A ring is made by the first session of a recording.
            self.waits = True
            self.problem = "another session records in this process: starts with the first step after its end"
            return
        make_private_folder(self._settings.folder)
        # Before a ring of the same name takes the place of one that is worth keeping.
        rescue_rings(self._settings.folder)
        sweep(self._settings.folder)
        self._attempt.mkdir(mode=0o700, parents=True, exist_ok=True)
        session = profile(
            activities=[ProfilerActivity.CPU],
            engine="native",
            with_stack=True,
            with_modules=True,
            path=self._attempt / f"{rank_name(self._rank)}.recording",
            ring_bytes=self._ring_bytes(),
            oom_report=False,
        )
        self._session = session
        session.start()
        self._started_ns = time.monotonic_ns()
        # By what recording is switched for single steps without Python; the daemon of Kineto has to be told of each step, in Python.
        switch_steps = getattr(session.recording_engine, "switch_steps", lambda: None)
        self._count.set_switch(0 if os.environ.get("KINETO_USE_DAEMON") else switch_steps() or 0)
        # Without a frame of Python between the program and the count.
        self.__dict__["step"] = self._count.step
        self._note_plan(0)
        on = self._settings.on
        self._endings = triggers.Endings(
            self._crashed if on & {"crash", "oom"} else None,
            (lambda: self._incident("exit", {"what": "SIGTERM"}, ends=True)) if "exit" in on else None,
            self._exits if on & {"crash", "oom", "exit", "hang"} else None,
            self._becomes_another,
            self._ends_at_once,
        )
        self._endings.watch()
        if "oom" in on:
            triggers.on_device_out_of_memory(self._device_memory_ran_out)
        atexit.register(self.stop)
        self._watch_steps()
        self._others.start()
        self._accept_requests()
        with self._warns_of(
            f"`kinetoscope ps` finds the job only with KINETOSCOPE_DIR={self._settings.folder}"
        ):
            make_private_folder(flight_settings.default_folder())
            list_folder(self._settings.folder)

    def _accept_requests(self) -> None:
        """Let the job be controlled from outside, if that is wanted."""
        if not self._settings.control or self._log_path is None:
            return
        control = in_job.Control(self, self._log_path.with_suffix(in_job.SUFFIX))
        with self._warns_of("the job cannot be controlled"):
            control.start()
            self._control = control

    def _watch_steps(self) -> None:
        """Let a native thread watch the steps, and a Python thread wait for what it notices; without them, hangs are not noticed."""
        with self._warns_of("hangs are not noticed"):
            self._signal = os.eventfd(0, os.EFD_CLOEXEC)
            ring = STREAM.path()
            # The ring has another name if a process with the same rank has that one.
            path = (ring or self._attempt / rank_name(self._rank)).with_suffix(SUFFIX)
            path.unlink(missing_ok=True)
            memory = STREAM.recorder().watch_steps(path, self._signal, SIZE_BYTES)
            self._log_path = path
            self._most_bytes = triggers.memory_limit_bytes() or 0 if "oom" in self._settings.on else 0
            self._log = StepLogWriter(memory, int(triggers.MEMORY_SHORT * self._most_bytes))
            self._log.follow(self._count)
            self._layout = interpreter_layout(memory)
            self._listener = threading.Thread(target=self._listen, name="kinetoscope-flight", daemon=True)
            self._listener.start()

    def _stop_watching(self, *, leaves_ring: bool) -> None:
        """End the two threads, and remove the log of steps, unless the ring is to be kept."""
        log, self._log = self._log, None
        if log is not None:
            log.stop(leaves_ring=leaves_ring)
            self._count.close()
            log.close()
            STREAM.recorder().unwatch_steps()
        # Ranks that go on may wait for this one, or fail because it is gone.
        is_last = rank_count() == 1 or forget_ended(Attempt(self._attempt), self._rank)
        if self._log_path is not None and is_last and not leaves_ring:
            self._log_path.unlink(missing_ok=True)
        if self._listener is not None:
            os.eventfd_write(self._signal, 1)

    def _listen(self) -> None:
        """Wait for the native watcher, on a thread of its own, and keep what it has noticed; while a step is overdue, judge whether it hangs."""
        signal, told_of_memory, kept_ns = self._signal, False, 0
        watch: HangWatch | None = None
        events = select.poll()
        events.register(signal, select.POLLIN)
        try:
            while True:
                wakes = events.poll(None if watch is None else 1000 * self.quiet_s / _LOOKS)
                if wakes:
                    os.eventfd_read(signal)
                if self._log is None or os.getpid() != self._process:
                    break
                if wakes and self._log.memory_is_short and not told_of_memory:
                    told_of_memory = True
                    most = units.size(self._most_bytes)
                    self._incident(
                        "oom", {"what": f"the process has nearly all of the {most} that it may have"}
                    )
                elif wakes and self._log.hang[0] not in (0, kept_ns):
                    kept_ns = self._log.hang[0]
                    self._hangs()
                else:
                    watch = self._judge(watch)
        except OSError:
            # The program has closed its files, as one that becomes a daemon.
            return
        os.close(signal)

    def _judge(self, watch: HangWatch | None) -> HangWatch | None:
        """Say whether the step that is overdue hangs; None once there is nothing to look at any more."""
        log, began_ns = self._log, self._count.began_ns
        hung_ns, noticed_ns = log.hang if log is not None else (0, 0)
        if log is None or hung_ns or noticed_ns < began_ns or not began_ns:
            return None
        if watch is None or watch.began_ns != began_ns:
            watch = HangWatch(began_ns, self._thread, self._layout, self.quiet_s)
        with self._warns_of("whether a step hangs could not be judged"):
            facts = watch.judge(noticed_ns)
            log.note_judgement(facts, time.monotonic_ns())
            # Of many ranks, reading their files takes a while.
            rings = Attempt(self._attempt).rings() if facts["verdict"] == WAITS else []
            verdicts = [verdict_of(ring) for ring in rings if ring.rank != self._rank]
            if is_hang(facts["verdict"], verdicts, rank_count(), watch.overdue_ns):
                log.note_hang(began_ns)
        return watch

    def _hangs(self) -> None:
        """Keep what led to a step that does not end. Its thread may hold our lock, so it is not taken."""
        took_s = (time.monotonic_ns() - self._count.began_ns) / 1e9
        facts = self._facts_of_now() | {
            "what": f"step {self._count.number} has not ended for {took_s:.0f} s",
            "stacks": thread_stacks(),
        }
        with self._warns_of("the incident 'hang' could not be kept"):
            path = self._write("hang", facts)
            self._others.tell(path)
            self._calls.tell(path, "hang")

    def _ring_bytes(self) -> int:
        """The size of the ring: less than asked for if the disk is nearly full.

        Raises:
            OSError: There is no room at all.
        """
        disk = os.statvfs(self._attempt)
        room = disk.f_bavail * disk.f_frsize // _MOST_OF_DISK
        wanted = self._settings.keep_bytes
        if room >= wanted:
            return wanted
        if room < _LEAST_RING_BYTES:
            raise OSError(f"{self._attempt} has no room for a ring: {units.size(2 * room)} are free")
        warn_user(
            f"the flight recorder keeps {units.size(room)} in place of {units.size(wanted)}: {self._attempt} has no more room. Choose "
            "another folder (KINETOSCOPE_DIR)."
        )
        return room

    def follow_optimizers(self) -> None:
        """Take each step of the first optimizer for a step, until `step` is called."""
        if (self._session is not None or self.waits) and not self._count.looks_at_each:
            # So that a call of `step`, which ends this, is seen.
            self._count.looks_at_each = True
            OPTIMIZER_STEPS.after(self._optimizer_stepped)

    def _stop_following(self) -> None:
        if self._count.looks_at_each:
            self._count.looks_at_each = False
            OPTIMIZER_STEPS.forget(self._optimizer_stepped)

    def _optimizer_stepped(self, optimizer: object, _args: object, _kwargs: object) -> None:
        if self._optimizer is None:
            self._optimizer = id(optimizer)
        if id(optimizer) != self._optimizer or self._count.advance():
            return
        entered_ns = time.monotonic_ns()
        if os.getpid() != self._process or (self._session is None and not self._start_after_waiting()):
            return
        try:
            # The first one ends step 0.
            self._step(1 if self._count.number < 0 else None, None, entered_ns)
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            self._failed("a step could not be marked", error)

    # ------------------------------------------------------------------------------------------------------- steps

    def _step_or_count(self, number: int | None, loss: Any) -> None:
        """Mark the start of a step that needs more than to be counted, or whose arguments need a look."""
        if os.getpid() != self._process or not (self._session is not None or self._start_after_waiting()):
            return
        entered_ns = time.monotonic_ns()
        try:
            # Steps were those of the first optimizer, as `step` had not been called.
            if self._count.looks_at_each:
                self._stop_following()
                # The optimizer has begun a step that this call begins, too, unless it is the first of both.
                number = max(self._count.number, 0) if number is None else number
                self._count.began_ns = 0
            else:
                is_harmless = not ("nan" in self._settings.on and triggers.is_no_number(loss))
                if is_harmless and self._count.advance(None if number is None else int(number)):
                    return
            self._step(number, loss, entered_ns)
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            self._failed("a step could not be marked", error)

    def _step(self, number: int | None, loss: Any, entered_ns: int) -> None:
        """End a step and begin the next one."""
        with self._lock:
            session, count = self._session, self._count
            if session is None:
                return
            followed = count.is_armed
            count.disarm()
            self._end_step(entered_ns)
            self._look_at_loss(loss)
            count.number = count.number + 1 if number is None else int(number)
            capturing = self._capture is not None
            captured = self._capture is not None and self._capture.is_complete(count.number)
            was_recording = count.recording
            began_ns = time.monotonic_ns()
            self._switch(session, record=self._plan.records(count.number) or (capturing and not captured))
            switching_ns = time.monotonic_ns() - began_ns
            if captured:
                self._end_capture()
            # With another session, unrecorded steps are recorded, too.
            self._comparable = not capturing and STREAM.sessions == 1
            # The two steps after a recorded one are looked at alone: they may still pay for that.
            plain = not (count.recording or was_recording or count.was_recorded)
            count.was_recorded = was_recording
            if plain and self._budget.together > 1:
                count.left = (
                    min(self._budget.together, self._plan.next_after(count.number) - count.number) - 1
                )
            if self._threads.is_due(entered_ns):
                share = self._threads.read(entered_ns)
                # Beside another session, the threads work for that, too.
                if share is not None and self._comparable:
                    self._budget.add_threads(share)
                if self._log is not None:
                    self._thread = threading.get_native_id()
                    self._log.note_thread(self._thread)
            self._follow_plan(session, entered_ns)
            count.began_ns = time.monotonic_ns()
            took_ns = count.began_ns - entered_ns
            if followed:
                # What is done for many steps is not part of this one.
                self._budget.add_look(took_ns - switching_ns, entered_ns - self._looked_ns, self._drained)
                took_ns = switching_ns
            self._looked_ns, self._drained = entered_ns, 0
            count.own_ns = took_ns + count.closing_ns
            count.closing_ns = 0
            count.log_begin(self._hang_ns())

    def _hang_ns(self) -> int:
        """A step that takes longer is overdue; 0 if that is not watched."""
        return int(self._times.overdue_ns) if "hang" in self._settings.on else 0

    def _follow_plan(self, session: profile, now_ns: int) -> None:
        """Let the next steps follow the plan without Python, if nothing else is to be done for them."""
        if self._comparable and session.step_range is None:
            seed, level, records_others = self._plan.rule
            # Sooner at first, when what a recorded step costs is not known.
            look_in_ns = min(_LOOK_EVERY_NS, (now_ns - self._started_ns) // _LOOKS_AT_FIRST)
            self._count.arm(
                seed, level, records_others, self._budget.together, self._hang_ns(), now_ns + look_in_ns
            )

    def _look_at_next(self) -> None:
        self._count.disarm()
        self._count.left = 0

    def _drain(self) -> None:
        """Count the steps that have ended without Python."""
        drained = self._count.drain()
        self._drained += len(drained)
        for _, began_ns, step_ns, own_ns, passing_ns, recorded in drained:
            self._ended(began_ns, step_ns, own_ns, passing_ns, recorded, comparable=True)

    def _end_step(self, entered_ns: int) -> None:
        """Count the step that ends, with those that were looked at together with it, and those before that ended without Python."""
        self._drain()
        count = self._count
        # Of each of those that were looked at together.
        counted = count.take()
        passed = counted + 1
        passing_ns = count.took_ns * counted // passed
        step_ns = (entered_ns - count.began_ns) // passed - passing_ns if count.began_ns else 0
        if step_ns > 0:
            count.log_end(step_ns)
            own_ns, is_comparable = count.own_ns // passed, self._comparable
            self._ended(
                count.began_ns, step_ns, own_ns, passing_ns, count.recording, comparable=is_comparable
            )

    def _look_at_loss(self, loss: Any) -> None:
        """Keep an incident if the loss of the step that has ended is no number."""
        if "nan" not in self._settings.on or not triggers.is_no_number(loss):
            return
        step = self._count.number
        is_new = self._nan_step is None or not 0 <= step - self._nan_step <= _SAME_EPISODE_STEPS
        self._nan_step = step
        if is_new:
            self._incident(
                "nan", {"what": f"the loss of step {self._count.number} is {triggers.loss_value(loss)}"}
            )

    def _ended(
        self, began_ns: int, step_ns: int, own_ns: int, passing_ns: int, recorded: bool, *, comparable: bool
    ) -> None:
        """Count a step that has ended, and look at what it took."""
        if recorded:
            self._recorded_ns.append(began_ns)
        kind = recorded if comparable else None
        if self._budget.add(step_ns, own_ns, kind, self._plan.share, passing_ns):
            self._plan.level = level_for(self._budget.share)
            self._look_at_next()
            self._note_plan(self._count.number + 1)
        usual_ns = self._times.median_ns
        slow, slow_ns = self._times.add(step_ns)
        if slow and "slow" in self._settings.on:
            took = units.duration(slow_ns / slow)
            cause = f"the last {slow} steps took {took} each, the ones before {units.duration(usual_ns)}"
            self._incident("slow", {"what": cause})

    def _note_plan(self, first: int) -> None:
        """Write into the recording which share of the steps is recorded from a step on, so that tables can be estimated from it."""
        if self._session is None:
            return
        share = self._plan.share
        if not self._stretches or self._stretches[-1][1] != share:
            self._stretches.append((first, share))
        plan = {"stretches": list(self._stretches), "asked": list(self._asked)}
        self._session.add_metadata_json(PLAN_KEY, json.dumps(plan))

    def _switch(self, session: profile, *, record: bool) -> None:
        """Record the step that begins, or not. Between two steps that are not recorded, nothing is done at all."""
        count, engine = self._count, session.recording_engine
        if engine is None:
            return
        if record:
            session.close_mark()
            if not count.switch_on(count.number):
                if not count.attached:
                    engine.toggle(True, _CPU)
                    count.attached = True
                session.step(count.number)
        else:
            self._detach(session)
        count.recording = record

    def _detach(self, session: profile) -> None:
        """Record no more operators, if they are."""
        count, engine = self._count, session.recording_engine
        if count.attached and engine is not None:
            session.close_mark()
            if not count.switch_off():
                count.end_mark()
                engine.toggle(False, _CPU)
                count.attached = False

    def _end_capture(self) -> None:
        """Copy the ring behind the last step of a capture."""
        capture, self._capture = self._capture, None
        if capture is None:
            return
        path, steps = capture.path, capture.numbers
        problem = "" if steps else "it has stopped before the first step of the capture began"
        try:
            if steps:
                self._asked.append((steps[0], steps[-1]))
                self._note_plan(self._count.number)
                path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                self._copy_ring(path, capture.began_ns - self._started_ns)
                facts = {"steps": steps, "rank": self._rank, "process": self._process}
                path.with_suffix(".json").write_text(json.dumps(facts))
                self._incidents.sweep()
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            problem = f"{type(error).__name__}: {error}"
            self._failed("a capture could not be kept", error)
        if capture.then is not None:
            capture.then(path, problem)

    # --------------------------------------------------------------------------------------------------- incidents

    def _crashed(self, error: BaseException) -> None:
        reason = "oom" if is_out_of_memory(error) else "crash"
        if reason in self._settings.on:
            facts = {"what": _exception_text(error), "sight": asdict(sight_of_exception(error))}
            self._incident(reason, facts, ends=True)

    def _exits(self, code: object, error: BaseException | None, raised: SystemExit | None = None) -> None:
        """Remember a `sys.exit`: if it is no success, it is an incident if the recorder stops in the same step."""
        at_line = asdict(sight_of_exception(error or raised))
        if self._log is not None:
            self._log.note_judgement({"line": at_line["line"]}, time.monotonic_ns())
        if code in (None, 0):
            return
        reason = "exit" if error is None else "oom" if is_out_of_memory(error) else "crash"
        facts: dict[str, Any] = {"what": f"sys.exit({str(code)[:200]})"}
        if error is not None:
            facts["what"] += f", after {_exception_text(error)}"
        facts["sight"] = at_line
        self._exit = (self._count.number, reason, facts)

    def _keep_exit(self) -> None:
        noted, self._exit = self._exit, None
        if noted is not None and noted[0] == self._count.number and noted[1] in self._settings.on:
            self._incident(noted[1], noted[2], ends=True)

    def _becomes_another(self, becomes: bool) -> None:
        """Note that the program ends well because another one takes its place, or that this failed."""
        if self._log is not None:
            self._log.stop(stopped=becomes)

    def _ends_at_once(self, code: int) -> None:
        """Note an `os._exit`, which leaves no time to copy the ring. Another thread may hold our lock."""
        if self._log is not None and code == 0:
            self._log.stop()
        elif self._log is not None and not self._incidents.uncopied:
            facts = {"reason": "exit", "rank": self._rank, "step": self._count.number, "time_s": time.time()}
            self._log.note_end(facts | {"what": f"os._exit({code}) at {sight_of_exception(None).line}"})

    def _device_memory_ran_out(self, what: str) -> None:
        """Keep what led to it. The program may catch the exception that follows; if not, that ends it by the same incident."""
        # torch would raise an exception of ours in place of its own.
        with self._warns_of("the incident 'oom' could not be kept"):
            self._incident("oom", {"what": what})
            self._followed = ("oom", time.monotonic(), self._count.number)

    def _incident(
        self, reason: str, facts: dict[str, Any], *, asked: bool = False, ends: bool = False
    ) -> Path | None:
        """Keep an incident and pass it on; None if that failed, or there were too many. One that ends the program is never one too many."""
        followed, at_s, step = self._followed
        is_same = time.monotonic() - at_s < _SAME_INCIDENT_S and (not ends or step == self._count.number)
        if reason == followed and not asked and is_same:
            return None
        path = None
        with self._lock, self._warns_of(f"the incident {reason!r} could not be kept"):
            if self.is_on:
                status = self.status()
                status_facts = {"share": status.share, "ring": str(status.ring)}
                path = self._write(reason, self._facts_of_now() | status_facts | facts, asked=asked or ends)
        if not asked:
            self._others.tell(path)
        self._calls.tell(path, reason)
        return path

    def _follow(self, name: str, facts: Mapping[str, Any]) -> Path | None:
        """Copy the ring into the incident of another rank. The program's thread may hold our lock, so it is not taken."""
        if not self.is_on:
            return None
        reason, rank = str(facts.get("reason", "incident")), facts.get("rank")
        own_facts = self._facts_of_now() | {
            "because_of_rank": rank,
            "what": f"rank {rank} has an incident: {facts.get('what', reason)}",
        }
        if reason == "hang":
            own_facts["stacks"] = thread_stacks()
        self._followed = (reason, time.monotonic(), self._count.number)
        with self._warns_of(f"the incident {reason!r} of rank {rank} could not be followed"):
            return self._write(reason, own_facts, name=name)
        return None

    def _write(
        self, reason: str, facts: dict[str, Any], *, asked: bool = False, name: str = ""
    ) -> Path | None:
        """Write an incident; what has no whole copy of the ring is also in the log of steps, which needs no room on the disk."""
        log = self._log
        if log is not None and asked:
            log.note_end({"reason": reason, "rank": self._rank, "time_s": time.time(), **facts})
        path = self._incidents.write(reason, facts, self._copy, asked=asked, name=name)
        if log is not None:
            log.note_end(self._incidents.uncopied or {})
        return path

    def _facts_of_now(self) -> dict[str, Any]:
        """What every incident says; read without our lock, which the program's thread may hold."""
        position = sight(self._process, self._layout, self._thread)
        overhead = self._budget.overhead(self._plan.share)
        # The estimate, and the limits of its 95 % interval.
        shares = [max(share, 0.0) for share in overhead[:3]]
        return {
            "step": self._count.number,
            "process": self._process,
            "host": socket.gethostname(),
            "overhead": overhead.text(self._settings.budget),
            "overhead_shares": None if overhead.comparisons < FEWEST else shares,
            "sight": asdict(position) if position else None,
        }

    def _copy(self, path: Path) -> None:
        """Copy what is to be kept of the ring, and the log of steps."""
        self._copy_ring(path, self._kept_from_ns())
        if self._log_path is not None and self._log_path.exists():
            shutil.copyfile(self._log_path, path.with_suffix(SUFFIX))

    def _copy_ring(self, path: Path, from_ns: int) -> None:
        """Copy what the ring has since a time, in nanoseconds since recording began."""
        STREAM.clone(path)
        if from_ns > 0:
            # A copy of the whole ring has all that is wanted.
            with self._warns_of(f"{path} also has older steps than were asked for"):
                keep_from(path, from_ns)

    def _kept_from_ns(self) -> int:
        """The time since the start of the recording from which on a copy of the ring is kept; 0 for all of it.

        It reaches back from the start of the step under way, which may hang for longer than what is kept.
        """
        steps_ns = list(self._recorded_ns)
        if len(steps_ns) < _FEWEST_KEPT:
            return 0
        from_ns = min(
            (self._count.began_ns or time.monotonic_ns()) - int(self._settings.keep_s * 1e9), steps_ns[0]
        )
        return from_ns - self._started_ns

    @contextmanager
    def _warns_of(self, what: str) -> Iterator[None]:
        """Let no exception of this block reach the program, which matters more: warn that this failed."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (whatever fails, the program matters more)
            self._failed(what, error)

    def _failed(self, what: str, error: Exception) -> None:
        """Remember a failure, and warn of the first of its kind."""
        problem = f"{what}: {type(error).__name__}: {error}"
        if problem != self.problem:
            self.problem = problem
            warn_safely(problem)


def _exception_text(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    where = f" at {frames[-1].filename}:{frames[-1].lineno}" if frames else ""
    return f"{type(error).__name__}: {error}"[:2000] + where


def make_private_folder(folder: Path) -> None:
    """Make a folder that only this user can enter, unless there is one that belongs to this user.

    Raises:
        PermissionError: The folder belongs to another user, or is a link.
        OSError: It cannot be made.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    status = os.lstat(folder)
    if status.st_uid != os.geteuid() or not stat.S_ISDIR(status.st_mode):
        raise PermissionError(f"{folder} belongs to another user, or is a link: choose another folder")


def leave_on(
    budget: str | float = flight_settings.DEFAULT_BUDGET,
    keep: str | Iterable[str] = flight_settings.DEFAULT_KEEP,
    folder: str | os.PathLike[str] | None = None,
    on: str | Iterable[str] = flight_settings.REASONS,
    limits: str = flight_settings.DEFAULT_LIMITS,
    control: str = flight_settings.DEFAULT_CONTROL,
) -> FlightRecorder:
    """Record the last steps of a job all the time, and keep a copy when something happens.

    The recording is a ring in a file, which is there even if the process is killed. Call `step()` of the result once for each
    step; until then, as with a trainer, each step of the first optimizer counts as one. As many steps are recorded as the budget allows; what they cost is measured by those that are not recorded. The
    environment variables KINETOSCOPE_BUDGET, _KEEP, _DIR and _ON take the place of the arguments, and with `KINETOSCOPE=off`
    nothing is recorded. In a program that was left on from outside, this returns the recorder that there is.

    Args:
        budget: The share of the time of the steps that recording may add, such as `"1%"`, or 0.01.
        keep: `("60s", "256MiB")`: how far back incidents and snapshots reach, but at least 64 recorded steps; and the size of the ring,
            which may hold less.
        folder: The folder for all jobs, on a local disk; by default `kinetoscope-UID` in the folder of temporary files.
        on: What is kept: `"hang"`, `"crash"` (an exception that nothing catches, or before `sys.exit(1)`), `"oom"` (out of memory), `"slow"` (three steps in
            a row far slower than the ones before), `"nan"` (a loss given to `step`), `"exit"` (SIGTERM, or `sys.exit` with a code other than 0).
        limits: How many incidents of each reason are kept within an hour; the end of the program is always kept.
        control: Where requests are accepted: `"off"` or `"socket"`, a Unix socket of this user. KINETOSCOPE_CONTROL takes its place.

    Returns:
        The recorder; also a context manager that stops at its end. Whatever fails is a warning, and told by its `status()`.

    Raises:
        ArgumentError: An argument, or an environment variable, has a value that cannot be used.
    """
    global _CURRENT
    wanted = flight_settings.settings(budget, keep, folder, on, limits, control)
    if _CURRENT is not None and (_CURRENT.is_on or _CURRENT.waits):
        return _CURRENT
    recorder = FlightRecorder(wanted)
    if os.environ.get(flight_settings.SWITCH, "").lower() in ("off", "0"):
        recorder.problem = "switched off by KINETOSCOPE"
    else:
        recorder.start()
        recorder.follow_optimizers()
        _CURRENT = recorder
    return recorder


def current_recorder() -> FlightRecorder | None:
    """The recorder that is on in this process, None without one."""
    return _CURRENT if _CURRENT is not None and _CURRENT.is_on else None


# The last one that was started in this process.
_CURRENT: FlightRecorder | None = None
