"""The content of the train form, converted to payloads and back. No widget here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.contracts.extras import translate_extras
from mosaic.contracts.options import CONFIG_PATH, OPTIONS
from mosaic.contracts.setting_field import SettingField
from mosaic.gui.models.form import Form, format_setting, format_value
from mosaic.gui.models.form_layout import FormLayout, get_layout
from mosaic.submission.algorithm_schema import command_name
from mosaic.submission.run_payloads import (
    CORE_FIELD_NAMES,
    build_train_payload,
    default_group_name,
    merge_payloads,
    parse_seeds,
    setting_path,
    with_seed,
)
from mosaic.submission.user_presets import Preset


@dataclass(frozen=True)
class Draft(Form):
    worker: str
    algorithm: str
    texts: Mapping[str, str] = field(default_factory=dict)
    seeds: str | None = None
    """Several seeds as written, such as 1-5; None: one run with the field's seed."""
    rest: Mapping[str, Any] = field(default_factory=dict)
    """The parts of an opened payload that the form has no fields for; they are submitted unchanged."""
    source: str = ""
    """The id of the run whose settings were opened; empty: none."""
    cleanrl: str = ""
    """The user's folder with CleanRL's scripts; empty: those of an installed package."""
    cleanrl_python: str = ""
    """What runs them; empty: the interpreter next to them, else ours."""

    @property
    def layout(self) -> FormLayout:
        """Raises BadInput where no form can show it."""
        return get_layout(self.worker, self.algorithm, self.cleanrl, self.cleanrl_python)

    def to_json(self) -> dict[str, Any]:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Draft | None:
        """None where it is not what `to_json` returned."""
        try:
            draft = cls(**data)
            texts = {str(name): str(text) for name, text in draft.texts.items()}
        except (TypeError, AttributeError):
            return None
        places = (draft.cleanrl, draft.cleanrl_python)
        is_valid = isinstance(draft.rest, dict) and all(isinstance(place, str) for place in places)
        return replace(draft, texts=texts) if is_valid else None

    @property
    def fields(self) -> Mapping[str, SettingField]:
        return self.layout.fields

    @property
    def env_id(self) -> str:
        return self.text("env_id").strip()

    def is_changed(self, name: str) -> bool:
        return super().is_changed(name) or (name == "seed" and self.seeds is not None)

    def problems(self) -> dict[str, str]:
        found = super().problems()
        if self.seeds is not None:
            found.pop("seed", None)
            try:
                parse_seeds(self.seeds)
            except BadInput as error:
                found["seed"] = error.problems[0].problem
        return {name: found[name] for name in self.fields if name in found}

    def payloads(self, now: float) -> list[dict[str, Any]]:
        """One for each seed. Raises BadInput where a field is invalid."""
        self.require_valid()
        defaults = {field.name: field.default for field in self.layout.core}
        payload = build_train_payload(self.worker, self.algorithm, self.values(), defaults)
        payload["metadata"]["worker"]["config"].update(self.layout.algorithm.location)
        payload = merge_payloads(self.rest, payload)
        if self.seeds is None:
            return [payload]
        env_id = payload["metadata"]["worker"]["config"].get("env_id", "")
        group = payload["metadata"].get("group") or default_group_name(self.algorithm, env_id, now)
        return [with_seed(payload, seed, group) for seed in parse_seeds(self.seeds)]

    def to_preset(self) -> Preset:
        """The fields that do not have their default, as a preset. Raises BadInput where one of them is invalid."""
        if changed := self.changed():  # others may still be empty
            self.require_valid(*changed)
        return Preset(self.worker, self.algorithm, self.values(), self.seeds, self.rest)

    def command_line(self) -> str:
        """The same run as a command for a terminal."""
        payload = self.payloads(0.0)[0]
        if self.rest:
            return f"printf %s {shlex.quote(json.dumps(payload))} | mosaic submit -"
        config = payload["metadata"]["worker"]["config"]
        words = ["mosaic", "train", command_name(self.worker, self.algorithm)]
        if self.layout.algorithm.is_user_script:
            places = {"--cleanrl": self.cleanrl, "--cleanrl-python": self.cleanrl_python}
            words += [word for flag, place in places.items() if place for word in (flag, place)]
        for name in CORE_FIELD_NAMES:
            if name == "seed" and self.seeds is not None:
                words += ["--seeds", self.seeds.replace(" ", "")]
            elif name in config:
                words += [self.fields[name].flag, format_value(config[name])]
        for name, value in self.values().items():
            if name not in CORE_FIELD_NAMES:
                words += _to_flags(self.fields[name], value)
        return shlex.join(words)

    def summary(self) -> str:
        """`ppo · CartPole-v1 · seed 1`."""
        seed = f"seeds {self.seeds}" if self.seeds is not None else f"seed {self.text('seed')}"
        return " · ".join((self.algorithm, self.env_id or "no environment", seed))


def draft_from_payload(payload: dict[str, Any], cleanrl: str = "", cleanrl_python: str = "") -> Draft:
    """The draft that builds this payload, with this CleanRL of the user's where it names none.

    Raises BadInput where no form can show it.
    """
    rest = translate_extras(payload).data
    worker = str(_pop_path(rest, ("metadata", "worker", "id"), ""))
    algorithm = str(_pop_path(rest, OPTIONS["algo"].keys, ""))
    given = [str(_pop_path(rest, (*CONFIG_PATH.split("."), key), "")) for key in ("cleanrl", "cleanrl_python")]
    places = given if any(given) else [cleanrl, cleanrl_python]
    draft = Draft(worker, algorithm, cleanrl=places[0], cleanrl_python=places[1])
    for name, setting in draft.fields.items():
        value = _pop_path(rest, setting_path(name), setting.default)
        if value != setting.default:
            draft = draft.with_text(name, format_setting(setting, value))
    _pop_path(rest, ("resources", "gpus", "mandatory"), None)
    return replace(draft, rest=_drop_empty(rest))


def draft_from_preset(preset: Preset, cleanrl: str = "", cleanrl_python: str = "") -> Draft:
    """The draft that shows it. Raises BadInput where no form can."""
    return replace(draft_from_payload(preset.build_payload({}, {}), cleanrl, cleanrl_python), seeds=preset.seeds)


def _pop_path(data: dict[str, Any], path: tuple[str, ...], default: Any) -> Any:
    """Remove the value at a path and return it, or `default` where there is none."""
    *parents, last = path
    section: Any = data
    for parent in parents:
        section = section.get(parent)
        if not isinstance(section, dict):
            return default
    return section.pop(last, default)


def _drop_empty(data: dict[str, Any]) -> dict[str, Any]:
    pruned = {key: _drop_empty(value) if isinstance(value, dict) else value for key, value in data.items()}
    return {key: value for key, value in pruned.items() if value != {}}


def _to_flags(setting: SettingField, value: Any) -> list[str]:
    flag = setting.flag
    if setting.type in ("names", "wrappers"):
        return [word for name in value or () for word in (flag, name)]
    if setting.type == "bool":
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, "none" if value is None else format_setting(setting, value)]
