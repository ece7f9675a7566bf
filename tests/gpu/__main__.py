"""Everything that can only be seen with a device, in one command: `python -m tests.gpu OUT`.

It needs a device, torch 2.11 or newer with Kineto, an installed Kinetoscope with what that depends on, and pytest for the tests (without
it they are left out, which the result says). It needs no network and no root, and takes less than `LIMIT_S` seconds.

In `OUT` are then `result.json`, `result.md` and a trace of each engine. The exit code is 0 if all went well, 1 if something
did not, 2 if it cannot run, 3 if there is no device.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import importlib.util
import json
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
import warnings
import xml.etree.ElementTree as ET
from pathlib import Path

# Without --quick, which is for machines that are slow and devices that are none.
LIMIT_S = 450
ALL_WELL, SOMETHING_FAILED, CANNOT_RUN, NO_DEVICE = range(4)
ROOT = Path(__file__).parents[2]
ENGINES = {"torch.profiler": None, "kineto": "kineto", "hybrid": "native"}
BASELINE = "no profiler"
# What one slice of a contender may take, so that everything ends in time.
SLICE_S, ROUNDS, OVERHEAD_S = 0.4, 15, 120.0


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m tests.gpu", description="Check Kinetoscope on this machine's device."
    )
    parser.add_argument("out", type=Path, help="the folder for results, made if missing")
    parser.add_argument(
        "--device", help="torch's name of the device, such as cuda; by default torch's accelerator"
    )
    parser.add_argument(
        "--quick",
        action="store_true",
        help="one short round of timings of small programs: to try the command itself out",
    )
    parser.add_argument(
        "--tests", default="", metavar="EXPRESSION", help="run only these tests, as pytest's -k takes them"
    )
    options = parser.parse_args()
    missing = [name for name in ("torch", "kinetoscope") if importlib.util.find_spec(name) is None]
    if missing:
        print(f"gpu-check: {' and '.join(missing)} cannot be imported by {sys.executable}", file=sys.stderr)
        return CANNOT_RUN
    if options.device:
        os.environ["KINETOSCOPE_TEST_DEVICE"] = options.device
    try:
        from tests.gpu.conftest import found_device

        device = found_device()
    except RuntimeError as error:
        print(f"gpu-check: --device {options.device}: {str(error).splitlines()[0]}", file=sys.stderr)
        return CANNOT_RUN
    if device is None:
        print(
            "gpu-check: there is no device here that torch can record; nothing was checked", file=sys.stderr
        )
        return NO_DEVICE
    options.out.mkdir(parents=True, exist_ok=True)
    result = Check(device, options.out, quick=options.quick, chosen=options.tests).run()
    (options.out / "result.json").write_text(json.dumps(result, indent=1) + "\n")
    (options.out / "result.md").write_text(as_markdown(result))
    print(as_markdown(result))
    print(json.dumps(result))
    return SOMETHING_FAILED if result["failed"] else ALL_WELL


class Check:
    """One run on one device. A part that fails is noted, and the others go on."""

    def __init__(self, device, out, *, quick, chosen):
        import torch

        self.device = torch.device(device.type, 0)
        self.out = out
        self.quick = quick
        self.chosen = chosen
        self.begin_s = time.monotonic()
        self.failed = []

    def run(self):
        """Returns everything that was found."""
        result = {"when": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime()), "machine": self.machine()}
        for name, part in (
            ("hybrid", self.hybrid),
            ("tests", self.tests),
            ("traces", self.traces),
            ("overhead", self.overhead),
        ):
            begin_s = time.monotonic()
            print(f"gpu-check: {name}", file=sys.stderr, flush=True)
            try:
                result[name] = part()
            except Exception as error:  # noqa: BLE001  (what a new device does wrong is the result)
                result[name] = {"error": f"{type(error).__name__}: {error}"}
                self.failed.append(name)
            result[name]["seconds"] = round(time.monotonic() - begin_s, 1)
        return {**result, "failed": self.failed, "seconds": round(time.monotonic() - self.begin_s, 1)}

    def left_s(self):
        """How many seconds there are before the end."""
        limit_s = 3 * LIMIT_S if self.quick else LIMIT_S
        return max(1.0, limit_s - (time.monotonic() - self.begin_s))

    def machine(self):
        """What this ran on."""
        import torch

        import kinetoscope

        module = torch.get_device_module(self.device)
        driver = Path("/sys/module/nvidia/version")
        return {
            "device": module.get_device_name(self.device.index),
            "type": self.device.type,
            "driver": driver.read_text().strip() if driver.is_file() else None,
            "torch": torch.__version__,
            "cuda": torch.version.cuda,
            "hip": torch.version.hip,
            "python": platform.python_version(),
            "system": f"{platform.system()} {platform.release()} {platform.machine()}",
            "processors": os.cpu_count(),
            "kinetoscope": kinetoscope.__version__,
            "commit": commit(),
        }

    def hybrid(self):
        """What the check says that `engine="auto"` makes, made anew."""
        from kinetoscope.collect.engines import hybrid_check as hybrid_module
        from kinetoscope.collect.engines.native import native_engine_status
        from kinetoscope.collect.request.activities import name_of
        from kinetoscope.storage.cache import cache_directory
        from tests.gpu.conftest import activity_of

        native = native_engine_status()
        found = {"recorder": native.reason, "self_test": {**native.details}}
        if native.available:
            # Not `hybrid_status`, which would take an earlier result. What follows takes this one.
            name = name_of(activity_of(self.device))
            with tempfile.TemporaryDirectory() as scratch:
                outcome = hybrid_module._check(name, Path(scratch))
            if outcome.lasting:
                (folder := cache_directory()).mkdir(parents=True, exist_ok=True)
                (folder / f"hybrid-{hybrid_module._key(name)}.json").write_text(outcome.as_json())
            found |= {"holds": outcome.holds, "reason": outcome.reason}
        if not found.get("holds"):
            self.failed.append("hybrid")
        return found

    def tests(self):
        """The tests of this folder."""
        if importlib.util.find_spec("pytest") is None:
            self.failed.append("tests")
            return {"error": "pytest is not installed: the tests did not run"}
        with tempfile.TemporaryDirectory() as scratch:
            report = Path(scratch, "report.xml")
            command = [sys.executable, "-m", "pytest", "-c", "tests/gpu/pytest.ini", "--rootdir", ".", "-q"]
            command += ["--confcutdir", "tests/gpu", f"--junitxml={report}", "tests/gpu", "-k", self.chosen]
            environment = {**os.environ, "KINETOSCOPE_TEST_DEVICE": self.device.type}
            limit_s = self.left_s() - 1.5 * OVERHEAD_S
            try:
                done = subprocess.run(
                    command,
                    cwd=ROOT,
                    env=environment,
                    capture_output=True,
                    text=True,
                    timeout=limit_s,
                    check=False,
                )
            except subprocess.TimeoutExpired:
                self.failed.append("tests")
                return {"error": f"the tests did not end within {limit_s:.0f} seconds"}
            (self.out / "tests.txt").write_text(done.stdout + done.stderr)
            if done.returncode != 0:
                self.failed.append("tests")
            if not report.is_file():
                return {"error": f"pytest ended with exit code {done.returncode}: see tests.txt"}
            return outcomes(ET.parse(report))

    def traces(self):
        """A training step under each engine, kept for the tests of readers, and whether they agree."""
        step = gpt(self.device, small=self.quick)
        found = {}
        for name in ENGINES:
            with session(name, self.device, record_shapes=True) as recorded:
                for _ in range(2):
                    step()
                synchronize()
            if name == "torch.profiler":
                path = self.out / "gpt-torch.json.gz"
                recorded.export_chrome_trace(str(path))
            else:
                path = self.out / f"gpt-{name}.ktrace"
                recorded.save(path)
            found[name] = {"file": path.name, **contents(path)}
        compared = ("kernels", "copies", "launches", "by_operator")
        differing = [
            f"{key}: {name} has {one[key]}, torch.profiler {found['torch.profiler'][key]}"
            for name, one in found.items()
            for key in compared
            if one[key] != found["torch.profiler"][key]
        ]
        if differing:
            self.failed.append("traces")
        for one in found.values():
            del one["by_operator"]
        return {**found, "differing": [text[:500] for text in differing]}

    def overhead(self):
        """What each profiler adds to a step, in slices that take turns."""
        return {
            name: measured(
                make(self.device, small=self.quick), self.device, quick=self.quick, until_s=self.left_s()
            )
            for name, make in (("launch-bound loop", loop), ("GPT", gpt), ("convnet", convnet))
        }


# ------------------------------------------------------------------------------------------------------------- programs


def loop(device, *, small=False):
    """Many kernels that last next to nothing: the host cannot launch them fast enough."""
    import torch

    x = torch.ones(16, 16, device=device)

    def step():
        y = x
        for _ in range(20 if small else 200):
            y = y.mul(0.5).add(1)

    return step


def gpt(device, *, small=False):
    """A training step of a small GPT."""
    import torch

    from kinetoscope.examples.train_gpt import GPT

    torch.manual_seed(0)
    model = GPT(characters=64, width=128, heads=4, layers=1 if small else 4, context=64).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    tokens = torch.randint(64, (2 if small else 8, 65)).to(device)
    return training_step(model, optimizer, tokens[:, :-1], tokens[:, 1:].reshape(-1))


def convnet(device, *, small=False):
    """A training step of a small convolutional net."""
    import torch

    from kinetoscope.examples.train_convnet import ConvNet

    torch.manual_seed(0)
    model = ConvNet(16).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    images, classes = torch.randn(32, 1, 32, 32).to(device), torch.randint(10, (32,)).to(device)
    return training_step(model, optimizer, *((images[:4], classes[:4]) if small else (images, classes)))


def training_step(model, optimizer, inputs, targets):
    """Forward, backward and the optimizer; done once already, so that nothing is chosen or allocated any more."""
    import torch

    def step():
        optimizer.zero_grad()
        logits = model(inputs)
        torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), targets).backward()
        optimizer.step()

    step()
    synchronize()
    return step


def synchronize():
    """Waits for the device."""
    import torch

    torch.accelerator.synchronize()


# ------------------------------------------------------------------------------------------------------------ measuring


def session(name, device, **flags):
    """A session of a contender, not yet entered."""
    import torch.profiler

    import kinetoscope
    from tests.gpu.conftest import activity_of

    activities = [torch.profiler.ProfilerActivity.CPU, activity_of(device)]
    if ENGINES[name] is None:
        return torch.profiler.profile(activities=activities, **flags)
    return kinetoscope.profile(activities=activities, engine=ENGINES[name], **flags)


def measured(step, device, *, quick, until_s):
    """Medians over slices: the time of a step, of stopping, and from there to the table of averages."""
    step()
    synchronize()
    begin_s = time.monotonic()
    step()
    synchronize()
    steps = 1 if quick else max(3, min(100, int(SLICE_S / (time.monotonic() - begin_s))))
    times = {name: {"step": [], "stop": [], "table": []} for name in (BASELINE, *ENGINES)}
    end_s = time.monotonic() + min(until_s, OVERHEAD_S) / 3
    rounds = 0
    while rounds < (1 if quick else ROUNDS) and (rounds == 0 or time.monotonic() < end_s):
        # Another order each time, so that none always follows the same one.
        names = list(times)
        for name in names[rounds % len(names) :] + names[: rounds % len(names)]:
            # torch takes seconds for its table.
            slice_of(name, step, steps, device, times[name], with_table=rounds == 0)
        rounds += 1
    found = {}
    for name, kinds in times.items():
        found[name] = {
            f"{kind}_ms": round(statistics.median(values), 3) for kind, values in kinds.items() if values
        }
        # Of each round by itself, as the machine itself may become slower or faster from one to the next.
        pairs = zip(kinds["step"], times[BASELINE]["step"], strict=True)
        added = sorted(round(100 * (ms / base_ms - 1), 1) for ms, base_ms in pairs)
        found[name]["added_percent"] = round(statistics.median(added), 1)
        found[name]["added_percent_of_rounds"] = added
    return {**found, "steps": steps, "rounds": rounds}


def slice_of(name, step, steps, device, into, *, with_table):
    """One slice of a contender."""
    gc.collect()
    recorded = session(name, device) if name in ENGINES else None
    if recorded is not None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            recorded.start()
    step()
    synchronize()
    begin_ns = time.perf_counter_ns()
    for _ in range(steps):
        step()
    synchronize()
    end_ns = time.perf_counter_ns()
    into["step"].append((end_ns - begin_ns) / 1e6 / steps)
    if recorded is None:
        return
    begin_ns = time.perf_counter_ns()
    recorded.stop()
    stopped_ns = time.perf_counter_ns()
    into["stop"].append((stopped_ns - begin_ns) / 1e6)
    if with_table:
        recorded.key_averages()
        into["table"].append((time.perf_counter_ns() - stopped_ns) / 1e6)


# ------------------------------------------------------------------------------------------------------------- results


def contents(path):
    """What our reader finds in a trace."""
    import kinetoscope

    with kinetoscope.open(path) as trace:
        launches = trace.table("launches").to_pylist()
        return {
            "kernels": sum(row["count"] for row in trace.table("kernels").to_pylist()),
            "copies": len(trace.table("copies")),
            "launches": len(launches),
            "by_operator": sorted((row["operator"] or "", row["device_name"]) for row in launches),
            "streams": len(trace.table("streams")),
            "device_busy_ms": round(
                sum(row["busy_ns"] for row in trace.table("devices").to_pylist()) / 1e6, 3
            ),
            "clock_checks": trace.info.get("clock_checks"),
            "losses": len(trace.losses),
        }


def outcomes(report):
    """Counts, and what failed or was skipped, of a report of pytest."""
    cases = report.getroot().iter("testcase")
    found = {"passed": 0, "failed": [], "skipped": []}
    for case in cases:
        problems = [part for kind in ("failure", "error") for part in case.iter(kind)]
        skips = list(case.iter("skipped"))
        if problems:
            found["failed"].append(f"{case.get('name')}: {(problems[0].get('message') or '')[:300]}")
        elif skips:
            found["skipped"].append(f"{case.get('name')}: {skips[0].get('message')}")
        else:
            found["passed"] += 1
    return found


def as_markdown(result):
    """The result as a person reads it."""
    machine = result["machine"]
    runtime = next((f"{name} {machine[name]}, " for name in ("cuda", "hip") if machine[name]), "")
    lines = [
        f"# {machine['device']}, torch {machine['torch']}",
        "",
        (
            f"{result['when']}, {runtime}driver {machine['driver']}, Python {machine['python']}, {machine['processors']} "
            f"processors, {machine['system']}, Kinetoscope {machine['kinetoscope']} ({machine['commit']}). "
            f"{result['seconds']:.0f} s in all. Failed: {', '.join(result['failed']) or 'nothing'}."
        ),
        "",
        f"- Hybrid engine: {result['hybrid'].get('reason') or result['hybrid'].get('error') or result['hybrid']['recorder']}",
        f"- Tests: {said_of_tests(result['tests'])}",
        f"- Traces: {said_of_traces(result['traces'])}",
        "",
    ]
    if "error" in result["overhead"]:
        return "\n".join([*lines, f"Overhead: {result['overhead']['error']}", ""])
    lines += [
        "Medians; added is the median over rounds, in which each profiler is compared with no profiler in the same round, and in brackets are the middle half of the rounds.",
        "",
        "| program | profiler | a step, ms | added | stop, ms | to the table, ms |",
        "|---|---|---|---|---|---|",
    ]
    for program, found in result["overhead"].items():
        for name in (BASELINE, *ENGINES) if isinstance(found, dict) else ():
            one = found[name]
            rounds = one["added_percent_of_rounds"]
            middle = f"({rounds[len(rounds) // 4]:+.1f} to {rounds[-1 - len(rounds) // 4]:+.1f})"
            added = "" if name == BASELINE else f"{one['added_percent']:+.1f} % {middle}"
            lines.append(
                f"| {program} | {name} | {one['step_ms']:.3f} | {added} | {one.get('stop_ms', '')} | {one.get('table_ms', '')} |"
            )
    return "\n".join([*lines, ""])


def said_of_tests(found):
    """One line."""
    if "error" in found:
        return found["error"]
    failed = "".join(f"\n  - failed: {text}" for text in found["failed"])
    return f"{found['passed']} passed, {len(found['failed'])} failed, {len(found['skipped'])} skipped{failed}"


def said_of_traces(found):
    """One line."""
    if "error" in found:
        return found["error"]
    if found["differing"]:
        return "they differ: " + "; ".join(found["differing"])
    one = found["torch.profiler"]
    return f"all three have the same {one['kernels']} kernels, {one['copies']} copies and {one['launches']} launches by operator"


def commit():
    """What is checked out, if this is a checkout and git is there."""
    with contextlib.suppress(OSError):
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
        )
        return done.stdout.strip() or None
    return None


if __name__ == "__main__":
    sys.exit(main())
