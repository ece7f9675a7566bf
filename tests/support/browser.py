"""A real Chromium, driven from Python, that notes whatever a page complains about or asks of other machines.

Pages are visited one after the other, in one tab of one browser as long as that does not matter: what starts anew is its content, and
what the pages have stored. A new tab with a profile of its own takes a second to start and to compile the page's script.
"""

from __future__ import annotations

import importlib.util
import shutil
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from collections.abc import Callable

    from playwright.sync_api import Browser, BrowserContext, Page, Playwright

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
# No name is looked up, so that even a page that misbehaves reaches nobody.
_OPTIONS = (
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    # Compiling the page's script for speed takes longer than running it does.
    "--js-flags=--no-opt --no-maglev",
    "--host-resolver-rules=MAP * ~NOTFOUND, EXCLUDE 127.0.0.1",
)
SCREEN = {"width": 1280, "height": 800}


def browser_path() -> str | None:
    """Where Chromium is, or None."""
    return next(filter(None, map(shutil.which, _NAMES)), None)


def what_is_missing() -> str | None:
    """What has to be installed before a page can be tested, as one line; None where it is all there."""
    if browser_path() is None:
        return "needs Chromium; to enable: apt-get install chromium"
    if importlib.util.find_spec("playwright") is None:
        return 'needs playwright; to enable: pip install "playwright"'
    return None


class Chromium:
    """The browser; it runs from the first visit until `close`."""

    def __init__(self) -> None:
        self._playwright: Playwright | None = None
        self._browser: Browser | None = None
        self._page: Page | None = None

    def visit(self, **options: Any) -> Visit:
        """Begins a visit; the options are those of playwright's `new_context`, and a visit with any has a profile of its own."""
        if options:
            return Visit(self._new_page(**options), lasts=False)
        if self._page is None or self._page.is_closed():
            self._page = self._new_page()
        return Visit(self._page, lasts=True)

    def _new_page(self, **options: Any) -> Page:
        context = self._started().new_context(**{"viewport": SCREEN, "color_scheme": "light"} | options)
        return context.new_page()

    def close(self) -> None:
        """Ends the browser, and the event loop that playwright keeps running in this thread."""
        if self._browser is not None:
            self._browser.close()
        if self._playwright is not None:
            self._playwright.stop()
        self._browser = self._playwright = self._page = None

    def _started(self) -> Browser:
        if self._browser is None:
            from playwright.sync_api import sync_playwright

            self._playwright = sync_playwright().start()
            self._browser = self._playwright.chromium.launch(
                executable_path=browser_path(), args=list(_OPTIONS)
            )
        return self._browser


class Visit:
    """A look at pages by somebody who was never there before.

    Attributes:
        page: Playwright's page.
        complaints: What the pages wrote to the console as an error or a warning, and errors that nobody caught.
        strayed: Addresses that were asked for and are neither part of a page nor its server's.
    """

    def __init__(self, page: Page, *, lasts: bool) -> None:
        self.page = page
        self.complaints: list[str] = []
        self.strayed: list[str] = []
        self._lasts = lasts
        self._home = ""
        self._homes: set[str] = set()
        self._listeners: list[tuple[Page | BrowserContext, Any, Callable[[Any], None]]] = [
            (page, "console", lambda message: self._hear(message.type, message.text)),
            (page, "pageerror", lambda error: self.complaints.append(str(error))),
            (page.context, "request", lambda request: self._follow(request.url)),
            (page, "websocket", lambda socket: self._follow(socket.url)),
        ]
        for emitter, event, listener in self._listeners:
            emitter.on(event, listener)

    def open(self, address: str, *, settled: bool = True) -> Page:
        """Goes to an address of the viewer's and waits until its page shows what it has to show."""
        # Where only what is behind # differs, the browser would keep the page as it is.
        self.page.goto("about:blank")
        # Only now: the page before may have asked its own server until here.
        self._home = _home(address)
        self._homes.add(self._home)
        self.page.goto(address)
        if settled:
            self.settle()
        return self.page

    def settle(self) -> None:
        """Waits until nothing on the page is still being read."""
        try:
            self.page.wait_for_function(
                "() => document.querySelector('main')?.childElementCount > 0 && !document.querySelector('.waiting')"
            )
        except Exception as error:
            if self.complaints:
                said = "\n".join(self.complaints)
                raise AssertionError(f"{self.page.url} shows nothing, and says: {said}") from error
            raise

    def close(self) -> None:
        """Ends the visit; the next one begins in the same tab if that has no trace of this one."""
        if not self._lasts or len(self._homes) > 1 or self.page.is_closed():
            self.page.context.close()
            return
        for key in ("Shift", "Control"):
            self.page.keyboard.up(key)
        self.page.mouse.up()
        self.page.mouse.move(0, 0)
        self.page.unroute_all()
        if self._homes:
            self.page.evaluate("localStorage.clear()")
        self.page.goto("about:blank")
        for other in self.page.context.pages:
            if other is not self.page:
                other.close()
        for emitter, event, listener in self._listeners:
            emitter.remove_listener(event, listener)

    def _hear(self, kind: str, text: str) -> None:
        if kind in ("error", "warning", "assert"):
            self.complaints.append(f"{kind}: {text}")

    def _follow(self, address: str) -> None:
        if address == "about:blank" or urlsplit(address).scheme in ("data", "blob"):
            return
        if _home(address) != self._home:
            self.strayed.append(address)


def _home(address: str) -> str:
    """What may be asked for by a page: a server's own addresses; for a file, nothing but the file."""
    parts = urlsplit(address)
    return f"file:{parts.path}" if parts.scheme == "file" else f"{parts.scheme}://{parts.netloc}"


def until(holds: Callable[[], bool], page: Page, *, tries: int = 200) -> None:
    """Waits until something outside the page holds, while the page goes on; fails after some seconds."""
    for _ in range(tries):
        if holds():
            return
        page.wait_for_timeout(25)
    raise AssertionError("it never came to hold")
