"""Saved settings of the window: of the user, and of each workspace."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

from PySide6.QtCore import QByteArray, QSettings

from mosaic.contracts.folder import Workspace

MAX_RECENT_WORKSPACES = 9


class GuiSettings:
    def __init__(self, workspace: Workspace, path: Path | None = None, workspace_key: str = "") -> None:
        """`workspace_key` identifies a workspace on another machine."""
        if path is None:
            self._store = QSettings(QSettings.Format.IniFormat, QSettings.Scope.UserScope, "mosaic", "workbench")
        else:
            self._store = QSettings(str(path), QSettings.Format.IniFormat)
        self._workspace_prefix = (
            "workspace-" + hashlib.sha256((workspace_key or str(workspace.root)).encode()).hexdigest()[:12]
        )

    def get(self, name: str, default: Any = None) -> Any:
        """A value of the user, such as the theme."""
        return _decode(self._store.value(name), default)

    def put(self, name: str, value: Any) -> None:
        self._store.setValue(name, json.dumps(value))

    def get_for_workspace(self, name: str, default: Any = None) -> Any:
        """A value of this workspace, such as the open tabs."""
        return _decode(self._store.value(f"{self._workspace_prefix}/{name}"), default)

    def put_for_workspace(self, name: str, value: Any) -> None:
        self._store.setValue(f"{self._workspace_prefix}/{name}", json.dumps(value))

    def recent_workspaces(self) -> list[str]:
        """The folders of the workspaces that were opened here, the last one first."""
        found = self.get("recent_workspaces", [])
        return [name for name in found if isinstance(name, str)] if isinstance(found, list) else []

    def add_recent_workspace(self, root: Path) -> None:
        others = [name for name in self.recent_workspaces() if name != str(root)]
        self.put("recent_workspaces", [str(root), *others][:MAX_RECENT_WORKSPACES])

    def layout(self, name: str) -> QByteArray | None:
        """A layout or geometry as Qt saved it."""
        value = self._store.value(f"{self._workspace_prefix}/layout-{name}")
        return value if isinstance(value, QByteArray) else None

    def put_layout(self, name: str, value: QByteArray) -> None:
        self._store.setValue(f"{self._workspace_prefix}/layout-{name}", value)

    def flush(self) -> None:
        self._store.sync()


def _decode(value: Any, default: Any) -> Any:
    if value is None:
        return default
    try:
        return json.loads(str(value))
    except ValueError:
        return default
