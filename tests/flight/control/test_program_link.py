"""Questions to the program that are never waited for without limit."""

import json
import socket
import threading

import pytest

from kinetoscope.flight.control.program_link import ProgramLink


@pytest.fixture
def ends():
    """Both ends of a pair of sockets: the link that asks, and the program's socket."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with ours, theirs:
        yield ProgramLink(ours), theirs


def answer(program, **said):
    """Answer the next question as the program does."""
    asked = json.loads(program.recv(65536))
    program.send(json.dumps({"number": asked["number"], **said}).encode())
    return asked


def test_a_question_is_answered(ends):
    link, program = ends
    replies = []
    thread = threading.Thread(target=lambda: replies.append(link.ask("capture", 60, steps=3)))
    thread.start()
    asked = answer(program, path="there")
    link.receive()
    thread.join()
    assert asked == {"number": 0, "do": "capture", "steps": 3}
    assert replies == [{"number": 0, "path": "there"}]
    assert not link.is_behind


def test_a_program_that_does_not_answer_is_not_waited_for(ends):
    link, program = ends
    assert link.ask("status", 0.001) is None
    assert link.is_behind
    # Its late reply is for nobody.
    answer(program)
    link.receive()
    assert not link.is_behind


def test_a_late_reply_is_handed_over_if_that_is_wanted(ends):
    link, program = ends
    late = []
    assert link.ask("capture", 0.001, late.append) is None
    answer(program, busy="another")
    link.receive()
    assert late == [{"number": 0, "busy": "another"}]


def test_questions_do_not_pile_up_but_captures_are_sent(ends):
    link, program = ends
    for _ in range(40):
        assert link.ask("status", 0) is None
    assert link.ask("capture", 0, lambda reply: None) is None
    asked = [json.loads(program.recv(65536))["do"] for _ in range(17)]
    assert asked == ["status"] * 16 + ["capture"]


def test_the_end_of_the_program_ends_all_waiting(ends):
    link, program = ends
    replies = []
    thread = threading.Thread(target=lambda: replies.append(link.ask("status", 600)))
    thread.start()
    program.recv(65536)
    program.close()
    link.receive()
    thread.join()
    assert replies == [None]
    assert link.ended
    assert link.ask("status", 600) is None
    with pytest.raises(ConnectionResetError):
        link.ask("capture", 600, replies.append)
    assert replies == [None]
