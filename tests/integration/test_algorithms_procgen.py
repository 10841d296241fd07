"""ppo_procgen and ppg_procgen with the real run handle and a tiny network.

Their games are those of a fake envpool that ends and resets in the same way, and of envpool if it is installed.
"""

from __future__ import annotations

import dataclasses
import importlib.util
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from tests.helpers import fake_envpool
from tests.helpers.algorithm_cases import (
    Killed,
    assert_same_checkpoint,
    events,
    latest_checkpoint,
    open_run,
    train_run,
)
from torch import nn
from torch.distributions import Categorical, kl_divergence
from torch.nn.functional import relu

from cleanrl_worker.algorithms import ppg_procgen, ppo_procgen
from cleanrl_worker.algorithms.ppo import categorical_loss
from cleanrl_worker.algorithms.run_checks import step_warnings
from cleanrl_worker.environments.procgen_games import ProcgenEnvs, ProcgenGame, ProcgenTask, find_procgen_task
from cleanrl_worker.evaluation.loading import env_maker
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_conv import as_tensors, channels_last
from cleanrl_worker.learners.torch_ppg import PpgLearner
from cleanrl_worker.loops.on_policy_frames import FramePpoTraining
from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.errors import BadInput, MissingExtra, MosaicError, UnknownName

NAMES = ("ppo_procgen", "ppg_procgen")
EACH = pytest.mark.parametrize("name", NAMES)
SIZES = ConvNetworkSizes((2, 3, 4), (8,))
SMALL: dict[str, Any] = {
    "total_timesteps": 128, "checkpoint_every": 64, "num_envs": 2, "num_steps": 16, "num_minibatches": 2,
    "update_epochs": 2, "e_policy": 2, "n_iteration": 2, "e_auxiliary": 2, "num_aux_rollouts": 1, "n_aux_grad_accum": 2,
    "hidden_sizes": (8,), "cuda": False,
}  # fmt: skip


@pytest.fixture(autouse=True)
def tiny(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in NAMES:
        monkeypatch.setattr(load_algorithm(name), "SIZES", SIZES)


@pytest.fixture
def fake_pools() -> Iterator[list[fake_envpool.FakePool]]:
    with fake_envpool.fake_envpool() as pools:
        yield pools


@pytest.fixture(params=["fake", "envpool"])
def games(request: pytest.FixtureRequest) -> Iterator[str]:
    """The module that runs the games: the fake, or envpool itself."""
    if request.param == "fake":
        with fake_envpool.fake_envpool():
            yield request.param
        return
    if importlib.util.find_spec("envpool") is None or importlib.util.find_spec("PyQt5") is None:
        pytest.skip("envpool or Qt 5 is not installed: pip install 'mosaic-rl[procgen]'")
    yield request.param


@pytest.fixture
def still_games(fake_pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Games that never end and always look alike, so that new ones are like those that cannot be restored."""
    monkeypatch.setattr(fake_envpool, "MAX_STEPS", 10**6)
    monkeypatch.setattr(fake_envpool, "MIN_LIFE_STEPS", 10**6)
    monkeypatch.setattr(fake_envpool.FakeGame, "_random_frame", lambda _: np.full((84, 84), 9, np.uint8))


def config_of(name: str, **changes: Any) -> Any:
    kind = load_algorithm(name).Config
    return kind(**{key: value for key, value in (SMALL | changes).items() if key in kind.model_fields})


# --- the games


def test_a_game_is_found_by_its_name_or_its_id_in_envpool(fake_pools: Any) -> None:
    assert find_procgen_task("starpilot") == find_procgen_task("StarpilotEasy-v0") == ProcgenTask("StarpilotEasy-v0")
    assert find_procgen_task("StarpilotHard-v0") == ProcgenTask("StarpilotHard-v0")
    with pytest.raises(UnknownName, match=r"No game 'starpilto' in Procgen. Did you mean 'starpilot'\?"):
        find_procgen_task("starpilto")
    for missing in ("StarpilotMemory-v0", "Breakout-v5", "CartPole-v1"):
        with pytest.raises(UnknownName):
            find_procgen_task(missing)
    with pytest.raises(BadInput, match=r"ppo_procgen needs a Procgen game; CartPole-v1 is not one. These fit: ppo"):
        ppo_procgen.check(ppo_procgen.Config(), ppo_procgen.make_env("CartPole-v1"))


def test_without_qt_the_extra_is_named(fake_pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import envpool

    def make_spec(name: str) -> Any:
        raise ImportError("requires the system Qt 5 runtime")

    monkeypatch.setattr(envpool, "make_spec", make_spec)
    with pytest.raises(MissingExtra, match=r"Qt 5, which is missing: pip install 'mosaic-rl\[procgen\]'"):
        ppo_procgen.make_env("starpilot")


def test_games_end_with_their_unclipped_return_and_restart_alone(
    fake_pools: list[fake_envpool.FakePool], monkeypatch: pytest.MonkeyPatch
) -> None:
    envs = ProcgenEnvs(ProcgenTask("StarpilotEasy-v0"), 2, 1, 1)
    envs.start()
    observations = np.zeros((2, *envs.shape), np.uint8)
    ends = [end for _ in range(40) for end in envs.step([1, 1], observations)]
    assert len(ends) > 4
    assert all(end.is_terminal and end.is_full_episode for end in ends)
    assert all(end.episodic_return == end.length * fake_envpool.POINTS for end in ends)
    assert [len(game.actions) for game in fake_pools[-1].games] == [40, 40], "no action was lost to a reset"
    monkeypatch.setattr(fake_envpool, "MIN_LIFE_STEPS", 10**6)
    envs.start()
    (end,) = (end for _ in range(fake_envpool.MAX_STEPS) for end in envs.step([0, 0], observations) if end.env == 0)
    assert (end.is_terminal, end.is_full_episode, end.length) == (False, True, fake_envpool.MAX_STEPS)
    assert not (end.observation == observations[0]).all(), "the final frame is kept"
    envs.close()


# --- the network and the loss


class Residual(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv0, self.conv1 = (nn.Conv2d(channels, channels, 3, padding=1) for _ in range(2))

    def forward(self, inputs: torch.Tensor) -> Any:
        return inputs + self.conv1(relu(self.conv0(relu(inputs))))


class Sequence(nn.Module):
    def __init__(self, inputs: int, channels: int) -> None:
        super().__init__()
        self.conv = nn.Conv2d(inputs, channels, 3, padding=1)
        self.res_block0, self.res_block1 = Residual(channels), Residual(channels)

    def forward(self, images: torch.Tensor) -> Any:
        return self.res_block1(self.res_block0(nn.functional.max_pool2d(self.conv(images), 3, 2, 1)))


class Module(nn.Module):
    """The agent, built from torch modules with the names of CleanRL's script."""

    def __init__(self, sizes: ConvNetworkSizes, actions: int, is_phasic: bool = False) -> None:
        super().__init__()
        (first, second, third), (units,) = sizes.channels, sizes.hidden
        self.network = nn.Sequential(
            Sequence(3, first), Sequence(first, second), Sequence(second, third),
            nn.Flatten(), nn.ReLU(), nn.Linear(third * 64, units), nn.ReLU(),
        )  # fmt: skip
        self.actor, self.critic = nn.Linear(units, actions), nn.Linear(units, 1)
        if is_phasic:
            self.aux_critic = nn.Linear(units, 1)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        hidden = self.network(images.float() / 255)
        return torch.cat([self.actor(hidden), self.critic(hidden)], 1)


def test_an_update_moves_the_weights_as_torchs_modules_and_adam_do() -> None:
    rng, rows = np.random.default_rng(1), 12
    full, module = Module(ConvNetworkSizes((16, 32, 32), (256,)), 15), Module(SIZES, 15)
    assert {key: tuple(part.shape) for key, part in full.state_dict().items()} == ppo_procgen.Agent(
        15, ConvNetworkSizes((16, 32, 32), (256,))
    ).shapes
    agent = ppo_procgen.Agent(15, SIZES)
    agent.initialize(rng)
    module.load_state_dict({key: torch.from_numpy(part) for key, part in agent.parameters.items()})
    images = rng.integers(0, 256, (rows, 3, 64, 64), np.uint8)
    weights = as_tensors(agent.parameters, torch.device("cpu"))
    result = ppo_procgen.outputs(weights, channels_last(torch.from_numpy(images)))
    np.testing.assert_allclose(result.detach(), module(torch.from_numpy(images)).detach(), atol=1e-5)

    config = config_of("ppo_procgen", num_envs=2, num_steps=6, num_minibatches=1)
    learner = ppo_procgen.make_learner(agent.parameters, (3, 64, 64), config, TorchContext.set_up(cuda=False))
    batch: dict[str, Any] = {
        key: rng.standard_normal(rows, np.float32) for key in ("advantages", "returns", "values", "log_probs")
    }
    batch["actions"] = rng.integers(15, size=rows)
    learner.load_rollout(1e-3, images, **batch)
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, eps=1e-5)
    loss: Any
    for _ in range(3):
        learner.update(np.arange(rows))
        outputs = module(torch.from_numpy(images))
        part = SimpleNamespace(**{key: torch.from_numpy(column) for key, column in batch.items()})
        loss, _ = categorical_loss(outputs[:, :-1], outputs[:, -1], part, config)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    for key, array in learner.arrays().items():
        np.testing.assert_allclose(array, module.state_dict()[key].numpy(), atol=2e-5, err_msg=key)


def test_rewards_are_divided_by_the_deviation_of_their_discounted_sum(
    fake_pools: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = config_of("ppo_procgen", gamma=0.9)
    envs: Any = SimpleNamespace(action_space=fake_envpool.FakeProcgenPool.action_space, shape=(3, 64, 64))
    training = ppo_procgen.Training(config, SimpleNamespace(), envs, ppo_procgen.Agent(15, SIZES))  # type: ignore[arg-type]
    seen: list[Any] = []
    monkeypatch.setattr(FramePpoTraining, "estimate", lambda _, normalized: seen.append(normalized))
    rng = np.random.default_rng(0)
    sums, history, expected = np.zeros(2), [], []
    for _ in range(2):
        rewards, training.dones = rng.random((16, 2)) * 5, rng.random((16, 2)) < 0.2
        for row, done in zip(rewards, training.dones, strict=True):
            sums = sums * 0.9 + row
            for env in range(2):
                history.append(sums[env])
                # The statistics start with a weight of 1e-4 at mean 0 and variance 1.
                expected.append(np.clip(row[env] / np.sqrt(np.var(history) + 1e-4), -10, 10))
            sums[done] = 0
        training.estimate(rewards)
    np.testing.assert_allclose(np.concatenate(seen).ravel()[8:], expected[8:], rtol=2e-3)


# --- runs


@EACH
def test_equal_seeds_give_equal_weights_and_cleanrls_tags(name: str, games: str, place: Path) -> None:
    run = train_run(place / "often", name, config_of(name))
    train_run(place / "once", name, config_of(name, checkpoint_every=10**6))
    assert_same_checkpoint(latest_checkpoint(place / "often"), latest_checkpoint(place / "once"))
    series = {tag for event in events(place / "often", "metrics") for tag in event["series"]}
    losses = {"value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl", "clipfrac", "explained_variance"}
    if name == "ppg_procgen":
        losses |= {"aux/kl_loss", "aux/aux_value_loss", "aux/real_value_loss"}
    assert {tag for tag in series if tag.startswith("losses/")} | {"losses/explained_variance"} == {
        f"losses/{loss}" for loss in losses
    }
    assert {"charts/learning_rate", "charts/SPS", "losses/clipfrac"} <= series
    assert run.global_step == 128


@EACH
def test_a_killed_run_resumes_with_new_games_and_warns(name: str, games: str, place: Path) -> None:
    config = config_of(name)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=100)
    checkpoint = latest_checkpoint(place / "killed")
    assert checkpoint.step == 64
    train_run(place / "killed", name, config, checkpoint)
    (warning,) = events(place / "killed", "warning")
    assert warning["code"] == "resumed_inexactly"
    assert "envpool cannot restore games, so all 2 of them started again" in warning["text"]


@EACH
def test_with_identical_games_a_resumed_run_equals_an_uninterrupted_one(
    name: str, still_games: None, place: Path
) -> None:
    config = config_of(name)
    train_run(place / "straight", name, config)
    with pytest.raises(Killed):
        train_run(place / "killed", name, config, kill_at=100)
    train_run(place / "killed", name, config, latest_checkpoint(place / "killed"))
    assert_same_apart_from_games(place / "straight", place / "killed")


def assert_same_apart_from_games(one: Path, other: Path) -> None:
    checkpoints = latest_checkpoint(one), latest_checkpoint(other)
    for checkpoint in checkpoints:
        checkpoint.facts.pop("environments")
    assert_same_checkpoint(*checkpoints)


@EACH
def test_a_loss_that_is_not_finite_stops_the_run(name: str, fake_pools: Any, place: Path) -> None:
    config = config_of(name, total_timesteps=10_000)
    train_run(place / "run", name, config, stop_at=64)
    checkpoint = latest_checkpoint(place / "run")
    key = "network.0.conv.weight"
    arrays = {**checkpoint.weights, key: np.full_like(checkpoint.weights[key], 3e38)}
    with pytest.raises(MosaicError, match="became infinite or NaN"):
        train_run(place / "run", name, config, dataclasses.replace(checkpoint, weights=arrays))
    assert latest_checkpoint(place / "run").step == checkpoint.step


@EACH
def test_a_checkpoint_plays_a_game(name: str, games: str, place: Path) -> None:
    module = load_algorithm(name)
    train_run(place / "run", name, config_of(name, total_timesteps=64))
    checkpoint = latest_checkpoint(place / "run")
    game = env_maker(name)("starpilot")
    assert isinstance(game, ProcgenGame)
    policy, rng = module.load_policy(checkpoint), np.random.default_rng(0)
    observation, _ = game.reset(seed=1)
    assert game.observation_space.contains(observation)
    is_over, steps = False, 0
    while not is_over and steps < 1100:
        (action,) = policy.act(observation[None], False, rng)
        observation, _, is_terminal, is_truncated, _ = game.step(action)
        is_over, steps = is_terminal or is_truncated, steps + 1
    assert is_over
    assert game.render().shape == (64, 64, 3)
    game.close()
    with pytest.raises(ValueError, match="expected"):
        policy.act(np.zeros((1, 4, 84, 84), np.uint8), True, rng)
    assert list(module.state_dict_of(checkpoint)) == list(Module(SIZES, 15, name == "ppg_procgen").state_dict())


# --- phases


def phasic_batch(rng: np.random.Generator, rollouts: int, steps: int) -> dict[str, Any]:
    """Images and numbers of the steps of several games, [steps, games, …]."""
    shape = (steps, rollouts)
    numbers = {key: rng.standard_normal(shape, np.float32) for key in ("advantages", "returns", "values")}
    return {
        "images": rng.integers(0, 256, (*shape, 3, 64, 64), np.uint8),
        "actions": rng.integers(15, size=shape),
        "log_probs": np.log(rng.uniform(0.03, 0.12, shape)).astype(np.float32),
        **numbers,
    }


def rows_of(batch: dict[str, Any]) -> dict[str, Any]:
    return {key: part.reshape(-1, *part.shape[2:]) for key, part in batch.items()}


def clipped_step(module: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    nn.utils.clip_grad_norm_(module.parameters(), 0.5)
    optimizer.step()
    optimizer.zero_grad()


def ppo_objective(hidden: torch.Tensor, module: Any, batch: dict[str, Any], config: Any) -> Any:
    """PPO's loss of a policy phase, in words other than those of the algorithm."""
    part = {key: torch.from_numpy(column) for key, column in batch.items()}
    policy: Any = Categorical(logits=module.actor(hidden))
    values = module.critic(hidden.detach()).flatten()
    ratio = torch.exp(policy.log_prob(part["actions"]) - part["log_probs"])
    limited = torch.clip(ratio, 1 - config.clip_coef, 1 + config.clip_coef)
    gain = torch.minimum(ratio * part["advantages"], limited * part["advantages"]).mean()
    near = torch.clip(values, part["values"] - config.clip_coef, part["values"] + config.clip_coef)
    errors = torch.maximum((values - part["returns"]).pow(2), (near - part["returns"]).pow(2))
    return -gain - config.ent_coef * policy.entropy().mean() + config.vf_coef * errors.mean() / 2


def test_both_phases_move_the_weights_as_torchs_modules_and_one_adam_do() -> None:
    rng, steps, games = np.random.default_rng(1), 5, 4
    config = config_of(
        "ppg_procgen",
        num_envs=games,
        num_steps=steps,
        num_minibatches=1,
        n_iteration=1,
        beta_clone=0.7,
        num_aux_rollouts=1,
    )
    agent, module = ppg_procgen.Agent(15, SIZES), Module(SIZES, 15, is_phasic=True)
    agent.initialize(rng)
    module.load_state_dict({key: torch.from_numpy(part) for key, part in agent.parameters.items()})
    learner = ppg_procgen.make_learner(agent.parameters, (3, 64, 64), config, TorchContext.set_up(cuda=False))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-3, eps=1e-8)

    for _ in range(2):
        batch = phasic_batch(rng, games, steps)
        rows = rows_of(batch)
        pictures, returns = torch.from_numpy(batch["images"]) / 255, torch.from_numpy(batch["returns"])
        learner.load_rollout(1e-3, **rows)
        for _ in range(2):
            learner.update(np.arange(games * steps))
            ppo_objective(module.network(pictures.flatten(0, 1)), module, rows, config).backward()
            clipped_step(module, optimizer)

        learner.store_rollouts(0, batch["images"], batch["returns"])
        learner.begin_auxiliary_phase()
        learner._stored.logits[...] = rng.standard_normal(
            (games, steps, 15)
        )  # a policy that is far from the current one
        old = [Categorical(logits=logits) for logits in torch.from_numpy(learner._stored.logits)]
        for pair in ([2, 0], [1, 3], [3, 2]):
            learner.update_auxiliary(np.array(pair)[:, None])
            for game in pair:
                hidden = module.network(pictures[:, game])
                kl = kl_divergence(old[game], Categorical(logits=module.actor(hidden))).mean()
                auxiliary = nn.functional.mse_loss(module.aux_critic(hidden)[:, 0], returns[:, game]) / 2
                real = nn.functional.mse_loss(module.critic(hidden.detach())[:, 0], returns[:, game]) / 2
                loss: Any = (auxiliary + 0.7 * kl + real) / 2
                loss.backward()
            clipped_step(module, optimizer)
        reported, is_finite = learner.auxiliary_losses()
        expected = {"kl_loss": kl.item(), "aux_value_loss": auxiliary.item(), "real_value_loss": real.item()}
        assert reported == pytest.approx(expected, rel=1e-3, abs=1e-6)
        assert is_finite
    assert reported["kl_loss"] > 0.1
    for key, array in learner.arrays().items():
        np.testing.assert_allclose(array, module.state_dict()[key].numpy(), atol=2e-5, err_msg=key)
    assert (learner.adam.count, learner.auxiliary_head.adam.count) == (10, 6)


def test_the_weights_of_each_unit_start_with_the_norm_of_their_layer() -> None:
    agent = ppg_procgen.Agent(15, ConvNetworkSizes((16, 32, 32), (256,)))
    agent.initialize(np.random.default_rng(0))
    full = Module(ConvNetworkSizes((16, 32, 32), (256,)), 15, is_phasic=True)
    assert {key: tuple(part.shape) for key, part in full.state_dict().items()} == agent.shapes
    for name, part in full.named_modules():
        if not isinstance(part, (nn.Conv2d, nn.Linear)):
            continue
        weight, bias = agent.parameters[f"{name}.weight"], agent.parameters[f"{name}.bias"]
        expected = 6**-0.25 if "res_block" in name else 1.0 if "conv" in name else 1.4 if "network" in name else 0.1
        np.testing.assert_allclose(np.linalg.norm(weight.reshape(len(weight), -1), axis=1), expected, rtol=1e-5)
        assert not bias.any()


def test_advantages_are_normalized_over_the_rollout_or_not_at_all(
    fake_pools: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loaded: list[dict[str, Any]] = []
    load = PpgLearner.load_rollout

    def load_rollout(learner: PpgLearner, rate: float, images: Any, **columns: Any) -> None:
        loaded.append({key: column.copy() for key, column in columns.items()})
        load(learner, rate, images, **columns)

    monkeypatch.setattr(PpgLearner, "load_rollout", load_rollout)
    for is_normalized in (True, False):
        config = config_of("ppg_procgen", adv_norm_fullbatch=is_normalized, total_timesteps=64)
        train_run(place / str(is_normalized), "ppg_procgen", config)
    normalized, raw = loaded[0], loaded[2]
    np.testing.assert_allclose(raw["advantages"], raw["returns"] - raw["values"], atol=1e-5)
    expected = (raw["advantages"] - raw["advantages"].mean()) / torch.from_numpy(raw["advantages"]).std().item()
    np.testing.assert_allclose(normalized["advantages"], expected, atol=1e-5)
    np.testing.assert_array_equal(normalized["returns"], raw["returns"])


def test_the_auxiliary_phase_learns_from_all_rollouts_of_the_phase_and_clones_its_last_policy(
    fake_pools: Any, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[tuple[Any, Any]] = []
    used: list[Any] = []
    stored: dict[str, Any] = {}
    estimate, update = ppo_procgen.ProcgenTraining.estimate, PpgLearner.update_auxiliary

    def estimate_and_note(training: Any, rewards: Any) -> Any:
        columns = estimate(training, rewards)
        assert columns is not None
        seen.append((training.observations[:-1].copy(), columns["returns"].reshape(16, 2).copy()))
        return columns

    def note_and_update(learner: PpgLearner, rollouts: Any) -> None:
        if not used:
            stored.update({key: part.copy() for key, part in vars(learner._stored).items()}, weights=learner.arrays())
        used.append(rollouts)
        update(learner, rollouts)

    monkeypatch.setattr(ppo_procgen.ProcgenTraining, "estimate", estimate_and_note)
    monkeypatch.setattr(PpgLearner, "update_auxiliary", note_and_update)
    train_run(place / "run", "ppg_procgen", config_of("ppg_procgen", total_timesteps=64))
    assert [rollouts.shape for rollouts in used] == [(2, 1)] * 4, "two epochs of two gradient steps"
    for epoch in (used[:2], used[2:]):
        assert sorted(np.concatenate(epoch).ravel()) == [0, 1, 2, 3]
    for number, (iteration, game) in enumerate(((0, 0), (0, 1), (1, 0), (1, 1))):
        images, returns = seen[iteration]
        np.testing.assert_array_equal(stored["images"][number], images[:, game])
        np.testing.assert_array_equal(stored["returns"][number], returns[:, game])
    module = Module(SIZES, 15, is_phasic=True)
    module.load_state_dict({key: torch.from_numpy(part) for key, part in stored["weights"].items()})
    logits = module(torch.from_numpy(stored["images"]).flatten(0, 1))[:, :-1].detach()
    np.testing.assert_allclose(stored["logits"].reshape(-1, 15), logits, atol=1e-5)


def test_a_stop_in_the_last_auxiliary_phase_is_obeyed_at_once_and_resumes_from_before_the_phase(
    still_games: None, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    name, config = "ppg_procgen", config_of("ppg_procgen")
    train_run(place / "straight", name, config)
    update, steps = PpgLearner.update_auxiliary, 0
    with monkeypatch.context() as patch, open_run(place / "stopped", config) as run:

        def update_and_stop(learner: PpgLearner, rollouts: Any) -> None:
            nonlocal steps
            steps += 1
            update(learner, rollouts)
            run.stop_requested = steps == 6

        patch.setattr(PpgLearner, "update_auxiliary", update_and_stop)
        ppg_procgen.train(config, run)
        assert (steps, run.global_step) == (6, 64), "the last phase is not done, although its steps were taken"
    assert latest_checkpoint(place / "stopped").step == 64
    train_run(place / "stopped", name, config, latest_checkpoint(place / "stopped"))
    assert_same_apart_from_games(place / "straight", place / "stopped")


def test_a_loss_of_the_auxiliary_phase_that_is_not_finite_stops_the_run(fake_pools: Any, place: Path) -> None:
    config = config_of("ppg_procgen")
    with pytest.raises(Killed):
        train_run(place / "run", "ppg_procgen", config, kill_at=100)
    checkpoint = latest_checkpoint(place / "run")
    weights = {**checkpoint.weights, "aux_critic.bias": np.full(1, 1e30, np.float32)}
    with pytest.raises(MosaicError, match="losses/aux/aux_value_loss became infinite or NaN"):
        train_run(place / "run", "ppg_procgen", config, dataclasses.replace(checkpoint, weights=weights))


def test_only_whole_phases_are_trained_and_saved(fake_pools: Any, place: Path) -> None:
    config = config_of("ppg_procgen", total_timesteps=150, checkpoint_every=32)
    run = train_run(place / "run", "ppg_procgen", config)
    assert run.global_step == 128
    assert [event["step"] for event in events(place / "run", "checkpoint")] == [64, 128]
    assert step_warnings(config) == [
        "total_timesteps: 150 is not a multiple of the 64 steps of a phase, so 128 steps are trained."
    ]
    with pytest.raises(BadInput, match="its n_iteration is 2, but the run's is 4"):
        train_run(
            place / "run", "ppg_procgen", config_of("ppg_procgen", n_iteration=4), latest_checkpoint(place / "run")
        )
    longer = config_of("ppg_procgen", total_timesteps=192)
    assert train_run(place / "run", "ppg_procgen", longer, latest_checkpoint(place / "run")).global_step == 192


def test_settings_of_phases_that_do_not_fit_are_refused(fake_pools: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for changes, message in (
        ({"num_aux_rollouts": 3}, "n_iteration × num_envs = 4 rollouts of a phase cannot be split"),
        ({"n_aux_grad_accum": 8}, "into gradient steps of num_aux_rollouts × n_aux_grad_accum = 8"),
        ({"total_timesteps": 63}, "less than one phase of n_iteration × num_envs × num_steps = 64 steps"),
        ({"v_value": 2}, "Input should be 1"),
    ):
        with pytest.raises(ValueError, match=message):
            config_of("ppg_procgen", **changes)
    monkeypatch.setattr(ppg_procgen, "available_memory_bytes", lambda: 5_000_000_000)
    with pytest.raises(BadInput, match=r"need 6.4 GB, but only 5.0 GB of memory are available. Lower it to 19 or less"):
        ppg_procgen.check(ppg_procgen.Config(), ppg_procgen.make_env("starpilot"))
