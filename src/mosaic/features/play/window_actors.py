"""The configuration of one actor: its kind, target and options, and why it cannot act where that is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from PySide6.QtCore import QSignalBlocker, Qt, Signal
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QLineEdit, QWidget

from mosaic.base.formatting import capitalize_first, run_title
from mosaic.contracts.play import HUMAN, LLM_KEY_NAME
from mosaic.contracts.views import RunView
from mosaic.features.play.window_draft import ActorDraft
from mosaic.window import theme
from mosaic.window import widgets as ui
from mosaic.window.fields import SecretField
from mosaic.window.form_rows import FieldRows, form_combo, shrink_combo
from mosaic.window.runs import runs_with_policy
from mosaic.window.workbench import Workbench
from mosaic.worker.actor_registry import ActorDescription, discover_actors

POLICY, LLM = "policy", "llm"
LLM_KEY_COMMAND = "mosaic llm login"
HIDDEN_OPTIONS = {HUMAN: ("keys",)}
"""Options that are edited elsewhere."""
FIRST_OPTIONS = {LLM: ("base_url",)}
"""Options that are shown without opening the others."""

BEST_CHECKPOINT = "checkpoints/best"


class TargetEditor(QWidget):
    """A line of text, with examples to choose from and a button for files where there are any."""

    edited = Signal(str)

    def __init__(self, workbench: Workbench, prefix: str) -> None:
        super().__init__()
        self._workbench = workbench
        self._prefix = prefix
        self._description: ActorDescription | None = None
        self._examples = form_combo(f"{prefix}.example")
        self._examples.activated.connect(lambda _: self._choose(self._examples.currentData()))
        self.line = ui.with_object_name(QLineEdit(), f"{prefix}.target")
        self.line.textEdited.connect(self._on_edited)
        self._file = ui.button("File…", f"{prefix}.file", self._open_dialog, "Choose a file")
        self._column = ui.column(self._examples, ui.row((self.line, 1), self._file), parent=self, spacing=4)

    def show_target(self, description: ActorDescription, target: str) -> None:
        self._description = description
        self._file.setVisible(bool(description.file_filter))
        self._file.setEnabled(not self._workbench.is_remote)
        self._fill_examples(description, target)
        hint = capitalize_first(description.target)
        self.line.setPlaceholderText(hint)
        self.line.setAccessibleName(hint)
        self._show_line(target)

    def _show_line(self, text: str) -> None:
        if self.line.text() != text:
            self.line.setText(text)
            self.line.setCursorPosition(0)

    def _fill_examples(self, description: ActorDescription, target: str) -> None:
        self._examples.setVisible(bool(description.examples))
        rows = [("An example, or a file below", ""), *((name, name) for name in description.examples)]
        ui.set_choices(self._examples, rows, target if target in description.examples else "")

    def _on_edited(self, text: str) -> None:
        self.edited.emit(text)

    def _choose(self, target: str) -> None:
        self.line.setText(target)
        self.edited.emit(target)

    def _open_dialog(self) -> None:
        filters = [self._description.file_filter] if self._description is not None else ["Any file (*)"]
        name, start = f"{self._prefix}.files", Path(self.line.text())
        ui.open_path_dialog(self, name, "Choose a file", start, lambda path: self._choose(str(path)), filters)


class PolicyTarget(TargetEditor):
    """A policy: of a run, those of the environment first, or of a file."""

    def __init__(self, workbench: Workbench, prefix: str) -> None:
        super().__init__(workbench, prefix)
        self._env_id = ""
        self._runs: list[RunView] = []
        self._target = ""
        self._which = form_combo(f"{prefix}.which")
        self._which.addItem("The last checkpoint", "")
        self._which.addItem("The best checkpoint", BEST_CHECKPOINT)
        self._which.activated.connect(lambda _: self._on_run_chosen())
        shrink_combo(self._examples)
        self._examples.activated.disconnect()
        self._examples.activated.connect(lambda _: self._on_run_chosen())
        self._examples.setAccessibleName("Run")
        self._column.insertWidget(1, self._which)
        for signal in (workbench.runs.reset, workbench.runs.changed, workbench.runs.removed):
            signal.connect(self._on_runs_changed)

    def show_policy(self, description: ActorDescription, target: str, env_id: str) -> None:
        self._env_id = env_id
        self._target = target
        self.show_target(description, target)
        self.line.setPlaceholderText("or the path of a policy")

    def newest(self) -> str:
        """The run of this environment whose policy is offered first; empty where there is none."""
        return next((view.run_id for view in self._runs if view.env_id == self._env_id), "")

    def _fill_examples(self, description: ActorDescription, target: str) -> None:
        self._list_runs()

    def _show_line(self, text: str) -> None:
        super()._show_line("" if self._examples.currentData() else text)

    def _on_runs_changed(self) -> None:
        if self.isVisible():  # otherwise they are listed when it is shown
            self._list_runs()

    def _list_runs(self) -> None:
        views = runs_with_policy(self._workbench.runs.all())
        self._runs = [*(one for one in views if one.env_id == self._env_id),
                      *(one for one in views if one.env_id != self._env_id)]  # fmt: skip
        chosen, which = self._split_target(self._runs)
        first = f"A run on {self._env_id}" if self.newest() else f"No run on {self._env_id} has a policy yet"
        rows = [(first, ""), *((run_title(view), view.run_id) for view in self._runs)]
        ui.set_choices(self._examples, rows, chosen)
        for number, view in enumerate(self._runs, 1):
            self._examples.setItemIcon(number, theme.state_icon(view.status))
        view_widget = self._examples.view()
        view_widget.setMinimumWidth(min(view_widget.sizeHintForColumn(0) + 2 * theme.MARGIN, 520))
        self._which.setVisible(bool(chosen))
        with QSignalBlocker(self._which):
            self._which.setCurrentIndex(self._which.findData(which))

    def _split_target(self, views: Sequence[RunView]) -> tuple[str, str]:
        """Which run the target is, and which of its checkpoints."""
        for view in views:
            if self._target == view.run_id:
                return view.run_id, ""
            if self._target == f"{view.run_dir}/{BEST_CHECKPOINT}":
                return view.run_id, BEST_CHECKPOINT
        return "", ""

    def _on_run_chosen(self) -> None:
        view = self._workbench.runs.get(str(self._examples.currentData() or ""))
        which = self._which.currentData() if self._which.isVisible() else ""
        if view is not None:
            self.edited.emit(f"{view.run_dir}/{which}" if which else view.run_id)
        else:
            self.edited.emit("")


class ActorBox(QWidget):
    edited = Signal(object)
    """The ActorDraft as it is now."""

    def __init__(self, workbench: Workbench, prefix: str, has_human: bool = False) -> None:
        """`has_human`: a human is one of the choices."""
        super().__init__()
        self._draft = ActorDraft()
        self._env_id = ""
        self._kinds = form_combo(f"{prefix}.kind")
        self._kinds.setAccessibleName("Actor")
        shrink_combo(self._kinds)
        for kind, description in discover_actors().items():
            if kind != HUMAN or has_human:
                self._kinds.addItem(description.title, kind)
        self._mark_missing()
        self._kinds.activated.connect(self._on_kind_chosen)
        self._about = ui.muted_label("", f"{prefix}.about")
        self._target = TargetEditor(workbench, prefix)
        self._policy = PolicyTarget(workbench, f"{prefix}.policy")
        for editor in (self._target, self._policy):
            editor.edited.connect(lambda text: self._edit(self._draft.with_target(text)))
        self._first_options = FieldRows(prefix)
        self._key = SecretField(workbench, LLM_KEY_NAME, prefix, LLM_KEY_COMMAND)
        self._more = ui.tool_button(
            f"{prefix}.more", "", "Show its options", self._show_more, "Options", is_checkable=True
        )
        self._options = FieldRows(prefix)
        for rows in (self._first_options, self._options):
            rows.edited.connect(self._on_option_edited)
        self._warning_icon = ui.IconLabel()
        self._warning = ui.selectable_label(f"{prefix}.warning")
        self._warning_row = QWidget()
        ui.row((self._warning_icon, Qt.AlignmentFlag.AlignTop), (self._warning, 1), parent=self._warning_row)
        ui.column(
            self._kinds,
            self._about,
            self._target,
            self._policy,
            self._first_options,
            self._key,
            self._more,
            self._options,
            self._warning_row,
            parent=self,
            spacing=theme.GAP // 2 + 2,
        )
        self.show_warning("")

    def _mark_missing(self) -> None:
        """Kinds that are not installed are listed but disabled, with what to install."""
        model = self._kinds.model()
        assert isinstance(model, QStandardItemModel)
        for number in range(self._kinds.count()):
            description = discover_actors()[self._kinds.itemData(number)]
            if description.install_hint:
                item = model.item(number)
                item.setText(f"{description.title}   {description.install_hint}")
                item.setEnabled(False)

    # --- showing

    def show_draft(self, draft: ActorDraft, env_id: str) -> None:
        """Show an actor for this environment, without a signal."""
        self._draft, self._env_id = draft, env_id
        self._kinds.setCurrentIndex(self._kinds.findData(draft.kind))
        description = draft.description
        self._about.setVisible(description is not None)
        self._target.setVisible(description is not None and bool(description.target) and draft.kind != POLICY)
        self._policy.setVisible(draft.kind == POLICY)
        self._key.setVisible(draft.kind == LLM)
        if description is None:
            return
        self._about.setText(describe_actor(description))
        if draft.kind == POLICY:
            self._policy.show_policy(description, draft.target, env_id)
        elif description.target:
            self._target.show_target(description, draft.targets.get(draft.kind, ""))
        self._show_options(description)

    def _show_options(self, description: ActorDescription) -> None:
        first = FIRST_OPTIONS.get(description.kind, ())
        hidden = HIDDEN_OPTIONS.get(description.kind, ())
        form = self._draft.options
        fields = [field for field in form.settings if field.name not in hidden]
        others = replace(form, settings=tuple(field for field in fields if field.name not in first))
        self._first_options.show_form(replace(form, settings=tuple(field for field in fields if field.name in first)))
        self._options.show_form(others)
        changed = len(others.changed())
        self._more.setText(f"Options ({changed} changed)" if changed else "Options")
        self._more.setVisible(bool(others.fields))
        self._show_more()

    def _show_more(self) -> None:
        is_open = self._more.isChecked()
        self._more.setIcon(theme.icon("mdi6.chevron-down" if is_open else "mdi6.chevron-right", "muted"))
        self._options.setVisible(is_open and not self._more.isHidden())

    def show_warning(self, text: str) -> None:
        """Show why the actor cannot act in the environment."""
        self._warning.setText(text)
        self._warning_icon.set_icon(theme.icon("mdi6.alert", "warning"))
        self._warning_row.setVisible(bool(text))

    @property
    def warning(self) -> str:
        return self._warning.text()

    # --- editing

    def _edit(self, draft: ActorDraft) -> None:
        self.show_draft(draft, self._env_id)
        self.edited.emit(draft)

    def _on_kind_chosen(self) -> None:
        draft = replace(self._draft, kind=self._kinds.currentData())
        self.show_draft(draft, self._env_id)
        if draft.kind == POLICY and not draft.target:
            # The newest policy of this environment is the one that is most likely meant.
            draft = draft.with_target(self._policy.newest())
        self._edit(draft)

    def _on_option_edited(self, name: str, text: str) -> None:
        self._edit(self._draft.with_option(name, text))


def describe_actor(description: ActorDescription) -> str:
    """What it is, and what it can act in."""
    return f"{description.about} For {description.capabilities}."
