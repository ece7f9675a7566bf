import sys

from tests.support.messages import check_messages


def test_what_is_refused_or_warned_of_is_said_in_the_stored_words(monkeypatch):
    check_messages(__file__, monkeypatch=monkeypatch, sys=sys)
