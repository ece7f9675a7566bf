"""The examples train: their losses decrease, and they print what the demo parses."""

import re
from pathlib import Path
from statistics import mean

import pytest

pytest.importorskip("torch", reason="the examples train with PyTorch")

import kinetoscope.examples
from kinetoscope.examples import train_convnet, train_gpt
from tests.support import warm_python

SMALL_GPT = ["--steps", "40", "--batch", "8", "--context", "16", "--width", "64", "--layers", "1"]
SMALL_CONVNET = ["--steps", "60", "--batch", "16", "--pixels", "16", "--channels", "8"]


def test_the_loss_of_the_gpt_falls_from_that_of_a_guess(capsys):
    losses = train_gpt.main(SMALL_GPT)
    assert len(losses) == 40
    assert losses[0] == pytest.approx(4.2, abs=0.3)  # the logarithm of the 67 characters
    assert mean(losses[-5:]) < losses[0] - 1.0


def test_the_loss_of_one_character_at_a_time_is_the_same(capsys):
    few = [*SMALL_GPT, "--steps", "3"]
    assert train_gpt.main([*few, "--loss-one-by-one"]) == pytest.approx(train_gpt.main(few), rel=1e-4)


def test_the_loss_of_the_convnet_falls_from_that_of_a_guess(capsys):
    losses = train_convnet.main(SMALL_CONVNET)
    assert len(losses) == 60
    assert losses[0] == pytest.approx(2.3, abs=0.5)  # the logarithm of the 10 digits
    assert mean(losses[-5:]) < losses[0] - 0.3


def test_every_step_is_printed_with_its_loss(capsys):
    losses = train_gpt.main([*SMALL_GPT, "--steps", "3"])
    printed = re.findall(r"^step +(\d+)/3  loss ([\d.]+)$", capsys.readouterr().out, re.MULTILINE)
    assert printed == [(str(step), f"{loss:.4f}") for step, loss in enumerate(losses, 1)]


def test_the_gpt_writes_on_from_the_start_of_the_book(capsys):
    train_gpt.main([*SMALL_GPT, "--steps", "1", "--sample", "20"])
    written = capsys.readouterr().out.split("\n", 1)[1]
    assert written.startswith("ALICE'S ADVENTUR")
    assert len(written.rstrip("\n")) >= 16


def test_the_same_seed_gives_the_same_losses(capsys):
    few = [*SMALL_CONVNET, "--steps", "3"]
    assert train_convnet.main(few) == train_convnet.main(few)
    assert train_convnet.main(few) != train_convnet.main([*few, "--seed", "2"])


def test_the_scripts_run_without_the_package(tmp_path):
    for name in ("train_gpt", "train_convnet"):
        script = Path(kinetoscope.examples.__file__).with_name(f"{name}.py")
        program = f"""
import runpy, sys
sys.modules["kinetoscope"] = None
sys.argv = [{str(script)!r}, "--steps", "1"]
runpy.run_path(sys.argv[0], run_name="__main__")
"""
        result = warm_python.run("-c", program, cwd=tmp_path)
        assert result.returncode == 0, result.stderr
        assert result.stdout.startswith("step    1/1  loss ")


@pytest.mark.parametrize("name", ["train_gpt", "train_convnet"])
def test_the_scripts_know_nothing_of_the_profiler(name):
    source = (Path(kinetoscope.examples.__file__).parent / f"{name}.py").read_text(encoding="utf-8")
    code = source.split('"""', 2)[2]
    assert "kinetoscope" not in code
    assert "profil" not in code
