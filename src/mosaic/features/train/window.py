"""The train page: the form, its presets, and the help next to it."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from typing import Any

from PySide6.QtCore import QEvent, QObject, QSignalBlocker, Qt
from PySide6.QtGui import (
    QGuiApplication,
    QHideEvent,
    QKeyEvent,
    QShowEvent,
)
from PySide6.QtWidgets import QInputDialog, QMenu, QToolButton, QWidget

from mosaic.base.algorithm_schema import Algorithm, load_algorithms
from mosaic.base.formatting import count_noun, format_number, run_title, short_id
from mosaic.base.user_presets import TUNED_PRESETS, Preset, TunedPreset, read_presets
from mosaic.base.worker_registry import get_worker
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.contracts.setting_field import SettingField
from mosaic.contracts.views import EnvironmentDetails, RunView
from mosaic.features.evaluate.window_model import is_evaluation
from mosaic.features.train.core import earlier_runs, estimate_run
from mosaic.features.train.window_help import HelpPanel
from mosaic.features.train.window_model import Draft, algorithms_by_worker, best_runs, script_names, worker_algorithms
from mosaic.features.train.window_welcome import WelcomePage
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window import widgets as ui
from mosaic.window.actions import find_action
from mosaic.window.environments import EnvironmentFinding, algorithm_groups, check_environment, environment_problem
from mosaic.window.fields import PathField
from mosaic.window.form import Expectation, FormColumns, SubmitView
from mosaic.window.form_model import FormSection, Refusals, format_object, parse_object, read_object
from mosaic.window.form_rows import (
    AlgorithmBox,
    EnvironmentRow,
    EnvironmentSettingsRow,
    FieldRow,
    LabelledRow,
    SeedRow,
    form_combo,
)
from mosaic.window.specs import Page
from mosaic.window.widgets import WrappingRow
from mosaic.window.workbench import Workbench

ENV_KWARGS = "env_kwargs"
HELP_WIDTH = 330  # the form needs the rest of a page of a window of 1366 pixels
MIN_WIDTH_WITH_HELP = 1100
"""Wide enough for the help to be open unless it was closed."""
WARNING_DELAY_MS = 300
"""After the last key."""


class TrainPage(QWidget):
    """Creates its form when it is first shown, so that the window opens without waiting for it."""

    def __init__(self, workbench: Workbench) -> None:
        super().__init__()
        self._workbench = workbench
        self._column = ui.column(parent=self)
        workbench.form_requested.connect(self._on_form_requested)
        workbench.edit_requested.connect(lambda run_id, payload: self._on_form_requested(payload, run_id))

    def _on_form_requested(self, payload: dict[str, Any] | None, run_id: str = "") -> None:
        """`run_id`: the run whose payload it is."""
        if payload is not None:
            if is_evaluation(payload):
                return  # the policy form takes it
            try:
                self._workbench.replace_form(
                    "The form shows the settings of a run.",
                    "fill the form from a run",
                    partial(self._workbench.training.load_payload, payload, run_id),
                )
            except BadInput as error:
                self._workbench.show_error(error)
                return
        self._workbench.page_requested.emit("train")
        if (view := self.findChild(TrainView)) is not None:
            view.begin()

    def showEvent(self, event: QShowEvent) -> None:
        if self._column.count() == 0:
            try:
                self._column.addWidget(TrainView(self._workbench))
            except BadInput as error:
                self._column.addWidget(ui.EmptyState("Nothing to train with", str(error)))
        super().showEvent(event)


class TrainView(SubmitView):
    def __init__(self, workbench: Workbench) -> None:
        tip = "Ask the worker to check the settings; nothing is started"
        super().__init__(workbench, "train", "Submit", "Start it", tip)
        self._training = workbench.training
        self._environments = workbench.environments
        self._has_scripts = not workbench.is_remote
        """Whether programs of the user's can be started: the trainer is on this machine."""
        self._settings_before: tuple[SettingField, ...] = ()
        """Of the environment from which the user has changed to another one that is not described yet."""
        self._choice_rows = self._build_choice()
        self.columns = FormColumns("train", self.add_row, self._choice_rows, "What to train")
        self.columns.built.connect(self._show_environments)
        self.columns.dropped.connect(lambda name: self.rows.pop(name, None))
        self.help = HelpPanel()
        self._split = ui.splitter(
            Qt.Orientation.Horizontal, self.columns, self.help, sizes=[], stretch=0, name="train.split"
        )
        self._split.setCollapsible(1, True)
        ui.column(
            self._build_header(),
            self._build_source_line(),
            (self._split, 1),
            self.line,
            self._build_bottom_bar(),
            parent=self,
            margins=ui.PAGE_MARGINS,
        )
        self._warning_timer = ui.create_timer(self, WARNING_DELAY_MS, self._warn_of_steps, is_single_shot=True)
        self._training.draft_edited.connect(self.on_form_changed)
        self._training.draft_edited.connect(self._warning_timer.start)
        self._training.draft_replaced.connect(self._on_draft_replaced)
        self._environments.environments_loaded.connect(lambda _: self._show_environments())
        self._environments.details_loaded.connect(lambda _: self.refresh())
        workbench.theme_changed.connect(self.refresh)
        workbench.theme_changed.connect(self.help.restyle)
        self._on_draft_replaced()

    # --- building

    def _build_choice(self) -> tuple[LabelledRow, ...]:
        """The rows of what is trained, which all forms have."""
        self._worker = form_combo("train.worker")
        self._worker.addItems(list(algorithms_by_worker()))
        self._worker.currentTextChanged.connect(
            lambda worker: self._training.choose_worker(worker, algorithms_by_worker()[worker][0])
        )
        self._algorithm = AlgorithmBox("train.algorithm")
        self._algorithm.name_chosen.connect(self._choose_algorithm)
        self._cleanrl = PathField("train.cleanrl", "Your CleanRL", "A checkout, or an environment with it")
        hint = "The one next to it, else MOSAIC's"
        self._python = PathField("train.cleanrl_python", "Its Python", hint, ["Python (python*)"])
        for field in (self._cleanrl, self._python):
            field.path_chosen.connect(self._choose_cleanrl)
        return (
            LabelledRow("Worker", self._worker),
            LabelledRow("Algorithm", self._algorithm),
            LabelledRow("Your CleanRL", self._cleanrl, is_wide=True),
            LabelledRow("Its Python", self._python, is_wide=True),
        )

    def create_row(self, field: SettingField, is_narrow: bool) -> FieldRow:
        if field.name == "seed":
            seed = SeedRow(field, self._prefix)
            seed.seeds_edited.connect(self._on_seeds_edited)
            return seed
        row = super().create_row(field, is_narrow)
        if isinstance(row, EnvironmentRow):
            row.algorithm_chosen.connect(self._choose_algorithm)
        return row

    def _build_header(self) -> QWidget:
        action = find_action("agent.script")
        script = ui.tool_button(
            "train.script",
            action.icon,
            action.tooltip(action.shortcut),
            lambda: action.trigger(self._workbench),
            action.title,
        )
        script.setEnabled(action.is_enabled(self._workbench))
        presets = ui.tool_button(
            "train.presets", "mdi6.bookmark-outline", "Save this configuration by name, or load one", text="Presets"
        )
        PresetsMenu(presets, self._workbench)
        reset = ui.tool_button(
            "train.reset",
            "mdi6.backup-restore",
            "Reset every setting to its default",
            self._reset,
            "Reset all",
        )
        self._help_button = ui.tool_button(
            "train.help",
            "mdi6.help-circle-outline",
            "What this algorithm is and how to set it (F1)",
            text="Help",
            is_checkable=True,
        )
        self._help_button.clicked.connect(self._set_help_visible)
        tools = ui.row(script, presets, reset, self._help_button)
        return WrappingRow([ui.heading_label("Train an agent"), ui.Stretch(), tools])

    def _build_source_line(self) -> QWidget:
        """The run that the settings come from, with a button that shows it."""
        self._source_label = ui.ElidedLabel("")
        self._source_label.setObjectName("train.source")
        ui.set_properties(self._source_label, muted=True)
        self._source_button = ui.flat_button("Show", "train.source.show", self._show_source, icon="mdi6.arrow-right")
        self._source_line = QWidget()
        ui.row(self._source_label, self._source_button, ui.Stretch(), parent=self._source_line)
        return self._source_line

    def _show_source(self) -> None:
        self._workbench.select(self._training.draft.source)
        self._workbench.page_requested.emit("run")

    def _build_bottom_bar(self) -> QWidget:
        copy_command = ui.button("Copy as CLI command", "train.copy_cli", self._copy_command)
        copy_json = ui.button("Copy as JSON", "train.copy_json", self._copy_json)
        self._count = ui.muted_label("", "train.count")
        self._count.setWordWrap(False)
        submit = ui.row(ui.Stretch(), self._count, self.dry_run_button, self.submit_button)
        return WrappingRow([ui.row(copy_command, copy_json), ui.Stretch(), submit])

    def _reset(self) -> None:
        self._workbench.replace_form("Every setting has its default again.", "reset the form", self._training.reset)

    # --- the draft

    @property
    def form(self) -> Draft:
        return self._training.draft

    def keep(self, form: Draft) -> None:
        self._training.edit(form)

    def edit(self, name: str, text: str) -> None:
        if name == "env_id":
            self._settings_before = self._environment_settings() or self._settings_before
        super().edit(name, text)

    def _on_seeds_edited(self, seeds: str | None) -> None:
        self._refusals.drop("seed")
        self.keep(replace(self.form, seeds=seeds))

    def _on_draft_replaced(self) -> None:
        """Show another draft; its rows are built where its algorithm has others."""
        self._settings_before = ()
        self._refusals = Refusals()
        self.line.clear()
        layout = self.form.layout
        self._choice_rows[1].set_note(layout.algorithm.title)
        self._show_choice()
        is_building = self.columns.show_sections((FormSection("", layout.core), *layout.left), layout.right)
        for name, row in self.rows.items():  # those that were not rebuilt, even the one with the focus
            if isinstance(row, FieldRow):
                row.show_text(self.form.text(name))
        if not is_building:
            self.on_form_changed()
        self.help.show_algorithm(layout.algorithm)
        source = self.form.source
        view = self._workbench.runs.get(source)
        self._source_label.setText(f"From {run_title(view) if view else f'run {short_id(source)}'}")
        self._source_button.setEnabled(view is not None)
        self._source_line.setVisible(bool(source))
        self._show_count()

    def _warn_of_steps(self) -> None:
        """Say at once that a run would hardly end, not only in the dry run."""
        draft = self.form
        if self.line.isVisible() or "total_timesteps" not in draft.texts:
            return
        with suppress(BadInput):
            runs = earlier_runs(self._workbench.runs.all(), draft.algorithm, draft.env_id)
            steps = int(draft.value("total_timesteps") or 0)
            if warning := estimate_run(runs, draft.env_id, steps).warning:
                self.line.show_text(warning, "warning")

    def problems(self) -> dict[str, str]:
        draft, found = self.form, super().problems()
        # A script has packages of its own.
        listings = [] if draft.layout.algorithm.is_user_script else self._environments.for_worker(draft.worker)
        if "env_id" not in found and (problem := environment_problem(draft.env_id, listings)):
            found = {"env_id": problem, **found}
        if ENV_KWARGS in draft.fields and ENV_KWARGS not in found:
            settings, _ = read_object(self._environment_settings() or (), draft.text(ENV_KWARGS))
            if wrong := settings.problems():
                found[ENV_KWARGS] = "; ".join(f"{name}: {problem}" for name, problem in wrong.items())
        return found

    def messages(self) -> dict[str, str]:
        found = super().messages()
        if self._check_environment().text and "env_id" not in self.problems():
            found.pop("env_id", None)  # what was found stays instead of a refusal: it has buttons
        return found

    def refresh(self) -> None:
        settings_row, environment = self.rows.get(ENV_KWARGS), self.rows.get("env_id")
        if isinstance(settings_row, EnvironmentSettingsRow):
            settings = self._environment_settings()
            settings_row.show_settings(settings or ())
            self._drop_settings_of_other_environment(settings)
        if isinstance(environment, EnvironmentRow):
            has_message = "env_id" in self.messages()
            environment.show_finding(EnvironmentFinding() if has_message else self._check_environment())
        super().refresh()
        names = ", ".join(sorted(_leaf_names(self.form.rest)))
        kept = f"Kept from the run that was opened: {names}. Reset all drops it." if names else ""
        self.columns.below.setText(kept)
        self.columns.below.setVisible(bool(kept))
        self._show_count()

    def _show_count(self) -> None:
        problems, changed = len(self.problems()), len(self.form.changed())
        text = f"{changed} changed" if changed else "all defaults"
        self._count.setText(f"{count_noun(problems, 'setting')} to correct" if problems else text)

    def focus_field(self, name: str) -> None:
        self.columns.finish_building()
        super().focus_field(name)

    def begin(self) -> None:
        """Show the first rows, with the focus in the box of algorithms."""
        self.columns.verticalScrollBar().setValue(0)
        self._algorithm.begin_typing()

    # --- what is trained

    def _show_choice(self) -> None:
        draft = self.form
        with QSignalBlocker(self._worker), QSignalBlocker(self._algorithm):
            self._worker.setCurrentText(draft.worker)
            scripts = self._show_cleanrl(draft.cleanrl)
            title = "Your CleanRL" if draft.cleanrl else "Scripts"
            groups = algorithm_groups(worker_algorithms(draft.worker))
            self._algorithm.show_names([*groups, (title, scripts)], draft.algorithm)
            self._cleanrl.show_path(draft.cleanrl)
            self._python.show_path(draft.cleanrl_python)

    def _show_cleanrl(self, folder: str) -> list[str]:
        """Say what is in a folder for CleanRL, and return the names of its scripts."""
        worker, (row, python_row) = self.form.worker, self._choice_rows[2:]
        is_offered = self._has_scripts and get_worker(worker).script_names is not None
        row.setVisible(is_offered)
        python_row.setVisible(is_offered and bool(self.form.cleanrl))
        try:
            scripts = list(script_names(worker, folder)) if self._has_scripts else []
        except BadInput as error:
            row.show_problem(str(error).removeprefix("cleanrl: "))
            return []
        row.show_problem("")
        row.set_note(f"{count_noun(len(scripts), 'script')}, at the end of the list above." if folder else "")
        return scripts

    def _choose_cleanrl(self) -> None:
        """A folder without scripts is not taken; what is wrong with it is said below it."""
        folder, python = self._cleanrl.path, self._python.path
        if self._show_cleanrl(folder) or not folder:
            self._training.choose_cleanrl(folder, python if folder else "")

    def _choose_algorithm(self, algorithm: str) -> None:
        self._training.choose_algorithm(self._worker.currentText(), algorithm)

    # --- its environment

    def _show_environments(self) -> None:
        if isinstance(row := self.rows.get("env_id"), EnvironmentRow):
            row.show_choices(self._environments.for_worker(self.form.worker))
        self.refresh()

    def _check_environment(self) -> EnvironmentFinding:
        draft = self.form
        listings, known = self._environments.for_worker(draft.worker), worker_algorithms(draft.worker)
        return check_environment(draft.env_id, draft.layout.algorithm, listings, self._environment_details(), known)

    def _environment_settings(self) -> tuple[SettingField, ...] | None:
        """What the catalog knows of the chosen environment's settings; None until the trainer has answered."""
        details = self._environment_details()
        return None if details is None else details.settings

    def _environment_details(self) -> EnvironmentDetails | None:
        env_id = self.form.env_id
        listed = {listing.id for listing in self._environments.for_worker(self.form.worker) if listing.is_installed}
        return self._environments.details(env_id) if env_id in listed else None

    def _drop_settings_of_other_environment(self, settings: tuple[SettingField, ...] | None) -> None:
        """Drop what was set in rows of the environment that was chosen before: the new one would be refused with it."""
        gone = {field.name for field in self._settings_before} - {field.name for field in settings or ()}
        if settings is None or not gone:
            return
        self._settings_before = ()
        with suppress(BadInput):
            given = parse_object(self.form.text(ENV_KWARGS))
            kept = {name: value for name, value in given.items() if name not in gone}
            if kept != given:
                self.keep(self.form.with_text(ENV_KWARGS, format_object(kept)))

    # --- help

    def show_help(self, is_visible: bool) -> None:
        self.help.setVisible(is_visible)
        self._help_button.setChecked(is_visible)
        if is_visible and self._split.sizes()[1] < 2:
            self._split.setSizes([max(1, self.width() - HELP_WIDTH), HELP_WIDTH])

    def _set_help_visible(self, is_visible: bool) -> None:
        self._workbench.settings.put("train_help", is_visible)
        self.show_help(is_visible)

    def event(self, event: QEvent) -> bool:
        """F1 is a shortcut of the window; within the form it shows the help of the focused setting."""
        is_override = event.type() is QEvent.Type.ShortcutOverride
        if is_override and isinstance(event, QKeyEvent) and event.key() == Qt.Key.Key_F1:
            event.accept()
            return True
        return super().event(event)

    def keyPressEvent(self, event: QKeyEvent) -> None:
        if event.key() != Qt.Key.Key_F1:
            super().keyPressEvent(event)
            return
        setting = self.focused_field()
        self._set_help_visible(bool(setting) or self.help.isHidden())
        self.help.scroll_to(setting)

    # --- actions

    @property
    def title(self) -> str:
        return self.form.summary()

    @property
    def algorithm(self) -> Algorithm:
        return self.form.layout.algorithm

    def build_payloads(self) -> list[dict[str, Any]]:
        return self._training.payloads()

    def expectation(self, payloads: list[dict[str, Any]]) -> Callable[[TrainerClient], Expectation]:
        config = payloads[0]["metadata"]["worker"]["config"]
        env_id, steps = str(config.get("env_id", "")), int(config.get("total_timesteps") or 0)
        if not steps:
            return super().expectation(payloads)
        runs = earlier_runs(self._workbench.runs.all(), self.form.algorithm, env_id)

        def estimate(trainer: TrainerClient) -> Expectation:
            found = estimate_run(runs, env_id, steps, _mean_size(trainer, runs))
            return Expectation(found.format(len(payloads)), found.warning)

        return estimate

    def submit(self) -> None:
        self._training.save()
        super().submit()

    def _copy_command(self) -> None:
        if self.validate():
            QGuiApplication.clipboard().setText(self.form.command_line())
            self._workbench.show_message("The command is in the clipboard.", "good")

    def _copy_json(self) -> None:
        if self.validate():
            payloads = self._training.payloads()
            QGuiApplication.clipboard().setText(json.dumps(payloads[0] if len(payloads) == 1 else payloads, indent=2))
            self._workbench.show_message("The config is in the clipboard.", "good")

    # --- events

    def showEvent(self, event: QShowEvent) -> None:
        super().showEvent(event)
        is_roomy = self.window().width() >= MIN_WIDTH_WITH_HELP + HELP_WIDTH
        self.show_help(bool(self._workbench.settings.get("train_help", is_roomy)))

    def hideEvent(self, event: QHideEvent) -> None:
        self._training.save()
        super().hideEvent(event)


def _mean_size(trainer: TrainerClient, runs: Sequence[RunView]) -> float | None:
    """Of these runs on the disk, in bytes."""
    if not runs:
        return None
    *_, usage = trainer.read_disk_usage([view.run_id for view in runs])  # the last one covers all of them
    return usage.total_bytes / usage.run_count if usage.run_count else None


def _leaf_names(data: object, path: str = "") -> list[str]:
    if not isinstance(data, dict):
        return [path.rsplit(".", 1)[-1]]
    return [leaf for key, value in data.items() for leaf in _leaf_names(value, f"{path}.{key}")]


class PresetsMenu(QObject):
    """Fills a button's menu each time it opens."""

    def __init__(self, button: QToolButton, workbench: Workbench) -> None:
        super().__init__(button)
        self._training = workbench.training
        self._workbench = workbench
        self._button = button
        self.menu = ui.with_object_name(QMenu(button), "train.presets.menu")
        self.menu.aboutToShow.connect(self.fill)
        button.setMenu(self.menu)
        button.setPopupMode(QToolButton.ToolButtonPopupMode.InstantPopup)

    def fill(self) -> None:
        self.menu.clear()
        self.menu.addAction("Save as preset…", self.ask_name)
        names, reason = self._find_names()
        self._add_best_runs()
        self._add_tuned()
        self.menu.addSeparator()
        if not names:
            self.menu.addAction(reason).setEnabled(False)
            return
        for name in names:
            self.menu.addAction(name.replace("&", "&&"), partial(self.load, name))
        self.menu.addSeparator()
        delete = self.menu.addMenu("Delete")
        for name in names:
            delete.addAction(name.replace("&", "&&"), partial(self._workbench.delete_preset, name))

    def _find_names(self) -> tuple[list[str], str]:
        """The user's presets, and why there are none."""
        with self._workbench.errors_shown():
            return sorted(read_presets()), "No presets yet"
        return [], "The presets cannot be read"

    def _add_best_runs(self) -> None:
        """Offer the settings of the runs that did best in the environment of the form."""
        env_id = self._training.draft.env_id
        best = best_runs(self._workbench.runs.all(), env_id)
        if not best:
            return
        submenu = self.menu.addMenu(f"Settings of the best runs in {env_id.replace('&', '&&')}")
        for view in best:
            title = f"{view.algo}: return {format_number(view.episodic_return)} ({short_id(view.run_id)})"
            submenu.addAction(title.replace("&", "&&"), partial(self.load_run, view.run_id))

    def _add_tuned(self) -> None:
        """Offer settings that were measured to learn faster than the defaults."""
        submenu = self.menu.addMenu("Tuned settings")
        submenu.setToolTipsVisible(True)
        known = load_algorithms()
        for preset in TUNED_PRESETS:
            if preset.algorithm in known:
                title = f"{preset.algorithm}, {preset.env_id}: {preset.tuned.mean:g} instead of {preset.default.mean:g}"
                action = submenu.addAction(title, partial(self.load_tuned, preset))
                action.setToolTip(preset.describe())

    def load_tuned(self, preset: TunedPreset) -> None:
        worker = load_algorithms()[preset.algorithm].worker.id
        self._training.load_preset(Preset(worker, preset.algorithm, preset.settings))
        self._workbench.show_message(preset.describe())

    def load_run(self, run_id: str) -> None:
        open_form = partial(self._workbench.edit_requested.emit, run_id)
        self._workbench.ask(lambda trainer: trainer.config(run_id), open_form, self._button.window())

    def ask_name(self) -> None:
        dialog = ui.with_object_name(QInputDialog(self._button.window()), "train.presets.name")
        dialog.setWindowTitle("Save as preset")
        dialog.setLabelText("Name of the preset; one with the same name is replaced:")
        dialog.setTextValue(self._training.draft.algorithm)
        dialog.textValueSelected.connect(self.save)
        dialog.finished.connect(dialog.deleteLater)
        dialog.open()

    def save(self, name: str) -> None:
        name = name.strip()
        if name:
            with self._workbench.errors_shown():
                self._workbench.save_preset(name, self._training.draft.to_preset(), f"Saved as preset {name!r}.")

    def load(self, name: str) -> None:
        with self._workbench.errors_shown():
            presets = read_presets()
            if name not in presets:  # it was deleted while the menu was open
                raise unknown_name_error("preset", name, presets)
            self._workbench.replace_form(
                f"The form shows the preset {name!r}.",
                f"load preset {name!r}",
                partial(self._training.load_preset, presets[name]),
            )


PAGES = (
    Page("welcome", "Welcome", "mdi6.hand-wave-outline", WelcomePage, has_nav_button=False, position=1),
    Page("train", "Train", "mdi6.school-outline", TrainPage, position=2),
)
