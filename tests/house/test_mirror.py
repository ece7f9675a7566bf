"""Tests mirror the sources: the name of a test file says which module, or which package, it tests."""

from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TESTS = ROOT / "tests"
# Folders of tests that mirror no folder of sources, by the kind of their tests.
KINDS = {
    "benchmarks": "of the scripts in benchmarks/",
    "e2e": "programs and commands as a user runs them",
    "examples": "of the programs in examples/",
    "gpu": "need a device",
    "house": "of the source tree itself",
    "support": "of what tests are built with",
    "tools": "of the scripts in tools/",
    "viewer/browser": "look at pages in a real Chromium",
}
# Test files that match neither a module nor a package yet, with what they test instead. This list only gets shorter.
UNMATCHED = {
    "integrations/composer/test_loops.py": "training loops without a trainer",
    "integrations/composer/test_merged.py": "the merged traces of several ranks and cycles",
    "integrations/composer/test_real_composer.py": "an installed Composer",
    "integrations/composer/test_torch_profiler.py": "Composer's class TorchProfiler",
    "integrations/composer/test_uploads.py": "uploads of traces",
    "integrations/pyg/test_benchmark.py": "PyG's function benchmark",
    "integrations/pyg/test_host_peaks.py": "peaks of host memory",
    "integrations/pyg/test_in_pyg.py": "an installed PyG",
    "integrations/pyg/test_in_pyg_loaders.py": "an installed PyG",
    "integrations/pyg/test_operator_rows.py": "the rows of operators",
    "integrations/pyg/test_profileit.py": "PyG's decorator profileit",
    "integrations/pyg/test_sizes.py": "sizes of data and models",
    "integrations/pyg/test_stats.py": "PyG's statistics",
    "integrations/pyg/test_tensor_bytes.py": "the bytes of tensors",
    "tables/costs/test_once.py": "a property: each operation counts once",
    "tables/costs/test_programs.py": "the costs of real programs",
    "tables/costs/test_unknown.py": "a property: what is not known is not guessed",
}
# The package of each folder at the top that is not called like it; those of `_core` and `_runtime` are written in C++.
SOURCES = {"core": ROOT / "native" / "core", "runtime": ROOT / "native" / "runtime"}


def files_to_match() -> list[Path]:
    """Return the test files that are no kind of their own, relative to tests/."""
    files = sorted(path.relative_to(TESTS) for path in TESTS.rglob("test_*.py"))
    return [
        path
        for path in files
        if not any(path.is_relative_to(kind) or kind in path.parts[:1] for kind in KINDS)
    ]


def names_for(folder: Path) -> set[str]:
    """Return the names that a test file in a folder of tests may begin with: of modules, packages, and the package itself."""
    package = ROOT / "src" / "kinetoscope" / folder
    if folder.parts[:1] and folder.parts[0] in SOURCES:
        package = SOURCES[folder.parts[0]].joinpath(*folder.parts[1:])
    inside = package.iterdir() if package.is_dir() else ()
    names = {path.stem.strip("_") for path in inside if path.suffix in (".py", ".cpp", ".h") or path.is_dir()}
    return names | {folder.name} - {""} if package.is_dir() else set()


def is_matched(path: Path) -> bool:
    """Whether a test file is called like a module or package: `test_stream.py`, or `test_stream_soak.py` for an aspect of it."""
    called = path.stem.removeprefix("test_")
    return any(called == name or called.startswith(f"{name}_") for name in names_for(path.parent))


def test_each_test_file_matches_a_module_or_a_package():
    unmatched = {path.as_posix() for path in files_to_match() if not is_matched(path)}
    assert sorted(unmatched - set(UNMATCHED)) == []


def test_the_list_of_files_that_match_nothing_has_no_others():
    left = {path.as_posix() for path in files_to_match() if not is_matched(path)}
    assert sorted(set(UNMATCHED) - left) == []


@pytest.mark.parametrize("kind", KINDS)
def test_each_kind_has_tests(kind):
    assert list((TESTS / kind).glob("test_*.py"))
