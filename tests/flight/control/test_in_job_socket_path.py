"""Sockets whose paths are too long for the system."""

import socket

import pytest

from kinetoscope.flight.control.in_job import short_path


@pytest.mark.parametrize("length", [1, 200])
def test_a_socket_can_be_bound_and_reached(tmp_path, length):
    folder = tmp_path / ("x" * length)
    folder.mkdir()
    path = folder / "rank0.control"
    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as client:
        with short_path(path) as short:
            listener.bind(short)
        listener.listen()
        with short_path(path) as short:
            client.connect(short)
        assert path.is_socket()
