"""Plugins of inference servers: vLLM and SGLang call `plug_in` at the start of each of their processes.

They find it by the entry points of this package. Nothing happens unless the environment variable `KINETOSCOPE` asks for it. With
`on`, the import of the package has done all, see `kinetoscope.flight.environment`.
"""

from __future__ import annotations

import os

from kinetoscope._errors import ArgumentError

VARIABLE = "KINETOSCOPE"
INSTALL = "install"
# What the import of the package looks at.
_OF_THE_PACKAGE = ("on", "off")


def plug_in() -> None:
    """With `KINETOSCOPE=install`, replace torch.profiler in this process, so that the server's own requests to profile record with Kinetoscope.

    A failure is a warning: the server goes on without.
    """
    asked = os.environ.get(VARIABLE, "")
    if asked.lower() in ("", *_OF_THE_PACKAGE):
        return
    try:
        _do(asked)
    except Exception as error:  # noqa: BLE001  (whatever fails, the server matters more)
        from kinetoscope.collect import warn_user

        warn_user(f"{VARIABLE}={asked}: {type(error).__name__}: {error}")


def _do(asked: str) -> None:
    """Do what the variable asks for.

    Raises:
        ArgumentError: There is no such value.
    """
    if asked != INSTALL:
        raise ArgumentError(
            f"the variable can be `{INSTALL}`, which replaces torch.profiler, or `on`, which records all the time"
        )
    from kinetoscope.collect import install

    install()
