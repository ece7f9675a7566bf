import threading

import pytest
import torch

from kinetoscope.integrations.pyg import profiling
from kinetoscope.integrations.pyg.profiling import AllocatedPeak, ResidentPeak
from tests.support.simulated_accelerator import MIB


def test_a_set_that_rose_above_all_before_is_known_exactly():
    sizes, marks = iter([100]), iter([500, 900])
    peak = ResidentPeak(now=lambda: next(sizes, 120), of_life=lambda: next(marks))
    with peak:
        assert peak.bytes == 100
    assert peak.bytes == 900


def test_a_set_that_stayed_below_is_watched():
    seen = threading.Event()

    def now() -> int:
        if threading.current_thread().name == "kinetoscope-resident-set":
            seen.set()
            return 300
        return 100

    peak = ResidentPeak(now=now, of_life=lambda: 500)
    with peak:
        assert seen.wait(60)
    assert peak.bytes == 300


def test_what_is_there_at_the_end_counts():
    sizes = iter([100])
    with ResidentPeak(now=lambda: next(sizes, 200), of_life=lambda: 500) as peak:
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
    monkeypatch.setattr(profiling, "_STATUS", tmp_path / "nothing")
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
