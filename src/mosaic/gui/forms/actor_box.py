"""The configuration of one actor: its kind, target and options, and why it cannot act where that is known."""

from __future__ import annotations

from dataclasses import replace

from PySide6.QtCore import Qt, Signal
from PySide6.QtGui import QStandardItemModel
from PySide6.QtWidgets import QWidget

from mosaic.contracts.play import HUMAN, LLM_KEY_NAME
from mosaic.gui import theme
from mosaic.gui.forms.actor_target import PolicyTarget, TargetEditor
from mosaic.gui.forms.field_rows import FieldRows
from mosaic.gui.forms.form_rows import form_combo, shrink_combo
from mosaic.gui.forms.secret_field import SecretField
from mosaic.gui.models.game_draft import ActorDraft, text_problems
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench
from mosaic.workers.actor_registry import ActorDescription, discover_actors

POLICY, LLM = "policy", "llm"
LLM_KEY_COMMAND = "mosaic llm login"
HIDDEN_OPTIONS = {HUMAN: ("keys",)}
"""Options that are edited elsewhere."""
FIRST_OPTIONS = {LLM: ("base_url",)}
"""Options that are shown without opening the others."""


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
        fields = [field for field in description.options if field.name not in hidden]
        self._first_options.set_fields([field for field in fields if field.name in first])
        self._options.set_fields([field for field in fields if field.name not in first])
        texts = self._draft.option_texts
        problems = text_problems(fields, texts)
        for rows in (self._first_options, self._options):
            rows.show_texts(texts, problems)
        others = [field for field in fields if field.name not in first]
        changed = sum(field.name in texts for field in others)
        self._more.setText(f"Options ({changed} changed)" if changed else "Options")
        self._more.setVisible(bool(others))
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
        fields = () if self._draft.description is None else self._draft.description.options
        self._edit(self._draft.with_option(next(field for field in fields if field.name == name), text))


def describe_actor(description: ActorDescription) -> str:
    """What it is, and what it can act in."""
    return f"{description.about} For {description.capabilities}."
