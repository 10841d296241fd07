"""What happens to a play session when its user, its commands or the machine misbehave."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from itertools import permutations
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.daemons import ended, running_daemon, wait_for
from tests.helpers.sessions import Start, cancel_sessions, recording_of, trainer, wait_for_state

from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import BadInput, MosaicError, NotAllowed
from mosaic.contracts.folder import Workspace
from mosaic.contracts.play import Act, Keys, Reset, SetRate, Step, TakeOver
from mosaic.features.play.cli import print_reports
from mosaic.features.play.core import build_play_payload
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.recording import Recording

__all__ = ["trainer"]
FLOOD = 10_000


@pytest.fixture
def start(trainer: TrainerClient) -> Iterator[Start]:
    started: list[str] = []

    def submit(env_id: str = "FrozenLake-v1", actor: str = "human", **settings: Any) -> str:
        settings = {"env_kwargs": {"is_slippery": False}} | settings if env_id == "FrozenLake-v1" else settings
        started.append(trainer.submit(build_play_payload(trainer, env_id, {"*": actor}, settings)).run_id)
        wait_for_state(trainer, started[-1], lambda state: state.episode == 1, "the session")
        wait_for(lambda: trainer.get_run(started[-1]).stage != "starting", "the daemon to know of it")
        return started[-1]

    yield submit
    cancel_sessions(trainer, started)


def worker_pid(trainer: TrainerClient, run_id: str) -> int:
    """The process of the session."""
    wanted = f"MOSAIC_RUN_DIR={trainer.get_run(run_id).run_dir}".encode()
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            is_session = b"mosaic.features.play.worker" in (folder / "cmdline").read_bytes()
            if is_session and wanted in (folder / "environ").read_bytes():
                return int(folder.name)
        except OSError:
            continue
    raise AssertionError("The session has no process.")


def test_a_killed_session_can_be_replayed_up_to_its_last_step(
    trainer: TrainerClient, start: Start, capsys: pytest.CaptureFixture[str]
) -> None:
    """R6.1: also the steps before a pause in which the player thinks."""
    run_id = start()
    with trainer.control_session(run_id) as control:
        for key in ("Down", "Down", "Right"):
            control.send(Keys(pressed=(key,)))
    wait_for_state(trainer, run_id, lambda state: state.step == 3, "three steps")

    def recorded() -> int:
        with Recording(recording_of(trainer, run_id)) as recording:
            return len(recording.episode(0)) if recording.numbers else 0

    wait_for(lambda: recorded() == 3, "three recorded steps")
    os.kill(worker_pid(trainer, run_id), signal.SIGKILL)
    assert ended(trainer, run_id).outcome == "failed"
    (report,) = replay_episodes(recording_of(trainer, run_id))
    assert (report.is_identical, report.steps, report.ending) == (True, 3, "running")
    print_reports([report])
    assert "identical (incomplete" in capsys.readouterr().out


def test_a_flood_of_keys_is_survived(trainer: TrainerClient, start: Start) -> None:
    run_id = start("MountainCar-v0", rate_hz=60)
    with trainer.control_session(run_id) as control:
        for number in range(FLOOD):
            control.send(Keys(down=("Left" if number % 2 else "Right",), pressed=("Left", "Right")))
        control.send(Reset(seed=4711))
        wait_for_state(trainer, run_id, lambda state: state.seed == 4711, "the last command")
    assert trainer.get_run(run_id).is_active


BAD_COMMANDS = (
    ("jump", "{}", "No command of a session 'jump'"),
    ("", "{}", "No command of a session ''"),
    ("stop", "{}", "No command of a session 'stop'"),
    ("keys", "[1]", "was refused"),
    ("keys", "{", "not valid JSON"),
    ("keys", '{"down": 5}', "down"),
    ("keys", '{"down": ["' + "x" * 5000 + '"]}', "longer than 4,096 bytes"),
    ("keys", '{"down": ["a"], "seq": 5}', "seq: unknown key"),
    ("act", "{}", "action"),
    ("act", '{"action": 1e999}', "finite"),
    ("act", '{"action": 99999999999999999999}', "64 bits"),
    ("rate", '{"rate_hz": 0}', "rate_hz"),
    ("rate", '{"rate_hz": 1e9}', "rate_hz"),
    ("reset", '{"seed": -1}', "seed"),
)


def test_a_command_that_is_not_valid_is_refused(trainer: TrainerClient, start: Start) -> None:
    run_id = start()
    for kind, fields, words in BAD_COMMANDS:
        request = pb.CommandRequest(run=run_id, kind=kind, fields_json=fields)
        with pytest.raises(BadInput, match=words):
            trainer.call("SendCommands", iter([request]))
    assert trainer.get_run(run_id).is_active


def test_inputs_that_are_not_actions_do_not_stop_a_session(trainer: TrainerClient, start: Start) -> None:
    lake, pendulum = start(), start("Pendulum-v1", pacing="turns")
    with trainer.control_session(lake) as first, trainer.control_session(pendulum) as second:
        for control in (first, second):
            for action in (-1, 99, 1 << 62, (0.5,), (1.0, 2.0, 3.0), (1e300,), ()):
                control.send(Act(action=action))
                control.send(Act(action=action, agent="nobody"))
            control.send(Keys(down=("NoSuchKey",) * 16, pressed=("Ä",)))
            control.send(TakeOver(agent="nobody"))
            control.send(SetRate(rate_hz=240))
        first.send(Act(action=1))
        second.send(Act(action=(0.5,)))
        for run_id in (lake, pendulum):
            wait_for_state(trainer, run_id, lambda state: state.step >= 1, "a step after all")


def test_commands_to_anything_but_a_running_session_are_refused(trainer: TrainerClient, start: Start) -> None:
    run_id = start("FrozenLake-v1", "random", episodes=1)
    ended(trainer, run_id)
    for run in (run_id, "no-such-run", ""):
        control = trainer.control_session(run)
        control.send(Step())
        with pytest.raises(BadInput, match=r"not a play session that is running|No run"):
            control.close()


def test_two_windows_control_one_session(trainer: TrainerClient, start: Start) -> None:
    run_id = start(episodes=1)
    with trainer.control_session(run_id) as first, trainer.control_session(run_id) as second:
        for number, key in enumerate(("Down", "Down", "Right", "Right", "Down", "Right")):
            (first, second)[number % 2].send(Keys(pressed=(key,)))
            if number < 5:
                wait_for_state(trainer, run_id, lambda state: state.step == number + 1, "the step")  # noqa: B023
    assert ended(trainer, run_id).outcome == "succeeded"


@pytest.mark.parametrize("order", list(permutations(("pause", "resume", "stop"))), ids="-".join)
def test_pause_resume_and_stop_in_any_order_end_the_session(
    trainer: TrainerClient, start: Start, order: tuple[str, ...]
) -> None:
    run_id = start()
    for verb in order:
        try:
            {"pause": trainer.pause_run, "resume": trainer.resume, "stop": trainer.cancel_run}[verb](run_id)
        except NotAllowed:
            assert "stop" in order[: order.index(verb)] or verb == "resume"
    view = ended(trainer, run_id)
    assert view.status == "ended"
    assert (Path(view.run_dir) / "play_summary.json").exists()


def test_a_session_outlives_the_daemon_and_can_be_controlled_again(tmp_path: Path) -> None:
    """The stream of commands reports that the daemon is gone, and can be opened again."""
    with running_daemon(Workspace(tmp_path / "var"), tmp_path / "plugins") as (daemon, trainer):
        settings = {"env_kwargs": {"is_slippery": False}, "episodes": 1}
        run_id = trainer.submit(build_play_payload(trainer, "FrozenLake-v1", {"*": "human"}, settings)).run_id
        wait_for_state(trainer, run_id, lambda state: state.episode == 1, "the session")
        control = trainer.control_session(run_id)
        control.send(Keys(pressed=("Down",)))
        wait_for_state(trainer, run_id, lambda state: state.step == 1, "the first step")
        daemon.kill()

        def refusal() -> str:
            try:
                control.send(Keys())
            except MosaicError as error:
                return str(error)
            return ""

        assert "connection to the daemon broke" in wait_for(refusal, "the end of the stream")
        with daemon.start() as again:
            with again.control_session(run_id) as reopened:
                for key in ("Down", "Right", "Right", "Down", "Right"):
                    reopened.send(Keys(pressed=(key,)))
            assert ended(again, run_id).outcome == "succeeded"
            (report,) = replay_episodes(recording_of(again, run_id))
            assert (report.is_identical, report.total_reward) == (True, 1.0)
