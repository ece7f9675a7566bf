"""Accelerate's own Accelerator with our context and our handler."""

import copy
import importlib
import json
import pickle
import sys

import pytest

pytest.importorskip("torch", reason="Accelerate trains with PyTorch")

import torch

import kinetoscope
from tests.support.on_demand import OnDemand
from tests.support.trained import Net, loader, step_numbers, steps_of_ranges

accelerate = OnDemand("accelerate", "this trainer is not installed")
ours = OnDemand("kinetoscope.integrations.accelerate", "this trainer is not installed", needs="accelerate")
CPU = [kinetoscope.ProfilerActivity.CPU]
SCHEDULE = {"wait": 1, "warmup": 1, "active": 2, "repeat": 1}


class Training:
    """What an Accelerate user writes: prepared parts and a plain loop."""

    def __init__(self, batches=6, accumulate=1, **options):
        self.accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=accumulate, **options)
        net = Net()
        self.net, self.optimizer, self.loader = self.accelerator.prepare(
            net, torch.optim.SGD(net.parameters(), lr=0.01), loader(batches)
        )

    def run(self, session=None, fails_at=None):
        for number, batch in enumerate(self.loader):
            with self.accelerator.accumulate(self.net):
                if number == fails_at:
                    raise RuntimeError("bad batch")
                self.accelerator.backward(self.net(**batch)["loss"])
                self.optimizer.step()
                self.optimizer.zero_grad()
            if session is not None:
                session.step()


# ------------------------------------------------------------------------------------------------------ the context


def test_the_context_counts_the_steps_of_the_optimizer(tmp_path):
    training = Training()
    with ours.profiled(training.accelerator, tmp_path, activities=CPU) as profiler:
        training.run()
    assert step_numbers(profiler.trace) == [2, 3, 4]
    assert profiler.saved_traces == [tmp_path / "train-steps-2-4.ktrace"]
    with kinetoscope.open(profiler.saved_traces[0]) as trace:
        assert trace.info["trainer"] == f"accelerate {accelerate.__version__}"
        assert steps_of_ranges(trace)["Optimizer.step#SGD.step"] == [2, 3, 4]


def test_a_step_has_all_the_batches_that_are_accumulated(tmp_path):
    training = Training(batches=10, accumulate=2)
    with ours.profiled(training.accelerator, tmp_path, activities=CPU) as profiler:
        training.run()
    assert step_numbers(profiler.trace) == [2, 3, 4]
    waits = next(steps for name, steps in steps_of_ranges(profiler.trace).items() if "DataLoader" in name)
    assert waits == [2, 2, 3, 3, 4, 4]


def test_the_whole_context_can_be_recorded_and_its_steps_are_found(tmp_path):
    training = Training(project_dir=str(tmp_path))
    with ours.profiled(training.accelerator, whole_run=True, activities=CPU) as profiler:
        training.run()
    assert step_numbers(profiler.trace) == [0, 1, 2, 3, 4, 5]
    assert profiler.saved_traces == [tmp_path / "kinetoscope" / "train.ktrace"]


def test_of_two_optimizers_the_first_one_counts(tmp_path):
    training = Training()
    other = training.accelerator.prepare(torch.optim.SGD(Net().parameters(), lr=0.1))
    with ours.profiled(training.accelerator, tmp_path, activities=CPU) as profiler:
        for batch in training.loader:
            training.accelerator.backward(training.net(**batch)["loss"])
            training.optimizer.step()
            other.step()
    assert step_numbers(profiler.trace) == [2, 3, 4]


def test_an_exception_in_the_context_leaves_a_finished_trace_and_no_hook(tmp_path):
    training = Training()
    with (
        pytest.raises(RuntimeError, match="bad batch"),
        ours.profiled(training.accelerator, tmp_path, activities=CPU) as profiler,
    ):
        training.run(fails_at=4)
    with kinetoscope.open(profiler.saved_traces[0]) as trace:
        assert step_numbers(trace) == [2, 3, 4]
        assert trace.info["ended_by"] == "RuntimeError: bad batch"
    training.run()
    assert len(profiler.saved_traces) == 1


def test_what_is_no_accelerator_is_refused():
    with pytest.raises(kinetoscope.ArgumentError, match="need an Accelerator"):
        ours.profiled("accelerator")


# ------------------------------------------------------------------------------------------------------ the handler


@pytest.mark.parametrize("given", ["to-the-accelerator", "to-profile"])
def test_the_handler_stands_in_for_that_of_accelerate(given, tmp_path):
    seen = []
    handler = ours.KinetoscopeKwargs(
        ["cpu"], SCHEDULE, seen.append, record_shapes=True, output_trace_dir=str(tmp_path / "chrome"),
        folder=tmp_path / "ours",
    )  # fmt: skip
    training = Training(**{"kwargs_handlers": [handler]} if given == "to-the-accelerator" else {})
    with training.accelerator.profile(None if given == "to-the-accelerator" else handler) as session:
        training.run(session)
    assert isinstance(session, kinetoscope.profile)
    assert seen == [session]
    assert step_numbers(session.trace) == [2, 3]
    written = json.loads((tmp_path / "chrome" / "profile_0.json").read_text())
    assert {"ProfilerStep#2", "ProfilerStep#3"} <= {event.get("name") for event in written["traceEvents"]}
    with kinetoscope.open(tmp_path / "ours" / "profile-step-4.ktrace") as trace:
        assert step_numbers(trace) == [2, 3]
        assert trace.info["trainer"] == f"accelerate {accelerate.__version__}"


def test_an_exception_in_the_context_of_accelerate_leaves_a_finished_trace(tmp_path):
    training = Training(kwargs_handlers=[ours.KinetoscopeKwargs(["cpu"], folder=tmp_path)])
    with pytest.raises(RuntimeError, match="bad batch"), training.accelerator.profile() as session:
        training.run(fails_at=3)
    with kinetoscope.open(tmp_path / "profile-step-0.ktrace") as trace:
        assert len(trace.columns("spans")) == len(session.trace.columns("spans")) > 100
        assert step_numbers(trace) == [0, 1, 2]


def test_a_schedule_that_nobody_steps_through_is_two_warnings_and_no_error(tmp_path):
    training = Training(batches=1)
    handler = ours.KinetoscopeKwargs(["cpu"], SCHEDULE, output_trace_dir=str(tmp_path))
    with pytest.warns(UserWarning, match="the schedule needs") as told, training.accelerator.profile(handler):
        training.run()
    said = [str(each.message) for each in told]
    assert "the schedule needs 2 calls to step() before it records; step() was called 0 times" in said[0]
    assert said[1].startswith("no Chrome trace was written: there is no trace yet")


def test_the_handler_is_found_by_its_class_and_copied_whole():
    handler = ours.KinetoscopeKwargs(["cpu"], SCHEDULE)
    assert isinstance(handler, accelerate.utils.ProfileKwargs)
    assert isinstance(handler, ours.KinetoscopeKwargs)
    for other in (copy.copy(handler), pickle.loads(pickle.dumps(handler))):
        assert type(other) is ours.KinetoscopeKwargs
        assert other.build().schedule == handler.build().schedule


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"activities": ["cpuu"]}, "activities contains 'cpuu'"),
        ({"schedule_option": {"wait": 1, "active": 1}}, "missing .* argument: 'warmup'"),
        (
            {"schedule_option": {**SCHEDULE, "cool_down": 1}},
            "unexpected keyword argument 'cool_down'",
        ),
        ({"schedule_option": {**SCHEDULE, "active": 0}}, "active=0 is not valid"),
        ({"schedule_option": 5}, "schedule_option=5 is not valid"),
        ({"output_trace_dir": __file__ + "/x"}, "is not writable"),
        ({"folder": __file__}, "is a file"),
        ({"shapes": True}, "no option 'shapes'"),
    ],
    ids=[
        "activity",
        "incomplete",
        "unknown-key",
        "no-steps",
        "no-dictionary",
        "unwritable",
        "file",
        "option",
    ],
)
def test_wrong_arguments_are_refused_when_the_handler_is_made(options, message):
    with pytest.raises(kinetoscope.ArgumentError, match=message):
        ours.KinetoscopeKwargs(**options)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has CUDA")
def test_cuda_without_cuda_is_refused_when_the_handler_is_made():
    with pytest.raises(kinetoscope.ArgumentError, match="activities contains CUDA"):
        ours.KinetoscopeKwargs(["cpu", "cuda"])


def test_without_accelerate_the_module_says_what_to_install(monkeypatch):
    monkeypatch.delitem(sys.modules, "kinetoscope.integrations.accelerate", raising=False)
    monkeypatch.setitem(sys.modules, "accelerate", None)
    with pytest.raises(kinetoscope.MissingDependencyError, match=r'pip install "kinetoscope\[accelerate\]"'):
        importlib.import_module("kinetoscope.integrations.accelerate")
