"""The content of the train form: validated as it is typed, and converted to payloads and back. No widget here."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.extras import translate_extras
from mosaic.contracts.options import CONFIG_PATH, OPTIONS
from mosaic.contracts.setting_field import SettingField
from mosaic.formatting import capitalize_first
from mosaic.gui.models.form_layout import FormLayout, format_setting, format_value, get_layout
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
class Draft:
    worker: str
    algorithm: str
    texts: Mapping[str, str] = field(default_factory=dict)
    """The texts of fields that do not have their default, by name."""
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

    def with_text(self, setting: SettingField, text: str) -> Draft:
        """A field that has its default again is left out."""
        texts = {name: other for name, other in self.texts.items() if name != setting.name}
        if not is_default(setting, text):
            texts[setting.name] = text
        return replace(self, texts=texts)


# --- one field


def parse_value(setting: SettingField, text: str) -> Any:
    """The value of a field; an empty one has its default, or is unset if it is optional."""
    if not text.strip():
        return None if setting.is_optional else setting.default
    return text if setting.type == "text" else setting.parse(text.strip())


def is_default(setting: SettingField, text: str) -> bool:
    try:
        return bool(parse_value(setting, text) == setting.default)
    except BadInput:
        return False


def field_problem(setting: SettingField, text: str) -> str:
    """What is wrong with it; empty where nothing is."""
    try:
        value = parse_value(setting, text)
    except BadInput:
        return f"Expected {setting.expected_values}."
    return "Required." if value is None and not setting.is_optional else ""


def raise_first_problem(problems: Mapping[str, str]) -> None:
    if problems:
        name, problem = next(iter(problems.items()))
        raise BadInput(f"{name}: {problem}")


def seeds_problem(text: str) -> str:
    try:
        parse_seeds(text)
    except BadInput as error:
        return error.problems[0].problem
    return ""


# --- the whole form


def field_text(draft: Draft, setting: SettingField) -> str:
    return draft.texts.get(setting.name, format_setting(setting, setting.default))


def problems(layout: FormLayout, draft: Draft) -> dict[str, str]:
    """By field, in the form's order."""
    by_field = {name: field_problem(field, field_text(draft, field)) for name, field in layout.fields.items()}
    if draft.seeds is not None:
        by_field["seed"] = seeds_problem(draft.seeds)
    return {name: problem for name, problem in by_field.items() if problem}


def changed_fields(layout: FormLayout, draft: Draft) -> set[str]:
    """The names of the fields that do not have their default.

    A text that was written for another algorithm may be the default of this one, or have no field here.
    """
    fields = layout.fields
    changed = {name for name, text in draft.texts.items() if name in fields and not is_default(fields[name], text)}
    return changed | ({"seed"} if draft.seeds is not None else set())


def changed_values(layout: FormLayout, draft: Draft) -> dict[str, Any]:
    """The values of all fields that do not have their default."""
    fields = layout.fields
    return {name: parse_value(field, draft.texts[name]) for name, field in fields.items() if name in draft.texts}


def build_payloads(layout: FormLayout, draft: Draft, now: float) -> list[dict[str, Any]]:
    """One for each seed. Raises BadInput where a field is invalid."""
    raise_first_problem(problems(layout, draft))
    defaults = {field.name: field.default for field in layout.core}
    payload = build_train_payload(draft.worker, draft.algorithm, changed_values(layout, draft), defaults)
    payload["metadata"]["worker"]["config"].update(layout.algorithm.location)
    payload = merge_payloads(draft.rest, payload)
    if draft.seeds is None:
        return [payload]
    env_id = payload["metadata"]["worker"]["config"].get("env_id", "")
    group = payload["metadata"].get("group") or default_group_name(draft.algorithm, env_id, now)
    return [with_seed(payload, seed, group) for seed in parse_seeds(draft.seeds)]


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
    for name, setting in draft.layout.fields.items():
        value = _pop_path(rest, setting_path(name), setting.default)
        if value != setting.default:
            draft = draft.with_text(setting, format_setting(setting, value))
    _pop_path(rest, ("resources", "gpus", "mandatory"), None)
    return replace(draft, rest=_drop_empty(rest))


def preset_from_draft(layout: FormLayout, draft: Draft) -> Preset:
    """The fields that do not have their default, as a preset. Raises BadInput where one is invalid."""
    changed = changed_fields(layout, draft)  # others may still be empty
    raise_first_problem({name: problem for name, problem in problems(layout, draft).items() if name in changed})
    return Preset(draft.worker, draft.algorithm, changed_values(layout, draft), draft.seeds, draft.rest)


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


# --- as text


def to_command_line(layout: FormLayout, draft: Draft) -> str:
    """The same run as a command for a terminal."""
    payloads = build_payloads(layout, draft, 0.0)
    if draft.rest:
        return f"printf %s {shlex.quote(json.dumps(payloads[0]))} | mosaic submit -"
    values = changed_values(layout, draft)
    config = payloads[0]["metadata"]["worker"]["config"]
    words = ["mosaic", "train", command_name(draft.worker, draft.algorithm)]
    if layout.algorithm.is_user_script:
        places = {"--cleanrl": draft.cleanrl, "--cleanrl-python": draft.cleanrl_python}
        words += [word for flag, place in places.items() if place for word in (flag, place)]
    for name in CORE_FIELD_NAMES:
        if name == "seed" and draft.seeds is not None:
            words += ["--seeds", draft.seeds.replace(" ", "")]
        elif name in config:
            words += [layout.fields[name].flag, format_value(config[name])]
    for name, value in values.items():
        if name not in CORE_FIELD_NAMES:
            words += _to_flags(layout.fields[name], value)
    return shlex.join(words)


def _to_flags(setting: SettingField, value: Any) -> list[str]:
    flag = setting.flag
    if setting.type in ("names", "wrappers"):
        return [word for name in value or () for word in (flag, name)]
    if setting.type == "bool":
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, "none" if value is None else format_setting(setting, value)]


def find_field_errors(error: Exception, names: Collection[str], changed: Collection[str] = ()) -> dict[str, str]:
    """Return the fields that a refusal concerns, changed ones first, and its message for each.

    Of fields with the same message, whose values do not fit together, only those that were changed if any was.
    """
    messages: dict[str, str] = {}
    for problem in error.problems if isinstance(error, MosaicError) else ():
        if problem.setting in names:
            messages.setdefault(problem.setting, f"{capitalize_first(problem.problem).removesuffix('.')}.")
    of_changed = {name: message for name, message in messages.items() if name in changed}
    explained = set(of_changed.values())
    return of_changed | {name: message for name, message in messages.items() if message not in explained}


def summary_line(draft: Draft, layout: FormLayout) -> str:
    """`ppo · CartPole-v1 · seed 1`."""
    env_id = field_text(draft, layout.fields["env_id"]).strip()
    seed = f"seeds {draft.seeds}" if draft.seeds is not None else f"seed {field_text(draft, layout.fields['seed'])}"
    return " · ".join((draft.algorithm, env_id or "no environment", seed))
