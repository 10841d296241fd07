"""BDI agents: AgentSpeak files that act in environments, and whose choice of plans is learned.

The interpreter is the package agentspeak (GPL-3), an optional extra; nothing else of MOSAIC uses it. Importing this
package is cheap.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from mosaic import __version__
from mosaic.base.worker_registry import ActingPolicy, WorkerDescription, python_module

if TYPE_CHECKING:
    from mosaic.worker.actor_registry import ActorDescription

WORKER_NAME = "bdi"


def describe() -> WorkerDescription:
    """Return what the daemon and the command line need to know about this worker."""
    command = python_module("bdi_worker.cli")
    return WorkerDescription(
        id=WORKER_NAME,
        aliases=("bdi_worker",),
        title="BDI agents",
        version=__version__,
        command=command,
        checker=(*command, "--checker"),
        schemas=Path(__file__).parent / "metadata" / "bdi" / __version__ / "schemas.json",
        order=1,
        load_policy=_load_policy,
    )


def describe_actor() -> ActorDescription:
    """Return the description of the actor `bdi:FILE`."""
    from bdi_worker.asl_source import list_examples
    from mosaic.contracts.setting_field import SettingField
    from mosaic.worker.actor_registry import ActorDescription

    return ActorDescription(
        kind="bdi",
        title="BDI agent",
        about="Beliefs, goals and plans in an AgentSpeak file (.asl), or one of the examples.",
        target="an .asl file or an example",
        make="bdi_worker.actor:BdiActor",
        is_multi_agent=False,
        is_discrete_only=True,
        extra="bdi",
        packages=("agentspeak",),
        options=(SettingField("fallback", "str", None, "The action where the agent has none.", is_optional=True),),
        examples=tuple(list_examples()),
        file_filter="Agents (*.asl)",
    )


def _load_policy(path: Path, algo: str | None, env_id: str | None) -> ActingPolicy:
    from bdi_worker.policy import load_acting_policy

    return load_acting_policy(path, algo, env_id)
