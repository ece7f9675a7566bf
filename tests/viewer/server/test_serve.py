"""The server on its port: who gets in, what every answer says, which port is in use, and how it ends."""

import contextlib
import http.client
import io
import json
import os
import socket
import threading
from contextlib import contextmanager

import pytest

from kinetoscope import ArgumentError, StateError
from kinetoscope.viewer.server import serve as server_module
from kinetoscope.viewer.server.serve import Server, Uploads, refusal
from tests.support.trace_builder import TraceBuilder

HOST = "127.0.0.1:8765"


def said(host=HOST, token="secret", **headers):
    """What is said to a request for port 8765 with the token `secret`."""
    return refusal(
        token, "secret", {"host": host, **{k.replace("_", "-"): v for k, v in headers.items()}}, 8765
    )


def test_its_own_page_gets_answers():
    assert said() is None
    assert said(host="localhost:8765") is None
    assert said(origin="http://127.0.0.1:8765") is None
    assert said(origin="http://localhost:8765", sec_fetch_site="same-origin", sec_fetch_mode="cors") is None


@pytest.mark.parametrize("token", ["", "secre", "secrets", "Secret", "\ud800", "ſecret"])
def test_without_the_token_nobody_gets_anything(token):
    assert "token" in said(token=token)


@pytest.mark.parametrize(
    "host",
    [
        "evil.example",
        "evil.example:8765",  # a name that was made to point at this machine
        "127.0.0.1",
        "127.0.0.1:8766",
        "127.0.0.1.nip.io:8765",
        "localhost.evil.example:8765",
        "0.0.0.0:8765",
        "[::1]:8765",
        "127.0.0.1:8765@evil.example",
        "LOCALHOST:8765",
        "",
    ],
)
def test_another_host_gets_nothing_though_it_has_the_token(host):
    assert "own address" in said(host=host)


def test_a_request_without_a_host_gets_nothing():
    assert refusal("secret", "secret", {}, 8765) is not None


@pytest.mark.parametrize(
    "origin",
    [
        "null",
        "http://evil.example",
        "https://127.0.0.1:8765",
        "http://127.0.0.1:9999",
        "http://127.0.0.1",
        "",
        "file://",
    ],
)
def test_another_origin_gets_nothing_though_it_has_the_token(origin):
    assert "own page" in said(origin=origin)


def test_what_other_pages_embed_is_refused_and_a_link_to_the_page_is_followed():
    for site in ("cross-site", "same-site"):
        assert "own page" in said(sec_fetch_site=site, sec_fetch_mode="no-cors")
        assert "own page" in said(sec_fetch_site=site)
        assert said(sec_fetch_site=site, sec_fetch_mode="navigate") is None
    assert said(sec_fetch_site="none", sec_fetch_mode="navigate") is None


@contextmanager
def running(traces, **options):
    """A server in a thread."""
    server = Server(traces, 0, **options)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        thread.join(60)
        assert not thread.is_alive()


def asked(server, path, method="GET", body=None, **headers):
    """Asks with the token; returns status, headers and body."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=60)
    token = server.address.split("/")[3]
    connection.request(method, path.replace("TOKEN", token), body, headers)
    answer = connection.getresponse()
    found = answer.status, answer.headers, answer.read()
    connection.close()
    return found


@pytest.fixture(scope="module")
def served():
    hostile = "<script>alert(1)</script>\u202e\r\n" + "x" * 1000
    trace = TraceBuilder().span("aten::mm", 0, 100).build()
    looked = []
    with running(lambda: [(hostile, trace)], look_again=lambda: looked.append(1)) as server:
        server.hostile, server.looked = hostile, looked
        yield server


def test_the_address_has_a_token_that_cannot_be_guessed(served):
    token = served.address.split("/")[3]
    assert len(token) >= 32
    assert served.address == f"http://127.0.0.1:{served.port}/{token}/"


def test_the_page_and_the_answers_come_with_headers_that_keep_them_here(served):
    for path in (
        "/TOKEN/",
        "/TOKEN/api/traces",
        "/TOKEN/api/0/table/ops",
        "/TOKEN/nothing",
        "/",
        "/wrong/api/traces",
        "/open/wrong",
    ):
        check_headers(asked(served, path)[1])
    # What the framework answers by itself.
    status, headers, _ = asked(served, "/TOKEN/", "POST")
    assert status == 405
    check_headers(headers)
    with socket.create_connection(("127.0.0.1", served.port), timeout=60) as broken:
        broken.sendall(b"no HTTP at all\r\n\r\n")
        answer = http.client.HTTPResponse(broken)
        answer.begin()
        assert answer.status == 400
        check_headers(answer.headers)


def check_headers(headers):
    assert headers["Cache-Control"] == "no-store"
    assert headers["X-Content-Type-Options"] == "nosniff"
    assert headers["Referrer-Policy"] == "no-referrer"
    assert headers["Cross-Origin-Resource-Policy"] == "same-origin"
    assert "default-src 'none'" in headers["Content-Security-Policy"]
    assert len(headers.get_all("Content-Security-Policy")) == 1
    assert not [name for name in headers if name.lower().startswith("access-control")]
    assert "Server" not in headers


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/", {}),
        ("/api/traces", {}),
        ("/wrong/", {}),
        ("/wrong/api/traces", {}),
        ("//TOKEN/", {}),
        ("/%2e%2e/TOKEN/", {}),
        ("/TOKEN/api/traces", {"Host": "evil.example"}),
        ("/TOKEN/api/traces", {"Origin": "http://evil.example"}),
    ],
)
def test_who_may_not_gets_403_and_no_word_of_the_trace(served, path, headers):
    status, _, body = asked(served, path, **headers)
    assert status == 403
    assert b"script" not in body
    assert b"aten" not in body


@pytest.mark.parametrize(
    "path",
    [
        "/TOKEN/../../../etc/passwd",
        "/TOKEN/%2e%2e/%2e%2e/etc/passwd",
        "/TOKEN/..%2f..%2fetc%2fpasswd",
        "/TOKEN/%00",
        "/TOKEN/api/0/table/..%2f..%2fops",
        "/TOKEN/api/0/export/..%2f..%2fetc%2fpasswd",
    ],
)
def test_paths_cannot_leave_the_viewer(served, path):
    status, _, body = asked(served, path)
    assert status in (400, 404)
    assert b"root:" not in body


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "PATCH"])
def test_nothing_can_be_sent(served, method):
    status, headers, _ = asked(served, "/TOKEN/api/traces", method)
    assert status == 405
    assert not [name for name in headers if name.lower().startswith("access-control")]


def test_a_dropped_file_needs_the_token_and_our_page_and_has_a_limit(tmp_path):
    taken = []
    uploads = Uploads(lambda path: taken.append(path.read_bytes()) or 7, 1000, tmp_path)
    with running(list, uploads=uploads) as server:
        path = "/TOKEN/api/open?name=..%2F..%2Frun.ktrace"
        for address, headers in (("/wrong/api/open", {}), (path, {"Origin": "http://evil.invalid"})):
            assert asked(server, address, "POST", body=b"x", **headers)[0] == 403
        assert asked(server, path, "GET")[0] == 404
        status, _, body = asked(server, path, "POST", body=b"x" * 1001)
        assert (status, json.loads(body)["error"].split(" is ")[0]) == (413, "run.ktrace")
        assert list(tmp_path.iterdir()) == taken == []
        assert json.loads(asked(server, path, "POST", body=b"abc")[2]) == {"trace": 7}
    assert taken == [b"abc"]
    assert [one.name for one in tmp_path.rglob("*") if one.is_file()] == ["run.ktrace"]


@pytest.mark.parametrize("ending", [TimeoutError, ConnectionError, KeyboardInterrupt])
def test_an_upload_that_stalls_or_breaks_off_leaves_nothing(tmp_path, ending):
    class Content(io.BytesIO):
        def read(self, count):
            return super().read(count) or self.end()

        def end(self):
            raise ending("gone")

    uploads = Uploads(lambda _: pytest.fail("taken"), 1000, tmp_path)
    content = Content(b"begin")
    if ending is KeyboardInterrupt:
        with pytest.raises(KeyboardInterrupt):
            uploads.receive("run.ktrace", 100, content)
    else:
        answer = uploads.receive("run.ktrace", 100, content)
        assert answer.status == (408 if ending is TimeoutError else 400)
    assert uploads.receive("run.ktrace", 100, io.BytesIO(b"all")).status == 400
    assert list(tmp_path.iterdir()) == []


def test_a_hostile_name_of_a_trace_is_a_text_in_json(served):
    status, headers, body = asked(served, "/TOKEN/api/traces")
    assert status == 200
    assert headers["Content-Type"] == "application/json"
    assert json.loads(body)[0]["name"] == served.hostile


def test_traces_are_looked_at_again_when_a_page_asks_for_them_and_not_otherwise(served):
    served.looked.clear()
    asked(served, "/TOKEN/api/0/table/ops")
    assert served.looked == []
    asked(served, "/TOKEN/api/traces")
    assert served.looked == [1]


def test_a_file_is_complete_and_has_a_download_header(served):
    status, headers, body = asked(served, "/TOKEN/api/0/export/ktrace")
    assert status == 200
    assert int(headers["Content-Length"]) == len(body) > 1000
    assert body.startswith(b"PK")
    assert headers["Content-Disposition"].startswith("attachment; ")


def test_a_question_that_goes_wrong_is_told_and_the_server_goes_on(capsys):
    def broken():
        raise RuntimeError("a mistake")

    with running(broken) as server:
        response = server.answer("api/traces", {})
    assert response.status == 500
    assert "RuntimeError" in json.loads(response.body)["error"]
    assert "a mistake" in capsys.readouterr().err


def test_the_address_for_a_browser_leads_to_the_page_once():
    with running(list) as server:
        token = server.address.split("/")[3]
        assert token not in server.browser_address
        path = server.browser_address.removeprefix(f"http://127.0.0.1:{server.port}")
        assert asked(server, path, Host="evil.example")[0] == 403
        assert asked(server, "/open/wrong")[0] == 403
        status, headers, _ = asked(server, path)
        assert (status, headers["Location"]) == (303, f"/{token}/")
        for method in ("GET", "HEAD"):
            status, headers, body = asked(server, path, method)
            assert (status, headers["Location"]) == (403, None)
            assert token.encode() not in body


def test_the_address_for_a_browser_is_for_no_other_user(tmp_path, monkeypatch):
    lines = "sl local_address rem_address st tx_queue:rx_queue tr:tm->when retrnsmt uid timeout inode\n"
    line = "0: 0100007F:{:04X} 0100007F:{:04X} 01 0:0 0:0 0 {} 0 1\n"
    told = tmp_path / "tcp"
    monkeypatch.setattr(server_module, "_TCP_SOCKETS", told)
    ticket = server_module.Ticket("word")
    other = os.getuid() + 1000
    told.write_text(lines + line.format(8765, 4000, os.getuid()) + line.format(4000, 8765, other))
    assert "for the user who started" in ticket.refusal("word", ("127.0.0.1", 4000), 8765)
    told.write_text(lines + line.format(4000, 8765, os.getuid()))
    assert ticket.refusal("word", ("127.0.0.1", 4000), 8765) is None


def test_the_user_of_a_real_connection_is_found():
    if not server_module._TCP_SOCKETS.exists():
        pytest.skip("needs Linux, which lists connections and whose they are")
    with socket.create_server(("127.0.0.1", 0)) as listening:
        port = listening.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            assert server_module._user_of(client.getsockname(), port) == os.getuid()
            assert server_module._user_of(("127.0.0.1", port), port) is None


@pytest.mark.parametrize(
    "begun",
    [b"", b"GET /", b"GET /TOKEN/api/traces HTTP/1.1\r\nHost: HOST\r\n\r\nGET /", b"POST / HTTP/1.1\r\nHost: HOST\r\nContent-Length: 9\r\n\r\nx"],
)  # fmt: skip
def test_who_does_not_finish_a_request_is_not_waited_for(monkeypatch, begun):
    monkeypatch.setattr(server_module, "REQUEST_S", 0.1)
    with running(list) as server:
        assert_not_waited_for(server, begun)


def test_who_sends_a_request_byte_by_byte_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(server_module, "REQUEST_S", 0.5)
    with running(list) as server, socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        client.settimeout(0.1)
        # Each byte comes long before the server would give up waiting for one.
        with pytest.raises(OSError, match=r"reset|Broken pipe"):
            while True:
                client.sendall(b"x")
                with contextlib.suppress(TimeoutError):
                    if client.recv(1) == b"":
                        raise ConnectionResetError("reset by the server")


def assert_not_waited_for(server, begun):
    with socket.create_connection(("127.0.0.1", server.port), timeout=60) as client:
        token = server.address.split("/")[3]
        client.sendall(
            begun.replace(b"TOKEN", token.encode()).replace(b"HOST", f"127.0.0.1:{server.port}".encode())
        )
        answer = b"".join(iter(lambda: client.recv(4096), b""))
        assert answer.count(b"HTTP/1.1") == (1 if b"Host" in begun else 0)


def test_a_port_that_is_taken_is_said_and_the_next_free_one_is_found(monkeypatch):
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        with pytest.raises(StateError, match=f"port {taken} is in use"):
            Server(list, taken)
        monkeypatch.setattr(server_module, "FIRST_PORT", taken)
        server = Server(list)
        assert taken < server.port <= taken + server_module.PORTS_TRIED
        server.server_close()
        monkeypatch.setattr(server_module, "PORTS_TRIED", 1)
        with pytest.raises(StateError, match="no port from"):
            Server(list)


def test_two_servers_that_do_not_run_yet_do_not_get_the_same_port():
    first, second = Server(list), Server(list)
    assert first.port != second.port
    first.server_close()
    second.server_close()


@pytest.mark.parametrize("port", [-1, 65536])
def test_an_invalid_port_is_refused(port):
    with pytest.raises(ArgumentError, match=r"0 to 65535"):
        Server(list, port)


def test_the_server_listens_on_this_machine_only():
    server = Server(list, 0)
    assert server.socket.getsockname()[0] == "127.0.0.1"
    server.server_close()
