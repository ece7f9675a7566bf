"""The viewer's server in a thread, for browsers in tests."""

from __future__ import annotations

import threading
import urllib.error
import urllib.request
from typing import TYPE_CHECKING
from urllib.parse import urlencode

if TYPE_CHECKING:
    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.serve import Server


class Serving:
    """Serves traces from the first question for an address until `close`."""

    def __init__(self) -> None:
        self._traces: list[tuple[str, Trace]] = []
        self._server: Server | None = None
        self._thread: threading.Thread | None = None

    def address(self, trace: Trace, page: str, name: str = "trace", **query: object) -> str:
        """Returns the address of a page about a trace, which is served from now on."""
        server = self._started()
        number = next((at for at, (_, known) in enumerate(self._traces) if known is trace), None)
        if number is None:
            number = len(self._traces)
            self._traces.append((name, trace))
        options = urlencode({"trace": number, **query}) if number or query else ""
        return f"{server.address}#/{page}{'?' if options else ''}{options}"

    def close(self) -> None:
        """Stops the server and lets go of the traces."""
        if self._server is not None and self._thread is not None:
            self._server.shutdown()
            self._thread.join(60)
            assert not self._thread.is_alive(), "the server did not stop"
        self._server = self._thread = None
        self._traces = []

    def _started(self) -> Server:
        if self._server is None:
            from kinetoscope.viewer.server.serve import Server

            self._server = Server(lambda: tuple(self._traces), 0)
            self._thread = threading.Thread(target=self._server.run, name="viewer", daemon=True)
            self._thread.start()
            self._wait()
        return self._server

    def _wait(self) -> None:
        """Waits until the server answers."""
        assert self._server is not None
        pause = threading.Event()
        for _ in range(2400):
            try:
                with urllib.request.urlopen(f"{self._server.address}api/traces"):
                    return
            except urllib.error.URLError:
                pause.wait(0.025)
        raise AssertionError("the server does not answer")
