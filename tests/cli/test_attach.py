"""`kinetoscope attach`: what it says where Python cannot, and what the program runs where it can."""

import os
import sys

import pytest

from kinetoscope.cli.attach import script
from tests.support import warm_python

RUN = """
import sys
{first}
exec(compile(open({file!r}).read(), "attach.py", "exec"))
assert "_attach" not in globals()
"""


@pytest.mark.skipif(sys.version_info >= (3, 14), reason="this Python can attach")
def test_a_python_that_cannot_says_what_to_set(call):
    done = call("attach", os.getpid())
    assert done.exit_code == 1
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    assert f"Python {version} cannot attach to a program that runs, 3.14 can" in done.stderr
    assert "KINETOSCOPE=on KINETOSCOPE_CONTROL=socket" in done.stderr


@pytest.mark.parametrize(
    ("first", "said"),
    [
        ("import torch", "on, no step began, "),
        ("del sys.modules['torch']", "it has not imported torch"),
        (
            "import os; os.environ['KINETOSCOPE_BUDGET'] = 'much'",
            "ArgumentError: budget='much' is not a share",
        ),
    ],
)
def test_the_program_runs_this(tmp_path, first, said):
    file, answer = tmp_path / "attach.py", tmp_path / "answer"
    file.write_text(script(answer))
    done = warm_python.run(
        "-c",
        RUN.format(first=first, file=str(file)),
        env={**os.environ, "KINETOSCOPE_DIR": str(tmp_path / "jobs"), "KINETOSCOPE_KEEP": "8MiB"},
    )
    assert (done.returncode, done.stderr) == (0, "")
    assert answer.read_text().startswith(said)


@pytest.mark.skipif(sys.version_info < (3, 14), reason="only Python 3.14 and newer can attach")
def test_a_program_that_runs_is_left_on(call, tmp_path):
    import subprocess

    program = subprocess.Popen(
        [sys.executable, "-c", "import torch; print(flush=True)\nwhile True: sum(range(1000))"],
        stdout=subprocess.PIPE,
        env={**os.environ, "KINETOSCOPE_DIR": str(tmp_path / "jobs"), "KINETOSCOPE_KEEP": "8MiB"},
    )
    try:
        program.stdout.readline()
        done = call("attach", program.pid, "--wait", "60s")
        assert done.output.startswith(f"process {program.pid}: flight recorder on, no step began, ")
        assert list(tmp_path.glob("jobs/*/0/rank0.control"))
    finally:
        program.kill()
        program.communicate()
