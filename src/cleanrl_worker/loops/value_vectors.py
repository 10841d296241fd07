"""value_replay.py for vectors: a learner with a network, its target network, and a numpy or torch core."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.algorithms import base, run_checks
from cleanrl_worker.evaluation.policies import GreedyPolicy
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.learners.protocols import TargetValueLearner
from cleanrl_worker.loops import value_replay
from cleanrl_worker.loops.replay_world import ReplayWorld, check_vectors, vector_world

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
MakeAgent = Callable[[int, int, Architecture], Any]
"""Makes an agent from the sizes of observations and actions, and the hidden part of its network."""


class VectorValueLearner:
    def __init__(
        self,
        config: Any,
        agent: Any,
        target: Any,
        make_core: Callable[[Any, Any, Any], TargetValueLearner],
        world: ReplayWorld,
        rng: np.random.Generator,
        resume: Checkpoint | None,
    ) -> None:
        if resume is None:
            agent.network.initialize(rng)
            target.load_state_dict(agent.state_dict())
        else:
            agent.load_state_dict(resume.weights)
            target.load_state_dict(select_by_prefix("target.", resume.arrays))
        core = make_core(config, agent, target)
        if resume is not None:
            base.restore_optimizer(agent.network, core, resume.arrays, resume.facts["adam_count"])
        self._agent, self._target, self._core = agent, target, core
        self._batch = world.replay.allocate_batch(config.batch_size)
        self._learning_rate = config.learning_rate
        forward, q_values = core.forward(config.num_envs), agent.q_values
        self.values: Callable[[Array], Array] = lambda observations: q_values(forward(observations)).T
        self.update_target = core.update_target
        self.first_non_finite = core.first_non_finite

    def update(self, replay: Any, step: int) -> bool:
        replay.sample(self._batch)
        return self._core.update(self._batch, self._learning_rate)

    def skip_update(self) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, float]:
        return {f"losses/{name}": value for name, value in self._core.losses().items()}

    def checkpoint_state(self, replay: Any) -> tuple[dict[str, Array], dict[str, Array], int]:
        self._core.sync_networks()
        targets = {f"target.{name}": part for name, part in self._target.state_dict().items()}
        arrays = {**base.optimizer_arrays(self._agent.network, self._core), **targets}
        return self._agent.state_dict(), arrays, self._core.count


def train(
    name: str,
    config: Any,
    run: Run,
    resume: Checkpoint | None,
    make_agent: MakeAgent,
    make_core: Callable[[Any, Any, Any], TargetValueLearner],
    **shape: Any,
) -> None:
    """Train until `total_timesteps` or until the run ends earlier; both end with a checkpoint.

    `shape` is what else must not change when a run is resumed.
    """

    def make_learner(world: ReplayWorld, rng: np.random.Generator) -> VectorValueLearner:
        sizes = world.observation_size, int(world.action_space.n), config.architecture
        return VectorValueLearner(config, make_agent(*sizes), make_agent(*sizes), make_core, world, rng, resume)

    with vector_world(config, run, config.buffer_size) as world:
        world.shape |= shape
        world.facts["backend"] = base.resolve_backend(config)
        value_replay.train(name, config, run, resume, world, make_learner)


def check(name: str, config: Any, env: gymnasium.Env[Any, Any], make_agent: MakeAgent) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    count = run_checks.count_discrete_actions(name, env)
    sizes = check_vectors(name, config.buffer_size, env)
    size = base.ObservationEncoder.describe(env.observation_space)["size"]
    parameters = make_agent(size, count, config.architecture).network.size
    return {**sizes, "actions": count, "backend": base.resolve_backend(config), "parameters": parameters}


def load_greedy_policy(agent: Any, checkpoint: Checkpoint) -> GreedyPolicy:
    facts = checkpoint.facts
    inputs = base.ObservationEncoder(facts["inputs"])
    return GreedyPolicy(
        lambda observations: np.asarray(agent.q_values(agent.network(inputs(observations)).T).T),
        facts["first_action"],
        facts["config"]["end_e"],
    )
