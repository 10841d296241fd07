"""PPO with a Transformer-XL: its network and loss in a second form, what it remembers, images and several choices."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium.spaces import Box, Discrete, MultiDiscrete
from tests.helpers.algorithm_cases import assert_same_checkpoint, latest_checkpoint, train_run
from torch.nn.functional import layer_norm, linear

from cleanrl_worker.algorithms import ppo, ppo_trxl
from cleanrl_worker.algorithms.ppo_trxl import Agent, EpisodeShape
from mosaic.contracts.errors import BadInput, ConfigRefused

SMALL: dict[str, Any] = {
    "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "total_timesteps": 32, "trxl_dim": 8,
    "trxl_num_heads": 2, "trxl_num_layers": 2, "trxl_memory_length": 4, "cuda": False,
}  # fmt: skip


class Cue(gymnasium.Env[Any, Any]):
    """Shows left or right in the first step only; the last action must be it."""

    observation_space = Box(-1, 1, (2,), np.float32)
    action_space: gymnasium.Space[Any] = Discrete(2)
    length = 5

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self._step, self._cue = 0, int(self.np_random.integers(2))
        return np.array([2 * self._cue - 1, 0], np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self._step += 1
        is_last = self._step == self.length
        reward = (1.0 if action == self._cue else -1.0) if is_last else 0.0
        return np.array([0, self._step / self.length], np.float32), reward, is_last, False, {}


class Picture(gymnasium.Env[Any, Any]):
    """Images without content, and two choices."""

    observation_space = Box(0, 255, (36, 44, 1), np.uint8)
    action_space = MultiDiscrete([3, 2])

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return np.full((36, 44, 1), self.np_random.integers(256), np.uint8), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return self.reset()[0], float(action[0] == 2), False, False, {}


@contextlib.contextmanager
def registered(kind: type[gymnasium.Env[Any, Any]]) -> Iterator[str]:
    gymnasium.register("Memory-v0", entry_point=kind, max_episode_steps=6)  # type: ignore[arg-type]
    try:
        yield "Memory-v0"
    finally:
        del gymnasium.registry["Memory-v0"]


def play_simply(agent: Agent, observations: Any) -> tuple[list[Any], list[Any]]:
    """Return the logits and values of an episode, attending step by step and head by head to a list of memories."""
    weights = {name: torch.from_numpy(part) for name, part in agent.state_dict().items()}
    sizes, dim = agent.sizes, agent.sizes.dim
    size = dim // sizes.heads

    def encode(step: int) -> Any:
        if sizes.encoding == "learned":
            return weights["transformer.pos_embedding"][step]
        angles = (sizes.max_episode_steps - 1 - step) / 10_000 ** (torch.arange(0, dim, 2) / dim)
        return torch.cat([torch.sin(angles), torch.cos(angles)])

    def norm(name: str, x: Any) -> Any:
        return layer_norm(x, (dim,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    memories: list[list[Any]] = [[] for _ in range(sizes.layers)]
    logits, values = [], []
    for step, observation in enumerate(observations):
        x = linear(observation, weights["encoder.weight"], weights["encoder.bias"])
        for index in range(sizes.layers):
            name = f"transformer.transformer_layers.{index}"
            window = range(max(0, step - sizes.window + 1), step)
            seen = [memories[index][earlier] + encode(earlier) for earlier in window]
            # Without a past it attends to empty memories.
            seen = [norm(f"{name}.norm_kv", part) for part in seen or map(encode, range(sizes.window))]
            query, heads = norm(f"{name}.layer_norm_q", x), []
            for head in range(sizes.heads):
                part = slice(head * size, (head + 1) * size)
                keys = [weights[f"{name}.attention.keys.weight"] @ memory[part] for memory in seen]
                parts = [weights[f"{name}.attention.values.weight"] @ memory[part] for memory in seen]
                asked = weights[f"{name}.attention.queries.weight"] @ query[part]
                scores = torch.stack([asked @ key for key in keys]) / dim**0.5 * (step > 0)
                heads.append(sum(weight * part for weight, part in zip(torch.softmax(scores, 0), parts, strict=True)))
            memories[index].append(x)
            out = f"{name}.attention.fc_out"
            x = x + linear(torch.cat(heads), weights[f"{out}.weight"], weights[f"{out}.bias"])
            project = f"{name}.fc_projection.0"
            normed = norm(f"{name}.layer_norm_attn", x)
            x = x + torch.relu(linear(normed, weights[f"{project}.weight"], weights[f"{project}.bias"]))
        x = torch.relu(linear(x, weights["hidden_post_trxl.0.weight"], weights["hidden_post_trxl.0.bias"]))
        logits.append(linear(x, weights["actor_branches.0.weight"], weights["actor_branches.0.bias"]))
        values.append(linear(x, weights["critic.weight"], weights["critic.bias"])[0])
    return logits, values


@pytest.mark.parametrize("encoding", ["absolute", "learned"])
def test_the_loss_is_ppos_with_attention_to_the_past_of_the_episode(encoding: str) -> None:
    config = ppo_trxl.Config(**{**SMALL, "trxl_positional_encoding": encoding})
    agent = Agent(3, [2], config, EpisodeShape(max_episode_steps=7, image=None))
    agent.initialize(np.random.default_rng(1))
    module: Any = agent.module()
    steps = 7
    module.allocate_memory(1, steps)
    rng = torch.Generator().manual_seed(1)
    observations = torch.randn(steps, 3, generator=rng)
    rows = torch.stack([torch.tensor([*row.tolist(), 0, 3 + t, t]) for t, row in enumerate(observations)])
    with torch.no_grad():
        acted = torch.cat([module.step(row[None]) for row in rows])
    logits, values = play_simply(agent, observations)
    torch.testing.assert_close(acted, torch.cat([torch.stack(logits), torch.stack(values)[:, None]], 1))

    actions = torch.tensor([0, 1, 1, 0, 1, 0, 0])
    others = torch.randn(4, steps, generator=rng)
    columns = dict(zip(("log_probs", "advantages", "returns", "values"), others, strict=True))
    batch = SimpleNamespace(observations=rows, actions=actions, **columns)
    settings = SimpleNamespace(
        norm_adv=False, clip_coef=0.1, clip_vloss=True, ent_coef=0.3, vf_coef=2 * 0.5, reconstruction_coef=0.0
    )
    total, losses = ppo_trxl.loss(module, batch, settings)
    policy = value = entropy = 0.0
    for t in range(steps):
        chances = torch.softmax(logits[t], 0).double().numpy()
        old, advantage, target, earlier = others[:, t].double().numpy()
        ratio = chances[actions[t]] / np.exp(old)
        policy -= min(ratio * advantage, np.clip(ratio, 0.9, 1.1) * advantage) / steps
        near = earlier + np.clip(float(values[t]) - earlier, -0.1, 0.1)
        value += max((float(values[t]) - target) ** 2, (near - target) ** 2) / steps
        entropy -= float((chances * np.log(chances)).sum()) / steps
    assert losses[:3] == pytest.approx((value, policy, entropy), rel=1e-4)
    assert float(total.detach()) == pytest.approx(policy + 0.5 * value - 0.3 * entropy, rel=1e-4)


def test_a_cue_is_remembered_where_ppo_can_only_guess(place: Path) -> None:
    rollout: dict[str, Any] = {"total_timesteps": 12_288, "num_envs": 16, "num_steps": 24, "num_minibatches": 4}
    with registered(Cue) as env_id:
        config = ppo_trxl.Config(
            env_id=env_id, **rollout, trxl_dim=32, trxl_num_layers=1, trxl_num_heads=2, init_lr=2e-3, final_lr=2e-3,
            init_ent_coef=0.01, norm_adv=True, cuda=False,
        )  # fmt: skip
        remembered = train_run(place / "trxl", "ppo_trxl", config)
        guessed = train_run(place / "ppo", "ppo", ppo.Config(env_id=env_id, **rollout))
        policy: Any = ppo_trxl.load_policy(latest_checkpoint(place / "trxl"))
    returns = [np.mean([episode[2] for episode in run.episodes[-400:]]) for run in (remembered, guessed)]
    assert returns[0] > 0.7
    assert returns[1] < 0.3

    # The policy remembers each row by itself, and a reset forgets.
    shown = np.array([[[1, 0], [-1, 0]], *([[[0, t / 5]] * 2 for t in range(1, 5)])], np.float32)
    rng = np.random.default_rng(0)
    for _ in range(2):
        actions = [policy.act(rows, True, rng) for rows in shown]
        assert actions[-1].tolist() == [1, 0]
        for row in range(2):
            policy.reset_state(row)


def test_images_and_several_choices_are_trained_and_resumed(place: Path) -> None:
    with registered(Picture) as env_id:
        config = ppo_trxl.Config(**{**SMALL, "env_id": env_id, "reconstruction_coef": 0.1, "checkpoint_every": 16})
        env = gymnasium.make(env_id)
        facts = ppo_trxl.check(config, env)
        assert (facts["observations"], facts["actions"], facts["encodes_images"]) == ([36, 44, 1], [3, 2], True)
        train_run(place / "straight", "ppo_trxl", config)
        train_run(place / "stopped", "ppo_trxl", config, stop_at=20)
        first = latest_checkpoint(place / "stopped")
        assert (first.step, facts["parameters"]) == (16, sum(part.size for part in first.weights.values()))
        train_run(place / "stopped", "ppo_trxl", config, first)
        assert_same_checkpoint(latest_checkpoint(place / "straight"), latest_checkpoint(place / "stopped"))
        policy: Any = ppo_trxl.load_policy(first)
        assert env.action_space.contains(policy.act(env.reset(seed=1)[0][None], False, np.random.default_rng(1))[0])


def test_what_does_not_fit_is_refused() -> None:
    with (
        registered(Cue) as env_id,
        pytest.raises(ConfigRefused, match="reconstruction_coef: images of bytes with sides"),
    ):
        ppo_trxl.check(ppo_trxl.Config(**SMALL, reconstruction_coef=0.1), gymnasium.make(env_id))
    with pytest.raises(BadInput, match="ppo_trxl needs a discrete action space; Pendulum-v1 has"):
        ppo_trxl.check(ppo_trxl.Config(**SMALL), gymnasium.make("Pendulum-v1"))
    with pytest.raises(ValueError, match="trxl_dim = 8 is not a multiple of trxl_num_heads = 3"):
        ppo_trxl.Config(**{**SMALL, "trxl_num_heads": 3})


def test_learning_rate_and_entropy_bonus_fall_to_their_final_values() -> None:
    config = ppo_trxl.Config(**SMALL, init_lr=0.5, final_lr=0.1, anneal_steps=100, init_ent_coef=1, final_ent_coef=0)
    assert [config.schedule(step) for step in (0, 50, 100, 1000)] == [
        (0.5, 1.0), (pytest.approx(0.3), 0.5), (0.1, 0.0), (0.1, 0.0)
    ]  # fmt: skip
    assert config.model_copy(update={"anneal_steps": 0}).schedule(0) == (0.1, 0.0)


@pytest.mark.parametrize(
    ("shape", "image"),
    [((36, 44, 1), [36, 44, 1]), ((84, 84, 3), [84, 84, 3]), ((35, 84, 3), None), ((3, 84, 84), None), ((84, 84), None),
     ((4, 64, 48, 3), None)],
)  # fmt: skip
def test_images_of_height_width_and_channels_are_encoded_and_others_flattened(shape: Any, image: Any) -> None:
    assert ppo_trxl.find_image(Box(0, 255, shape, np.uint8)) == image
    assert ppo_trxl.find_image(Box(0, 255, shape, np.float32)) is None
