"""`kinetoscope run --leave-on`: run a program with a flight recorder, and write no trace at its end."""

from __future__ import annotations

import sys

from kinetoscope.display.terminal import complain
from kinetoscope.flight.environment import LeftOn
from kinetoscope.launcher.program import CannotRun, Program, show_exception, take_name_of_python


def run_left_on(program: Program) -> None:
    """Run a program, and exit as it does."""
    take_name_of_python()
    LeftOn().begin()
    try:
        program.run()
    except CannotRun as error:
        complain(str(error))
        sys.exit(error.exit_code)
    except SystemExit:
        raise
    except KeyboardInterrupt as error:
        show_exception(error)
        # Raised again, so that Python ends the process as it does on an interrupt: by the signal.
        sys.excepthook = lambda *_: None
        raise
    except BaseException as error:  # noqa: BLE001  (whatever it is, it is the program's)
        show_exception(error)
        sys.exit(1)
