"""The content of the train form, converted to payloads and back. No widget here."""

from __future__ import annotations

import json
import shlex
import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field, replace
from functools import cache, cached_property
from typing import Any

from PySide6.QtCore import QObject, QTimer, Signal

from mosaic.base.algorithm_schema import (
    Algorithm,
    ScriptFolder,
    command_name,
    find_installed_scripts,
    load_algorithms,
    open_script_folder,
    supported_options,
)
from mosaic.base.formatting import capitalize_first
from mosaic.base.run_payloads import (
    CORE_FIELD_NAMES,
    build_train_payload,
    default_group_name,
    merge_payloads,
    parse_seeds,
    setting_path,
    with_seed,
)
from mosaic.base.user_presets import Preset, read_presets, save_preset
from mosaic.contracts.errors import BadInput
from mosaic.contracts.extras import translate_extras
from mosaic.contracts.options import CONFIG_PATH, CORE_GROUP, OPTIONS, Option, RunKind
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import RunView
from mosaic.window.form_model import Form, FormSection, format_setting, format_value
from mosaic.window.settings import GuiSettings

# --- Which algorithms can be trained, and where the form shows which of their settings. No widget here.


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
    for setting in algorithm.fields:
        if setting.name not in elsewhere:
            groups.setdefault(setting.group, []).append(setting)
    left = tuple(FormSection(capitalize_first(title), tuple(fields)) for title, fields in groups.items())
    right = tuple(FormSection(title, tuple(fields)) for title, fields in shown.items())
    return FormLayout(algorithm, core, left, right)


# --- The content of the train form, converted to payloads and back. No widget here.


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


# --- What will be trained next: the draft that the form shows and that "Train Agent" submits.


SAVE_DELAY_MS = 500
DEFAULT_ALGORITHM = "ppo"
MAX_BEST_RUNS = 5


class Training(QObject):
    draft_replaced = Signal()
    """The draft is another one: a preset, a payload, another algorithm."""
    draft_edited = Signal()
    """A field of it has changed."""

    def __init__(self, settings: GuiSettings, parent: QObject | None = None) -> None:
        super().__init__(parent)
        self._settings = settings
        move_presets_to_file(settings)
        self._draft: Draft | None = None
        self._left: dict[str, Draft] = {}
        """By worker: the draft that was shown when another worker was chosen."""
        self._save_timer = QTimer(self, singleShot=True, interval=SAVE_DELAY_MS)
        self._save_timer.timeout.connect(self.save)

    @property
    def draft(self) -> Draft:
        if self._draft is None:
            stored = self._settings.get_for_workspace("train_draft")
            self._draft = _available(Draft.from_json(stored) or default_draft())
        return self._draft

    def edit(self, draft: Draft) -> None:
        """The same form with another value in it."""
        if draft != self.draft:
            self._draft = draft
            self._save_timer.start()
            self.draft_edited.emit()

    def replace(self, draft: Draft) -> None:
        self._draft = draft
        self._save_timer.start()
        self.draft_replaced.emit()

    def choose_worker(self, worker: str, first_algorithm: str) -> None:
        """Whoever comes back to a worker finds what was left there: its algorithm with its settings."""
        left = self.draft
        if worker != left.worker:
            self._left[left.worker] = left
            if worker in self._left:
                self.replace(self._left[worker])
            else:
                self.choose_algorithm(worker, first_algorithm)

    def choose_algorithm(self, worker: str, algorithm: str) -> None:
        """Texts are kept for settings that the other algorithm has too."""
        draft = self.draft
        if (worker, algorithm) != (draft.worker, draft.algorithm):
            self.replace(replace(draft, worker=worker, algorithm=algorithm))

    def choose_cleanrl(self, folder: str, python: str) -> None:
        """Take the scripts of the user's CleanRL from there, as they are now."""
        forget_scripts()
        self.replace(_available(replace(self.draft, cleanrl=folder, cleanrl_python=python)))

    def reset(self) -> None:
        self.replace(replace(self.draft, texts={}, seeds=None, rest={}, source=""))

    def load_payload(self, payload: dict[str, Any], source: str = "") -> None:
        """`source` is the id of the run that it comes from. Raises BadInput where no form can show it."""
        draft = self.draft
        self.replace(replace(draft_from_payload(payload, draft.cleanrl, draft.cleanrl_python), source=source))

    def save(self) -> None:
        self._save_timer.stop()
        if self._draft is not None:
            self._settings.put_for_workspace("train_draft", self._draft.to_json())

    def payloads(self) -> list[dict[str, Any]]:
        """One for each seed. Raises BadInput where a field is invalid."""
        return self.draft.payloads(time.time())

    def load_preset(self, preset: Preset) -> None:
        """Raises BadInput where no form can show it."""
        self.replace(draft_from_preset(preset, self.draft.cleanrl, self.draft.cleanrl_python))


def default_draft() -> Draft:
    """A draft without changes, for PPO where a worker has it."""
    known = algorithms_by_worker()
    if not known:
        raise BadInput("No worker with algorithms is installed: pip install 'mosaic-rl[train]'")
    worker, names = next(iter(known.items()))
    return Draft(worker, DEFAULT_ALGORITHM if DEFAULT_ALGORITHM in names else names[0])


def _available(draft: Draft) -> Draft:
    """The draft; where its algorithm is not here any more, one of the default algorithm."""
    try:
        is_here = bool(draft.layout.fields)
    except BadInput:
        is_here = False
    if is_here:
        return draft
    default = default_draft()
    return replace(default, texts=draft.texts, cleanrl=draft.cleanrl, cleanrl_python=draft.cleanrl_python)


def move_presets_to_file(settings: GuiSettings) -> None:
    """Move presets from the window's settings, where it kept them before, to the file that commands read, too.

    One that cannot be read, such as that of a worker which is not installed, stays until it can be.
    """
    earlier = settings.get("presets", {})
    if not earlier or not isinstance(earlier, dict):
        return
    with suppress(BadInput):
        known = read_presets()
        for name, stored in list(earlier.items()):
            with suppress(BadInput):
                draft = Draft.from_json(stored)
                if name not in known and draft is not None:
                    save_preset(name, draft.to_preset())
                    del earlier[name]
        settings.put("presets", earlier)
        settings.flush()


def best_runs(views: Iterable[RunView], env_id: str) -> list[RunView]:
    """The finished trainings in this environment with the highest returns, one for each algorithm, the best first."""
    best: dict[str | None, RunView] = {}
    ended = [view for view in views if view.kind == RunKind.TRAIN and view.has_succeeded]
    for view in sorted(ended, key=_return):
        if view.env_id == env_id and view.worker != "script" and view.episodic_return is not None:
            best[view.algo] = view
    return sorted(best.values(), key=_return, reverse=True)[:MAX_BEST_RUNS]


def _return(view: RunView) -> float:
    return view.episodic_return if view.episodic_return is not None else float("-inf")
