import re
import subprocess
import sys
import types
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope import MissingDependencyError
from kinetoscope.integrations import pyg
from kinetoscope.integrations.pyg import install_pyg, uninstall_pyg
from tests.support import warm_python
from tests.support.real_pyg import geometric

__all__ = ["geometric"]


@pytest.fixture
def profile(geometric) -> types.ModuleType:
    """The package `torch_geometric.profile`."""
    return geometric.profile


@pytest.fixture(autouse=True)
def _uninstalled_again():
    yield
    uninstall_pyg()


@pytest.fixture
def program(profile, monkeypatch) -> types.ModuleType:
    """A module of a user's, which has imported names of PyG and of ours."""
    module = types.ModuleType("a_users_program")
    exec(
        "from torch_geometric.profile import timeit, count_parameters as count\n"
        "from torch_geometric.profile.profile import CUDAStats, profileit\n"
        "from kinetoscope.integrations.pyg import timeit as our_timeit, CUDAStats as OurStats, profileit as ours\n",
        module.__dict__,
    )
    monkeypatch.setitem(sys.modules, "a_users_program", module)
    return module


def everything(profile) -> dict[str, object]:
    """What PyG's package and its modules hold under each name."""
    modules = [module for name, module in sys.modules.items() if name.startswith("torch_geometric.profile")]
    return {f"{module.__name__}:{name}": value for module in modules for name, value in vars(module).items()}


def test_all_names_lead_to_kinetoscope_and_back(profile):
    before = everything(profile)
    install_pyg()
    after = everything(profile)
    changed = {name.partition(":")[2] for name, value in after.items() if value is not before.get(name)}
    assert set(profile.__all__) <= changed
    assert changed - set(profile.__all__) == {
        "CUDAStats",
        "CUDAStatsSummary",
        "GPUStats",
        "GPUStatsSummary",
        "byte_to_megabyte",
        "format_prof_time",
        "medibyte_to_megabyte",
        "read_from_memlab",
        "save_profile_data",
    }
    for name, value in after.items():
        if value is not before.get(name):
            assert value.__module__.startswith("kinetoscope.integrations.pyg")
    uninstall_pyg()
    left = everything(profile)
    assert {name for name in before if left[name] is not before[name]} == set()


def test_modules_that_have_imported_a_name_get_ours_and_theirs_back(program):
    theirs, our_timeit, our_stats, ours = program.timeit, program.our_timeit, program.OurStats, program.ours
    install_pyg()
    assert program.timeit is not theirs
    assert program.timeit is pyg.timeit
    assert program.count.__module__.startswith("kinetoscope")
    assert program.CUDAStats is pyg.CUDAStats
    exec("from torch_geometric.profile import get_model_size", program.__dict__)
    assert program.get_model_size.__module__.startswith("kinetoscope")
    uninstall_pyg()
    assert program.timeit is theirs
    for name in ("count", "CUDAStats", "profileit"):
        assert getattr(program, name).__module__.startswith("torch_geometric"), name
    # What the program took from us by name, or from PyG in between, stays ours.
    assert program.get_model_size is pyg.get_model_size
    assert program.our_timeit is our_timeit is pyg.timeit
    assert program.OurStats is our_stats is pyg.CUDAStats
    assert program.ours is ours is pyg.profileit


def test_statistics_are_of_the_class_that_both_packages_name(profile):
    with install_pyg():
        stats = [
            sys.modules["torch_geometric.profile.profile"].GPUStats(time, 1, 2, 3) for time in (1.0, 2.0)
        ]
        assert isinstance(stats[0], pyg.GPUStats)
        assert profile.get_stats_summary(stats) == pyg.GPUStatsSummary(1.5, pytest.approx(0.5**0.5), 1, 2, 3)


def test_a_with_block_takes_back_only_what_it_put_in(profile):
    theirs = profile.timeit
    with install_pyg():
        ours = profile.timeit
        with install_pyg():
            assert profile.timeit is ours
        assert profile.timeit is ours
    assert profile.timeit is theirs
    uninstall_pyg()
    assert profile.timeit is theirs


@pytest.mark.parametrize("first_in", ["pyg", "torch"])
@pytest.mark.parametrize("first_out", ["pyg", "torch"])
def test_the_switch_of_torchs_names_does_not_disturb_this_one(profile, first_in, first_out):
    on = {"pyg": install_pyg, "torch": kinetoscope.install}
    off = {"pyg": uninstall_pyg, "torch": kinetoscope.uninstall}
    before = everything(profile)
    try:
        for name in sorted(on, key=first_in.__ne__):
            on[name]()
        assert profile.timeit.__module__.startswith("kinetoscope")
        with profile.torch_profile(export_chrome_trace=False) as session:
            pass
        assert isinstance(session, kinetoscope.profile)
    finally:
        for name in sorted(off, key=first_out.__ne__):
            off[name]()
    left = everything(profile)
    assert {name for name in before if left[name] is not before[name]} == set()


def test_a_version_of_pyg_without_a_name_does_not_get_it(profile, monkeypatch):
    monkeypatch.delattr(sys.modules["torch_geometric.profile.utils"], "medibyte_to_megabyte")
    monkeypatch.delitem(sys.modules, "torch_geometric.profile.nvtx")
    with install_pyg():
        assert not hasattr(sys.modules["torch_geometric.profile.utils"], "medibyte_to_megabyte")
        assert profile.timeit.__module__.startswith("kinetoscope")


def test_the_example_of_the_documentation_runs(geometric, capsys):
    page = (Path(__file__).parents[3] / "docs" / "pyg.md").read_text(encoding="utf-8")
    [example] = re.findall(r"^```\{code-block\} python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(example, "pyg.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out.startswith("CPUStats(time=")


def test_without_pyg_the_switch_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch_geometric", None)
    monkeypatch.setitem(sys.modules, "torch_geometric.profile", None)
    with pytest.raises(MissingDependencyError, match=r'pip install "kinetoscope\[pyg\]"'):
        install_pyg()


def test_a_pyg_that_is_broken_says_so_itself(profile, monkeypatch):
    monkeypatch.delitem(sys.modules, "torch_geometric.profile")
    monkeypatch.setitem(sys.modules, "torch_geometric.profile.nvtx", None)
    with pytest.raises(ModuleNotFoundError) as raised:
        install_pyg()
    assert not isinstance(raised.value, MissingDependencyError)


def test_without_pyg_and_nvml_the_package_loads_neither():
    program = (
        "import sys; sys.modules['torch_geometric'] = sys.modules['pynvml'] = sys.modules['pytorch_memlab'] = None\n"
        "from kinetoscope.integrations.pyg import *\n"
        "import torch\n"
        "model = torch.nn.Linear(2, 2)\n"
        "with timeit(log=False): _, stats = profileit('cpu')(lambda m: m(torch.ones(1, 2)))(model)\n"
        "print(count_parameters(model), get_data_size([model.weight]), stats.max_rss_cpu > 0)"
    )
    said = warm_python.run("-c", program).stdout
    assert said.split() == ["6", "16", "True"]


def test_without_torch_the_package_says_what_to_install():
    program = (
        "import sys; sys.modules['torch'] = None\n"
        "import kinetoscope\n"
        "try: import kinetoscope.integrations.pyg\n"
        "except kinetoscope.MissingDependencyError as error: print(error)"
    )
    said = subprocess.run([sys.executable, "-c", program], check=True, capture_output=True, text=True).stdout
    assert "pip install torch" in said
