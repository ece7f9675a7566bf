"""What Composer gives where it is installed, and what stands in for it where it is not."""

from __future__ import annotations

import enum
import logging
from typing import TYPE_CHECKING, Any

_log = logging.getLogger("kinetoscope.integrations.composer")


class _Action(enum.Enum):
    """What the profiler does during a batch."""

    SKIP = "skip"
    WARMUP = "warmup"
    ACTIVE = "active"
    ACTIVE_AND_SAVE = "active_and_save"


class _Callback:
    """The base of a callback where there is no trainer that calls it."""

    def run_event(self, event: Any, state: Any, logger: Any) -> None:
        """Call the method that is named like the event, if there is one.

        Args:
            event: The event, or its name.
            state: The state of the training run.
            logger: Where files are uploaded and values are logged; may be None.
        """
        called = getattr(self, getattr(event, "value", event), None)
        if called is not None:
            called(state, logger)


def _found() -> tuple[type[Any], Any] | None:
    """Composer's `Callback` and `ProfilerAction`, None where Composer is not there or cannot be imported."""
    try:
        from composer.core import Callback as ComposerCallback
        from composer.profiler import ProfilerAction as ComposerAction
    except ImportError as error:
        if not (error.name or "").startswith("composer"):
            _log.warning("Composer is installed but cannot be imported (%s): working without it.", error)
        return None
    except Exception as error:  # noqa: BLE001  (a Composer beside a torch it was not made for fails in its own ways)
        _log.warning("Composer is installed but cannot be imported (%s): working without it.", error)
        return None
    return ComposerCallback, ComposerAction


_FOUND = _found()
IS_THERE = _FOUND is not None

if TYPE_CHECKING:
    Callback = _Callback
    ProfilerAction = _Action
else:
    Callback, ProfilerAction = _FOUND or (_Callback, _Action)
