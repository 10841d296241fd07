"""Presets: named settings of an algorithm from which a run can start. The user's own are in one file.

It is in the user's configuration folder; the window, the command line and sweeps share it. No pydantic.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any, NamedTuple

from mosaic.base.algorithm_schema import command_name
from mosaic.base.files import config_folder, lock_private_folder, write_json
from mosaic.base.run_payloads import build_train_payload, merge_payloads
from mosaic.base.secret_store import store_secrets
from mosaic.contracts.errors import BadInput, unknown_name_error

# --- Settings that were found to learn faster than the defaults, each with what was measured here. No pydantic.


class MeasuredReturn(NamedTuple):
    """The mean over seeds of the return of the last 100 training episodes, with Student's 95 % interval."""

    mean: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.mean:g} [{self.low:g}, {self.high:g}]"


@dataclass(frozen=True)
class TunedPreset:
    name: str
    algorithm: str
    env_id: str
    total_timesteps: int
    tuned: MeasuredReturn
    default: MeasuredReturn
    """With the algorithm's defaults, on the same seeds, after the same number of steps."""
    seeds: int
    """How many; the settings were chosen on others."""
    changes: Mapping[str, Any] = field(default_factory=dict)
    """The settings that differ from the defaults, without environment and steps."""

    @property
    def settings(self) -> dict[str, Any]:
        return {"env_id": self.env_id, "total_timesteps": self.total_timesteps, **self.changes}

    def describe(self) -> str:
        return (
            f"{self.env_id}, {self.total_timesteps:,} steps: return {self.tuned}, with the defaults {self.default} "
            f"(mean over {self.seeds} seeds, 95 %)"
        )


TUNED_PRESETS = (
    TunedPreset(
        "cartpole-ppo", "ppo", "CartPole-v1", 50_000,
        MeasuredReturn(337, 310, 365), MeasuredReturn(221, 205, 236), 10,
        {"learning_rate": 2.5e-3, "num_steps": 64},
    ),
    TunedPreset(
        "cartpole-dqn", "dqn", "CartPole-v1", 50_000,
        MeasuredReturn(324, 278, 369), MeasuredReturn(197, 159, 235), 10,
        {
            "learning_rate": 1e-3, "batch_size": 64, "learning_starts": 1000, "train_frequency": 2,
            "target_network_frequency": 100, "exploration_fraction": 0.16, "end_e": 0.04,
        },
    ),
    TunedPreset(
        "acrobot-ppo", "ppo", "Acrobot-v1", 100_000,
        MeasuredReturn(-91, -103, -78), MeasuredReturn(-284, -379, -188), 10,
        {"learning_rate": 2.5e-3, "num_steps": 64},
    ),
    TunedPreset(
        "lunarlander-ppo", "ppo", "LunarLander-v3", 200_000,
        MeasuredReturn(71, 34, 109), MeasuredReturn(-39, -54, -25), 10,
        {"learning_rate": 2.5e-3, "num_steps": 64},
    ),
)  # fmt: skip
"""Measured in 2026 on one CPU thread, by `mosaic experiment run` with these settings and the defaults as variants."""


# --- Presets: named settings of an algorithm from which a run can start. The user's own are in one file. It is in the
#     user's configuration folder; the window, the command line and sweeps share it. No pydantic.


@dataclass(frozen=True)
class Preset:
    worker: str
    algorithm: str
    settings: Mapping[str, Any] = field(default_factory=dict)
    """Options and settings of the algorithm, by name; the others have their defaults."""
    seeds: str | None = None
    """Several seeds as written, such as 1-5; None: one run."""
    rest: Mapping[str, Any] = field(default_factory=dict)
    """The parts of a payload that are not settings; they are submitted unchanged."""

    def build_payload(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
        """Return the payload of a training; `given` are settings that replace the preset's."""
        settings = {**self.settings, **given}
        return merge_payloads(self.rest, build_train_payload(self.worker, self.algorithm, settings, defaults))


def find_preset(name: str, worker: str, algorithm: str) -> Preset:
    """Return a preset of this algorithm: the user's, else the tuned one of that name."""
    tuned = {preset.name: Preset(worker, preset.algorithm, preset.settings) for preset in TUNED_PRESETS}
    own = read_presets()
    found = [presets[name] for presets in (own, tuned) if name in presets]
    for preset in found:
        if (preset.worker, preset.algorithm) == (worker, algorithm):
            return preset
    if found:
        other = command_name(found[0].worker, found[0].algorithm)
        right = shlex.join(["mosaic", "train", other, "--preset", name])
        raise BadInput(f"The preset {name!r} is for {other}, not for {command_name(worker, algorithm)}. Use: {right}")
    fitting = [key for key, one in {**tuned, **own}.items() if (one.worker, one.algorithm) == (worker, algorithm)]
    raise unknown_name_error(f"preset of {algorithm}", name, fitting)


# --- the file


def presets_path() -> Path:
    return config_folder() / "presets.json"


def read_presets() -> dict[str, Preset]:
    """Return the user's presets by name."""
    path = presets_path()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict):
            raise ValueError("expected a JSON object of presets by name")
        return {name: _parse_preset(name, entry) for name, entry in data.items()}
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise BadInput(f"The presets in {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"{path} is damaged: {error}. Fix it, or move it away and save the presets again.") from None


def _parse_preset(name: str, entry: Any) -> Preset:
    """Return a preset; raises ValueError where it is not one. What is not known is not dropped: it would be lost."""
    known = {one.name for one in fields(Preset)}
    if not isinstance(entry, dict):
        raise ValueError(f"the preset {name!r} is not a JSON object")
    if unknown := sorted(entry.keys() - known):
        raise ValueError(f"the preset {name!r} has the unknown key {unknown[0]!r}; expected {', '.join(sorted(known))}")
    expected = {"worker": str, "algorithm": str, "settings": dict, "seeds": str | None, "rest": dict}
    stated = {"settings": {}, "seeds": None, "rest": {}, **entry}
    for key, kind in expected.items():
        if not isinstance(stated.get(key, 0), kind):
            raise ValueError(f"{key!r} of the preset {name!r} is missing or has a wrong type")
    return Preset(**stated)


def save_preset(name: str, preset: Preset) -> None:
    """Add a preset, or replace the one of that name. Keys and tokens in it become references to the secret store."""
    if not name.strip() or not name.isprintable():
        raise BadInput(f"{name!r} cannot be the name of a preset; expected one line of text.")
    stored = replace(preset, settings=store_secrets(dict(preset.settings)), rest=store_secrets(dict(preset.rest)))
    _change(lambda presets: {**presets, name: stored})


def delete_preset(name: str) -> None:
    """Delete a preset, if it is there."""
    _change(lambda presets: {key: preset for key, preset in presets.items() if key != name})


def _change(change: Callable[[dict[str, Preset]], dict[str, Preset]]) -> None:
    path = presets_path()
    try:
        with lock_private_folder(path.parent):
            presets = change(read_presets())
            write_json(path, {name: asdict(preset) for name, preset in sorted(presets.items())}, mode=0o600)
    except OSError as error:
        raise BadInput(f"The presets cannot be stored in {path}: {error.strerror or error}.") from None
