"""Python stacks and modules as files of torch write them: one text for each frame, one for each call of a module."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    Tables = dict[str, dict[str, Any]]

MODULE_MARK = "nn.Module: "
_FRAME = re.compile(r"(?P<file>.*)\((?P<line>\d+)\): (?P<function>.*)", re.DOTALL)
_LAST_LINE = 2**31 - 1


class Strings:
    """A string table that grows; each string once."""

    def __init__(self, rows: list[str]) -> None:
        self.rows = rows
        self._row_of: dict[str, int] | None = None

    def of(self, text: str) -> int:
        """The row of a text."""
        if self._row_of is None:
            self._row_of = {text: row for row, text in enumerate(self.rows)}
        row = self._row_of.setdefault(text, len(self.rows))
        if row == len(self.rows):
            self.rows.append(text)
        return row


class Calls:
    """The tables `stacks`, `frames` and `modules` of a file, filled as its texts are seen."""

    def __init__(self, strings: Strings) -> None:
        self._strings = strings
        self._frames: dict[tuple[int, int, int], int] = {}
        self._frame_of_text: dict[str, int] = {}
        self._stacks: dict[tuple[int, int], int] = {}
        self._modules: dict[str, tuple[int, int]] = {}

    def of_functions(self, stacks: Mapping[str, Any] | None, modules: Mapping[str, Any] | None) -> Tables:
        """The tables for what the reader made of python_function events: rows stay where they are.

        Args:
            stacks: The reader's stacks: `parent`, and the `name` of the innermost frame, parents first.
            modules: The reader's modules: `name` and `caller`, callers first.
        """
        tables: Tables = {}
        rows = self._strings.rows
        if stacks is not None:
            names, place = np.unique(stacks["name"], return_inverse=True)
            frames = np.array([self._frame(rows[name]) for name in names.tolist()], np.int32)
            tables["stacks"] = {"parent": stacks["parent"], "frame": frames[place.reshape(-1)]}
            tables["frames"] = _columns(("function", "file", "line"), list(self._frames))
        if modules is not None:
            texts = [rows[name] for name in modules["name"].tolist()]
            tables["modules"] = self._module_columns(texts, modules["caller"])
        return tables

    def of_texts(self, texts: Sequence[str]) -> tuple[Tables, NDArray[np.int32], NDArray[np.int32]]:
        """The tables for the "Call stack" texts of torch 1.8 to 1.13: frames from the innermost on, joined by semicolons.

        Args:
            texts: The texts, each once.

        Returns:
            The tables; for each text its stack, and its innermost module. The last entry, for no text, is -1.
        """
        stack_rows = np.full(len(texts) + 1, -1, np.int32)
        module_rows = np.full(len(texts) + 1, -1, np.int32)
        for row, text in enumerate(texts):
            stack = module = -1
            for frame in reversed(text.split(";")):
                if frame.startswith(MODULE_MARK):
                    # One instance whoever calls it; the first caller counts.
                    module = self._modules.setdefault(frame, (len(self._modules), module))[0]
                elif frame:
                    stack = self._stacks.setdefault((stack, self._frame(frame)), len(self._stacks))
            stack_rows[row], module_rows[row] = stack, module
        tables = {
            "stacks": _columns(("parent", "frame"), list(self._stacks)),
            "frames": _columns(("function", "file", "line"), list(self._frames)),
            "modules": self._module_columns(
                list(self._modules), [caller for _, caller in self._modules.values()]
            ),
        }
        return tables, stack_rows, module_rows

    def _frame(self, text: str) -> int:
        """The row of the frame that torch calls `file(line): function`; what looks otherwise is a function's name."""
        known = self._frame_of_text.get(text)
        if known is not None:
            return known
        key = (self._strings.of(text), 0, 0)
        if (parts := _FRAME.fullmatch(text)) is not None:
            digits = parts["line"].lstrip("0")
            # torch reads some frames after they are gone: their line is whatever lay there.
            line = int(digits) if 0 < len(digits) <= len(str(_LAST_LINE)) else 0
            function, file = self._strings.of(parts["function"]), self._strings.of(parts["file"])
            key = (function, file, line if line <= _LAST_LINE else 0)
        self._frame_of_text[text] = row = self._frames.setdefault(key, len(self._frames))
        return row

    def _module_columns(self, texts: Sequence[str], callers: Any) -> dict[str, Any]:
        """The columns of modules that torch calls `nn.Module: Linear_0`."""
        names = [text.removeprefix(MODULE_MARK) for text in texts]
        of = self._strings.of
        return {
            "class": np.array([of(name.rpartition("_")[0] or name) for name in names], np.int32),
            # torch does not say the attribute, but it numbers the instances of a class.
            "name": np.array([of(name) for name in names], np.int32),
            "caller": np.asarray(callers, np.int32),
        }


def _columns(names: tuple[str, ...], rows: list[tuple[int, ...]]) -> dict[str, Any]:
    """Rows of numbers as columns."""
    values = np.array(rows, np.int32).reshape(len(rows), len(names))
    return {name: np.ascontiguousarray(values[:, place]) for place, name in enumerate(names)}
