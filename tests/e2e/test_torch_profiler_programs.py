"""Programs written against torch.profiler print the same when they import kinetoscope in its place."""

from __future__ import annotations

import contextlib
import inspect
import io
import re
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="the programs record PyTorch")

from torch.autograd.profiler_util import EventList

PROGRAMS = sorted((Path(__file__).parent / "torch_programs").glob("*.py"))
THEIR_IMPORT, OUR_IMPORT = "import torch.profiler as P\n", "import kinetoscope as P\n"
# Memory that torch.profiler did not see being allocated, and its word that a method of its own goes away.
pytestmark = [
    pytest.mark.filterwarnings("ignore:.*Memory block of unknown size.*"),
    pytest.mark.filterwarnings("ignore:.*Profiler clears events at the end of each cycle.*"),
]


def printed(text: str, folder: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """Runs a program in a folder of its own and returns what it printed, without its measured times."""
    folder.mkdir()
    monkeypatch.chdir(folder)
    out = io.StringIO()
    path = folder / "program.py"
    path.write_text(text, encoding="utf-8")
    with contextlib.redirect_stdout(out):
        exec(compile(text, str(path), "exec"), {"__name__": "__main__", "__file__": str(path)})
    return without_times(out.getvalue())


def without_times(text: str) -> str:
    """Replaces times and percentages, and evens out the spaces and lines that their widths move."""
    text = re.sub(r"-?\d+\.\d+(us|ms|s|%)", "#", text)
    text = re.sub(r"-{4,}", "----", text)
    # Tables of torch before 2.8 have b, Kb and Mb.
    text = re.sub(r"(?<=\d )([KMG]?)b\b", r"\1B", text)
    return re.sub(r"[ ]+", " ", text)


@pytest.mark.parametrize("path", PROGRAMS, ids=lambda path: path.stem)
def test_the_program_prints_the_same(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(THEIR_IMPORT) == 1
    if "time_unit" in text and "time_unit" not in inspect.signature(EventList.table).parameters:
        pytest.skip("the table of this torch has no time_unit yet")
    theirs = printed(text, tmp_path / "theirs", monkeypatch)
    ours = printed(text.replace(THEIR_IMPORT, OUR_IMPORT), tmp_path / "ours", monkeypatch)
    assert ours == theirs
    assert theirs.strip() != ""


def test_there_are_enough_programs() -> None:
    assert len(PROGRAMS) >= 25
    assert "torch" in sys.modules
