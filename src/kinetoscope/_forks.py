"""Whether this process was forked beside threads that may have been running operators, which exist in its parent only.

Registered with the package, because a child may be the first to import what records.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable


class Forks:
    """What was seen before the forks that led to this process.

    Attributes:
        beside_work: Whether other threads may have been working at one of them.
        others_rest: Tells whether no other thread is working; replaced by a finer judgment where torch is loaded.
    """

    def __init__(self) -> None:
        """Register with Python."""
        self.beside_work = False
        self.others_rest: Callable[[], bool] = lambda: len(sys._current_frames()) == 1
        self._works = False
        os.register_at_fork(before=self._before, after_in_child=self._after_in_child)

    def _before(self) -> None:
        self._works = not self.others_rest()

    def _after_in_child(self) -> None:
        self.beside_work |= self._works


FORKS = Forks()
# Keeps the names in it alive, see `_import_aside`.
_CODE = sys._getframe().f_code
