"""Proximal policy optimization for several agents in PettingZoo's parallel environments.

Each agent learns by PPO from its own observations and rewards, as if the others were a part of its environment
(independent PPO). Agents with equal spaces share one policy unless each is to have its own. It is simple, and strong on
cooperative tasks; agents of different kinds get policies of different sizes. For multiplayer Atari games use
ppo_pettingzoo_ma_atari; for one agent use ppo.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Several agents: de Witt et al., "Is Independent Learning All You Need in the StarCraft Multi-Agent Challenge?",
arXiv:2011.09533 (2020).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from dataclasses import asdict, dataclass
from statistics import fmean
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field

from cleanrl_worker.algorithms import base, ppo
from cleanrl_worker.algorithms.settings import COMPUTE, LEARNING, ROLLOUT, RUN
from cleanrl_worker.environments.agent_rows import AgentRows, check_rows
from cleanrl_worker.environments.vector import EpisodeEnd
from cleanrl_worker.evaluation.policies import CategoricalPolicy
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.learners.ppo_kernels import RolloutBatch
from cleanrl_worker.learners.ppo_network import FrozenPpoActor
from cleanrl_worker.loops.on_policy import OnPolicyTraining
from mosaic.contracts.errors import BadInput, FieldProblem
from mosaic.contracts.payload import EnvId
from mosaic.worker.envs.teams import TeamEnv, make_team_env

if TYPE_CHECKING:
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

__all__ = ["Agent", "Config", "check", "load_policy", "make_env", "state_dict_of", "train"]
Array = npt.NDArray[Any]
NAME = "ppo_pettingzoo"
MAX_CURVES = 16
"""Further agents have no curve of their own."""
make_env = make_team_env
"""Makes the environment that `check` gets."""


class Config(ppo.Config, defaults={"total_timesteps": 1_000_000, "exp_name": NAME}):
    """Settings of PPO for several agents."""

    env_id: EnvId = Field(default="pettingzoo/simple_spread_v3", json_schema_extra=RUN)
    """The environment to train in: `pettingzoo/NAME`, or `module:function` for one of your own."""
    num_envs: int = Field(default=12, ge=1, le=4096, json_schema_extra=ROLLOUT)
    """The number of agents in all parallel environments; a multiple of those of one environment."""
    policies: Literal["shared", "separate"] = Field(default="shared", json_schema_extra=LEARNING)
    """Whether agents with equal spaces share a policy, or each agent has its own."""
    env_processes: Literal[1] = Field(default=1, json_schema_extra=COMPUTE)
    """Always 1: the environments are stepped by one process."""


# --- which agents share a policy


@dataclass(frozen=True)
class PolicySpec:
    """One policy and the agents that it acts for."""

    name: str
    agents: list[int]
    """Their indices in the environment."""
    observation_size: int
    action_count: int
    first_action: int


def assign_policies(team: TeamEnv | AgentRows, policies: str) -> list[PolicySpec]:
    """Return the policies: one for each agent, or one for all agents with equal spaces, named after the first."""
    groups: list[list[int]] = []
    for index in range(len(team.agents)):
        own = team.observation_spaces[index], team.action_spaces[index]
        same = (group for group in groups if (team.observation_spaces[group[0]], team.action_spaces[group[0]]) == own)
        group = next(same, None) if policies == "shared" else None
        if group is None:
            groups.append([index])
        else:
            group.append(index)
    return [
        PolicySpec(
            name=team.agents[group[0]],
            agents=group,
            observation_size=team.sizes[group[0]],
            action_count=int(team.action_spaces[group[0]].n),
            first_action=int(team.action_spaces[group[0]].start),
        )
        for group in groups
    ]


class Agent(base.FlatAgent):
    """The networks of all policies. If there are several, weights have the name of the policy before their own."""

    def __init__(self, specs: Sequence[PolicySpec], architecture: Architecture = ppo.NETWORK) -> None:
        self.architecture = architecture
        self._agents = [ppo.Agent(spec.observation_size, spec.action_count, architecture) for spec in specs]
        self._prefixes = [f"{spec.name}." if len(specs) > 1 else "" for spec in specs]
        self.outputs: Any = [spec.action_count for spec in specs]
        self.size = sum(agent.network.size for agent in self._agents)
        self.network = self
        self.parameters = [agent.network.parameters for agent in self._agents]

    def __iter__(self) -> Any:
        return iter(self._agents)

    def initialize(self, rng: np.random.Generator) -> None:
        for agent in self._agents:
            agent.initialize(rng)

    def named_arrays(self, views: Sequence[Any]) -> dict[str, Array]:
        return {
            f"{prefix}{name}": array
            for prefix, agent, own in zip(self._prefixes, self._agents, views, strict=True)
            for name, array in agent.network.named_arrays(own).items()
        }

    def assign(self, views: Sequence[Any], arrays: Mapping[str, Array]) -> None:
        for prefix, agent, own in zip(self._prefixes, self._agents, views, strict=True):
            agent.network.assign(own, select_by_prefix(prefix, arrays))


def check(config: Config, env: TeamEnv) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    if env.has_frames:
        raise BadInput(f"{NAME} does not see frames; {config.env_id} has them. This fits: ppo_pettingzoo_ma_atari.")
    check_rows(config.env_id, config.num_envs, len(env.agents))
    specs = assign_policies(env, config.policies)
    environments = config.num_envs // len(env.agents)
    for spec in specs:
        rows = config.num_steps * environments * len(spec.agents)
        if rows % config.num_minibatches:
            message = (
                f"num_minibatches = {config.num_minibatches} cannot split the {rows} rows of the policy of {spec.name} "
                "into equal parts: change it, num_envs or num_steps."
            )
            raise BadInput(message, [FieldProblem("num_minibatches", message)])
    return {
        "agents": list(env.agents),
        "environments": environments,
        "policies": {spec.name: [env.agents[index] for index in spec.agents] for spec in specs},
        "observations": [spec.observation_size for spec in specs],
        "actions": [spec.action_count for spec in specs],
        "parameters": Agent(specs, config.architecture).size,
        "backend": base.resolve_backend(config),
    }


# --- training


class PolicyTraining(ppo.Training):
    """Trains one policy by PPO on the rows of its agents. Steps after an agent has left are not learned from."""

    def __init__(self, config: Config, run: Run, spec: PolicySpec, rows: Array, environments: AgentRows) -> None:
        space = environments.action_spaces[spec.agents[0]]
        seen: Any = SimpleNamespace(observation_size=spec.observation_size, action_space=space)
        super().__init__(config.model_copy(update={"num_envs": len(rows)}), run, seen)
        self.rows, self._team = rows, environments

    def run_epoch(self, batch: RolloutBatch) -> None:
        is_absent = self._team.is_absent[:, self.rows].reshape(-1)
        order = self.rng.permutation(np.flatnonzero(~is_absent))
        # Others fill the places of absent rows, because minibatches have a fixed size.
        self.learner.run_epoch(batch, np.resize(order, self.config.batch_size))


class PolicyOptimizers:
    """The optimizers of all policies, saved as one."""

    def __init__(self, learners: Sequence[Any]) -> None:
        self._learners = learners

    @property
    def first_moment(self) -> Any:
        return [learner.first_moment for learner in self._learners]

    @property
    def second_moment(self) -> Any:
        return [learner.second_moment for learner in self._learners]

    @property
    def count(self) -> Any:
        return [learner.count for learner in self._learners]

    @count.setter
    def count(self, counts: Any) -> None:
        for learner, count in zip(self._learners, counts, strict=True):
            learner.count = count

    def sync_networks(self) -> None:
        for learner in self._learners:
            learner.sync_networks()


class Training(OnPolicyTraining):
    """Collects one rollout of all agents; each policy learns from the rows of its agents."""

    name = NAME
    config: Config
    environments: AgentRows
    agent: Agent

    def __init__(self, config: Config, run: Run, environments: AgentRows) -> None:
        self.specs = assign_policies(environments, config.policies)
        super().__init__(config, run, environments, Agent(self.specs, config.architecture))
        count = len(environments.agents)
        self.policies: list[PolicyTraining] = []
        for spec, agent in zip(self.specs, self.agent, strict=True):
            rows = np.array([row for row in range(config.num_envs) if row % count in spec.agents])
            policy = PolicyTraining(config, run, spec, rows, environments)
            policy.agent, policy.rng = agent, self.rng
            self.policies.append(policy)
        self._actions = np.zeros((config.num_steps, config.num_envs), np.int64)

    def start_learner(self) -> None:
        for policy in self.policies:
            policy.start_learner()
        self.learner = PolicyOptimizers([policy.learner for policy in self.policies])

    def begin_rollout(self) -> None:
        for policy in self.policies:
            policy.begin_rollout()

    def act(self, t: int) -> Array:
        for policy in self.policies:
            self._give_observations(policy, t)
            self._actions[t, policy.rows] = policy.act(t)
        return np.asarray(self._actions[t])

    def _give_observations(self, policy: PolicyTraining, t: int) -> None:
        policy.observations[t] = self.observations[t, policy.rows, : policy.observations.shape[-1]]

    def env_actions(self) -> Array:
        return self._actions

    def estimate(self, rewards: Array) -> list[RolloutBatch]:
        batches = []
        for policy in self.policies:
            self._give_observations(policy, -1)
            policy.dones = self.dones[:, policy.rows]
            places = {row: place for place, row in enumerate(policy.rows.tolist())}
            size = policy.observations.shape[-1]
            policy.truncated = [(t, places[row], seen[:size]) for t, row, seen in self.truncated if row in places]
            batches.append(policy.estimate(rewards[:, policy.rows]))
        return batches

    def update(self, batches: list[RolloutBatch]) -> tuple[dict[str, float], bool] | None:
        """Update each policy; the losses are their means."""
        losses: list[dict[str, float]] = []
        is_finite = True
        for policy, batch in zip(self.policies, batches, strict=True):
            policy.learning_rate = self.learning_rate
            policy.global_step, policy.milestones = self.global_step, self.milestones
            result = policy.update(batch)
            if result is None:
                return None
            metrics, is_policy_finite = result
            losses.append(metrics)
            is_finite = is_finite and is_policy_finite
        names = [name for name in losses[0] if all(name in metrics for metrics in losses)]
        return {name: fmean(metrics[name] for metrics in losses) for name in names}, is_finite

    def report_episode(self, episode_end: EpisodeEnd) -> None:
        """Report an agent's return, and with the end of the team's episode the sum over its agents."""
        if episode_end.env % len(self.environments.agents) < MAX_CURVES:
            agent = self.environments.agent_of(episode_end.env)
            self.run.scalar(f"agents/{agent}/episodic_return", episode_end.episodic_return, self.global_step)
        team_end = self.environments.take_team_end(episode_end.env)
        if team_end is not None:
            super().report_episode(team_end)

    def own_state(self) -> tuple[dict[str, Array], dict[str, Any]]:
        agents = list(self.environments.agents)
        return {}, {"agents": agents, "policies": [asdict(spec) for spec in self.specs]}


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    make_one = functools.partial(make_env, config.env_id, **config.env_settings)
    with closing(AgentRows(make_one, config.num_envs, config.seed, run.frames)) as environments:
        Training(config, run, environments).train(resume)


# --- acting


class TeamPolicy:
    """Acts for all agents of a team: observations [n, agents, size] to actions [n, agents]."""

    def __init__(self, agents: Sequence[str], policies: Sequence[tuple[PolicySpec, CategoricalPolicy]]) -> None:
        self._agents, self._policies = list(agents), policies

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        actions = np.zeros(observations.shape[:2], np.int64)
        for spec, policy in self._policies:
            rows = observations[:, spec.agents, : spec.observation_size].reshape(-1, spec.observation_size)
            actions[:, spec.agents] = policy.act(rows, deterministic, rng).reshape(len(observations), -1)
        return actions

    def for_agent(self, agent: str) -> CategoricalPolicy:
        """Return what acts for one agent, on its flattened observations alone."""
        if agent not in self._agents:
            raise BadInput(f"The policy was trained for the agents {', '.join(self._agents)}; there is no {agent!r}.")
        index = self._agents.index(agent)
        return next(policy for spec, policy in self._policies if index in spec.agents)


def load_policy(checkpoint: Checkpoint) -> TeamPolicy:
    """Load the policies of a checkpoint of this algorithm."""
    base.check_checkpoint_algorithm(NAME, checkpoint)
    specs, agents = _saved_specs(checkpoint), _saved_agent(checkpoint)
    agents.load_state_dict(checkpoint.weights)
    policies = [
        (spec, CategoricalPolicy(_logits(FrozenPpoActor(agent.network)), spec.first_action))
        for spec, agent in zip(specs, agents, strict=True)
    ]
    return TeamPolicy(checkpoint.facts["agents"], policies)


def _logits(actor: FrozenPpoActor) -> Callable[[Array], Array]:
    return lambda observations: actor(observations.astype(np.float32))


def _saved_specs(checkpoint: Checkpoint) -> list[PolicySpec]:
    return [PolicySpec(**fields) for fields in checkpoint.facts["policies"]]


def _saved_agent(checkpoint: Checkpoint) -> Agent:
    architecture = Architecture.from_settings(checkpoint.facts["config"], ppo.NETWORK)
    return Agent(_saved_specs(checkpoint), architecture)


def state_dict_of(checkpoint: Checkpoint) -> dict[str, Array]:
    """Return the weights in torch's order: a checkpoint sorts the names."""
    return {name: checkpoint.weights[name] for name in _saved_agent(checkpoint).state_dict()}
