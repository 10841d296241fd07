"""Command-line flags for the options of a run and for the settings of an algorithm."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import click

from mosaic.contracts.options import OPTIONS
from mosaic.contracts.setting_field import SettingField

AnyFunction = TypeVar("AnyFunction", bound=Callable[..., Any])


class SettingType(click.ParamType[Any]):
    """Parses one setting; an error names it and what was expected."""

    def __init__(self, field: SettingField) -> None:
        self.field = field
        self.name = {"int": "integer", "float": "number", "name": "name", "names": "name"}.get(field.type, "text")

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return self.field.parse(value) if isinstance(value, str) else value

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:
        choices = (self.field.constraints or {}).get("choices")
        return "|".join(map(str, choices)) if choices else self.name.upper()


class SettingOption(click.Option):
    """An option that belongs to a section of the help page."""

    section = ""


def build_flag(field: SettingField, section: str = "") -> click.Option:
    words = field.help.strip()
    if field.default is not None:
        shown = str(field.default).lower() if isinstance(field.default, bool) else field.default
        words = f"{words}  [default: {shown}]"
    flag = field.flag
    if field.type == "bool":
        option = SettingOption([field.name, f"{flag}/--no-{flag[2:]}"], default=None, help=words)
    elif field.type == "names":
        option = SettingOption(
            [field.name, flag], multiple=True, metavar="NAME", help=f"{words} Can be given several times."
        )
    else:
        option = SettingOption([field.name, flag], type=SettingType(field), help=words)
        if field.name == "env_id":
            option._custom_shell_complete = _complete_env_id
    option.section = section
    return option


def _complete_env_id(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[Any]:
    from mosaic.cli.completion import env_ids

    return [env_id for env_id in env_ids(ctx) if env_id.startswith(incomplete)]


def run_options(*names: str) -> Callable[[AnyFunction], AnyFunction]:
    """A decorator that adds the flags of these options to a command, in this order."""

    def decorate(function: AnyFunction) -> AnyFunction:
        params = getattr(function, "__click_params__", [])
        function.__click_params__ = [*params, *(build_flag(OPTIONS[name]) for name in reversed(names))]  # type: ignore[attr-defined]
        return function

    return decorate
