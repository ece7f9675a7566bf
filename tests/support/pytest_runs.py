"""How a run of pytest inside a test gets our plugin."""

import importlib.metadata

PLUGIN = "kinetoscope.integrations.pytest_plugin"
INSTALLED = any(
    found.value == PLUGIN for found in importlib.metadata.entry_points(group="pytest11", name="kinetoscope")
)
# From a source tree no entry point names the plugin; where one does, naming it again would load it twice.
LOADED = () if INSTALLED else ("-p", PLUGIN)
