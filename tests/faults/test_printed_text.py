"""F55: whatever text a run contains, no command lets it control the terminal or mislead its reader."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.conftest import end_daemon
from tests.helpers.commands import MOSAIC, PATIENCE_S
from tests.helpers.commands_by_kind import EXTRA, READING
from tests.helpers.hostile_runs import copy_with_name, finished_runs, poison_workspace
from tests.helpers.worker_runs import small

from mosaic.base.run_payloads import build_eval_payload
from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace
from mosaic.trainer.client.connect import connect

HOSTILE = (
    "evil\x1b]0;title\x07\x1b]52;c;QQ==\x1b\\\x1b]8;;http://evil\x1b\\link\x1b[2J\x1b[8m\x9b41m\x1b[45m"
    "\u202egnp.exe\u2066\u2028\u200b\x0b\x08\r[red]red[/red][link=http://evil]x[/link]"
)
OUR_STYLES = {"0", "1", "2", "3", "4", "31", "32", "33", "34", "35", "36", "90", "91"}
"""Parameters of the only escape sequences that commands may print: bold, dim, and our colors."""


@pytest.fixture(scope="module")
def hostile(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Workspace, dict[str, str]]]:
    """The workspace, and what stands for each argument."""
    place = Workspace(tmp_path_factory.mktemp("hostile") / "var")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CONFIG_HOME", str(place.root.with_name("config")))
        patch.delenv(WORKSPACE_VARIABLE, raising=False)
        worker = {"id": "cleanrl", "config": small(total_timesteps=256)}
        training = {"metadata": {"worker": worker}, "artifacts": {}}
        (run_id, other_id) = finished_runs(place, training, training)
        policy = str(place.runs / run_id / "checkpoints" / "last")
        finished_runs(place, build_eval_payload({"id": "cleanrl", "config": {}}, policy, {"eval_batch_size": 2}))
        poison_workspace(place, HOSTILE)
        sweep = place.sweeps / "sweep"
        sweep.mkdir(parents=True)
        (sweep / "sweep.json").write_text('{"name": "sweep"}')
        hostile_sweep = copy_with_name(sweep, HOSTILE.replace("/", "_"))
        with connect(place) as trainer:
            trainer.ask_worker("cleanrl", {"ask": "environments"})  # a test would take its process for one of its own
        yield place, {"run": run_id, "one": run_id, "other": other_id, "runs": run_id, "experiment_name": HOSTILE,
                      "sweep_name": hostile_sweep.name}  # fmt: skip
        end_daemon(place)


def printed_on_terminal(workspace: Workspace, *arguments: str) -> str:
    """What a command writes to a terminal, in which it runs."""
    ours, terminal = pty.openpty()
    variables = {**os.environ, WORKSPACE_VARIABLE: str(workspace.root), "TERM": "xterm", "COLUMNS": "120"}
    parts: list[bytes] = []

    def read() -> None:
        while True:
            try:
                parts.append(os.read(ours, 1 << 16))
            except OSError:  # EIO: all writers have closed it
                return

    reader = threading.Thread(target=read)
    try:
        process = subprocess.Popen(
            [MOSAIC, *arguments], env=variables, stdin=subprocess.DEVNULL, stdout=terminal, stderr=terminal
        )
        os.close(terminal)
        reader.start()
        process.wait(PATIENCE_S)
        reader.join(PATIENCE_S)
    finally:
        os.close(ours)
    return b"".join(parts).decode()


def forbidden(text: str) -> set[str]:
    """Everything in an output that a terminal would obey, except what styles it as we do."""
    rest = re.sub(
        r"\x1b\[([\d;]*)m", lambda found: "" if set(found[1].split(";")) <= OUR_STYLES else found[0], text
    ).replace("\r\n", "\n")
    rest = re.sub(r"\x1b\[\?25[lh]|\r?(\x1b\[1A)?\x1b\[2K", "", rest)  # of a progress bar
    return set(re.findall(r"\x1b.{,6}|[^\n\t\x1b]", rest)) - {char for char in rest if char.isprintable()}


@pytest.mark.parametrize(("command", "parameters"), READING, ids=[name for name, _ in READING])
def test_no_command_passes_on_what_a_run_would_tell_the_terminal(
    hostile: tuple[Workspace, dict[str, str]], tmp_path: Path, command: str, parameters: list[str]
) -> None:
    """F55: in a terminal; also in the error where a command cannot read the run."""
    workspace, values = hostile
    extra = [word.format(out=tmp_path) for word in EXTRA.get(command, ())]
    out = printed_on_terminal(workspace, *command.split(), *(values[name] for name in parameters), *extra)
    print(ascii(out))
    assert out
    assert "Traceback" not in out
    assert forbidden(out) <= ({"\r"} if command == "logs" else set())  # a progress bar in a log stays one
    if command in ("show", "note"):
        assert r"evil\x1b]0;title\x07" in out
        assert "[red]red[/red][link=http://evil]x[/link]" in out.replace("\r\n", "").replace(" ", "")
