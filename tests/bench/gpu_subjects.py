"""The learners of all algorithms on made-up batches, behind one small face, for gpu_steps.py.

Each is made by its algorithm's own file from its default settings. Equal settings and equal calls give equal numbers;
`saved` is what a checkpoint would hold, and a subject that is made from it goes on where the other was.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from types import SimpleNamespace
from typing import Any, ClassVar

import numpy as np

Array = Any
BATCHES, OBSERVATIONS, ACTIONS = 8, 17, 6


def made_of(name: str, **settings: Any) -> tuple[Any, Any]:
    """The algorithm's file and its default settings, with these changed."""
    module = importlib.import_module(f"cleanrl_worker.algorithms.{name}")
    return module, module.Config(**{"backend": "torch", "cuda": True, **settings})


def drawn(*shape: int, seed: int = 2) -> Array:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


class Subject:
    """A learner and what acts by it."""

    steps = 1
    """Gradient steps of one call."""
    draws: ClassVar[bool] = False
    """Whether its updates draw random numbers on the device."""
    in_numpy: Callable[[], object] | None = None
    """The same acting in numpy, where the algorithm has that."""
    learner: Any

    def update(self, index: int) -> None: ...
    def act(self) -> Array: ...
    def set_rate(self, share: float) -> None: ...
    def follow(self, share: float) -> None: ...

    def kept(self) -> list[Any]:
        """Every tensor that updates and acts change, but targets."""
        return list(self.learner._kept())

    def saved(self) -> dict[str, Any]:
        raise NotImplementedError


def _moments(agent: Any, learner: Any) -> dict[str, Any]:
    from cleanrl_worker.algorithms import base

    learner.collect()
    return {
        "weights": agent.state_dict(),
        "arrays": base.optimizer_arrays(agent.network, learner),
        "count": learner.count,
    }


def _restore(agent: Any, learner: Any, saved: Mapping[str, Any] | None) -> None:
    from cleanrl_worker.algorithms import base

    if saved is not None:
        base.restore_optimizer(agent.network, learner, saved["arrays"], saved["count"])


class Rollouts(Subject):
    """PPO's and RPO's small networks; one call is a pass over a rollout."""

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        from cleanrl_worker.kernels import Batch
        from cleanrl_worker.network import Actor

        module, config = made_of(name, **settings)
        size, outputs = (4, 2) if name == "ppo" else (OBSERVATIONS, ACTIONS)
        self.agent = module.Agent(size, outputs)
        self.agent.network.initialise(np.random.default_rng(1))
        if saved is not None:
            self.agent.load_state_dict(saved["weights"])
        self.learner = module._learner(config, self.agent)
        _restore(self.agent, self.learner, saved)
        total, rows = config.batch_size, config.num_envs
        self.steps = config.num_minibatches
        self._rate, self._share = config.learning_rate, 1.0
        chosen = np.random.default_rng(3).integers(outputs, size=total) if name == "ppo" else drawn(total, outputs)
        numbers = {part: drawn(total, seed=seed) for seed, part in enumerate(("advantages", "returns", "values"))}
        log_probs = np.full(total, -1.0, np.float32)
        self._batch = Batch(observations=drawn(total, size), actions=chosen, log_probs=log_probs, **numbers)
        self._orders = [np.random.default_rng(seed).permutation(total) for seed in range(BATCHES)]
        self._seen, self._said = drawn(rows, size), np.zeros((rows, outputs), np.float32)
        self._actor, numpys = self.learner.actor(rows), Actor(self.agent.network, rows)
        self.in_numpy = lambda: numpys(self._seen, self._said)

    def update(self, index: int) -> None:
        self.learner.begin(self._rate * self._share)
        self.learner.epoch(self._batch, self._orders[index % BATCHES])

    def act(self) -> Array:
        self._actor(self._seen, self._said)
        return self._said

    def set_rate(self, share: float) -> None:
        self._share = share

    def saved(self) -> dict[str, Any]:
        return _moments(self.agent, self.learner)


class Values(Subject):
    """Those of DQN, C51 and PQN."""

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        from cleanrl_worker.perceptron import Forward
        from cleanrl_worker.value_kernels import Judged

        module, config = made_of(name, **settings)
        self._has_target = name != "pqn"
        self.agent, self.target = module.Agent(4, 2), module.Agent(4, 2)
        self.agent.network.initialise(np.random.default_rng(1))
        self.target.network.initialise(np.random.default_rng(2))
        if saved is not None:
            self.agent.load_state_dict(saved["weights"])
            self.target.load_state_dict(saved["target"])
        targets = (self.target,) if self._has_target else ()
        self.learner = module._learner(config, self.agent, *targets)
        _restore(self.agent, self.learner, saved)
        self._rate, self._share = config.learning_rate, 1.0
        rows = config.batch_size if self._has_target else config.minibatch_size
        self._batches: list[Any] = []
        for seed in range(BATCHES):
            actions = np.random.default_rng(seed).integers(2, size=rows)
            rewards, ends = drawn(rows, seed=seed), (drawn(rows, seed=seed + 1) > 2).astype(np.float32)
            seen, after = drawn(2, rows, 4, seed=seed)
            transitions = SimpleNamespace(
                observations=seen, actions=actions[:, None], rewards=rewards, terminals=ends, next_observations=after
            )
            self._batches.append(transitions if self._has_target else Judged(seen, actions, rewards))
        self._seen = drawn(config.num_envs, 4)
        self._forward, numpys = self.learner.forward(config.num_envs), Forward(self.agent.network, config.num_envs)
        self.in_numpy = lambda: numpys(self._seen)

    def update(self, index: int) -> None:
        self.learner.update(self._batches[index % BATCHES], self._rate * self._share)

    def act(self) -> Array:
        return self._forward(self._seen)

    def set_rate(self, share: float) -> None:
        self._share = share

    def follow(self, share: float) -> None:
        if self._has_target:
            self.learner.follow(share)

    def saved(self) -> dict[str, Any]:
        return {**_moments(self.agent, self.learner), "target": self.target.state_dict()}


class Rows:
    """Answers as a replay buffer of vectors does, with the same few batches over and over."""

    envs = 1
    window_bytes = 4 * (2 * OBSERVATIONS + ACTIONS + 2)
    layout: ClassVar[dict[str, tuple[int, int, str]]] = {
        "observation": (0, OBSERVATIONS, "float32"),
        "action": (4 * OBSERVATIONS, ACTIONS, "float32"),
        "reward": (4 * (OBSERVATIONS + ACTIONS), 1, "float32"),
        "terminal": (4 * (OBSERVATIONS + ACTIONS + 1), 1, "float32"),
        "next_observation": (4 * (OBSERVATIONS + ACTIONS + 2), OBSERVATIONS, "float32"),
    }
    index = 0

    def __init__(self, rows: int) -> None:
        every = drawn(BATCHES, rows, self.window_bytes // 4)
        every[:, :, OBSERVATIONS + ACTIONS + 1] = every[:, :, OBSERVATIONS + ACTIONS + 1] > 2
        self._every = every.view(np.uint8)

    def batch(self, rows: int, buffer: Array) -> Any:
        return SimpleNamespace(layout=self.layout, buffer=buffer, rows=rows)

    def sample(self, batch: Any) -> None:
        batch.buffer[...] = self._every[self.index % BATCHES]


class Control(Subject):
    """SAC, TD3 and DDPG for continuous actions."""

    draws = True

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        module, config = made_of(name, **settings)
        self.agent = module.Agent(OBSERVATIONS, -np.ones(ACTIONS, np.float32), np.ones(ACTIONS, np.float32))
        self.agent.networks.initialise(np.random.default_rng(1))
        if saved is not None:
            self.agent.load_state_dict(saved["weights"])
        self._rows = Rows(config.batch_size)
        self.learner = module._learner(config, self.agent, self._rows, np.random.default_rng(1), "torch")
        if saved is not None:
            self.learner.restore(saved["arrays"], saved["facts"])
        self._is_always_followed = name.startswith("sac")
        self._seen = drawn(1, OBSERVATIONS)
        adams = (self.learner.actor_adam, self.learner.critic_adam)
        rates = (
            getattr(config, "policy_lr", None) or config.learning_rate,
            getattr(config, "q_lr", None) or config.learning_rate,
        )
        self._adams = list(zip(adams, rates, strict=True))

    def update(self, index: int) -> None:
        self._rows.index = index
        self.learner.update(self._rows, index % 2 == 0, self._is_always_followed or index % 2 == 0)

    def act(self) -> Array:
        return self.learner.act(self._seen)

    def set_rate(self, share: float) -> None:
        for adam, rate in self._adams:
            adam.set_learning_rate(rate * share)

    def saved(self) -> dict[str, Any]:
        self.learner.collect()
        arrays, facts = self.learner.moments()
        weights = {name: np.array(part) for name, part in self.agent.state_dict().items()}
        return {"weights": weights, "arrays": arrays, "facts": facts}


class Games(Subject):
    """PPO that looks at pictures, with and without memory."""

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        module, config = made_of(name, **settings)
        self._has_memory = name.endswith("lstm")
        shape = (1 if self._has_memory else 4, 84, 84)
        agent = module.Agent(4)
        agent.initialise(np.random.default_rng(1))
        if saved is not None:
            agent.parameters = dict(saved["weights"])
        self.learner = module._learner(config, agent, shape)
        if saved is not None:
            self.learner.restore(saved["arrays"], saved["count"])
        total, envs, parts = config.batch_size, config.num_envs, config.num_minibatches
        rng = np.random.default_rng(2)
        pictures = rng.integers(0, 256, (total, *shape), np.uint8)
        self._seen = pictures[:envs]
        columns = {
            "actions": rng.integers(4, size=total),
            "log_probs": np.full(total, -np.log(4), np.float32),
            **{part: drawn(total, seed=seed) for seed, part in enumerate(("advantages", "returns", "values"))},
        }
        if self._has_memory:
            columns["keeps"] = (rng.random(total) > 0.01).astype(np.float32)
            self.learner.keep(np.ones(envs, np.float32))
        self._rate = config.learning_rate
        self.learner.begin(self._rate, pictures, **columns)
        self._orders = rng.permutation(envs if self._has_memory else total).reshape(parts, -1)

    def update(self, index: int) -> None:
        self.learner.update(self._orders[index % len(self._orders)])

    def act(self) -> Array:
        return self.learner.act(self._seen)

    def kept(self) -> list[Any]:
        return [*super().kept(), *([self.learner.state] if self._has_memory else [])]

    def set_rate(self, share: float) -> None:
        self.learner.adam.set_learning_rate(self._rate * share)

    def saved(self) -> dict[str, Any]:
        return {"weights": self.learner.arrays(), "arrays": self.learner.moments(), "count": self.learner.adam.count}


class Pooled(Games):
    """PQN, and PPO with curiosity, that look at pictures."""

    _has_memory = False

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        is_curious = name == "ppo_rnd_envpool"
        module, config = made_of(name, **({"num_envs": 32} if is_curious else {}) | settings)
        agent = module.Agent(4)
        agent.initialise(np.random.default_rng(1))
        if saved is not None:
            agent.parameters = dict(saved["weights"])
        self.learner = module._learner(config, agent, (4, 84, 84))
        if saved is not None:
            self.learner.restore(saved["arrays"], saved["count"])
        total = config.batch_size
        rng = np.random.default_rng(2)
        pictures = rng.integers(0, 256, (total, 4, 84, 84), np.uint8)
        self._seen = pictures[: config.num_envs]
        numbers = ("returns", "advantages", "values", "int_returns") if is_curious else ("returns",)
        columns = {name: drawn(total, seed=seed) for seed, name in enumerate(numbers)}
        columns["actions"] = rng.integers(4, size=total)
        if is_curious:
            columns |= {"log_probs": np.full(total, -np.log(4), np.float32), "arrived": pictures[:, -1]}
            self.learner.look_by(np.full((84, 84), 128.0), np.full((84, 84), 5000.0))
        self._taught = [rng.random(config.minibatch_size) < 0.25] if is_curious else []
        self._rate = config.learning_rate
        self.learner.begin(self._rate, pictures, **columns)
        if is_curious:
            self.learner.describe(0)
        self._orders = rng.permutation(total).reshape(config.num_minibatches, -1)

    def update(self, index: int) -> None:
        self.learner.update(self._orders[index % len(self._orders)], *self._taught)


class Pictures:
    """Answers as a replay buffer of pictures does, with the same few batches over and over."""

    envs, stack = 1, 4
    shape = (84, 84)
    index = 0

    def batch(self, rows: int, buffer: Array) -> Any:
        rng = np.random.default_rng(2)
        self._every = rng.integers(0, 256, (BATCHES, *buffer.shape), np.uint8)
        self._actions = rng.integers(4, size=(BATCHES, rows))
        self._rewards = rng.standard_normal((BATCHES, rows), np.float32)
        zeros, ones = np.zeros(rows, np.float32), np.ones(rows, np.float32)
        return SimpleNamespace(
            frames=buffer, rows=rows, terminals=zeros, discounts=0.97 * ones, weights=ones, spots=np.arange(rows)
        )

    def sample(self, batch: Any) -> None:
        turn = self.index % BATCHES
        batch.frames[...] = self._every[turn]
        batch.actions, batch.rewards = self._actions[turn], self._rewards[turn]

    def settle(self, spots: Array, surprises: Array) -> None:
        """Priorities do not matter here."""


class Replayed(Subject):
    """DQN, C51, Rainbow and SAC for Atari games."""

    def __init__(self, name: str, saved: Mapping[str, Any] | None = None, **settings: Any) -> None:
        module, config = made_of(name, **settings)
        self.draws = name == "rainbow_atari"  # type: ignore[misc]
        agent = module.Agent(4)
        agent.initialise(np.random.default_rng(1))
        if saved is not None:
            agent.parameters = dict(saved["weights"])
        targets = agent.critics(agent.parameters) if name == "sac_atari" else agent.parameters
        if saved is not None:
            stem = "target."
            targets = {key.removeprefix(stem): part for key, part in saved["arrays"].items() if key.startswith(stem)}
        self._pictures = Pictures()
        self.learner, self._window, *noise = module._learner(config, agent, targets, self._pictures)
        self._noise = noise[0] if noise else None
        if saved is not None:
            self.learner.restore(saved["arrays"], saved["count"])
            if self._noise is not None:
                self._noise.set(saved["noise"])
        self._seen = np.random.default_rng(3).integers(0, 256, (1, 4, 84, 84), np.uint8)
        if name == "sac_atari":
            self._adams = [(self.learner._actor.adam, config.policy_lr), (self.learner._critics.adam, config.q_lr)]
        else:
            self._adams = [(self.learner.adam, config.learning_rate)]

    def update(self, index: int) -> None:
        self._pictures.index = index
        self.learner.update(self._pictures)

    def act(self) -> Array:
        return self._window(self._seen)

    def set_rate(self, share: float) -> None:
        for adam, rate in self._adams:
            adam.set_learning_rate(rate * share)

    def follow(self, share: float) -> None:
        self.learner.follow(share)

    def saved(self) -> dict[str, Any]:
        noise = {} if self._noise is None else {"noise": self._noise.array()}
        weights, arrays = self.learner.arrays(), self.learner.moments()
        return {"weights": weights, "arrays": arrays, "count": self._adams[0][0].count, **noise}


SUBJECTS: dict[str, Callable[..., Subject]] = {
    **dict.fromkeys(("ppo", "ppo_continuous_action", "rpo_continuous_action"), Rollouts),
    **dict.fromkeys(("dqn", "c51", "pqn"), Values),
    **dict.fromkeys(("sac_continuous_action", "td3_continuous_action", "ddpg_continuous_action"), Control),
    **dict.fromkeys(("ppo_atari", "ppo_atari_lstm", "ppo_atari_envpool"), Games),
    **dict.fromkeys(("pqn_atari_envpool", "ppo_rnd_envpool"), Pooled),
    **dict.fromkeys(("dqn_atari", "c51_atari", "rainbow_atari", "sac_atari"), Replayed),
}


def numbers_of(saved: Any, prefix: str = "") -> dict[str, Array]:
    """All numbers of what was saved, flat, but for the state of a generator."""
    if isinstance(saved, Mapping):
        found: dict[str, Array] = {}
        for name, part in saved.items():
            found |= {} if name == "torch.rng" else numbers_of(part, f"{prefix}{name}.")
        return found
    return {prefix: np.asarray(saved, np.float64)}


def apart(one: Any, other: Any) -> float:
    """The greatest difference between two states; infinite where one is not a number."""
    first, second = numbers_of(one), numbers_of(other)
    if first.keys() != second.keys():
        return float("inf")
    found = max(float(np.abs(part - second[name]).max()) for name, part in first.items() if part.size)
    return found if found == found else float("inf")
