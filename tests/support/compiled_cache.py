"""A folder for what the compiler makes, one for all tests of a run: compiling the same program again takes it from there."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def compiler_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Compiles into a folder of this run, in this process, with one thread."""
    from torch._inductor import config

    before, threads = os.environ.get("TORCHINDUCTOR_CACHE_DIR"), config.compile_threads
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(tmp_path_factory.mktemp("compiled"))
    config.compile_threads = 1
    yield
    config.compile_threads = threads
    if before is None:
        del os.environ["TORCHINDUCTOR_CACHE_DIR"]
    else:
        os.environ["TORCHINDUCTOR_CACHE_DIR"] = before
