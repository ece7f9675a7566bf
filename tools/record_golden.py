"""Records the small Kineto traces in tests/golden with torch's own profiler, on the CPU.

Run it with a newer torch to get what that writes: `python tools/record_golden.py`. It replaces the files; read in the tests
what must come out of them, and mend these where torch has changed.
"""

import gzip
import re
import socket
import tempfile
from pathlib import Path

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

FOLDER = Path(__file__).parents[1] / "tests" / "golden"
EVERYTHING = {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_modules": True}
# What tells of the machine and not of the program.
_PRIVATE = ('"host_name"', '"trace_id"')
_PATH = re.compile(r',\s*"traceName": "[^"]*"')


class Block(nn.Module):
    """Two layers, of which one is inside another module."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.tail = nn.Sequential(nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Marks a range around its first half."""
        with record_function("first half"):
            x = self.up(x)
        return self.tail(x)


def keep(session: profile, name: str) -> None:
    """Writes what was recorded, without what is private to the machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.lstrip().startswith(_PRIVATE))
    text = _PATH.sub("", text)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def step_of(model: nn.Module) -> None:
    """Forward, backward and optimizer, once."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()


def training() -> None:
    """Two marked steps with everything on."""
    model = Block()
    step_of(model)
    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=0, warmup=1, active=2, repeat=1),
        on_trace_ready=lambda done: keep(done, "training"),
        **EVERYTHING,
    ) as session:
        for _ in range(3):
            step_of(model)
            session.step()


def operators() -> None:
    """Operators alone: no flag is set."""
    with profile(activities=[ProfilerActivity.CPU]) as session:
        torch.ones(8, 8) @ torch.ones(8, 8)
    keep(session, "operators")


def names() -> None:
    """Ranges whose names careless readers break at."""
    with profile(activities=[ProfilerActivity.CPU]) as session:
        for name in ("line\nbreak", "\u00fc \U0001f600", "</script>", " ", "back\\slash", "{'ph':", "100 %"):
            with record_function(name):
                torch.ones(1)
    keep(session, "names")


def rank(number: int, port: int) -> None:
    """One of two ranks of a data-parallel step over gloo."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2
    )
    model = nn.parallel.DistributedDataParallel(Block())
    step_of(model)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session:
        step_of(model)
    keep(session, f"ddp_rank{number}")
    torch.distributed.destroy_process_group()


def main() -> None:
    """Records all of them."""
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    training()
    operators()
    names()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(rank, (port,), nprocs=2)


if __name__ == "__main__":
    main()
