"""R9.7: two BDI agents in two processes exchange a message through an XMPP server on loopback."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

pytest.importorskip("spade_bdi", reason="needs the extra spade")

HELPERS = Path(__file__).parents[1] / "helpers"
PING = '!start.\n+!start <- .send("pong@localhost", tell, hello(7)).\n+thanks(N)[source(S)] <- report(N).\n'
PONG = "+hello(N)[source(S)] <- report(N); .send(S, tell, thanks(N + 1)).\n"


@contextmanager
def process(place: Path, script: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    with open(place / f"{'-'.join((script, *arguments[:1]))}.log".replace(os.sep, "_"), "w", encoding="utf-8") as log:
        child = subprocess.Popen(
            [sys.executable, HELPERS / script, *arguments],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            cwd=place,
            start_new_session=True,
        )
        try:
            yield child
        finally:
            # The server forks processes that inherit its sockets: they are in its group.
            os.killpg(child.pid, signal.SIGKILL)
            child.communicate()


def next_line(child: subprocess.Popen[str]) -> str:
    assert child.stdout is not None
    return child.stdout.readline().strip()


@pytest.mark.timeout(200)
def test_two_agents_in_two_processes_exchange_a_message(tmp_path: Path) -> None:
    for name, text in (("ping", PING), ("pong", PONG)):
        (tmp_path / f"{name}.asl").write_text(text)
    folder = tmp_path / "certificates"
    folder.mkdir(mode=0o700)
    with process(tmp_path, "spade_server.py", str(folder)) as server:
        port = next_line(server)
        assert port.isdecimal()
        with process(tmp_path, "spade_agent.py", "pong", port, "pong.asl") as pong:
            assert next_line(pong) == "ready"
            with process(tmp_path, "spade_agent.py", "ping", port, "ping.asl") as ping:
                assert next_line(ping) == "ready"
                assert next_line(pong) == "7"
                assert next_line(ping) == "8"
    assert not list(tmp_path.glob("*.db")), "the server's database is in memory"
