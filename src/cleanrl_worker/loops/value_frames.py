"""value_replay.py for Atari games: a learner with weights by name, and a torch core that trains and acts with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.learners.conv_network import ConvAgent, copy_checked, initialize_bodies, parameter_count
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.loops import value_replay
from cleanrl_worker.loops.replay_world import ReplayWorld, check_atari
from cleanrl_worker.replay.buffers import FrameReplay

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
MakeAgent = Callable[[Any, int], ConvAgent]
"""Makes an agent from config and number of actions."""


class FrameValueLearner:
    def __init__(
        self,
        config: Any,
        agent: Any,
        make_core: Callable[[Any, Any, Mapping[str, Array], Any], tuple[Any, ...]],
        world: ReplayWorld,
        rng: np.random.Generator,
        resume: Checkpoint | None,
    ) -> None:
        """`make_core` returns the core, its inference step, and what else the algorithm needs of it."""
        self.config, self.agent = config, agent
        if resume is None:
            agent.initialize(rng)
            replay: Any = world.replay
            initialize_bodies(agent, config.architecture, (replay.stack, *replay.shape), rng)
            targets = self._targeted(agent.parameters)
        else:
            agent.load_state_dict(resume.weights)
            targets = copy_checked(self._targeted(agent.shapes), select_by_prefix("target.", resume.arrays))
        self.core, self.values, *self.more = make_core(config, agent, targets, world.replay)
        if resume is not None:
            self._restore(resume)
        self.update_target = self.core.update_target
        self.first_non_finite = self.core.first_non_finite

    def _targeted(self, parts: dict[str, Any]) -> dict[str, Any]:
        """Return those of the parameters that the target network has too."""
        return parts

    def _restore(self, resume: Checkpoint) -> None:
        self.core.restore(resume.arrays, resume.facts["adam_count"])

    def update(self, replay: Any, step: int) -> bool:
        """Take one gradient step without waiting for it: what is not finite is found by `first_non_finite`."""
        self.core.update(replay)
        return True

    def skip_update(self) -> None:
        """Do nothing."""

    def metrics(self) -> dict[str, float]:
        return {f"losses/{name}": value for name, value in self.core.losses().items()}

    def checkpoint_state(self, replay: Any) -> tuple[dict[str, Array], dict[str, Array], int]:
        self.core.synchronize(replay)
        self.agent.parameters = self.core.arrays()
        return self.agent.state_dict(), self.core.optimizer_state(), self.core.adam.count


def check(
    name: str,
    config: Any,
    env: gymnasium.Env[Any, Any],
    make_agent: MakeAgent,
    replay: type[FrameReplay] = FrameReplay,
) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    facts = check_atari(name, config, env, replay)
    return {**facts, "parameters": parameter_count(make_agent(config, facts["actions"]).shapes)}


def train(
    name: str,
    config: Any,
    run: Run,
    resume: Checkpoint | None,
    world: ReplayWorld,
    make_agent: MakeAgent,
    make_core: Callable[..., tuple[Any, ...]],
    kind: Callable[..., FrameValueLearner] = FrameValueLearner,
    explore: value_replay.Explore = value_replay.EpsilonGreedy,
) -> None:
    """Train until `total_timesteps` or until the run ends earlier; both end with a checkpoint."""

    def make_learner(world: ReplayWorld, rng: np.random.Generator) -> FrameValueLearner:
        return kind(config, make_agent(config, int(world.action_space.n)), make_core, world, rng, resume)

    value_replay.train(name, config, run, resume, world, make_learner, explore)
