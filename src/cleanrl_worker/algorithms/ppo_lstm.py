"""Proximal policy optimization with an LSTM, for observations that are vectors.

Like ppo and ppo_continuous_action, but the agent has memory: an LSTM after the hidden layers, which actor and critic
share. It is for environments in which one observation does not contain enough information, such as positions without
velocities. Otherwise ppo and ppo_continuous_action are much faster and learn at least as well. Observations and rewards
are normalized by running statistics, without which an LSTM learns slowly.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
LSTM: Hochreiter, Schmidhuber, "Long Short-Term Memory", Neural Computation 9 (1997).
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

import gymnasium
import numpy as np
import numpy.typing as npt
from pydantic import Field, field_validator

from cleanrl_worker.algorithms import base, ppo, ppo_continuous_action, run_checks
from cleanrl_worker.algorithms.ppo_continuous_action import NormalizedTraining, bounded_policy, normalized_encoder
from cleanrl_worker.algorithms.settings import LEARNING, NETWORK, PpoConfig, SettingsConflict
from cleanrl_worker.environments.normalized import NormalizedEnvs
from cleanrl_worker.learners import devices
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.conv_network import Shapes, layer_shapes, orthogonal_weights
from cleanrl_worker.learners.flat_network import NamedNetwork
from cleanrl_worker.learners.ppo_kernels import PpoLosses, RolloutBatch
from cleanrl_worker.learners.protocols import PpoSettings
from cleanrl_worker.loops.on_policy import MemoryTraining, choose_training, open_environments

if TYPE_CHECKING:
    import torch

    from cleanrl_worker.evaluation.policies import Outputs
    from cleanrl_worker.learners.torch_recurrent import RecurrentModule, RecurrentVectorLearner
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
NAME = "ppo_lstm"
HIDDEN = Architecture((64,), "tanh")


class Config(PpoConfig, defaults={
        "env_id": "CartPole-v1", "total_timesteps": 500_000, "exp_name": NAME, "learning_rate": 1e-3, "num_envs": 8,
        **HIDDEN.settings,
    }):  # fmt: skip
    """Settings of PPO with an LSTM."""

    has_kernels: ClassVar[bool] = False

    lstm_units: int = Field(default=64, ge=1, le=8192, json_schema_extra=NETWORK)
    """Units of the LSTM, which follows the hidden layers."""
    num_minibatches: int = Field(default=4, ge=1, json_schema_extra=LEARNING)
    """Minibatches per rollout, each with all steps of some environments; each is one gradient step."""

    @field_validator("network")
    @classmethod
    def _refuse_network(cls, network: str | None) -> str | None:
        if network is not None:
            raise ValueError("ppo_lstm has hidden layers and an LSTM, and takes no network of your own. Leave it out.")
        return network

    def _validate_minibatches(self) -> None:
        if self.num_envs % self.num_minibatches:
            raise SettingsConflict(
                f"num_envs = {self.num_envs} environments cannot be split into num_minibatches = "
                f"{self.num_minibatches} equally",
                *("num_envs", "num_minibatches"),
            )
        super()._validate_minibatches()


class Agent(base.FlatAgent):
    """Actor and critic on shared hidden layers and an LSTM; with a log standard deviation for continuous actions."""

    def __init__(
        self,
        observation_size: int,
        outputs: int,
        architecture: Architecture = HIDDEN,
        units: int = 64,
        has_log_std: bool = False,
    ) -> None:
        self.units, self.has_log_std = units, has_log_std
        shapes: Shapes = {"actor_logstd": (1, outputs)} if has_log_std else {}
        sizes = (observation_size, *architecture.hidden)
        for index, size in enumerate(architecture.hidden):
            shapes |= layer_shapes(f"hidden.{2 * index}", size, sizes[index])
        shapes |= {
            "lstm.weight_ih_l0": (4 * units, sizes[-1]), "lstm.weight_hh_l0": (4 * units, units),
            "lstm.bias_ih_l0": (4 * units,), "lstm.bias_hh_l0": (4 * units,),
            **layer_shapes("actor", outputs, units), **layer_shapes("critic", 1, units),
        }  # fmt: skip
        network: Any = NamedNetwork(shapes)
        network.inputs, network.outputs, network.actor = observation_size + 1 + 2 * units, outputs, "actor"
        network.log_std = network.parameters.parts["actor_logstd"].T if has_log_std else None
        super().__init__(observation_size, outputs, architecture, lambda *_: network)

    def initialize(self, rng: np.random.Generator) -> None:
        """Initialize orthogonally; a small last actor layer makes the first policy nearly uniform."""
        shapes = {name: shape for name, shape in self.network.shapes.items() if name != "actor_logstd"}
        weights = orthogonal_weights(shapes, rng, {"lstm": 1.0, "actor": 0.01, "critic": 1.0})
        self.load_state_dict({**self.state_dict(), **weights})

    def build_module(self) -> RecurrentModule:
        import torch

        from cleanrl_worker.learners.torch_recurrent import RecurrentModule

        module = RecurrentModule(self.architecture, self.inputs, self.outputs, self.units)
        if self.has_log_std:
            module.actor_logstd = torch.nn.Parameter(torch.zeros(1, self.outputs))
        return module


def loss(
    module: Any, batch: Any, config: PpoSettings, steps: int, terms: Callable[..., Any]
) -> tuple[torch.Tensor, PpoLosses]:
    """Return PPO's loss of all steps of some environments.

    `terms` returns the log-probabilities of their actions and the mean entropy, from the actor's outputs.
    """
    outputs, values, _ = module.unroll(batch.observations, steps)
    log_probs, entropy = terms(module, outputs, batch.actions)
    return ppo.clipped_loss(log_probs, entropy, values[:, 0], batch, config)


def choice_terms(module: Any, outputs: torch.Tensor, actions: torch.Tensor, counts: Sequence[int] = ()) -> Any:
    return ppo.choice_terms(outputs, actions, counts)


def gaussian_terms(module: Any, outputs: torch.Tensor, actions: torch.Tensor) -> Any:
    return ppo_continuous_action.gaussian_terms(outputs, module.actor_logstd, actions)


def make_learner(config: Any, agent: Agent, terms: Callable[..., Any]) -> RecurrentVectorLearner:
    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_recurrent import RecurrentVectorLearner

    compute = TorchContext.from_settings(config, threads=1)
    own_loss = functools.partial(loss, steps=config.num_steps, terms=terms)
    return RecurrentVectorLearner(agent.network, agent.module(), own_loss, config.minibatch_size, config, compute)


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    make_agent = functools.partial(Agent, units=config.lstm_units)
    make_continuous_agent = functools.partial(make_agent, has_log_std=True)
    return run_checks.check_any_actions(NAME, config, env, make_agent, make_continuous_agent)


class Training(MemoryTraining, NormalizedTraining):
    """PPO with memory: the LSTM's state is carried from step to step and reset where a new episode starts."""

    name = NAME
    config: Config
    learner: RecurrentVectorLearner

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        *shape, self._size = self.observations.shape
        self.inputs = np.zeros((*shape, self.agent.network.inputs), np.float32)
        """Each observation, whether its episode continues (1), and the LSTM's state before it."""
        self.observations = self.inputs[..., : self._size]
        self._values = np.zeros(self.dones.shape, np.float32)
        self._t = 0

    def __call__(self, observations: Array, out: Array) -> None:
        """Act by the inputs of the current step; remember its values and the state after it."""
        outputs, t = self._step(self.inputs[self._t]), self._t
        actions = self.network.outputs
        out[...] = outputs[:, :actions]
        self._values[t] = outputs[:, actions]
        self.inputs[t + 1, :, self._size + 1 :] = outputs[:, actions + 1 :]

    def begin_rollout(self) -> None:
        super().begin_rollout()
        self.inputs[0, :, self._size :] = self.inputs[-1, :, self._size :]

    def act(self, t: int) -> Any:
        self._t = t
        if t:
            self.inputs[t, :, self._size] = ~self.dones[t - 1]
        return super().act(t)

    def state_values(self, inputs: Array) -> Array:
        return np.asarray(self.learner.outputs(inputs)[:, self.network.outputs])

    def rollout_values(self) -> Array:
        self.inputs[-1, :, self._size] = ~self.dones[-1]
        return np.concatenate([self._values, self.state_values(self.inputs[-1])[None]])

    def bootstrap_truncated(self, rewards: Array) -> None:
        memory = self.inputs[..., self._size + 1 :]
        self.truncated = [(t, env, np.array([*end, 1, *memory[t + 1, env]])) for t, env, end in self.truncated]
        super().bootstrap_truncated(rewards)

    def estimate(self, rewards: Array) -> RolloutBatch:
        batch = super().estimate(rewards)
        return dataclasses.replace(batch, observations=self.inputs[:-1].reshape(self.config.batch_size, -1))

    def run_epoch(self, batch: RolloutBatch) -> None:
        # A minibatch is all steps of some environments, because gradients flow back through time.
        config = self.config
        envs = self.rng.permutation(config.num_envs).reshape(config.num_minibatches, 1, -1)
        self.learner.run_epoch(batch, (np.arange(config.num_steps)[:, None] * config.num_envs + envs).ravel())

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        arrays, facts = super().own_state()
        return {**arrays, "memory": self.inputs[-1, :, self._size :].copy()}, facts

    def restore_own_state(self, resume: Checkpoint) -> None:
        super().restore_own_state(resume)
        self.inputs[-1, :, self._size :] = resume.arrays["memory"]

    def forget_episodes(self) -> None:
        self.inputs[-1, :, self._size] = 0


def make_agent(config: Any, observation_size: int, outputs: int, has_log_std: bool = False) -> Agent:
    return Agent(observation_size, outputs, config.architecture, config.lstm_units, has_log_std)


class DiscreteTraining(Training, ppo.Training):
    make_agent = staticmethod(make_agent)
    make_learner = staticmethod(functools.partial(make_learner, terms=choice_terms))


class MultiTraining(Training, ppo.MultiTraining):
    make_agent = staticmethod(make_agent)

    def make_learner(self, config: Any, agent: Any) -> RecurrentVectorLearner:
        return make_learner(config, agent, functools.partial(choice_terms, counts=self._counts))


class ContinuousTraining(Training, ppo_continuous_action.Training):
    make_agent = staticmethod(functools.partial(make_agent, has_log_std=True))
    make_learner = staticmethod(functools.partial(make_learner, terms=gaussian_terms))


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    with open_environments(config, run, NormalizedEnvs) as environments:
        kind = choose_training(environments.action_space, DiscreteTraining, MultiTraining, ContinuousTraining)
        kind(config, run, environments).train(resume)


class LstmPolicy:
    """Acts with memory; needs torch. Each row of observations is a separate episode with its own LSTM state."""

    def __init__(self, agent: Agent, encode: Outputs, select: base.TrainedPolicy) -> None:
        """`select` selects actions by the actor's outputs."""
        import torch

        torch.set_num_threads(devices.thread_count())
        self._module, self._encode, self._select = agent.build_module(), encode, select
        self._module.load_state_dict({name: torch.from_numpy(part) for name, part in agent.state_dict().items()})
        self._outputs, self._units = agent.outputs, agent.units
        self._state: Array = np.zeros((0, 2 * self._units), np.float32)

    def reset_state(self, row: int) -> None:
        """Reset the LSTM state of a row, in which a new episode starts."""
        self._state[row : row + 1] = 0

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        """Return the best actions if `deterministic`, else samples."""
        return self._select.act(self._step(observations), deterministic, rng)

    def sample(self, observations: Array, rngs: Sequence[np.random.Generator]) -> Array:
        """Sample actions, with a random generator per row."""
        outputs = self._step(observations)
        return np.concatenate([self._select.act(outputs[row : row + 1], False, rng) for row, rng in enumerate(rngs)])

    def _step(self, observations: Array) -> Array:
        import torch

        inputs = self._encode(observations).astype(np.float32)
        if len(self._state) != len(inputs):
            self._state = np.zeros((len(inputs), 2 * self._units), np.float32)
        rows = np.concatenate([inputs, np.ones((len(inputs), 1), np.float32), self._state], 1)
        with torch.no_grad():
            outputs = self._module.step(torch.from_numpy(rows)).numpy()
        self._state = outputs[:, self._outputs + 1 :].copy()
        return np.asarray(outputs[:, : self._outputs])


def _load_agent(checkpoint: Checkpoint) -> Agent:
    base.check_checkpoint_algorithm(NAME, checkpoint)
    weights = checkpoint.weights
    units, has_log_std = weights["lstm.weight_hh_l0"].shape[1], "actor_logstd" in weights
    return base.load_agent(checkpoint, functools.partial(Agent, units=units, has_log_std=has_log_std), HIDDEN)


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    agent, encode = _load_agent(checkpoint), normalized_encoder(checkpoint)
    if "action.low" in checkpoint.arrays:
        return LstmPolicy(agent, encode, bounded_policy(checkpoint, _same, agent.network.log_std))
    return LstmPolicy(agent, encode, ppo.choice_policy(checkpoint, _same))


def _same(outputs: Array) -> Array:
    return outputs


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the model in the order of torch: a checkpoint sorts the names."""
    return _load_agent(checkpoint).state_dict()
