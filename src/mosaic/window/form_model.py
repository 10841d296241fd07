"""What a form holds: fields with their texts, what is wrong with them and what they mean. No widget here."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, Self

from mosaic.base.formatting import capitalize_first, count_noun, join_words
from mosaic.contracts.arguments import ARGUMENTS_DESCRIPTION, parse_arguments
from mosaic.contracts.errors import BadInput, FieldProblem, MosaicError
from mosaic.contracts.options import OPTIONS
from mosaic.contracts.setting_field import SettingField

SETTING_UNITS = {"checkpoint_every": "steps", "checkpoint_minutes": "min", "eval_every": "steps"}
SETTING_LABELS = {
    "exp_name": "Experiment name",
    "env_kwargs": "Its settings",
    "checkpoint_every": "Every",
    "checkpoint_minutes": "At least every",
    "eval_every": "Evaluate every",
    "norm_adv": "Normalize advantages",
    "adv_norm_fullbatch": "Normalize advantages",
    "n_iteration": "Updates per phase",
    "e_policy": "Policy epochs",
    "v_value": "Value epochs",
    "e_auxiliary": "Auxiliary epochs",
    "num_aux_rollouts": "Rollouts per auxiliary minibatch",
    "n_aux_grad_accum": "Minibatches per auxiliary step",
    "torch_deterministic": "Deterministic",
}
"""For settings of algorithms; options have their own."""
_ABBREVIATIONS = {
    "gae": "GAE", "kl": "KL", "cuda": "CUDA", "cpus": "CPUs", "gpus": "GPUs",
    "lr": "learning rate", "envs": "environments", "coef": "coefficient", "adv": "advantages", "ent": "entropy",
    "vf": "value", "eval": "evaluation", "vloss": "value loss", "grad": "gradient", "num": "",
}  # fmt: skip
"""The meaning of abbreviations in names of settings."""


class Form:
    """Texts of fields. A dataclass that inherits it is a draft: what a form shows, remembers and submits."""

    texts: Mapping[str, str]
    """Of the fields that do not have their default, by name."""

    @property
    def fields(self) -> Mapping[str, SettingField]:
        """By name, in the order in which they are read."""
        raise NotImplementedError

    def default_text(self, name: str) -> str:
        """What an unchanged field shows."""
        return format_setting(self.fields[name], self.fields[name].default)

    def text(self, name: str) -> str:
        return self.texts[name] if name in self.texts else self.default_text(name)

    def value(self, name: str) -> Any:
        """Raises BadInput where the text is invalid."""
        return parse_value(self.fields[name], self.text(name))

    def with_text(self, name: str, text: str) -> Self:
        """A field that has its default again is left out."""
        texts = {other: its for other, its in self.texts.items() if other != name}
        if not _is_same(self.fields[name], text, self.default_text(name)):
            texts[name] = text
        return replace(self, texts=texts)  # type: ignore[type-var]

    def is_changed(self, name: str) -> bool:
        # A text that was written for another algorithm may be the default of this one.
        return name in self.texts and not _is_same(self.fields[name], self.texts[name], self.default_text(name))

    def changed(self) -> list[str]:
        """The names of the fields that do not have their default."""
        return [name for name in self.fields if self.is_changed(name)]

    def problems(self) -> dict[str, str]:
        """What is wrong, by field."""
        found = {name: field_problem(one, self.text(name)) for name, one in self.fields.items()}
        return {name: problem for name, problem in found.items() if problem}

    def require_valid(self, *names: str) -> None:
        """Raise BadInput with all problems; with `names`, those of these fields."""
        found = {name: text for name, text in self.problems().items() if not names or name in names}
        if found:
            listed = "; ".join(f"{name}: {problem}" for name, problem in found.items())
            raise BadInput(listed, [FieldProblem(*problem) for problem in found.items()])

    def values(self, *names: str) -> dict[str, Any]:
        """Of these fields; without names, of those that do not have their default. Raises BadInput."""
        return {name: self.value(name) for name in names or [name for name in self.fields if name in self.texts]}

    def label(self, name: str) -> str:
        return field_label(self.fields[name]) if name in self.fields else capitalize_first(name.replace("_", " "))

    def describe(self, problems: Mapping[str, str]) -> str:
        """One sentence: the problem where there is one, else the fields that have one."""
        if len(problems) > 1:
            labels = join_words([self.label(name) for name in problems])
            return f"{count_noun(len(problems), 'setting')} to correct: {labels}."
        return "".join(
            f"{self.label(name)}: {problem}" if name in self.fields else problem for name, problem in problems.items()
        )


@dataclass(frozen=True)
class FieldTexts(Form):
    """A form of any fields."""

    settings: tuple[SettingField, ...] = ()
    texts: Mapping[str, str] = field(default_factory=dict)

    @property
    def fields(self) -> Mapping[str, SettingField]:
        return {setting.name: setting for setting in self.settings}


@dataclass(frozen=True)
class FormSection:
    """Fields that are shown together."""

    title: str
    fields: tuple[SettingField, ...]


class Refusals:
    """Why values were refused, at the fields that were named, until one of them is changed."""

    def __init__(self) -> None:
        self._names: dict[str, list[str]] = {}
        """By message: those of values that do not fit together have the same one."""

    def take(self, error: Exception, names: Iterable[str]) -> bool:
        """Keep what an error says about these fields; return whether that is all that it says."""
        known, self._names = set(names), {}
        problems = error.problems if isinstance(error, MosaicError) else ()
        for problem in problems:
            if problem.setting in known:
                message = f"{capitalize_first(problem.problem).removesuffix('.')}."
                self._names.setdefault(message, []).append(problem.setting)
        return bool(problems) and all(problem.setting in known for problem in problems)

    def drop(self, name: str) -> None:
        self._names = {message: names for message, names in self._names.items() if name not in names}

    def messages(self, form: Form) -> dict[str, str]:
        """By field, changed ones first; of those that do not fit together, only the changed ones if any is."""
        found: dict[str, str] = {}
        for message, names in self._names.items():
            for name in [name for name in names if form.is_changed(name)] or names:
                found.setdefault(name, message)
        return dict(sorted(found.items(), key=lambda item: not form.is_changed(item[0])))


# --- one field


def parse_value(setting: SettingField, text: str) -> Any:
    """The value of a field; an empty one has its default, or is unset if it is optional."""
    if not text.strip():
        return None if setting.is_optional else setting.default
    return text if setting.type == "text" else setting.parse(text.strip())


def _is_same(setting: SettingField, text: str, other: str) -> bool:
    """Whether both texts mean the same value."""
    try:
        return bool(parse_value(setting, text) == parse_value(setting, other))
    except BadInput:
        return False


def field_problem(setting: SettingField, text: str) -> str:
    """What is wrong with it; empty where nothing is."""
    try:
        value = parse_value(setting, text)
    except BadInput:
        return f"Expected {setting.expected_values}."
    return "Required." if value is None and not setting.is_optional else ""


# --- the settings of an environment, which are one object in a config


def parse_object(text: str) -> dict[str, Any]:
    """Raises BadInput where it cannot be read."""
    try:
        return parse_arguments(text)
    except ValueError:
        raise BadInput(f"Expected {ARGUMENTS_DESCRIPTION}.") from None


def format_object(given: Mapping[str, Any]) -> str:
    return json.dumps(given) if given else ""


def read_object(settings: Iterable[SettingField], text: str) -> tuple[FieldTexts, dict[str, Any]]:
    """Of an object's text, the settings that are known, as a form, and what else is in it. Raises BadInput."""
    others = parse_object(text)
    known = tuple(settings)
    given = [(one, others.pop(one.name)) for one in known if one.name in others]
    # A text that is not a value is there as it was typed.
    texts = {one.name: value if isinstance(value, str) else format_setting(one, value) for one, value in given}
    return FieldTexts(known, texts), others


def write_object(form: FieldTexts, others: Mapping[str, Any]) -> str:
    values: dict[str, Any] = {}
    for name, text in form.texts.items():
        values[name] = text if field_problem(form.fields[name], text) else form.value(name)
    return format_object(values | dict(others))


# --- words


def field_label(field: SettingField) -> str:
    label = OPTIONS[field.name].label if field.name in OPTIONS else SETTING_LABELS.get(field.name)
    return label or capitalize_first(
        " ".join(filter(None, (_ABBREVIATIONS.get(word, word) for word in field.name.split("_"))))
    )


def field_unit(field: SettingField) -> str:
    return OPTIONS[field.name].unit if field.name in OPTIONS else SETTING_UNITS.get(field.name, "")


def format_value(value: Any) -> str:
    """A value as a person would write it."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict):
        return json.dumps(value)
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return str(value)


def format_setting(field: SettingField, value: Any) -> str:
    """A value as it is written into its field."""
    return json.dumps(value) if field.type in ("json", "mapping") and value is not None else format_value(value)


def format_default(field: SettingField) -> str:
    return format_setting(field, field.default) or "unset"


def field_tooltip(field: SettingField) -> str:
    """Everything about a field, for its tool tip."""
    unit = f" {field_unit(field)}" if field_unit(field) and field.default is not None else ""
    return f"{field.help}\n{field.name}: {field.expected_values}. Default: {format_default(field)}{unit}."
