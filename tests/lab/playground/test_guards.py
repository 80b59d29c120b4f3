"""Who may ask, and what the page may load."""

from __future__ import annotations

import pytest


@pytest.mark.parametrize(
    ("headers", "body", "status"),
    [
        ({"Host": "evil.example"}, b"{}", 403),
        ({"Host": "127.0.0.1.evil.example"}, b"{}", 403),
        ({"Origin": "http://evil.example"}, b"{}", 403),
        ({"Origin": "null"}, b"{}", 403),
        ({"Content-Type": "text/plain"}, b"{}", 400),
        ({"Content-Type": "application/x-www-form-urlencoded"}, b"prompt=a", 400),
        ({}, b"[1]", 400),
        ({}, b"{", 400),
        ({}, b"[" * 60_000, 400),
        ({}, b" " * 150_000, 400),
    ],
)
def test_requests_that_no_page_of_ours_sends_are_refused(server, headers, body, status):
    got, _, answer = server.ask("POST", "/api/runs", body, headers)
    assert got == status
    assert answer
    assert b"Traceback" not in answer


def test_reading_from_another_host_name_is_refused_too(server):
    assert server.ask("GET", "/", None, {"Host": "evil.example"})[0] == 403
    assert server.ask("GET", "/", None, {"Host": f"localhost:{server.port}"})[0] == 200


def test_the_page_may_load_nothing_from_elsewhere(server):
    for path, kind in (("/", "text/html"), ("/assets/play.js", "text/javascript"), ("/assets/answer.css", "text/css")):
        status, headers, body = server.ask("GET", path)
        assert status == 200
        assert headers["content-type"].startswith(kind)
        policy = headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert headers["x-content-type-options"] == "nosniff"
        assert b"http://" not in body.replace(b"http://www.w3.org/2000/svg", b"")
        assert b"https://" not in body


@pytest.mark.parametrize("name", ["index.html", "nothing.js", "..%2fserver.py", "%2e%2e/server.py", "trace.html.jinja"])
def test_no_other_file_is_an_asset(server, name):
    assert server.ask("GET", f"/assets/{name}")[0] == 404
