"""The metadata of a run as typed values, whatever a file holds."""

import copy
import dataclasses
import json
import pickle
import typing

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope
from kinetoscope.model import run_info
from kinetoscope.model.run_info import ClockChecks, DeviceName, Metadata, ProcessGroup, RunInfo
from tests.support.trace_builder import TraceBuilder

KEYS = [
    *(field.name for field in dataclasses.fields(RunInfo)), "distributedInfo", "deviceProperties", "cycle", "host_name",
]  # fmt: skip
VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["rank", "index", "id", "name", "type", "pg_config", "number", *KEYS[:9]]), inner, max_size=4
        )
    ),
    max_leaves=12,
)  # fmt: skip


def has_type(value, kind):
    """Whether a value is of an annotated type; a bool does not pass for a number."""
    origin, arguments = typing.get_origin(kind), typing.get_args(kind)
    if origin is tuple:
        return isinstance(value, tuple) and all(has_type(one, arguments[0]) for one in value)
    if origin is frozenset:
        return isinstance(value, frozenset) and all(has_type(one, arguments[0]) for one in value)
    if arguments:
        return any(has_type(value, one) for one in arguments)
    if kind is typing.Any:
        return True
    if dataclasses.is_dataclass(kind):
        return isinstance(value, kind) and is_typed(value)
    return type(value) is kind


def is_typed(made):
    kinds = typing.get_type_hints(type(made), vars(run_info))
    return all(has_type(getattr(made, name), kind) for name, kind in kinds.items())


@given(st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=6))
def test_whatever_a_file_states_the_values_have_their_types(info):
    assert is_typed(RunInfo.of(info))


def test_nothing_stated_is_the_default_of_each_field():
    assert RunInfo.of({}) == RunInfo()


def test_what_is_stated_is_read():
    info = {
        "complete": False,
        "cycle": {"number": 3},
        "distributedInfo": {
            "rank": 1, "world_size": 4, "backend": "gloo", "pg_config": [{"pg_name": "0", "ranks": [0, 1]}],
        },
        "devices": [{"type": "cpu", "index": -1, "name": "Xeon"}, {"type": "cuda"}],
        "clock_checks": {"readings": 2, "largest_error_ns": -5, "device_calls": "many"},
        "program": {"command": ["train.py", "--lr", 1], "ended": "exit code 0"},
        "command_line": ["a b.py", "-x"],
        "with_stack": 1,
        "profile_memory": False,
        "processes": [{"process": 7, "rank": 0}, "?"],
    }  # fmt: skip
    run = RunInfo.of(info)
    assert (run.complete, run.cycle_number, run.rank, run.world_size, run.backend) == (False, 3, 1, 4, "gloo")
    assert run.process_groups == (ProcessGroup("0", (0, 1)),)
    assert run.devices == (DeviceName("cpu", -1, "Xeon"),)
    assert run.clock_checks == ClockChecks(readings=2, largest_error_ns=-5)
    assert (run.program, run.program_ended) == (("train.py", "--lr", "1"), "exit code 0")
    assert run.command == "'a b.py' -x"
    assert (run.with_stack, run.profile_memory, run.with_flops) == (True, False, None)
    assert [(one.process, one.rank) for one in run.processes] == [(7, 0), (None, None)]


def test_a_rank_may_stand_by_itself():
    assert RunInfo.of({"rank": 5}).rank == 5
    assert RunInfo.of({"rank": 5, "distributedInfo": {"rank": 2}}).rank == 2


@pytest.mark.parametrize(
    ("change", "rank"),
    [
        (lambda info: info.update(rank=2), 2),
        (lambda info: info.__setitem__("rank", 3), 3),
        (lambda info: info.__ior__({"rank": 4}), 4),
        (lambda info: info.pop("rank"), None),
        (lambda info: info.__delitem__("rank"), None),
        (lambda info: info.clear(), None),
        (lambda info: info.popitem(), None),
        (lambda info: info.setdefault("rank", 9), 1),
    ],
    ids=["update", "set", "or", "pop", "delete", "clear", "popitem", "setdefault"],
)
def test_the_typed_values_follow_every_change(change, rank):
    info = Metadata({"process": 5, "rank": 1})
    assert info.typed.rank == 1
    change(info)
    assert info.typed.rank == rank


def test_for_users_they_are_a_dictionary():
    trace = TraceBuilder().span("x", 0, 1).build()
    trace.info["rank"] = 3
    assert trace.run_info.rank == 3
    assert json.loads(json.dumps(trace.info)) == trace.info == dict(trace.info)
    for other in (pickle.loads(pickle.dumps(trace.info)), copy.deepcopy(trace.info)):
        assert other == trace.info
        assert other.typed == trace.run_info


def test_a_real_recording_states_who_and_where():
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], with_stack=True) as session:
        torch.ones(2).add(1)
    run = session.trace.run_info
    assert run.engine in ("native", "kineto")
    assert run.torch_version == torch.__version__
    assert run.with_stack is True
    assert run.record_shapes is None
    assert run.start_realtime_ns > 10**18
    assert run.process == session.trace.info["process"]
    assert run.devices[0].type == "cpu"


def test_work_on_a_device_of_another_number_has_the_properties_of_devices_that_are_alike():
    devices = [{"id": number, "name": "AMD Instinct MI300X", "totalGlobalMem": 192} for number in range(2)]
    run = RunInfo.of({"deviceProperties": devices})
    assert run.properties_of(1).index == 1
    assert run.properties_of(9).name == "AMD Instinct MI300X"
    other = {"id": 2, "name": "AMD Radeon", "totalGlobalMem": 8}
    run = RunInfo.of({"deviceProperties": [*devices, other]})
    assert (run.properties_of(2).name, run.properties_of(9)) == ("AMD Radeon", None)
    assert RunInfo.of({}).properties_of(0) is None
