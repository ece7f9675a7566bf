"""The overhead of profiling a training run with Lightning, Transformers and Accelerate: our integration against torch.profiler's.

All runs are the same: a tiny transformer, the same seed, the same schedule, with all steps but the first two recorded. Both
integrations and the trainer alone take turns, in a new random order each round. Two overheads are measured: of a recorded
step, from one forward to the next, and of the whole training call, which includes stopping, writing the trace, and printing
the table of operators, as each integration does it. For Lightning also that of one hook, while recording and between
recordings. Transformers has no integration for torch.profiler, so the callback in its documentation, which calls `step()`, is
used.
"""

import contextlib
import gc
import io
import logging
import random
import shutil
import tempfile
import time
import warnings
from argparse import Namespace
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.profiler import ProfilerActivity

import kinetoscope
from benchmarks.harness import (
    BASELINE,
    NULL_CONTROL,
    Result,
    Times,
    interleave,
    ratio_result,
    report_added,
    run,
)
from benchmarks.workloads import TinyLayer

with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    import accelerate
    import lightning
    import transformers
    from accelerate.utils import ProfileKwargs
    from lightning.pytorch.profilers import PyTorchProfiler

    from kinetoscope.integrations.accelerate import KinetoscopeKwargs
    from kinetoscope.integrations.lightning import KinetoscopeProfiler
    from kinetoscope.integrations.transformers import KinetoscopeCallback

OURS, THEIRS = "kinetoscope", "torch.profiler"
CPU = [ProfilerActivity.CPU]
UNRECORDED = 2

# Trains once, in a folder, with no profiler (None), ours or theirs.
Train = Callable[[str | None, Path, int], object]

# The starts of each forward of the current run: wall and thread time in nanoseconds.
_forwards: list[tuple[int, int]] = []


class Model(nn.Module):
    """A model that predicts the next of 64 tokens, and stores the times of its forwards."""

    def __init__(self, width: int = 32, layers: int = 2) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(
            nn.Embedding(64, width), *(TinyLayer(width, 4) for _ in range(layers)), nn.Linear(width, 64)
        )

    def forward(self, tokens: Tensor, labels: Tensor) -> dict[str, Tensor]:
        """Return the loss."""
        _forwards.append((time.perf_counter_ns(), time.thread_time_ns()))
        return {"loss": nn.functional.cross_entropy(self.layers(tokens).flatten(0, 1), labels.flatten())}


def batches(steps: int) -> list[dict[str, Tensor]]:
    """Return the data of a run, one sequence per step."""
    generator = torch.Generator().manual_seed(1)
    rows = torch.randint(64, (steps, 9), generator=generator)
    return [{"tokens": row[:-1], "labels": row[1:]} for row in rows]


def recorded(steps: int) -> dict[str, int]:
    """Return the schedule of every run, for either profiler."""
    return {"wait": 1, "warmup": 1, "active": steps - UNRECORDED, "repeat": 1}


# ---------------------------------------------------------------------------------------------------------- the trainers


class LightningModel(lightning.LightningModule):
    """The same model for Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.model = Model()

    def training_step(self, batch: dict[str, Tensor], _: int) -> Tensor:
        """Return the loss."""
        return self.model(**batch)["loss"]

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Return the same optimizer as the other trainers."""
        return torch.optim.AdamW(self.parameters())


def with_lightning(who: str | None, folder: Path, steps: int) -> None:
    """Train with Lightning: its PyTorchProfiler and ours both write a Chrome trace and print a table."""
    profiler: Any = None
    if who == OURS:
        profiler = KinetoscopeProfiler(
            folder, "table", schedule=kinetoscope.schedule(**recorded(steps)), activities=CPU
        )
    elif who == THEIRS:
        schedule = torch.profiler.schedule(**recorded(steps))
        profiler = PyTorchProfiler(folder, "table", schedule=schedule, activities=CPU)
    trainer = lightning.Trainer(
        max_epochs=1, accelerator="cpu", logger=False, enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, profiler=profiler, default_root_dir=folder,
    )  # fmt: skip
    trainer.fit(LightningModel(), torch.utils.data.DataLoader(batches(steps)))


class StepCallback(transformers.TrainerCallback):
    """The usual callback for `torch.profiler`, which marks steps."""

    def __init__(self, profiler: torch.profiler.profile) -> None:
        self.profiler = profiler

    def on_step_end(self, *_: Any, **__: Any) -> None:
        """Mark the end of a step."""
        self.profiler.step()


def with_transformers(who: str | None, folder: Path, steps: int) -> None:
    """Train with Transformers: both write a trace when it is ready, and print the table at the end."""
    callbacks: list[Any] = []
    around: AbstractContextManager[Any] = contextlib.nullcontext()
    if who == OURS:
        callbacks = [KinetoscopeCallback(folder, schedule=kinetoscope.schedule(**recorded(steps)), activities=CPU)]  # fmt: skip
    elif who == THEIRS:
        around = torch.profiler.profile(
            activities=CPU,
            schedule=torch.profiler.schedule(**recorded(steps)),
            on_trace_ready=torch.profiler.tensorboard_trace_handler(str(folder)),
        )
        callbacks = [StepCallback(around)]
    trainer = transformers.Trainer(
        model=Model(),
        args=transformers.TrainingArguments(
            output_dir=str(folder), max_steps=steps, per_device_train_batch_size=1, report_to=[], use_cpu=True,
            disable_tqdm=True, save_strategy="no", logging_strategy="no", dataloader_pin_memory=False,
        ),
        train_dataset=batches(steps),
        callbacks=callbacks,
    )  # fmt: skip
    with around:
        trainer.train()
    if who is not None:
        recorded_run: Any = callbacks[0].trace if who == OURS else around
        print(recorded_run.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))


def with_accelerate(who: str | None, folder: Path, steps: int) -> None:
    """Train with Accelerate: `Accelerator.profile(handler)` writes a Chrome trace with both."""
    accelerator = accelerate.Accelerator(cpu=True)
    model = Model()
    model, optimizer, loader = accelerator.prepare(
        model, torch.optim.AdamW(model.parameters()), torch.utils.data.DataLoader(batches(steps))
    )
    handler: Any = None
    if who is not None:
        kind = KinetoscopeKwargs if who == OURS else ProfileKwargs
        handler = kind(activities=["cpu"], schedule_option=recorded(steps), output_trace_dir=str(folder))
    with contextlib.nullcontext() if handler is None else accelerator.profile(handler) as session:
        for batch in loader:
            accelerator.backward(model(**batch)["loss"])
            optimizer.step()
            optimizer.zero_grad()
            if session is not None:
                session.step()
    if session is not None:
        print(session.key_averages().table(sort_by="self_cpu_time_total", row_limit=20))


TRAINERS: dict[str, Train] = {
    "Lightning": with_lightning,
    "Transformers": with_transformers,
    "Accelerate": with_accelerate,
}


# --------------------------------------------------------------------------------------------------------- the measuring


@dataclass
class Costs:
    """The times of all runs of one trainer, by profiler."""

    step: dict[str, Times] = field(default_factory=dict)
    whole: dict[str, Times] = field(default_factory=dict)


@contextmanager
def quiet() -> Iterator[None]:
    """Suppress the output and warnings of the trainers."""
    with warnings.catch_warnings(), contextlib.redirect_stdout(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def one_run(train: Train, who: str | None, steps: int) -> tuple[list[tuple[int, int]], tuple[int, int]]:
    """Train once; return the times between recorded forwards, and the time of the whole call."""
    folder = Path(tempfile.mkdtemp())
    _forwards.clear()
    gc.collect()
    gc.disable()
    try:
        with quiet():
            wall, cpu = time.perf_counter_ns(), time.process_time_ns()
            train(who, folder, steps)
            whole = time.perf_counter_ns() - wall, time.process_time_ns() - cpu
    finally:
        gc.enable()
        shutil.rmtree(folder)
    pairs = zip(_forwards[UNRECORDED:], _forwards[UNRECORDED + 1 :], strict=False)
    return [(after[0] - before[0], after[1] - before[1]) for before, after in pairs], whole


def take_turns(train: Train, rounds: int, steps: int) -> Costs:
    """Run the trainer alone, the same again as null control, ours and theirs in turns."""
    everyone = {BASELINE: None, NULL_CONTROL: None, OURS: OURS, THEIRS: THEIRS}
    costs = Costs({name: Times() for name in everyone}, {name: Times() for name in everyone})
    for who in (None, OURS, THEIRS) if rounds > 1 else ():
        one_run(train, who, steps)
    order, generator = list(everyone), random.Random(1)
    for _ in range(rounds):
        generator.shuffle(order)
        for name in order:
            between, whole = one_run(train, everyone[name], steps)
            for wall_ns, cpu_ns in between:
                costs.step[name].wall_ns.append(wall_ns)
                costs.step[name].cpu_ns.append(cpu_ns)
            costs.whole[name].wall_ns.append(whole[0])
            costs.whole[name].cpu_ns.append(whole[1])
    return costs


def hook_result(options: Namespace) -> Result:
    """Measure 100 calls of an empty hook, which both record as a span."""
    idle = lightning.pytorch.profilers.PassThroughProfiler()
    current: list[Any] = [idle]

    @contextmanager
    def active(profiler: Any) -> Iterator[None]:
        folder = Path(tempfile.mkdtemp())
        with quiet():
            profiler.setup("fit", None, folder)
            current[0] = profiler
            for _ in range(UNRECORDED + 1):  # as in their integration
                with profiler.profile("[Strategy]SingleDeviceStrategy.training_step"):
                    pass
            try:
                yield
            finally:
                current[0] = idle
                profiler.teardown("fit")
                shutil.rmtree(folder)

    def ours(schedule: Any) -> KinetoscopeProfiler:
        whole_run = {"whole_run": True} if schedule is None else {"schedule": schedule}
        return KinetoscopeProfiler(activities=CPU, on_trace_ready=lambda _: None, **whole_run)

    def hooks() -> None:
        profiler = current[0]
        for _ in range(100):
            with profiler.profile("[Strategy]SingleDeviceStrategy.backward"):
                pass

    waits = kinetoscope.schedule(wait=9, warmup=1, active=1)
    soon = torch.profiler.schedule(**recorded(1000))
    contenders = {
        OURS: lambda: active(ours(None)),
        THEIRS: lambda: active(PyTorchProfiler(activities=CPU, schedule=soon, export_to_chrome=False)),
        "kinetoscope, not recording": lambda: active(ours(waits)),
    }
    times = interleave(hooks, contenders, *((1, 2) if options.quick else (20, 15)))
    result = ratio_result("Lightning, 100 hooks", 0.5, times, OURS, THEIRS)
    result.notes += report_added(times)
    return result


def measure(options: Namespace) -> list[Result]:
    """Measure steps and whole runs of all three trainers."""
    for name in ("lightning.pytorch", "transformers", "accelerate"):
        logging.getLogger(name).setLevel(logging.ERROR)
    gc.collect()
    gc.freeze()  # With these packages loaded, a collection before each run takes longer than the run.
    results = []
    for trainer, train in TRAINERS.items():
        costs = take_turns(train, *((1, 4) if options.quick else (12, 40)))
        for what, times in (("a recorded step", costs.step), ("the whole run", costs.whole)):
            result = ratio_result(f"{trainer}, {what}", 0.5, times, OURS, THEIRS)
            result.notes += report_added(times)
            results.append(result)
    return [*results, hook_result(options)]


if __name__ == "__main__":
    run(measure)
