"""A script of the user's own as a run: what `mosaic run` asks for."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from pydantic import AfterValidator, Field

from mosaic.contracts.model import Contract
from mosaic.contracts.payload import EnvId, SafeName, Text


def _validate_no_nul(value: str) -> str:
    if "\0" in value:
        raise ValueError("expected text without NUL")
    return value


def _validate_absolute_path(value: str) -> str:
    if not Path(_validate_no_nul(value)).is_absolute():
        raise ValueError("expected an absolute path")
    return value


Argument = Annotated[str, Field(max_length=100_000), AfterValidator(_validate_no_nul)]


class ProbeParts(Contract):
    """What the probe does inside of the script. Each part can be turned off."""

    frames: bool = True
    """Frames for viewers."""
    metrics: bool = True
    """Episodes, and the scalars of SummaryWriter and tensorboardX."""
    checkpoints: bool = True
    """What torch.save and Stable-Baselines3's save wrote."""
    console: bool = True
    """Lines such as `global_step=…, episodic_return=…`, and Stable-Baselines3's table."""
    wandb: bool = True
    """W&B's folders inside of the run, offline, and the scalars of wandb.log."""
    compat: bool = False
    """Gives a script that was written for gymnasium 0.29 what it expects, on gymnasium 1.x."""


class ScriptConfig(Contract):
    argv: Annotated[tuple[Argument, ...], Field(min_length=1)]
    """The command, program first."""
    cwd: Annotated[str, AfterValidator(_validate_absolute_path)]
    """The folder it is started in."""
    env_names: tuple[Argument, ...] = ()
    """The names of the environment variables it was given; their values are never written down."""
    name: Text | None = None
    algo: Text | None = None
    """What lists show as its algorithm: the script's name."""
    env_id: EnvId | None = None
    seed: int | None = None
    total_timesteps: Annotated[int, Field(ge=1)] | None = None
    probe: ProbeParts = ProbeParts()
    attached: bool = False
    """The caller's process produces the run, and `argv` only waits for its end. It starts at once and holds no slot."""
    algo_params: dict[str, Any] = {}
    """Settings of the caller's program, by which runs are compared."""
    run_id: SafeName | None = None
