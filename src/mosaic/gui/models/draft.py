"""The content of the train form: validated as it is typed, and turned into payloads. No widget here."""

from __future__ import annotations

import copy
import json
import shlex
from collections.abc import Collection, Mapping
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from mosaic.contracts.errors import BadInput, MosaicError
from mosaic.contracts.extras import translate_extras
from mosaic.contracts.options import OPTIONS_BY_PATH
from mosaic.contracts.setting_field import SettingField
from mosaic.gui.models.form_layout import FormLayout, format_value, get_layout
from mosaic.submission.algorithm_schema import load_algorithms
from mosaic.submission.run_payloads import (
    CORE_FIELD_NAMES,
    build_train_payload,
    default_group_name,
    parse_seeds,
    setting_path,
    with_seed,
)

Json = dict[str, Any]


@dataclass(frozen=True)
class Draft:
    worker: str
    algorithm: str
    texts: Mapping[str, str] = field(default_factory=dict)
    """What was written into fields that do not have their default, by name."""
    seeds: str | None = None
    """Several of them as written, such as 1-5; None: one run with the field's seed."""
    rest: Json = field(default_factory=dict)
    """The parts of an opened payload that the form has no fields for; they are submitted unchanged."""

    def to_json(self) -> Json:
        return asdict(self)

    @classmethod
    def from_json(cls, data: Any) -> Draft | None:
        """None where it is not what `to_json` gave."""
        try:
            draft = cls(**data)
            texts = {str(name): str(text) for name, text in draft.texts.items()}
        except (TypeError, AttributeError):
            return None
        return replace(draft, texts=texts) if isinstance(draft.rest, dict) else None

    def with_text(self, setting: SettingField, text: str) -> Draft:
        """A field that has its default again is not kept."""
        texts = {name: kept for name, kept in self.texts.items() if name != setting.name}
        if not is_default(setting, text):
            texts[setting.name] = text
        return replace(self, texts=texts)


# --- one field


def parse_value(setting: SettingField, text: str) -> Any:
    """The value that was written; an empty field has its default, or is unset where it may be."""
    written = text.strip()
    if not written:
        return None if setting.is_optional else setting.default
    if setting.type == "text":
        return text
    return setting.parse(written)


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
    if value is None and not setting.is_optional:
        return "Required."
    return ""


def seeds_problem(text: str) -> str:
    try:
        parse_seeds(text)
    except BadInput as error:
        return "Expected seeds such as 1-5 or 1,3,7." if "not a list" in str(error) else str(error)
    return ""


# --- the whole form


def field_text(draft: Draft, setting: SettingField) -> str:
    return draft.texts.get(setting.name, format_value(setting.default))


def problems(layout: FormLayout, draft: Draft) -> dict[str, str]:
    """By field, in the form's order."""
    found = {name: field_problem(of, field_text(draft, of)) for name, of in layout.fields.items()}
    if draft.seeds is not None:
        found["seed"] = seeds_problem(draft.seeds)
    return {name: problem for name, problem in found.items() if problem}


def changed_values(layout: FormLayout, draft: Draft) -> Json:
    """The values of all fields that do not have their default."""
    fields = layout.fields
    return {name: parse_value(of, draft.texts[name]) for name, of in fields.items() if name in draft.texts}


def build_payloads(layout: FormLayout, draft: Draft, now: float) -> list[Json]:
    """One for each seed. Raises BadInput where a field is wrong."""
    wrong = problems(layout, draft)
    if wrong:
        name, problem = next(iter(wrong.items()))
        raise BadInput(f"{name}: {problem}")
    payload = _build_payload(layout, draft)
    if draft.seeds is None:
        return [payload]
    env_id = payload["metadata"]["worker"]["config"].get("env_id", "")
    group = payload["metadata"].get("group") or default_group_name(draft.algorithm, env_id, now)
    return [with_seed(payload, seed, group) for seed in parse_seeds(draft.seeds)]


def _build_payload(layout: FormLayout, draft: Draft) -> Json:
    defaults = {of.name: of.default for of in layout.core}
    payload = build_train_payload(draft.worker, draft.algorithm, changed_values(layout, draft), defaults)
    return _deep_merge(draft.rest, payload)


def _deep_merge(under: Json, over: Json) -> Json:
    merged = copy.deepcopy(under)
    for key, value in over.items():
        is_both = isinstance(value, dict) and isinstance(merged.get(key), dict)
        merged[key] = _deep_merge(merged[key], value) if is_both else value
    return merged


def draft_from_payload(payload: Json) -> Draft:
    """The form as this payload would have it filled. Raises BadInput where no form can show it."""
    rest = copy.deepcopy(translate_extras(payload).data)
    chosen = rest.get("metadata", {}).get("worker", {})
    config = chosen.get("config", {})
    worker, algorithm = str(chosen.pop("id", "")), str(config.pop("algo", ""))
    layout = get_layout(worker, algorithm)
    draft = Draft(worker, algorithm)
    for name, of in layout.fields.items():
        found = _pop_path(rest, setting_path(name))
        if found:
            draft = draft.with_text(of, format_value(found[0]))
    _pop_path(rest, ("resources", "gpus", "mandatory"))
    return replace(draft, rest=_drop_empty(rest))


def _pop_path(data: Json, path: tuple[str, ...]) -> list[Any]:
    """Takes the value out of there; empty where there is none."""
    *parents, last = path
    at: Any = data
    for parent in parents:
        at = at.get(parent)
        if not isinstance(at, dict):
            return []
    return [at.pop(last)] if last in at else []


def _drop_empty(data: Json) -> Json:
    kept = {key: _drop_empty(value) if isinstance(value, dict) else value for key, value in data.items()}
    return {key: value for key, value in kept.items() if value != {}}


# --- words about it


def to_command_line(layout: FormLayout, draft: Draft) -> str:
    """The same run as a command for a terminal."""
    payloads = build_payloads(layout, draft, 0.0)
    if draft.rest:
        return f"printf %s {shlex.quote(json.dumps(payloads[0]))} | mosaic submit -"
    values = changed_values(layout, draft)
    config = payloads[0]["metadata"]["worker"]["config"]
    words = ["mosaic", "train", _command_name(layout)]
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
    if setting.type == "names":
        return [word for name in value or () for word in (flag, name)]
    if setting.type == "bool":
        return [flag if value else f"--no-{flag[2:]}"]
    return [flag, "none" if value is None else format_value(value)]


def _command_name(layout: FormLayout) -> str:
    wanted = (layout.algorithm.worker.id, layout.algorithm.name)
    return next(key for key, found in load_algorithms().items() if (found.worker.id, found.name) == wanted)


def find_field_error(error: Exception, names: Collection[str], changed: Collection[str] = ()) -> tuple[str, str] | None:
    """Return the field that a refusal concerns and its message; of several fields, one that was changed."""
    found: dict[str, str] = {}
    for path, problem in error.problems if isinstance(error, MosaicError) else ():
        name = OPTIONS_BY_PATH[path].name if path in OPTIONS_BY_PATH else path.rpartition(".")[2]
        if name in names:
            found.setdefault(name, f"{problem[:1].upper()}{problem[1:].removesuffix('.')}.")
    chosen = next((name for name in found if name in changed), next(iter(found), None))
    return None if chosen is None else (chosen, found[chosen])


def summary_line(draft: Draft, layout: FormLayout) -> str:
    """`ppo · CartPole-v1 · seed 1`."""
    env_id = field_text(draft, layout.fields["env_id"]).strip()
    seed = f"seeds {draft.seeds}" if draft.seeds is not None else f"seed {field_text(draft, layout.fields['seed'])}"
    return " · ".join((draft.algorithm, env_id or "no environment", seed))
