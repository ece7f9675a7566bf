"""`kinetoscope attach`: turn on the flight recorder in a running program."""

from __future__ import annotations

import sys
import tempfile
import time
from pathlib import Path

import click

from kinetoscope._errors import StateError

_LOOK_S = 0.05
# Run by the program itself, between two of its lines.
_SCRIPT = """\
def _attach(place, answer):
    import os, sys
    try:
        if "torch" not in sys.modules:
            said = "it has not imported torch"
        else:
            sys.path.append(place)
            import kinetoscope
            said = str(kinetoscope.leave_on(control="socket").status())
    except BaseException as error:
        said = f"{{type(error).__name__}}: {{error}}"
    with open(answer + ".part", "w") as file:
        file.write(said)
    os.rename(answer + ".part", answer)

_attach({place!r}, {answer!r})
del _attach
"""


def script(answer: Path) -> str:
    """The lines by which a program turns on its flight recorder with control, and writes the recorder's state, or an error, to a file."""
    import kinetoscope

    return _SCRIPT.format(place=str(Path(kinetoscope.__file__).parents[1]), answer=str(answer))


@click.command("attach")
@click.argument("process", metavar="PID", type=click.IntRange(1))
@click.option("--wait", metavar="TIME", default="10s", help="How long to wait for the program.")
def command(process: int, *, wait: str) -> None:
    """Turn on the flight recorder in a running program and let it be controlled, as if it had called `kinetoscope.leave_on(control="socket")`.

    This needs Python 3.14 or newer, the same version and user here as in the program. The program must have imported torch; its steps are
    those of its first optimizer.
    """
    from kinetoscope.display.terminal import echo
    from kinetoscope.model import units

    wait_s = units.parse_duration(wait) / 1e9
    if sys.version_info < (3, 14):
        raise StateError(
            f"Python {sys.version_info[0]}.{sys.version_info[1]} cannot attach to a program that runs, 3.14 can: start the program with "
            "KINETOSCOPE=on KINETOSCOPE_CONTROL=socket, or `kinetoscope run --leave-on`."
        )
    with tempfile.TemporaryDirectory(prefix="kinetoscope-attach-") as folder:
        file, answer = Path(folder, "attach.py"), Path(folder, "answer")
        file.write_text(script(answer))
        try:
            sys.remote_exec(process, str(file))
        except (OSError, RuntimeError) as error:
            raise StateError(f"process {process} cannot be attached to: {error}") from error
        until = time.monotonic() + wait_s
        while not answer.exists():
            if time.monotonic() > until:
                raise StateError(
                    f"process {process} has run no line of Python within {wait}: it waits in C code, or hangs. It was not changed."
                )
            time.sleep(_LOOK_S)
        reply = answer.read_text()
    if not reply.startswith("on"):
        raise StateError(f"the flight recorder of process {process} was not turned on: {reply}")
    echo(f"process {process}: flight recorder {reply}")
