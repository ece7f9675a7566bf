"""Questions to the program, from the process that answers requests: they go over a pair of sockets, and are never waited for without limit."""

from __future__ import annotations

import json
import threading
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import socket
    from collections.abc import Callable

    Reply = dict[str, Any]

MESSAGE_BYTES = 64 * 1024
"""The most that a question or a reply may have."""

_MOST_UNANSWERED = 16


class _Asked:
    """A question that was sent."""

    def __init__(self, then: Callable[[Reply], object] | None) -> None:
        self.answered = threading.Event()
        self.reply: Reply | None = None
        self.then = then


class ProgramLink:
    """The end of the pair of sockets that asks.

    Attributes:
        ended: Whether the program has ended, or stopped recording.
    """

    def __init__(self, channel: socket.socket) -> None:
        self.ended = False
        self._channel = channel
        self._lock = threading.Lock()
        self._sent = 0
        self._answered = 0
        self._asked: dict[int, _Asked] = {}

    @property
    def is_behind(self) -> bool:
        """Whether a question has no answer yet: then the program is busy, or hangs."""
        return self._sent > self._answered

    def ask(
        self,
        do: str,
        timeout_s: float,
        then: Callable[[Reply], object] | None = None,
        **named: Any,
    ) -> Reply | None:
        """Ask the program.

        Args:
            do: What it should do.
            timeout_s: How long to wait for the reply, in seconds.
            then: Called with the reply, also if it comes later; such a question is sent even if the program is far behind.
            **named: What it needs to know for that.

        Returns:
            The reply, or None if there was none in time.

        Raises:
            OSError: The question was not sent, and `then` will not be called; without `then`, that is None.
        """
        asked = _Asked(then)
        with self._lock:
            if then is None and (self.ended or self._sent - self._answered >= _MOST_UNANSWERED):
                return None
            if self.ended:
                raise ConnectionResetError("the program has ended")
            number = self._sent
            try:
                self._channel.send(json.dumps({"number": number, "do": do, **named}).encode(), _DO_NOT_WAIT)
            except OSError:
                if then is not None:
                    raise
                return None
            self._sent += 1
            self._asked[number] = asked
        if not asked.answered.wait(timeout_s) and then is None:
            with self._lock:
                self._asked.pop(number, None)
        return asked.reply

    def receive(self) -> None:
        """Read one reply, when the socket has one, and hand it over."""
        try:
            message = self._channel.recv(MESSAGE_BYTES, _DO_NOT_WAIT)
        except BlockingIOError:
            return
        except OSError:
            message = b""
        if not message:
            self.end()
            return
        reply: Reply = json.loads(message)
        with self._lock:
            self._answered += 1
            asked = self._asked.pop(reply["number"], None)
        if asked is None:
            return
        asked.reply = reply
        if asked.then is not None:
            asked.then(reply)
        asked.answered.set()

    def end(self) -> None:
        """Ask nothing more: the program has ended. Nobody waits any longer."""
        with self._lock:
            self.ended = True
            waiting, self._asked = self._asked, {}
        for asked in waiting.values():
            asked.answered.set()


# MSG_DONTWAIT of Linux.
_DO_NOT_WAIT = 0x40
