"""How processes end, by children that are forked and end in known ways."""

import os
import signal

import pytest

from kinetoscope.flight.deaths import SUFFIX, Death, DeathWatch, death_of, noted_death
from kinetoscope.flight.last import last_event
from kinetoscope.flight.unclean_exits import end_text
from tests.flight.test_jobs import write_log

ENDS = [
    (lambda: os._exit(5), 5),
    (lambda: os.kill(os.getpid(), signal.SIGKILL), -9),
    (lambda: os._exit(0), 0),
]


def zombie(end):
    """A child that has ended, and that nobody has waited for yet."""
    child = os.fork()
    if child == 0:
        end()
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    return child


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize(("end", "status"), ENDS)
def test_a_process_that_nobody_has_waited_for(end, status):
    child = zombie(end)
    assert death_of(os.getpid()) is None
    assert death_of(child).status == status
    descriptor = os.pidfd_open(child)
    os.waitpid(child, 0)
    assert death_of(child) is None
    # Since Linux 6.15.
    after = death_of(child, descriptor)
    os.close(descriptor)
    assert after is None or (after.process, after.status) == (child, status)


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
def test_the_other_ranks_note_it(tmp_path):
    attempt = tmp_path / "job" / "0"
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reads, 1)
        os._exit(7)
    write_log(attempt, 0)
    write_log(attempt, 1, process=child, step=12)
    (attempt / "rank1.recording").write_bytes(b"ring")
    watch = DeathWatch(attempt, kills=lambda: 0)
    watch.look({1: child})
    assert not list(attempt.glob(f"*{SUFFIX}"))
    os.write(writes, b".")
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    watch.look({})
    watch.close()
    os.waitpid(child, 0)
    os.close(reads)
    os.close(writes)
    path = attempt / f"rank1{SUFFIX}"
    assert (noted_death(path, child).status, noted_death(path, child + 1)) == (7, None)
    event = last_event(None, tmp_path)
    assert event.reason == "gone"
    assert event.sentence.startswith(
        "rank 1 ended without a word in step 12, with exit code 7; last seen at "
    )


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")
@pytest.mark.parametrize("kills", [0, 1])
def test_a_kill_is_that_of_the_system_if_its_count_has_risen(tmp_path, kills):
    counts = iter([3, 3 + kills])
    watch = DeathWatch(tmp_path, kills=lambda: next(counts))
    reads, writes = os.pipe()
    child = os.fork()
    if child == 0:
        os.read(reads, 1)
        os.kill(os.getpid(), signal.SIGKILL)
    watch.look({1: child})
    os.write(writes, b".")
    os.waitid(os.P_PID, child, os.WEXITED | os.WNOWAIT)
    watch.look({})
    os.waitpid(child, 0)
    os.close(reads)
    os.close(writes)
    assert noted_death(tmp_path / f"rank1{SUFFIX}", None).for_memory is bool(kills)


def test_a_rank_that_never_wrote_is_dead_by_its_note_alone(tmp_path):
    attempt = write_log(tmp_path / "job" / "0", 0)
    (attempt / f"rank1{SUFFIX}").write_text('{"process": 4711, "status": -11, "time_s": 1800000000.0}')
    event = last_event(None, tmp_path)
    assert event.sentence.startswith("rank 1 was killed before it was left on by SIGSEGV; last seen at ")
    assert event.ranks[0].process == 4711


def test_words():
    assert end_text(7, None, Death(1, -9, 0.0)) == "was killed before it was left on by SIGKILL"
    assert Death(1, -9, 0.0, for_memory=True).text == "was killed {} by the system, for lack of memory"
