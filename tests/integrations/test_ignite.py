"""Ignite's own Engine with our profiler attached."""

import importlib
import sys

import pytest

pytest.importorskip("torch", reason="Ignite trains with PyTorch")

import torch

import kinetoscope
from tests.support.on_demand import OnDemand
from tests.support.trained import Net, Regression, loader, step_numbers, steps_of_ranges

ignite = OnDemand("ignite.engine", "this trainer is not installed")
ours = OnDemand("kinetoscope.integrations.ignite", "this trainer is not installed", needs="ignite")
CPU = [kinetoscope.ProfilerActivity.CPU]


def engine(fails_at=None):
    net = Net()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def train(engine, batch):
        if engine.state.iteration == fails_at:
            raise RuntimeError("bad batch")
        loss = net(**batch)["loss"]
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        return loss.item()

    return ignite.Engine(train)


def test_the_steps_are_the_iterations_as_the_engine_counts_them(tmp_path):
    trainer = engine()
    profiler = ours.attach(trainer, tmp_path, activities=CPU)
    trainer.run(loader(4), max_epochs=2)
    assert step_numbers(profiler.trace) == [3, 4, 5]
    assert profiler.saved_traces == [tmp_path / "train-steps-3-5.ktrace"]
    with kinetoscope.open(profiler.saved_traces[0]) as trace:
        assert trace.info["trainer"].startswith("ignite ")
        assert steps_of_ranges(trace)["Optimizer.step#SGD.step"] == [3, 4, 5]


def test_waits_iterations_and_epochs_are_spans_and_a_validation_belongs_to_no_step(tmp_path):
    trainer, validator = engine(), ignite.Engine(lambda engine, batch: torch.ones(2).sum())
    profiler = ours.attach(trainer, tmp_path, whole_run=True, activities=CPU)

    @trainer.on(ignite.Events.EPOCH_COMPLETED)
    def validate():
        with torch.profiler.record_function("validation"):
            validator.run(loader(2))

    trainer.run(loader(3), max_epochs=2)
    spans = steps_of_ranges(profiler.trace)
    each = [1, 2, 3, 4, 5, 6]
    assert step_numbers(profiler.trace) == spans["[Engine]get_batch"] == spans["[Engine]iteration"] == each
    assert spans["[Engine]epoch"] == spans["validation"] == [None, None]


def test_data_of_unknown_length_and_none_at_all_have_no_empty_steps(tmp_path):
    class Endless(torch.utils.data.IterableDataset):
        def __iter__(self):
            return iter(Regression(6))

    trainer = engine()
    profiler = ours.attach(trainer, tmp_path, whole_run=True, activities=CPU)
    trainer.run(torch.utils.data.DataLoader(Endless(), batch_size=2), max_epochs=2)
    assert step_numbers(profiler.trace) == [1, 2, 3, 4, 5, 6]
    counting = ignite.Engine(lambda engine, batch: torch.ones(2).sum())
    profiler = ours.attach(counting, tmp_path, whole_run=True, overwrite=True, name="other", activities=CPU)
    counting.run(max_epochs=1, epoch_length=2)
    assert step_numbers(profiler.trace) == [1, 2]
    assert profiler.saved_traces == [tmp_path / "other-steps-1-2.ktrace"]


@pytest.mark.parametrize("handled", [False, True], ids=["raised", "handled"])
def test_an_engine_that_fails_leaves_a_finished_trace_and_fails_as_it_did_before(handled, tmp_path):
    trainer = engine(fails_at=4)
    profiler = ours.attach(trainer, tmp_path, activities=CPU)
    seen = []
    if handled:
        trainer.add_event_handler(ignite.Events.EXCEPTION_RAISED, lambda _, error: seen.append(error))
        trainer.run(loader(4), max_epochs=1)
        assert [str(error) for error in seen] == ["bad batch"]
    else:
        with pytest.raises(RuntimeError, match="bad batch"):
            trainer.run(loader(4), max_epochs=2)
    with kinetoscope.open(profiler.saved_traces[0]) as trace:
        assert step_numbers(trace) == ([2, 3, 4] if handled else [3, 4])  # a shorter run, a shorter schedule
        assert trace.info.get("ended_by") == (None if handled else "RuntimeError: bad batch")


@pytest.mark.parametrize("call", ["terminate", "terminate_epoch", "interrupt"])
def test_an_engine_that_is_stopped_early_leaves_a_finished_trace(call, tmp_path):
    trainer = engine()
    profiler = ours.attach(trainer, tmp_path, schedule=kinetoscope.schedule(wait=1, warmup=1, active=9), activities=CPU)  # fmt: skip
    trainer.add_event_handler(ignite.Events.ITERATION_COMPLETED(once=4), getattr(trainer, call))
    trainer.run(loader(6), max_epochs=2)
    numbers = {"terminate": [3, 4], "terminate_epoch": [3, 4, 5, 6, 7, 8, 9, 10], "interrupt": [3, 4]}
    assert step_numbers(profiler.trace) == numbers[call]
    if call == "interrupt":
        trainer.run(loader(6), max_epochs=2)
        assert step_numbers(profiler.trace) == [7, 8, 9, 10, 11, 12]
        assert len(profiler.saved_traces) == 2


def test_what_is_wrong_is_said_before_the_first_iteration(tmp_path):
    trained = []
    trainer = ignite.Engine(lambda engine, batch: trained.append(batch))
    with pytest.raises(kinetoscope.ArgumentError, match="need an Ignite Engine"):
        ours.attach(trained, tmp_path)
    with pytest.raises(kinetoscope.ArgumentError, match="no option 'ring_byte'.*did you mean 'ring_bytes'"):
        ours.attach(trainer, tmp_path, ring_byte=1)
    with pytest.raises(kinetoscope.ArgumentError, match="name='a/b' is not valid"):
        ours.attach(trainer, tmp_path, name="a/b")
    ours.attach(trainer, tmp_path, schedule=kinetoscope.schedule(wait=10, warmup=1, active=1), activities=CPU)
    with pytest.raises(kinetoscope.StateError, match="a Kinetoscope profiler is already attached"):
        ours.attach(trainer, tmp_path)
    with pytest.raises(kinetoscope.ArgumentError, match="skips 11 steps .* has only 8"):
        trainer.run(loader(4), max_epochs=2)
    (tmp_path / "train.ktrace").write_bytes(b"")
    trainer = ignite.Engine(lambda engine, batch: trained.append(batch))
    ours.attach(trainer, tmp_path, activities=CPU)
    with pytest.raises(kinetoscope.ArgumentError, match="contains 1 trace of an earlier run"):
        trainer.run(loader(4), max_epochs=2)
    assert trained == []


def test_without_ignite_the_module_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "kinetoscope.integrations.ignite", raising=False)
    monkeypatch.setitem(sys.modules, "ignite", None)
    with pytest.raises(kinetoscope.MissingDependencyError, match="pip install pytorch-ignite"):
        importlib.import_module("kinetoscope.integrations.ignite")
