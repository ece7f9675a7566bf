"""The pytest plugin: a marker that limits what a test may do, and a fixture with its trace.

Any version of pytest loads this file in every run if the package is installed. So it imports only pytest and this package's names, and if pytest
is too old for the plugin, all tests run that do not use it.
"""

import pytest

from kinetoscope.integrations.pytest.marker import MARKER

OLDEST = (8, 0)

if getattr(pytest, "version_tuple", (0,)) >= OLDEST:
    # pytest finds hooks and fixtures by their names.
    from kinetoscope.integrations.pytest.hooks import *  # noqa: F403
else:

    def pytest_configure(config: pytest.Config) -> None:
        """Describe the marker."""
        config.addinivalue_line("markers", MARKER)

    def pytest_runtest_setup(item: pytest.Item) -> None:
        """Warn that the limits of a marked test are not checked."""
        if item.get_closest_marker("kinetoscope") is not None:
            needed = ".".join(map(str, OLDEST))
            pytest.fail(
                f"the marker kinetoscope needs pytest {needed} or newer, and this is {pytest.__version__}",
                pytrace=False,
            )
