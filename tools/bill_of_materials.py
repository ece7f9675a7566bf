"""Write what a wheel contains and needs, in CycloneDX format; the build puts it into the wheel's metadata (PEP 770).

    python tools/bill_of_materials.py OUTPUT

The same sources always make the same file, so that builds can be reproduced. Only the standard library is needed.
"""

import json
import re
import sys
import tomllib
import uuid
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
# Compiled into the extension module; their versions are in THIRD_PARTY_NOTICES.txt.
_COMPILED = {"nanobind": "BSD-3-Clause", "robin_map": "MIT"}


def bill_of_materials() -> dict[str, Any]:
    """The contents of a wheel and its dependencies, without those of extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    declared = (ROOT / "src" / "kinetoscope" / "_version.py").read_text(encoding="utf-8")
    version = re.search(r"""^__version__.*["'](.+)["']""", declared, re.MULTILINE)[1]
    lock = json.loads((ROOT / "web" / "package-lock.json").read_text(encoding="utf-8"))["packages"]
    notices = (ROOT / "THIRD_PARTY_NOTICES.txt").read_text(encoding="utf-8")
    compiled = re.findall(rf"^({'|'.join(_COMPILED)}) (\S+) \(", notices, re.MULTILINE)
    contained = [
        _contained(path.removeprefix("node_modules/"), entry["version"], "npm", entry.get("license", "MIT"))
        for path, entry in lock.items()
        if path and not entry.get("dev")
    ]
    contained += [_contained(name, number, "generic", _COMPILED[name]) for name, number in compiled]
    needed = [
        {
            "type": "library",
            "bom-ref": f"needs:{line}",
            "name": re.match(r"[\w.-]+", line)[0],
            "version": line,
        }
        for line in project["dependencies"]
    ]
    purl = f"pkg:pypi/{project['name']}@{version}"
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "serialNumber": f"urn:uuid:{uuid.uuid5(uuid.NAMESPACE_URL, purl)}",
        "version": 1,
        "metadata": {
            "component": {
                "type": "library",
                "bom-ref": project["name"],
                "name": project["name"],
                "version": version,
                "purl": purl,
                "licenses": [{"license": {"id": project["license"]}}],
            },
        },
        "components": [*contained, *needed],
        "dependencies": [
            {"ref": project["name"], "dependsOn": [one["bom-ref"] for one in (*contained, *needed)]}
        ],
    }


def _contained(name: str, version: str, kind: str, license_name: str) -> dict[str, Any]:
    """A library that is in the wheel."""
    return {
        "type": "library",
        "bom-ref": f"pkg:{kind}/{name}@{version}",
        "name": name,
        "version": version,
        "purl": f"pkg:{kind}/{name.replace('@', '%40')}@{version}",
        "scope": "required",
        "licenses": [{"license": {"id": license_name}}],
    }


if __name__ == "__main__":
    Path(sys.argv[1]).write_text(json.dumps(bill_of_materials(), indent=1) + "\n", encoding="utf-8")
