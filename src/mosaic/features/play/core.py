"""Builds the payload of a play session from what a user names: an environment, actors, runs."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mosaic.base.run_payloads import build_payload
from mosaic.contracts.errors import BadInput
from mosaic.contracts.imports import named_modules
from mosaic.contracts.model import parse_contract
from mosaic.contracts.options import RunKind
from mosaic.contracts.play import (
    ANY_AGENT,
    BASE_URL_VARIABLE,
    FIRST_AGENT,
    HUMAN,
    PLAY_WORKER,
    ActorChoice,
    problems_of_actor,
)
from mosaic.features.evaluate.api import choose_checkpoint, is_policy_path
from mosaic.trainer.client.run_lookup import has_policy, resolve_run
from mosaic.worker.actor_registry import discover_actors

if TYPE_CHECKING:
    from mosaic.contracts.payload import Metadata
    from mosaic.trainer.client.trainer_client import TrainerClient

POLICY = "policy"
LLM = "llm"
_FILE_ACTORS = ("script", "bdi")
"""Kinds of actors whose target is a file of the user."""
_FILE_OPTIONS = ("template", "vecnormalize")
"""Options of actors that are files of the user."""


@dataclass(frozen=True)
class ActorRequest:
    """An actor as a user names it, such as `policy:RUN`, with its options."""

    actor: str
    options: Mapping[str, Any] = field(default_factory=dict)


def build_match_payload(
    trainer: TrainerClient,
    env_id: str,
    first: ActorRequest,
    others: ActorRequest | None,
    settings: Mapping[str, Any],
    run_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the payload of a session of one actor, or of one against another, who acts for all other agents.

    A human is refused: nothing here sends keys.
    """
    seats = {ANY_AGENT: first} if others is None else {FIRST_AGENT: first, ANY_AGENT: others}
    for agent, seat in seats.items():
        with problems_of_actor(agent, seats):
            is_human = ActorChoice.parse(seat.actor).kind == HUMAN
        if is_human:
            raise BadInput(f"The actor {HUMAN!r} acts by keys, and only a window sends them. Choose another actor.")
    actors = {agent: seat.actor for agent, seat in seats.items()}
    options = {agent: seat.options for agent, seat in seats.items()}
    return build_play_payload(trainer, env_id, actors, settings, options, run_options)


def build_play_payload(
    trainer: TrainerClient,
    env_id: str,
    actors: Mapping[str, str],
    settings: Mapping[str, Any],
    options: Mapping[str, Mapping[str, Any]] | None = None,
    run_options: Mapping[str, Any] | None = None,
) -> dict[str, Any]:
    """`actors` by agent, such as `policy:RUN`; `settings` are fields of `PlayConfig` that were given.

    `options` are those of the actors, by agent; `run_options` those of the run, such as `group`, by name. What a
    standby among the settings names is found in the same way.
    """
    paths: dict[str, str] = {}
    trained: list[Metadata] = []

    def complete(choice: ActorChoice) -> dict[str, Any]:
        choice = choice.model_copy(update={"options": complete_options(trainer, choice.kind, choice.options)})
        if choice.kind == POLICY and choice.target:
            paths[choice.target], run_id = find_policy(trainer, choice.target)
            if run_id is not None:
                trained.append(trainer.payload(run_id).metadata)
        elif choice.kind in _FILE_ACTORS and choice.target and not _names_example(choice):
            choice = choice.model_copy(update={"target": find_file(trainer, str(choice), choice.target)})
        return choice.model_dump(exclude_defaults=True)

    given = options or {}
    choices = {}
    for agent, text in actors.items():
        with problems_of_actor(agent, actors):
            choices[agent] = complete(ActorChoice.parse(text, given.get(agent)))
    config: dict[str, Any] = {"env_id": env_id, "actors": choices, **settings}
    if settings.get("standby") is not None:
        config["standby"] = complete(parse_contract(ActorChoice, settings["standby"], "The standby was"))
    if paths:
        config["policy_paths"] = paths
    payload = build_payload({"id": PLAY_WORKER, "config": config}, {"kind": str(RunKind.PLAY), **(run_options or {})})
    for metadata in trained:
        _add_wrappers(payload["metadata"], metadata)
    return payload


def _add_wrappers(session: dict[str, Any], trained: Metadata) -> None:
    """Add the wrappers with which a policy was trained, unless the session has some, and what they import."""
    worker, config = session["worker"], session["worker"]["config"]
    wrappers = (trained.worker.config.get("algo_params") or {}).get("wrappers")
    if not wrappers or config.setdefault("wrappers", wrappers) != wrappers:
        return
    if named_modules({"wrappers": wrappers}):
        session["is_imported"] = session.get("is_imported", False) or trained.is_imported
        if trained.worker.imports is not None:
            worker.setdefault("imports", trained.worker.imports.model_dump(mode="json"))


def _names_example(choice: ActorChoice) -> bool:
    """Return whether the target may be the name of an example that is shipped with the actor."""
    is_example = choice.target in discover_actors()[choice.kind].examples
    # The worker suggests the nearest name of an example for one that is misspelled.
    is_misspelled = choice.kind == "bdi" and choice.target.isidentifier()
    return (is_example or is_misspelled) and not Path(choice.target).is_file()


def complete_options(trainer: TrainerClient, kind: str, options: Mapping[str, Any]) -> dict[str, Any]:
    """Return options with absolute paths, and with what only the user's environment says."""
    complete = {
        name: find_file(trainer, name, value) if name in _FILE_OPTIONS and isinstance(value, str) else value
        for name, value in options.items()
    }
    base_url = os.environ.get(BASE_URL_VARIABLE, "").strip()
    if kind == LLM and base_url:
        complete.setdefault("base_url", base_url)
    return complete


def find_file(trainer: TrainerClient, name: str, target: str) -> str:
    """Return the absolute path of a file that a user names."""
    path = Path(target).expanduser().absolute()
    if trainer.is_local and not path.is_file():
        raise BadInput(f"{name}: there is no file {path}.")
    return str(path)


def find_policy(trainer: TrainerClient, target: str) -> tuple[str, str | None]:
    """Return the path of a policy on the trainer's machine, given by a run or a path, and the id of its run."""
    if is_policy_path(target):
        return str(Path(target).expanduser().absolute()), None
    view = resolve_run(trainer, target, has_policy)
    return f"{view.run_dir}/{choose_checkpoint(trainer, view, 'last')}", view.run_id
