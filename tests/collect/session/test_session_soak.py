"""Sessions of several threads that start, stop, switch and export at random, beside threads that train: some actions, or an hour in `make stress`."""

from __future__ import annotations

import os

import pytest

from tests.support import warm_python
from tests.support.effort import times

pytest.importorskip("torch", reason="what is recorded are torch programs")

# KINETOSCOPE_SOAK_SECONDS chooses another time; the hour is for releases.
SECONDS = float(os.environ.get("KINETOSCOPE_SOAK_SECONDS") or times(0, 3600))
ACTIONS = 40

PROGRAM = """
import faulthandler, gc, os, random, resource, sys, threading, time, warnings
import torch
import kinetoscope
from kinetoscope import KinetoscopeError, ProfilerActivity, profile, record_function, schedule

warnings.simplefilter("ignore")
torch.set_num_threads(1)
seconds, actions, seed = float(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
begun = time.monotonic()
done = threading.Event()
failures, refused = [], {}
counted = threading.Lock()
performed = 0


def trainer(number):
    chance = random.Random(seed * 100 + number)
    steps = 0
    while not done.is_set():
        width = chance.choice((8, 16, 24))
        model = torch.nn.Sequential(*[torch.nn.Linear(width, width) for _ in range(chance.randrange(2, 30))])
        kind = chance.choice((torch.optim.SGD, torch.optim.Adam, torch.optim.AdamW))
        optimizer = kind(model.parameters(), lr=1e-3)
        for _ in range(chance.randrange(1, 60)):
            optimizer.zero_grad(set_to_none=chance.random() < 0.9)
            with record_function("forward"):
                loss = model(torch.randn(4, width)).square().mean()
            loss.backward()
            optimizer.step()
            steps += 1
            # As a program that puts batches together, whose tuples nobody else may hold while they grow.
            assert len(tuple(value for value in range(64))) == 64
    assert steps


def made(chance, engines=("native", "native", "auto", "kineto")):
    options = dict(
        engine=chance.choice(engines),
        profile_memory=chance.random() < 0.5,
        record_shapes=chance.random() < 0.5,
        with_stack=chance.random() < 0.3,
        acc_events=chance.random() < 0.2,
    )
    if chance.random() < 0.2 and options["engine"] == "native":
        options["python_calls"] = True
    if chance.random() < 0.4:
        options["schedule"] = schedule(wait=chance.randrange(2), warmup=1, active=chance.randrange(1, 3), repeat=chance.randrange(3))
    if chance.random() < 0.3:
        options["on_trace_ready"] = lambda session: session.key_averages().table(row_limit=3)
    return profile(**options)


def export(session, chance):
    path = f"trace-{threading.get_ident()}.json"
    session.export_chrome_trace(path)
    os.remove(path)


of_thread = threading.local()


def crossing(session, chance):
    # A range that is open while sessions start and stop around it.
    opened = vars(of_thread).pop("range", None)
    if opened is None:
        of_thread.range = record_function("crossing").__enter__()
    else:
        opened.__exit__(None, None, None)


DEEDS = [
    (6, lambda session, chance: session.start()),
    (6, lambda session, chance: session.stop()),
    (8, lambda session, chance: session.step()),
    (3, lambda session, chance: session.toggle_collection_dynamic(chance.random() < 0.6, [ProfilerActivity.CPU])),
    (3, lambda session, chance: session.add_metadata_json(f"key{chance.randrange(5)}", "[1, 2]")),
    (1, export),
    (2, crossing),
    (1, lambda session, chance: session.key_averages().table(row_limit=5)),
    (1, lambda session, chance: len(session.events())),
    (1, lambda session, chance: session.trace.table("modules").num_rows),
    (1, lambda session, chance: session.trace.table("memory_peak").num_rows),
    (1, lambda session, chance: gc.collect()),
    (1, lambda session, chance: torch.randn(8, 8) @ torch.randn(8, 8)),
]
WEIGHTS = [weight for weight, _ in DEEDS]
shared = [None] * 3


def controller(number):
    global performed
    chance = random.Random(seed * 1000 + number)
    own = made(chance)
    while not done.is_set():
        if chance.random() < 0.1:
            # A session that is dropped while it records must not be in the way of the next one. Torch's collector can only be
            # stopped by the thread that started it, so this thread does.
            if own.state.has_engine and own._engine.name != "native":
                own.stop()
            own = made(chance)
        if chance.random() < 0.05:
            shared[chance.randrange(len(shared))] = made(chance, ("native",))
        session = chance.choice((own, own, *shared)) or own
        deed = chance.choices(DEEDS, WEIGHTS)[0][1]
        try:
            deed(session, chance)
        except KinetoscopeError as error:
            with counted:
                text = f"{type(error).__name__}: {error}"[:90]
                refused[text] = refused.get(text, 0) + 1
        with counted:
            performed += 1
        if performed >= actions and time.monotonic() - begun >= seconds:
            done.set()
    if hasattr(of_thread, "range"):
        crossing(own, chance)
    if own.state.has_engine:
        own.stop()


def run(work, number):
    try:
        work(number)
    except BaseException as error:
        import traceback
        failures.append("".join(traceback.format_exception(error)))
        done.set()


work = [(trainer, number) for number in range(3)] + [(controller, number) for number in range(3)]
threads = [threading.Thread(target=run, args=one) for one in work[:-1]]
for thread in threads:
    thread.start()
if seconds:
    # A deadlock is a failure that says where everybody waits.
    def watch():
        before = -1
        while not done.wait(300):
            if performed == before:
                faulthandler.dump_traceback(all_threads=True)
                os._exit(3)
            before = performed
    threading.Thread(target=watch, daemon=True).start()
run(*work[-1])
for thread in threads:
    thread.join()
for session in shared:
    if session is not None and session.state.has_engine:
        session.stop()
for text, count in sorted(refused.items(), key=lambda item: -item[1])[:12]:
    print(count, text, file=sys.stderr if failures else sys.stdout)
assert not failures, "\\n".join(failures)
with profile(engine="native") as last:
    torch.ones(3) + 1
assert "aten::add" in {row.key for row in last.key_averages()}
print("performed", performed, "peak_mib", resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024)
"""


@pytest.mark.parametrize("seed", range(times(1, 2)))
def test_random_sessions_beside_threads_that_train(tmp_path, seed):
    done = warm_python.run("-c", PROGRAM, str(SECONDS), str(ACTIONS), str(seed), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    assert int(done.stdout.split()[-3]) >= ACTIONS
