"""The example for GitHub Actions: its commands, as the service would run them."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


pytest.importorskip("torch", reason="the example trains with PyTorch")

EXAMPLE = Path(__file__).parents[2] / "examples" / "ci"


@pytest.fixture(scope="module")
def steps():
    """The steps of the workflow that run commands, by name."""
    workflow = yaml.safe_load((EXAMPLE / "performance.yml").read_text("utf-8"))
    return {step["name"]: step for step in workflow["jobs"]["performance"]["steps"] if "run" in step}


@pytest.fixture
def build(tmp_path, steps):
    """Runs a step in a checkout: a function of its name and of more of the environment."""
    folder = tmp_path / "checkout"
    shutil.copytree(EXAMPLE, folder)
    summary = tmp_path / "summary.md"
    path = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))

    def run(name, **more):
        service = {"GITHUB_ACTIONS": "true", "GITHUB_STEP_SUMMARY": str(summary)}
        env = {**os.environ, "PATH": path, **service, **more}
        return subprocess.run(
            ["bash", "-e", "-c", steps[name]["run"]], cwd=folder, env=env, capture_output=True, text=True, check=False
        )

    run.folder, run.summary = folder, summary
    return run


def test_the_budget_holds_and_breaks_with_one_more_operator(build):
    recorded = build("record")
    assert recorded.returncode == 0, recorded.stderr
    held = build("check")
    assert held.returncode == 0, held.stdout
    assert "budget held" in build.summary.read_text("utf-8")
    budget = build.folder / "budget.toml"
    budget.write_text(budget.read_text("utf-8").replace("operators = 133", "operators = 132"), "utf-8")
    broken = build("check")
    assert broken.returncode == 1
    assert "::error file=train.py,line=" in broken.stderr
    assert 'failures="1"' in (build.folder / "budget.xml").read_text("utf-8")
    assert "budget broken" in build.summary.read_text("utf-8")


def test_the_workflow_runs_what_is_tested(steps):
    assert list(steps) == ["install", "record", "check", "compare"]
    assert set(steps["compare"]["env"]) == {"BASE", "ROUNDS"}


@pytest.mark.stress("it starts Python with torch twice more")
def test_both_revisions_are_compared(build):
    def git(*words):
        subprocess.run(
            ["git", "-c", "user.name=a", "-c", "user.email=a@b", *words], cwd=build.folder, check=True, capture_output=True
        )

    git("init", "-q")
    git("add", ".")
    git("commit", "-qm", "first")
    git("commit", "-qm", "second", "--allow-empty")
    done = build("compare", BASE="HEAD~1", ROUNDS="1")
    assert done.returncode == 0, done.stderr
    assert (build.folder / "comparison.html").is_file()
