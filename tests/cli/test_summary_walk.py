"""How far a reader walks who follows the summary from its command to what it prints."""

import gc
import os
import sys
import tomllib
from itertools import pairwise
from pathlib import Path

import kinetoscope
from kinetoscope.cli.summary import print_trace
from tests.cli.conftest import training_trace

_PACKAGE = os.path.dirname(kinetoscope.__file__) + os.sep
# Stays in a module, and climbs to a room above the one before: only ever fewer.
MOST_STAYS = 25
MOST_CLIMBS = 5


def walk(call):
    """The modules in which functions are called for the first time, in this order, as paths in the package."""
    stays, known = [], set()

    def note(frame, event, argument):
        path = frame.f_code.co_filename
        if event == "call" and path.startswith(_PACKAGE) and frame.f_code not in known:
            known.add(frame.f_code)
            module = path.removeprefix(_PACKAGE)
            if stays[-1:] != [module]:
                stays.append(module)

    # What earlier tests left must not be finalized in the middle.
    gc.collect()
    gc.disable()
    sys.setprofile(note)
    try:
        call()
    finally:
        sys.setprofile(None)
        gc.enable()
    return stays


def heights():
    """How low each room lies."""
    contracts = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["tool"][
        "importlinter"
    ]
    layers = next(one["layers"] for one in contracts["contracts"] if one["containers"] == ["kinetoscope"])
    return {room.strip(" ()"): depth for depth, layer in enumerate(layers) for room in layer.split("|")}


def test_the_summary_is_composed_and_rendered_in_few_stays(capsys):
    trace = training_trace().build()
    # Tables and findings are computed once; what is followed is how they are told.
    print_trace(trace, "run.ktrace")
    stays = walk(lambda: print_trace(trace, "run.ktrace"))
    assert "aten::addmm" in capsys.readouterr().out
    rooms = [os.path.splitext(stay.split(os.sep)[0])[0] for stay in stays]
    depth = heights()
    climbs = sum(depth[room] < depth[before] for before, room in pairwise(rooms))
    assert len(stays) <= MOST_STAYS
    assert climbs <= MOST_CLIMBS
    assert stays[0] == os.path.join("cli", "summary.py")
