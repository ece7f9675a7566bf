"""Pages in a real Chromium. A test asks for `visit` (and for `served` or `training`), and looks:

    def test_operators_are_listed(visit, served, training):
        page = visit.open(served.address(training, "operators"))
        assert page.get_by_text("aten::addmm").count()

A page that writes an error or a warning to the console, or that asks anything of another machine, fails its test. One
browser and one server serve all tests of this folder.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import kinetoscope
from kinetoscope.trace import Trace
from tests.support import warm_python
from tests.support.browser import Chromium, Visit, what_is_missing
from tests.support.serving import Serving

FOLDER = Path(__file__).parent
_CHROMIUM, _SERVING = Chromium(), Serving()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks every test of this folder, and skips it where there is no browser."""
    missing = what_is_missing()
    for item in items:
        if item.path.is_relative_to(FOLDER):
            item.add_marker("browser")
            if missing:
                item.add_marker(pytest.mark.skip(reason=missing))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_teardown(nextitem: pytest.Item | None) -> Iterator[None]:
    """Ends browser and server before other tests: those may fork, and start event loops of their own."""
    try:
        return (yield)
    finally:
        if nextitem is None or not nextitem.path.is_relative_to(FOLDER):
            _CHROMIUM.close()
            _SERVING.close()


@pytest.fixture
def visits() -> Iterator[Callable[..., Visit]]:
    """Begins visits; the options are those of playwright's `new_context`."""
    begun: list[Visit] = []

    def begin(**options: Any) -> Visit:
        begun.append(_CHROMIUM.visit(**options))
        return begun[-1]

    yield begin
    heard = [text for one in begun for text in one.complaints]
    strayed = [address for one in begun for address in one.strayed]
    for one in begun:
        one.close()
    assert heard == []
    assert strayed == []


@pytest.fixture
def visit(visits: Callable[..., Visit]) -> Visit:
    """A visit with a light screen of 1280x800. A test that makes a page complain empties `complaints`."""
    return visits()


@pytest.fixture
def served() -> Serving:
    """Makes addresses of pages: `served.address(trace, "timeline", start="0")`."""
    return _SERVING


@pytest.fixture(scope="session")
def training_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The file of a training run on the CPU, recorded with everything on."""
    prefix = tmp_path_factory.mktemp("training") / "train_gpt"
    program = Path(kinetoscope.__file__).parent / "examples" / "train_gpt.py"
    small = "--steps 6 --batch 2 --context 16 --width 32 --heads 2 --layers 2 --sample 0"
    options = ("--shapes", "--memory", "-o", prefix)
    warm_python.run("-m", "kinetoscope", "run", *options, program, *small.split()).check_returncode()
    return prefix.with_suffix(".ktrace")


@pytest.fixture(scope="session")
def training(training_path: Path) -> Iterator[Trace]:
    """The trace of it."""
    with kinetoscope.open(training_path) as trace:
        yield trace
