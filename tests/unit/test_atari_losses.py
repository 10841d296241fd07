"""The losses of C51, Rainbow and SAC for Atari compared with plain ones, and their networks with torch modules."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from cleanrl_worker.algorithms import c51_atari, rainbow_atari, sac_atari
from cleanrl_worker.learners.conv_network import CONV_NETWORK, ConvNetworkSizes
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_conv import as_tensors, channels_last
from cleanrl_worker.learners.torch_discrete_sac import DiscreteSacLearner, DiscreteSacLosses, DiscreteSacNetwork
from cleanrl_worker.learners.torch_replay import PrioritizedLearner, ReplayFeed
from cleanrl_worker.learners.torch_value_heads import FactorizedNoise, project_onto_atoms

CPU = torch.device("cpu")
COMPUTE = TorchContext(CPU, uses_graphs=False, is_compiled=False)
SIZES = ConvNetworkSizes((2, 3, 4), (5,))
ACTIONS, ATOMS, ROWS, GAMMA = 3, 7, 6, 0.9
SHAPE = (84, 84)
SAC_LOSSES = DiscreteSacLosses(sac_atari.critic_losses, sac_atari.actor_loss, sac_atari.alpha_loss)


@pytest.fixture(autouse=True)
def one_thread() -> None:
    torch.set_num_threads(1)


def make_agent(module: Any, *settings: Any) -> Any:
    agent = module.Agent(ACTIONS, *settings, sizes=SIZES)
    agent.initialize(np.random.default_rng(1))
    return agent


def make_batch(seed: int = 0) -> SimpleNamespace:
    """Make a batch as a replay buffer gives it, with channels last."""
    rng = np.random.default_rng(seed)
    frames = torch.as_tensor(rng.integers(256, size=(ROWS, 5, *SHAPE), dtype=np.uint8))
    return SimpleNamespace(
        observations=channels_last(frames[:, :4]),
        next_observations=channels_last(frames[:, 1:]),
        actions=torch.as_tensor(rng.integers(ACTIONS, size=ROWS)),
        rewards=torch.as_tensor([-1.0, 0.0, 1.0, 0.3, 9.0, -9.0]),
        terminals=torch.as_tensor([0.0, 0.0, 1.0, 0.0, 0.0, 1.0]),
        discounts=torch.as_tensor([0.9, 0.81, 0.0, 0.729, 0.9, 0.0]),
        weights=torch.as_tensor([1.0, 0.5, 0.25, 1.0, 0.1, 0.9]),
        td_errors=torch.zeros(ROWS),
    )


def channels_first(images: Tensor) -> Tensor:
    return images.permute(0, 3, 1, 2) / 255.0


def convolutions(state: dict[str, Tensor], name: str) -> nn.Sequential:
    layers: list[nn.Module] = []
    for number, stride in ((0, 4), (2, 2), (4, 1)):
        weight = state[f"{name}.{number}.weight"]
        layer = nn.Conv2d(weight.shape[1], weight.shape[0], weight.shape[2], stride=stride)
        layer.load_state_dict({"weight": weight, "bias": state[f"{name}.{number}.bias"]})
        layers += [layer, nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten())


def dense(state: dict[str, Tensor], name: str, below: Tensor) -> Tensor:
    return below @ state[f"{name}.weight"].T + state[f"{name}.bias"]


def tensors(state: dict[str, Any]) -> dict[str, Tensor]:
    return {name: torch.as_tensor(part) for name, part in state.items()}


def project(pmf: list[float], moved: list[float], atoms: list[float]) -> list[float]:
    """Split the probability of each value between its neighboring atoms, by distance."""
    result, gap = [0.0] * len(atoms), atoms[1] - atoms[0]
    for probability, value in zip(pmf, moved, strict=True):
        place = (min(max(value, atoms[0]), atoms[-1]) - atoms[0]) / gap
        lower = min(int(place), len(atoms) - 2)
        result[lower] += probability * (lower + 1 - place)
        result[lower + 1] += probability * (place - lower)
    return result


def test_shifted_values_are_projected_onto_the_neighboring_atoms() -> None:
    rng = np.random.default_rng(2)
    atoms = torch.linspace(-3, 3, ATOMS)
    pmfs = torch.softmax(torch.as_tensor(rng.normal(size=(4, ATOMS)).astype(np.float32)), 1)
    moved = torch.as_tensor(rng.uniform(-5, 5, (4, ATOMS)).astype(np.float32))
    moved[0] = atoms  # exactly on the atoms
    moved[1] = 99.0  # beyond the last atom
    result = project_onto_atoms(pmfs, moved, atoms)
    for row in range(4):
        expected = project(pmfs[row].tolist(), moved[row].tolist(), atoms.tolist())
        np.testing.assert_allclose(result[row], expected, atol=1e-5)
    torch.testing.assert_close(result.sum(1), torch.ones(4))
    torch.testing.assert_close(result[0], pmfs[0])
    assert result[1, -1] == pytest.approx(1)


def test_c51s_target_is_the_target_networks_distribution() -> None:
    agent, second = make_agent(c51_atari, ATOMS, -3, 3), make_agent(c51_atari, ATOMS, -3, 3)
    second.initialize(np.random.default_rng(9))
    rows, atoms = make_batch(), torch.as_tensor(agent.atoms)

    def pmfs(state: dict[str, Tensor], images: Tensor) -> Tensor:
        hidden = torch.relu(dense(state, "network.7", convolutions(state, "network")(channels_first(images))))
        return torch.softmax(dense(state, "network.9", hidden).view(ROWS, ACTIONS, ATOMS), 2)

    with torch.no_grad():
        next_values = pmfs(tensors(second.state_dict()), rows.next_observations)
        result = pmfs(tensors(agent.state_dict()), rows.observations)
    expected = 0.0
    for row in range(ROWS):
        best = int((next_values[row] * atoms).sum(1).argmax())
        moved = rows.rewards[row] + GAMMA * atoms * (1 - rows.terminals[row])
        wanted = torch.as_tensor(project(next_values[row, best].tolist(), moved.tolist(), atoms.tolist()))
        expected -= float((wanted * result[row, rows.actions[row]].log()).sum()) / ROWS
    weights, target = as_tensors(agent.parameters, CPU), as_tensors(second.parameters, CPU, is_learned=False)
    loss, metrics = c51_atari.loss(weights, target, rows, atoms=atoms, gamma=GAMMA)
    assert loss.item() == pytest.approx(expected, rel=1e-4)
    values = (result * atoms).sum(2)[torch.arange(ROWS), rows.actions]
    np.testing.assert_allclose(metrics, [expected, values.mean().item()], rtol=1e-3, atol=1e-6)


def test_rainbow_selects_with_the_online_network_and_evaluates_with_the_target() -> None:
    agent, second = make_agent(rainbow_atari, ATOMS, -3, 3), make_agent(rainbow_atari, ATOMS, -3, 3)
    second.initialize(np.random.default_rng(9))
    rows, atoms = make_batch(), torch.as_tensor(agent.atoms)
    noise, target_noise = FactorizedNoise(agent.noisy, CPU), FactorizedNoise(agent.noisy, CPU)
    weights, target = as_tensors(agent.parameters, CPU), as_tensors(second.parameters, CPU, is_learned=False)
    loss, metrics = rainbow_atari.loss(weights, target, rows, noise=noise, target_noise=target_noise, atoms=atoms)
    assert noise.flat.std() > 0.5  # it was resampled
    assert not torch.equal(noise.flat, target_noise.flat)
    agent.noise[...], second.noise[...] = noise.to_array(), target_noise.to_array()

    def noisy(state: dict[str, Tensor], name: str, below: Tensor) -> Tensor:
        weight = state[f"{name}.weight_mu"] + state[f"{name}.weight_sigma"] * state[f"{name}.weight_epsilon"]
        bias = state[f"{name}.bias_mu"] + state[f"{name}.bias_sigma"] * state[f"{name}.bias_epsilon"]
        return below @ weight.T + bias

    def pmfs(state: dict[str, Tensor], images: Tensor) -> Tensor:
        below = convolutions(state, "network")(channels_first(images))
        value = noisy(state, "value_head.2", torch.relu(noisy(state, "value_head.0", below)))
        advantages = noisy(state, "advantage_head.2", torch.relu(noisy(state, "advantage_head.0", below)))
        advantages = advantages.view(ROWS, ACTIONS, ATOMS)
        return torch.softmax(value[:, None] + advantages - advantages.mean(1, keepdim=True), 2)

    with torch.no_grad():
        ours, theirs = tensors(agent.state_dict()), tensors(second.state_dict())
        chosen = (pmfs(ours, rows.next_observations) * atoms).sum(2).argmax(1)
        next_values = pmfs(theirs, rows.next_observations)
        result = pmfs(ours, rows.observations)
    expected = []
    for row in range(ROWS):
        moved = rows.rewards[row] + rows.discounts[row] * atoms
        wanted = project(next_values[row, chosen[row]].tolist(), moved.tolist(), atoms.tolist())
        expected.append(-float((torch.as_tensor(wanted) * result[row, rows.actions[row]].log()).sum()))
    np.testing.assert_allclose(rows.td_errors, expected, rtol=1e-4)
    assert loss.item() == pytest.approx(float((torch.as_tensor(expected) * rows.weights).mean()), rel=1e-4)
    assert float(metrics[0]) == pytest.approx(loss.item())


def test_noise_of_a_weight_is_that_of_its_input_times_that_of_its_output() -> None:
    noise = FactorizedNoise({"one": (400, 300)}, CPU)
    torch.manual_seed(0)
    noise.resample()
    outputs, inputs = noise.parts["one"]
    product = outputs[:, None] * inputs
    # E[sqrt(|x|)^2] = E|x| = sqrt(2 / pi) for a standard normal x.
    assert float(product.square().mean()) == pytest.approx(2 / np.pi, rel=0.15)
    assert abs(float(product.mean())) < 0.05


class FakeReplay:
    """A fake replay buffer that always gives the same rows."""

    num_envs = 1
    stack = 4
    shape: tuple[int, ...] = SHAPE

    def __init__(self) -> None:
        self.settled: list[Any] = []
        self.samples = 0

    def allocate_batch(self, rows: int, buffer: Any = None) -> Any:
        drawn = make_batch()
        buffer[:, :4] = drawn.observations.permute(0, 3, 1, 2).numpy()
        buffer[:, -4:] = drawn.next_observations.permute(0, 3, 1, 2).numpy()
        columns = ("actions", "rewards", "terminals", "discounts", "weights")
        arrays = {name: getattr(drawn, name).numpy() for name in columns}
        return SimpleNamespace(frames=buffer, rows=rows, indices=np.arange(rows), **arrays)

    def sample(self, batch: Any) -> None:
        self.samples += 1

    def update_priorities(self, indices: Any, td_errors: Any) -> None:
        self.settled.append((self.samples, td_errors.copy()))


def test_td_errors_reach_the_buffer_before_the_next_sample_and_once() -> None:
    agent, replay = make_agent(rainbow_atari, ATOMS, -3, 3), FakeReplay()

    def loss(weights: Any, target: Any, rows: Any) -> tuple[Tensor, Tensor]:
        rows.td_errors.copy_(torch.arange(ROWS) + replay.samples)
        return sum(part.sum() for part in weights.values()), torch.zeros(1)

    feed = ReplayFeed(replay, ROWS, 5, COMPUTE)
    learner = PrioritizedLearner(agent.parameters, agent.parameters, loss, feed, 1e-3, 1e-8, ("loss",), COMPUTE)
    for _ in range(2):
        learner.update(replay)
    learner.synchronize(replay)
    learner.synchronize(replay)
    assert [when for when, _ in replay.settled] == [1, 2]
    for (when, td_errors), expected in zip(replay.settled, (1, 2), strict=True):
        np.testing.assert_array_equal(td_errors, np.arange(ROWS) + expected)
        assert when == expected


@pytest.mark.parametrize("autotune", [True, False])
def test_sac_updates_equal_those_of_plain_torch(autotune: bool) -> None:
    agent, other = make_agent(sac_atari), make_agent(sac_atari)
    other.initialize(np.random.default_rng(9))
    settings = SimpleNamespace(
        gamma=GAMMA,
        policy_lr=1e-3,
        q_lr=2e-3,
        alpha=0.3,
        autotune=autotune,
        target_entropy_scale=0.8,
        architecture=CONV_NETWORK,
    )
    replay = FakeReplay()
    learner = DiscreteSacLearner(
        agent.parameters, other.critics(other.parameters), ReplayFeed(replay, ROWS, 5, COMPUTE), SAC_LOSSES, settings,
        COMPUTE,
    )  # fmt: skip

    plain, targets = as_tensors(agent.parameters, CPU), as_tensors(other.parameters, CPU, is_learned=False)
    actor, first, second = (DiscreteSacNetwork(plain, name) for name in ("actor", "qf1", "qf2"))
    followers = [DiscreteSacNetwork(targets, name) for name in ("qf1", "qf2")]

    def adam(prefix: str, rate: float) -> torch.optim.Adam:
        return torch.optim.Adam([part for name, part in plain.items() if name.startswith(prefix)], lr=rate, eps=1e-4)

    adams = {"critics": adam("qf", 2e-3), "actor": adam("actor", 1e-3), "alpha": adam("log_alpha", 2e-3)}
    rows, alpha, metrics = make_batch(), 1.0 if autotune else 0.3, {}
    for _ in range(3):
        learner.update(replay)
        with torch.no_grad():
            policy: Any = torch.distributions.Categorical(logits=actor(rows.next_observations))
            worth = torch.min(*(follower(rows.next_observations) for follower in followers))
            value = (policy.probs * worth).sum(1) + alpha * policy.entropy()
            td_targets = rows.rewards + GAMMA * (1 - rows.terminals) * value
        result = [critic(rows.observations)[torch.arange(ROWS), rows.actions] for critic in (first, second)]
        errors: list[Any] = [((values - td_targets) ** 2).mean() for values in result]
        adams["critics"].zero_grad()
        (errors[0] + errors[1]).backward()
        adams["critics"].step()
        logits = actor(rows.observations)
        log_probs = logits - logits.logsumexp(1, keepdim=True)
        with torch.no_grad():
            least = torch.min(first(rows.observations), second(rows.observations))
        actor_loss: Any = (log_probs.exp() * (alpha * log_probs - least)).mean()
        adams["actor"].zero_grad()
        actor_loss.backward()
        adams["actor"].step()
        metrics = {
            "qf1_loss": errors[0],
            "qf2_loss": errors[1],
            "actor_loss": actor_loss,
            "qf1_values": result[0].mean(),
        }
        metrics["qf_loss"] = (errors[0] + errors[1]) / 2
        if autotune:
            wanted = 0.8 * np.log(ACTIONS)
            alpha_loss = (log_probs.exp().detach() * -plain["log_alpha"].exp() * (log_probs.detach() + wanted)).mean()
            adams["alpha"].zero_grad()
            alpha_loss.backward()
            adams["alpha"].step()
            alpha = plain["log_alpha"].exp().item()
            metrics["alpha_loss"] = alpha_loss
    for name, part in learner.arrays().items():
        np.testing.assert_allclose(part, plain[name].detach(), atol=2e-5, err_msg=name)
    losses = learner.losses()
    assert losses["alpha"] == pytest.approx(alpha)
    assert ("alpha_loss" in losses) == autotune
    for name, expected in metrics.items():
        assert losses[name] == pytest.approx(expected.item(), rel=1e-3, abs=1e-5), name


def test_sacs_targets_follow_the_critics() -> None:
    agent, second = make_agent(sac_atari), make_agent(sac_atari)
    second.initialize(np.random.default_rng(9))
    settings = sac_atari.Config()
    feed = ReplayFeed(FakeReplay(), ROWS, 5, COMPUTE)
    learner = DiscreteSacLearner(
        agent.parameters, second.critics(second.parameters), feed, SAC_LOSSES, settings, COMPUTE
    )
    learner.update_target(0.25)
    name = "qf2.head.weight"
    expected = 0.75 * second.parameters[name] + 0.25 * agent.parameters[name]
    np.testing.assert_allclose(learner.optimizer_state()[f"target.{name}"], expected, rtol=1e-5)
    learner.update_target(1)
    np.testing.assert_array_equal(learner.optimizer_state()[f"target.{name}"], agent.parameters[name])


def test_models_have_the_keys_of_cleanrls_in_its_order() -> None:
    convolved = [f"{number}.{kind}" for number in (0, 2, 4) for kind in ("weight", "bias")]
    c51 = make_agent(c51_atari, ATOMS, -3, 3).state_dict()
    layers = [f"network.{number}.{kind}" for number in (7, 9) for kind in ("weight", "bias")]
    assert list(c51) == ["atoms", *(f"network.{name}" for name in convolved), *layers]
    rainbow = make_agent(rainbow_atari, ATOMS, -3, 3).state_dict()
    parts = ("weight_mu", "weight_sigma", "bias_mu", "bias_sigma", "weight_epsilon", "bias_epsilon")
    heads = [f"{head}.{number}.{part}" for head in rainbow_atari.HEADS for number in (0, 2) for part in parts]
    assert list(rainbow) == ["support", *(f"network.{name}" for name in convolved), *heads]
    assert rainbow["advantage_head.2.weight_epsilon"].shape == (ACTIONS * ATOMS, 5)
    sac = make_agent(sac_atari).state_dict()
    actor = [name.removeprefix("actor.") for name in sac if name.startswith("actor.")]
    layers = [f"{name}.{kind}" for name in ("fc1", "fc_logits") for kind in ("weight", "bias")]
    assert actor == [*(f"conv.{name}" for name in convolved), *layers]
    assert {"qf1.fc_q.weight", "qf2.fc1.bias", "log_alpha"} <= sac.keys()
