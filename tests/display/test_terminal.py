"""The console on which commands print."""

import contextlib
import os

import pytest

from kinetoscope.display.terminal import console


def test_a_pipe_whose_reader_has_gone_is_an_error_of_the_caller(monkeypatch):
    reader, writer = os.pipe()
    os.close(reader)
    # Closing it tries to write once more.
    with contextlib.suppress(BrokenPipeError), open(writer, "w") as pipe:
        monkeypatch.setattr("sys.stderr", pipe)
        with pytest.raises(BrokenPipeError):
            console(stderr=True).print("one line")
