"""What `make release` does to the version and the changelog, what it refuses, and what the workflows use."""

import re
import tarfile
import zipfile
from datetime import date
from pathlib import Path

import pytest
import yaml
from packaging.version import Version

from tools import release

ROOT = Path(__file__).parents[2]
DAY = date(2027, 1, 2)
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
CHANGELOG = """# Changelog

About it. There is no release yet.

## Unreleased

### Added

Sessions:

- one

### Fixed

- two
"""


def test_what_is_unreleased_becomes_the_section_of_the_version():
    text = release.released(CHANGELOG, [], Version("0.1.0"), DAY)
    assert text == CHANGELOG.replace(" There is no release yet.", "").replace(
        "## Unreleased\n", "## Unreleased\n\n## 0.1.0 (2027-01-02)\n"
    )


def test_fragments_are_put_below_their_headings():
    first = release.released(CHANGELOG, [], Version("0.1.0"), DAY)
    text = release.released(
        first,
        ["### Fixed\n\n- four\n", "### Added\n\n- three\n\n### Fixed\n\n- five\n"],
        Version("0.2.0"),
        DAY,
    )
    head, rest = text.split("## 0.2.0 (2027-01-02)\n")
    assert head.endswith("## Unreleased\n\n")
    new, old = rest.split("\n## 0.1.0")
    assert new == "\n### Added\n\n- three\n\n### Fixed\n\n- four\n- five\n"
    assert "- one" in old


def test_a_subject_gathers_what_belongs_to_it_below_what_has_none():
    text = release.released(
        CHANGELOG,
        ["### Added\n\n- three\n\nSessions:\n\n- four\n\nFormats:\n\n- five\n"],
        Version("0.1.0"),
        DAY,
    )
    added = text.partition("### Added\n\n")[2].partition("\n\n### Fixed")[0]
    assert added == "- three\n\nSessions:\n\n- one\n- four\n\nFormats:\n\n- five"


def test_text_above_the_first_heading_of_a_fragment_introduces_the_version():
    text = release.released(
        CHANGELOG, ["What it is about.\n", "### Fixed\n\n- three\n"], Version("0.1.0"), DAY
    )
    assert "## 0.1.0 (2027-01-02)\n\nWhat it is about.\n\n### Added\n" in text


def test_a_heading_that_the_changelog_does_not_have_is_refused():
    with pytest.raises(SystemExit, match="'New' is no heading of the changelog"):
        release.released(CHANGELOG, ["### New\n\n- x\n"], Version("0.1.0"), DAY)


def test_a_release_without_changes_is_refused():
    with pytest.raises(SystemExit, match="nothing to release"):
        release.released("# Changelog\n\n## Unreleased\n", [], Version("0.1.0"), DAY)


@pytest.mark.parametrize(
    ("version", "why"),
    [
        ("next", "no version"),
        ("1.0", "not written as"),
        ("v1.0.0", "not written as"),
        ("1.0.0.dev1", "not written as"),
        ("0.0.9", "older than"),
        ("0.2.0", "there is a tag v0.2.0"),
    ],
)
def test_a_version_that_cannot_be_the_next_one_is_refused(version, why):
    with pytest.raises(SystemExit, match=why):
        release.checked(version, "0.1.0", ["v0.2.0"])


@pytest.mark.parametrize("version", ["0.1.0", "0.2.1", "1.0.0rc1"])
def test_the_version_of_the_sources_and_later_ones_can_be_released(version):
    assert str(release.checked(version, "0.1.0", ["v0.2.0"])) == version


def test_the_module_and_the_recipe_get_the_version():
    module = release.VERSION_FILE.read_text("utf-8")
    assert '__version__ = "7.8.9"' in release.with_version(module, Version("7.8.9"))
    recipe = release.with_recipe_version(release.RECIPE.read_text("utf-8"), Version("7.8.9"))
    assert yaml.safe_load(recipe)["context"]["version"] == "7.8.9"


def test_the_recipe_is_of_the_version_of_the_sources_and_needs_what_the_package_needs():
    recipe = yaml.safe_load(release.RECIPE.read_text("utf-8"))
    assert recipe["context"]["version"] == release.declared_version()
    project = (ROOT / "pyproject.toml").read_text("utf-8")
    needed = re.findall(r'"([\w]+)>=([\d.]+)"', project.split("dependencies = [")[1].split("]")[0])
    # A part of Arrow, which is a package of its own there.
    of_conda = {f"{'pyarrow-core' if name == 'pyarrow' else name} >={least}" for name, least in needed}
    assert of_conda == set(recipe["requirements"]["run"]) - {"python >=3.11"}


@pytest.mark.parametrize("page", release.INSTALLING, ids=lambda page: page.name)
def test_a_released_page_installs_no_clone(page):
    before = page.read_text("utf-8")
    text = release.with_install(before)
    assert "pip install kinetoscope " in text
    assert not re.search(r'pip install "?\.', text)
    assert "no release yet" not in text
    assert release.with_install(text) == text
    assert len(text.splitlines()) == len(before.splitlines())


def test_a_wheel_without_notices_is_not_published(tmp_path):
    wheel = tmp_path / "kinetoscope-0.1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("kinetoscope-0.1.0.dist-info/licenses/LICENSE", "")
        archive.writestr("kinetoscope-0.1.0.dist-info/sboms/kinetoscope.cdx.json", "{}")
    assert release.missing_in_wheel(wheel) == ["THIRD_PARTY_NOTICES.txt"]


def test_a_source_archive_without_the_recorder_is_not_published(tmp_path):
    archive = tmp_path / "kinetoscope-0.1.0.tar.gz"
    (tmp_path / "file").write_text("")
    with tarfile.open(archive, "w:gz") as opened:
        for name in (
            "LICENSE",
            "THIRD_PARTY_NOTICES.txt",
            "CMakeLists.txt",
            "native/core/a.cpp",
            "src/kinetoscope/__init__.py",
        ):
            opened.add(tmp_path / "file", f"kinetoscope-0.1.0/{name}")
    assert release.missing_in_source(archive) == ["native/recorder"]


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_are_pinned_by_their_commit_and_name_its_version(path):
    used = re.findall(r"uses: (.+)", path.read_text("utf-8"))
    assert used
    assert [one for one in used if not re.fullmatch(r"[\w-]+/[\w-]+@[0-9a-f]{40} # v[\d.]+", one)] == []


def test_one_action_has_one_pin():
    pins = {}
    for path in WORKFLOWS:
        for action, pin in re.findall(r"uses: ([\w/-]+)@(\S+)", path.read_text("utf-8")):
            pins.setdefault(action, set()).add(pin)
    assert {action: found for action, found in pins.items() if len(found) > 1} == {}


def test_a_job_has_only_the_permissions_that_it_names():
    for path in WORKFLOWS:
        workflow = yaml.safe_load(path.read_text("utf-8"))
        assert workflow["permissions"] == {}, path
        for name, job in workflow["jobs"].items():
            assert set(job["permissions"]) <= {"contents", "id-token", "pages"}, name
            assert job["permissions"].get("contents", "read") == "read", name
