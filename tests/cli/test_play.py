"""`cactus play`: its mistakes, and a server that runs until it is interrupted."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from cactus_decoding.cli.play import PORT, _listen
from cactus_decoding.engines.openai.serving import listen
from cactus_decoding.lab.tuning.profile import Profile


def test_a_port_that_is_taken_is_said(run):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, _, err = run("play", "--no-browser", "--port", port)
    assert code == 2
    assert f"cannot listen on 127.0.0.1:{port}" in err


def test_the_usual_port_gives_way_where_nobody_asked_for_it():
    taken = None
    with suppress(ValueError):  # where it is taken already, so be it
        taken = listen("127.0.0.1", PORT)
    with _listen(listen, "127.0.0.1", None) as other:
        assert other.getsockname()[1] != PORT
    with pytest.raises(ValueError, match=f"cannot listen on 127.0.0.1:{PORT}"):
        _listen(listen, "127.0.0.1", PORT)
    if taken is not None:
        taken.close()


@pytest.mark.slow
def test_the_command_serves_until_it_is_interrupted(tmp_path):
    profile = tmp_path / "profile.json"
    profile.write_text(json.dumps({"recommended": Profile.of("bundled", "bundled:draft", 3, 1).as_dict()}))
    command = [sys.executable, "-c", "import sys; from cactus_decoding.cli import main; sys.exit(main())"]
    arguments = ["play", "--no-browser", "--port", "0", "--profile", str(profile)]
    with subprocess.Popen([*command, *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert line.startswith("cactus play: http://127.0.0.1:")
        address = line.split()[2]
        with socket.create_connection(("127.0.0.1", int(address.rsplit(":", 1)[1].strip("/")))) as connection:
            connection.sendall(b"GET /api/form HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
            head, _, body = connection.makefile("rb").read().partition(b"\r\n\r\n")
            assert head.startswith(b"HTTP/1.1 200 OK")
            form = json.loads(body)
            assert form["start"]["num_speculative_tokens"] == "3"
            assert form["pair"] == {"target": "bundled", "draft": "bundled:draft"}
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert "Traceback" not in err
