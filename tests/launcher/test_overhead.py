"""The measured cost of a record, and what it comes to in a run."""

import gc
import threading
import time
from itertools import cycle

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.collect.request.options import RecordingOptions
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.overhead import (
    DISTURBED_ERROR,
    FEWEST_ROUNDS,
    GROUPS,
    LITTLE,
    MODEL_ERROR,
    Overhead,
    RecordCost,
    Records,
    TimedProgram,
    measure_overhead,
    measured,
    records_of,
    spacing_of,
)
from kinetoscope.launcher.recording import HelperTime, helper_time
from tests.support.trace_builder import TraceBuilder

torch = pytest.importorskip("torch", reason="a training step is timed")


def test_records_of_several_spacings_are_timed_and_leave_no_file(tmp_path):
    found = measure_overhead(LaunchOptions(prefix=tmp_path / "x"))
    # How much a record costs is up to the machine; a busy one can make the difference vanish.
    assert found.record_ns(1000) >= 0
    spacings = [cost.spacing_ns for cost in found.costs]
    assert spacings == sorted(spacings)
    assert spacings[0] < spacings[-1]
    assert list(tmp_path.iterdir()) == []


def test_the_program_finds_python_and_torch_as_it_left_them(tmp_path):
    threads, state = torch.get_num_threads(), torch.get_rng_state()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.no_grad():
            assert measure_overhead(LaunchOptions(prefix=tmp_path / "x")) is not None
            assert not torch.is_grad_enabled()
        with torch.inference_mode():
            assert (
                measure_overhead(
                    LaunchOptions(
                        prefix=tmp_path / "x",
                        recording=RecordingOptions(record_shapes=True, profile_memory=True),
                    )
                )
                is not None
            )
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.get_num_threads() == threads
    assert torch.equal(torch.get_rng_state(), state)
    assert gc.isenabled()


class Recorder:
    """A session in whose trace every step has as many spans; a step takes longer while it is on."""

    def __init__(self, steps: int, spans: int, gap_ns: int) -> None:
        builder = TraceBuilder()
        for place in range(steps * spans):
            builder.span("aten::add", place * gap_ns, 10)
        self.trace = builder.build()
        self.on = False

    def __enter__(self) -> None:
        self.on = True

    def __exit__(self, *_: object) -> None:
        self.on = False


class Clock:
    """A clock that each step moves on; every third slice of steps is disturbed by other programs."""

    def __init__(self, recorder: Recorder, bare_ns: int, added_ns: int) -> None:
        self.now_ns, self._recorder, self._bare_ns, self._added_ns = 0, recorder, bare_ns, added_ns
        self._disturbed = cycle((0, 0, 5 * bare_ns))

    def __call__(self) -> int:
        return self.now_ns

    def step(self) -> None:
        self.now_ns += self._bare_ns + next(self._disturbed) + (self._added_ns if self._recorder.on else 0)


def test_cost_is_what_the_undisturbed_steps_took_longer():
    recorder = Recorder(5, 10, 700)
    clock = Clock(recorder, 100_000, 2_000)
    found = measured([TimedProgram([clock.step], 4, clock), TimedProgram([clock.step], 4, clock)], recorder)
    assert found.costs == (RecordCost(700, 200, 200, 200),) * 2
    assert not found.is_rough


@pytest.mark.parametrize(("added_ns", "rounds"), [(200, GROUPS), (2_000_000, FEWEST_ROUNDS)])
def test_a_cost_that_is_certainly_little_is_measured_no_longer(added_ns, rounds, monkeypatch):
    monkeypatch.setattr("kinetoscope.launcher.overhead.ENOUGH_S", 0.0)
    recorder = Recorder(5, 10, 700)
    clock = Clock(recorder, 100_000, added_ns)
    programs = [TimedProgram([clock.step], 4, clock), TimedProgram([clock.step], 4, clock)]
    records = Records("", 1_000, 10_000_000, True, 10_000.0, 10_000_000)
    overhead = measured(programs, recorder, records)
    assert [len(program._recorded_ns) for program in programs] == [rounds] * 2
    assert (overhead.share(records)[2] < LITTLE) == (rounds == GROUPS)


def test_a_recording_without_records_has_no_cost():
    recorder = Recorder(0, 0, 1)
    clock = Clock(recorder, 100_000, 2_000)
    assert measured([TimedProgram([clock.step], 4, clock)] * 2, recorder) is None


@pytest.mark.parametrize(
    ("spacing_ns", "record_ns"), [(1, 50), (250, 50), (500, 100), (1000, 200), (2000, 300), (9000, 300)]
)
def test_a_run_lies_between_the_two_that_were_measured(spacing_ns, record_ns):
    overhead = Overhead((RecordCost(500, 100, 90, 110), RecordCost(2000, 300, 280, 350)))
    assert overhead.record_ns(spacing_ns) == pytest.approx(record_ns)


def test_closer_than_the_close_one_a_record_is_cheaper_but_not_free():
    overhead = Overhead((RecordCost(500, 100, 100, 100), RecordCost(2000, 200, 200, 200)))
    assert overhead.record_ns(354) == pytest.approx(75, rel=0.01)
    assert overhead.record_ns(1) == 50


def test_noise_is_not_followed_beyond_what_was_measured():
    overhead = Overhead((RecordCost(500, 100, 90, 110), RecordCost(2000, 60, 0, 300)))
    assert overhead.record_ns(1) == overhead.record_ns(500) == 100
    share, low, high = overhead.share(records(1000, 1, 1_000_000))
    assert share == pytest.approx(0.1)
    assert low <= share <= high


def records(count, spacing_ns, whole_ns, ran_ns=None):
    """What was recorded of a process."""
    return Records("", count, whole_ns, True, spacing_ns, whole_ns if ran_ns is None else ran_ns)


costs = st.floats(-1e6, 1e6)


@given(
    st.lists(costs, min_size=3, max_size=3).map(sorted),
    st.lists(costs, min_size=3, max_size=3).map(sorted),
    st.floats(1, 2e4),
    st.floats(1, 2e4),
    st.floats(0, 2e4),
    st.integers(0, 10**9),
    st.integers(0, 10**12),
)
def test_a_share_is_never_below_nothing_or_above_all(
    one, two, close_ns, apart_ns, spacing_ns, count, whole_ns
):
    middle, other = (
        RecordCost(at, low_high[1], low_high[0], low_high[2])
        for at, low_high in ((close_ns, one), (apart_ns, two))
    )
    for is_disturbed in (False, True):
        overhead = Overhead((middle, other), is_disturbed)
        share, low, high = overhead.share(records(count, spacing_ns, whole_ns))
        assert 0 <= low <= share <= high <= 1


def test_the_bounds_are_those_of_the_measurement_and_of_the_model():
    overhead = Overhead((RecordCost(500, 100, 90, 130), RecordCost(2000, 100, 90, 130)))
    share, low, high = overhead.share(records(1000, 700, 1_000_000))
    assert (share, low, high) == pytest.approx((0.1, 0.09 * (1 - MODEL_ERROR), 0.13 * (1 + MODEL_ERROR)))


def test_of_a_step_that_others_held_up_recording_took_a_part_of_what_it_ran():
    """20 ms by the clock, 1 ms with a processor: 1000 records of 100 ns are a tenth of that, and not a two-hundredth."""
    overhead = Overhead((RecordCost(500, 100, 90, 130), RecordCost(2000, 300, 280, 350)))
    share, low, high = overhead.share(records(1000, 500, 20_000_000, ran_ns=1_000_000))
    assert share == pytest.approx(0.1)
    # A record may have found its caches as after any other work.
    assert (low, high) == pytest.approx((0.09 * (1 - DISTURBED_ERROR), 0.35 * (1 + DISTURBED_ERROR)))


def test_the_time_of_the_recorders_own_threads_is_read_where_the_system_tells_it():
    before = helper_time()
    named = threading.Event()
    ended = threading.Event()

    def work() -> None:
        begin_ns = time.thread_time_ns()
        while time.thread_time_ns() - begin_ns < 20_000_000:
            pass
        named.set()
        ended.wait()

    # As the recorder names its threads.
    thread = threading.Thread(target=work, name="kinetoscope-test")
    thread.start()
    named.wait()
    used = helper_time().since(before)
    ended.set()
    thread.join()
    assert used.helpers_ns > 10_000_000
    assert used.process_ns >= used.helpers_ns / 2
    assert HelperTime(1, 1).since(HelperTime(2, 2)) == HelperTime(0, 0)


def test_records_are_counted_against_the_time_with_a_processor():
    builder = TraceBuilder()
    stack = builder.stack(("train.py", 3, "train"))
    for step in range(4):
        at = step * 10_000_000
        builder.step(step, at, 10_000_000)
        for place in range(5):
            builder.span("aten::add", at + place * 2_000_000, 1_000)
        builder.sample(at + 10_000_000, stack, period_ns=10_000_000, waited_ns=9_000_000)
    (found,) = records_of(builder.build())
    assert (found.count, found.whole_ns, found.ran_ns, found.in_steps) == (20, 40_000_000, 4_000_000, True)
    assert found.waits_much
    # Five records in a millisecond: most of what lies between two of them is a wait.
    assert found.spacing_ns == 200_000


def test_a_recording_without_samples_is_taken_by_the_clock():
    builder = TraceBuilder().span("aten::add", 0, 400).span("aten::add", 600, 400)
    (found,) = records_of(builder.build())
    assert (found.count, found.whole_ns, found.ran_ns, found.waits_much) == (2, 1000, 1000, False)


def test_spacing_is_by_thread_and_long_waits_count_little():
    builder = TraceBuilder()
    for start_ns in (0, 1000, 2000, 1_000_000_000):
        builder.span("aten::add", start_ns, 10)
    trace = builder.build()
    assert spacing_of(trace) == pytest.approx((1000 + 1000 + 1_000_000) / 3)
    assert spacing_of(trace, trace.column("spans", "start_ns") < 3000) == 1000
