"""Play sessions through a real daemon: who acts, what is recorded, and that it is simulated again exactly."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended, wait_for
from tests.helpers.sessions import Start, cancel_sessions, recording_of, trainer, wait_for_state

from mosaic.contracts.errors import BadInput, NotAllowed
from mosaic.contracts.folder import Workspace
from mosaic.contracts.play import Act, HandBack, Keys, PlaySummary, Reset, Step, TakeOver
from mosaic.features.play.core import build_play_payload
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.trainer.scheduler import PLAY_SLOTS
from mosaic.worker.recording import Recording

__all__ = ["trainer"]
SAFE_PATH = ("Down", "Down", "Right", "Right", "Down", "Right")
"""To the goal of FrozenLake without ice that slips."""


@pytest.fixture
def start(trainer: TrainerClient) -> Iterator[Start]:
    started: list[str] = []

    def submit(env_id: str, actor: str = "human", actors: dict[str, str] | None = None, **settings: Any) -> str:
        payload = build_play_payload(trainer, env_id, actors or {"*": actor}, settings)
        started.append(trainer.submit(payload).run_id)
        return started[-1]

    yield submit
    cancel_sessions(trainer, started)


def test_a_human_walks_to_the_goal_with_arrow_keys(trainer: TrainerClient, start: Start) -> None:
    """R9.1: the environment waits for each key; the recording is the same episode again."""
    run_id = start("FrozenLake-v1", env_kwargs={"is_slippery": False}, episodes=1)
    state = wait_for_state(trainer, run_id, lambda state: state.episode == 1, "the first episode")
    assert (state.step, state.seats[0].is_human, state.seats[0].is_to_act) == (0, True, True)
    assert state.symbols is not None
    assert state.symbols.rows[0][0] == "start+agent"
    with trainer.control_session(run_id) as control:
        for key in SAFE_PATH:
            control.send(Keys(pressed=(key,)))
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded"
    summary = json.loads((Path(view.run_dir) / "play_summary.json").read_text())
    assert summary["agents"]["*"]["returns"] == [1.0]
    (report,) = replay_episodes(recording_of(trainer, run_id))
    assert (report.is_identical, report.steps, report.total_reward) == (True, 6, 1.0)


def test_a_human_hands_over_to_another_actor_and_takes_back(
    trainer: TrainerClient, start: Start, tmp_path: Path
) -> None:
    """R9.2: by key, in the middle of an episode; the recording says who acted."""
    (tmp_path / "down.txt").write_text("down\n")
    standby = {"kind": "script", "target": str(tmp_path / "down.txt")}
    run_id = start("FrozenLake-v1", env_kwargs={"is_slippery": False}, episodes=1, standby=standby, is_paused=True)
    wait_for_state(trainer, run_id, lambda state: state.is_paused, "the session")
    with trainer.control_session(run_id) as control:
        control.send(HandBack())
        wait_for_state(trainer, run_id, lambda state: not state.seats[0].is_human, "the script")
        control.send(Step())
        wait_for_state(trainer, run_id, lambda state: state.step == 1, "one step of the script")
        control.send(TakeOver())
        wait_for_state(trainer, run_id, lambda state: state.seats[0].is_human, "the human")
        trainer.resume(run_id)
        for key in SAFE_PATH[1:]:
            control.send(Keys(pressed=(key,)))
    assert ended(trainer, run_id).outcome == "succeeded"
    with Recording(recording_of(trainer, run_id)) as recording:
        episode = recording.episode(0)
    assert [(change.step, change.actor.partition(":")[0]) for change in episode.actors] == [
        (0, "human"),
        (0, "script"),
        (1, "human"),
    ]
    assert episode.total_reward == 1.0


def test_held_keys_act_in_real_time(trainer: TrainerClient, start: Start) -> None:
    run_id = start("MountainCar-v0", episodes=1, rate_hz=20, is_paused=True)
    wait_for(lambda: trainer.get_run(run_id).stage == "paused", "the daemon to know that the session is paused")
    with trainer.control_session(run_id) as control:
        control.send(Keys(down=("Right",), pressed=("Right",)))
        trainer.resume(run_id)
        pushed = wait_for_state(
            trainer, run_id, lambda state: state.seats[0].last_action == "right", "a push to the right"
        )
        control.send(Keys())
        wait_for_state(
            trainer,
            run_id,
            lambda state: state.step > pushed.step and state.seats[0].last_action == "idle",
            "no push without a key",
        )


def test_a_human_in_real_time_starts_with_the_first_key_and_ends_the_session(
    trainer: TrainerClient, start: Start
) -> None:
    run_id = start("CartPole-v1")
    waiting = wait_for_state(trainer, run_id, lambda state: state.waits_for_key, "the session to wait for a key")
    assert (waiting.is_paused, waiting.episode, waiting.step) == (True, 1, 0)
    with trainer.control_session(run_id) as control:
        control.send(Reset(seed=7))
        again = wait_for_state(trainer, run_id, lambda state: state.seed == 7, "the reset")
        control.send(Keys())
        assert (again.waits_for_key, again.step) == (True, 0)
        control.send(Keys(down=("Right",), pressed=("Right",)))
        moving = wait_for_state(trainer, run_id, lambda state: state.step > 0, "the first step")
        assert (moving.waits_for_key, moving.is_paused) == (False, False)
        wait_for_state(trainer, run_id, lambda state: state.episode == 3, "the next episode, as the key is held")
        control.send(Keys())
        idle = wait_for_state(trainer, run_id, lambda state: state.waits_for_key, "a human who does nothing")
        assert (idle.is_paused, idle.step, idle.episode > 3) == (True, 0, True)
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id)
    assert (view.outcome, view.status, view.end_reason) == ("succeeded", "ended", "Ended on request.")


@pytest.mark.parametrize("way", ["resume", "step", "hand_back"])
def test_a_session_that_waits_for_a_key_starts_by_other_ways_too(
    trainer: TrainerClient, start: Start, way: str
) -> None:
    run_id = start("MountainCar-v0", standby={"kind": "random"})
    wait_for_state(trainer, run_id, lambda state: state.waits_for_key, "the session to wait for a key")
    wait_for(lambda: trainer.get_run(run_id).stage == "paused", "the daemon to know that the session is paused")
    with trainer.control_session(run_id) as control:
        if way == "resume":
            trainer.resume(run_id)
        else:
            control.send(Step() if way == "step" else HandBack())
        started = wait_for_state(trainer, run_id, lambda state: state.step > 0, "the first step")
    assert not started.waits_for_key


def test_a_session_with_a_number_of_episodes_that_is_stopped_is_cancelled(trainer: TrainerClient, start: Start) -> None:
    run_id = start("CartPole-v1", "random", episodes=100_000)
    wait_for_state(trainer, run_id, lambda state: state.step > 0, "the first step")
    trainer.cancel_run(run_id)
    assert ended(trainer, run_id).status == "cancelled"


def test_who_acted_is_counted_by_step(trainer: TrainerClient, start: Start) -> None:
    standby = {"kind": "script", "target": "frozen_lake"}
    run_id = start("FrozenLake-v1", "random", standby=standby, alternate_steps=2, max_steps=5, episodes=4, seed=3)
    view = ended(trainer, run_id)
    stored = trainer.read_json(run_id, "play_summary.json")
    assert stored is not None
    (agent,) = PlaySummary.model_validate(stored).agents.values()
    (path,) = [recording_of(trainer, run_id)]
    counted: Counter[str] = Counter()
    with Recording(path) as recording:
        for episode in recording.episodes():
            for change, after in zip_longest(episode.actors, episode.actors[1:]):
                counted[change.actor] += (len(episode) if after is None else after.step) - change.step
    assert agent.steps_by_actor == dict(counted)
    assert all(counted.values())
    assert agent.who_acted == ", ".join(f"{actor} {steps} steps" for actor, steps in agent.steps_by_actor.items())
    workspace = Workspace(Path(trainer.get_status().workspace))
    shown = mosaic(workspace, "show", view.run_id)
    assert agent.who_acted in " ".join(shown.out.split()), shown.out
    assert mosaic(workspace, "show", view.run_id, "--json").json["played"]["agents"]["*"]["steps_by_actor"] == dict(
        counted
    )


def test_a_human_plays_a_board_game_against_chance(trainer: TrainerClient, start: Start) -> None:
    """R9.1: PettingZoo, by turns; an occupied cell is refused and the human may choose again."""
    pytest.importorskip("pettingzoo")
    run_id = start("pettingzoo/tictactoe_v3", actors={"1": "human", "*": "random"}, episodes=1, seed=3)
    with trainer.control_session(run_id) as control:
        while True:
            state = wait_for_state(
                trainer, run_id, lambda state: state.seats[0].is_to_act or state.ending != "running", "the turn"
            )
            if state.ending != "running":
                break
            legal = state.seats[0].legal_actions or ()
            taken = [cell for cell in range(9) if cell not in legal]
            if taken:
                control.send(Act(action=taken[0], agent="player_1"))
                wait_for_state(trainer, run_id, lambda state: "not allowed" in state.seats[0].problem, "the refusal")
            step = state.step
            control.send(Act(action=legal[0], agent="player_1"))
            wait_for_state(trainer, run_id, lambda state: state.step > step, "the move")  # noqa: B023
    assert ended(trainer, run_id).outcome == "succeeded"
    (report,) = replay_episodes(recording_of(trainer, run_id))
    assert report.is_identical


def test_a_reset_starts_an_episode_with_the_given_seed(trainer: TrainerClient, start: Start) -> None:
    run_id = start("FrozenLake-v1")
    wait_for_state(trainer, run_id, lambda state: state.episode == 1, "the session")
    with trainer.control_session(run_id) as control:
        control.send(Reset(seed=77))
        state = wait_for_state(trainer, run_id, lambda state: state.episode == 2, "the second episode")
    assert state.seed == 77


def test_a_session_that_cannot_be_played_is_refused_before_it_starts(trainer: TrainerClient, start: Start) -> None:
    with pytest.raises(BadInput, match="no agent 'player_9'"):
        start("FrozenLake-v1", actors={"player_9": "random", "*": "random"})
    with pytest.raises(BadInput, match="Did you mean 'random'"):
        start("FrozenLake-v1", "randon")
    with pytest.raises(BadInput, match="there is no file"):
        start("FrozenLake-v1", "script:/nowhere.py")


def test_commands_are_for_sessions_only(trainer: TrainerClient, start: Start) -> None:
    run_id = start("FrozenLake-v1", "random", episodes=1)
    ended(trainer, run_id)
    control = trainer.control_session(run_id)
    control.send(Step())
    with pytest.raises(NotAllowed, match="not a play session that is running"):
        control.close()


def test_commands_to_a_session_that_is_queued_are_refused(trainer: TrainerClient, start: Start) -> None:
    """They would not reach it: it reads what comes after its start."""
    last = [start("FrozenLake-v1") for _ in range(PLAY_SLOTS + 1)][-1]
    assert trainer.get_run(last).stage == "queued"
    wait_for(lambda: trainer.get_run(last).wait_reason == "8 of 8 slots busy, place 1", "its place in the queue")
    control = trainer.control_session(last)
    control.send(Step())
    with pytest.raises(NotAllowed, match="has not started yet"):
        control.close()
