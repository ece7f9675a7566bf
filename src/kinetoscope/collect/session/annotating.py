"""The metadata calls of a session."""

from __future__ import annotations

import threading

from kinetoscope.collect.session import metadata as metadata_module
from kinetoscope.collect.session.cycle import KeptCycles


class TakesMetadata:
    """What a program can write into the trace beside the events."""

    _lock: threading.RLock
    _state: str
    _cycles: KeptCycles
    _metadata: metadata_module.Metadata

    def add_metadata(self, key: str, value: str) -> None:
        """Add a text to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Any string.

        Raises:
            ArgumentError: The key belongs to the trace format, or the value is no string.
        """
        self.add_metadata_json(key, metadata_module.quoted(key, value))

    def add_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace: the one that records now or next or, after stop, the finished one.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        with self._lock:
            if self._state == "idle" and self._cycles.last is not None:
                checked = metadata_module.Metadata()
                checked.add(key, value)
                self._cycles.add_info(checked.gathered())
            else:
                self._metadata.add(key, value)

    def preset_metadata_json(self, key: str, value: str) -> None:
        """Add a JSON value to the trace of every cycle that begins from now on.

        Args:
            key: Top-level key of the exported trace.
            value: Strict JSON.

        Raises:
            ArgumentError: The value is not valid JSON, or the key belongs to the trace format; nothing is changed.
        """
        self._metadata.preset(key, value)

    @property
    def preset_metadata(self) -> dict[str, str]:
        """What `preset_metadata_json` was given: JSON texts by key."""
        return self._metadata.preset_ones
