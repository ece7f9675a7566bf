"""Fixtures for tests that record with each engine that this machine has."""

import pytest

from kinetoscope.collect.engines.native import native_engine_status


@pytest.fixture
def native() -> str:
    """The native engine's name, or a skipped test that says why it cannot serve."""
    status = native_engine_status()
    if not status.available:
        pytest.skip(f"the native engine cannot serve here: {status.reason}")
    return "native"


@pytest.fixture(params=["kineto", "native"])
def engine(request: pytest.FixtureRequest) -> str:
    """Each engine's name in turn."""
    name: str = request.getfixturevalue("native") if request.param == "native" else request.param
    return name
