"""Presets: named settings of an algorithm from which a run can start. The user's own are in one file.

It is in the user's configuration folder; the window, the command line and sweeps share it. No pydantic.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, field, fields, replace
from pathlib import Path
from typing import Any

from mosaic.common.files import write_json
from mosaic.common.user_folders import config_folder, lock_private_folder
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.secrets import store_secrets
from mosaic.submission.algorithm_schema import command_name
from mosaic.submission.run_payloads import build_train_payload, merge_payloads
from mosaic.submission.tuned_presets import TUNED_PRESETS


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
