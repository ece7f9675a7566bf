"""What the package says of itself: its extras, and its bill of materials."""

import importlib.util
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).parents[2]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]


def bill_of_materials():
    place = importlib.util.spec_from_file_location("bill", ROOT / "tools" / "bill_of_materials.py")
    tool = importlib.util.module_from_spec(place)
    place.loader.exec_module(tool)
    return tool.bill_of_materials()


def test_all_has_every_extra_of_users():
    extras = PROJECT["optional-dependencies"]
    (everything,) = extras["all"]
    named = set(re.fullmatch(r"kinetoscope\[(.*)\]", everything)[1].split(","))
    assert named == extras.keys() - {"all", "dev"}


def test_the_bill_of_materials_names_what_is_in_the_wheel_and_what_it_needs():
    bill = bill_of_materials()
    assert bill == bill_of_materials()
    names = {one["name"] for one in bill["components"]}
    assert {re.match(r"[\w.-]+", line)[0] for line in PROJECT["dependencies"]} < names
    notices = (ROOT / "THIRD_PARTY_NOTICES.txt").read_text(encoding="utf-8")
    told = {name.lower() for name in re.findall(r"^(\S+) [\d.]+ \(in ", notices, re.MULTILINE)}
    assert told
    assert told <= {name.lower() for name in names}
    assert bill["dependencies"][0]["dependsOn"] == [one["bom-ref"] for one in bill["components"]]
