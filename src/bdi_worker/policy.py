"""Trained agents: their checkpoints, and acting by them. A checkpoint contains the agent's file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from bdi_worker import WORKER_NAME
from bdi_worker.asl_source import AslSource
from bdi_worker.engine import Mind
from bdi_worker.percepts import Perception, find_perception
from bdi_worker.plan_values import LearningAgent, PlanValues, build_learner, check_labels
from bdi_worker.worker_config import ALGORITHM, BdiSettings, WorkerRequest
from mosaic.base.checkpoint_files import list_steps
from mosaic.base.worker_registry import ActingPolicy
from mosaic.contracts.errors import BadInput, CheckpointDamaged, WrongWorker, problems_of, refuse_key
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.model import parse_contract
from mosaic.worker.checkpoints import Checkpoint, last_good_checkpoint, load_checkpoint
from mosaic.worker.envs import make
from mosaic.worker.envs.factory import find_family
from mosaic.worker.envs.reproducible import random_state_to_json
from mosaic.worker.evaluation import BATCH_SIZE
from mosaic.worker.evaluation_batches import EvaluatedPolicy, first_evaluation_seed
from mosaic.worker.recording import RecordingHeader
from mosaic.worker.run import LogMark, Run
from mosaic.worker.simulation import library_versions

Array = npt.NDArray[Any]


# --- checkpoints


@dataclass(frozen=True)
class SavedAgent:
    """What a checkpoint contains."""

    path: Path
    step: int
    settings: BdiSettings
    source: AslSource
    table: PlanValues


class EpisodeStart(NamedTuple):
    """The state of a training between two episodes, besides what the next one changes in the table."""

    step: int
    rows: int
    rng: Any
    env: Any
    """The random state of the environment; None before its first reset."""
    episodes: int
    log: LogMark


def save_agent(
    run: Run, start: EpisodeStart, settings: BdiSettings, source: AslSource, agent: LearningAgent, is_interim: bool
) -> None:
    """Save the agent as it was at the start of the current episode."""
    arrays = agent.table.to_arrays_before(agent.changed, start.rows)
    run.save_checkpoint(
        start.step,
        weights={"values": arrays.pop("values")},
        arrays=arrays,
        facts={
            "algorithm": ALGORITHM,
            "config": settings.model_dump(mode="json"),
            "labels": agent.table.labels,
            "asl": {"name": source.name, "text": source.text, "sha256": source.sha256},
            "rng": random_state_to_json(start.rng),
            "env": start.env,
            "episodes": start.episodes,
        },
        log=start.log,
        is_interim=is_interim,
    )


def read_agent(checkpoint: Checkpoint) -> SavedAgent:
    """Decode a checkpoint; raise if it is of another worker, or damaged."""
    if checkpoint.facts.get("algorithm") != ALGORITHM:
        worker = checkpoint.manifest.get("worker")
        raise WrongWorker(f"The checkpoint {checkpoint.path} is of the worker {worker!r}, not of {WORKER_NAME!r}.")
    try:
        asl = checkpoint.facts["asl"]
        source = AslSource(asl["name"], asl["text"])
        settings = parse_contract(BdiSettings, checkpoint.facts["config"], "The checkpoint's config was")
        labels = {str(goal): tuple(map(str, names)) for goal, names in checkpoint.facts["labels"].items()}
        arrays = {"values": checkpoint.weights["values"], **{key: checkpoint.arrays[key] for key in ("visits", "keys")}}
        table = PlanValues.from_arrays(labels, arrays)
    except (KeyError, TypeError, AttributeError, ValueError, IndexError) as error:
        raise CheckpointDamaged(f"The checkpoint {checkpoint.path} cannot be read: {error!r}.") from None
    if source.sha256 != asl.get("sha256"):
        raise CheckpointDamaged(f"The checkpoint {checkpoint.path} cannot be read: its .asl file was changed.")
    return SavedAgent(checkpoint.path, checkpoint.step, settings, source, table)


def find_checkpoint(path: str) -> Checkpoint:
    """Load a checkpoint folder, or the last good checkpoint of a run folder."""
    target = Path(path).expanduser()
    if (target / "manifest.json").exists():
        return load_checkpoint(target, with_parts=False)
    folder = RunFolder(target)
    if not list_steps(folder):
        raise WrongWorker(f"{target} is neither a checkpoint nor a run folder with checkpoints.")
    checkpoint = last_good_checkpoint(folder, with_parts=False)
    if checkpoint is None:
        raise CheckpointDamaged(f"No good checkpoint under {folder.checkpoints}. Train the run again, or resume it.")
    return checkpoint


# --- acting


class TrainedAgents:
    """A policy with memory: each row of its batch is an agent of its own, and all have the same table."""

    def __init__(self, saved: SavedAgent, perception: Perception) -> None:
        self._saved = saved
        self._perception = perception
        self._minds: list[Mind] = [self._build() for _ in range(BATCH_SIZE)]

    def _build(self) -> Mind:
        mind = build_learner(self._saved.source, self._perception, np.random.default_rng(0))
        check_labels(self._saved.source.name, mind.agent.table.labels, self._saved.table.labels)
        mind.agent.table = self._saved.table
        mind.start_episode()
        return mind

    @staticmethod
    def to_array(observation: Any) -> Array:
        """Return the observation itself as an array of one object: percepts need all of it."""
        array = np.empty(1, object)
        array[0] = observation
        return array

    def reset_state(self, row: int) -> None:
        mind = self._minds[row]
        mind.rng = np.random.default_rng(0)
        mind.start_episode()

    def act(self, observations: Array, deterministic: bool, rng: np.random.Generator) -> Array:
        return self._decide(observations, None if deterministic else [rng] * len(observations))

    def sample(self, observations: Array, rngs: Sequence[np.random.Generator]) -> Array:
        return self._decide(observations, rngs)

    def _decide(self, observations: Array, rngs: Sequence[np.random.Generator] | None) -> Array:
        actions = np.zeros(len(observations), np.int64)
        for index, mind in enumerate(self._minds[: len(observations)]):
            agent: LearningAgent = mind.agent
            agent.state = self._perception.state(observations[index, 0])
            # A stochastic agent still explores as at the end of training, and learns nothing.
            agent.epsilon = None if rngs is None else self._saved.settings.end_e
            if rngs is not None:
                mind.rng = agent.rng = rngs[index]
            actions[index] = mind.decide(observations[index, 0]).action
        return actions


def make_env(settings: BdiSettings, env_id: str | None = None, **options: Any) -> Any:
    with problems_of("env_id"):
        return make(env_id or settings.env_id, **{**_env_kwargs(settings, env_id), **options})


def _env_kwargs(settings: BdiSettings, env_id: str | None) -> dict[str, Any]:
    # Another environment is created as it is: the settings are those of the one that was trained on.
    return (settings.env_kwargs if env_id in (None, settings.env_id) else None) or {}


def recording_header(settings: BdiSettings, env_id: str) -> RecordingHeader:
    """Return what a recording makes the environment from, as `make_env` does."""
    versions = library_versions(find_family(env_id))
    return RecordingHeader(env_id=env_id, env_kwargs=_env_kwargs(settings, env_id), versions=versions)


def _load(path: str, algo: str | None, env_id: str | None) -> tuple[SavedAgent, TrainedAgents, Callable[..., Any], str]:
    saved = read_agent(find_checkpoint(path))
    if algo not in (None, ALGORITHM):
        raise BadInput(f"The checkpoint {saved.path} is of {ALGORITHM!r}, not of {algo!r}.")
    env_id = env_id or saved.settings.env_id
    make_one = partial(make_env, saved.settings, env_id)
    env = make_one()
    try:
        with problems_of("env_id"):
            agents = TrainedAgents(saved, find_perception(env))
    finally:
        env.close()
    return saved, agents, make_one, env_id


def load_for_evaluation(request: WorkerRequest) -> tuple[SavedAgent, EvaluatedPolicy]:
    if request.config.algo_params:
        raise refuse_key("algo_params", "an evaluation takes its settings from the checkpoint. Leave it out.")
    evaluation = request.payload.evaluation
    assert evaluation.policy_path is not None
    saved, agents, make_one, env_id = _load(evaluation.policy_path, request.config.algo, request.config.env_id)
    seed = first_evaluation_seed(saved.settings.seed) if evaluation.seed is None else evaluation.seed
    header = recording_header(saved.settings, env_id)
    return saved, EvaluatedPolicy(saved.path, saved.step, ALGORITHM, env_id, seed, agents, make_one, header)


def load_acting_policy(path: Path, algo: str | None = None, env_id: str | None = None) -> ActingPolicy:
    """Load a trained agent for a program that calls it itself, observation by observation."""
    saved, agents, make_one, env_id = _load(str(path), algo, env_id)
    return ActingPolicy(
        path=saved.path,
        algo=ALGORITHM,
        env_id=env_id,
        step=saved.step,
        observation_shape=None,
        flatten=agents.to_array,
        act=agents.act,
        make_env=make_one,
        rows=BATCH_SIZE,
        reset_row=agents.reset_state,
    )
