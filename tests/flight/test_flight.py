"""`leave_on` in real training loops, in processes of their own."""

import json
import os
from pathlib import Path

import kinetoscope
from tests.support import warm_python

LOOP = """
import os, sys, warnings
import torch, kinetoscope
torch.set_num_threads(1)
model = torch.nn.Linear(8, 8)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

def train_step():
    loss = model(torch.ones(2, 8)).square().mean()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    return loss

def record_all(recorder):
    recorder._follow_plan = lambda *_: None
    recorder._plan.records = lambda step: True

"""


def run(folder, text, **environment):
    return warm_python.run(
        "-c",
        LOOP + text,
        cwd=folder,
        env={**os.environ, "KINETOSCOPE_DIR": str(folder / "jobs"), **environment},
    )


def incidents(folder: Path) -> dict[str, Path]:
    """The recordings of incidents by reason."""
    found = sorted((folder / "jobs").glob("*/*/incidents/*/rank*.json"))
    return {json.loads(path.read_text())["reason"]: path.with_suffix(".recording") for path in found}


def test_a_snapshot_has_the_steps_with_their_true_numbers(tmp_path):
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        "record_all(recorder)\n"
        "for number in range(5000, 5020):\n"
        "    recorder.step(number)\n"
        "    train_step()\n"
        "print(recorder.snapshot('look'))\n"
        "print(recorder.status())\n"
        "recorder.stop()\n"
        "print(recorder.status())\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    path, status, stopped = done.stdout.splitlines()
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist() == list(range(5000, 5020))
        assert "aten::linear" in trace.table("spans")["name"].to_pylist()
    assert status.startswith("on, step 5,019, overhead not known yet")
    assert stopped == "off: stopped"
    # The ring of a program that ends well is removed; incidents stay.
    assert not list((tmp_path / "jobs").glob("*/*/*.recording"))
    assert list(incidents(tmp_path)) == ["look"]


def test_steps_that_are_not_recorded_leave_no_spans(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder._follow_plan = lambda *_: None\n"
        "    recorder._plan.records = lambda step: step % 4 == 1\n"
        "    for number in range(21):\n"
        "        recorder.step()\n"
        "        train_step()\n"
        "    print(recorder.snapshot('look'))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    with kinetoscope.open(done.stdout.strip()) as trace:
        assert trace.table("steps")["number"].to_pylist() == [1, 5, 9, 13, 17]
        assert trace.table("spans")["name"].to_pylist().count("aten::linear") == 5


def test_a_recording_says_which_share_of_the_steps_it_has(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    for number in range(40, 80):\n"
        "        recorder.step(number)\n"
        "        train_step()\n"
        "    path = recorder.capture(2)\n"
        "    for number in range(80, 83):\n"
        "        recorder.step(number)\n"
        "        train_step()\n"
        "    print(path)\n"
        "    print(recorder.snapshot('look'))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    captured, path = done.stdout.split()
    for one in (captured, path):
        with kinetoscope.open(one) as trace:
            plan = trace.info["step_plan"]
            assert plan["stretches"][0] == [0, 0.25]
            assert plan["asked"] == [[80, 81]]
            losses = [row for row in trace.table("losses").to_pylist() if row["code"] == "sampled_steps"]
            # A capture has all its steps; what it has of the milliseconds before them may be none.
            assert len(losses) == 1 or (one == captured and not losses)
            assert all("recorded 1 of 4 " in loss["why"] for loss in losses)


def test_it_starts_once_another_session_has_ended(tmp_path):
    done = run(
        tmp_path,
        "other = kinetoscope.profile(engine='native')\n"
        "other.start()\n"
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        "record_all(recorder)\n"
        "recorder.step(1)\n"
        "print(recorder.status())\n"
        "assert kinetoscope.leave_on() is recorder\n"
        "train_step()\n"
        "other.stop()\n"
        "for number in (2, 3):\n"
        "    recorder.step(number)\n"
        "    train_step()\n"
        "print(recorder.snapshot('look'))\n"
        "recorder.stop()\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    status, path = done.stdout.splitlines()
    assert status == "off: another session records in this process: starts with the first step after its end"
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist() == [2, 3]


def test_an_exception_is_an_incident(tmp_path):
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        "record_all(recorder)\n"
        "for _ in range(5):\n"
        "    recorder.step()\n"
        "    train_step()\n"
        "raise ValueError('no more data')\n",
    )
    assert done.returncode == 1
    assert done.stderr.endswith("ValueError: no more data\n")
    (path,) = incidents(tmp_path).values()
    told = json.loads(path.with_suffix(".json").read_text())
    assert told["reason"] == "crash"
    assert told["step"] == 4
    assert told["what"].startswith("ValueError: no more data at ")
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist()[:4] == [0, 1, 2, 3]


def test_memory_that_runs_out_is_an_incident(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder.step()\n"
        "    torch.empty(1 << 60)\n",
    )
    assert done.returncode == 1
    assert list(incidents(tmp_path)) == ["oom"]


def test_a_loss_that_is_no_number_is_an_incident(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder.step(40)\n"
        "    recorder.step(loss=train_step())\n"
        "    recorder.step(loss=train_step() / 0)\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    (path,) = incidents(tmp_path).values()
    assert json.loads(path.with_suffix(".json").read_text())["what"] == "the loss of step 41 is inf"


def test_sigterm_is_an_incident(tmp_path):
    done = run(
        tmp_path,
        "import signal\n"
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        "recorder.step()\n"
        "train_step()\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "signal.pause()\n",
    )
    assert done.returncode == -15
    assert list(incidents(tmp_path)) == ["exit"]


def test_the_ring_of_a_killed_program_stays(tmp_path):
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        "record_all(recorder)\n"
        "for number in range(7):\n"
        "    recorder.step(70 + number)\n"
        "    train_step()\n"
        "os.kill(os.getpid(), 9)\n",
    )
    assert done.returncode == -9
    (ring,) = (tmp_path / "jobs").glob("*/0/rank0.recording")
    with kinetoscope.open(ring) as trace:
        assert trace.table("steps")["number"].to_pylist()[:6] == [70, 71, 72, 73, 74, 75]


def test_a_session_inside_records_as_ever(tmp_path):
    done = run(
        tmp_path,
        "cpu = [torch.profiler.ProfilerActivity.CPU]\n"
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder._follow_plan = lambda *_: None\n"
        "    recorder._plan.records = lambda step: False\n"
        "    for _ in range(3):\n"
        "        recorder.step()\n"
        "        train_step()\n"
        "    with kinetoscope.profile(activities=cpu, engine='native') as prof:\n"
        "        for _ in range(3):\n"
        "            recorder.step()\n"
        "            train_step()\n"
        "    print(prof.trace.table('spans')['name'].to_pylist().count('aten::linear'))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "3\n"


def test_a_capture_records_the_next_steps(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder._follow_plan = lambda *_: None\n"
        "    recorder._plan.records = lambda step: False\n"
        "    recorder.step(10)\n"
        "    path = recorder.capture(2)\n"
        "    print(path)\n"
        "    print(recorder.capture(2))\n"
        "    for _ in range(4):\n"
        "        recorder.step()\n"
        "        train_step()\n"
        "    print(recorder.capture(0))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    path, second, none = done.stdout.splitlines()
    assert second == f"another capture is running: {path}"
    assert none == "steps=0: need 1 step or more"
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist() == [11, 12]


def test_a_capture_has_what_was_asked_for_and_not_the_whole_ring(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder._follow_plan = lambda *_: None\n"
        "    recorder._plan.records = lambda step: True\n"
        "    for number in range(300):\n"
        "        recorder.step()\n"
        "        train_step()\n"
        "    ring = recorder.snapshot('all')\n"
        "    path = recorder.capture(1)\n"
        "    canceled = recorder.capture(1) and recorder.cancel_capture()\n"
        "    path = recorder.capture(1)\n"
        "    for _ in range(2):\n"
        "        recorder.step()\n"
        "        train_step()\n"
        "    print(path, ring)\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    path, ring = map(Path, done.stdout.split())
    with kinetoscope.open(path) as trace, kinetoscope.open(ring) as before:
        numbers = trace.table("steps")["number"].to_pylist()
        assert 300 in numbers
        # A few milliseconds before it, of steps of less than one each.
        assert len(trace.table("spans")) < len(before.table("spans")) / 2
    assert len(list(path.parent.glob("*.recording"))) == 1


def test_no_failure_reaches_the_program(tmp_path):
    (tmp_path / "jobs").write_text("a file where the folder should be")
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on()\n"
        "recorder.step()\n"
        "train_step()\n"
        "print(recorder.snapshot(), recorder.status().on, recorder.capture()[:20])\n"
        "recorder.stop()\n",
    )
    assert (done.returncode, done.stdout) == (0, "None False nothing is recorded:\n")
    assert done.stderr.count("UserWarning: the flight recorder is off") == 1


def test_switched_off_by_the_environment(tmp_path):
    done = run(
        tmp_path,
        "recorder = kinetoscope.leave_on()\nrecorder.step()\nprint(recorder.status())\n",
        KINETOSCOPE="off",
    )
    assert (done.stdout, done.stderr) == ("off: switched off by KINETOSCOPE\n", "")
    assert not (tmp_path / "jobs").exists()


def test_a_fork_records_nothing(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder.step()\n"
        "    if os.fork() == 0:\n"
        "        recorder.step()\n"
        "        print(recorder.snapshot())\n"
        "        sys.stdout.flush()\n"
        "        os._exit(0)\n"
        "    os.wait()\n"
        "    print(recorder.status().on)\n",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "None\nTrue\n", "")


def test_a_folder_of_somebody_else_is_refused(tmp_path):
    (tmp_path / "other").mkdir()
    (tmp_path / "jobs").symlink_to(tmp_path / "other")
    done = run(tmp_path, "print(kinetoscope.leave_on().status())\n")
    assert "is a link" in done.stdout
    assert list((tmp_path / "other").iterdir()) == []


def test_steps_that_are_looked_at_together_keep_their_numbers(tmp_path):
    done = run(
        tmp_path,
        "from kinetoscope.flight.step_log import read_step_log\n"
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder._budget.add = lambda *step: False\n"
        "    recorder._budget.together, recorder._plan.level = 4, 3\n"
        "    for number in range(700, 764):\n"
        "        recorder.step(number)\n"
        "        train_step()\n"
        "    print([number for number in range(700, 764) if recorder._plan.records(number)])\n"
        "    path = recorder.snapshot('look')\n"
        "    print(path)\n"
        "    log = read_step_log(path.with_suffix('.steps'))\n"
        "    print(log.number, len(log.steps) < 40)\n"
        "    print([step.number for step in log.steps if step.recorded])\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    planned, path, log, logged = done.stdout.splitlines()
    with kinetoscope.open(path) as trace:
        assert str(trace.table("steps")["number"].to_pylist()) == planned
    assert log == "763 True"
    assert json.loads(logged) == [number for number in json.loads(planned) if number < 763]


def test_a_copy_is_cut_to_the_time_that_is_kept(tmp_path):
    done = run(
        tmp_path,
        "for keep in ('1ms,4MiB', '10min,4MiB'):\n"
        "    with kinetoscope.leave_on(keep=keep) as recorder:\n"
        "        recorder._follow_plan = lambda *_: None\n"
        "        recorder._plan.records = lambda step: step % 2 == 0\n"
        "        for number in range(7000, 7300):\n"
        "            recorder.step(number)\n"
        "            train_step()\n"
        "        path = recorder.snapshot('look')\n"
        "        print(path)\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    kept = []
    for path in done.stdout.splitlines():
        with kinetoscope.open(path) as trace:
            kept.append(trace.table("steps")["number"].to_pylist())
    all_steps = list(range(7000, 7300, 2))
    assert kept[1] == all_steps
    # Short steps: the least number of steps decides. The first one may be cut.
    assert len(kept[0]) < len(all_steps)
    assert kept[0] == all_steps[-len(kept[0]) :]
    assert len(kept[0]) >= 64


def test_what_is_between_two_steps_belongs_to_none(tmp_path):
    done = run(
        tmp_path,
        "import threading, time\n"
        "from kinetoscope.flight.last import last_event\n"
        "from kinetoscope.flight.step_log import read_step_log\n"
        "with kinetoscope.leave_on(keep='8MiB', on=('nan', 'hang')) as recorder:\n"
        "    counted = []\n"
        "    add = recorder._budget.add\n"
        "    def note(step_ns, *others):\n"
        "        counted.append(step_ns)\n"
        "        return add(step_ns, *others)\n"
        "    recorder._budget.add = note\n"
        "    began_ns = time.monotonic_ns()\n"
        "    for number in range(20):\n"
        "        recorder._follow_plan = lambda *_: None\n"
        "        recorder._plan.records = lambda step: step % 4 == 1 and number < 12\n"
        "        # From the 12th on, steps are looked at together.\n"
        "        recorder._count.left = 7 if number == 12 else recorder._count.left\n"
        "        recorder.step(number)\n"
        "        train_step()\n"
        "        if number in (5, 6, 15):\n"
        "            recorder.end_step()\n"
        "            recorder.end_step()\n"
        "            log = read_step_log(recorder.status().ring.with_suffix('.steps'))\n"
        "            assert (log.number, log.began_ns, log.hang_ns) == (number, 0, 0)\n"
        "            torch.ones(3).cumsum(0)\n"
        "            threading.Event().wait(0.5)\n"
        "            if number == 6:\n"
        "                print(last_event(str(os.getpid()), recorder.status().folder).sentence)\n"
        "    log = read_step_log(recorder.status().ring.with_suffix('.steps'))\n"
        "    assert (log.number, log.hang_ns > 0) == (19, True)\n"
        "    recorder.end_step(float('nan'))\n"
        "    # Of all the time, three times half a second were in no step.\n"
        "    print(sum(counted) <= time.monotonic_ns() - began_ns - 1.5e9, len(log.steps))\n"
        "    print(recorder.snapshot('look'))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    sentence, counted, path = done.stdout.splitlines()
    assert sentence == "it runs, after step 6"
    # Those that were looked at together, up to the end of step 15, are one in the log.
    assert counted == "True 15"
    assert (
        json.loads(incidents(tmp_path)["nan"].with_suffix(".json").read_text())["what"]
        == "the loss of step 19 is nan"
    )
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist() == [1, 5, 9]
        names = trace.table("spans")["name"].to_pylist()
        assert names.count("aten::linear") == 3
        assert "aten::cumsum" not in names


def test_what_passes_after_idle_is_part_of_no_step_and_does_not_hang(tmp_path):
    done = run(
        tmp_path,
        "from kinetoscope.flight.step_log import read_step_log\n"
        "recorder = kinetoscope.leave_on(keep='8MiB')\n"
        "record_all(recorder)\n"
        "recorder.idle()\n"
        "for number in range(3):\n"
        "    recorder.step()\n"
        "    train_step()\n"
        "    recorder.idle()\n"
        "    recorder.idle()\n"
        "    torch.zeros(3)\n"
        "log = read_step_log(recorder._log_path)\n"
        "print(log.hang_ns, [step.number for step in log.steps])\n"
        "print(recorder.snapshot('look'))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    log, path = done.stdout.splitlines()
    assert log == "0 [0, 1, 2]"
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist() == [0, 1, 2]
        spans = trace.table("spans").to_pylist()
    assert {row["step"] for row in spans if row["name"] == "aten::zeros"} == {None}


def test_without_calls_of_step_the_optimizer_makes_the_steps(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    print(str(recorder.status()).split(', overhead')[0])\n"
        "    for _ in range(5):\n"
        "        train_step()\n"
        "    print(recorder.status().step)\n"
        "    recorder.step(90)\n"
        "    train_step()\n"
        "    print(recorder.status().step)\n",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "on, no step began\n5\n90\n", "")


def test_steps_that_the_program_marks_are_not_also_those_of_its_optimizer(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    for _ in range(60):\n"
        "        train_step()\n"
        "        recorder.step()\n"
        "    print(recorder.status().step)\n"
        "    print(recorder.snapshot('look'))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    step, path = done.stdout.splitlines()
    assert step == "60"
    with kinetoscope.open(path) as trace:
        steps = trace.table("steps").to_pylist()
    # The last one is under way; the first one began twice, with the step of the optimizer and with the call.
    assert all(row["operators"] for row in steps if 1 < row["number"] < 60), steps
    numbers = [row["number"] for row in steps if row["number"] > 1]
    assert len(numbers) == len(set(numbers)) > 0


def test_a_second_process_of_a_rank_leaves_the_first_one_alone(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder.step(7)\n"
        "    ring = recorder.status().ring\n"
        "    if os.fork() == 0:\n"
        "        warnings.simplefilter('ignore')\n"
        "        second = kinetoscope.leave_on(keep='8MiB')\n"
        "        second.step(3)\n"
        "        assert second.status().ring not in (ring, None), second.status()\n"
        "        second.stop()\n"
        "        os._exit(0)\n"
        "    print(os.wait()[1])\n"
        "    train_step()\n"
        "    recorder.step()\n"
        "    print(sorted(path.name for path in ring.parent.iterdir()))\n",
        LOCAL_RANK="0",
        TORCHELASTIC_RUN_ID="run",
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "0\n['rank0.recording', 'rank0.steps']\n"


def test_a_plan_is_followed_without_python(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder._budget.add = lambda *step: False\n"
        "    calls = []\n"
        "    step = recorder._step\n"
        "    recorder._step = lambda *given: calls.append(given) or step(*given)\n"
        "    for number in range(9000, 9200):\n"
        "        recorder.step(number)\n"
        "        train_step()\n"
        "    print(len(calls) < 100)\n"
        "    print([number for number in range(9000, 9200) if recorder._plan.records(number)])\n"
        "    path = recorder.snapshot('look')\n"
        "    print(path)\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    calls, planned, path = done.stdout.splitlines()
    assert calls == "True"
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist() == json.loads(planned)
        spans = trace.table("spans")["name"].to_pylist()
        assert spans.count("aten::linear") == len(json.loads(planned))
        # One after each recorded step that no other follows, and one before the first.
        last = [number for number in json.loads(planned) if number + 1 not in json.loads(planned)]
        assert len(trace.info["pauses"]) == len(last) + 1


def test_sessions_beside_a_plan_that_is_followed_without_python(tmp_path):
    done = run(
        tmp_path,
        "cpu = [torch.profiler.ProfilerActivity.CPU]\n"
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    number = 0\n"
        "    for _ in range(4):\n"
        "        for inside in (range(23), range(19)):\n"
        "            prof = kinetoscope.profile(activities=cpu, engine='native') if len(inside) == 19 else None\n"
        "            if prof:\n"
        "                prof.start()\n"
        "            for _ in inside:\n"
        "                recorder.step(number)\n"
        "                train_step()\n"
        "                number += 1\n"
        "            if prof:\n"
        "                prof.stop()\n"
        "                print(prof.trace.table('spans')['name'].to_pylist().count('aten::linear'))\n"
        "    print(recorder._count.is_armed, recorder.status().problem)\n"
        "    planned = [one for one in range(number) if recorder._plan.records(one)]\n"
        "    print(planned)\n"
        "    print(recorder.snapshot('look'))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    *found, state, planned, path = done.stdout.splitlines()
    assert found == ["19"] * 4
    assert state == "False "
    with kinetoscope.open(path) as trace:
        numbers = trace.table("steps")["number"].to_pylist()
    assert set(json.loads(planned)) <= set(numbers)


def test_torchs_profiler_sees_its_operators_beside_a_plan_that_is_followed(tmp_path):
    done = run(
        tmp_path,
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    recorder._budget.add = lambda *step: False\n"
        "    for number in range(40):\n"
        "        recorder.step(number)\n"
        "        train_step()\n"
        "    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as prof:\n"
        "        for number in range(40, 60):\n"
        "            recorder.step(number)\n"
        "            train_step()\n"
        "    print(sum(event.count for event in prof.key_averages() if event.key == 'aten::linear'))\n"
        "    print([number for number in range(60) if recorder._plan.records(number)])\n"
        "    print(recorder.snapshot('look'))\n",
    )
    # torch writes lines of its own.
    assert (done.returncode, "Warning" in done.stderr) == (0, False)
    linears, planned, path = done.stdout.splitlines()
    assert linears == "20"
    with kinetoscope.open(path) as trace:
        assert trace.table("steps")["number"].to_pylist() == json.loads(planned)


def test_steps_of_many_threads_and_forks_follow_a_plan_without_harm(tmp_path):
    done = run(
        tmp_path,
        "import threading\n"
        "with kinetoscope.leave_on(keep='8MiB') as recorder:\n"
        "    def work():\n"
        "        for _ in range(200):\n"
        "            recorder.step()\n"
        "            torch.ones(3).sum()\n"
        "    threads = [threading.Thread(target=work) for _ in range(4)]\n"
        "    for thread in threads:\n"
        "        thread.start()\n"
        "    for _ in range(3):\n"
        "        child = os.fork()\n"
        "        if child == 0:\n"
        "            for _ in range(20):\n"
        "                recorder.step()\n"
        "                torch.ones(3).sum()\n"
        "            os._exit(0)\n"
        "        assert os.waitpid(child, 0)[1] == 0\n"
        "        recorder.status()\n"
        "    for thread in threads:\n"
        "        thread.join()\n"
        "    print(recorder.status().step, recorder.status().problem)\n"
        "    print(recorder.snapshot('look'))\n",
    )
    assert (done.returncode, done.stderr) == (0, "")
    step, path = done.stdout.splitlines()
    assert step == "799 "
    with kinetoscope.open(path) as trace:
        assert len(trace.table("steps")) > 0
