"""What `leave_on` accepts."""

from pathlib import Path

import pytest

from kinetoscope.flight.settings import (
    REASONS,
    attempt_name,
    default_folder,
    job_name,
    plan_name,
    program_name,
    settings,
)


def test_defaults():
    made = settings(environment={})
    assert (made.budget, made.keep_s, made.keep_bytes, made.most_in_an_hour) == (0.01, 60.0, 256 << 20, 6)
    assert made.folder == default_folder()
    assert made.on == set(REASONS)
    assert made.control is False


def test_arguments():
    made = settings(0.005, ("1 MiB", "5s"), "here", ("hang",), "2/hour", environment={})
    assert (made.budget, made.keep_s, made.keep_bytes, made.most_in_an_hour) == (0.005, 5.0, 1 << 20, 2)
    assert made.folder == Path.cwd() / "here"
    assert made.on == {"hang"}


def test_the_environment_takes_the_place_of_arguments():
    environment = {
        "KINETOSCOPE_BUDGET": "2 %",
        "KINETOSCOPE_KEEP": "10s,64MiB",
        "KINETOSCOPE_DIR": "/elsewhere",
        "KINETOSCOPE_ON": "crash, oom",
        "KINETOSCOPE_CONTROL": "socket",
    }
    made = settings("1%", on=("hang",), folder="here", environment=environment)
    assert (made.budget, made.keep_s, made.keep_bytes) == (0.02, 10.0, 64 << 20)
    assert (made.folder, made.on, made.control) == (Path("/elsewhere"), {"crash", "oom"}, True)


def test_ranks_of_a_launcher_share_a_job():
    assert job_name({"TORCHELASTIC_RUN_ID": "a/b c"}) == "a_b_c"
    assert job_name({"SLURM_JOB_ID": "17"}) == "17"
    assert job_name({"TORCHELASTIC_RUN_ID": "none", "LOCAL_RANK": "1"}) == job_name({"LOCAL_RANK": "0"})
    assert job_name({}) != job_name({"LOCAL_RANK": "0"})
    assert attempt_name({"TORCHELASTIC_RESTART_COUNT": "2"}) == "2"
    assert attempt_name({}) == "0"


def test_ranks_on_all_machines_plan_the_same():
    master = {"MASTER_ADDR": "host7", "MASTER_PORT": "29500"}
    assert plan_name({"TORCHELASTIC_RUN_ID": "a", **master}) == "a"
    assert plan_name({"TORCHELASTIC_RUN_ID": "none", **master}) == "host7:29500"
    assert plan_name({"SLURM_JOB_ID": "17", **master}) == "17"
    assert plan_name({}) == ":"


@pytest.mark.parametrize(
    ("arguments", "python_arguments", "name"),
    [
        (["/job/train.py", "--epochs"], ["python", "/job/train.py"], "train"),
        (["/site/pkg/__main__.py"], ["python", "-m", "pkg"], "pkg"),
        (["/site/pkg/train.py"], ["python", "-m", "pkg.train"], "train"),
        # While the packages around the module are imported.
        (["-m", "--epochs"], ["python", "-u", "-m", "pkg.train", "--epochs"], "pkg.train"),
        (["-c"], ["python", "-c", "import torch"], "python"),
        ([""], ["python"], "python"),
        ([], ["python"], "python"),
    ],
)
def test_a_job_has_the_name_of_its_program(arguments, python_arguments, name):
    assert program_name(arguments, python_arguments) == name
