"""Where requests are accepted, by arguments and the environment."""

from pathlib import Path

import pytest

from kinetoscope import ArgumentError
from kinetoscope.flight.control.settings import ControlSettings, control_settings, read_token

TOKEN = {"KINETOSCOPE_TOKEN_FILE": "/run/token"}


@pytest.mark.parametrize(
    ("control", "environment", "expected"),
    [
        ("off", {}, ControlSettings()),
        ("socket", {}, ControlSettings(on=True)),
        ("off", {"KINETOSCOPE_CONTROL": "socket"}, ControlSettings(on=True)),
        ("socket", {"KINETOSCOPE_CONTROL": "off"}, ControlSettings()),
        (9400, TOKEN, ControlSettings(True, "127.0.0.1", 9400, Path("/run/token"))),
        ("0.0.0.0:9400", TOKEN, ControlSettings(True, "0.0.0.0", 9400, Path("/run/token"))),
        ("[::1]:9400", TOKEN, ControlSettings(True, "::1", 9400, Path("/run/token"))),
        ("9400", {**TOKEN, "LOCAL_RANK": "3"}, ControlSettings(True, "127.0.0.1", 9403, Path("/run/token"))),
        # Any port that is free is free for each rank.
        ("0", {**TOKEN, "LOCAL_RANK": "3"}, ControlSettings(True, "127.0.0.1", 0, Path("/run/token"))),
    ],
)
def test_values(control, environment, expected):
    assert control_settings(control, environment) == expected


@pytest.mark.parametrize(
    ("control", "environment", "message"),
    [
        ("tcp", TOKEN, "control='tcp' is not one of 'off', 'socket', a port, or 'HOST:PORT'"),
        ("70000", TOKEN, "is not one of"),
        (":9400", TOKEN, "is not one of"),
        (-1, TOKEN, "is not one of"),
        ("9400", {}, "only with a token. Set KINETOSCOPE_TOKEN_FILE"),
        ("65530", {**TOKEN, "LOCAL_RANK": "6"}, "the port of local rank 6 would be 65536"),
    ],
)
def test_values_that_cannot_be_used(control, environment, message):
    with pytest.raises(ArgumentError) as caught:
        control_settings(control, environment)
    assert message in str(caught.value)


def test_a_token_is_long(tmp_path):
    file = tmp_path / "token"
    file.write_text(" 0123456789abcdef\n")
    assert read_token(file) == b"0123456789abcdef"
    file.write_text("secret\n")
    with pytest.raises(ArgumentError, match="has a token of 6 bytes: it needs 16 or more"):
        read_token(file)
