"""The state of a recording, for all that begin and end one: sessions, their schedules, the launcher, tests under pytest.

    state      BEGIN      PREPARE    START      STOP       END        FAIL
    IDLE       WAITING    PREPARED   -          IDLE       IDLE       FAILED
    WAITING    WAITING    PREPARED   -          WAITING    ENDED      FAILED
    PREPARED   PREPARED   PREPARED   RECORDING  WAITING    PREPARED   -
    RECORDING  RECORDING  -          -          WAITING    RECORDING  -
    ENDED      WAITING    PREPARED   -          ENDED      ENDED      FAILED
    FAILED     WAITING    PREPARED   -          FAILED     FAILED     FAILED

A run goes from BEGIN to END, and within it each cycle of a schedule from PREPARE to STOP. Without a schedule, as with `prepare_trace`
by hand, a cycle is a run. STOP and END are always possible, because an interrupt may come before or after what they undo; but
END does not end a recording that an engine still makes. A dash is a mistake of ours.

Imports no torch: the launcher has a state before its program has imported torch.
"""

from __future__ import annotations

import enum

from kinetoscope._errors import StateError


class SessionState(enum.Enum):
    """How far a recording is."""

    IDLE = "idle"
    """Nothing has begun."""
    WAITING = "waiting"
    """It has begun, and waits for its schedule or for the next cycle."""
    PREPARED = "prepared"
    """An engine is ready, and records nothing yet."""
    RECORDING = "recording"
    ENDED = "ended"
    """It can begin again."""
    FAILED = "failed"
    """It could not begin. It can be tried again."""

    @property
    def has_engine(self) -> bool:
        """Whether an engine is in use, and has to be stopped."""
        return self in (SessionState.PREPARED, SessionState.RECORDING)

    def after(self, *moves: Move) -> SessionState:
        """The state after some moves.

        Raises:
            StateError: One of them is not possible.
        """
        state = self
        for move in moves:
            if move is Move.TRACE_READY:
                continue
            found = TRANSITIONS.get((state, move))
            if found is None:
                raise StateError(f"a recording that is {state.value} cannot {move.value}.")
            state = found
        return state


class Move(enum.Enum):
    """What changes the state."""

    BEGIN = "begin"
    PREPARE = "be prepared"
    START = "start"
    STOP = "stop"
    TRACE_READY = "be given to its handler"
    """Changes nothing: the handler is called with the trace of the cycle that was stopped."""
    END = "end"
    FAIL = "fail"


_IDLE, _WAITING, _PREPARED = SessionState.IDLE, SessionState.WAITING, SessionState.PREPARED
_RECORDING, _ENDED, _FAILED = SessionState.RECORDING, SessionState.ENDED, SessionState.FAILED

TRANSITIONS: dict[tuple[SessionState, Move], SessionState] = {
    (_IDLE, Move.BEGIN): _WAITING,
    (_IDLE, Move.PREPARE): _PREPARED,
    (_IDLE, Move.STOP): _IDLE,
    (_IDLE, Move.END): _IDLE,
    (_IDLE, Move.FAIL): _FAILED,
    (_WAITING, Move.BEGIN): _WAITING,
    (_WAITING, Move.PREPARE): _PREPARED,
    (_WAITING, Move.STOP): _WAITING,
    (_WAITING, Move.END): _ENDED,
    (_WAITING, Move.FAIL): _FAILED,
    (_PREPARED, Move.BEGIN): _PREPARED,
    (_PREPARED, Move.PREPARE): _PREPARED,
    (_PREPARED, Move.START): _RECORDING,
    (_PREPARED, Move.STOP): _WAITING,
    (_PREPARED, Move.END): _PREPARED,
    (_RECORDING, Move.BEGIN): _RECORDING,
    (_RECORDING, Move.STOP): _WAITING,
    (_RECORDING, Move.END): _RECORDING,
    (_ENDED, Move.BEGIN): _WAITING,
    (_ENDED, Move.PREPARE): _PREPARED,
    (_ENDED, Move.STOP): _ENDED,
    (_ENDED, Move.END): _ENDED,
    (_ENDED, Move.FAIL): _FAILED,
    (_FAILED, Move.BEGIN): _WAITING,
    (_FAILED, Move.PREPARE): _PREPARED,
    (_FAILED, Move.STOP): _FAILED,
    (_FAILED, Move.END): _FAILED,
    (_FAILED, Move.FAIL): _FAILED,
}
