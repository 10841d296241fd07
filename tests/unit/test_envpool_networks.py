"""The networks of the envpool algorithms, compared with the same networks built from torch modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

from cleanrl_worker.algorithms import ppo_atari, ppo_atari_envpool, ppo_rnd_envpool, pqn_atari_envpool
from cleanrl_worker.algorithms.ppo import categorical_loss
from cleanrl_worker.learners.conv_network import CONV_NETWORK, ConvNetworkSizes
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_conv import PPO_METRIC_NAMES, as_tensors, channels_last

SIZES = ConvNetworkSizes((4, 6, 8), (10,))
ACTIONS, ENVS, STEPS, WIDE, FEATURES = 3, 4, 6, 12, 7
TOTAL = ENVS * STEPS
RND_SIZES = SIZES._replace(hidden=(*SIZES.hidden, WIDE))


def build_pqn_network(sizes: ConvNetworkSizes, actions: int) -> nn.Module:
    """PQN's network as CleanRL builds it."""
    first, second, third = sizes.channels
    module = nn.Module()
    module.network = nn.Sequential(
        nn.Conv2d(4, first, 8, stride=4), nn.LayerNorm([first, 20, 20]), nn.ReLU(),
        nn.Conv2d(first, second, 4, stride=2), nn.LayerNorm([second, 9, 9]), nn.ReLU(),
        nn.Conv2d(second, third, 3), nn.LayerNorm([third, 7, 7]), nn.ReLU(), nn.Flatten(),
        nn.Linear(third * 49, sizes.hidden[0]), nn.LayerNorm(sizes.hidden[0]), nn.ReLU(),
        nn.Linear(sizes.hidden[0], actions),
    )  # fmt: skip
    return module


def conv_layers(seen: int, sizes: ConvNetworkSizes, between: Any) -> list[nn.Module]:
    first, second, third = sizes.channels
    return [
        nn.Conv2d(seen, first, 8, stride=4), between(), nn.Conv2d(first, second, 4, stride=2), between(),
        nn.Conv2d(second, third, 3), between(), nn.Flatten(), nn.Linear(third * 49, sizes.hidden[0]),
    ]  # fmt: skip


def build_rnd_networks(sizes: ConvNetworkSizes, actions: int, wide: int, features: int) -> tuple[nn.Module, nn.Module]:
    """Agent and RND model as CleanRL builds them."""
    agent, model = nn.Module(), nn.Module()
    layers = conv_layers(4, sizes, nn.ReLU)
    agent.network = nn.Sequential(*layers, nn.ReLU(), nn.Linear(sizes.hidden[0], wide), nn.ReLU())
    agent.extra_layer = nn.Sequential(nn.Linear(wide, wide), nn.ReLU())
    agent.actor = nn.Sequential(nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, actions))
    agent.critic_ext, agent.critic_int = nn.Linear(wide, 1), nn.Linear(wide, 1)
    sight = ConvNetworkSizes(sizes.channels, (features,))
    deeper = [nn.ReLU(), nn.Linear(features, features), nn.ReLU(), nn.Linear(features, features)]
    model.predictor = nn.Sequential(*conv_layers(1, sight, nn.LeakyReLU), *deeper)
    model.target = nn.Sequential(*conv_layers(1, sight, nn.LeakyReLU))
    return agent, model


def initialized_module(agent: Any, *modules: nn.Module) -> Any:
    """Initialize the agent and copy its weights to the torch modules."""
    agent.initialize(np.random.default_rng(3))
    if any(name.startswith("network.1.") for name in agent.parameters):
        rng = np.random.default_rng(4)  # layer norms with gain 1 and offset 0 would hide a wrong order
        for name, part in agent.parameters.items():
            part += 0.1 * rng.standard_normal(part.shape, np.float32) if ".1." in name or ".4." in name else 0
    for module in modules:
        own = module.state_dict()
        module.load_state_dict({name: torch.from_numpy(agent.parameters[name]) for name in own})
    return agent


def random_images(rows: int) -> np.ndarray:
    return np.random.default_rng(1).integers(0, 256, (rows, 4, 84, 84), np.uint8)


def settings(**changes: Any) -> Any:
    given = {
        "learning_rate": 1e-3, "num_envs": ENVS, "batch_size": TOTAL, "minibatch_size": TOTAL // 2,
        "architecture": CONV_NETWORK,
        "max_grad_norm": 0.5, "norm_adv": True, "clip_coef": 0.1, "clip_vloss": True, "ent_coef": 0.01, "vf_coef": 0.5,
    }  # fmt: skip
    return SimpleNamespace(**{**given, **changes})


@pytest.fixture
def compute() -> TorchContext:
    return TorchContext.set_up(cuda=False)


def test_the_networks_have_the_keys_and_shapes_of_cleanrls() -> None:
    agent, model = build_rnd_networks(ppo_rnd_envpool.SIZES, 18, 448, 512)
    ours: Any = ppo_rnd_envpool.Agent(18)
    assert {**_shapes(agent), **_shapes(model)} == ours.shapes
    assert list(_shapes(agent)) == list(ours.policy_shapes)
    assert list(_shapes(build_pqn_network(ConvNetworkSizes(), 4))) == list(pqn_atari_envpool.Agent(4).shapes)
    assert _shapes(build_pqn_network(ConvNetworkSizes(), 4)) == pqn_atari_envpool.Agent(4).shapes
    assert ppo_atari_envpool.Agent(4).shapes == ppo_atari.Agent(4).shapes


def _shapes(module: nn.Module) -> dict[str, tuple[int, ...]]:
    return {name: tuple(part.shape) for name, part in module.state_dict().items()}


def test_the_networks_begin_as_cleanrls() -> None:
    rng = np.random.default_rng(1)
    values = pqn_atari_envpool.Agent(4)
    values.initialize(rng)
    weight = values.parameters["network.13.weight"]
    np.testing.assert_allclose(weight @ weight.T, 2 * np.eye(4), atol=1e-4)
    assert (values.parameters["network.4.weight"] == 1).all()
    assert (values.parameters["network.11.bias"] == 0).all()
    agent: Any = ppo_rnd_envpool.Agent(18)
    agent.initialize(rng)
    for name, gain in (("extra_layer.0", 0.1), ("actor.0", 0.01), ("critic_int", 0.01), ("predictor.11", 2**0.5)):
        weight = agent.parameters[f"{name}.weight"]
        np.testing.assert_allclose(weight @ weight.T, gain**2 * np.eye(len(weight)), atol=1e-4)
    assert list(agent.state_dict()) == list(agent.policy_shapes)


def test_values_are_those_of_torchs_modules() -> None:
    module = build_pqn_network(SIZES, ACTIONS)
    agent = initialized_module(pqn_atari_envpool.Agent(ACTIONS, SIZES), module)
    images = torch.from_numpy(random_images(5))
    result = pqn_atari_envpool.q_values(as_tensors(agent.parameters, torch.device("cpu")), channels_last(images))
    expected = module.network(images.float() / 255)  # type: ignore[operator]
    np.testing.assert_allclose(result.detach(), expected.detach(), atol=1e-5)


def test_updates_of_pqn_move_the_weights_as_torchs_own_radam_does(compute: TorchContext) -> None:
    module = build_pqn_network(SIZES, ACTIONS)
    agent = initialized_module(pqn_atari_envpool.Agent(ACTIONS, SIZES), module)
    learner = pqn_atari_envpool.make_learner(agent.parameters, (4, 84, 84), settings(), compute)
    optimizer = torch.optim.RAdam(module.parameters(), lr=2e-3)
    rng = np.random.default_rng(2)
    images, actions = random_images(TOTAL), rng.integers(ACTIONS, size=TOTAL)
    returns = rng.standard_normal(TOTAL, np.float32)
    learner.load_rollout(2e-3, images, actions=actions, returns=returns)
    for rows in np.tile(rng.permutation(TOTAL).reshape(2, -1), (4, 1)):
        learner.update(rows)
        values = module.network(torch.from_numpy(images[rows]).float() / 255)  # type: ignore[operator]
        chosen = values[torch.arange(len(rows)), torch.from_numpy(actions[rows])]
        loss: Any = functional.mse_loss(torch.from_numpy(returns[rows]), chosen)
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(module.parameters(), 0.5)
        optimizer.step()
    for name, part in learner.arrays().items():
        np.testing.assert_allclose(part, module.state_dict()[name].numpy(), atol=2e-5, err_msg=name)
    metrics, is_finite = learner.losses()
    assert is_finite
    assert metrics == pytest.approx({"td_loss": loss.item(), "q_values": chosen.mean().item()}, abs=1e-5)


def test_the_two_value_heads_equal_those_of_torchs_modules() -> None:
    module, model = build_rnd_networks(SIZES, ACTIONS, WIDE, FEATURES)
    agent = initialized_module(ppo_rnd_envpool.Agent(ACTIONS, RND_SIZES, FEATURES), module, model)
    weights = as_tensors(agent.parameters, torch.device("cpu"))
    images = torch.from_numpy(random_images(5))
    result = ppo_rnd_envpool.outputs(weights, channels_last(images)).detach()
    np.testing.assert_allclose(result, _outputs(module, images).detach(), atol=1e-5)
    first = torch.randn(5, 1, 84, 84)
    for name in ("predictor", "target"):
        np.testing.assert_allclose(
            ppo_rnd_envpool.rnd_features(weights, name, first).detach(), getattr(model, name)(first).detach(), atol=1e-5
        )


def _outputs(module: Any, images: torch.Tensor) -> torch.Tensor:
    hidden = module.network(images.float() / 255)
    features = module.extra_layer(hidden) + hidden
    return torch.cat([module.actor(hidden), module.critic_ext(features), module.critic_int(features)], 1)


def test_rnd_updates_change_policy_and_predictor_but_not_the_target(compute: TorchContext) -> None:
    module, model = build_rnd_networks(SIZES, ACTIONS, WIDE, FEATURES)
    agent = initialized_module(ppo_rnd_envpool.Agent(ACTIONS, RND_SIZES, FEATURES), module, model)
    config = settings(architecture=ppo_rnd_envpool.NETWORK)
    learner = ppo_rnd_envpool.make_learner(agent.parameters, (4, 84, 84), config, compute)
    learned = [*module.parameters(), *model.predictor.parameters()]  # type: ignore[union-attr]
    optimizer = torch.optim.Adam(learned, lr=1e-3, eps=1e-5)
    rng = np.random.default_rng(2)
    names = ("advantages", "returns", "values", "int_returns", "log_probs")
    batch: dict[str, Any] = {name: rng.standard_normal(TOTAL, np.float32) for name in names}
    batch["actions"] = rng.integers(ACTIONS, size=TOTAL)
    images = random_images(TOTAL)
    next_frames = rng.integers(0, 256, (TOTAL, 84, 84), np.uint8)
    mean, variance = next_frames.mean(0), next_frames.var(0) + 0.1
    normalized = torch.from_numpy(((next_frames - mean) / np.sqrt(variance)).clip(-5, 5).astype(np.float32))[:, None]

    learner.set_normalization(mean, variance)
    error = model.target(normalized) - model.predictor(normalized)  # type: ignore[operator]
    np.testing.assert_allclose(learner.intrinsic_rewards(next_frames), (error**2).sum(1).detach() / 2, rtol=1e-4)
    learner.load_rollout(1e-3, images, next_frames=next_frames, **batch)
    learner.compute_target_features(0)
    for rows in rng.permutation(TOTAL).reshape(2, -1):
        predictor_mask = rng.random(len(rows)) < 0.5
        learner.update(rows, predictor_mask)
        part = SimpleNamespace(**{name: torch.from_numpy(column[rows]) for name, column in batch.items()})
        outputs = _outputs(module, torch.from_numpy(images[rows]))
        loss, metrics = categorical_loss(outputs[:, :-2], outputs[:, -2], part, config)
        second = 0.5 * ((outputs[:, -1] - part.int_returns) ** 2).mean()
        wrong = (model.predictor(normalized[rows]) - model.target(normalized[rows]).detach()) ** 2  # type: ignore[operator]
        forward = wrong.mean(1)[torch.from_numpy(predictor_mask)].mean()
        optimizer.zero_grad()
        (loss + 0.5 * second + forward).backward()
        nn.utils.clip_grad_norm_(learned, 0.5)
        optimizer.step()
    expected = module.state_dict() | model.state_dict()
    for name, part in learner.arrays().items():
        np.testing.assert_allclose(part, expected[name].numpy(), atol=3e-5, err_msg=name)
    reported, is_finite = learner.losses()
    assert is_finite
    assert reported["fwd_loss"] == pytest.approx(forward.item(), abs=1e-5)
    assert reported["value_loss"] == pytest.approx(float(metrics[0]) + second.item(), abs=1e-5)
    assert list(reported)[:-1] == list(PPO_METRIC_NAMES)


def test_a_minibatch_without_predictor_samples_has_no_predictor_loss(compute: TorchContext) -> None:
    agent = initialized_module(ppo_rnd_envpool.Agent(ACTIONS, RND_SIZES, FEATURES))
    learner = ppo_rnd_envpool.make_learner(
        agent.parameters, (4, 84, 84), settings(architecture=ppo_rnd_envpool.NETWORK), compute
    )
    learner.update(np.arange(TOTAL // 2), np.zeros(TOTAL // 2, bool))
    metrics, is_finite = learner.losses()
    assert is_finite
    assert metrics["fwd_loss"] == 0


@pytest.mark.parametrize("kind", ["returns", "curious"])
def test_a_gradient_that_is_not_finite_is_reported(kind: str, compute: TorchContext) -> None:
    bad = np.full(TOTAL, np.inf, np.float32)
    learner: Any
    if kind == "returns":
        learner = pqn_atari_envpool.make_learner(
            initialized_module(pqn_atari_envpool.Agent(ACTIONS, SIZES)).parameters, (4, 84, 84), settings(), compute
        )
        learner.load_rollout(1e-3, random_images(TOTAL), actions=np.zeros(TOTAL, np.int64), returns=bad)
        learner.update(np.arange(TOTAL // 2))
    else:
        agent = initialized_module(ppo_rnd_envpool.Agent(ACTIONS, RND_SIZES, FEATURES))
        learner = ppo_rnd_envpool.make_learner(
            agent.parameters, (4, 84, 84), settings(architecture=ppo_rnd_envpool.NETWORK), compute
        )
        learner.load_rollout(1e-3, random_images(TOTAL), int_returns=bad)
        learner.update(np.arange(TOTAL // 2), np.ones(TOTAL // 2, bool))
    assert not learner.losses()[1]
