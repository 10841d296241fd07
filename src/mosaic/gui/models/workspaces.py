"""Whether a folder is, or can become, a workspace that this user can write."""

from __future__ import annotations

import tempfile
from dataclasses import dataclass
from pathlib import Path

from mosaic.contracts.folder import Workspace


@dataclass(frozen=True)
class WorkspaceState:
    is_workspace: bool = False
    has_content: bool = False
    problem: str = ""
    """Why it cannot be used; empty where it can."""


def inspect_workspace(root: Path, may_create: bool = False) -> WorkspaceState:
    """Write and delete a file, so that a workspace which cannot be written is noticed before it is opened."""
    workspace = Workspace(root)
    try:
        workspace.require_own()
        if may_create:
            workspace.create_private()
        is_workspace = workspace.trainer.is_dir()
        with tempfile.TemporaryFile(dir=workspace.trainer if is_workspace else root):
            pass
        return WorkspaceState(is_workspace, any(root.iterdir()))
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        return WorkspaceState(problem=f"{root} cannot be used as a workspace: {reason}. Choose another folder.")
