"""How a run of pytest inside a test gets our plugin, and which warnings fail it."""

import importlib.metadata

PLUGIN = "kinetoscope.integrations.pytest.plugin"
INSTALLED = any(
    found.value == PLUGIN for found in importlib.metadata.entry_points(group="pytest11", name="kinetoscope")
)
# From a source tree no entry point names the plugin; where one does, naming it again would load it twice.
LOADED = () if INSTALLED else ("-p", PLUGIN)

# All but what pytest says of the module by which `pip install -e .` makes the sources importable.
WARNINGS_ARE_ERRORS = """
filterwarnings =
    error
    ignore:Module already imported so cannot be rewritten; _editable_skbc_kinetoscope:pytest.PytestAssertRewriteWarning
"""
