"""Which algorithms can be trained, and where the form shows which of their settings. No widget here."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import cache, cached_property

from mosaic.contracts.errors import BadInput
from mosaic.contracts.options import CORE_GROUP, OPTIONS, Option
from mosaic.contracts.setting_field import SettingField
from mosaic.formatting import capitalize_first
from mosaic.gui.models.form import FormSection
from mosaic.submission.algorithm_schema import (
    Algorithm,
    ScriptFolder,
    find_installed_scripts,
    load_algorithms,
    open_script_folder,
    supported_options,
)

_SETTINGS_ON_THE_RIGHT = {"Checkpoints": ("checkpoint_every", "checkpoint_minutes")}
"""Settings of algorithms that are shown among the options, after the first one of a section."""
_SETTINGS_OF_ENVIRONMENT = ("env_kwargs", "wrappers")
"""Settings of algorithms that are shown below the environment."""


@dataclass(frozen=True)
class FormLayout:
    algorithm: Algorithm
    core: tuple[SettingField, ...]
    """Environment, steps and seed."""
    left: tuple[FormSection, ...]
    right: tuple[FormSection, ...]

    @cached_property
    def fields(self) -> dict[str, SettingField]:
        """All of them, in the order in which they are read."""
        fields = [*self.core]
        for section in (*self.left, *self.right):
            fields += section.fields
        return {field.name: field for field in fields}


@cache
def _all_algorithms() -> tuple[Algorithm, ...]:
    """Read once: which workers there are does not change while the window is open."""
    return tuple(load_algorithms().values())


@cache
def algorithms_by_worker() -> dict[str, tuple[str, ...]]:
    """Workers with algorithms to choose from, and their names."""
    names: dict[str, list[str]] = {}
    for algorithm in _all_algorithms():
        names.setdefault(algorithm.worker.id, []).append(algorithm.name)
    return {worker: tuple(of_worker) for worker, of_worker in names.items()}


@cache
def worker_algorithms(worker: str) -> tuple[Algorithm, ...]:
    """The algorithms of a worker, without scripts."""
    return tuple(algorithm for algorithm in _all_algorithms() if algorithm.worker.id == worker)


@cache
def _open_scripts(cleanrl: str) -> ScriptFolder | None:
    return open_script_folder(cleanrl) if cleanrl else find_installed_scripts()


def script_names(worker: str, cleanrl: str = "") -> tuple[str, ...]:
    """The scripts in a user's folder, else those of an installed package, which are trained but not evaluated.

    Raises BadInput where the folder has none.
    """
    scripts = _open_scripts(cleanrl)
    return scripts.names if scripts is not None and scripts.worker.id == worker else ()


def forget_scripts() -> None:
    """Read them again: they may have been edited."""
    _open_scripts.cache_clear()
    get_layout.cache_clear()


@cache
def get_layout(worker: str, name: str, cleanrl: str = "", cleanrl_python: str = "") -> FormLayout:
    for algorithm in _all_algorithms():
        if (algorithm.worker.id, algorithm.name) == (worker, name):
            return build_layout(algorithm, supported_options(worker))
    if ":" in name and name in script_names(worker, cleanrl) and (scripts := _open_scripts(cleanrl)):
        python = {"cleanrl_python": cleanrl_python} if cleanrl_python else {}
        algorithm = scripts.load(name, **python)
        return build_layout(algorithm, algorithm.run_options)  # and the options that it states
    hint = "Choose your CleanRL in the form, or submit it" if ":" in name else "Install its worker, or submit it"
    raise BadInput(f"The form has no algorithm {name!r} of the worker {worker!r}. {hint} with: mosaic submit")


def build_layout(algorithm: Algorithm, options: Iterable[Option]) -> FormLayout:
    """Settings of the algorithm at the left, as its Config orders them; the options of the run at the right."""
    stated = {field.name: field for field in algorithm.fields}
    supported = {option.name for option in options}
    shown: dict[str, list[SettingField]] = {}
    for option in OPTIONS.values():
        if option.group and (option.name in supported or option.name in stated):
            shown.setdefault(option.group, []).append(stated.get(option.name, option))
    main = shown.pop(CORE_GROUP, [])
    core = (*main[:1], *(stated[name] for name in _SETTINGS_OF_ENVIRONMENT if name in stated), *main[1:])
    for title, names in _SETTINGS_ON_THE_RIGHT.items():
        if beside := [stated[name] for name in names if name in stated]:
            shown.setdefault(title, [])[1:1] = beside
    elsewhere = {*OPTIONS, *_SETTINGS_OF_ENVIRONMENT, *(field.name for fields in shown.values() for field in fields)}
    groups: dict[str, list[SettingField]] = {}
    for field in algorithm.fields:
        if field.name not in elsewhere:
            groups.setdefault(field.group, []).append(field)
    left = tuple(FormSection(capitalize_first(title), tuple(fields)) for title, fields in groups.items())
    right = tuple(FormSection(title, tuple(fields)) for title, fields in shown.items())
    return FormLayout(algorithm, core, left, right)
