"""The learners of all algorithms on synthetic batches, with one interface, for gpu_steps.py.

Each is made by its algorithm's own file from its default settings. Equal settings and equal calls give equal numbers;
`saved` is the content of a checkpoint; a subject that is made from it continues where the other stopped.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

Array = Any
BATCH_COUNT, OBSERVATION_SIZE, ACTION_SIZE = 8, 17, 6


def load_algorithm(name: str, **settings: Any) -> tuple[Any, Any]:
    """Return the algorithm's module and its default settings, with these changes."""
    module = importlib.import_module(f"cleanrl_worker.algorithms.{name}")
    return module, module.Config(**{"backend": "torch", "cuda": True, **settings})


def sample_normal(*shape: int, seed: int = 2) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


class Subject:
    """A learner and its inference."""

    gradient_steps = 1
    """Gradient steps of one call."""
    uses_device_rng: ClassVar[bool] = False
    """Whether its updates draw random numbers on the device."""
    act_in_numpy: Callable[[], object] | None = None
    """The same inference in numpy, if the algorithm has it."""
    learner: Any

    def update(self, index: int) -> None: ...
    def act(self) -> Array: ...
    def set_learning_rate_factor(self, factor: float) -> None: ...
    def update_target(self, tau: float) -> None: ...

    def mutable_tensors(self) -> list[Any]:
        """Return every tensor that updates and inference change, except targets."""
        return list(self.learner._state_tensors())

    def checkpoint_state(self) -> dict[str, Any]:
        raise NotImplementedError


def _optimizer_state(agent: Any, learner: Any) -> dict[str, Any]:
    from cleanrl_worker.algorithms import base

    learner.sync_networks()
    return {
        "weights": agent.state_dict(),
        "arrays": base.optimizer_arrays(agent.network, learner),
        "count": learner.count,
    }


def _restore_optimizer(agent: Any, learner: Any, saved: Mapping[str, Any] | None) -> None:
    from cleanrl_worker.algorithms import base

    if saved is not None:
        base.restore_optimizer(agent.network, learner, saved["arrays"], saved["count"])


class RolloutSubject(Subject):
    """PPO's and RPO's small networks; one call is a pass over a rollout."""

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        from cleanrl_worker.learners.ppo_kernels import RolloutBatch
        from cleanrl_worker.learners.ppo_network import PpoActor

        module, config = load_algorithm(name, **settings)
        size, outputs = (4, 2) if name == "ppo" else (OBSERVATION_SIZE, ACTION_SIZE)
        self.agent = module.Agent(size, outputs)
        self.agent.network.initialize(np.random.default_rng(1))
        if saved is not None:
            self.agent.load_state_dict(saved["weights"])
        self.learner = module.make_learner(config, self.agent)
        _restore_optimizer(self.agent, self.learner, saved)
        total, rows = config.batch_size, config.num_envs
        self.gradient_steps = config.num_minibatches
        self._rate, self._rate_factor = config.learning_rate, 1.0
        chosen = (
            np.random.default_rng(3).integers(outputs, size=total) if name == "ppo" else sample_normal(total, outputs)
        )
        numbers = {
            part: sample_normal(total, seed=seed) for seed, part in enumerate(("advantages", "returns", "values"))
        }
        log_probs = np.full(total, -1.0, np.float32)
        self._batch = RolloutBatch(
            observations=sample_normal(total, size), actions=chosen, log_probs=log_probs, **numbers
        )
        self._orders = [np.random.default_rng(seed).permutation(total) for seed in range(BATCH_COUNT)]
        self._observations, self._outputs = sample_normal(rows, size), np.zeros((rows, outputs), np.float32)
        self._actor, numpys = self.learner.actor(rows), PpoActor(self.agent.network, rows)
        self.act_in_numpy = lambda: numpys(self._observations, self._outputs)

    def update(self, index: int) -> None:
        self.learner.begin_update(self._rate * self._rate_factor)
        self.learner.run_epoch(self._batch, self._orders[index % BATCH_COUNT])

    def act(self) -> Array:
        self._actor(self._observations, self._outputs)
        return self._outputs

    def set_learning_rate_factor(self, factor: float) -> None:
        self._rate_factor = factor

    def checkpoint_state(self) -> dict[str, Any]:
        return _optimizer_state(self.agent, self.learner)


class QValueSubject(Subject):
    """The small networks of DQN, C51 and PQN."""

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        from cleanrl_worker.learners.perceptron import ForwardPass
        from cleanrl_worker.learners.value_kernels import ReturnBatch

        module, config = load_algorithm(name, **settings)
        self._has_target = name != "pqn"
        self.agent, self.target = module.Agent(4, 2), module.Agent(4, 2)
        self.agent.network.initialize(np.random.default_rng(1))
        self.target.network.initialize(np.random.default_rng(2))
        if saved is not None:
            self.agent.load_state_dict(saved["weights"])
            self.target.load_state_dict(saved["target"])
        targets = (self.target,) if self._has_target else ()
        self.learner = module._learner(config, self.agent, *targets)
        _restore_optimizer(self.agent, self.learner, saved)
        self._rate, self._rate_factor = config.learning_rate, 1.0
        rows = config.batch_size if self._has_target else config.minibatch_size
        self._batches: list[Any] = []
        for seed in range(BATCH_COUNT):
            actions = np.random.default_rng(seed).integers(2, size=rows)
            rewards, ends = sample_normal(rows, seed=seed), (sample_normal(rows, seed=seed + 1) > 2).astype(np.float32)
            seen, after = sample_normal(2, rows, 4, seed=seed)
            transitions = SimpleNamespace(
                observations=seen, actions=actions[:, None], rewards=rewards, terminals=ends, next_observations=after
            )
            self._batches.append(transitions if self._has_target else ReturnBatch(seen, actions, rewards))
        self._observations = sample_normal(config.num_envs, 4)
        self._forward, numpys = self.learner.forward(config.num_envs), ForwardPass(self.agent.network, config.num_envs)
        self.act_in_numpy = lambda: numpys(self._observations)

    def update(self, index: int) -> None:
        self.learner.update(self._batches[index % BATCH_COUNT], self._rate * self._rate_factor)

    def act(self) -> Array:
        return self._forward(self._observations)

    def set_learning_rate_factor(self, factor: float) -> None:
        self._rate_factor = factor

    def update_target(self, tau: float) -> None:
        if self._has_target:
            self.learner.update_target(tau)

    def checkpoint_state(self) -> dict[str, Any]:
        return {**_optimizer_state(self.agent, self.learner), "target": self.target.state_dict()}


class FakeVectorReplay:
    """A replay buffer of vectors that repeats the same few batches."""

    num_envs = 1
    relabels_samples = True
    window_bytes = 4 * (2 * OBSERVATION_SIZE + ACTION_SIZE + 2)
    layout: ClassVar[dict[str, tuple[int, int, str]]] = {
        "observation": (0, OBSERVATION_SIZE, "float32"),
        "action": (4 * OBSERVATION_SIZE, ACTION_SIZE, "float32"),
        "reward": (4 * (OBSERVATION_SIZE + ACTION_SIZE), 1, "float32"),
        "terminal": (4 * (OBSERVATION_SIZE + ACTION_SIZE + 1), 1, "float32"),
        "next_observation": (4 * (OBSERVATION_SIZE + ACTION_SIZE + 2), OBSERVATION_SIZE, "float32"),
    }
    index = 0

    def __init__(self, rows: int) -> None:
        every = sample_normal(BATCH_COUNT, rows, self.window_bytes // 4)
        every[:, :, OBSERVATION_SIZE + ACTION_SIZE + 1] = every[:, :, OBSERVATION_SIZE + ACTION_SIZE + 1] > 2
        self._batches = every.view(np.uint8)

    def allocate_batch(self, rows: int, buffer: Array) -> Any:
        return SimpleNamespace(layout=self.layout, buffer=buffer, rows=rows)

    def sample(self, batch: Any) -> None:
        batch.buffer[...] = self._batches[self.index % BATCH_COUNT]


class ContinuousSubject(Subject):
    """SAC, TD3 and DDPG for continuous actions."""

    uses_device_rng = True

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        module, config = load_algorithm(name, **settings)
        self.agent = module.Agent(OBSERVATION_SIZE, -np.ones(ACTION_SIZE, np.float32), np.ones(ACTION_SIZE, np.float32))
        self.agent.networks.initialize(np.random.default_rng(1))
        if saved is not None:
            self.agent.load_state_dict(saved["weights"])
        self._replay = FakeVectorReplay(config.batch_size)
        self.learner = module._learner(config, self.agent, self._replay, np.random.default_rng(1), "torch")
        if saved is not None:
            self.learner.restore(saved["arrays"], saved["facts"])
        self._updates_target_always = name.startswith("sac")
        self._observations = sample_normal(1, OBSERVATION_SIZE)
        adams = (self.learner.actor_adam, self.learner.critic_adam)
        rates = (
            getattr(config, "policy_lr", None) or config.learning_rate,
            getattr(config, "q_lr", None) or config.learning_rate,
        )
        self._adams = list(zip(adams, rates, strict=True))

    def update(self, index: int) -> None:
        self._replay.index = index
        self.learner.update(self._replay, index % 2 == 0, self._updates_target_always or index % 2 == 0)

    def act(self) -> Array:
        return self.learner.act(self._observations)

    def set_learning_rate_factor(self, factor: float) -> None:
        for adam, rate in self._adams:
            adam.set_learning_rate(rate * factor)

    def checkpoint_state(self) -> dict[str, Any]:
        self.learner.sync_networks()
        arrays, facts = self.learner.optimizer_state()
        weights = {name: np.array(part) for name, part in self.agent.state_dict().items()}
        return {"weights": weights, "arrays": arrays, "facts": facts}


class AtariRolloutSubject(Subject):
    """PPO on frames, with and without an LSTM."""

    shape = (4, 84, 84)

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        from cleanrl_worker.learners.torch_backend import TorchContext

        module, config = load_algorithm(name, **settings)
        self._is_recurrent = name.endswith("lstm")
        shape = (1, 84, 84) if self._is_recurrent else self.shape
        agent = module.Agent(4)
        agent.initialize(np.random.default_rng(1))
        if saved is not None:
            agent.parameters = dict(saved["weights"])
        self.learner = module.make_learner(agent.parameters, shape, config, TorchContext.from_settings(config))
        if saved is not None:
            self.learner.restore(saved["arrays"], saved["count"])
        total, envs, parts = config.batch_size, config.num_envs, config.num_minibatches
        rng = np.random.default_rng(2)
        frames = rng.integers(0, 256, (total, *shape), np.uint8)
        self._observations = frames[:envs]
        columns = {
            "actions": rng.integers(4, size=total),
            "log_probs": np.full(total, -np.log(4), np.float32),
            **{part: sample_normal(total, seed=seed) for seed, part in enumerate(("advantages", "returns", "values"))},
        }
        if self._is_recurrent:
            columns["continue_mask"] = (rng.random(total) > 0.01).astype(np.float32)
            self.learner.set_continue_mask(np.ones(envs, np.float32))
        self._rate = config.learning_rate
        self.learner.load_rollout(self._rate, frames, **columns)
        self._orders = rng.permutation(envs if self._is_recurrent else total).reshape(parts, -1)

    def update(self, index: int) -> None:
        self.learner.update(self._orders[index % len(self._orders)])

    def act(self) -> Array:
        return self.learner.act(self._observations)

    def mutable_tensors(self) -> list[Any]:
        return [*super().mutable_tensors(), *([self.learner.state] if self._is_recurrent else [])]

    def set_learning_rate_factor(self, factor: float) -> None:
        self.learner.adam.set_learning_rate(self._rate * factor)

    def checkpoint_state(self) -> dict[str, Any]:
        return {
            "weights": self.learner.arrays(),
            "arrays": self.learner.optimizer_state(),
            "count": self.learner.adam.count,
        }


class ProcgenSubject(AtariRolloutSubject):
    """PPO on Procgen's frames."""

    shape = (3, 64, 64)


class PhasicSubject(ProcgenSubject):
    """PPG: every other call is a gradient step of the auxiliary phase, on the rollouts of one update."""

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        super().__init__(name, saved, **{"n_iteration": 1, "n_aux_grad_accum": 2, **settings})
        _, config = load_algorithm(name, n_iteration=1)
        if saved is not None:
            self.learner.auxiliary_head.restore(saved["arrays"], saved["auxiliary_count"])
        rng = np.random.default_rng(4)
        images = rng.integers(0, 256, (config.num_steps, config.num_envs, *self.shape), np.uint8)
        self.learner.store_rollouts(0, images, sample_normal(config.num_steps, config.num_envs))
        self._rollouts = rng.permutation(config.phase_rollouts).reshape(-1, 2, config.num_aux_rollouts)
        # From random numbers instead of the policy, which a resumed subject no longer has.
        self.learner._stored.logits[...] = sample_normal(*self.learner._stored.logits.shape)

    def update(self, index: int) -> None:
        if index % 2:
            self.learner.update_auxiliary(self._rollouts[index % len(self._rollouts)])
        else:
            super().update(index)

    def mutable_tensors(self) -> list[Any]:
        return [*super().mutable_tensors(), *self.learner._auxiliary_state_tensors()]

    def set_learning_rate_factor(self, factor: float) -> None:
        super().set_learning_rate_factor(factor)
        self.learner.auxiliary_head.adam.set_learning_rate(self._rate * factor)

    def checkpoint_state(self) -> dict[str, Any]:
        return {**super().checkpoint_state(), "auxiliary_count": self.learner.auxiliary_head.adam.count}


class EnvpoolSubject(AtariRolloutSubject):
    """PQN and PPO with random network distillation, on frames."""

    _is_recurrent = False

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        from cleanrl_worker.learners.torch_backend import TorchContext

        is_rnd = name == "ppo_rnd_envpool"
        module, config = load_algorithm(name, **({"num_envs": 32} if is_rnd else {}) | settings)
        agent = module.Agent(4)
        agent.initialize(np.random.default_rng(1))
        if saved is not None:
            agent.parameters = dict(saved["weights"])
        self.learner = module.make_learner(agent.parameters, (4, 84, 84), config, TorchContext.from_settings(config))
        if saved is not None:
            self.learner.restore(saved["arrays"], saved["count"])
        total = config.batch_size
        rng = np.random.default_rng(2)
        frames = rng.integers(0, 256, (total, 4, 84, 84), np.uint8)
        self._observations = frames[: config.num_envs]
        numbers = ("returns", "advantages", "values", "int_returns") if is_rnd else ("returns",)
        columns = {name: sample_normal(total, seed=seed) for seed, name in enumerate(numbers)}
        columns["actions"] = rng.integers(4, size=total)
        if is_rnd:
            columns |= {"log_probs": np.full(total, -np.log(4), np.float32), "next_frames": frames[:, -1]}
            self.learner.set_normalization(np.full((84, 84), 128.0), np.full((84, 84), 5000.0))
        self._predictor_mask = [rng.random(config.minibatch_size) < 0.25] if is_rnd else []
        self._rate = config.learning_rate
        self.learner.load_rollout(self._rate, frames, **columns)
        if is_rnd:
            self.learner.compute_target_features(0)
        self._orders = rng.permutation(total).reshape(config.num_minibatches, -1)

    def update(self, index: int) -> None:
        self.learner.update(self._orders[index % len(self._orders)], *self._predictor_mask)


class FakeFrameReplay:
    """A replay buffer of frames that repeats the same few batches."""

    num_envs, stack = 1, 4
    shape = (84, 84)
    index = 0

    def allocate_batch(self, rows: int, buffer: Array) -> Any:
        rng = np.random.default_rng(2)
        self._every = rng.integers(0, 256, (BATCH_COUNT, *buffer.shape), np.uint8)
        self._actions = rng.integers(4, size=(BATCH_COUNT, rows))
        self._rewards = rng.standard_normal((BATCH_COUNT, rows), np.float32)
        zeros, ones = np.zeros(rows, np.float32), np.ones(rows, np.float32)
        return SimpleNamespace(
            frames=buffer, rows=rows, terminals=zeros, discounts=0.97 * ones, weights=ones, indices=np.arange(rows)
        )

    def sample(self, batch: Any) -> None:
        turn = self.index % BATCH_COUNT
        batch.frames[...] = self._every[turn]
        batch.actions, batch.rewards = self._actions[turn], self._rewards[turn]

    def update_priorities(self, indices: Array, td_errors: Array) -> None:
        """Priorities do not matter here."""


class AtariReplaySubject(Subject):
    """DQN, C51, Rainbow and SAC for Atari games."""

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        module, config = load_algorithm(name, **settings)
        self.uses_device_rng = name == "rainbow_atari"  # type: ignore[misc]
        agent = module.Agent(4)
        agent.initialize(np.random.default_rng(1))
        if saved is not None:
            agent.parameters = dict(saved["weights"])
        targets = agent.critics(agent.parameters) if name == "sac_atari" else agent.parameters
        if saved is not None:
            stem = "target."
            targets = {key.removeprefix(stem): part for key, part in saved["arrays"].items() if key.startswith(stem)}
        self._replay = FakeFrameReplay()
        self.learner, self._window, *noise = module._learner(config, agent, targets, self._replay)
        self._noise = noise[0] if noise else None
        if saved is not None:
            self.learner.restore(saved["arrays"], saved["count"])
            if self._noise is not None:
                self._noise.copy_from(saved["noise"])
        self._observations = np.random.default_rng(3).integers(0, 256, (1, 4, 84, 84), np.uint8)
        if name == "sac_atari":
            self._adams = [(self.learner._actor.adam, config.policy_lr), (self.learner.adam, config.q_lr)]
        else:
            self._adams = [(self.learner.adam, config.learning_rate)]

    def update(self, index: int) -> None:
        self._replay.index = index
        self.learner.update(self._replay)

    def act(self) -> Array:
        return self._window(self._observations)

    def set_learning_rate_factor(self, factor: float) -> None:
        for adam, rate in self._adams:
            adam.set_learning_rate(rate * factor)

    def update_target(self, tau: float) -> None:
        self.learner.update_target(tau)

    def checkpoint_state(self) -> dict[str, Any]:
        noise = {} if self._noise is None else {"noise": self._noise.to_array()}
        weights, arrays = self.learner.arrays(), self.learner.optimizer_state()
        return {"weights": weights, "arrays": arrays, "count": self._adams[0][0].count, **noise}


SUBJECTS: dict[str, Callable[..., Subject]] = {
    **dict.fromkeys(("ppo", "ppo_continuous_action", "rpo_continuous_action"), RolloutSubject),
    **dict.fromkeys(("dqn", "c51", "pqn"), QValueSubject),
    **dict.fromkeys(("sac_continuous_action", "td3_continuous_action", "ddpg_continuous_action"), ContinuousSubject),
    **dict.fromkeys(("ppo_atari", "ppo_atari_lstm", "ppo_atari_envpool"), AtariRolloutSubject),
    "ppo_procgen": ProcgenSubject,
    "ppg_procgen": PhasicSubject,
    **dict.fromkeys(("pqn_atari_envpool", "ppo_rnd_envpool"), EnvpoolSubject),
    **dict.fromkeys(("dqn_atari", "c51_atari", "rainbow_atari", "sac_atari"), AtariReplaySubject),
}


def flatten_arrays(saved: Any, prefix: str = "") -> dict[str, Array]:
    """Return all saved numbers as one vector, except the state of a generator."""
    if isinstance(saved, Mapping):
        found: dict[str, Array] = {}
        for name, part in saved.items():
            found |= {} if name == "torch.rng" else flatten_arrays(part, f"{prefix}{name}.")
        return found
    return {prefix: np.asarray(saved, np.float64)}


def max_difference(one: Any, other: Any) -> float:
    """Return the largest difference between two states; infinite if a value is NaN."""
    first, second = flatten_arrays(one), flatten_arrays(other)
    if first.keys() != second.keys():
        return float("inf")
    found = max(float(np.abs(part - second[name]).max()) for name, part in first.items() if part.size)
    return found if found == found else float("inf")
