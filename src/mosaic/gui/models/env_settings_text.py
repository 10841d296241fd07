"""The settings of an environment as the text of one field, a JSON object, and as texts of their own. No widget here."""

from __future__ import annotations

import json
from collections.abc import Collection, Sequence
from typing import Any

from mosaic.contracts.errors import BadInput
from mosaic.contracts.setting_field import SettingField
from mosaic.gui.models.draft import parse_value
from mosaic.gui.models.form_layout import format_setting
from mosaic.gui.models.game_draft import parse_arguments

FIELD_NAME = "env_kwargs"


def read_object(text: str) -> dict[str, Any]:
    """Empty where it is not a JSON object."""
    try:
        return parse_arguments(text)
    except BadInput:
        return {}


def setting_texts(settings: Sequence[SettingField], text: str) -> dict[str, str]:
    """The texts of those settings that are in the object; a text that is not a value is there as it was typed."""
    given = read_object(text)
    return {
        one.name: given[one.name] if isinstance(given[one.name], str) else format_setting(one, given[one.name])
        for one in settings
        if one.name in given
    }


def with_setting(text: str, setting: SettingField, value_text: str) -> str:
    """Return the object with another value of a setting; one that has its default is left out."""
    given = {name: value for name, value in read_object(text).items() if name != setting.name}
    try:
        value = parse_value(setting, value_text)
    except BadInput:
        value = value_text
    if value != setting.default:
        given[setting.name] = value
    return _format(given)


def others_text(settings: Sequence[SettingField], text: str) -> str:
    """What is in the object besides the settings that have rows; the text itself where it is not an object."""
    try:
        given = parse_arguments(text)
    except BadInput:
        return text
    known = {one.name for one in settings}
    return _format({name: value for name, value in given.items() if name not in known})


def with_others(text: str, settings: Sequence[SettingField], others: str) -> str:
    """Return the object with other arguments besides the settings that have rows; invalid ones replace it."""
    try:
        arguments = parse_arguments(others)
    except BadInput:
        return others
    given = read_object(text)
    kept = {one.name: given[one.name] for one in settings if one.name in given}
    return _format({**kept, **arguments})


def without_settings(text: str, names: Collection[str]) -> str:
    """Return the object without these settings."""
    return _format({name: value for name, value in read_object(text).items() if name not in names})


def settings_problems(settings: Sequence[SettingField], text: str) -> dict[str, str]:
    """What is wrong with the settings that have rows, by name."""
    given = read_object(text)
    return {
        one.name: f"Expected {one.expected_values}."
        for one in settings
        if one.name in given and not _is_value(one, given[one.name])
    }


def _is_value(setting: SettingField, value: Any) -> bool:
    """Text is not a value of a setting that is written as JSON: it is what could not be read."""
    return setting.accepts(value) and not (setting.type == "json" and isinstance(value, str))


def object_problem(text: str) -> str:
    """Why the text is not an object; empty where it is one, or nothing."""
    try:
        parse_arguments(text)
    except BadInput as error:
        return str(error)
    return ""


def _format(given: dict[str, Any]) -> str:
    return json.dumps(given) if given else ""
