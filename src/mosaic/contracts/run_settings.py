"""Every setting of a run and what it was started with, as the daemon answers it."""

from __future__ import annotations

from typing import Any

from mosaic.contracts.model import Int64, ShownText
from mosaic.contracts.views import View


class SettingValue(View):
    """A setting of a run, whether it was set or has its default."""

    name: str
    group: str
    value: Any = None
    default: Any = None
    has_default: bool = True
    """Whether there is a default at all: an algorithm, for example, must be chosen."""
    is_given: bool = False
    """Whether the config states it."""

    @property
    def is_changed(self) -> bool:
        """Whether it differs from its default; what a worker chose for a setting that is unset does not."""
        is_chosen_by_worker = self.default is None and not self.is_given
        return self.has_default and self.value != self.default and not is_chosen_by_worker


class MachineInfo(View):
    """The machine of the newest attempt."""

    host: str = ""
    system: str = ""
    cpu: str = ""
    cpus: Int64 = 0
    memory_mb: Int64 = 0
    gpus: tuple[str, ...] = ()


class SourceCommit(View):
    """The commit of a repository with code of the user's."""

    folder: str
    commit: str
    is_dirty: bool = False


class RunSettings(View):
    """Every setting of a run, and what it ran with: packages, commits and the machine of its newest attempt."""

    settings: tuple[SettingValue, ...] = ()
    python: str | None = None
    """The version of its Python; null before it has started, and for programs that do not state it."""
    packages: dict[str, str] = {}
    machine: MachineInfo | None = None
    sources: tuple[SourceCommit, ...] = ()
    problem: ShownText | None = None
    """Why its config cannot be read; `settings` are then those that its worker reported."""
