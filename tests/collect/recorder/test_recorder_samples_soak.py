"""The sampler beside a program that does all at once what makes stacks hard to read: for seconds, or an hour in `make stress`."""

from __future__ import annotations

import os
import time

import kinetoscope
from tests.support import warm_python
from tests.support.effort import times

# KINETOSCOPE_SOAK_SECONDS chooses another time; the hour is for releases.
SECONDS = float(os.environ.get("KINETOSCOPE_SOAK_SECONDS") or times(2, 3600))

PROGRAM = """
import asyncio, json, os, random, sys, threading, time, warnings
import torch
from kinetoscope import Trace
from kinetoscope.collect.recorder.library import Recorded, load_recorder

# Python 3.12 and newer warn of forks of processes with several threads.
warnings.simplefilter("ignore", DeprecationWarning)
seconds, cycles = float(sys.argv[1]), 0
until = time.monotonic() + seconds
done = threading.Event()
failures = []

def recursive(depth):
    return 1 if depth == 0 else 1 + recursive(depth - 1)

def generators(count):
    def numbers(below):
        for number in range(below):
            yield from range(number)
    return sum(numbers(count))

async def coroutines():
    async def inner(number):
        await asyncio.sleep(0)
        return number
    return sum(await asyncio.gather(*map(inner, range(20))))

def built(number):
    names = {}
    exec(compile(f"def work{number}(x):\\n    y = x\\n    return y + {number}\\n", f"built{number}.py", "exec"), names)
    return names[f"work{number}"](1)

def errors():
    try:
        raise KeyError("one")
    except KeyError as error:
        return error.__traceback__.tb_frame.f_lineno

def threads():
    made = [threading.Thread(target=recursive, args=(50,)) for _ in range(4)]
    for thread in made:
        thread.start()
    for thread in made:
        thread.join()

def fork():
    child = os.fork()
    if child == 0:
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0

model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU(), torch.nn.Linear(8, 1))

def training():
    model(torch.ones(4, 8)).sum().backward()

def run(number):
    chance = random.Random(number)
    work = [
        lambda: recursive(chance.randrange(900)), lambda: generators(60), lambda: asyncio.run(coroutines()),
        lambda: built(chance.randrange(10**9)), errors, threads, training, lambda: json.dumps([{"a": 1}] * 200),
    ]
    sys.setrecursionlimit(3000)
    try:
        while not done.is_set():
            chance.choice(work)()
    except BaseException as error:
        failures.append(error)

workers = [threading.Thread(target=run, args=(number,)) for number in range(4)]
for worker in workers:
    worker.start()
recorder = load_recorder()
rounds = 0
try:
    while time.monotonic() < until and not failures:
        # Far more often than a session does.
        ring = None if cycles % 2 else 4 << 20
        recorder.start("soak.recording", Recorded.STACKS | Recorded.MODULES, ring, samples_per_second=5000)
        last = min(until, time.monotonic() + 2)
        while time.monotonic() < last:
            fork()
            for _ in range(20):
                training()
        recorder.stop()
        recorder.close()
        recorder.settle()
        cycles += 1
        trace = Trace.from_recording("soak.recording")
        rounds += len(trace.columns("samples"))
        functions = {row["function"] for row in trace.samples().select(["function"]).to_pylist()}
        assert None not in functions, functions
        lines = trace.table("frames").to_pylist()
        for frame in lines:
            if frame["file"].startswith("built"):
                number = frame["file"][len("built"):-3]
                assert frame["function"] in (f"work{number}", "<module>") and 1 <= frame["line"] <= 3, frame
finally:
    # Otherwise the process would never end.
    done.set()
for worker in workers:
    worker.join()
assert not failures, failures
print("samples", rounds, "cycles", cycles)
"""


def test_the_sampler_survives_a_program_that_changes_all_the_time(tmp_path):
    begun = time.monotonic()
    done = warm_python.run("-c", PROGRAM, str(SECONDS), cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stderr
    words = done.stdout.split()
    assert words[0] == "samples"
    assert int(words[1]) > 0
    assert time.monotonic() - begun >= SECONDS
    assert kinetoscope.open(tmp_path / "soak.recording").columns("losses")["code"] is not None
