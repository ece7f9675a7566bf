"""Examples in the documentation run, and public names are documented."""

import doctest
import importlib
import re
import subprocess
import sys
from pathlib import Path

import pytest

import kinetoscope
from kinetoscope.collect.request.options import OPTIONS

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page", [page for page in PAGES if "```python" in page.read_text("utf-8")], ids=lambda p: p.name
)
def test_the_python_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names = {"__name__": "__main__"}
    for block in PYTHON_BLOCK.finditer(text):
        padding = "\n" * text[: block.start(1)].count("\n")  # so that tracebacks show the line of the page
        exec(compile(padding + block[1], str(page), "exec"), names)


def modules_with_examples() -> list[str]:
    """Return the modules whose docstrings have interactive examples."""
    package = ROOT / "src"
    return [
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__")
        for path in sorted(package.rglob("*.py"))
        if ">>> " in path.read_text(encoding="utf-8")
    ]


def test_the_examples_in_docstrings_hold(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in modules_with_examples():
        tested = doctest.testmod(importlib.import_module(name), optionflags=doctest.NORMALIZE_WHITESPACE)
        assert tested.attempted > 0, name
        assert tested.failed == 0, name


def test_every_public_name_is_documented():
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    missing = [
        name for name in kinetoscope.__all__ if not re.search(rf"(?<![\w]){re.escape(name)}(?!\w)", text)
    ]
    assert missing == []


def test_every_command_is_documented():
    from kinetoscope import cli

    text = (ROOT / "docs" / "cli.md").read_text(encoding="utf-8")
    listed = cli.main.list_commands(cli.main.make_context("kinetoscope", [], resilient_parsing=True))
    assert [name for name in listed if f"`kinetoscope {name}" not in text] == []


def test_pages_on_launching_and_notebooks_have_every_option():
    launching, notebooks = (
        (ROOT / "docs" / name).read_text(encoding="utf-8") for name in ("launch.md", "notebooks.md")
    )
    for option in OPTIONS.values():
        if option.flag:
            assert f"`{option.long_flag}" in launching, option.name
            assert f"`{option.name}=" in launching, option.name
        for name in option.magic:
            assert f"`{'-' if len(name) == 1 else '--'}{name}`" in notebooks, option.name


def test_the_pages_of_tables_and_options_are_what_the_definitions_say():
    checked = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_table_docs.py", "--check"],
        check=False,
        capture_output=True,
        text=True,
    )
    assert checked.returncode == 0, checked.stdout + checked.stderr


def test_links_between_pages_lead_somewhere():
    broken = [
        f"{page.name}: {target}"
        for page in PAGES
        for target in re.findall(r"\]\(([^)#:]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        if not (page.parent / target).exists()
    ]
    assert broken == []
