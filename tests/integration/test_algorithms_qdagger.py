"""QDagger: its phases, its teacher and its loss, with the real run handle and tiny networks and buffers."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from tests.helpers.algorithm_cases import (
    Killed,
    assert_same_checkpoint,
    events,
    latest_checkpoint,
    train_run,
    write_teacher,
)
from torch import nn

pytest.importorskip("ale_py")

from cleanrl_worker.algorithms import qdagger_dqn_atari_impalacnn as qdagger
from cleanrl_worker.evaluation import teachers
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.learners.torch_conv import as_tensors
from cleanrl_worker.replay.buffers import FrameReplay
from cleanrl_worker.shell.checker import check_request
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.worker.checkpoints import Checkpoint
from mosaic.worker.envs.atari import AtariEnv

GAME = "BreakoutNoFrameskip-v4"
SHORT_GAMES = {"max_num_frames_per_episode": 80}
SETTINGS: dict[str, Any] = {
    "env_id": GAME, "env_kwargs": SHORT_GAMES, "total_timesteps": 300, "checkpoint_every": 10**6, "buffer_size": 120,
    "batch_size": 4, "learning_starts": 60, "target_network_frequency": 30, "tau": 0.9, "cuda": False,
    "teacher_steps": 102, "offline_steps": 101, "teacher_eval_episodes": 2,
}  # fmt: skip
"""The phases end between two updates of the loop."""
CPU = torch.device("cpu")


@pytest.fixture(autouse=True, scope="module")
def tiny() -> Iterator[None]:
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(qdagger, "SIZES", ConvNetworkSizes((2, 3, 4), (8,)))
        yield


@pytest.fixture
def teacher(place: Path) -> str:
    return write_teacher(place / "teacher" / "dqn_atari.cleanrl_model", actions=4)


class Straight(NamedTuple):
    checkpoint: Checkpoint
    episodes: list[tuple[int, int, float, int]]


@pytest.fixture(scope="module")
def straight(tmp_path_factory: pytest.TempPathFactory) -> Straight:
    """A run from the first step to the last: what runs that were interrupted must end as."""
    place = tmp_path_factory.mktemp("straight")
    config = config_of(write_teacher(place / "teacher" / "dqn_atari.cleanrl_model", actions=4))
    run = train_run(place / "run", qdagger.NAME, config)
    return Straight(latest_checkpoint(place / "run"), run.episodes)


def config_of(teacher: str | None, **changes: Any) -> qdagger.Config:
    return qdagger.Config(**{**SETTINGS, "hidden_sizes": (8,), "teacher_policy": teacher, **changes})


def curves(path: Path) -> dict[str, list[int]]:
    found: dict[str, list[int]] = {}
    for event in events(path, "metrics"):
        for tag, series in event["series"].items():
            found.setdefault(tag, []).extend(point[0] for point in series)
    return found


def count_calls(monkeypatch: pytest.MonkeyPatch, kind: type, name: str) -> list[str]:
    """Return a list that gets an entry at each call of a method."""
    original, calls = getattr(kind, name), []

    def counted(self: Any, *arguments: Any) -> Any:
        calls.append(name)
        return original(self, *arguments)

    monkeypatch.setattr(kind, name, counted)
    return calls


# --- phases


@pytest.mark.parametrize("killed_at", [50, 150, 203, 250])
def test_a_run_that_is_killed_in_any_phase_ends_as_if_it_had_not_been(
    killed_at: int, place: Path, teacher: str, straight: Straight
) -> None:
    config = config_of(teacher, checkpoint_every=killed_at - 4)
    with pytest.raises(Killed):
        train_run(place / "killed", qdagger.NAME, config, kill_at=killed_at)
    shutil.rmtree(Path(teacher).parent)  # the checkpoint has the teacher
    checkpoint = latest_checkpoint(place / "killed")
    assert 0 < checkpoint.step <= killed_at

    resumed = train_run(place / "killed", qdagger.NAME, config, checkpoint)

    assert latest_checkpoint(place / "killed").step == 300
    assert_same_checkpoint(straight.checkpoint, latest_checkpoint(place / "killed"))
    assert resumed.episodes == [episode for episode in straight.episodes if episode[1] > checkpoint.step]
    assert events(place / "killed", "warning") == []


def test_the_teacher_plays_then_the_student_learns_offline_then_it_plays(
    place: Path, teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.6: QDagger."""
    played = count_calls(monkeypatch, AtariEnv, "step")
    monkeypatch.setattr(teachers, "measure_teacher", lambda *_: 1.0)
    config = config_of(teacher)
    run = train_run(place / "run", qdagger.NAME, config)
    last = latest_checkpoint(place / "run")
    online = 300 - 203
    assert len(played) == 102 + online
    # One gradient step for each offline step; online one for each 4 steps of the run, from 204 on.
    assert last.facts["adam_count"] == 101 + len(range(204, 301, 4))
    assert last.facts["replay"]["count"] == online
    assert run.episodes
    assert min(episode[1] for episode in run.episodes) > 203
    logged = curves(place / "run")
    offline = {f"charts/offline/{tag}" for tag in ("loss", "q_loss", "distill_loss")}
    student = {"losses/loss", "losses/td_loss", "losses/distill_loss", "losses/q_values", "charts/distill_coeff"}
    assert {step for tag in offline for step in logged[tag]} == {200}
    assert {step for tag in student for step in logged[tag]} == {300}


def test_a_stop_during_the_first_games_of_the_teacher_is_resumed(place: Path, teacher: str, straight: Straight) -> None:
    config = config_of(teacher)
    train_run(place / "run", qdagger.NAME, config, stop_at=0)
    stopped = latest_checkpoint(place / "run")
    assert (stopped.step, stopped.facts["teacher_return"]) == (0, None)
    train_run(place / "run", qdagger.NAME, config, stopped)
    assert_same_checkpoint(straight.checkpoint, latest_checkpoint(place / "run"))


@pytest.mark.parametrize("stopped_at", [60, 150])
def test_a_buffer_that_was_not_saved_is_filled_again_by_the_teacher(
    stopped_at: int, place: Path, teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of(teacher, checkpoint_replay_mb=0.001)
    train_run(place / "run", qdagger.NAME, config, stop_at=stopped_at)
    stopped = latest_checkpoint(place / "run")
    added = count_calls(monkeypatch, FrameReplay, "add")
    train_run(place / "run", qdagger.NAME, config, stopped)
    assert len(added) == 102 + 300 - 203
    (warning,) = events(place / "run", "warning")
    assert "checkpoint_replay_mb" in warning["text"]
    assert latest_checkpoint(place / "run").facts["adam_count"] > 101


def test_a_loss_that_is_not_finite_ends_the_offline_phase(
    place: Path, teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cleanrl_worker.learners import torch_replay

    original, calls = torch_replay.ReplayFeed.stage_columns, []

    def poison(self: Any) -> None:
        calls.append(self)
        if len(calls) == 31:
            self.batch.rewards[0] = np.nan
        original(self)

    monkeypatch.setattr(torch_replay.ReplayFeed, "stage_columns", poison)
    with pytest.raises(MosaicError, match=r"stopped at step 13[26]: losses/.*learning_rate"):
        train_run(place / "run", qdagger.NAME, config_of(teacher, checkpoint_every=4))
    last = latest_checkpoint(place / "run")
    assert last.step in (128, 132)
    assert all(np.isfinite(weight).all() for weight in last.weights.values())


def test_epsilon_falls_for_the_teacher_and_again_for_the_student() -> None:
    config = config_of(None, teacher_steps=100, offline_steps=50, total_timesteps=1150, exploration_fraction=0.2)
    steps = np.array([0, 50, 99, 150, 200, 300, 1000])
    expected = [1, 0.505, 1 - 0.99 * 0.99, 1 - 0.99 * 50 / 200, 1 - 0.99 * 100 / 200, 0.01, 0.01]
    assert config.epsilons(steps) == pytest.approx(expected)


@pytest.mark.parametrize(
    ("returns", "teacher_return", "weight"),
    [([0.0] * 9, 4.0, 1.0), ([1.0] * 10, 4.0, 0.75), ([5.0] * 10, 4.0, 0.0), ([-20.0] * 10, 20.0, 2.0),
     ([-9.0] * 10, -5.0, 1.0), ([-2.0] * 10, -5.0, 0.0), ([-1.0] * 10, 0.0, 1.0)],
)  # fmt: skip
def test_less_is_distilled_the_closer_the_student_comes(
    returns: list[float], teacher_return: float, weight: float
) -> None:
    assert qdagger.distillation_weight(returns, teacher_return) == weight


# --- network and loss


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0, self.conv1 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, features: Any) -> Any:
        return features + self.conv1(self.conv0(features.relu()).relu())


class Sequence(nn.Module):
    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, channels, 3, padding=1)
        self.res_block0, self.res_block1 = Residual(channels), Residual(channels)

    def forward(self, features: Any) -> Any:
        return self.res_block1(self.res_block0(nn.MaxPool2d(3, 2, padding=1)(self.conv(features))))


def reference_network(agent: qdagger.Agent) -> nn.Sequential:
    """The network as modules, whose parameters have CleanRL's names."""
    layers = [Sequence(4, 2), Sequence(2, 3), Sequence(3, 4), nn.Flatten(), nn.ReLU(), nn.Linear(484, 8), nn.ReLU()]
    network = nn.Sequential(*layers, nn.Linear(8, agent.action_count))
    nn.ModuleDict({"network": network}).load_state_dict(
        {name: torch.as_tensor(part) for name, part in agent.state_dict().items()}
    )
    return network


def test_the_loss_is_the_td_error_plus_the_weighted_divergence_from_the_teacher() -> None:
    agents = [qdagger.Agent(3, ConvNetworkSizes((2, 3, 4), (8,))) for _ in range(3)]
    for seed, agent in enumerate(agents):
        agent.initialize(np.random.default_rng(seed))
    student, target, teacher = (reference_network(agent) for agent in agents)
    rng = np.random.default_rng(4)
    images, following = (torch.as_tensor(rng.integers(256, size=(5, 84, 84, 4), dtype=np.uint8)) for _ in range(2))
    batch = SimpleNamespace(
        observations=images, next_observations=following, actions=torch.tensor([0, 1, 2, 0, 1]),
        rewards=torch.tensor([1.0, -1.0, 0.0, 0.5, 2.0]), terminals=torch.tensor([0.0, 0.0, 1.0, 0.0, 1.0]),
    )  # fmt: skip
    weights = as_tensors(agents[0].parameters, CPU)
    teacher_weights = as_tensors(agents[2].parameters, CPU, is_learned=False)
    total, metrics = qdagger.loss(
        weights, as_tensors(agents[1].parameters, CPU, is_learned=False), batch,
        teacher=lambda seen: qdagger.q_values(teacher_weights, seen), coefficient=torch.tensor(0.3),
        gamma=0.9, temperature=0.05,
    )  # fmt: skip

    def seen(rows: Any) -> Any:
        return rows.permute(0, 3, 1, 2) / 255.0

    values, expected_td, expected_divergence = student(seen(images)), torch.zeros(()), torch.zeros(())
    for row in range(5):
        bootstrap = 0.9 * target(seen(following))[row].max() * (1 - batch.terminals[row])
        expected_td += (values[row, batch.actions[row]] - (batch.rewards[row] + bootstrap).detach()) ** 2 / 5
        p = torch.softmax(teacher(seen(images))[row] / 0.05, 0).detach()
        q = torch.softmax(values[row] / 0.05, 0)
        expected_divergence += (p * (p / q).log()).sum()
    expected = expected_td + 0.3 * expected_divergence
    torch.testing.assert_close(total, expected)
    chosen = values.gather(1, batch.actions[:, None]).mean()
    torch.testing.assert_close(metrics, torch.stack([expected, expected_td, expected_divergence, chosen]).detach())
    gradients = torch.autograd.grad(total, list(weights.values()))
    for ours, theirs in zip(gradients, torch.autograd.grad(expected, list(student.parameters())), strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-5)


# --- the teacher


def refusal(**changes: Any) -> str:
    settings = {**{key: value for key, value in SETTINGS.items() if key != "env_id"}, **changes}
    with pytest.raises(BadInput) as refused:
        check_request(parse_request({"algo": qdagger.NAME, "env_id": GAME, "algo_params": settings}))
    return str(refused.value)


def test_a_teacher_that_does_not_fit_is_refused_at_the_dry_run(place: Path, teacher: str) -> None:
    assert "teacher_policy: missing. qdagger_dqn_atari_impalacnn learns from a trained policy" in refusal()
    assert "mosaic pull cleanrl/a-b" in refusal(teacher_policy_hf_repo="cleanrl/a-b", teacher_policy=teacher)
    assert "There is no policy 'no-run'. Give the id of a run" in refusal(teacher_policy="no-run")
    assert "total_timesteps: 203 steps end before the student plays" in refusal(
        teacher_policy=teacher, total_timesteps=203
    )
    six = write_teacher(place / "six.cleanrl_model", actions=6)
    assert "do not fit dqn_atari on 'BreakoutNoFrameskip-v4'" in refusal(teacher_policy=six)
    assert "do not fit dqn_atari" in refusal(teacher_policy=teacher, env_kwargs={"full_action_space": True})
    runs = place / "runs"
    pong = write_teacher(runs / "PongNoFrameskip-v4__dqn_atari__1__1" / "dqn_atari.cleanrl_model", actions=4)
    assert "was trained on 'PongNoFrameskip-v4'; the student's game is 'BreakoutNoFrameskip-v4'" in refusal(
        teacher_policy=pong
    )
    other = write_teacher(runs / f"{GAME}__c51_atari__1__1" / "c51_atari.cleanrl_model", actions=4)
    assert "is a policy of 'c51_atari'; a teacher is one of dqn_atari or qdagger" in refusal(teacher_policy=other)


def test_a_run_of_a_student_can_be_the_teacher_by_its_id(
    place: Path, teacher: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MOSAIC_VAR", str(place / "var"))
    from mosaic.contracts.folder import Workspace

    folder = Workspace.resolve().run("01STUDENT").path
    assert folder.is_relative_to(place)
    train_run(folder, qdagger.NAME, config_of(teacher))
    config = config_of("01STUDENT", env_id="ALE/Breakout-v5", total_timesteps=230)
    assert qdagger.check_teacher(config)["teacher_algo"] == qdagger.NAME
    train_run(place / "next", qdagger.NAME, config)
    saved, learned = latest_checkpoint(place / "next"), latest_checkpoint(folder)
    for name, weight in learned.weights.items():
        assert (saved.arrays[f"teacher.{name}"] == weight).all()
