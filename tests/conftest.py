"""What every test gets: no session and no registered cost may leak out of it, and hypothesis runs under a named profile."""

import gc
import os
import shutil
import signal
import sys
import sysconfig
import tempfile
import threading
from collections.abc import Iterable, Iterator
from pathlib import Path

import hypothesis
import pytest

import kinetoscope
from kinetoscope.tables.costs import peaks, registry
from tests.support.effort import STRESS, examples

ROOT = Path(__file__).parents[1]

pytest_plugins = ["pytester"]

# Read when torch is first imported, here and in the programs that tests start. By default, threads of OpenMP that have
# nothing to do spin: with several tests at a time, on the processor that another test needs.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
# torch.compile takes the kinds of vectors that the processor names. It would compile a program for each to try them, seven seconds.
os.environ.setdefault("TORCHINDUCTOR_VEC_ISA_OK", "1")

# Not the user's: a calibration of this machine is a part of every recording.
os.environ.setdefault("KINETOSCOPE_CACHE", str(ROOT / "build" / "test-cache"))

# A shell starts background jobs with interrupts ignored, which the programs of tests would inherit.
if (
    threading.current_thread() is threading.main_thread()
    and signal.getsignal(signal.SIGINT) == signal.SIG_IGN
):
    signal.signal(signal.SIGINT, signal.default_int_handler)

# Sessions that record memory count what a program froze itself. What these tests freeze, see below, is to stay hidden.
_FREEZE_COUNT = gc.get_freeze_count
gc.get_freeze_count = lambda: 0

hypothesis.settings.register_profile("kinetoscope", max_examples=examples(50), deadline=None)
hypothesis.settings.load_profile("kinetoscope")


def pytest_configure(config: pytest.Config) -> None:
    """Refuses to test an installed package that is older than the sources beside it, and gives the run a compiler's cache."""
    # What an earlier version of ours noted of compiled graphs in a cache says nothing of this one. Workers inherit it.
    if not hasattr(config, "workerinput"):
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = folder = tempfile.mkdtemp(prefix="kinetoscope-compiled-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))
    installed = Path(kinetoscope.__file__).parent
    if not installed.is_relative_to(sysconfig.get_path("platlib")):
        return
    sources = ROOT / "src" / "kinetoscope"
    stale = [
        str(path.relative_to(sources))
        for path in sources.rglob("*.py")
        if not (twin := installed / path.relative_to(sources)).exists()
        or twin.read_bytes() != path.read_bytes()
    ]
    if stale:
        raise pytest.UsageError(
            f"the installed kinetoscope differs from src ({', '.join(stale[:3])}): run `make install`"
        )


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collects tests without looking for garbage: next to nothing of what is made and imported then becomes any."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


class LastFirst(pytest.Dir):
    """A folder whose files are imported in the reverse order."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        return reversed(list(super().collect()))


class MiddleFirst(pytest.Dir):
    """A folder whose files are imported from the middle on, and then those before."""

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        inside = list(super().collect())
        middle = len(inside) // 2
        return inside[middle:] + inside[:middle]


def pytest_collect_directory(path: Path, parent: pytest.Collector) -> pytest.Dir | None:
    """Lets one worker collect from the beginning, one from the end and one from the middle, until it comes to what another has compiled.

    pytest takes half a minute to compile all files for the first time, and each worker would compile all of them.
    """
    worker: str = getattr(parent.config, "workerinput", {}).get("workerid", "gw0")
    kind = (None, LastFirst, MiddleFirst)[int(worker.removeprefix("gw")) % 3]
    return kind and kind.from_parent(parent, path=path)


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves to `make stress` what is marked so, and puts first what runs long.

    No worker is then left with that when the others have nothing more to do. The rest is in the order of files, whichever end a worker began at.
    """
    if not STRESS:
        config.hook.pytest_deselected(items=[item for item in items if item.get_closest_marker("stress")])
        items[:] = [item for item in items if item.get_closest_marker("stress") is None]
    items.sort(key=lambda item: (item.get_closest_marker("slow") is None, item.path.parts))


@pytest.fixture(autouse=True, scope="module")
def nothing_older() -> None:
    """Takes what was imported, and what earlier tests left, out of the garbage collector's sight for good.

    Otherwise each collection and each session that records memory looks at a million objects, which takes over a second.
    """
    gc.collect()
    gc.freeze()


@pytest.fixture
def frozen_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lets sessions that record memory look at what is frozen."""
    monkeypatch.setattr(gc, "get_freeze_count", _FREEZE_COUNT)


@pytest.fixture(autouse=True)
def no_session_leaks() -> Iterator[None]:
    """Fails the test that leaves a recording running, instead of the innocent one after it."""
    assert running_session() is None, "a session was running before the test began"
    yield
    assert running_session() is None, "the test left a session running"


@pytest.fixture(autouse=True)
def no_registered_cost_stays() -> Iterator[None]:
    """Takes back the formulas and peaks that a test, or the page of documentation it runs, registers."""
    peaks_before = dict(peaks._registered)
    yield
    peaks._registered.clear()
    peaks._registered.update(peaks_before)
    for name in [*registry._exact, *registry._prefixes]:
        kinetoscope.unregister_flops(name)


def running_session() -> object:
    """Returns the session that records now, if the part of the package that could record was ever loaded."""
    sessions = sys.modules.get("kinetoscope.collect.process.active_sessions")
    return sessions.ACTIVE_SESSIONS.current() if sessions is not None else None
