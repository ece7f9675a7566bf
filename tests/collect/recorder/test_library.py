"""Which recorder library is taken, and what becomes of one that is damaged."""

from __future__ import annotations

import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
import torch

from kinetoscope import RecorderError
from kinetoscope.collect.engines.native import native_engine_status
from kinetoscope.collect.recorder import build as build_module
from kinetoscope.collect.recorder import library as recorder_module
from tests.conftest import ROOT
from tests.support import warm_python

NO_COMPILER = "/no/such/compiler"


@pytest.fixture(scope="module", autouse=True)
def here() -> Path:
    """The library that records here, found before any test changes the ways to it."""
    status = native_engine_status()
    assert status.available, status.reason
    return Path(status.details["library"])


@pytest.fixture
def cache(tmp_path, monkeypatch):
    """An empty cache, no recorder of the wheel, and no compiler."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(folder))
    monkeypatch.setenv("CXX", NO_COMPILER)
    monkeypatch.setattr(recorder_module, "__file__", str(tmp_path / "recorder_module.py"))
    return folder


@pytest.fixture(scope="module")
def unloadable(tmp_path_factory):
    """A library that is whole and needs a function that nobody has."""
    folder = tmp_path_factory.mktemp("unloadable")
    source, library = folder / "needs.c", folder / "needs.so"
    source.write_text("int nobody_has_this(void);\nint call(void) { return nobody_has_this(); }\n")
    _, cc = build_module.compilers()
    subprocess.run([*cc, "-shared", "-fPIC", "-Wl,-z,now", source, "-o", library], check=True)
    return library


def load():
    return recorder_module._recorder_for_here(lambda line: None)


def test_a_library_that_is_complete_is_taken_from_the_cache(cache, here):
    shutil.copy(here, cache / build_module.library_name(torch))
    assert load().path.parent == cache


@pytest.mark.parametrize("left", [0, 40, 0.5, -1])
def test_a_library_that_was_cut_short_is_not_loaded_but_compiled_anew(cache, here, left):
    whole = here.read_bytes()
    cut = whole[: int(len(whole) * left) if isinstance(left, float) else left]
    damaged = cache / build_module.library_name(torch)
    damaged.write_bytes(cut)
    assert build_module.is_complete(here)
    assert not build_module.is_complete(damaged)
    with pytest.raises(RecorderError, match=f"the compiler {NO_COMPILER} does not run"):
        load()


def test_a_library_that_cannot_be_loaded_is_compiled_anew_once(cache, unloadable, monkeypatch):
    kept = cache / build_module.library_name(torch)
    shutil.copy(unloadable, kept)
    with pytest.raises(RecorderError, match="does not run"):
        load()
    assert not kept.exists()
    # Compiling does not help where the system's loader is what fails.
    monkeypatch.setattr(build_module, "build", lambda torch, folder, progress: shutil.copy(unloadable, kept))
    for _ in range(2):
        with pytest.raises(RecorderError, match="nobody_has_this"):
            load()
    monkeypatch.undo()
    monkeypatch.setenv("KINETOSCOPE_CACHE", str(cache))
    monkeypatch.setattr(recorder_module, "__file__", str(cache.parent / "recorder_module.py"))
    monkeypatch.setenv("CXX", NO_COMPILER)
    with pytest.raises(RecorderError, match="nobody_has_this"):
        load()


def test_a_cache_that_cannot_be_written_is_named_with_the_way_out(cache, monkeypatch):
    monkeypatch.setenv("KINETOSCOPE_CACHE", "/dev/null/cache")
    with pytest.raises(RecorderError, match=r"/dev/null/cache .*set KINETOSCOPE_CACHE"):
        load()


def test_machines_with_another_c_library_have_another_recorder(monkeypatch):
    mine = build_module.library_name(torch)
    monkeypatch.setattr(build_module.platform, "libc_ver", lambda: ("glibc", "2.17"))
    assert "glibc2.17" in build_module.library_name(torch) != mine


def test_a_compiler_may_be_more_than_one_word(monkeypatch, tmp_path):
    monkeypatch.setenv("CXX", "env -u NOTHING c++")
    monkeypatch.setenv("CC", "")
    monkeypatch.setenv("PATH", str(tmp_path))
    cxx, cc = build_module.compilers()
    assert cxx == ["env", "-u", "NOTHING", "c++"]
    assert cc == [*cxx, "-x", "c"]


def test_a_c_plus_plus_compiler_alone_compiles_c(tmp_path):
    source = tmp_path / "one.c"
    source.write_text("int class = 1;\n")  # no C++
    cxx, _ = build_module.compilers()
    build_module._run([*cxx, "-x", "c", "-std=c11", "-c", str(source), "-o", str(tmp_path / "one.o")])
    assert (tmp_path / "one.o").is_file()


# ---------------------------------------------------------------------------------------------------- the oldest torch

OLD = "import torch; torch.__version__ = '2.6.0+cu124'\n"
SENTENCE = "recording needs torch 2.7 or newer, and torch 2.6.0+cu124 is installed"


def run(program: str) -> subprocess.CompletedProcess[str]:
    return warm_python.run("-c", OLD + program)


def test_an_older_torch_is_refused_before_anything_is_compiled():
    done = run("import kinetoscope; kinetoscope.profile")
    assert f"MissingDependencyError: {SENTENCE}" in done.stderr
    assert "compiling" not in done.stderr
    done = run(
        "from kinetoscope.collect.engines.native import native_engine_status; print(native_engine_status().reason)"
    )
    assert done.stdout.strip() == SENTENCE


def test_the_doctor_says_the_same_of_it():
    done = run("from kinetoscope.cli import main; main(['doctor'])")
    assert done.returncode == 1
    assert SENTENCE in " ".join(done.stdout.split())


def test_the_oldest_supported_torch_is_the_same_everywhere():
    oldest = ".".join(map(str, build_module.OLDEST_TORCH))
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["optional-dependencies"]["torch"] == [f"torch>={oldest}"]
    releases = (ROOT / "docs" / "releases.md").read_text(encoding="utf-8")
    assert re.findall(r"torch, to record \| (\d+\.\d+) to", releases) == [oldest]


@pytest.fixture
def wheel(tmp_path):
    """The folder in which the recorders of a wheel are."""
    folder = tmp_path / "prebuilt"
    folder.mkdir()
    return folder


def test_a_recorder_of_the_wheel_serves_all_patch_releases_of_its_torch_without_a_compiler(
    cache, wheel, here
):
    shutil.copy(here, wheel / build_module.prebuilt_name(torch.__version__))
    assert (load().path.parent, load().taken) == (wheel, recorder_module.PREBUILT)
    names = {build_module.prebuilt_name(version) for version in ("2.11.0", "2.11.1", "2.11.2+cu130")}
    assert len(names) == 1
    assert len(names | {build_module.prebuilt_name(version) for version in ("2.1.1", "2.12.0")}) == 3
    # What was compiled for this very torch goes first.
    shutil.copy(here, cache / build_module.library_name(torch))
    assert (load().path.parent, load().taken) == (cache, recorder_module.CACHED)


@pytest.mark.parametrize("damage", ["cut", "unloadable"])
def test_a_recorder_of_the_wheel_that_does_not_load_is_no_reason_not_to_compile(
    cache, wheel, here, unloadable, damage
):
    place = wheel / build_module.prebuilt_name(torch.__version__)
    shutil.copy(unloadable, place)
    if damage == "cut":
        place.write_bytes(here.read_bytes()[:-1])
    with pytest.raises(RecorderError, match="does not run"):
        load()


def test_a_recorder_of_the_wheel_that_fails_its_self_test_gives_way_to_one_compiled_here(
    cache, wheel, here, monkeypatch
):
    shutil.copy(here, wheel / build_module.prebuilt_name(torch.__version__))
    monkeypatch.setattr(recorder_module, "_loaded", None)
    refused = recorder_module.load_recorder()
    assert refused.taken == recorder_module.PREBUILT
    assert recorder_module.replace_recorder(refused) is None
    assert recorder_module.load_recorder() is refused
    shutil.copy(here, cache / build_module.library_name(torch))
    other = recorder_module.replace_recorder(refused)
    assert other is not None
    assert (other.taken, recorder_module.load_recorder()) == (recorder_module.CACHED, other)
    assert recorder_module.replace_recorder(other) is None


def test_the_other_releases_that_a_wheel_is_for_are_those_that_are_supported():
    makefile = (ROOT / "Makefile").read_text(encoding="utf-8")
    torches = re.search(r"^TORCHES +\?= (.+)$", makefile, re.MULTILINE)[1].split()
    assert tuple(map(int, torches[0].split("."))) == build_module.OLDEST_TORCH
    assert ".".join(torch.__version__.split(".")[:2]) in torches
