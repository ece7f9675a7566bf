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
from kinetoscope.model.time_spent import Cause

ROOT = Path(__file__).parents[2]
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
# Pages whose output does not depend on the machine, but for numbers such as times.
ANSWERS = ("fast_yesterday", "gpu_idle", "reinforcement", "slow_loader")
WITH_OUTPUT = re.compile(r"^```python\n(.*?)^```\n(?:\n```text\n(.*?)^```)?", re.MULTILINE | re.DOTALL)
PYTHON_BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if "```python" in page.read_text("utf-8") and page.stem not in ANSWERS],
    ids=lambda p: p.name,
)
def test_the_python_blocks_of_a_page_run_one_after_the_other(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    text = page.read_text(encoding="utf-8")
    names = {"__name__": "__main__"}
    for block in PYTHON_BLOCK.finditer(text):
        padding = "\n" * text[: block.start(1)].count("\n")  # so that tracebacks show the line of the page
        exec(compile(padding + block[1], str(page), "exec"), names)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_sentences_have_at_most_35_words(page):
    text = re.sub(r"```.*?```", "", page.read_text(encoding="utf-8"), flags=re.DOTALL)
    blocks = re.split(r"\n\s*\n|\n(?=[-*|#]|\d+\. )", text)
    prose = [block for block in blocks if not block.lstrip().startswith(("|", "#"))]
    plain = re.sub(r"`[^`]*`", "code", re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", "\n\n".join(prose)))
    sentences = re.split(r"(?<=[.!?:;])\s+|\n\n", plain)
    assert [sentence for sentence in sentences if len(sentence.split()) > 35] == []


def without_numbers(text: str) -> list[str]:
    """Lines of output, with numbers, and the units of times, as `N`."""
    return [
        " ".join(re.sub(r"\d[\d,.]*( [nµm]?s\b)?", "N", line).split()) for line in text.strip().splitlines()
    ]


@pytest.mark.parametrize("name", ANSWERS)
def test_a_program_prints_what_its_page_shows(name, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    page = ROOT / "docs" / f"{name}.md"
    text = page.read_text(encoding="utf-8")
    names = {"__name__": "__main__"}
    threads = torch_threads()
    try:
        for block in WITH_OUTPUT.finditer(text):
            padding = "\n" * text[: block.start(1)].count("\n")
            exec(compile(padding + block[1], str(page), "exec"), names)
            assert without_numbers(capsys.readouterr().out) == without_numbers(block[2] or "")
    finally:
        torch_threads(threads)


def torch_threads(number: int | None = None) -> int:
    """Set the number of threads of torch's operators, which a page may change; returns it."""
    torch = pytest.importorskip("torch", reason="the programs of the pages train")
    if number is not None:
        torch.set_num_threads(number)
    return torch.get_num_threads()


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


def test_an_option_of_a_recording_is_described_on_one_page_only():
    """What each does, and its names, are in docs/options.md, which tests/collect/request compares with the declarations."""
    for name in ("launch.md", "notebooks.md"):
        text = (ROOT / "docs" / name).read_text(encoding="utf-8")
        assert "](options.md)" in text, name
        described = [line.split("|")[1] for line in text.splitlines() if line.startswith("| ")]
        for option in OPTIONS.values():
            flags = [f"--{flag}" for flag in (*option.magic_flags, option.flag) if flag]
            words = [word for cell in described for word in re.findall(r"`([^`= ]+)", cell)]
            assert not {option.name, *flags} & set(words), f"{name} describes {option.name}"


def test_everything_that_is_diagnosed_is_in_the_index_once():
    index = (ROOT / "docs" / "findings.md").read_text(encoding="utf-8").partition("## The codes")[2]
    listed = re.findall(r"^\| (.+?) \|", index, re.MULTILINE)
    declared = [
        f"`{code}`"
        for path in sorted((ROOT / "src").rglob("*.py"))
        for code in re.findall(r'\bRule\(\s*"([^"]+)"', path.read_text(encoding="utf-8"))
    ]
    declared += [cause.words for cause in Cause if cause is not Cause.NONE]
    assert len(set(declared)) == len(declared)
    assert sorted(name for name in listed if name not in ("Code", "Cause")) == sorted(declared)


def test_generated_pages_are_what_the_declarations_say():
    checked = subprocess.run(
        [sys.executable, ROOT / "tools" / "generate_docs.py", "--check"],
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
