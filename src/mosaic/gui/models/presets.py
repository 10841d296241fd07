"""Named configurations of the train form, in the user's settings; the command line saves some, too."""

from __future__ import annotations

from mosaic.gui.gui_settings import GuiSettings
from mosaic.gui.models.draft import Draft


class Presets:
    """Reads the file each time, as another process may have changed it."""

    def __init__(self, settings: GuiSettings) -> None:
        self._settings = settings

    def names(self) -> list[str]:
        return sorted(self._read())

    def get(self, name: str) -> Draft | None:
        return Draft.from_json(self._read().get(name))

    def save(self, name: str, draft: Draft) -> None:
        self._write(self._read() | {name: draft.to_json()})

    def delete(self, name: str) -> None:
        self._write({key: preset for key, preset in self._read().items() if key != name})

    def _read(self) -> dict[str, object]:
        self._settings.flush()
        presets = self._settings.get("presets", {})
        return presets if isinstance(presets, dict) else {}

    def _write(self, presets: dict[str, object]) -> None:
        self._settings.put("presets", presets)
        self._settings.flush()
