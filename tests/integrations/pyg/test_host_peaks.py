import threading

import pytest
import torch

from kinetoscope.integrations.pyg import profiling
from kinetoscope.integrations.pyg.profiling import AllocatedPeak, ResidentPeak
from tests.support.simulated_accelerator import MIB


@pytest.fixture
def process(monkeypatch):
    """Replaces what the system says of this process: its resident set, and the largest it ever had."""

    def become(now, of_life=lambda: 500):
        monkeypatch.setattr(profiling, "resident_bytes", now)
        monkeypatch.setattr(profiling, "resident_peak_of_life", of_life)

    return become


def test_a_set_that_rose_above_all_before_is_known_exactly(process):
    sizes, marks = iter([100]), iter([500, 900])
    process(lambda: next(sizes, 120), lambda: next(marks))
    with ResidentPeak() as peak:
        assert peak.bytes == 100
    assert peak.bytes == 900


def test_a_set_that_stayed_below_is_watched(process):
    seen = threading.Event()

    def now() -> int:
        if threading.current_thread().name == "kinetoscope-resident-set":
            seen.set()
            return 300
        return 100

    process(now)
    with ResidentPeak() as peak:
        assert seen.wait(60)
    assert peak.bytes == 300


def test_what_is_there_at_the_end_counts(process):
    sizes = iter([100])
    process(lambda: next(sizes, 200))
    with ResidentPeak() as peak:
        pass
    assert peak.bytes >= 200


def test_the_watching_thread_ends_with_the_block():
    with pytest.raises(KeyError), ResidentPeak():
        raise KeyError
    assert not [thread for thread in threading.enumerate() if thread.name == "kinetoscope-resident-set"]


def test_the_real_process_has_a_resident_set_below_the_most_it_ever_had():
    with ResidentPeak() as peak:
        block = bytearray(64 * MIB)
    assert len(block) < peak.bytes
    assert 10 * MIB < profiling.resident_bytes() <= profiling.resident_peak_of_life() + MIB


def test_where_the_system_does_not_tell_the_most_of_the_process_is_taken(monkeypatch, tmp_path):
    monkeypatch.setattr(profiling, "_STATM", tmp_path / "nothing")
    assert profiling.resident_bytes() == profiling.resident_peak_of_life() > 10 * MIB


def test_what_was_freed_in_the_block_counts_to_its_peak_only():
    with AllocatedPeak() as one_by_one:
        kept = torch.zeros(4 * MIB // 4)
        del kept
        torch.zeros(2 * MIB // 4)
    with AllocatedPeak() as together:
        both = [torch.zeros(4 * MIB // 4), torch.zeros(2 * MIB // 4)]
        both.clear()
    # What other tests left in this process counts in both.
    assert one_by_one.bytes >= 4 * MIB
    assert together.bytes - one_by_one.bytes == 2 * MIB


def test_a_block_without_allocations_held_nothing():
    with AllocatedPeak() as peak:
        pass
    assert peak.bytes == 0
