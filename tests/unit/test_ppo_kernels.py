from __future__ import annotations

import dataclasses
import functools
import itertools
from types import SimpleNamespace
from typing import Any, get_args

import numpy as np
import pytest
import torch

from cleanrl_worker.algorithms import a2c, ppo, ppo_continuous_action
from cleanrl_worker.learners import ppo_kernels
from cleanrl_worker.learners.architecture import Activation, Architecture
from cleanrl_worker.learners.autograd_learners import PpoAutogradLearner
from cleanrl_worker.learners.ppo_kernels import RolloutBatch
from cleanrl_worker.learners.ppo_network import PpoActor
from cleanrl_worker.learners.torch_backend import TorchContext

COUNTS = [3, 2, 4]
"""The sizes of several independent choices."""
CASES = [("ppo", 5, 3), ("multi", 5, sum(COUNTS)), ("ppo_continuous_action", 5, 2)]
MULTI = SimpleNamespace(Agent=ppo.Agent, Config=ppo.Config, loss=functools.partial(ppo.loss, counts=COUNTS))
MODULES: dict[str, Any] = {"ppo": ppo, "multi": MULTI, "ppo_continuous_action": ppo_continuous_action}
KERNELS: dict[str, Any] = {
    "ppo": ppo_kernels.CategoricalKernel,
    "multi": functools.partial(ppo_kernels.MultiCategoricalKernel, counts=COUNTS),
    "ppo_continuous_action": ppo_kernels.GaussianKernel,
}


def make_agent(
    name: str, inputs: int, outputs: int, hidden: tuple[int, ...] = (64, 64), activation: Activation = "tanh"
) -> Any:
    agent = MODULES[name].Agent(inputs, outputs, Architecture(hidden, activation))
    rng = np.random.default_rng(1)
    agent.network.initialize(rng)
    agent.parameters += 0.1 * rng.standard_normal(agent.parameters.shape, np.float32)
    return agent


def joint_distribution(logits: Any) -> Any:
    """Return the probabilities of all combinations of choices [rows, product of counts], by their definition."""
    first, second, third = (torch.softmax(part, 1) for part in logits.split(COUNTS, 1))
    return torch.einsum("ra,rb,rc->rabc", first, second, third).flatten(1)


def joint_index(actions: Any) -> Any:
    return torch.from_numpy(np.ravel_multi_index(tuple(np.asarray(actions).T), COUNTS))


def test_several_choices_are_one_choice_of_their_combination() -> None:
    """The loss is PPO's with the categorical distribution over all combinations."""
    agent = make_agent("multi", 5, sum(COUNTS))
    batch, config = make_batch("multi", agent, 64), settings("multi", ent_coef=0.05)
    tensors = SimpleNamespace(**{part: torch.from_numpy(values) for part, values in vars(batch).items()})
    loss, metrics = MULTI.loss(agent.module(), tensors, config)
    module = agent.module()
    combined = SimpleNamespace(**{**vars(tensors), "actions": joint_index(batch.actions)})
    logits = joint_distribution(module.actor(tensors.observations)).log()
    expected, expected_metrics = ppo.categorical_loss(
        logits, module.critic(tensors.observations)[:, 0], combined, config
    )
    torch.testing.assert_close(loss, expected)
    torch.testing.assert_close(list(metrics), list(expected_metrics))


def make_batch(name: str, agent: Any, rows: int, spread: float = 0.4) -> RolloutBatch:
    """Make a batch whose old log-probabilities and values are near the current ones, so that some rows are clipped."""
    rng = np.random.default_rng(2)
    observations = rng.standard_normal((rows, agent.network.inputs), np.float32)
    module = agent.module()
    with torch.no_grad():
        inputs = torch.from_numpy(observations)
        values = module.critic(inputs)[:, 0].numpy()
        if name == "ppo":
            actions: Any = rng.integers(agent.network.outputs, size=rows)
            every = torch.log_softmax(module.actor(inputs), 1).numpy()
            log_probs = every[np.arange(rows), actions]
        elif name == "multi":
            actions = rng.integers(COUNTS, size=(rows, len(COUNTS)))
            log_probs = joint_distribution(module.actor(inputs))[torch.arange(rows), joint_index(actions)].log().numpy()
        else:
            actions = rng.standard_normal((rows, agent.network.outputs), np.float32)
            normal = torch.distributions.Normal(module.actor_mean(inputs), module.actor_logstd.exp())
            log_probs = (
                normal.log_prob(  # type: ignore[no-untyped-call]
                    torch.from_numpy(actions)
                )
                .sum(1)
                .numpy()
            )
    return RolloutBatch(
        observations=observations,
        actions=actions,
        log_probs=log_probs + spread * rng.standard_normal(rows, np.float32),
        advantages=2 * rng.standard_normal(rows, np.float32) + 1,
        returns=rng.standard_normal(rows, np.float32),
        values=values + spread * rng.standard_normal(rows, np.float32),
    )


def settings(name: str, **changes: Any) -> Any:
    return MODULES[name].Config(num_envs=1, num_steps=64, num_minibatches=1, **changes)


@pytest.mark.parametrize(("name", "inputs", "outputs"), CASES)
@pytest.mark.parametrize(
    ("clip_vloss", "norm_adv", "ent_coef"), itertools.product((True, False), (True, False), (0, 0.05))
)
def test_the_hand_written_gradient_equals_autograd(
    name: str, inputs: int, outputs: int, clip_vloss: bool, norm_adv: bool, ent_coef: float
) -> None:
    agent = make_agent(name, inputs, outputs)
    batch = make_batch(name, agent, 64)
    config = settings(name, clip_vloss=clip_vloss, norm_adv=norm_adv, ent_coef=ent_coef, max_grad_norm=1e9, vf_coef=0.7)
    kernel = KERNELS[name](agent.network, 64, config)
    module = agent.module()

    tensors = SimpleNamespace(**{part: torch.from_numpy(values) for part, values in vars(batch).items()})
    loss, metrics = MODULES[name].loss(module, tensors, config)
    loss.backward()
    kernel.begin_update(learning_rate=0.0)
    kernel.run_epoch(batch, np.arange(64))

    result = agent.network.named_arrays(kernel.gradient)
    for key, parameter in module.named_parameters():
        np.testing.assert_allclose(result[key], parameter.grad.numpy(), atol=2e-6, rtol=2e-4, err_msg=key)
    np.testing.assert_allclose(kernel.losses(), [float(figure) for figure in metrics], atol=2e-6, rtol=2e-5)
    assert 0.1 < kernel.losses().clipfrac < 0.9


@pytest.mark.parametrize("name", ["ppo", "ppo_continuous_action"])
@pytest.mark.parametrize("backend", ["numpy", "torch"])
def test_a2cs_step_follows_the_policy_gradient(name: str, backend: Any) -> None:
    """Its loss: advantages times log-probabilities, the squared error of the values, and the entropy."""
    agent, reference = make_agent(name, 5, 3), make_agent(name, 5, 3).module()
    batch = make_batch(name, agent, 64, spread=0.0)
    config = a2c.Config(num_envs=1, num_steps=64, ent_coef=0.05, max_grad_norm=0.3, backend=backend, cuda=False)
    kind = a2c.DiscreteTraining if name == "ppo" else a2c.ContinuousTraining
    learner = kind.make_learner(config, agent)
    learner.begin_update(1e-2)
    learner.run_epoch(batch, np.arange(64))
    learner.sync_networks()

    observations, actions = torch.from_numpy(batch.observations), torch.from_numpy(batch.actions)
    if name == "ppo":
        policy: Any = torch.distributions.Categorical(logits=reference.actor(observations))
    else:
        normal = torch.distributions.Normal(reference.actor_mean(observations), reference.actor_logstd.exp())
        policy = torch.distributions.Independent(normal, 1)
    error = reference.critic(observations)[:, 0] - torch.from_numpy(batch.returns)
    gain = policy.log_prob(actions) * torch.from_numpy(batch.advantages)
    (0.5 * (error**2).mean() - gain.mean() - 0.05 * policy.entropy().mean()).backward()
    torch.nn.utils.clip_grad_norm_(reference.parameters(), 0.3)
    torch.optim.Adam(reference.parameters(), 1e-2, eps=1e-5).step()
    for key, expected in reference.state_dict().items():
        np.testing.assert_allclose(agent.state_dict()[key], expected, atol=2e-5, err_msg=key)
    assert learner.losses().entropy == pytest.approx(policy.entropy().mean().item(), rel=1e-5)


@pytest.mark.parametrize(("name", "inputs", "outputs"), CASES)
@pytest.mark.parametrize("activation", ["tanh", "relu"])
@pytest.mark.parametrize("hidden", [(32,), (24, 40, 16)])
def test_steps_with_clipped_norm_follow_torchs_adam(
    name: str, inputs: int, outputs: int, hidden: tuple[int, ...], activation: Activation
) -> None:
    ours, theirs = (make_agent(name, inputs, outputs, hidden, activation) for _ in range(2))
    batch = make_batch(name, ours, 256)
    config = settings(name, max_grad_norm=0.5)
    kernel = KERNELS[name](ours.network, 64, config)
    reference = PpoAutogradLearner(
        theirs.network, theirs.module(), MODULES[name].loss, 64, config, TorchContext.set_up(cuda=False)
    )
    rng = np.random.default_rng(3)
    for rate in (1e-3, 5e-4, 2e-4):
        order = rng.permutation(256)
        for learner in (kernel, reference):
            learner.begin_update(rate)
            learner.run_epoch(batch, order)
            learner.sync_networks()
        np.testing.assert_allclose(kernel.losses(), reference.losses(), atol=1e-5, rtol=1e-3)

    assert kernel.count == reference.count == 12
    np.testing.assert_allclose(ours.parameters, theirs.parameters, atol=2e-5)
    np.testing.assert_allclose(kernel.first_moment.flat, reference.first_moment.flat, atol=1e-5)
    np.testing.assert_allclose(kernel.second_moment.flat, reference.second_moment.flat, atol=1e-6)


@pytest.mark.parametrize(("name", "inputs", "outputs"), CASES)
@pytest.mark.parametrize("activation", get_args(Activation))
def test_the_network_in_numpy_and_its_module_give_the_same(
    name: str, inputs: int, outputs: int, activation: Activation
) -> None:
    agent = make_agent(name, inputs, outputs, activation=activation)
    module = agent.module()
    observations = np.random.default_rng(4).standard_normal((6, inputs), np.float32)
    out = np.empty((6, outputs), np.float32)
    actor = PpoActor(agent.network, 6)
    actor.refresh()
    actor(observations, out)
    with torch.no_grad():
        head = module.actor_mean if name == "ppo_continuous_action" else module.actor
        np.testing.assert_allclose(out, head(torch.from_numpy(observations)), atol=1e-6)
        np.testing.assert_allclose(
            agent.network.critic_values(observations), module.critic(torch.from_numpy(observations))[:, 0], atol=1e-6
        )


def test_the_state_dict_has_cleanrls_keys_and_torchs_layout() -> None:
    discrete = ppo.Agent(4, 2).state_dict()
    assert {key: part.shape for key, part in discrete.items()} == {
        "critic.0.weight": (64, 4), "critic.0.bias": (64,), "critic.2.weight": (64, 64), "critic.2.bias": (64,),
        "critic.4.weight": (1, 64), "critic.4.bias": (1,),
        "actor.0.weight": (64, 4), "actor.0.bias": (64,), "actor.2.weight": (64, 64), "actor.2.bias": (64,),
        "actor.4.weight": (2, 64), "actor.4.bias": (2,),
    }  # fmt: skip
    continuous = ppo_continuous_action.Agent(4, 2).state_dict()
    assert continuous["actor_logstd"].shape == (1, 2)
    assert continuous["actor_mean.4.weight"].shape == (2, 64)


def test_a_state_dict_survives_a_round_trip() -> None:
    first, second = make_agent("ppo_continuous_action", 3, 2), make_agent("ppo_continuous_action", 3, 2)
    second.parameters[...] = 0
    second.load_state_dict(first.state_dict())
    assert (first.parameters == second.parameters).all()
    with pytest.raises(ValueError, match="expected"):
        ppo_continuous_action.Agent(4, 2).load_state_dict(first.state_dict())


def test_first_weights_are_orthogonal_with_the_papers_gains() -> None:
    network = ppo.Agent(4, 2).network
    network.initialize(np.random.default_rng(0))
    state = network.named_arrays(network.parameters)
    for key, gain in (("critic.2.weight", 2**0.5), ("actor.4.weight", 0.01), ("critic.4.weight", 1.0)):
        weight = state[key].astype(float)
        np.testing.assert_allclose(weight @ weight.T, gain**2 * np.eye(len(weight)), atol=1e-6)
    first = state["actor.0.weight"].astype(float)
    np.testing.assert_allclose(first.T @ first, 2 * np.eye(4), atol=1e-5)


def test_advantages_are_discounted_sums_of_td_errors() -> None:
    rng = np.random.default_rng(5)
    rewards, values = rng.standard_normal((6, 2)), rng.standard_normal((7, 2)).astype(np.float32)
    dones = np.zeros((6, 2), bool)
    dones[2, 0] = dones[5, 1] = True
    result = ppo_kernels.gae_advantages(rewards, values, dones, 0.9, 0.8)
    for env in range(2):
        for begin in range(6):
            total, weight = 0.0, 1.0
            for t in range(begin, 6):
                after = 0.0 if dones[t, env] else 0.9 * values[t + 1, env]
                total += weight * (rewards[t, env] + after - values[t, env])
                weight *= 0.72
                if dones[t, env]:
                    break
            assert result[begin, env] == pytest.approx(total, abs=1e-5)


@pytest.mark.parametrize(("name", "inputs", "outputs"), CASES)
def test_a_gradient_that_is_not_finite_changes_nothing(name: str, inputs: int, outputs: int) -> None:
    agent = make_agent(name, inputs, outputs)
    batch = make_batch(name, agent, 128)
    previous = agent.parameters.copy()
    returns = batch.returns.copy()
    returns[3] = np.nan
    kernel = KERNELS[name](agent.network, 64, settings(name))
    kernel.begin_update(1e-3)
    kernel.run_epoch(dataclasses.replace(batch, returns=returns), np.arange(128))
    assert (agent.parameters == previous).all()
    assert np.isnan(kernel.losses().value_loss)
