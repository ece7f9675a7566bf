"""Module paths as `named_modules()` spells them."""

from hypothesis import given
from hypothesis import strategies as st

from kinetoscope.trace import Trace
from tests.support.trace_builder import TraceBuilder


def paths(builder):
    return builder.build().columns("modules")["path"]


def test_a_path_is_what_named_modules_says():
    builder = TraceBuilder()
    model = builder.module("GPT")
    layers = builder.module("ModuleList", name="layers", parent=model)
    block = builder.module("Block", name="3", parent=layers)
    builder.module("Linear", name="attn", parent=block)
    assert paths(builder) == ["GPT", "layers", "layers.3", "layers.3.attn"]
    assert builder.build().column("modules", "depth").tolist() == [0, 1, 2, 3]


def test_a_child_may_be_seen_before_its_parent():
    builder = TraceBuilder()
    builder.module("Linear", name="fc", parent=1)
    builder.module("Net")
    assert paths(builder) == ["fc", "Net"]


def test_roots_with_paths_in_common_lead_their_paths():
    builder = TraceBuilder()
    for cls in ("Generator", "Critic", "Critic"):
        root = builder.module(cls)
        builder.module("Linear", name="fc", parent=root)
    alone = builder.module("Embedder")
    builder.module("Linear", name="only", parent=alone)
    assert paths(builder) == [
        "Generator", "Generator.fc", "Critic", "Critic.fc", "Critic#2", "Critic#2.fc", "Embedder", "only",
    ]  # fmt: skip


def test_a_module_nobody_registers_is_shown_below_its_caller():
    builder = TraceBuilder()
    net = builder.module("Net")
    builder.module("Adapter", caller=net)
    assert paths(builder) == ["Net", "Adapter"]
    assert builder.build().column("modules", "holder").tolist() == [-1, 0]


def test_circles_in_a_damaged_file_are_cut():
    builder = TraceBuilder()
    builder.module("A", name="a", parent=1)
    builder.module("B", name="b", parent=0)
    builder.module("C", name="c", parent=2)
    assert len(paths(builder)) == 3


@given(st.lists(st.tuples(st.integers(-1, 9), st.integers(-1, 9)), min_size=10, max_size=10))
def test_any_links_give_paths_and_depths(links):
    modules = {
        "parent": [parent for parent, _ in links],
        "caller": [caller for _, caller in links],
        "name": [1] * 10,
        "class": [2] * 10,
    }
    trace = Trace.from_columns({"modules": modules}, strings=["", "child", "Class"])
    columns = trace.columns("modules")
    holders, depths = columns["holder"].tolist(), columns["depth"].tolist()
    assert len(columns["path"]) == 10
    for row, holder in enumerate(holders):
        assert depths[row] == (0 if holder < 0 else depths[holder] + 1)
