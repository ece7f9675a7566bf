"""API-compatible with Composer's `TorchProfiler`, with and without Composer, and a trace handler for Composer's profiler."""

from kinetoscope.integrations.composer import callback, files
from kinetoscope.integrations.composer.callback import *  # noqa: F403
from kinetoscope.integrations.composer.files import *  # noqa: F403

__all__ = [*callback.__all__, *files.__all__]  # noqa: PLE0604
