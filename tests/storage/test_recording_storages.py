"""The table `storages` from the rows of a recording, valid or not."""

import base64
import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.model.schema import StorageRole
from kinetoscope.storage.recording import add_storages
from kinetoscope.trace import Trace
from tests.support.trace_builder import START_REALTIME_NS, TraceBuilder


def builder_with_a_model():
    builder = TraceBuilder()
    layer = builder.module("Linear")
    weight = builder.parameter(layer, "weight")
    builder.parameter(-1, "nobody's")
    return builder, layer, weight


def test_owners_are_found_by_their_addresses():
    builder, layer, weight = builder_with_a_model()
    builder.hold("parameter", 0x10, 8, module=layer, name="weight", time_ns=-7)
    builder.hold("optimizer_state", 0x20, 8, parameter=weight, name="exp_avg", time_ns=900)
    builder.hold("gradient", 0x30, 8, parameter=1)
    builder.hold("tensor", 0x40, 8, device=("cuda", 3))
    trace = builder.build()
    held = trace.columns("storages")
    assert held["role"].tolist() == [
        StorageRole.PARAMETER, StorageRole.OPTIMIZER_STATE, StorageRole.GRADIENT, StorageRole.TENSOR,
    ]  # fmt: skip
    assert held["module"].tolist() == [layer, layer, -1, -1]
    assert [trace.strings[name] for name in held["name"]] == ["weight", "exp_avg", "", ""]
    assert held["time_ns"].tolist() == [-7, 900, -1, -1]
    assert (held["device_type"][3], held["device_index"][3]) == (1, 3)
    assert not [key for key in trace.info if key.startswith("storages")]
    assert trace.complete


def test_a_parameter_without_a_gradient_has_the_module_that_registers_it():
    builder = TraceBuilder()
    layer = builder.module("Linear")
    # Not in `parameters`, but another entry names its module.
    builder.hold("parameter", 0x10, 8, module=layer, parameter=5)
    builder.hold("optimizer_state", 0x20, 8, parameter=5)
    assert builder.build().column("storages", "module").tolist() == [layer, layer]


def test_what_cannot_be_looked_at_is_a_loss():
    trace = TraceBuilder().append("storages", {"part": [{"counts": {"skipped_storages": 3}}]}).build()
    assert [(loss["code"], loss["count"]) for loss in trace.losses] == [("skipped_storages", 3)]


def test_they_are_kept_in_a_file(tmp_path):
    builder, layer, _ = builder_with_a_model()
    trace = builder.hold("parameter", 0x10, 8, module=layer, name="weight").build()
    trace.save(tmp_path / "a.ktrace")
    import kinetoscope

    with kinetoscope.open(tmp_path / "a.ktrace") as read:
        for name in trace.columns("storages"):
            assert np.array_equal(read.column("storages", name), trace.column("storages", name)), name


GOOD = {
    "time_ns": [1], "role": [1], "address": [16], "bytes": [8], "device": ["cpu"], "device_index": [-1], "module": [0],
    "parameter": [0], "name": ["weight"],
}  # fmt: skip


@pytest.mark.parametrize(
    "changed",
    [
        {"time_ns": []},
        {"role": [1, 2]},
        {"address": ["16"]},
        {"address": [-1]},
        {"address": [1 << 64]},
        {"bytes": [1.5]},
        {"bytes": [True]},
        {"device": [7]},
        {"name": [None]},
        {"module": None},
        {"role": [300]},
    ],
    ids=str,
)
def test_a_part_that_the_recorder_cannot_have_written_is_left_out_and_counted(changed):
    builder = (
        TraceBuilder().append("storages", {"part": [GOOD | changed]}).append("storages", {"part": [GOOD]})
    )
    trace = builder.build()
    assert len(trace.columns("storages")) == 1
    assert [loss["count"] for loss in trace.losses] == [1]


def test_a_value_instead_of_a_list_is_that_of_all_rows():
    rows = {name: value * 2 for name, value in GOOD.items()} | {"address": [16, 32]}
    once = {name: value[0] for name, value in GOOD.items()} | {"address": [16, 32]}
    first, second = (
        TraceBuilder().append("storages", {"part": [part]}).build().columns("storages")
        for part in (rows, once)
    )
    assert len(first) == 2
    assert all(np.array_equal(first[name], second[name]) for name in first)
    # Without a list or a number nothing says how many rows there are.
    assert (
        TraceBuilder().append("storages", {"part": [once | {"address": 16}]}).build().losses[0]["count"] == 1
    )


def packed(values, dtype):
    return base64.b64encode(np.array(values, dtype=dtype).tobytes()).decode()


def test_numbers_may_be_packed():
    rows = {name: value * 2 for name, value in GOOD.items()} | {"address": [16, 1 << 63], "bytes": [8, 9]}
    once = {name: value[0] for name, value in GOOD.items()} | {
        "address": packed([16, 1 << 63], "<u8"),
        "bytes": packed([8, 9], "<i8"),
        "rows": 2,
    }
    first, second = (
        TraceBuilder().append("storages", {"part": [part]}).build().columns("storages")
        for part in (rows, once)
    )
    assert len(first) == 2
    assert all(np.array_equal(first[name], second[name]) for name in first)


@pytest.mark.parametrize(
    "changed",
    [
        {"address": "AAAA"},
        {"address": "not base64!"},
        {"address": packed([1, 2, 3], "<u8")},
        {"rows": -1},
        {"rows": 1 << 62},
        {"rows": True},
        {"rows": "2"},
    ],
    ids=str,
)
def test_packed_numbers_that_the_recorder_cannot_have_written_are_left_out_and_counted(changed):
    good = {name: value[0] for name, value in GOOD.items()} | {
        "address": packed([16, 32], "<u8"),
        "rows": 2,
    }
    trace = (
        TraceBuilder()
        .append("storages", {"part": [good | changed]})
        .append("storages", {"part": [good]})
        .build()
    )
    assert len(trace.columns("storages")) == 2
    assert [loss["count"] for loss in trace.losses] == [1]


@pytest.mark.parametrize("role", [5, 200])
def test_roles_of_later_releases_are_left_out(role):
    trace = TraceBuilder().append("storages", {"part": [GOOD | {"role": [role]}]}).build()
    assert len(trace.columns("storages")) == 0


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(st.sampled_from([*GOOD, "more"]), json_values | st.lists(st.integers(), max_size=3)),
    json_values,
)
def test_any_json_is_read_without_a_fault(part, skipped):
    seen = [part, json.loads(json.dumps(skipped)), {"counts": {"skipped_storages": skipped}}]
    tables = {"modules": {}, "parameters": {}}
    strings, lost = add_storages(tables, seen, [""], START_REALTIME_NS)
    assert strings[0] == ""
    assert min(lost.values()) >= 0
    assert "storages" in tables or lost["skipped_storages"]


def test_a_trace_without_any_is_as_before():
    trace = TraceBuilder().span("aten::add", 0, 5).build()
    assert isinstance(trace, Trace)
    assert len(trace.columns("storages")) == 0
