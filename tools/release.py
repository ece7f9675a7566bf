"""Prepare a release: its version, changelog and golden trace, the wheels, the source archive, the documentation, and their checks.

    python tools/release.py 0.2.0 --torch 2.12 2.13 --python python3.11 python3.12

is what `make release VERSION=0.2.0` runs. Nothing is published: the last lines say what to commit, tag and push. With --source-only, it builds and checks the source
archive of the tree as it is.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from datetime import UTC, date, datetime
from pathlib import Path

from packaging.version import InvalidVersion, Version

ROOT = Path(__file__).resolve().parents[1]
DIST = ROOT / "dist"
VERSION_FILE = ROOT / "src" / "kinetoscope" / "_version.py"
CHANGELOG = ROOT / "CHANGELOG.md"
CHANGES = ROOT / "changes"
RECIPE = ROOT / "conda" / "recipe.yaml"
# These say how to install Kinetoscope: from a clone, until there is a release.
INSTALLING = (ROOT / "README.md", ROOT / "docs" / "getting_started.md")
GOLDEN = ROOT / "tests" / "golden" / "releases"
TRIED = ROOT / "docs" / "measured" / "wheels.md"
HEADINGS = ("Added", "Changed", "Fixed", "Removed")
UNRELEASED = "## Unreleased"
# Pinned: what checks a release does not change between releases unnoticed.
TOOLS = ("build==1.6.1", "twine==7.0.0")
_DECLARED = re.compile(r"""^(__version__ = ")(.+)(")$""", re.MULTILINE)
_IN_SOURCE = (
    "LICENSE",
    "THIRD_PARTY_NOTICES.txt",
    "CMakeLists.txt",
    "native/core",
    "native/recorder",
    "src/kinetoscope",
)


def main() -> None:
    """Do all steps, and stop at the first one that fails."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("version", nargs="?", help="the version to release, such as 0.2.0")
    parser.add_argument("--source-only", action="store_true", help="only build and check the source archive")
    parser.add_argument("--torch", nargs="+", default=[])
    parser.add_argument("--python", nargs="+", default=[])
    asked = parser.parse_args()
    if asked.source_only:
        DIST.mkdir(exist_ok=True)
        build_and_check_source([])
        return
    if not (asked.version and asked.torch and asked.python):
        parser.error("a version, --torch and --python are needed, as `make release VERSION=...` passes them")
    version = checked(asked.version, declared_version(), run("git", "tag").split())
    if changed := run("git", "status", "--porcelain"):
        sys.exit(f"commit these first, so that the release is what is committed:\n{changed}")
    VERSION_FILE.write_text(with_version(VERSION_FILE.read_text("utf-8"), version), "utf-8")
    RECIPE.write_text(with_recipe_version(RECIPE.read_text("utf-8"), version), "utf-8")
    for page in INSTALLING:
        page.write_text(with_install(page.read_text("utf-8")), "utf-8")
    fragments = [path for path in sorted(CHANGES.glob("*.md")) if path.name != "README.md"]
    texts = [path.read_text("utf-8") for path in fragments]
    CHANGELOG.write_text(
        released(CHANGELOG.read_text("utf-8"), texts, version, datetime.now(UTC).date()), "utf-8"
    )
    for path in fragments:
        path.unlink()
    # With the version that is released, which the trace contains.
    run(
        sys.executable,
        "-m",
        "pip",
        "install",
        "-q",
        "--no-build-isolation",
        "--no-deps",
        "--force-reinstall",
        ".",
    )
    run(sys.executable, "tools/record_golden.py", "--release")
    run(sys.executable, "tools/build_wheels.py", "--torch", *asked.torch, "--python", *asked.python)
    wheels = sorted(DIST.glob("*.whl"))
    shutil.copy(DIST / "wheels.md", TRIED)
    for wheel in wheels:
        if lacking := missing_in_wheel(wheel):
            sys.exit(f"{wheel.name} lacks {', '.join(lacking)}")
    build_and_check_source(wheels)
    run(sys.executable, "tools/check_wheel.py")
    run(
        sys.executable,
        "-m",
        "sphinx",
        "-W",
        "-q",
        "-b",
        "html",
        "-d",
        "build/docs-doctrees",
        "docs",
        "build/docs",
    )
    print(
        f"""
Release {version} is prepared: {", ".join(path.name for path in sorted(DIST.iterdir()))}, and build/docs.
Read the changelog, then run:
    git add -A && git commit -m 'Release {version}'
    git tag -a v{version} -m 'Kinetoscope {version}'
    git push origin main v{version}      # .github/workflows/release.yml builds and publishes from the tag"""
    )


def run(*command: str | Path) -> str:
    """Run a command in the root of the repository, and return what it prints; what it complains of is shown."""
    print(f"$ {' '.join(map(str, command))}", file=sys.stderr, flush=True)
    done = subprocess.run(command, cwd=ROOT, check=False, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        sys.exit(f"{done.stdout}\nthis failed: {' '.join(map(str, command))}")
    return done.stdout.rstrip()


def declared_version() -> str:
    """The version that the sources have now."""
    found = _DECLARED.search(VERSION_FILE.read_text("utf-8"))
    if found is None:
        sys.exit(f'{VERSION_FILE} has no line __version__ = "..."')
    return found[2]


def checked(version: str, current: str, tags: list[str]) -> Version:
    """The version to release, if it can be the next one."""
    try:
        asked = Version(version)
    except InvalidVersion:
        sys.exit(
            f"{version!r} is no version: use three numbers, such as 0.2.0, and rc1 behind them for a candidate"
        )
    if str(asked) != version or len(asked.release) != 3 or asked.local or asked.dev is not None:
        sys.exit(f"{version!r} is not written as versions are here: three numbers, such as 0.2.0 or 0.2.0rc1")
    if f"v{asked}" in tags:
        sys.exit(f"{asked} was released: there is a tag v{asked}")
    if asked < Version(current):
        sys.exit(f"{asked} is older than the version of the sources, {current}")
    return asked


def with_version(text: str, version: Version) -> str:
    """The module of the version, with another one."""
    return _DECLARED.sub(rf"\g<1>{version}\g<3>", text)


def with_recipe_version(text: str, version: Version) -> str:
    """The conda recipe, with another version."""
    return re.sub(r"^(  version: ).*$", rf"\g<1>{version}", text, count=1, flags=re.MULTILINE)


def with_install(text: str) -> str:
    """A page that says how to install a clone, with how to install what is released."""
    text = re.sub(
        r"^\$ pip install \. +# in a clone.*$",
        "$ pip install kinetoscope                # records with whichever torch is installed",
        text,
        flags=re.MULTILINE,
    )
    return re.sub(r"pip install \.(?=\s)", "pip install kinetoscope", text).replace(
        'pip install ".[', 'pip install "kinetoscope['
    )


def released(changelog: str, fragments: list[str], version: Version, day: date) -> str:
    """The changelog with what is unreleased, and some fragments, as a released version, and an empty section for the next one.

    Args:
        changelog: What it is now.
        fragments: The texts of the files in changes/.
        version: The version.
        day: The day of the release.
    """
    head, found, rest = changelog.partition(f"\n{UNRELEASED}\n")
    if not found:
        sys.exit(f"{CHANGELOG.name} has no line {UNRELEASED!r}")
    section, *older = re.split(r"^(?=## )", rest, maxsplit=1, flags=re.MULTILINE)
    introductions, parts = [], {name: {} for name in HEADINGS}
    for text in (section, *fragments):
        introduction, described = sections_of(text)
        introductions.append(introduction)
        for name, body in described:
            for subject, items in subjects_of(body):
                parts[name].setdefault(subject, []).append(items)
    if not any(parts.values()):
        sys.exit("there is nothing to release: no change is described in the changelog or in changes/")
    told = "".join(f"{text}\n\n" for text in introductions if text)
    told += "\n".join(f"### {name}\n\n{in_order(subjects)}\n" for name, subjects in parts.items() if subjects)
    separator = "\n" if older else ""
    head = head.replace(" There is no release yet.", "")
    return f"{head}\n{UNRELEASED}\n\n## {version} ({day})\n\n{told}{separator}{''.join(older)}"


def sections_of(text: str) -> tuple[str, list[tuple[str, str]]]:
    """What is above the first heading of a text, which introduces a version, and what is below each heading."""
    introduction, *parts = re.split(r"^### (.+)$", text, flags=re.MULTILINE)
    found = [(name.strip(), body.strip()) for name, body in zip(parts[::2], parts[1::2], strict=True)]
    if unknown := [name for name, _ in found if name not in HEADINGS]:
        sys.exit(f"{unknown[0]!r} is no heading of the changelog: use {', '.join(HEADINGS)}")
    return introduction.strip(), [one for one in found if one[1]]


def subjects_of(body: str) -> list[tuple[str, str]]:
    """What is below each subject, a line such as `Engines:`, of a section; the subject of what is above the first is empty."""
    first, *parts = re.split(r"^([A-Z].*):$", body, flags=re.MULTILINE)
    found = [("", first), *zip(parts[::2], parts[1::2], strict=True)]
    return [(subject, items.strip()) for subject, items in found if items.strip()]


def in_order(subjects: dict[str, list[str]]) -> str:
    """The text of a section: what has no subject, and then each subject."""
    ordered = sorted(subjects.items(), key=lambda one: one[0] != "")
    return "\n\n".join(
        "\n".join([f"{name}:\n" if name else "", *items]).lstrip("\n") for name, items in ordered
    )


def missing_in_wheel(wheel: Path) -> list[str]:
    """What a wheel to publish lacks: the license, the notices, or the bill of materials."""
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    wanted = (
        ("LICENSE", r"\.dist-info/licenses/LICENSE$"),
        ("THIRD_PARTY_NOTICES.txt", r"\.dist-info/licenses/THIRD_PARTY_NOTICES\.txt$"),
        ("its bill of materials", r"\.dist-info/sboms/.+\.json$"),
    )
    return [what for what, pattern in wanted if not any(re.search(pattern, name) for name in names)]


def missing_in_source(archive: Path) -> list[str]:
    """What a source archive lacks of what a build needs."""
    with tarfile.open(archive) as opened:
        names = [name.partition("/")[2] for name in opened.getnames()]
    return [
        wanted
        for wanted in _IN_SOURCE
        if not any(name == wanted or name.startswith(f"{wanted}/") for name in names)
    ]


def build_and_check_source(wheels: list[Path]) -> None:
    """Build the source archive in an environment of its own, and check what is published besides."""
    with tempfile.TemporaryDirectory() as folder:
        python = Path(folder) / "tools" / "bin" / "python"
        run(sys.executable, "-m", "venv", python.parents[1])
        run(python, "-m", "pip", "install", "-q", "--disable-pip-version-check", *TOOLS)
        for old in DIST.glob("*.tar.gz"):
            old.unlink()
        run(python, "-m", "build", "--sdist", "--outdir", DIST, ".")
        (archive,) = DIST.glob("*.tar.gz")
        if lacking := missing_in_source(archive):
            sys.exit(f"{archive.name} lacks {', '.join(lacking)}")
        print(run(python, "-m", "twine", "check", "--strict", archive, *wheels))
    shutil.rmtree(ROOT / "build" / "sdist", ignore_errors=True)


if __name__ == "__main__":
    main()
