"""The slow programs of `benchmarks/unlisted/` can be read and run, and their twins give the same results."""

import ast
import re

import pytest

from benchmarks.unlisted_programs import FOLDER, programs, read_program
from tests.support import warm_python
from tests.support.effort import STRESS

PROGRAMS = {program.name: program for program in programs()}
# One whose results are close to each other, and one whose are equal.
SMALL = ("calling_lines", "speech_errors")


def result_of(program, side, folder):
    """Runs one side, and returns the line that it prints."""
    source = folder / f"{program.name}_{side}.py"
    source.write_text(program.source(side), encoding="utf-8")
    done = warm_python.run(source, cwd=folder)
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def numbers_of(line):
    """The numbers of a line."""
    return [float(number) for number in re.findall(r"-?\d+(?:\.\d+)?", line)]


def test_there_are_135_programs_and_21_have_two_faults():
    assert len(PROGRAMS) == 135
    assert sum(len(program.faults) == 2 for program in PROGRAMS.values()) == 21


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_sides_compile_and_the_marked_lines_have_code(name):
    program = PROGRAMS[name]
    compile(program.mended, f"{name}_mended.py", "exec")
    nodes = ast.walk(ast.parse(program.slow))
    with_code = {
        line
        for node in nodes
        if isinstance(node, (ast.stmt, ast.expr))
        for line in range(node.lineno, node.end_lineno + 1)
    }
    assert program.slow != program.mended
    for fault in program.faults:
        assert fault.places <= with_code
        re.compile(fault.cause, re.IGNORECASE)


@pytest.mark.parametrize("name", PROGRAMS if STRESS else SMALL)
def test_a_twin_gives_the_same_result(name, tmp_path):
    program = PROGRAMS[name]
    slow, mended = (result_of(program, side, tmp_path) for side in ("slow", "mended"))
    assert slow
    if program.same == "equal":
        assert mended == slow
    elif program.same == "close":
        assert numbers_of(mended) == pytest.approx(numbers_of(slow), rel=0.02, abs=0.02)
    else:
        assert len(numbers_of(mended)) == len(numbers_of(slow))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("#: kind: a\n#: cause: b\n#: same: equal\n? x = 1\n", "which program has the line"),
        ("#: kind: a\n#: same: equal\n! x = 1\n", "needs a kind and a cause"),
        ("#: kind: a\n#: cause: b\n#: same: equal\n- x = 1\n", "no line that a person should be led to"),
    ],
)
def test_a_file_that_says_too_little_is_refused(text, message, tmp_path):
    path = tmp_path / "program.py.diff"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=message):
        read_program(path)


def test_lines_of_each_side_and_fault_are_told_apart(tmp_path):
    path = tmp_path / "program.py.diff"
    path.write_text(
        "#: kind: first\n#: cause: a\n#: fault: 2\n#: kind: second\n#: cause: b\n#: same: close\n"
        "  start\n!1first\n- between\n*2second\n+ better\n",
        encoding="utf-8",
    )
    program = read_program(path)
    assert program.slow == "start\nfirst\nbetween\nsecond\n"
    assert program.mended == "start\nsecond\nbetter\n"
    assert [fault.places for fault in program.faults] == [{2}, {4}]


def test_every_file_of_the_folder_is_a_program():
    assert len(list(FOLDER.iterdir())) == len(PROGRAMS)
