"""How tests compile: into the folder of the run, see tests/conftest.py, where workers share headers that were compiled before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def compiler_cache() -> Iterator[None]:
    """Compiles in this process, with one thread."""
    from torch._inductor import config

    threads = config.compile_threads
    config.compile_threads = 1
    yield
    config.compile_threads = threads
