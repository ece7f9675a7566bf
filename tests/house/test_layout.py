"""Checks of the source layout and imports."""

import ast
import re
import subprocess
import sys
from functools import cache
from pathlib import Path

import pytest

import kinetoscope.collect

ROOT = Path(__file__).parents[2]
SOURCES = ("src", "native", "tests", "benchmarks", "examples", "tools", "docs")
FORBIDDEN_NAMES = {"utils", "util", "common", "helpers", "helper", "manager", "managers", "misc"}


@cache
def text_of(path: Path) -> str:
    return path.read_text(encoding="utf-8")


@cache
def nodes_of(path: Path) -> tuple[ast.AST, ...]:
    """Return what several tests look at in a source: its imports, constants and uses of attributes."""
    kinds = ast.Import | ast.ImportFrom | ast.Constant | ast.Attribute
    return tuple(node for node in ast.walk(ast.parse(text_of(path))) if isinstance(node, kinds))


@cache
def source_files(*suffixes: str) -> list[Path]:
    """Return our source files, without build products."""
    return sorted(
        path
        for top in SOURCES
        for path in (ROOT / top).rglob("*")
        if path.suffix in suffixes and "_build" not in path.parts and "__pycache__" not in path.parts
    )


def test_no_file_or_folder_is_named_after_nothing():
    named = [
        path
        for path in source_files(".py", ".cpp", ".h", ".c")
        if FORBIDDEN_NAMES
        & {part.lower() for part in (*path.relative_to(ROOT).parent.parts, path.stem.strip("_"))}
    ]
    assert named == []


@pytest.mark.parametrize("mark", ["TO" + "DO", "FIX" + "ME", "X" + "XX"])
def test_nothing_is_left_for_later(mark):
    found = [
        f"{path.relative_to(ROOT)}:{number}"
        for path in source_files(".py", ".pyi", ".cpp", ".h", ".c")
        for number, line in enumerate(text_of(path).splitlines(), 1)
        if re.search(rf"\b{mark}\b", line)
    ]
    assert found == []


def test_no_exception_is_swallowed_in_silence():
    silent = re.compile(r"except[^\n]*:\s*(#[^\n]*)?\n?\s*pass\b")
    found = [
        str(path.relative_to(ROOT))
        for path in source_files(".py")
        if "tests" not in path.relative_to(ROOT).parts and silent.search(text_of(path))
    ]
    assert found == []


def test_no_test_sleeps():
    found = [
        str(path.relative_to(ROOT))
        for path in (ROOT / "tests").rglob("*.py")
        if re.search(r"\btime\.slee" + r"p\(", text_of(path))
    ]
    assert found == []


def test_no_file_names_a_place_on_the_machine_it_was_written_on():
    tracked = subprocess.run(
        ["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True, text=True
    ).stdout.split("\0")
    place = re.compile(rb"(?<![\w.])/(wor" + rb"k|roo" + rb"t|far" + rb"m)/\w")
    found = [name for name in tracked if name and place.search((ROOT / name).read_bytes())]
    assert found == []


def test_import_rules_hold():
    linted = subprocess.run(
        [Path(sys.executable).with_name("lint-imports"), "--no-cache"],
        cwd=ROOT,
        check=False,
        capture_output=True,
        text=True,
    )
    assert linted.returncode == 0, linted.stdout + linted.stderr


@cache
def imports() -> dict[str, frozenset[str]]:
    """Return the imports between our modules: at module level, inside functions, or for types only."""
    package = ROOT / "src"
    paths = {
        ".".join(path.relative_to(package).with_suffix("").parts).removesuffix(".__init__"): path
        for path in (package / "kinetoscope").rglob("*.py")
    }
    found: dict[str, set[str]] = {name: set() for name in paths}
    for name, path in paths.items():
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                named = {f"{node.module}.{alias.name}" for alias in node.names}
                found[name] |= {module if module in paths else node.module for module in named} & set(paths)
    return {name: frozenset(targets - {name}) for name, targets in found.items()}


def test_no_files_import_each_other_in_a_circle():
    # The package imports its public names on demand, and for types.
    left = {name: targets - {"kinetoscope"} for name, targets in imports().items() if name != "kinetoscope"}
    while ends := {name for name, targets in left.items() if not targets & set(left)}:
        left = {name: targets for name, targets in left.items() if name not in ends}
    while unused := set(left) - set().union(*left.values(), set()):
        left = {name: targets for name, targets in left.items() if name not in unused}
    assert sorted(left) == []


def test_spans_are_nested_in_one_place():
    package = ROOT / "src" / "kinetoscope"
    calling = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if re.search(r"_core\.nest\b", text_of(path))
    ]
    assert calling == ["model/nesting.py"]


def test_only_rooms_of_the_profiled_program_use_the_compiled_module_for_it():
    package = ROOT / "src" / "kinetoscope"
    rooms = {
        path.relative_to(package).parts[0]
        for path in package.rglob("*.py")
        if re.search(r"kinetoscope\._runtime\b", text_of(path))
    }
    assert rooms == {"collect", "flight", "integrations"}


def test_groups_of_kinds_are_defined_in_one_place():
    package = ROOT / "src" / "kinetoscope"
    pairs = ("OPERATOR", "BACKWARD"), ("RUNTIME", "DRIVER"), ("MEMCPY", "MEMSET")
    by_hand = re.compile(
        "|".join(
            rf"== SpanKind\.{one}\) \| \([^|\n]*== SpanKind\.{other}\)|\(SpanKind\.{one}, SpanKind\.{other}\)"
            for one, other in pairs
        )
    )
    found = [
        path.relative_to(package).as_posix()
        for path in package.rglob("*.py")
        if by_hand.search(text_of(path))
    ]
    assert found == ["model/kinds.py"]


def test_what_is_private_to_a_room_is_imported_inside_it_only():
    def room(module: str) -> str:
        return module.split(".")[1] if "." in module else ""

    crossing = [
        f"{name} imports {target}"
        for name, targets in sorted(imports().items())
        for target in sorted(targets)
        if room(name) != room(target) and any(part.startswith("_") for part in target.split(".")[2:])
    ]
    assert crossing == []


def room_of(module: str) -> str:
    return ".".join(module.split(".")[:2])


def doors() -> dict[str, set[str]]:
    """Return what each package lists in `__all__`."""
    package = ROOT / "src"
    found = {}
    for path in (package / "kinetoscope").rglob("__init__.py"):
        listed: set[str] = set()
        for node in ast.parse(text_of(path)).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
                listed = {item.value for item in ast.walk(node.value) if isinstance(item, ast.Constant)}
        found[".".join(path.parent.relative_to(package).parts)] = listed
    return found


def way_to(module: str) -> list[tuple[str, str]]:
    """Return each package on the way to a module, with what it has to list."""
    parts = module.split(".")
    return [(".".join(parts[:depth]), parts[depth]) for depth in range(2, len(parts))]


def test_a_room_is_entered_through_what_it_lists_only():
    listed = doors()
    past = [
        f"{name} imports {target}"
        for name, targets in sorted(imports().items())
        for target in sorted(targets)
        if room_of(name) != room_of(target)
        and target not in listed
        and any(part not in listed[package] for package, part in way_to(target))
    ]
    assert past == []


def test_what_a_room_lists_is_used_outside_of_it():
    entered = {
        step
        for name, targets in imports().items()
        for target in targets
        if room_of(name) != room_of(target)
        for step in way_to(target)
    }
    modules = set(imports())
    unused = [
        f"{package}.{part}"
        for package, parts in doors().items()
        if package.count(".") > 0
        for part in sorted(parts)
        if f"{package}.{part}" in modules and (package, part) not in entered
    ]
    assert unused == []


def names_of_collect(node: ast.AST) -> list[str]:
    """What a node uses of collect: by `from kinetoscope.collect import name`, or as `collect.name`."""
    if isinstance(node, ast.ImportFrom) and node.module == "kinetoscope.collect":
        return [name.name for name in node.names]
    if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "collect":
        return [node.attr]
    return []


def test_only_names_on_the_list_of_collect_are_used_outside_of_it():
    package = ROOT / "src" / "kinetoscope"
    listed = set(kinetoscope.collect.__all__)
    found = []
    for path in package.rglob("*.py"):
        if package / "collect" in path.parents:
            continue
        for node in nodes_of(path):
            if isinstance(node, ast.ImportFrom) and node.module is not None:
                inside = node.module.startswith("kinetoscope.collect.")
                wrong = [node.module] if inside else sorted(set(names_of_collect(node)) - listed)
            elif isinstance(node, ast.Import):
                wrong = [name.name for name in node.names if name.name.startswith("kinetoscope.collect.")]
            elif isinstance(node, ast.Constant) and isinstance(node.value, str):
                wrong = re.findall(r"^kinetoscope\.collect\.[\w.]+$", node.value)
            elif isinstance(node, ast.Attribute):
                wrong = sorted(set(names_of_collect(node)) - listed)
            else:
                continue
            found += [f"{path.relative_to(package)}:{node.lineno}: {name}" for name in wrong]
    assert found == []


def test_every_name_on_the_list_of_collect_is_used_outside_of_it_or_public():
    package = ROOT / "src" / "kinetoscope"
    used = {
        name
        for path in [*package.rglob("*.py"), package / "__init__.pyi"]
        if package / "collect" not in path.parents
        for node in nodes_of(path)
        for name in names_of_collect(node)
    }
    # For those who write or choose an engine, or write a source.
    interfaces = {
        "Engine",
        "EngineStatus",
        "Gathered",
        "Recording",
        "RecordingRequest",
        "Source",
        "choose_engine",
    }
    assert set(kinetoscope.collect.__all__) - used - interfaces == set()


def test_every_name_on_the_list_of_collect_is_there():
    assert len(kinetoscope.collect.__all__) == len(set(kinetoscope.collect.__all__))
    for name in kinetoscope.collect.__all__:
        assert getattr(kinetoscope.collect, name) is not None


def test_tests_mirror_the_rooms():
    for part in ("", "collect"):
        package, tests = ROOT / "src" / "kinetoscope" / part, ROOT / "tests" / part
        rooms = {path.name for path in package.iterdir() if (path / "__init__.py").exists()}
        assert rooms - {path.name for path in tests.iterdir() if path.is_dir()} == set()


def test_pytest_runs_where_the_package_is_installed_in_editable_form(tmp_path):
    """An editable install loads a module at start-up whose package has a pytest plugin, so pytest warns."""
    hook = tmp_path / "_editable_skbc_kinetoscope.py"
    hook.write_text("")
    information = tmp_path / "editable-1.dist-info"
    information.mkdir()
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: editable\nVersion: 1\n")
    (information / "entry_points.txt").write_text("[pytest11]\neditable = json\n")
    (information / "RECORD").write_text(f"{hook.name},,\n")
    program = (
        f"import sys; sys.path.insert(0, {str(tmp_path)!r})\n"
        "import _editable_skbc_kinetoscope, pytest\n"
        "sys.exit(pytest.main(['--collect-only', '-q', '-p', 'no:cacheprovider', 'tests/house/test_layout.py']))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
