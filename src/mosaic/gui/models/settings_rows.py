"""The settings of a run and what it was started with, as rows of a table. No widget here."""

from __future__ import annotations

from typing import Any, NamedTuple

from mosaic.contracts.options import CONFIG_PATH
from mosaic.contracts.run_settings import RunSettings
from mosaic.formatting import SHOWN_PACKAGES, count_noun, format_commit, format_size
from mosaic.gui.models.form import format_value

NAMES = {"metadata.worker.id": "worker", "algo": "algorithm", "env_id": "environment"}
"""Of settings whose own name says less."""
UNSET = "unset"
SOFTWARE, MACHINE = "Software of its newest attempt", "Machine of its newest attempt"


class SettingRow(NamedTuple):
    group: str
    name: str
    value: str
    default: str = ""
    """Empty: there is none."""
    is_changed: bool = False
    tooltip: str = ""

    def contains(self, text: str) -> bool:
        return text.lower() in f"{self.name} {self.value}".lower()


def setting_rows(settings: RunSettings) -> list[SettingRow]:
    """Rows of one group follow each other, in the order of the groups' first settings."""
    groups = dict.fromkeys(setting.group for setting in settings.settings)
    return [
        SettingRow(
            group,
            NAMES.get(setting.name, setting.name.removeprefix(f"{CONFIG_PATH}.")),
            _format(setting.value),
            _format(setting.default) if setting.has_default else "",
            setting.is_changed,
        )
        for group in groups
        for setting in settings.settings
        if setting.group == group
    ]


def surroundings_rows(settings: RunSettings) -> list[SettingRow]:
    rows = []
    packages = settings.packages
    if settings.python:
        rows.append(SettingRow(SOFTWARE, "Python", settings.python))
        rows += [SettingRow(SOFTWARE, name, packages[name]) for name in SHOWN_PACKAGES if name in packages]
        listed = "\n".join(f"{name} {version}" for name, version in packages.items())
        rows.append(
            SettingRow(SOFTWARE, "all packages", count_noun(len(packages), "package"), tooltip=_first_lines(listed))
        )
    for source in settings.sources:
        tip = f"{source.commit}\n{format_commit(source)}"
        rows.append(SettingRow(SOFTWARE, "commit", format_commit(source), tooltip=tip))
    machine = settings.machine
    if machine is not None:
        facts = {
            "host": machine.host,
            "system": machine.system,
            "CPU": f"{machine.cpus} × {machine.cpu}" if machine.cpus else machine.cpu,
            "memory": format_size(machine.memory_mb * 2**20) if machine.memory_mb else "",
            "GPU": ", ".join(machine.gpus),
        }
        rows += [SettingRow(MACHINE, name, value) for name, value in facts.items() if value]
    return rows


def packages_text(settings: RunSettings) -> str:
    """As `pip freeze` writes them."""
    return "".join(f"{name}=={version}\n" for name, version in settings.packages.items())


def _format(value: Any) -> str:
    return format_value(value) or UNSET


def _first_lines(text: str, count: int = 30) -> str:
    lines = text.splitlines()
    return text if len(lines) <= count else "\n".join([*lines[:count], f"… and {len(lines) - count} more"])
