import pytest

pytest.importorskip("torch", reason="sessions record PyTorch")

from tests.support.messages import check_messages


def test_what_is_refused_or_warned_of_is_said_in_the_stored_words():
    check_messages(__file__)
