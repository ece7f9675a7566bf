"""Sessions on a disk that is full for a while, interrupted in the middle of `stop`, and stepped by several threads."""

from __future__ import annotations

import resource
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch

import kinetoscope
from kinetoscope.collect.recorder.library import load_recorder
from kinetoscope.storage import recording as recording_files
from tests.support.recorded import named, profile


@pytest.mark.parametrize("on_error", ["raise", "warn"])
def test_a_cycle_that_cannot_be_recorded_does_not_stop_the_program(tmp_path: Path, on_error: Any) -> None:
    folder = tmp_path / "runs"
    folder.mkdir()
    ready: list[int] = []
    session = profile(
        schedule=kinetoscope.schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda prof: ready.append(len(named(prof.trace, "aten::cos"))),
        path=folder / "x.recording",
        on_error=on_error,
    )
    with session:
        session.step()
        torch.cos(torch.ones(1))
        session.step()
        # What a full disk does, too: no file can be made.
        folder.rename(tmp_path / "elsewhere")
        with pytest.warns(UserWarning, match=r"this cycle is not recorded \(step 3\): .*cannot create"):
            session.step()
        torch.cos(torch.ones(1))
        session.step()
        folder.mkdir()
        session.step()
        torch.cos(torch.ones(1))
        torch.cos(torch.ones(1))
        session.step()
    assert ready == [1, 2]


def test_relative_paths_are_those_of_the_working_directory_at_their_making(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "later").mkdir()
    monkeypatch.chdir(tmp_path)
    session = profile(path="x.recording", summary="summaries")
    with session:
        torch.cos(torch.ones(1))
        monkeypatch.chdir(tmp_path / "later")
    assert len(named(kinetoscope.open(tmp_path / "x.recording"), "aten::cos")) == 1
    assert len([*(tmp_path / "summaries").iterdir()]) == 1
    assert [*(tmp_path / "later").iterdir()] == []


@contextmanager
def full_disk() -> Iterator[None]:
    """No file can grow, as on a full disk."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (0, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.parametrize("on_error", ["raise", "warn"])
@pytest.mark.parametrize("memory", [False, True])
def test_a_disk_that_fills_in_one_cycle_and_is_full_in_the_next(on_error: Any, memory: bool) -> None:
    ready: list[tuple[int, str]] = []

    def read(prof: Any) -> None:
        lost = "; ".join(f"{loss['what']}: {loss['why']}" for loss in prof.trace.losses)
        ready.append((len(named(prof.trace, "aten::cos")), lost))

    session = profile(
        schedule=kinetoscope.schedule(wait=0, warmup=1, active=1),
        on_trace_ready=read,
        on_error=on_error,
        profile_memory=memory,
    )
    ones = torch.ones(1)
    with session:
        session.step()
        with full_disk():
            for _ in range(20_000):
                torch.cos(ones)
            with pytest.warns(UserWarning, match=r"records are missing, because the disk of .* had no room"):
                session.step()
            with pytest.warns(
                UserWarning, match=r"this cycle is not recorded \(step 3\): .*cannot reserve disk space"
            ):
                session.step()
            session.step()
        session.step()
        torch.cos(ones)
        session.step()
        with full_disk(), pytest.warns(UserWarning, match=r"this cycle is not recorded \(step 7\)"):
            session.step()
    (first, lost), second = ready
    assert 0 < first < 20_000
    assert "spans not written: The file could not grow" in lost
    assert second == (1, "")


def test_a_first_cycle_that_cannot_be_recorded_does_not_stop_the_program(tmp_path: Path) -> None:
    session = profile(
        schedule=kinetoscope.schedule(wait=1, warmup=1, active=1), path=tmp_path / "none" / "x.recording"
    )
    session.start()
    session.step()
    with pytest.warns(UserWarning, match="this cycle is not recorded"):
        session.step()
    session.step()
    with pytest.warns(UserWarning, match="nothing was recorded"):
        session.stop()


def test_an_interrupt_is_raised_even_if_stop_fails() -> None:
    def train() -> None:
        session = profile()
        try:
            raise KeyboardInterrupt
        finally:
            session.stop()

    with (
        pytest.warns(UserWarning, match=r"stop\(\) failed: NotRecordedError: there is nothing to stop"),
        pytest.raises(KeyboardInterrupt),
    ):
        train()


def test_an_interrupt_is_raised_even_if_the_handler_fails() -> None:
    def fail(_: object) -> None:
        raise RuntimeError("in the handler")

    def train() -> None:
        session = profile(on_trace_ready=fail)
        session.start()
        try:
            raise KeyboardInterrupt
        finally:
            session.stop()

    with pytest.warns(UserWarning, match="in the handler"), pytest.raises(KeyboardInterrupt):
        train()


class Interrupting:
    """An observer during whose stop the user loses patience."""

    def start(self) -> None:
        """Nothing."""

    def stop(self) -> None:
        """As Ctrl-C does."""
        signal.raise_signal(signal.SIGINT)

    def cleanup(self) -> None:
        """Nothing."""


@pytest.fixture
def interrupts() -> Iterator[None]:
    """Python's own handler, also where the tests were started with SIGINT ignored, as a shell does for background jobs."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.usefixtures("interrupts")
def test_an_interrupted_stop_leaves_nothing_on() -> None:
    handler = signal.getsignal(signal.SIGINT)
    session = profile(execution_trace_observer=Interrupting())
    session.start()
    torch.cos(torch.ones(1))
    with pytest.raises(KeyboardInterrupt):
        session.stop()
    assert not load_recorder().is_recording
    assert len(named(session.trace, "aten::cos")) == 1
    assert signal.getsignal(signal.SIGINT) is handler
    with profile() as again:
        torch.cos(torch.ones(1))
    assert len(named(again.trace, "aten::cos")) == 1


def test_an_observer_that_interrupts_by_itself_leaves_nothing_on() -> None:
    class Raising(Interrupting):
        times = 0

        def stop(self) -> None:
            self.times += 1
            if self.times == 1:
                raise KeyboardInterrupt

    session = profile(execution_trace_observer=Raising())
    session.start()
    with pytest.raises(KeyboardInterrupt):
        session.stop()
    assert not load_recorder().is_recording


def test_several_threads_step_one_session() -> None:
    threads, turns, ready = 4, 10, []
    session = profile(
        schedule=kinetoscope.schedule(wait=0, warmup=1, active=1),
        on_trace_ready=lambda prof: ready.append(len(prof.trace.strings)),
    )
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(turns):
                session.step()
        except BaseException as error:  # noqa: BLE001  (told to the test's own thread)
            failures.append(error)

    with session:
        running = [threading.Thread(target=work) for _ in range(threads)]
        for thread in running:
            thread.start()
        for thread in running:
            thread.join()
    assert failures == []
    assert session.step_num == threads * turns
    assert len(ready) == threads * turns // 2


def test_a_recording_that_another_thread_discards_while_it_is_read_was_discarded(monkeypatch) -> None:
    with profile() as session:
        torch.ones(2)
    recording = session.finished_cycles.last.unread.recording
    read = recording_files.read_recording

    def discarded_meanwhile(path):
        recording.discard()
        return read(path)

    monkeypatch.setattr(recording_files, "read_recording", discarded_meanwhile)
    with pytest.raises(kinetoscope.StateError, match="discarded or removed before it was read"):
        session.key_averages()
    with pytest.raises(kinetoscope.StateError, match="discarded before it was read"):
        session.key_averages()
