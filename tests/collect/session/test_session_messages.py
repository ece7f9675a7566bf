import pytest

from kinetoscope import ArgumentError, profile
from kinetoscope.collect import _KinetoProfile
from kinetoscope.collect.request.options import OPTIONS
from tests.support.messages import check_messages
from tests.support.noting_engine import NotingEngine

# What only Kinetoscope itself asks for is no keyword of a session.
KEYWORDS = [name for name in OPTIONS if name != "only_requested"]


def test_what_is_refused_or_warned_of_is_said_in_the_stored_words():
    check_messages(__file__, OPTIONS=KEYWORDS, NotingEngine=NotingEngine)


def test_what_is_set_on_a_session_is_checked_as_its_keyword_is():
    session = profile(engine=NotingEngine())
    for name in set(KEYWORDS) & {name for name in vars(_KinetoProfile) if not name.startswith("_")}:
        before = getattr(session, name)
        with pytest.raises((AttributeError, ArgumentError), match=name):
            setattr(session, name, b"1")
        assert getattr(session, name) == before
