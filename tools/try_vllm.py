"""Run vLLM's own tests of its profiler with torch.profiler and with Kinetoscope in its place, measure how long a stop blocks, and leave an engine on.

vLLM's wheel needs a device, so its Python code is taken from an unpacked source distribution, without building it:

    python tools/try_vllm.py FOLDER [PYTEST ARGUMENT ...]

An environment of its own adds the packages that vLLM imports to those of the Python that runs this program, in which
Kinetoscope is installed. vLLM loads its plugins as a server does, so that the entry point of this package is tried, too. The
exit code is 0 if each test has the same outcome both times.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tempfile
import venv
from pathlib import Path

# What vLLM 0.33.0 imports for its workers, beside what tests of Kinetoscope need; installed without their dependencies.
PACKAGES = (
    "apache-tvm-ffi",
    "cachetools",
    "cbor2",
    "einops",
    "fastapi",
    "llguidance",
    "msgspec",
    "openai",
    "openai_harmony",
    "partial_json_parser",
    "pillow",
    "prometheus_client",
    "py-cpuinfo",
    "pybase64",
    "sniffio",
    "uvloop",
    "xgrammar",
)
TESTS = "tests/v1/worker/test_gpu_profiler.py"

RUN_TESTS = """
import sys, pytest
from vllm.plugins import load_general_plugins
load_general_plugins()
import torch
print('torch.profiler.profile is of', torch.profiler.profile.__module__, flush=True)
sys.exit(pytest.main(sys.argv[1:]))
"""

# As a worker: start, 200 steps, stop; the stop writes the table and the trace.
MEASURE = """
import contextlib, io, statistics, tempfile, time
from vllm.plugins import load_general_plugins
load_general_plugins()
import torch
from vllm.config import ProfilerConfig
from vllm.profiler.wrapper import TorchProfilerWrapper
torch.set_num_threads(1)
layers = torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(60)])
inputs = torch.randn(8, 64)
stops_s = []
for _ in range(5):
    with tempfile.TemporaryDirectory() as folder, torch.no_grad():
        config = ProfilerConfig(profiler='torch', torch_profiler_dir=folder, torch_profiler_with_stack=False)
        profiler = TorchProfilerWrapper(config, 'worker', 0, ['CPU'])
        profiler.start()
        for _ in range(200):
            layers(inputs)
            profiler.step()
        begin_s = time.perf_counter()
        # vLLM prints its table.
        with contextlib.redirect_stdout(io.StringIO()):
            profiler.stop()
        stops_s.append(time.perf_counter() - begin_s)
print(f'stop with table and compressed trace of 200 steps: {statistics.median(stops_s) * 1000:.0f} ms')
"""


# vLLM's own wrapper of workers and output of its scheduler, around a worker that needs no device.
LEFT_ON = """
import json
import torch
from vllm.plugins import load_general_plugins
from vllm.v1.core.sched.output import CachedRequestData, SchedulerOutput
from vllm.v1.worker.worker_base import WorkerWrapperBase
load_general_plugins()
import kinetoscope
recorder = kinetoscope.leave_on()
recorder.capture(20)
layer = torch.nn.Linear(64, 64)
class Worker:
    def execute_model(self, scheduled):
        layer(torch.ones(scheduled.total_num_scheduled_tokens, 64))
    def sample_tokens(self, grammar):
        return torch.ones(64).argmax()
wrapper = WorkerWrapperBase.__new__(WorkerWrapperBase)
wrapper.worker, wrapper.mm_receiver_cache = Worker(), None
def iterate(requests, outputs, tokens):
    cached = CachedRequestData.make_empty()
    cached.req_ids, cached.num_output_tokens = [str(one) for one in range(requests)], [outputs] * requests
    scheduled = SchedulerOutput.make_empty()
    scheduled.scheduled_cached_reqs, scheduled.total_num_scheduled_tokens = cached, requests * tokens
    scheduled.num_scheduled_tokens = dict.fromkeys(cached.req_ids, tokens)
    assert wrapper.execute_model(scheduled) is None
    wrapper.sample_tokens(None)
iterate(4, 0, 128)
for _ in range(10):
    iterate(4, 1, 1)
with kinetoscope.open(recorder.snapshot()) as trace:
    rows = trace.table("steps").to_pylist()
    print("left on:", [(row["name"], row["count"]) for row in trace.table("step_kinds").to_pylist()], rows[0]["arguments"])
assert [row["name"] for row in rows] == ["prefill", *["decode"] * 10], rows
"""


def main() -> int:
    """Create the environment, and run the tests and the measurement in it both ways."""
    if len(sys.argv) < 2 or not Path(sys.argv[1], "vllm", "profiler").is_dir():
        print(
            "usage: python tools/try_vllm.py FOLDER, an unpacked source distribution of vLLM", file=sys.stderr
        )
        return 2
    source = Path(sys.argv[1]).resolve()
    arguments = sys.argv[2:] or [TESTS]
    with tempfile.TemporaryDirectory(prefix="vllm-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder, "bin", "python")
        subprocess.run([python, "-m", "pip", "install", "--quiet", "--no-deps", *PACKAGES], check=True)
        added = sysconfig.get_path("purelib", vars={"base": folder})
        shared = {sysconfig.get_path("purelib"), sysconfig.get_path("platlib"), str(source)}
        Path(added, "shared.pth").write_text("\n".join(sorted(shared)), encoding="utf-8")
        outcomes = []
        for value in ("", "install"):
            environment = {**os.environ, "KINETOSCOPE": value}
            options = ["-rA", "-q", "--noconftest", "-p", "no:cacheprovider", "-o", "addopts="]
            done = subprocess.run(
                [python, "-c", RUN_TESTS, *options, *arguments],
                cwd=source,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            print(*done.stdout.splitlines()[:1], *done.stdout.splitlines()[-1:], sep="\n", flush=True)
            outcomes.append(set(re.findall(r"^(?:PASSED|FAILED|ERROR) \S+", done.stdout, re.MULTILINE)))
            subprocess.run([python, "-c", MEASURE], cwd=folder, env=environment, check=True)
        environment = {**os.environ, "KINETOSCOPE": "on", "KINETOSCOPE_DIR": folder}
        subprocess.run([python, "-c", LEFT_ON], cwd=folder, env=environment, check=True)
    for line in sorted(outcomes[0] ^ outcomes[1]):
        print("different:", line)
    return 0 if outcomes[0] == outcomes[1] and outcomes[0] else 1


if __name__ == "__main__":
    sys.exit(main())
