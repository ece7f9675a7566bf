"""What the tests of the commands share."""

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from kinetoscope.cli import main
from tests.support.trace_builder import TraceBuilder


def training_trace() -> TraceBuilder:
    """Two steps of a small model, forward, backward and optimizer, with memory."""
    builder = TraceBuilder()
    model = builder.module("Net")
    layer = builder.module("Linear", name="fc", parent=model)
    stack = builder.stack(("/code/train.py", 12, "<module>"), ("/code/net.py", 34, "Net.forward"))
    outer = builder.stack(("/code/train.py", 15, "<module>"))
    for step in range(2):
        at_ns = step * 10_000_000
        builder.span("aten::linear", at_ns + 1_000_000, 3_000_000, module=layer, stack=stack, sequence=step)
        builder.span("aten::addmm", at_ns + 1_500_000, 2_000_000, module=layer, stack=stack)
        builder.backward("AddmmBackward0", at_ns + 5_000_000, 2_000_000, sequence=step)
        builder.annotation("Optimizer.step#SGD.step", at_ns + 8_000_000, 1_500_000, stack=outer)
        builder.allocate(at_ns + 1_600_000, 4096 * (step + 1), 1_000_000)
    builder.know("program", {"command": ["train.py", "--lr", "0.1"], "ended": "exit code 0"})
    builder.know("engine", "native").know("torch_version", "2.13.0").know("profile_memory", 1)
    return builder


@pytest.fixture
def trace_path(tmp_path: Path) -> Path:
    """The file of such a trace."""
    path = tmp_path / "run.ktrace"
    training_trace().build().save(path)
    return path


@pytest.fixture
def call():
    """Calls the command with words, as from a shell; without a terminal, so nothing is folded unless asked for."""

    def run(*words: object, columns: int | None = None) -> Result:
        env = {"COLUMNS": str(columns) if columns else None, "NO_COLOR": None, "FORCE_COLOR": None}
        return CliRunner().invoke(main, [str(word) for word in words], env=env)

    return run
