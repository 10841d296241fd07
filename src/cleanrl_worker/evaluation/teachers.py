"""Trained policies that another training learns from: their networks, found and checked before anything starts."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.environments.atari import make_evaluation_env
from cleanrl_worker.evaluation.loading import build_policy, checkpoint_from_weights, try_one_action
from cleanrl_worker.evaluation.policies import GreedyPolicy, image_network
from cleanrl_worker.evaluation.saved_policies import SavedPolicy, find_policy
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.errors import BadInput, problems_of, refuse_key
from mosaic.contracts.folder import Workspace
from mosaic.worker.envs.factory import ensure_registered

if TYPE_CHECKING:
    import torch

    from mosaic.worker.checkpoints import Checkpoint
    from mosaic.worker.run import Run

Array = npt.NDArray[Any]
PREFIX = "teacher."
"""Before the names of its weights in the checkpoint of a student."""
ALGORITHMS = ("dqn_atari", "qdagger_dqn_atari_impalacnn")
"""The algorithms whose `q_values` can be learned from."""


class Teacher(NamedTuple):
    """A Q-network that is not trained any more."""

    algo: str
    architecture: Architecture
    weights: Mapping[str, Array]

    def network(self, device: torch.device) -> Callable[[torch.Tensor], torch.Tensor]:
        """Return the function from images [rows, 84, 84, 4] to Q-values [rows, actions]."""
        from cleanrl_worker.learners.torch_conv import as_tensors

        weights = as_tensors(self.weights, device, is_learned=False)
        return functools.partial(load_algorithm(self.algo).q_values, weights, architecture=self.architecture)

    # A student's checkpoint contains its teacher: resuming needs no other file, and its teacher never changes.

    @property
    def facts(self) -> dict[str, Any]:
        return {"algo": self.algo, **self.architecture.settings}

    @property
    def arrays(self) -> dict[str, Array]:
        return {f"{PREFIX}{name}": np.asarray(part) for name, part in self.weights.items()}

    @classmethod
    def of_student(cls, checkpoint: Checkpoint) -> Teacher:
        facts = checkpoint.facts["teacher"]
        architecture = Architecture(tuple(facts["hidden_sizes"]), facts["activation"], facts["network"])
        return cls(facts["algo"], architecture, select_by_prefix(PREFIX, checkpoint.arrays))


def find_teacher(student: str, config: Any) -> tuple[Teacher, str]:
    """Return the teacher that a student's settings name, and its path; raise if there is none for its game."""
    if config.teacher_policy_hf_repo is not None:
        raise refuse_key(
            "teacher_policy_hf_repo",
            f"a training downloads nothing. Pull the teacher first (mosaic pull {config.teacher_policy_hf_repo}) and "
            "give the run that this creates as teacher_policy.",
        )
    if config.teacher_policy is None:
        raise refuse_key(
            "teacher_policy",
            f"missing. {student} learns from a trained policy: give a run of dqn_atari on {config.env_id}, by its id, "
            "or the path of a checkpoint or .cleanrl_model. Without one, train dqn_atari.",
        )
    env = make_evaluation_env(config.env_id, **config.env_settings)
    try:
        teacher, saved = load_teacher(config.teacher_policy, config.teacher_model_exp_name, config.env_id, env)
    finally:
        env.close()
    return teacher, str(saved.path)


@problems_of("teacher_policy")
def load_teacher(reference: str, default_algo: str, env_id: str, env: Any) -> tuple[Teacher, SavedPolicy]:
    """Load the policy of a run, a checkpoint or a model file; raise if it was not trained for this game.

    `env` is the game as evaluations play it; `default_algo` is that of a file that does not state its own.
    """
    saved = find_policy(_resolve(reference))
    algo = saved.algo or default_algo
    if algo not in ALGORITHMS:
        raise BadInput(f"{saved.path} is a policy of {algo!r}; a teacher is one of {' or '.join(ALGORITHMS)}.")
    if saved.env_id is not None and _game(saved.env_id) != _game(env_id):
        raise BadInput(f"The teacher {saved.path} was trained on {saved.env_id!r}; the student's game is {env_id!r}.")
    checkpoint = saved.checkpoint or checkpoint_from_weights(saved, algo, env_id, env)
    actions, expected = checkpoint.facts["shape"]["actions"], int(env.action_space.n)
    if actions != expected:
        raise BadInput(
            f"The teacher {saved.path} has {actions} actions; {env_id!r} with these settings has {expected}."
        )
    try_one_action(saved, env_id, env, build_policy(saved, algo, env_id, env))
    module = load_algorithm(algo)
    architecture = Architecture.from_settings(checkpoint.facts["config"], module.NETWORK)
    return Teacher(algo, architecture, module.state_dict_of(checkpoint)), saved


def measure_teacher(config: Any, run: Run, teacher: Teacher) -> float | None:
    """Return the teacher's mean return, as it plays with the final epsilon; None if the run was stopped meanwhile."""
    import torch

    from cleanrl_worker.evaluation.during_training import preserve_random_states
    from mosaic.worker.evaluation import evaluate
    from mosaic.worker.evaluation_batches import first_evaluation_seed

    def should_continue(_: int) -> bool:
        run.update(run.global_step)
        return not run.stop_requested

    first_seed = first_evaluation_seed(config.seed)
    policy = GreedyPolicy(image_network(teacher.network(torch.device("cpu"))), 0, config.end_e)
    with preserve_random_states():
        episodes = evaluate(
            policy,
            functools.partial(make_evaluation_env, config.env_id, **config.env_settings),
            range(first_seed, first_seed + config.teacher_eval_episodes),
            deterministic=False,
            on_step=should_continue,
        )
    if len(episodes) < config.teacher_eval_episodes:
        return None
    mean = fmean(episode.episodic_return for episode in episodes)
    run.scalar("charts/teacher/avg_episodic_return", mean, 0)
    return mean


def _resolve(reference: str) -> str:
    """Return the path of a policy, which may be given as the id of a run in the workspace."""
    path = Path(reference).expanduser()
    if path.is_absolute() or os.path.exists(path):
        return str(path)
    folder = Workspace.resolve().run(reference).path if "/" not in reference else path
    if not os.path.isdir(folder):
        raise BadInput(f"There is no policy {reference!r}. Give the id of a run, or an absolute path.")
    return str(folder)


def _game(env_id: str) -> str:
    """Return the game of an environment: several ids have the same one."""
    ensure_registered(env_id)
    spec = gymnasium.registry.get(env_id)
    return env_id if spec is None else str(spec.kwargs.get("game", env_id))
