"""Looking at traces in a browser, from Python and from the command line."""

from __future__ import annotations

import html
import os
import sys
import threading
import webbrowser
from typing import TYPE_CHECKING, Self
from urllib.parse import urlsplit

from kinetoscope._errors import ArgumentError
from kinetoscope.trace import open as open_any
from kinetoscope.viewer.server import open_traces
from kinetoscope.viewer.server.server import Server
from kinetoscope.viewer.sql.queries import end_queries

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from kinetoscope.trace import Trace
    from kinetoscope.viewer.server.open_traces import Given, Source

PERFETTO_UI = "https://ui.perfetto.dev"


class Viewer:
    """A server that shows traces, in a thread of its own; a context manager that ends it.

    Attributes:
        address: Where the page is. It holds a token: who does not have the address sees nothing.
        browser_address: Leads to the page once, for a browser's command line, which all users of a machine can read.
    """

    def __init__(
        self, traces: Sequence[Source], port: int | None, perfetto_ui: str, open_trace: Callable[[str], Trace]
    ) -> None:
        """Read the traces and serve them from now on; use `view`."""
        self._given: list[Given] = []
        # First what goes wrong at once: reading may take its time.
        self._server = Server(
            lambda: [one.offer for one in self._given],
            port,
            {"perfetto_ui": _checked(perfetto_ui)},
            self._look_again,
        )
        self.address: str = self._server.address
        self.browser_address: str = self._server.browser_address
        self._ready = threading.Thread(target=_make_ready, name="kinetoscope viewer begins", daemon=True)
        self._ready.start()
        try:
            self._given += open_traces.given(traces, open_trace)
        except BaseException:
            self._server.close()
            raise
        self._thread = threading.Thread(target=self._server.run, name="kinetoscope viewer", daemon=True)
        self._thread.start()

    @property
    def problems(self) -> list[str]:
        """What is wrong with the traces that could not be read."""
        return [one.offer.problem for one in self._given if one.offer.problem is not None]

    def wait(self) -> None:
        """Wait until somebody interrupts (Ctrl-C), and end the server then."""
        try:
            self._thread.join()
        except KeyboardInterrupt:
            print(file=sys.stderr)  # noqa: T201  (the terminal shows ^C)
        finally:
            self.close()

    def close(self) -> None:
        """End the server and let go of the files; traces that were given stay open. A second call does nothing."""
        for one in self._given:
            if one.offer.trace is not None:
                end_queries(one.offer.trace)
        self._server.stop()
        self._thread.join()
        self._ready.join()
        for one in self._given:
            one.close()
        self._given = []

    def _look_again(self) -> None:
        """Read files again that have changed."""
        for one in self._given:
            one.look_again()

    def __enter__(self) -> Self:
        """Return the viewer itself."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        """End the server."""
        self.close()

    def __repr__(self) -> str:
        """Where it is."""
        return f"<Viewer at {self.address}>" if self._given else "<Viewer (closed)>"

    def _repr_html_(self) -> str:
        """A link, in notebooks."""
        if not self._given:
            return "<p>Viewer (closed)</p>"
        names = html.escape(", ".join(one.offer.name for one in self._given))
        return f'<p>Kinetoscope: <a href="{self.address}" target="_blank">look at {names}</a></p>'


def _make_ready() -> None:
    """Load what the first answer needs, while traces are read and the browser starts."""
    import pyarrow as pa

    # With the first array pyarrow loads pandas, where that is installed.
    pa.array([0])


def view(
    *traces: Trace | str | os.PathLike[str],
    port: int | None = None,
    browser: bool = True,
    wait: bool | None = None,
    perfetto_ui: str = PERFETTO_UI,
) -> Viewer:
    """Look at traces in a browser.

    A server on this machine shows them, which only this machine can reach; `kinetoscope report` writes the same pages
    to a file without it. A file that changes, such as a recording that still runs, is read again while it is looked at.

    Args:
        *traces: What to look at: traces, sessions that were stopped, paths, or URLs.
        port: The port of the server; without it the first free one from 8765 on, 0 for any.
        browser: Open a browser, where this machine has one to open.
        wait: Wait until somebody interrupts (Ctrl-C). Without it: in programs, but not in notebooks and at Python's
            prompt, where the server runs beside until the viewer is closed or Python ends.
        perfetto_ui: Where Perfetto's page is, to which a window can be handed over; for a copy of one's own.

    Returns:
        The viewer: its `address`, `wait()` and `close()`.

    Raises:
        ArgumentError: Nothing was given, or something that is no trace.
        FormatError: None of the files holds a trace.
        MissingDependencyError: Starlette or uvicorn is not installed.
        OSError: None of the files can be read.
        StateError: The port is taken.
    """
    viewer = opened(traces, port, perfetto_ui)
    if wait is None:
        wait = not _is_interactive()
    if wait:
        print(viewer.address)  # noqa: T201  (who cannot have a browser opened needs it)
    if browser:
        open_browser(viewer)
    if wait:
        viewer.wait()
    return viewer


def opened(
    traces: Sequence[Source],
    port: int | None,
    perfetto_ui: str,
    open_trace: Callable[[str], Trace] = open_any,
) -> Viewer:
    """Read traces and serve them; see `view`."""
    return Viewer(traces, port, perfetto_ui, open_trace)


def open_browser(viewer: Viewer) -> bool:
    """Open the page in a browser that has a window; False where this machine has none to open it in."""
    if sys.platform.startswith("linux") and not {"DISPLAY", "WAYLAND_DISPLAY"} & set(os.environ):
        return False  # What would open is a browser in the terminal, in front of everything else.
    return webbrowser.open(viewer.browser_address)


def _is_interactive() -> bool:
    """Whether somebody sits at a prompt or in a notebook, where nothing may wait."""
    return hasattr(sys, "ps1") or bool(sys.flags.interactive) or "ipykernel" in sys.modules


def _checked(address: str) -> str:
    """The address of Perfetto's page, which must be one."""
    try:
        parts = urlsplit(address)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and not parts.fragment
    except ValueError:
        good = False
    if not good:
        raise ArgumentError(
            f"perfetto_ui={address!r} is no address of a page, such as {PERFETTO_UI} or http://127.0.0.1:8000"
        )
    return address
