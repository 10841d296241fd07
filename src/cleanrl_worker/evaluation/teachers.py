"""Trained policies that another training learns from: their networks, found and checked before anything starts."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import gymnasium
import numpy as np
import numpy.typing as npt

from cleanrl_worker.evaluation.loading import build_policy, checkpoint_from_weights, try_one_action
from cleanrl_worker.evaluation.saved_policies import SavedPolicy, find_policy
from cleanrl_worker.learners.architecture import Architecture
from cleanrl_worker.learners.flat_network import select_by_prefix
from cleanrl_worker.registry import load_algorithm
from mosaic.contracts.errors import BadInput, problems_of
from mosaic.contracts.folder import Workspace
from mosaic.envs.factory import ensure_registered

if TYPE_CHECKING:
    import torch

    from mosaic.run import Checkpoint

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


def _resolve(reference: str) -> str:
    """Return the path of a policy, which may be given as the id of a run in the workspace."""
    path = Path(reference).expanduser()
    if path.is_absolute() or path.exists():
        return str(path)
    folder = Workspace.resolve().run(reference).path if "/" not in reference else path
    if not folder.is_dir():
        raise BadInput(f"There is no policy {reference!r}. Give the id of a run, or an absolute path.")
    return str(folder)


def _game(env_id: str) -> str:
    """Return the game of an environment: several ids have the same one."""
    ensure_registered(env_id)
    spec = gymnasium.registry.get(env_id)
    return env_id if spec is None else str(spec.kwargs.get("game", env_id))
