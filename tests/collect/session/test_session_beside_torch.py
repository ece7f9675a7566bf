"""The same scenario under torch's profiler and under ours, by the public names alone: what a program sees must be the same."""

import json
import re
import threading
from collections import Counter

import pytest
import torch
import torch.profiler

import kinetoscope
from tests.support.torch_engines import native  # noqa: F401  (a fixture)

SCENARIOS = {}


def scenario(function):
    """A function of a module with the names of `torch.profiler` and a folder; what it returns is compared."""
    SCENARIOS[function.__name__] = function
    return function


@pytest.mark.usefixtures("native")
@pytest.mark.filterwarnings(
    "ignore:.*Profiler clears events", "ignore:.*warmup", "ignore:a finished recording",
    # By torch 2.15; ours records modules.
    "ignore:with_modules is deprecated:FutureWarning",
)  # fmt: skip
@pytest.mark.parametrize("name", SCENARIOS)
def test_the_same_scenario_has_the_same_outcome_as_with_torch(name, tmp_path):
    outcomes = []
    for tp in (torch.profiler, kinetoscope):
        folder = tmp_path / tp.__name__
        folder.mkdir()
        torch.manual_seed(0)
        outcomes.append(SCENARIOS[name](tp, folder))
    assert outcomes[0] == outcomes[1]
    assert outcomes[0], "a scenario that tells nothing compares nothing"


def cpu(tp):
    return [tp.ProfilerActivity.CPU]


def payload(size=4):
    model = torch.nn.Linear(size, 2)
    model(torch.ones(3, size)).sum().backward()


def counted(session):
    return Counter(event.name for event in session.events())


def exported(session, folder):
    path = folder / "trace.json"
    session.export_chrome_trace(str(path))
    return json.loads(path.read_text(encoding="utf-8"))


payload()  # what happens only the first time in a process happens here


@scenario
def every_public_name_and_keyword(tp, _):
    import inspect

    theirs = inspect.signature(torch.profiler.profile).parameters
    ours = inspect.signature(tp.profile).parameters
    shared = {name: (ours[name].default, ours[name].kind) for name in theirs}
    return shared, [hasattr(tp, name) for name in (*torch.profiler.__all__, "itt", "_KinetoProfile")]


@scenario
def cycles_with_a_handler(tp, _):
    seen = []
    with tp.profile(
        activities=cpu(tp),
        schedule=tp.schedule(wait=1, warmup=1, active=2),
        on_trace_ready=lambda prof: seen.append((prof.step_num, prof.current_action.name, counted(prof))),
    ) as prof:
        for _ in range(8):
            payload()
            prof.step()
    return seen, prof.step_num, prof.current_action.name


@scenario
def without_a_schedule_the_handler_is_called_once(tp, _):
    calls = []
    with tp.profile(activities=cpu(tp), on_trace_ready=lambda prof: calls.append(prof.step_num)) as prof:
        for _ in range(3):
            payload()
            prof.step()
    return calls, counted(prof)


@scenario
def schedules(tp, _):
    numbers = [
        {"skip_first": 2, "wait": 1, "warmup": 1, "active": 2, "repeat": 2},
        {"wait": 0, "warmup": 1, "active": 1},
        {"wait": 3, "warmup": 0, "active": 1, "repeat": 1},
        {"skip_first": 1, "skip_first_wait": 1, "wait": 4, "warmup": 1, "active": 2},
    ]
    return [[tp.schedule(**one)(step).name for step in range(14)] for one in numbers]


@scenario
def started_and_stopped_by_hand_twice(tp, _):
    prof = tp.profile(activities=cpu(tp), record_shapes=True)
    seen = []
    for size in (3, 5):
        prof.start()
        payload(size)
        prof.stop()
        seen.append(
            (counted(prof), [event.input_shapes for event in prof.events() if event.name == "aten::addmm"])
        )
    return seen


@scenario
def the_low_level_session(tp, _):
    prof = tp._KinetoProfile(activities=cpu(tp))
    prof.prepare_trace()
    payload()
    prof.start_trace()
    payload()
    prof.stop_trace()
    return counted(prof)


@scenario
def an_exception_in_the_program(tp, folder):
    prof = tp.profile(activities=cpu(tp), schedule=tp.schedule(wait=0, warmup=0, active=9))
    with pytest.raises(ZeroDivisionError), prof:
        payload()
        prof.step()
        payload()
        1 / 0
    marks = {
        event["name"]
        for event in exported(prof, folder)["traceEvents"]
        if event["name"].startswith("ProfilerStep")
    }
    return counted(prof), marks


@scenario
def an_exception_in_the_handler_gets_out(tp, _):
    def fail(prof):
        raise KeyError(prof.step_num)

    raised = []
    prof = tp.profile(
        activities=cpu(tp), schedule=tp.schedule(wait=0, warmup=1, active=1, repeat=1), on_trace_ready=fail
    )
    prof.start()
    for _ in range(2):
        payload()
        try:
            prof.step()
        except KeyError as error:
            raised.append(str(error))
    prof.stop()
    return raised, counted(prof)


@scenario
def a_step_that_nobody_started_is_counted(tp, _):
    prof = tp.profile(activities=cpu(tp), schedule=tp.schedule(wait=9, warmup=1, active=1))
    for _ in range(3):
        prof.step()
    number = prof.step_num
    if tp is kinetoscope:
        with pytest.warns(UserWarning, match="nothing was recorded"):
            prof.stop()
    return number


@scenario
def metadata_of_the_program(tp, folder):
    prof = tp.profile(activities=cpu(tp))
    prof.preset_metadata_json("preset", '{"a": [1, null]}')
    with prof:
        payload()
        prof.add_metadata("text", "plain words")  # torch's file breaks with quotes in them
        prof.add_metadata_json("list", "[1, 2, 3]")
    described = exported(prof, folder)
    return {key: described[key] for key in ("preset", "text", "list")}


@scenario
def preset_metadata_is_in_every_cycle_and_other_only_in_its_own(tp, folder):
    seen = []

    def look(prof):
        described = exported(prof, folder)
        seen.append((described.get("preset"), described.get("once")))

    prof = tp.profile(
        activities=cpu(tp), schedule=tp.schedule(wait=0, warmup=1, active=1), on_trace_ready=look
    )
    prof.preset_metadata_json("preset", "7")
    with prof:
        for step in range(4):
            payload()
            if step == 3:
                prof.add_metadata_json("once", "true")
            prof.step()
    return seen


@scenario
def each_flag_is_a_key_of_the_file(tp, folder):
    flags = ("record_shapes", "profile_memory", "with_stack", "with_modules", "with_flops")
    seen = {}
    for flag in flags:
        with tp.profile(activities=cpu(tp), **{flag: True}) as prof:
            payload()
        described = exported(prof, folder)
        seen[flag] = {key: described[key] for key in flags if key in described}
    return seen


@scenario
def the_files_of_the_tensorboard_handler(tp, folder):
    with tp.profile(
        activities=cpu(tp),
        schedule=tp.schedule(wait=1, warmup=1, active=1),
        on_trace_ready=tp.tensorboard_trace_handler(str(folder / "new" / "logs"), worker_name="worker0"),
    ) as prof:
        for _ in range(9):
            payload()
            prof.step()
    names = sorted(path.name for path in (folder / "new" / "logs").iterdir())
    return [re.sub(r"\d{15,}", "N", name) for name in names]


@scenario
def ranges_of_every_kind(tp, folder):
    @tp.record_function("decorated")
    def work():
        torch.ones(2).add(1)

    with tp.profile(activities=cpu(tp)) as prof:
        work()
        with tp.record_function("outer"), tp.record_function("inner range"):
            work()
    events = exported(prof, folder)["traceEvents"]
    marks = Counter(event["name"] for event in events if event.get("cat") == "user_annotation")
    return marks, counted(prof), sorted(event.name for event in prof.events() if event.is_user_annotation)


@scenario
def averages_by_shape(tp, _):
    with tp.profile(activities=cpu(tp), record_shapes=True) as prof:
        for size in (3, 3, 5):
            payload(size)
    return sorted(
        (row.key, str(row.input_shapes), row.count) for row in prof.key_averages(group_by_input_shape=True)
    )


@scenario
def backward_on_its_own_thread(tp, _):
    with tp.profile(activities=cpu(tp)) as prof:
        payload()
    events = prof.events()
    by_forward = {event.name for event in events if event.fwd_thread is not None and event.sequence_nr >= 0}
    return sorted(name for name in by_forward if "Backward" in name)


@scenario
def toggling_off_and_on(tp, _):
    with tp.profile(activities=cpu(tp)) as prof:
        torch.ones(2).add(1)
        prof.toggle_collection_dynamic(False, cpu(tp))
        torch.ones(2).sub(1)
        prof.toggle_collection_dynamic(True, cpu(tp))
        torch.ones(2).mul(2)
    return {name for name in counted(prof) if name in ("aten::add", "aten::sub", "aten::mul")}


@scenario
def a_session_in_another_thread(tp, _):
    seen = []

    def work():
        with tp.profile(activities=cpu(tp)) as prof:
            payload()
        seen.append(counted(prof))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    return seen


@scenario
def everything_can_be_asked_for_in_the_handler(tp, folder):
    seen = []

    def handler(prof):
        prof.export_chrome_trace(str(folder / "trace.json.gz"))
        prof.export_stacks(str(folder / "stacks.txt"), "self_cpu_time_total")
        table = prof.key_averages().table(sort_by="self_cpu_time_total", row_limit=3)
        seen.append(
            (
                # torch counts each Python call as an event too.
                {name: count for name, count in counted(prof).items() if name.startswith("aten::")},
                (folder / "trace.json.gz").read_bytes()[:2],
                (folder / "stacks.txt").exists(),
                "Name" in table,
            )
        )

    with tp.profile(activities=cpu(tp), with_stack=True, on_trace_ready=handler):
        payload()
    return seen


@scenario
def statistics_are_filled_when_events_are_asked_for(tp, _):
    prof = tp.profile(activities=cpu(tp))
    before = prof._stats()
    with prof:
        payload()
    told = prof._stats()
    early = (told.number_of_events, told.function_events_build_tree_call_duration_us)
    prof.events()
    late = prof._stats()
    return before, early, late.number_of_events > 0, late.function_events_build_tree_call_duration_us > 0
