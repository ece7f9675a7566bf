"""The measured cost of a record."""

import pytest

from kinetoscope.cli._overhead import Overhead, measure_overhead
from kinetoscope.cli._recording import Wanted

torch = pytest.importorskip("torch", reason="a training step is timed")


def test_a_record_costs_something_and_not_the_world(tmp_path):
    measured = measure_overhead(Wanted(prefix=tmp_path / "x"))
    # A busy machine can make the difference vanish, never make a record cost a tenth of a millisecond.
    assert 0 <= measured.record_ns < 100_000
    assert list(tmp_path.iterdir()) == []


def test_the_program_finds_torch_as_it_left_it(tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert measure_overhead(Wanted(prefix=tmp_path / "x")) is not None
            assert not torch.is_grad_enabled()
        with torch.inference_mode():
            assert measure_overhead(Wanted(prefix=tmp_path / "x", shapes=True, memory=True)) is not None
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)


def test_the_cost_of_many_is_the_cost_of_one_times_many():
    assert Overhead(200.0).total_ns(1_000_000) == pytest.approx(2e8)
