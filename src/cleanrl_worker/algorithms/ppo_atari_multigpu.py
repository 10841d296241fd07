"""Proximal policy optimization for Atari games in several processes, each with its own GPU and its own games.

The same agent as ppo_atari. Each process collects a rollout from its part of the games and computes gradients on it.
All apply the mean of these gradients, so that their weights stay equal. Use it when one GPU, or one process that steps
the games, is the limit; a run needs as many GPUs as it has processes (`--gpus 2`) to gain from it.

Paper: Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms", arXiv:1707.06347 (2017).
Several processes: Wijmans et al., "DD-PPO: Learning Near-Perfect PointGoal Navigators from 2.5 Billion Frames",
arXiv:1911.00357 (2019).
"""

from __future__ import annotations

import functools
import time
from collections.abc import Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import numpy.typing as npt
from pydantic import Field, model_validator

from cleanrl_worker.algorithms import base, ppo_atari
from cleanrl_worker.algorithms.ppo_atari import SIZES, Agent, image_policy, loss, outputs, state_dict_of
from cleanrl_worker.algorithms.settings import COMPUTE, ROLLOUT, SettingsConflict
from cleanrl_worker.environments.atari import AtariEnvs, check_atari_env
from cleanrl_worker.learners import devices
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.loops.milestones import TrainingState
from cleanrl_worker.loops.on_policy_frames import describe_run
from mosaic.contracts.errors import BadInput

if TYPE_CHECKING:
    import gymnasium

    from cleanrl_worker.learners.torch_backend import TorchContext
    from cleanrl_worker.learners.torch_ranks import Ranks
    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

__all__ = ["Agent", "Config", "check", "load_policy", "loss", "state_dict_of", "train", "train_rank"]
Array = npt.NDArray[Any]
NAME = "ppo_atari_multigpu"
STOP_CHECK_STEPS = 8
"""Steps of a rollout, or minibatches, between messages about whether the run ends."""
SLOW_STEP_S = 0.01
"""Of steps that take longer than this, there is a message after each."""


class Config(ppo_atari.Config, defaults={"exp_name": NAME}):
    """Settings of PPO for Atari games in several processes."""

    num_envs: int = Field(default=16, ge=1, le=4096, json_schema_extra=ROLLOUT)
    """The number of parallel games in all processes; follows from `local_num_envs`, or the other way round."""
    local_num_envs: int = Field(default=8, ge=1, le=4096, json_schema_extra=ROLLOUT)
    """The number of parallel games in each process."""
    num_processes: int = Field(default=2, ge=1, le=64, json_schema_extra=COMPUTE)
    """The number of processes; with `device_ids` one for each of them."""
    device_ids: tuple[int, ...] = Field(default=(), json_schema_extra=COMPUTE)
    """The GPU of each process, such as 0,1; empty: in order, or all on the first if there are too few."""
    backend: Literal["gloo", "nccl"] = Field(default="gloo", json_schema_extra=COMPUTE)  # type: ignore[assignment]
    """The library that averages gradients: gloo, or nccl, which is faster but needs a GPU for each process."""

    env_processes: Literal[1] = Field(default=1, json_schema_extra=COMPUTE)
    """Always 1: each process of the training steps its own games."""

    @model_validator(mode="before")
    @classmethod
    def _count_games(cls, data: Any) -> Any:
        """Derive the games of all processes or of one from each other, and `num_processes` from `device_ids`."""
        if not isinstance(data, Mapping):
            return data
        values = {name: data.get(name, cls.model_fields[name].default) for name in ("local_num_envs", "num_processes")}
        if data.get("device_ids"):
            values["num_processes"] = len(data["device_ids"])
        whole = data.get("num_envs")
        if not all(isinstance(value, int) for value in (*values.values(), whole or 1)):
            return data  # refused with the reason that belongs to it
        if whole is not None and "local_num_envs" not in data:
            values["local_num_envs"], rest = divmod(whole, max(1, values["num_processes"]))
            if rest or not values["local_num_envs"]:
                message = f"num_envs = {whole} cannot be divided among {values['num_processes']} processes"
                raise SettingsConflict(message, "num_envs", "num_processes")
        count = values["local_num_envs"] * values["num_processes"]
        if whole is not None and whole != count:
            raise SettingsConflict(
                f"num_envs = {whole} is not local_num_envs × num_processes = {values['local_num_envs']} × "
                f"{values['num_processes']}; leave it out",
                *("num_envs", "local_num_envs", "num_processes"),
            )
        return {**data, **values, "num_envs": count}

    def _validate_minibatches(self) -> None:
        if self.num_processes > 1:
            self.for_one_process._validate_minibatches()
        else:
            super()._validate_minibatches()

    @property
    def for_one_process(self) -> Config:
        return self.model_copy(update={"num_envs": self.local_num_envs, "num_processes": 1})


def check(config: Config, env: gymnasium.Env[Any, Any]) -> dict[str, Any]:
    """Raise if the environment does not fit; otherwise return the sizes and backend of the run."""
    actions = check_atari_env(NAME, env)
    return describe_run(Agent(actions, SIZES.with_architecture(config.architecture)), actions)


class SharedRun:
    """The run in the first process, except that it ends only when all processes know that."""

    def __init__(self, run: Run, ranks: Ranks) -> None:
        vars(self).update(run=run, ranks=ranks)

    def __getattr__(self, name: str) -> Any:
        return getattr(vars(self)["run"], name)

    def __setattr__(self, name: str, value: Any) -> None:
        setattr(self.run, name, value)

    @property
    def is_ending(self) -> bool:
        return bool(self.ranks.is_ending)


class SilentRun:
    """Stands for the run in the other processes: it records nothing, because the first process does."""

    frames = None
    global_step = 0

    def __init__(self, ranks: Ranks) -> None:
        self._ranks = ranks

    @property
    def is_ending(self) -> bool:
        return self._ranks.is_ending

    stop_requested = is_ending

    def checkpoint_due(self, step: int) -> bool:
        return False

    def _ignore(self, *args: Any, **kwargs: Any) -> None:
        pass

    update = scalar = scalars = episode = mark_log = begin_checkpoint = save_checkpoint = warn = anomaly = _ignore


class Training(ppo_atari.Training):
    """Trains on the games of one process. The first one also reports, saves checkpoints and decides about the end."""

    name = NAME
    config: Config
    part: Config

    def __init__(self, config: Config, run: Any, games: AtariEnvs, agent: Agent, ranks: Ranks) -> None:
        super().__init__(config, run, games, agent)
        self.ranks = ranks
        self._message_interval, self._steps_to_message, self._message_at = 1, 1, time.monotonic()
        self._is_resumed = False

    def own_part(self, config: Config) -> Config:
        return config.for_one_process

    def _start_learner(self) -> None:
        from cleanrl_worker.learners.torch_conv import PpoImageLearner
        from cleanrl_worker.learners.torch_ranks import AveragingAdam

        config = self.part
        self.learner = PpoImageLearner(
            self.agent.parameters, self.games.shape, functools.partial(outputs, architecture=config.architecture),
            functools.partial(loss, config=config), config,
            _find_device(self.config, self.ranks.rank), functools.partial(AveragingAdam, ranks=self.ranks),
        )  # fmt: skip

    def prepare(self) -> bool:
        """Give each process random numbers of its own, once all have initialized the same weights."""
        if not self._is_resumed and self.ranks.rank:
            self.rng = np.random.default_rng([self.config.seed, self.ranks.rank])
        return not self._is_resumed

    def is_stopped(self) -> bool:
        self.run.update(self.global_step)
        self._steps_to_message -= 1
        if not self._steps_to_message:
            now = time.monotonic()
            is_slow = now - self._message_at > self._message_interval * SLOW_STEP_S
            is_first = isinstance(self.run, SharedRun)
            self.ranks.agree_on_end(is_first and vars(self.run)["run"].is_ending)
            self._message_interval = 1 if self.ranks.from_first(is_slow) else STOP_CHECK_STEPS
            self._steps_to_message, self._message_at = self._message_interval, now
        return self.ranks.is_ending

    def is_update_over(self) -> bool:
        return self.config.target_kl is not None and self.ranks.from_first(super().is_update_over())

    def restore_own_state(self, resume: Checkpoint, is_exact: bool) -> None:
        self._is_resumed = True

    def _state(self, is_checkpoint: bool) -> TrainingState:
        """Return what a checkpoint contains; in the first process with the games and random numbers of all."""
        state = super()._state(is_checkpoint)
        games = {name: array for name, array in state.arrays.items() if name.startswith("env.")}
        own = {name: state.facts[name] for name in ("environments", "rng")}
        parts = self.ranks.gather((games, own))
        others = list(enumerate(parts))[1:]
        arrays = {f"rank.{rank}.{name}": array for rank, (games, _) in others for name, array in games.items()}
        return state._replace(
            arrays={**state.arrays, **arrays}, facts={**state.facts, "ranks": [facts for _, (_, facts) in others]}
        )


def _find_device(config: Config, rank: int) -> TorchContext:
    """Configure torch for one process. Its share of the run's threads, and no CUDA graph: it would exclude messages."""
    import torch

    from cleanrl_worker.learners.torch_backend import TorchContext

    compute = TorchContext.set_up(
        cuda=config.cuda, deterministic=config.torch_deterministic, cuda_graphs=False, compiles=config.compile,
        threads=max(1, devices.thread_count() // config.num_processes), seed=config.seed,
    )  # fmt: skip
    if not compute.is_cuda:
        return compute
    count = torch.cuda.device_count()
    index = config.device_ids[rank] if config.device_ids else rank if count >= config.num_processes else 0
    if index >= count:
        raise BadInput(f"device_ids: there is no GPU {index}; the run has {count}. Give it more: --gpus {index + 1}")
    torch.cuda.set_device(index)
    return replace(compute, device=torch.device("cuda", index))


def train(config: Config, run: Run, resume: Checkpoint | None = None) -> None:
    """Train until `total_timesteps` or until the run is asked to stop; both end with a checkpoint."""
    from cleanrl_worker.shell.rank_process import other_ranks

    with other_ranks(NAME, config, config.num_processes, None if resume is None else resume.path) as rendezvous:
        train_rank(config, run, resume, 0, rendezvous)


def train_rank(config: Config, run: Run | None, resume: Checkpoint | None, rank: int, rendezvous: Path) -> None:
    """Train as one of the processes; only the first has a run."""
    from cleanrl_worker.learners.torch_ranks import Ranks

    with closing(Ranks(rank, config.num_processes, rendezvous, config.backend)) as ranks:
        shared: Any = SilentRun(ranks) if run is None else SharedRun(run, ranks)
        if run is None:
            config = config.model_copy(update={"eval_every": 0, "stop_at_return": None})
            resume = resume and _part_of(resume, rank)
        first_seed = config.seed + rank * config.local_num_envs
        games = AtariEnvs(config.env_id, config.local_num_envs, first_seed, shared.frames, settings=config.env_settings)
        with closing(games):
            agent = Agent(games.action_count, SIZES.with_architecture(config.architecture))
            Training(config, shared, games, agent, ranks).train(resume)


def _part_of(checkpoint: Checkpoint, rank: int) -> Checkpoint:
    """Return the checkpoint with the games and random numbers of one process in the place of the first one's."""
    arrays = {**checkpoint.arrays, **select_by_prefix(f"rank.{rank}.", checkpoint.arrays)}
    return replace(checkpoint, arrays=arrays, facts={**checkpoint.facts, **checkpoint.facts["ranks"][rank - 1]})


def load_policy(checkpoint: Checkpoint) -> base.TrainedPolicy:
    """Load the policy of a checkpoint of this algorithm."""
    return image_policy(NAME, checkpoint)
