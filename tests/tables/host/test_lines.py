"""Source lines, and which frames are the user's."""

import pytest

from kinetoscope.tables.stacks import user_frames, user_stacks
from tests.support.trace_builder import TraceBuilder

TORCH = "/venv/lib/python3.11/site-packages/torch/nn/modules/linear.py"


def lines(trace):
    return {(row["file"], row["line"]): row for row in trace.table("lines").to_pylist()}


def program():
    builder = TraceBuilder()
    call = builder.stack(("train.py", 9, "main"), ("net.py", 4, "forward"), (TORCH, 100, "Linear.forward"))
    direct = builder.stack(("train.py", 9, "main"))
    backward = builder.stack(("train.py", 10, "main"))
    builder.span("aten::linear", 0, 100, stack=call, sequence=1)
    builder.span("aten::sum", 200, 10, stack=direct)
    builder.backward("LinearBackward0", 300, 50, sequence=1, stack=backward)
    builder.span("aten::loose", 400, 40)
    return builder.build()


def test_a_line_is_the_innermost_one_of_the_user():
    found = lines(program())
    assert set(found) == {("net.py", 4), ("train.py", 9)}
    inner, outer = found["net.py", 4], found["train.py", 9]
    assert (inner["self_ns"], inner["total_ns"], inner["backward_self_ns"], inner["count"]) == (
        152,
        152,
        52,
        3,
    )
    assert (outer["self_ns"], outer["total_ns"], outer["backward_self_ns"], outer["count"]) == (10, 162, 0, 1)
    assert inner["function"] == "forward"
    assert inner["self_percent"] == pytest.approx(100 * 152 / 202)


def test_what_torch_calls_of_pythons_standard_library_is_torchs_own():
    library = "/usr/lib/python3.11/contextlib.py"
    builder = TraceBuilder()
    line, torch = ("train.py", 9, "main"), (TORCH, 8, "compile")
    enter, inner = (library, 137, "__enter__"), (library, 20, "inner")
    builder.span("aten::add", 0, 10, stack=builder.stack(line, torch, enter))
    builder.span("aten::mul", 20, 30, stack=builder.stack(line, torch, enter, inner))
    builder.span("aten::div", 60, 5, stack=builder.stack(line, enter, inner))
    builder.span(
        "aten::sub", 70, 7, stack=builder.stack(line, torch, enter, ("/home/me/python3/hook.py", 3, "hook"))
    )
    builder.span("aten::exp", 80, 2, stack=builder.stack(enter, torch))
    found = {place: (row["self_ns"], row["total_ns"]) for place, row in lines(builder.build()).items()}
    assert found == {
        ("train.py", 9): (40, 52),
        (library, 20): (5, 5),
        (library, 137): (2, 7),
        ("/home/me/python3/hook.py", 3): (7, 7),
    }


def test_a_line_that_calls_itself_counts_once():
    builder = TraceBuilder()
    frame = ("fib.py", 2, "fib")
    for depth in (1, 2, 3):
        builder.span("aten::add", depth * 100, 10, stack=builder.stack(*[frame] * depth))
    row = lines(builder.build())["fib.py", 2]
    assert (row["self_ns"], row["total_ns"], row["count"]) == (30, 30, 3)
    assert row["total_percent"] == 100


def test_a_stack_without_user_code_shows_its_innermost_frame():
    builder = TraceBuilder()
    builder.span("aten::add", 0, 10, stack=builder.stack((TORCH, 1, "a"), (TORCH, 2, "b")))
    assert {key: row["self_ns"] for key, row in lines(builder.build()).items()} == {(TORCH, 2): 10}


def test_stacks_of_torchs_own_collector_name_files_without_their_folder():
    stack = [
        ("train.py", 9, "main"),
        ("torch/nn/modules/linear.py", 100, "forward"),
        ("", 0, "<built-in function linear>"),
    ]
    builder = TraceBuilder()
    builder.span("aten::linear", 0, 10, stack=builder.stack(*stack))
    found = lines(builder.build())
    assert {key: row["self_ns"] for key, row in found.items()} == {("train.py", 9): 10}


@pytest.mark.parametrize(
    ("file", "is_user"),
    [
        ("torch/nn/functional.py", False), ("torchvision/models/resnet.py", False), ("kinetoscope/collect/session/profile.py", False),
        ("kinetoscope/examples/train_gpt.py", True), ("torch_geometric/nn/conv.py", True), ("train.py", True), ("", False),
        ("/home/me/torch/train.py", True), ("transformers/models/bert.py", True),
    ],
)  # fmt: skip
def test_which_files_of_torchs_own_collector_are_the_users(file, is_user):
    builder = TraceBuilder()
    builder.span("aten::add", 0, 10, stack=builder.stack((file, 1, "f")))
    assert user_frames(builder.build()).tolist() == [is_user]


def test_no_stacks_no_lines():
    assert TraceBuilder().span("aten::add", 0, 5).build().table("lines").num_rows == 0


@pytest.mark.parametrize(
    ("file", "is_user"),
    [
        ("/home/me/train.py", True),
        ("train.py", True),
        ("<string>", True),
        ("/home/me/torch/train.py", True),
        ("/home/me/kinetoscope/train.py", True),
        ("/venv/lib/python3.11/site-packages/mylib/net.py", True),
        ("/venv/lib/python3.11/site-packages/transformers/torch/net.py", True),
        ("/venv/lib/python3.11/site-packages/kinetoscope/examples/gpt.py", True),
        ("/src/kinetoscope/examples/gpt.py", True),
        (TORCH, False),
        ("C:\\Python\\Lib\\site-packages\\torch\\nn\\functional.py", False),
        ("/usr/lib/python3/dist-packages/torch/optim/adam.py", False),
        ("/venv/lib/python3.11/site-packages/torchgen/x.py", False),
        ("/src/kinetoscope/cli/run.py", False),
        ("/src/kinetoscope/__main__.py", False),
        ("<frozen runpy>", False),
        ("/tmp/torchinductor_me/f7/cf7nxxy5p2ynobfxyxxx55hfgdbhwgs2cefogjtsfbs6d6zc5jrt.py", False),
        ("/home/me/f7/cf7.py", True),
    ],
)
def test_whose_a_file_is(file, is_user):
    builder = TraceBuilder()
    builder.stack((file, 1, "f"))
    assert user_frames(builder.build()).tolist() == [is_user]


def test_a_torch_built_in_place_is_found_by_a_file_it_must_have():
    builder = TraceBuilder()
    builder.stack(
        ("/src/pytorch/torch/nn/modules/module.py", 1, "f"), ("/src/pytorch/torch/nn/functional.py", 1, "g")
    )
    assert user_frames(builder.build()).tolist() == [False, False]


def test_user_stacks_point_up_to_the_user():
    builder = TraceBuilder()
    outer = builder.stack(("a.py", 1, "main"))
    inner = builder.stack(("a.py", 1, "main"), (TORCH, 2, "f"), (TORCH, 3, "g"))
    assert user_stacks(builder.build())[[outer, inner]].tolist() == [outer, outer]
