"""Calls rebuilt from stacks against torch.profiler's, which records them, for programs of all shapes."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

import pytest

pytest.importorskip("torch", reason="the comparison is with torch's own profiler")

import torch
from hypothesis import given
from hypothesis import strategies as st

import kinetoscope
from tests.support.chrome_file import read_strictly, slices

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

FUNCTIONS = 4
RECURSIONS = 3
FILE = "generated_calls.py"
HEADER = """
class Both(torch.nn.Module):
    def forward(self, x):
        torch.tensor(1)
        torch.tensor(2)
        return x
both = Both()
calls = [0]
def every_other():
    calls[0] += 1
    return calls[0] % 2
def resumed(x):
    yield x + 1
    yield torch.tensor([[1.0, 2.0]])
def decorated(function):
    def wrapper(x):
        return function(x)
    return wrapper
"""


class Body:
    """What a function does in one call, which is bounded: loops, calls and recursion multiply each other.

    Attributes:
        number: The function calls only later ones and, guarded, itself.
        statements_of: At most how many statements a call of each later function runs.
    """

    def __init__(self, number: int, statements_of: dict[int, int]) -> None:
        self.number, self.statements_of = number, statements_of
        self._statements, self._recursions = 0, 0
        # Deeper functions are called more often.
        self._most = 25 * 4 ** (FUNCTIONS - 1 - number)

    @property
    def statements(self) -> int:
        """At most how many statements a call runs, with those of all that it calls."""
        return self._statements * sum(self._recursions**level for level in range(RECURSIONS + 1))

    def takes(self, statements: int, recursions: int = 0) -> bool:
        """Adds so many statements and calls of itself to a call, unless it would then run too many."""
        before = self._statements, self._recursions
        self._statements += statements
        self._recursions += recursions
        if self.statements > self._most:
            self._statements, self._recursions = before
            return False
        return True


def lines(draw: Any, body: Body, depth: int, runs: int) -> list[str]:
    """Statements of a function that run at most `runs` times in a call of it."""
    simple = ["x + 1", "torch.tensor(3)", "x[0, 1]", "x.tolist()", "both(x)", "list(resumed(x))", "None"]
    calls = [(form, later) for later in body.statements_of for form in CALLS]
    made: list[str] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["simple", "call", "for", "if", "while", "recur", "return"]))
        if kind in ("for", "if", "while") and depth < 2:
            head = {
                "for": "for _ in range(2):",
                "if": "if every_other():",
                "while": f"turns{depth} = 2\nwhile turns{depth}:\n    turns{depth} -= 1",
            }[kind].splitlines()
            inner = lines(draw, body, depth + 1, runs if kind == "if" else 2 * runs)
            made += [*head, *(f"    {line}" for line in inner)]
        elif kind == "call" and calls:
            form, later = draw(st.sampled_from(calls))
            fits = body.takes(runs * (1 + 2 * body.statements_of[later]))
            made.append(form.format(f"f{later}") if fits else "None")
        elif kind == "recur":
            fits = body.takes(runs, recursions=runs)
            made.append(f"if len(stack) < {RECURSIONS}: recur(f{body.number}, x)" if fits else "None")
        elif kind == "return" and depth:
            made.append("if every_other(): return x")
        else:
            statement = draw(st.sampled_from(simple))
            made.append(statement if body.takes(runs) else "None")
    return made


# Each calls the function at most twice.
CALLS = (
    "{}(x)", "[{}(x) for _ in range(2)]", "list(map({}, [x, x]))", "decorated({})(x)", "[*map({}, resumed(x))]",
    "sorted([1, 2], key=lambda _: {}(x) is None)", "for y in resumed(x): {}(x)", "max({}(x) is x, False)",
)  # fmt: skip


@st.composite
def programs(draw: Any) -> str:
    text = [
        HEADER,
        "stack = []",
        "def recur(function, x):",
        "    stack.append(1)",
        "    function(x)",
        "    stack.pop()",
    ]
    statements_of: dict[int, int] = {}
    for number in reversed(range(FUNCTIONS)):
        body = Body(number, dict(statements_of))
        text += [f"def f{number}(x):", *(f"    {line}" for line in lines(draw, body, 0, 1)), "    return x"]
        statements_of[number] = body.statements
    text += [
        "def program():",
        "    x = torch.ones(2, 2)",
        f"    for _ in range({draw(st.integers(1, 3))}): f0(x)",
    ]
    return "\n".join(text)


def program_of(source: str) -> Callable[[], None]:
    names: dict[str, Any] = {"torch": torch}
    exec(compile(source, FILE, "exec"), names)
    return names["program"]


def name_of(text: str) -> str | None:
    """The function: torch gives a generator the line that it goes on at."""
    return text.rpartition("): ")[2] if FILE in text or text.startswith("nn.Module") else None


def rebuilt(program: Callable[[], None], path: Path) -> tuple[Counter[str], set[str]]:
    """How many slices each function has, and the functions of which some slice may be several calls."""
    with kinetoscope.profile(activities=[kinetoscope.ProfilerActivity.CPU], with_stack=True) as session:
        program()
    session.export_chrome_trace(str(path))
    counts, unsure = Counter[str](), set[str]()
    for event in slices(read_strictly(path)):
        if (name := name_of(event["name"])) is not None:
            counts[name] += 1
            if "Calls" in event.get("args", {}):
                unsure.add(name)
    assert not any(average.key in counts for average in session.key_averages())
    return counts, unsure


def recorded(program: Callable[[], None]) -> Counter[str]:
    """How many calls of each function ran an operator."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], with_stack=True) as session:
        program()
    counts = Counter[str]()

    def runs_operators(event: Any) -> bool:
        tag = str(event.tag)
        inside = [runs_operators(child) for child in event.children]
        is_call = "PyCall" in tag
        works = any(inside) or "TorchOp" in tag
        if is_call and works and (name := name_of(event.name)) is not None:
            counts[name] += 1
        return works

    for event in session.profiler.kineto_results.experimental_event_tree():
        runs_operators(event)
    return counts


def check(source: str, path: Path) -> None:
    counts, unsure = rebuilt(program_of(source), path)
    expected = recorded(program_of(source))
    assert set(counts) == set(expected)
    for name, count in counts.items():
        assert count <= expected[name], (name, counts, expected)
        if name not in unsure:
            assert count == expected[name], (name, counts, expected)


def test_an_operator_call_in_c_splits_no_function(tmp_path: Path) -> None:
    source = f"{HEADER}\ndef f0():\n    torch.tensor(3)\ndef program():\n    for _ in range(5): f0()"
    counts, unsure = rebuilt(program_of(source), tmp_path / "trace.json")
    assert counts["f0"] == 1
    assert "f0" in unsure


def test_calls_are_several_where_a_new_one_must_have_begun(tmp_path: Path) -> None:
    source = f"{HEADER}\ndef f0(x):\n    y = x + 1\n    return y * 2\ndef program():\n    for _ in range(5): f0(torch.ones(1))"
    counts, unsure = rebuilt(program_of(source), tmp_path / "trace.json")
    assert counts["f0"] == 5
    assert "f0" not in unsure


@given(source=programs())
def test_calls_are_counted_as_torch_does_or_not_at_all(
    source: str, tmp_path_factory: pytest.TempPathFactory
) -> None:
    check(source, tmp_path_factory.mktemp("calls") / "trace.json")
