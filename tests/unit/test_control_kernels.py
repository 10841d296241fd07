from __future__ import annotations

import functools
import itertools
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cleanrl_worker.algorithms import ddpg_continuous_action as ddpg
from cleanrl_worker.algorithms import sac_continuous_action as sac
from cleanrl_worker.algorithms import td3_continuous_action as td3
from cleanrl_worker.algorithms import tqc
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.control_kernels import ActorCriticKernel, DeterministicKernel, SacKernel, ScalarAdam
from cleanrl_worker.learners.perceptron import ActorCriticNetworks
from cleanrl_worker.learners.torch_backend import TorchContext
from cleanrl_worker.learners.torch_control import (
    ActorCriticLosses,
    ContinuousSacLearner,
    DeterministicActorLearner,
    StackedNetworks,
    TorchActorCriticLearner,
    TransitionTensors,
)
from cleanrl_worker.replay.buffers import Replay

OBSERVATIONS, ACTIONS, ROWS = 5, 3, 32
SCALE, BIAS = np.array([0.5, 1.0, 2.0], np.float32), np.array([0.0, 0.1, -0.3], np.float32)
SETTINGS = SimpleNamespace(batch_size=ROWS, gamma=0.9, tau=0.1)
CPU = torch.device("cpu")
ARCHITECTURE = Architecture((16, 12), "relu")


class RecordingGenerator:
    """A random generator that records its samples."""

    def __init__(self) -> None:
        self._rng = np.random.default_rng(3)
        self.draws: list[torch.Tensor] = []

    def standard_normal(self, dtype: Any, out: Any) -> None:
        self._rng.standard_normal(dtype=dtype, out=out)
        self.draws.append(torch.tensor(out.T))


def make_networks(
    heads: tuple[str, ...],
    critics: int,
    has_target_actor: bool,
    architecture: Architecture = ARCHITECTURE,
    critic_outputs: int = 1,
) -> ActorCriticNetworks:
    networks = ActorCriticNetworks(
        OBSERVATIONS, ACTIONS, architecture, heads, critics, has_target_actor, critic_outputs
    )
    rng = np.random.default_rng(1)
    for part in (*networks.trained_networks.values(), *networks.target_networks):
        part.initialize(rng)
    return networks


def make_replay() -> Replay:
    rng = np.random.default_rng(2)
    replay = Replay(100, 2, (OBSERVATIONS, np.float32), (ACTIONS, np.float32), seed=1)
    replay.start(rng.normal(size=(2, OBSERVATIONS)))
    for _ in range(40):
        replay.add(rng.uniform(-1, 1, (2, ACTIONS)), rng.normal(size=2), [], rng.normal(size=(2, OBSERVATIONS)))
    replay._terminals[:, ::5] = 1
    return replay


def sac_kernel(networks: ActorCriticNetworks, rates: tuple[float, float], rng: Any, **more: Any) -> SacKernel:
    settings = {"policy_steps": 1, "alpha": 0.2, "log_alpha": np.full(1, -0.5, np.float32), **more}
    return SacKernel(networks, make_replay(), SETTINGS, rates, SCALE, BIAS, rng, **settings)


def td3_kernel(
    networks: ActorCriticNetworks, rates: tuple[float, float], rng: Any, noise: float = 0.2
) -> DeterministicKernel:
    return DeterministicKernel(
        networks, make_replay(), SETTINGS, rates, SCALE, BIAS, rng, policy_noise=noise, noise_clip=0.3
    )


def batch_tensors(kernel: ActorCriticKernel) -> TransitionTensors:
    batch = kernel.batch
    return TransitionTensors(
        *(
            torch.tensor(part)
            for part in (batch.observations, batch.actions, batch.rewards, batch.terminals, batch.next_observations)
        )
    )


def as_stacks(networks: ActorCriticNetworks, draws: list[torch.Tensor]) -> SimpleNamespace:
    """Return what a torch learner gives to its losses; noise is taken from `draws`."""
    waiting = iter(draws)
    actors = {"actor": networks.actor, "target_actor": networks.target_actor}
    return SimpleNamespace(
        **{name: StackedNetworks.from_networks([part], CPU, name == "actor") for name, part in actors.items() if part},
        critics=StackedNetworks.from_networks(networks.critics, CPU, True),
        targets=StackedNetworks.from_networks(networks.targets, CPU, False),
        scale=torch.tensor(SCALE),
        bias=torch.tensor(BIAS),
        log_alpha=torch.tensor([-0.5]),
        sample_noise=lambda: next(waiting),
    )


def assert_gradient(loss: torch.Tensor, stack: StackedNetworks, gradients: list[Any]) -> None:
    slopes = torch.autograd.grad(loss, stack.tensors, retain_graph=True)
    for index in range(len(stack.layers)):
        weight, bias = slopes[2 * index], slopes[2 * index + 1]
        for number, views in enumerate(gradients):
            np.testing.assert_allclose(views.layers[index][:, :-1], weight[number].T, rtol=2e-4, atol=2e-7)
            np.testing.assert_allclose(views.layers[index][:, -1], bias[number, 0], rtol=2e-4, atol=2e-7)


EACH_ARCHITECTURE = pytest.mark.parametrize(
    "architecture", [ARCHITECTURE, Architecture((12, 10, 8), "relu"), Architecture((12, 10, 8), "tanh")], ids=str
)


@EACH_ARCHITECTURE
def test_hand_written_gradients_of_sac_equal_autograd(architecture: Architecture) -> None:
    networks, rng = make_networks(("fc_mean", "fc_logstd"), 2, False, architecture), RecordingGenerator()
    kernel = sac_kernel(networks, (0.0, 0.0), rng)
    assert kernel.update(make_replay(), True, False)
    rows, alpha = batch_tensors(kernel), torch.tensor(-0.5).exp()
    stacks = as_stacks(networks, rng.draws)
    with torch.no_grad():
        td_targets = sac.td_targets(stacks, rows, 0.9)
    loss, errors, values = ddpg.critic_loss(stacks, rows, td_targets)
    assert_gradient(loss, stacks.critics, [critic.views for critic in kernel.critics])
    outputs = stacks.actor(rows.observations)[0]
    actor_loss = sac.actor_loss(stacks, rows, outputs)
    assert_gradient(actor_loss, stacks.actor, [kernel.actor.views])
    alpha_loss = sac.alpha_loss(stacks, outputs)
    metrics = kernel.losses()
    assert metrics == pytest.approx(
        {
            "qf1_loss": errors[0].item(),
            "qf2_loss": errors[1].item(),
            "qf_loss": errors.mean().item(),
            "qf1_values": values[0].item(),
            "qf2_values": values[1].item(),
            "actor_loss": actor_loss.item(),
            "alpha": alpha.item(),
            "alpha_loss": alpha_loss.item(),
        },
        rel=1e-4,
    )


def test_tqcs_losses_are_the_papers_quantile_by_quantile() -> None:
    config = tqc.Config(n_critics=3, n_quantiles=4, top_quantiles_to_drop=1, gamma=0.9)
    networks = make_networks(("fc_mean", "fc_logstd"), 3, False, critic_outputs=4)
    for critic in networks.target_networks:
        critic.flat *= 3  # so that errors are on both sides of the Huber loss's threshold
    kernel = sac_kernel(make_networks(("fc_mean", "fc_logstd"), 2, False), (0.0, 0.0), RecordingGenerator())
    kernel.update(make_replay(), False, False)
    rows, noise = batch_tensors(kernel), torch.randn(len(kernel.batch.rewards), ACTIONS)
    stacks = as_stacks(networks, [noise] * 3)
    with torch.no_grad():
        td_targets = tqc.td_targets(stacks, rows, config)
        loss, errors, values = tqc.critic_loss(stacks, rows, td_targets)
        outputs = stacks.actor(rows.observations)[0]
        actor_loss = tqc.actor_loss(stacks, rows, outputs)
        next_actions, next_log_probs = sac.sample_squashed_gaussian(
            as_stacks(networks, [noise]), stacks.actor(rows.next_observations)[0]
        )
        actions, log_probs = sac.sample_squashed_gaussian(as_stacks(networks, [noise]), outputs)

    def quantiles(parts: Any, observations: torch.Tensor, actions: torch.Tensor) -> list[Any]:
        inputs = torch.cat([observations, actions], 1).numpy()
        return [part(inputs).astype(float) for part in parts]

    alpha = np.exp(-0.5)
    following = quantiles(networks.targets, rows.next_observations, next_actions)
    present = quantiles(networks.critics, rows.observations, rows.actions)
    expected = np.zeros(3)
    for row in range(len(noise)):
        pooled = sorted(value for critic in following for value in critic[row])[:9]
        factor = 0.9 * (1 - float(rows.terminals[row]))
        samples = [float(rows.rewards[row]) + factor * (z - alpha * float(next_log_probs[row])) for z in pooled]
        np.testing.assert_allclose(td_targets[row], samples, rtol=1e-4, atol=1e-5)
        for number, fraction, sample in itertools.product(range(3), (0.125, 0.375, 0.625, 0.875), samples):
            error = sample - present[number][row, int(fraction * 4)]
            huber = 0.5 * error**2 if abs(error) <= 1 else abs(error) - 0.5
            expected[number] += (fraction if error > 0 else 1 - fraction) * huber / (4 * 9 * len(noise))
    np.testing.assert_allclose(errors, expected, rtol=1e-4)
    assert loss.item() == pytest.approx(expected.sum(), rel=1e-4)
    np.testing.assert_allclose(values, [critic.mean() for critic in present], rtol=1e-4)
    means = np.mean(quantiles(networks.critics, rows.observations, actions), (0, 2))
    assert actor_loss.item() == pytest.approx((alpha * log_probs.numpy() - means).mean(), rel=1e-4)


def test_the_log_probabilities_are_those_of_torchs_distributions() -> None:
    torch.manual_seed(1)
    outputs, noise = 0.3 * torch.randn(7, 2 * ACTIONS), 0.5 * torch.randn(7, ACTIONS)
    stacks = SimpleNamespace(scale=torch.tensor(SCALE), bias=torch.tensor(BIAS), sample_noise=lambda: noise)
    actions, log_probs = sac.sample_squashed_gaussian(stacks, outputs)
    mean, spread = outputs.chunk(2, 1)
    normal = torch.distributions.Normal(mean, (-5 + 3.5 * (torch.tanh(spread) + 1)).exp())
    transforms: Any = [
        torch.distributions.TanhTransform(),
        torch.distributions.AffineTransform(torch.tensor(BIAS), torch.tensor(SCALE)),
    ]
    squashed_normal = torch.distributions.TransformedDistribution(normal, transforms)
    expected = squashed_normal.log_prob(actions).sum(1)  # type: ignore[no-untyped-call]
    torch.testing.assert_close(log_probs, expected, rtol=2e-3, atol=2e-3)


@EACH_ARCHITECTURE
@pytest.mark.parametrize(("critics", "noise"), [(2, 0.2), (1, 0.0)])
def test_hand_written_gradients_of_td3_and_ddpg_equal_autograd(
    critics: int, noise: float, architecture: Architecture
) -> None:
    networks, rng = make_networks(("fc_mu",), critics, True, architecture), RecordingGenerator()
    kernel = td3_kernel(networks, (0.0, 0.0), rng, noise)
    assert kernel.update(make_replay(), True, False)
    rows, stacks = batch_tensors(kernel), as_stacks(networks, rng.draws)
    scale, bias = stacks.scale, stacks.bias
    with torch.no_grad():
        actions = torch.tanh(stacks.target_actor(rows.next_observations)[0]) * scale + bias
        if noise:
            actions = actions + (rng.draws[0] * noise).clamp(-0.3, 0.3) * scale
            actions = actions.clamp(bias - scale, bias + scale)
        next_values = stacks.targets(torch.cat([rows.next_observations, actions], 1)).squeeze(2).amin(0)
        expected = rows.rewards + (1 - rows.terminals) * 0.9 * next_values
        if noise:
            config = td3.Config(gamma=0.9, policy_noise=noise, noise_clip=0.3)
            td_targets = td3.td_targets(stacks, rows, config)
        else:
            td_targets = ddpg.td_targets(stacks, rows, 0.9)
    torch.testing.assert_close(td_targets, expected)
    loss, errors, values = ddpg.critic_loss(stacks, rows, td_targets)
    assert_gradient(loss, stacks.critics, [critic.views for critic in kernel.critics])
    actor_loss = ddpg.actor_loss(stacks, rows)
    assert_gradient(actor_loss, stacks.actor, [kernel.actor.views])
    metrics = kernel.losses()
    assert metrics["qf1_loss"] == pytest.approx(errors[0].item(), rel=1e-4)
    assert metrics["qf1_values"] == pytest.approx(values[0].item(), rel=1e-4)
    assert metrics["actor_loss"] == pytest.approx(actor_loss.item(), rel=1e-4)
    assert ("qf2_loss" in metrics) == (critics == 2)


@pytest.mark.parametrize("name", ["sac", "td3", "ddpg"])
def test_several_updates_in_torch_and_numpy_agree(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    heads = ("fc_mean", "fc_logstd") if name == "sac" else ("fc_mu",)
    critics = 1 if name == "ddpg" else 2
    ours, theirs = (make_networks(heads, critics, name != "sac") for _ in range(2))
    rng = RecordingGenerator()
    compute = TorchContext.set_up(cuda=False)
    more: dict[str, Any]
    learner: TorchActorCriticLearner
    kernel: ActorCriticKernel
    if name == "sac":
        kernel = sac_kernel(ours, (1e-2, 1e-2), rng, policy_steps=2)
        more = {"policy_steps": 2, "alpha": 0.2, "log_alpha": np.full(1, -0.5, np.float32)}
        targets = functools.partial(sac.td_targets, gamma=SETTINGS.gamma)
        losses = ActorCriticLosses(targets, ddpg.critic_loss, sac.actor_loss, sac.alpha_loss)
        learner = ContinuousSacLearner(
            theirs, make_replay(), SETTINGS, (1e-2, 1e-2), SCALE, BIAS, compute, losses, **more
        )
    else:
        noise = 0.2 if name == "td3" else 0.0
        kernel = td3_kernel(ours, (1e-2, 1e-2), rng, noise)
        config = td3.Config(gamma=SETTINGS.gamma, policy_noise=noise, noise_clip=0.3)
        targets = functools.partial(td3.td_targets, config=config)
        losses = ActorCriticLosses(targets, ddpg.critic_loss, ddpg.actor_loss)
        learner = DeterministicActorLearner(theirs, make_replay(), SETTINGS, (1e-2, 1e-2), SCALE, BIAS, compute, losses)
    first, second = make_replay(), make_replay()
    for index in range(6):
        assert kernel.update(first, index % 2 == 0, index % 3 > 0)
    waiting = iter(rng.draws)
    monkeypatch.setattr(torch, "randn", lambda *_, **__: next(waiting))
    for index in range(6):
        assert learner.update(second, index % 2 == 0, index % 3 > 0)
    learner.sync_networks()
    state = theirs.state_dict()
    for key, part in ours.state_dict().items():
        np.testing.assert_allclose(part, state[key], rtol=1e-3, atol=2e-5, err_msg=key)
    assert kernel.losses() == pytest.approx(learner.losses(), rel=1e-3)
    observations = np.ones((2, OBSERVATIONS), np.float32)
    np.testing.assert_allclose(kernel.act(observations), learner.act(observations), atol=1e-4)

    arrays, facts = kernel.optimizer_state()
    other_arrays, other_facts = learner.optimizer_state()
    assert facts == other_facts
    assert {key for key in other_arrays if not key.startswith("torch.")} == arrays.keys()
    for key, moment in arrays.items():
        np.testing.assert_allclose(moment, other_arrays[key], rtol=1e-3, atol=1e-5, err_msg=key)
    kernel.restore(other_arrays, other_facts)
    learner.restore(arrays, facts)
    restored, _ = learner.optimizer_state()
    assert all(np.allclose(restored[key], arrays[key], rtol=1e-6, atol=0) for key in arrays)


def test_names_and_layouts_are_those_of_cleanrls_modules() -> None:
    networks = make_networks(("fc_mean", "fc_logstd"), 2, False)
    state = networks.state_dict()
    assert list(state)[:8] == [
        f"actor.{layer}.{kind}" for layer in ("fc1", "fc2", "fc_mean", "fc_logstd") for kind in ("weight", "bias")
    ]
    assert list(state)[8:14] == [f"qf1.fc{number}.{kind}" for number in (1, 2, 3) for kind in ("weight", "bias")]
    assert state["actor.fc_logstd.weight"].shape == (ACTIONS, 12)
    assert state["qf2_target.fc1.weight"].shape == (16, OBSERVATIONS + ACTIONS)
    fresh = make_networks(("fc_mean", "fc_logstd"), 2, False)
    fresh.initialize(np.random.default_rng(9))
    fresh.load_state_dict(state)
    assert all((part == state[key]).all() for key, part in fresh.state_dict().items())
    with pytest.raises(ValueError, match=r"actor\.fc1\.weight is"):
        fresh.load_state_dict({**state, "actor.fc1.weight": np.zeros((2, 2))})


def test_a_gradient_that_is_not_finite_is_reported_and_changes_nothing() -> None:
    networks = make_networks(("fc_mu",), 1, True)
    kernel = td3_kernel(networks, (1e-2, 1e-2), np.random.default_rng(1), 0.0)
    replay, previous = make_replay(), networks.state_dict()
    replay._rewards[...] = np.nan
    assert not kernel.update(replay, False, False)
    assert all((part == previous[key]).all() for key, part in networks.state_dict().items())


def test_adam_on_a_number_is_torchs() -> None:
    number, tensor = np.full(1, 0.3, np.float32), torch.full((1,), 0.3, requires_grad=True)
    ours, theirs = ScalarAdam(number, 0.01), torch.optim.Adam([tensor], lr=0.01)
    for gradient in (0.5, -2.0, 1.5, 0.1):
        ours(gradient)
        tensor.grad = torch.tensor([gradient])
        theirs.step()
    assert number[0] == pytest.approx(tensor.item(), rel=1e-5)
