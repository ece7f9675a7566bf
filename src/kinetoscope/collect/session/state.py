"""The state machine of a recording, shared by sessions, the launcher and the pytest plugin.

A run goes from BEGIN to END, and within it each cycle of a schedule from PREPARE to STOP. Without a schedule, when
`prepare_trace` is called by hand, each cycle is a run. STOP and END are valid in every state, because an interrupt may come before
or after the move that they undo; but END has no effect while an engine is prepared or recording. A dash in the table marks an
invalid move, which is a bug.

Must not import torch: the launcher uses it before the program has imported torch.
"""

from __future__ import annotations

import enum

from kinetoscope._errors import StateError


class SessionState(enum.Enum):
    """The state of a recording."""

    IDLE = "idle"
    """Not started."""
    WAITING = "waiting"
    """Started; waiting for the schedule to prepare the next cycle."""
    PREPARED = "prepared"
    """The engine is prepared, but does not record yet."""
    RECORDING = "recording"
    ENDED = "ended"
    """Ended; it can be started again."""
    FAILED = "failed"
    """Starting failed; it can be tried again."""

    @property
    def has_engine(self) -> bool:
        """Whether the engine is prepared or recording, so that it must be stopped."""
        return self in (SessionState.PREPARED, SessionState.RECORDING)

    def after(self, *moves: Move) -> SessionState:
        """Return the state after a sequence of moves.

        Raises:
            StateError: One of them is invalid in its state.
        """
        state = self
        for move in moves:
            if move is Move.TRACE_READY:
                continue
            next_state = TRANSITIONS.get((state, move))
            if next_state is None:
                raise StateError(f"a recording that is {state.value} cannot {move.value}.")
            state = next_state
        return state


class Move(enum.Enum):
    """A move of the state machine."""

    BEGIN = "begin"
    PREPARE = "be prepared"
    START = "start"
    STOP = "stop"
    TRACE_READY = "be given to its handler"
    """Call `on_trace_ready` for the cycle that was stopped; does not change the state."""
    END = "end"
    FAIL = "fail"


# The state after each move, for each state before it.
_TABLE = """\
state      BEGIN      PREPARE    START      STOP       END        FAIL
IDLE       WAITING    PREPARED   -          IDLE       IDLE       FAILED
WAITING    WAITING    PREPARED   -          WAITING    ENDED      FAILED
PREPARED   PREPARED   PREPARED   RECORDING  WAITING    PREPARED   -
RECORDING  RECORDING  -          -          WAITING    RECORDING  -
ENDED      WAITING    PREPARED   -          ENDED      ENDED      FAILED
FAILED     WAITING    PREPARED   -          FAILED     FAILED     FAILED
"""
_HEADINGS, *_ROWS = (line.split() for line in _TABLE.splitlines())

TRANSITIONS = {
    (SessionState[state], Move[move]): SessionState[after]
    for state, *row in _ROWS
    for move, after in zip(_HEADINGS[1:], row, strict=True)
    if after != "-"
}
