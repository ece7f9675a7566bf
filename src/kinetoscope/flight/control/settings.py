"""Where a job that was left on can be controlled, from an argument or the environment."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kinetoscope._errors import ArgumentError

if TYPE_CHECKING:
    from collections.abc import Mapping

CONTROL, TOKEN_FILE = "KINETOSCOPE_CONTROL", "KINETOSCOPE_TOKEN_FILE"
DEFAULT_CONTROL = "off"
SUFFIX = ".control"
"""What the name of a control socket ends with."""

LEAST_TOKEN_BYTES = 16
"""A shorter token is refused, because it could be guessed."""

_LOOPBACK = "127.0.0.1"
_MOST_PORT = 65535


@dataclass(frozen=True)
class ControlSettings:
    """Where requests are accepted.

    Attributes:
        on: Whether anything listens: then a Unix socket beside the ring does.
        host: The address whose port listens, too; None: none does.
        port: The port, 0 for any that is free. Each further rank on this machine has the next one.
        token_file: The file with the token that requests to the port must have.
    """

    on: bool = False
    host: str | None = None
    port: int = 0
    token_file: Path | None = None


def control_settings(
    control: str | int = DEFAULT_CONTROL, environment: Mapping[str, str] = os.environ
) -> ControlSettings:
    """Read where requests are accepted; KINETOSCOPE_CONTROL takes the place of the argument.

    Args:
        control: `"off"`, `"socket"`, a port of 127.0.0.1, or `"HOST:PORT"`.
        environment: The environment variables; KINETOSCOPE_TOKEN_FILE names the file of the token.

    Raises:
        ArgumentError: The value cannot be used, or a port has no token file.
    """
    wanted = str(environment.get(CONTROL) or control).strip()
    if wanted in ("off", "socket"):
        return ControlSettings(on=wanted == "socket")
    host, colon, text = wanted.rpartition(":")
    if not text.isdecimal() or int(text) > _MOST_PORT or (colon and not host):
        raise ArgumentError(f"control={wanted!r} is not one of 'off', 'socket', a port, or 'HOST:PORT'.")
    token_file = environment.get(TOKEN_FILE)
    if not token_file:
        raise ArgumentError(
            f"control={wanted!r}: a port is opened only with a token. Set {TOKEN_FILE} to a file with one, or use control='socket'."
        )
    port = int(text)
    rank = environment.get("LOCAL_RANK", "")
    if port and rank.isdecimal():
        port += int(rank)
    if port > _MOST_PORT:
        raise ArgumentError(
            f"control={wanted!r}: the port of local rank {rank} would be {port}, which is none."
        )
    return ControlSettings(True, host.strip("[]") or _LOOPBACK, port, Path(token_file).absolute())


def read_token(path: Path) -> bytes:
    """Read the token of a file, without the spaces around it.

    Raises:
        OSError: The file cannot be read.
        ArgumentError: The token is too short.
    """
    token = path.read_bytes().strip()
    if len(token) < LEAST_TOKEN_BYTES:
        raise ArgumentError(
            f"{path} has a token of {len(token)} bytes: it needs {LEAST_TOKEN_BYTES} or more, such as those that "
            "`openssl rand -hex 32` prints."
        )
    return token
