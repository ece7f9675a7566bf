"""Names of steps: a range in the step, see `model.marks`."""

from __future__ import annotations

import json
from typing import Any

from kinetoscope.collect.sources.quick_ranges import begin_range, end_range
from kinetoscope.collect.sources.requests import LimitedTexts
from kinetoscope.model.marks import step_mark


class StepNames:
    """Names the steps of an engine, one after the other, on one thread."""

    def __init__(self) -> None:
        self._texts = LimitedTexts("other steps")
        self._range: Any = None

    def begin(self, name: str, arguments: dict[str, int]) -> None:
        """Record the name and the arguments of the step that has begun. After many different ones, arguments, and then names, are left out."""
        self.end()
        text = json.dumps(arguments) if arguments else ""
        self._range = begin_range(step_mark(*self._texts.limited(name, text)))

    def end(self) -> None:
        """Close the range of the name, if one is open."""
        opened, self._range = self._range, None
        if opened is not None:
            end_range(opened)
