"""Write `__init__.pyi` of the packages that import their names on first use, for type checkers and editors; with `--check`, only check them."""

import ast
import importlib
import subprocess
import sys
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
PACKAGES = ("kinetoscope", "kinetoscope.collect")


def main() -> int:
    """Write or check the stubs; return 1 if one is not up to date."""
    outdated = []
    for name in PACKAGES:
        path = SOURCE.joinpath(*name.split("."), "__init__.pyi")
        text = stub(name, path.with_suffix(".py"))
        if "--check" not in sys.argv:
            path.write_text(text, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != text:
            outdated.append(path.name)
            print(f"{path} is out of date. Run `make format`, which writes it.")
    return 1 if outdated else 0


def stub(name: str, source: Path) -> str:
    """Return the stub of a package: where each of its names is, what it lists, and its own functions."""
    package = importlib.import_module(name)
    tree = ast.parse(source.read_text(encoding="utf-8"))
    modules: dict[str, list[str]] = defaultdict(list)
    for home, names in package._NAMES.items():
        modules[f"{name}.{home}"] += names.split()
    for node in tree.body:
        if isinstance(node, ast.ImportFrom) and node.module is not None:
            names = [alias.name for alias in node.names]
            names = importlib.import_module(node.module).__all__ if names == ["*"] else names
            modules[node.module] += [exported for exported in names if exported in package.__all__]
    renamed = getattr(package, "_NAMES_AT_HOME", {})
    imports = [
        f"from {module} import {renamed.get(exported, exported)} as {exported}"
        for module, names in modules.items()
        for exported in names
    ]
    functions = [
        f"{ast.unparse(node).splitlines()[0]} ..."
        for node in tree.body
        if isinstance(node, ast.FunctionDef) and node.name in {"__getattr__", *package.__all__}
    ]
    listed = f"__all__ = {package.__all__!r}"
    return formatted("\n".join(["# Written by tools/generate_stubs.py.", *imports, listed, *functions]))


def formatted(text: str) -> str:
    """Return a stub as `ruff` sorts and formats it."""
    for command in (["check", "--quiet", "--fix", "--select", "I,RUF022"], ["format", "--quiet"]):
        ruff = Path(sys.executable).with_name("ruff")
        text = subprocess.run(
            [ruff, *command, "--stdin-filename", SOURCE / "kinetoscope" / "__init__.pyi", "-"],
            input=text,
            check=True,
            capture_output=True,
            text=True,
        ).stdout
    return text


if __name__ == "__main__":
    sys.exit(main())
