from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch

from cleanrl_worker.algorithms import c51, dqn, pqn, qrdqn
from cleanrl_worker.learners.architecture import Activation, Architecture
from cleanrl_worker.learners.perceptron import ForwardPass
from cleanrl_worker.learners.value_kernels import ReturnBatch, q_lambda_returns

MODULES: dict[str, Any] = {"dqn": dqn, "c51": c51, "pqn": pqn}
EACH = pytest.mark.parametrize("name", sorted(MODULES))
ROWS = 64
ARCHITECTURE = Architecture((24, 16))


def config_of(name: str, **changes: Any) -> Any:
    settings: dict[str, Any] = {"batch_size": ROWS, "learning_starts": 0}
    if name == "c51":
        # Narrow enough that some targets are outside.
        settings |= {"n_atoms": 11, "v_min": -2.0, "v_max": 3.0}
    if name == "pqn":
        settings = {"num_envs": 1, "num_steps": ROWS, "num_minibatches": 1}
    return MODULES[name].Config(**{**settings, **changes})


def make_agents(name: str, config: Any, architecture: Architecture = ARCHITECTURE) -> tuple[Any, Any]:
    """Make an agent and a different target."""
    atoms = {"n_atoms": config.n_atoms, "v_min": config.v_min, "v_max": config.v_max} if name == "c51" else {}
    agents = [MODULES[name].Agent(5, 3, architecture, **atoms) for _ in range(2)]
    rng = np.random.default_rng(1)
    for agent in agents:
        agent.network.initialize(rng)
        agent.parameters += 0.3 * rng.standard_normal(agent.parameters.shape, np.float32)
    return agents[0], agents[1]


def make_learner(name: str, config: Any, agent: Any, target: Any) -> Any:
    return MODULES[name]._learner(config, agent) if name == "pqn" else MODULES[name]._learner(config, agent, target)


def make_batch(name: str, seed: int = 2) -> Any:
    rng = np.random.default_rng(seed)
    observations, next_values = rng.standard_normal((2, ROWS, 5)).astype(np.float32)
    actions = rng.integers(3, size=ROWS)
    rewards = rng.standard_normal(ROWS).astype(np.float32)
    if name == "pqn":
        return ReturnBatch(observations, actions, 3 * rewards)
    return SimpleNamespace(
        observations=observations,
        actions=actions[:, None],
        rewards=rewards.round(),  # so that some targets are exactly on C51's atoms
        terminals=(rng.random(ROWS) < 0.3).astype(np.float32),
        next_observations=next_values,
    )


@EACH
@pytest.mark.parametrize("changes", [{}, {"gamma": 1.0}])
def test_the_hand_written_gradient_equals_autograd(name: str, changes: dict[str, Any]) -> None:
    config = config_of(name, **changes)
    agent, target = make_agents(name, config)
    batch = make_batch(name)
    reference = make_learner(name, config.model_copy(update={"backend": "torch", "cuda": False}), agent, target)
    kernel = make_learner(name, config, agent, target)

    reference.update(batch, learning_rate=0.0)
    assert kernel.update(batch, learning_rate=0.0)

    result = agent.network.named_arrays(kernel.gradient.views)
    for key, parameter in reference.module.named_parameters():
        np.testing.assert_allclose(result[key], parameter.grad.numpy(), atol=2e-6, rtol=2e-4, err_msg=key)
    assert kernel.losses() == pytest.approx(reference.losses(), rel=1e-4)


@EACH
@pytest.mark.parametrize("activation", ["relu", "tanh"])
@pytest.mark.parametrize("hidden", [(32,), (24, 40, 16)])
def test_steps_follow_torchs_optimizer_and_targets_follow_the_network(
    name: str, hidden: tuple[int, ...], activation: Activation
) -> None:
    changes = {"max_grad_norm": 0.5} if name == "pqn" else {}
    config = config_of(name, **changes)
    (ours, our_target), (theirs, their_target) = (
        make_agents(name, config, Architecture(hidden, activation)) for _ in range(2)
    )
    kernel = make_learner(name, config, ours, our_target)
    reference = make_learner(name, config.model_copy(update={"backend": "torch", "cuda": False}), theirs, their_target)
    for step in range(12):  # RAdam switches its formula at the sixth
        for learner in (kernel, reference):
            assert learner.update(make_batch(name, seed=step), 1e-3 / (step + 1))
            if name != "pqn" and step % 4 == 3:
                learner.update_target(0.3 if step < 8 else 1)
            learner.sync_networks()
        assert kernel.losses() == pytest.approx(reference.losses(), rel=1e-3)

    assert kernel.count == reference.count == 12
    np.testing.assert_allclose(ours.parameters, theirs.parameters, atol=2e-5)
    np.testing.assert_allclose(our_target.parameters, their_target.parameters, atol=2e-5)
    np.testing.assert_allclose(kernel.first_moment.flat, reference.first_moment.flat, atol=1e-5)
    np.testing.assert_allclose(kernel.second_moment.flat, reference.second_moment.flat, atol=1e-6)
    if name != "pqn":
        assert (our_target.parameters == ours.parameters).all()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@EACH
def test_on_a_gpu_captured_updates_equal_the_kernels(name: str) -> None:
    config = config_of(name)
    (ours, our_target), (theirs, their_target) = (make_agents(name, config) for _ in range(2))
    kernel = make_learner(name, config, ours, our_target)
    captured = make_learner(name, config.model_copy(update={"backend": "torch"}), theirs, their_target)
    assert captured.compute.uses_graphs
    for step in range(12):
        for learner in (kernel, captured):
            assert learner.update(make_batch(name, seed=step), 1e-3 / (step + 1))
            if name != "pqn" and step % 4 == 3:
                learner.follow(0.3)
    captured.sync_networks()
    np.testing.assert_allclose(ours.parameters, theirs.parameters, atol=2e-5)
    np.testing.assert_allclose(kernel.second.flat, captured.second.flat, atol=1e-6)


@EACH
def test_the_network_in_numpy_and_its_module_give_the_same(name: str) -> None:
    agent, _ = make_agents(name, config_of(name))
    observations = np.random.default_rng(4).standard_normal((6, 5), np.float32)
    with torch.no_grad():
        expected = agent.module().network(torch.from_numpy(observations)).numpy()
    np.testing.assert_allclose(agent.network(observations), expected, atol=1e-5)
    one_by_one = ForwardPass(agent.network, 1)
    for row, outputs in zip(observations, expected, strict=True):
        np.testing.assert_allclose(one_by_one(row[None])[:, 0], outputs, atol=1e-5)


def test_state_dicts_have_cleanrls_keys_in_its_order_and_torchs_layout() -> None:
    assert [(key, part.shape) for key, part in dqn.Agent(4, 2).state_dict().items()] == [
        ("network.0.weight", (120, 4)), ("network.0.bias", (120,)),
        ("network.2.weight", (84, 120)), ("network.2.bias", (84,)),
        ("network.4.weight", (2, 84)), ("network.4.bias", (2,)),
    ]  # fmt: skip
    assert [(key, part.shape) for key, part in c51.Agent(4, 2).state_dict().items()] == [
        ("atoms", (101,)),
        ("network.0.weight", (120, 4)), ("network.0.bias", (120,)),
        ("network.2.weight", (84, 120)), ("network.2.bias", (84,)),
        ("network.4.weight", (202, 84)), ("network.4.bias", (202,)),
    ]  # fmt: skip
    assert list(pqn.Agent(4, 2).state_dict()) == list(pqn.Agent(4, 2).module().state_dict())


@EACH
def test_a_state_dict_survives_a_round_trip(name: str) -> None:
    first, second = make_agents(name, config_of(name))
    second.load_state_dict(first.state_dict())
    assert (first.parameters == second.parameters).all()
    state = first.state_dict()
    with pytest.raises(ValueError, match="expected"):
        first.load_state_dict({**state, "network.0.weight": state["network.0.weight"][:1]})


def test_initial_weights_follow_torchs_distribution_and_pqns_are_orthogonal() -> None:
    network = dqn.Agent(4, 2).network
    network.initialize(np.random.default_rng(0))
    for key, inputs in (("network.0", 4), ("network.2", 120), ("network.4", 84)):
        state = network.named_arrays(network.parameters)
        for part in (state[f"{key}.weight"], state[f"{key}.bias"]):
            assert np.abs(part).max() <= inputs**-0.5
        assert state[f"{key}.weight"].std() == pytest.approx(inputs**-0.5 / 3**0.5, rel=0.1)
    normed = pqn.Agent(4, 2).network
    normed.initialize_orthogonal(np.random.default_rng(0))
    state = normed.named_arrays(normed.parameters)
    weight = state["network.3.weight"].astype(float)
    np.testing.assert_allclose(weight @ weight.T, 2 * np.eye(84), atol=1e-5)
    assert (state["network.3.bias"] == 0).all()
    assert (state["network.4.weight"] == 1).all()


@EACH
def test_a_gradient_that_is_not_finite_changes_nothing(name: str) -> None:
    config = config_of(name)
    agent, target = make_agents(name, config)
    learner = make_learner(name, config, agent, target)
    previous = agent.parameters.copy()
    batch = make_batch(name)
    batch.observations[3] = np.nan
    assert not learner.update(batch, 1e-3)
    assert (agent.parameters == previous).all()
    assert learner.count == 0
    assert not np.isfinite(list(learner.losses().values())).all()


@EACH
def test_torch_reports_the_first_update_that_was_not_finite(name: str) -> None:
    config = config_of(name, backend="torch", cuda=False)
    learner = make_learner(name, config, *make_agents(name, config))
    for step in range(8):
        batch = make_batch(name, seed=step)
        if step == 3:
            batch.observations[5] = np.nan
        assert learner.update(batch, 1e-3)
        if step < 3:
            assert learner.first_non_finite() is None
    assert learner.first_non_finite() == (4, list(learner.losses()))


@pytest.mark.parametrize("terminal", [0.0, 1.0])
@pytest.mark.parametrize("reward", [0.0, 0.7, -1.25, 9.0, -9.0])
def test_the_projection_keeps_the_mass_and_the_mean_of_what_lies_within_the_bounds(
    reward: float, terminal: float
) -> None:
    config = config_of("c51", gamma=0.9)
    agent, target = make_agents("c51", config)
    kernel = make_learner("c51", config, agent, target)
    batch = make_batch("c51")
    batch.rewards[...], batch.terminals[...] = reward, terminal
    kernel.update(batch, 0.0)

    np.testing.assert_allclose(kernel._targets.sum(0), 1, atol=1e-5)
    assert (kernel._targets >= -1e-6).all()
    logits = target.network(batch.next_observations).T.reshape(3, 11, ROWS)
    probs = np.exp(logits) / np.exp(logits).sum(1, keepdims=True)
    best = probs[(agent.atoms @ probs).argmax(0), :, np.arange(ROWS)]
    moved = np.clip(reward + 0.9 * (1 - terminal) * agent.atoms, -2, 3)
    np.testing.assert_allclose(agent.atoms @ kernel._targets, best @ moved, atol=1e-4)


def test_q_lambda_returns_mix_rewards_with_the_best_value() -> None:
    rng = np.random.default_rng(5)
    rewards, values = rng.standard_normal((6, 2)), rng.standard_normal((6, 2)).astype(np.float32)
    dones = np.zeros((6, 2), bool)
    dones[2, 0] = dones[5, 1] = True
    result = q_lambda_returns(rewards, values, dones, 0.9, 0.8)
    for env in range(2):
        future = values[5, env]
        for t in reversed(range(6)):
            mixed = future if t == 5 else 0.8 * future + 0.2 * values[t, env]
            future = rewards[t, env] + (0.0 if dones[t, env] else 0.9 * mixed)
            assert result[t, env] == pytest.approx(future, abs=1e-5)


def test_c51s_reference_is_the_papers_projection_atom_by_atom() -> None:
    config = config_of("c51")
    agent, target = make_agents("c51", config)
    batch = make_batch("c51")
    learner = make_learner("c51", config.model_copy(update={"backend": "torch", "cuda": False}), agent, target)
    learner.update(batch, learning_rate=0.0)

    atoms, gap = agent.atoms.astype(float), 0.5
    next_values = np.exp(target.network(batch.next_observations).astype(float)).reshape(ROWS, 3, 11)
    next_values /= next_values.sum(2, keepdims=True)
    present = np.exp(agent.network(batch.observations).astype(float)).reshape(ROWS, 3, 11)
    present /= present.sum(2, keepdims=True)
    total = 0.0
    for row in range(ROWS):
        best = next_values[row, (next_values[row] @ atoms).argmax()]
        expected = np.zeros(11)
        for place, mass in zip(atoms, best, strict=True):
            moved = np.clip(batch.rewards[row] + config.gamma * (1 - batch.terminals[row]) * place, -2.0, 3.0)
            expected += mass * np.clip(1 - np.abs(moved - atoms) / gap, 0, 1)
        logs = np.log(np.clip(present[row, batch.actions[row, 0]], 1e-5, 1 - 1e-5))
        total -= float(expected @ logs)
    assert learner.losses()["loss"] == pytest.approx(total / ROWS, rel=1e-4)


def test_qrdqns_loss_is_the_papers_quantile_by_quantile() -> None:
    config = qrdqn.Config(batch_size=ROWS, n_quantiles=4, cuda=False)
    agents = [qrdqn.Agent(5, 3, ARCHITECTURE, 4) for _ in range(2)]
    for seed, agent in enumerate(agents):
        agent.network.initialize(np.random.default_rng(seed))
        agent.parameters *= 3  # so that errors are on both sides of the Huber loss's threshold
    batch = make_batch("qrdqn")
    learner = qrdqn._learner(config, *agents)
    learner.update(batch, learning_rate=0.0)

    present, following = (
        agent.network(observations).astype(float).reshape(ROWS, 3, 4)
        for agent, observations in zip(agents, (batch.observations, batch.next_observations), strict=True)
    )
    total, sizes = 0.0, []
    for row in range(ROWS):
        best = following[row, following[row].mean(1).argmax()]
        samples = batch.rewards[row] + config.gamma * (1 - batch.terminals[row]) * best
        for fraction, quantile in zip((0.125, 0.375, 0.625, 0.875), present[row, batch.actions[row, 0]], strict=True):
            for sample in samples:
                error = abs(sample - quantile)
                sizes.append(error)
                huber = 0.5 * error**2 if error <= 1 else error - 0.5
                total += (fraction if sample > quantile else 1 - fraction) * huber / 4
    assert min(sizes) < 1 < max(sizes)
    assert learner.losses()["loss"] == pytest.approx(total / ROWS, rel=1e-4)
    actions = present[np.arange(ROWS), batch.actions[:, 0]]
    assert learner.losses()["q_values"] == pytest.approx(actions.mean(), rel=1e-4)
