"""The memory peak of a program that `kinetoscope run` reports: that of the program, not of reading its trace."""

import pytest

from tests.support import warm_python

pytest.importorskip("torch", reason="the program computes with PyTorch")

SCRIPT = """
from pathlib import Path
from kinetoscope.collect import RecordingOptions
from kinetoscope.launcher.options import LaunchOptions
from kinetoscope.launcher.program import Program
from kinetoscope.launcher.run import ProgramRun, RunObserver, _peak_bytes

class Analyzing(RunObserver):
    def stopped(self):
        bytearray(b'1' * (300 << 20))
        print("analyzed")

    def finished(self, finished):
        print(finished.process_peak_bytes, _peak_bytes())

Path("train.py").write_text("import torch; bytearray(b'1' * (100 << 20)); torch.ones(3) + 1")
options = LaunchOptions(prefix=Path("run"), recording=RecordingOptions.launched(), folder=Path.cwd())
ProgramRun(Program("train.py", (), False), options, Analyzing()).execute()
"""


def test_what_is_used_after_the_program_is_not_in_its_peak(tmp_path):
    done = warm_python.run("-c", SCRIPT, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    analyzed, numbers = done.stdout.splitlines()
    assert analyzed == "analyzed"
    of_program, in_the_end = map(int, numbers.split())
    assert of_program > 100 << 20
    assert in_the_end - of_program > 200 << 20
