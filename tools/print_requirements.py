"""Prints, one a line, what pyproject.toml asks for: the dependencies, those of the extras named, and the build's.

The Makefile installs these before it installs the package, so that editing a source file never runs pip's resolver.
"""

import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """Collects the dependencies and the extras, following extras that name other extras of this project."""
    optional = project["optional-dependencies"]
    found = list(project["dependencies"])
    prefix = f"{project['name']}["
    waiting = list(extras)
    while waiting:
        for requirement in optional[waiting.pop()]:
            if requirement.startswith(prefix):
                waiting += requirement.removeprefix(prefix).rstrip("]").split(",")
            else:
                found.append(requirement)
    return found


def main() -> None:
    """Reads the extras from the command line."""
    settings = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    build = [*settings["build-system"]["requires"], "cmake", "ninja"]
    print("\n".join(sorted({*requirements(settings["project"], sys.argv[1:]), *build})))


if __name__ == "__main__":
    main()
