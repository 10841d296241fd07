"""The convolutional networks, compared with the same networks built from torch modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.distributions import Categorical

from cleanrl_worker.algorithms import dqn_atari, ppo_atari, ppo_atari_lstm
from cleanrl_worker.algorithms.ppo import categorical_loss
from cleanrl_worker.learners.conv_network import CONV_NETWORK, ConvNetworkSizes, infer_sizes
from cleanrl_worker.learners.torch_backend import TorchAdam, TorchContext
from cleanrl_worker.learners.torch_conv import as_arrays, as_tensors, channels_last, conv_features
from cleanrl_worker.learners.torch_recurrent import lstm_forward

SIZES = ConvNetworkSizes((4, 6, 8), (10,))
ACTIONS, ENVS, STEPS = 3, 4, 6
UNITS = 5


class Reference(nn.Module):
    """The network as CleanRL builds it."""

    def __init__(self, seen: int, heads: bool = True, units: int = 0) -> None:
        super().__init__()
        first, second, third = SIZES.channels
        layers: list[nn.Module] = [
            nn.Conv2d(seen, first, 8, stride=4), nn.ReLU(), nn.Conv2d(first, second, 4, stride=2), nn.ReLU(),
            nn.Conv2d(second, third, 3), nn.ReLU(), nn.Flatten(), nn.Linear(third * 49, SIZES.hidden[0]), nn.ReLU(),
        ]  # fmt: skip
        self.network = nn.Sequential(*layers, *([] if heads else [nn.Linear(SIZES.hidden[0], ACTIONS)]))
        if units:
            self.lstm = nn.LSTM(SIZES.hidden[0], units)
        if heads:
            self.actor = nn.Linear(units or SIZES.hidden[0], ACTIONS)
            self.critic = nn.Linear(units or SIZES.hidden[0], 1)

    def forward(self, images: Any) -> Any:
        return self.network(images / 255.0)


def load_weights(reference: nn.Module, agent: Any) -> Any:
    agent.initialize(np.random.default_rng(3))
    reference.load_state_dict({name: torch.from_numpy(part) for name, part in agent.state_dict().items()})
    return agent


def random_images(rows: int, seen: int = 4) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (rows, seen, 84, 84), np.uint8)


def settings(**changes: Any) -> Any:
    given = {
        "learning_rate": 1e-3, "num_envs": ENVS, "num_minibatches": 2, "batch_size": ENVS * STEPS,
        "architecture": CONV_NETWORK,
        "minibatch_size": ENVS * STEPS // 2, "max_grad_norm": 0.5, "norm_adv": True, "clip_coef": 0.1,
        "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


def columns(rows: int) -> dict[str, np.ndarray]:
    rng = np.random.default_rng(2)
    result = {name: rng.standard_normal(rows, np.float32) for name in ("advantages", "returns", "values")}
    return {**result, "actions": rng.integers(ACTIONS, size=rows), "log_probs": -1 - rng.random(rows, np.float32)}


def reference_loss(logits: Any, values: Any, batch: dict[str, Any], config: Any) -> Any:
    chosen: Any = Categorical(logits=logits)
    ratio = (chosen.log_prob(batch["actions"]) - batch["log_probs"]).exp()
    advantages = batch["advantages"]
    if config.norm_adv:
        advantages = (advantages - advantages.mean()) / (advantages.std() + 1e-8)
    gain = torch.min(advantages * ratio, advantages * ratio.clamp(1 - config.clip_coef, 1 + config.clip_coef)).mean()
    squares = (values - batch["returns"]) ** 2
    if config.clip_vloss:
        clipped_values = batch["values"] + (values - batch["values"]).clamp(-config.clip_coef, config.clip_coef)
        squares = torch.max(squares, (clipped_values - batch["returns"]) ** 2)
    return -gain - config.ent_coef * chosen.entropy().mean() + config.vf_coef * 0.5 * squares.mean()


def torch_step(reference: nn.Module, optimizer: Any, loss: Any, max_norm: float) -> None:
    optimizer.zero_grad()
    loss.backward()
    nn.utils.clip_grad_norm_(reference.parameters(), max_norm)
    optimizer.step()


def assert_equal_weights(learner: Any, reference: nn.Module, atol: float = 2e-5) -> None:
    state = reference.state_dict()
    result = learner.arrays()
    assert list(result) == list(state)
    for name, part in result.items():
        np.testing.assert_allclose(part, state[name].numpy(), atol=atol, err_msg=name)


@pytest.fixture
def compute() -> TorchContext:
    return TorchContext.set_up(cuda=False)


def test_the_network_equals_cleanrls() -> None:
    agent = ppo_atari.Agent(4)
    agent.initialize(np.random.default_rng(1))
    shapes = {name: part.shape for name, part in agent.state_dict().items()}
    assert shapes["network.0.weight"] == (32, 4, 8, 8)
    assert shapes["network.7.weight"] == (512, 3136)
    assert infer_sizes(agent.parameters, CONV_NETWORK) == ConvNetworkSizes()
    assert list(shapes)[-4:] == ["actor.weight", "actor.bias", "critic.weight", "critic.bias"]
    weight = agent.parameters["network.2.weight"].reshape(64, -1)
    np.testing.assert_allclose(weight @ weight.T, 2 * np.eye(64), atol=1e-4)
    assert np.abs(agent.parameters["actor.weight"]).max() < 0.01


def test_conv_features_equal_those_of_torchs_modules() -> None:
    reference = Reference(4)
    agent = load_weights(reference, ppo_atari.Agent(ACTIONS, SIZES))
    images = torch.from_numpy(random_images(5))
    weights = as_tensors(agent.parameters, torch.device("cpu"))
    result = conv_features(weights, channels_last(images))
    np.testing.assert_allclose(result.detach(), reference(images.float()).detach(), atol=1e-5)
    for name, part in as_arrays(weights).items():
        assert part.tobytes() == agent.parameters[name].tobytes()


@pytest.mark.parametrize("changes", [{}, {"norm_adv": False, "clip_vloss": False}, {"max_grad_norm": 1e9}])
def test_updates_of_ppo_move_the_weights_as_torchs_own_adam_does(
    compute: TorchContext, changes: dict[str, Any]
) -> None:
    config, total = settings(**changes), ENVS * STEPS
    reference = Reference(4)
    agent = load_weights(reference, ppo_atari.Agent(ACTIONS, SIZES))
    learner = ppo_atari.make_learner(agent.parameters, (4, 84, 84), config, compute)
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-3, eps=1e-5)
    images, batch = random_images(total), columns(total)
    learner.load_rollout(1e-3, images, **batch)
    order = np.random.default_rng(5).permutation(total)
    for rows in order.reshape(2, -1):
        learner.update(rows)
        part = {name: torch.from_numpy(column[rows]) for name, column in batch.items()}
        hidden = reference(torch.from_numpy(images[rows]).float())
        loss = reference_loss(reference.actor(hidden), reference.critic(hidden)[:, 0], part, config)
        torch_step(reference, optimizer, loss, config.max_grad_norm)
    assert_equal_weights(learner, reference)
    metrics, is_finite = learner.losses()
    assert is_finite
    assert 0 < metrics["clipfrac"] <= 1


def test_a_gradient_that_is_not_finite_is_reported(compute: TorchContext) -> None:
    agent = load_weights(Reference(4), ppo_atari.Agent(ACTIONS, SIZES))
    learner = ppo_atari.make_learner(agent.parameters, (4, 84, 84), settings(), compute)
    batch = columns(ENVS * STEPS)
    batch["returns"][3] = np.inf
    learner.load_rollout(1e-3, random_images(ENVS * STEPS), **batch)
    learner.update(np.arange(12))
    assert not learner.losses()[1]


def test_a_gradient_that_lies_differently_in_memory_moves_the_right_weights(compute: TorchContext) -> None:
    start = torch.arange(6.0).reshape(2, 3)
    gradient = torch.tensor([[1.0, -1.0, 1.0], [-1.0, 1.0, -1.0]])
    part = start.clone().requires_grad_()
    TorchAdam([part], 0.1, compute).step((part.t().contiguous() * gradient.t()).sum())
    turned = start.t().contiguous().t().requires_grad_()
    TorchAdam([turned], 0.1, compute).step((turned * gradient).sum())
    for result in (part, turned):
        np.testing.assert_allclose(result.detach(), start - 0.1 * gradient, atol=1e-5)


def test_the_lstm_equals_torchs_without_resets() -> None:
    lstm = nn.LSTM(SIZES.hidden[0], UNITS)
    weights = {f"lstm.{name}": part for name, part in lstm.named_parameters()}
    observations, state = torch.randn(STEPS, ENVS, SIZES.hidden[0]), torch.randn(2, ENVS, UNITS)
    outputs, after = lstm_forward(weights, observations, state, torch.ones(STEPS, ENVS))
    expected, (hidden, cell) = lstm(observations, (state[:1], state[1:]))
    torch.testing.assert_close(outputs, expected)
    torch.testing.assert_close(after, torch.cat([hidden, cell]))
    # Where an episode starts, the earlier state does not matter.
    continue_mask = torch.ones(STEPS, ENVS)
    continue_mask[3, 1] = 0
    outputs, _ = lstm_forward(weights, observations, state, continue_mask)
    fresh, _ = lstm(observations[3:, 1:2])
    torch.testing.assert_close(outputs[3:, 1:2], fresh)
    torch.testing.assert_close(outputs[:, :1], expected[:, :1])


def test_updates_of_recurrent_ppo_equal_those_with_torchs_adam(compute: TorchContext) -> None:
    config, total = settings(), ENVS * STEPS
    reference = Reference(1, units=UNITS)
    agent = load_weights(reference, ppo_atari_lstm.Agent(ACTIONS, SIZES, UNITS))
    learner = ppo_atari_lstm.make_learner(agent.parameters, (1, 84, 84), config, compute)
    optimizer = torch.optim.Adam(reference.parameters(), lr=1e-3, eps=1e-5)
    images, batch = random_images(total, 1), columns(total)
    continue_mask = np.ones((STEPS, ENVS), np.float32)
    continue_mask[2, 0] = continue_mask[4, 3] = 0
    learner.state.copy_(torch.randn(2, ENVS, UNITS))
    state = learner.state.clone()
    learner.begin_rollout()
    learner.set_continue_mask(continue_mask[0])
    learner.act(images[:ENVS])  # the state of the inference must not matter
    learner.load_rollout(1e-3, images, **batch, continue_mask=continue_mask.ravel())
    for envs in np.array([[2, 0], [1, 3]]):
        learner.update(envs)
        rows = (np.arange(STEPS)[:, None] * ENVS + envs).ravel()
        part = {name: torch.from_numpy(column[rows]) for name, column in batch.items()}
        observations = reference(torch.from_numpy(images[rows]).float()).view(STEPS, 2, -1)
        now, hidden = (state[:1, envs], state[1:, envs]), []
        for step in range(STEPS):
            keep = torch.from_numpy(continue_mask[step, envs])[None, :, None]
            output, now = reference.lstm(observations[step : step + 1], (now[0] * keep, now[1] * keep))
            hidden.append(output[0])
        flat = torch.cat(hidden)
        loss = reference_loss(reference.actor(flat), reference.critic(flat)[:, 0], part, config)
        torch_step(reference, optimizer, loss, config.max_grad_norm)
    assert_equal_weights(learner, reference)


def test_bootstrap_values_do_not_change_the_lstm_state(compute: TorchContext) -> None:
    agent = load_weights(Reference(1, units=UNITS), ppo_atari_lstm.Agent(ACTIONS, SIZES, UNITS))
    learner = ppo_atari_lstm.make_learner(agent.parameters, (1, 84, 84), settings(), compute)
    images = random_images(ENVS, 1)
    learner.set_continue_mask(np.zeros(ENVS))
    first = learner.act(images).copy()
    previous = learner.state.clone()
    fresh = learner.next_values(np.arange(ENVS), images, np.zeros(ENVS))
    np.testing.assert_allclose(fresh, first[:, -1], atol=1e-6)
    continued = learner.next_values([2], images[2:3], [1.0])
    assert (learner.state == previous).all()
    assert abs(continued[0] - first[2, -1]) > 1e-6
    learner.set_continue_mask(np.ones(ENVS))
    np.testing.assert_allclose(continued[0], learner.act(images)[2, -1], atol=1e-6)


def test_dqns_loss_is_the_distance_to_reward_and_the_targets_best_value() -> None:
    reference, older = Reference(4, heads=False), Reference(4, heads=False)
    agent = load_weights(reference, dqn_atari.Agent(ACTIONS, SIZES))
    second = dqn_atari.Agent(ACTIONS, SIZES)
    second.initialize(np.random.default_rng(9))
    older.load_state_dict({name: torch.from_numpy(part) for name, part in second.state_dict().items()})
    images = torch.from_numpy(random_images(6))
    batch = SimpleNamespace(
        observations=channels_last(images),
        next_observations=channels_last(images.flip(0)),
        actions=torch.tensor([0, 1, 2, 0, 1, 2]),
        rewards=torch.tensor([1.0, 0, -1, 0, 1, 0]),
        terminals=torch.tensor([0.0, 1, 0, 0, 0, 1]),
    )
    weights = as_tensors(agent.parameters, torch.device("cpu"))
    result, metrics = dqn_atari.loss(weights, as_tensors(second.parameters, torch.device("cpu"), False), batch, 0.9)
    with torch.no_grad():
        best = older(images.flip(0).float()).max(1).values
        wanted = batch.rewards + 0.9 * best * (1 - batch.terminals)
    values = reference(images.float()).gather(1, batch.actions[:, None])[:, 0]
    expected = ((values - wanted) ** 2).mean()
    torch.testing.assert_close(result, expected)
    torch.testing.assert_close(metrics[1], values.mean())
    gradients = torch.autograd.grad(result, list(weights.values()))
    for gradient, other_slope in zip(
        gradients, torch.autograd.grad(expected, list(reference.parameters())), strict=True
    ):
        torch.testing.assert_close(gradient, other_slope, atol=1e-5, rtol=1e-4)


def test_the_loss_metrics_are_those_of_ppo() -> None:
    outputs = torch.zeros(4, ACTIONS + 1)
    batch = SimpleNamespace(
        actions=torch.tensor([0, 1, 2, 0]),
        log_probs=torch.full((4,), float(np.log(1 / ACTIONS))),
        advantages=torch.tensor([1.0, -1.0, 2.0, 0.0]),
        returns=torch.ones(4),
        values=torch.zeros(4),
    )
    _, metrics = categorical_loss(outputs[:, :-1], outputs[:, -1], batch, settings(norm_adv=False))
    np.testing.assert_allclose(metrics, [0.5, -0.5, np.log(ACTIONS), 0, 0, 0], atol=1e-6)
