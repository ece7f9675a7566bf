"""Print the requirements in pyproject.toml, one per line: dependencies, those of the named extras, and build requirements.

The Makefile installs these before the package, so that editing a source file never runs pip's resolver.
"""

import sys
import tomllib
from pathlib import Path


def requirements(project: dict[str, object], extras: list[str]) -> list[str]:
    """Return the requirements of the dependencies and extras, resolving extras that refer to other extras."""
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
    """Read the extras from the command line and print the requirements."""
    settings = tomllib.loads(Path(__file__).parents[1].joinpath("pyproject.toml").read_text(encoding="utf-8"))
    build = [*settings["build-system"]["requires"], "cmake", "ninja"]
    print("\n".join(sorted({*requirements(settings["project"], sys.argv[1:]), *build})))


if __name__ == "__main__":
    main()
