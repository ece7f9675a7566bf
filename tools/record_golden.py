"""Record the small Kineto traces in tests/golden with torch.profiler, on the CPU.

Run `python tools/record_golden.py` with a newer torch to replace the files with what that release writes. Then update the
expected results in the tests where torch has changed.

With --release, it records tests/golden/releases/VERSION.ktrace with Kinetoscope instead: every later version has to read it.
"""

import gzip
import json
import re
import socket
import sys
import tempfile
from pathlib import Path
from typing import Any

import torch
import torch.distributed
import torch.multiprocessing
from torch import nn
from torch.profiler import ProfilerActivity, profile, record_function, schedule

FOLDER = Path(__file__).parents[1] / "tests" / "golden"
EVERYTHING = {"record_shapes": True, "profile_memory": True, "with_stack": True, "with_modules": True}
# Metadata about the machine.
_PRIVATE = ('"host_name"', '"trace_id"')
_PATH = re.compile(r',\s*"traceName": "[^"]*"')


class Block(nn.Module):
    """Two layers, one of them in a child module."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(4, 8)
        self.tail = nn.Sequential(nn.ReLU(), nn.Linear(8, 2))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Run both layers, the first one inside a range."""
        with record_function("first half"):
            x = self.up(x)
        return self.tail(x)


def keep(session: profile, name: str) -> None:
    """Write a recorded trace without metadata about the machine."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "trace.json"
        session.export_chrome_trace(str(path))
        lines = path.read_text(encoding="utf-8").splitlines(keepends=True)
    text = "".join(line for line in lines if not line.lstrip().startswith(_PRIVATE))
    text = _PATH.sub("", text)
    (FOLDER / f"{name}.json.gz").write_bytes(gzip.compress(text.encode(), mtime=0))


def step_of(model: nn.Module) -> None:
    """Run forward, backward and optimizer once."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    model(torch.ones(3, 4)).sum().backward()
    optimizer.step()


def training() -> None:
    """Record two marked steps with all options on."""
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
    """Record operators with all options off."""
    with profile(activities=[ProfilerActivity.CPU]) as session:
        torch.ones(8, 8) @ torch.ones(8, 8)
    keep(session, "operators")


def names() -> None:
    """Record ranges whose names are hard to parse."""
    with profile(activities=[ProfilerActivity.CPU]) as session:
        for name in ("line\nbreak", "\u00fc \U0001f600", "</script>", " ", "back\\slash", "{'ph':", "100 %"):
            with record_function(name):
                torch.ones(1)
    keep(session, "names")


def rank(number: int, port: int) -> None:
    """Record one of two ranks of a data-parallel step with gloo."""
    torch.distributed.init_process_group(
        "gloo", init_method=f"tcp://127.0.0.1:{port}", rank=number, world_size=2
    )
    model = nn.parallel.DistributedDataParallel(Block())
    step_of(model)
    with profile(activities=[ProfilerActivity.CPU], record_shapes=True) as session:
        step_of(model)
    keep(session, f"ddp_rank{number}")
    torch.distributed.destroy_process_group()


def without_machine(trace: Any) -> Any:
    """A trace without the paths and the name of this machine."""
    folders = sorted({*trace.info["import_folders"], str(FOLDER.parents[1])}, key=len, reverse=True)

    def neutral(text: str) -> str:
        for one in folders:
            text = text.replace(one, "/packages")
        return text

    trace.strings[:] = map(neutral, trace.strings)
    info = json.loads(neutral(json.dumps(trace.info))) | {"host": "host", "import_folders": ["/packages"]}
    trace.info.clear()
    trace.info.update(info)
    return trace


def release() -> None:
    """Record what the installed version of Kinetoscope writes, with all that it records of a host."""
    import kinetoscope

    torch.manual_seed(0)
    model = Block()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    with kinetoscope.profile(
        activities=[ProfilerActivity.CPU],
        record_shapes=True,
        profile_memory=True,
        with_stack=True,
        with_modules=True,
        with_flops=True,
        python_calls=True,
        module_spans=True,
        garbage_collection=True,
    ) as prof:
        for _ in range(3):
            model(torch.randn(2, 4)).sum().backward()
            optimizer.step()
            optimizer.zero_grad()
            prof.step()
    folder = FOLDER / "releases"
    folder.mkdir(exist_ok=True)
    path = folder / f"{kinetoscope.__version__}.ktrace"
    without_machine(prof.trace).save(path)
    print(f"{path}: {path.stat().st_size:,} bytes, torch {torch.__version__}")


def main() -> None:
    """Record all traces."""
    FOLDER.mkdir(exist_ok=True)
    torch.set_num_threads(1)
    if "--release" in sys.argv[1:]:
        release()
        return
    training()
    operators()
    names()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    torch.multiprocessing.spawn(rank, (port,), nprocs=2)


if __name__ == "__main__":
    main()
