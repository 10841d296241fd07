"""Film a tour of the real window (train, watch, compare, play) for the README: `make film`.

It trains in a temporary workspace, drives the window with mouse and keys, and saves what it shows as a GIF.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from PIL import Image
from PySide6.QtCore import QPoint, QPointF, Qt, QTimer
from PySide6.QtGui import QColor, QImage, QPainter, QPen, QPolygonF
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QComboBox, QLineEdit, QTabWidget, QWidget
from tests.helpers.daemons import ended
from tests.helpers.gui import awaited, click, close, find, press, pump, pump_for

from mosaic.base.run_payloads import build_train_payload, with_seed
from mosaic.contracts.folder import Workspace
from mosaic.features.play.window_draft import GameDraft
from mosaic.trainer.client.connect import connect, read_daemon_address
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.window.app import Application

ROOT = Path(__file__).parents[1]
WINDOW_SIZE = (1280, 720)
FILM_WIDTH_PX = 960
RATE_HZ = 6.0
COLORS = 96
POINTER = ((0, 0), (0, 17), (4, 13), (7, 20), (10, 19), (7, 12), (12, 12))
PATH_TO_GOAL = (
    Qt.Key.Key_Down, Qt.Key.Key_Down, Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_Right,
)  # fmt: skip


class Film:
    """Images of the window at a fixed rate, with the pointer, which is not part of the window, drawn in."""

    def __init__(self, window: QWidget) -> None:
        self._window = window
        self._pointer = QPointF(window.width() / 2, window.height() / 2)
        self._images: list[Image.Image] = []
        self._timer = QTimer(interval=round(1000 / RATE_HZ))
        self._timer.timeout.connect(self._take)

    def start(self) -> None:
        self._timer.start()

    def _take(self) -> None:
        picture = self._window.grab().toImage()
        painter = QPainter(picture)
        painter.setRenderHint(QPainter.RenderHint.Antialiasing)
        painter.translate(self._pointer)
        painter.setPen(QPen(QColor("white"), 1.5))
        painter.setBrush(QColor("black"))
        painter.drawPolygon(QPolygonF([QPointF(x, y) for x, y in POINTER]))
        painter.end()
        scaled = picture.scaledToWidth(FILM_WIDTH_PX, Qt.TransformationMode.SmoothTransformation)
        scaled = scaled.convertToFormat(QImage.Format.Format_RGB888)
        size = scaled.width(), scaled.height()
        self._images.append(
            Image.frombytes("RGB", size, bytes(scaled.constBits()), "raw", "RGB", scaled.bytesPerLine())
        )

    def click(self, widget: QWidget, at: QPoint | None = None) -> None:
        """Move the pointer to a widget and click there."""
        position = at or widget.rect().center()
        target = QPointF(widget.mapTo(self._window, position))
        start, steps = self._pointer, round(0.6 * RATE_HZ)
        for step in range(1, steps + 1):
            self._pointer = start + (target - start) * (step / steps)
            pump_for(1 / RATE_HZ)
        click(widget, position)
        pump_for(0.3)

    def type(self, field: QLineEdit, text: str) -> None:
        self.click(field, QPoint(24, field.height() // 2))
        field.selectAll()
        for letter in text:
            QTest.keyClicks(field, letter)
            pump_for(0.08)

    def open_page(self, page_id: str) -> None:
        self.click(find(self._window, f"nav.{page_id}"))
        pump_for(0.5)

    def open_tab(self, tab: str) -> None:
        tabs = find(self._window, "run.tabs", QTabWidget)
        bar, index = tabs.tabBar(), tabs.indexOf(find(tabs, tab))
        self.click(bar, bar.tabRect(index).center())

    def save(self, path: Path) -> None:
        self._timer.stop()
        # Colors of all scenes, so that frames differ only where the window has changed.
        sheet = Image.new("RGB", (FILM_WIDTH_PX, self._images[0].height * 6))
        for row, index in enumerate(range(0, len(self._images), max(1, len(self._images) // 6))):
            sheet.paste(self._images[index], (0, row * self._images[0].height))
        palette = sheet.quantize(COLORS)
        first, *others = (image.quantize(palette=palette, dither=Image.Dither.NONE) for image in self._images)
        first.save(
            path, "GIF", save_all=True, append_images=others, duration=round(1000 / RATE_HZ), loop=0, optimize=True
        )
        print(f"{len(self._images)} images, {path.stat().st_size / 1e6:.1f} MB: {path}")


def train_groups(trainer: TrainerClient) -> list[str]:
    """Train two settings with three seeds each, to be compared."""
    ids = []
    for group, learning_rate in (("slow", 0.0005), ("fast", 0.0025)):
        settings = {"env_id": "CartPole-v1", "total_timesteps": 60_000, "learning_rate": learning_rate}
        payload = build_train_payload("cleanrl", "ppo", settings, {})
        ids += [trainer.submit(with_seed(payload, seed, group)).run_id for seed in (1, 2, 3)]
    for run_id in ids:
        ended(trainer, run_id, 180)
    return ids


def play_tour(program: Application, film: Film, compared: Iterable[str]) -> None:
    window, workbench = program.window, program.workbench
    film.start()
    pump_for(1.0)
    film.open_page("train")
    environment = awaited(window, "train.env_id", QComboBox).lineEdit()
    film.type(environment, "LunarLander-v3")
    press(environment, Qt.Key.Key_Tab)
    film.type(find(window, "train.total_timesteps", QLineEdit), "1024000")
    pump_for(0.5)
    known = set(workbench.runs.ids())
    film.click(find(window, "train.submit"))
    run_id = pump(lambda: set(workbench.runs.ids()) - known, "the run").pop()
    pump(lambda: window.current_page == "run" and workbench.selection == run_id, "its page")
    pump_for(5.0)
    film.open_tab("fastlane")
    pump_for(5.0)
    film.open_tab("analytics")
    pump_for(3.0)
    workbench.comparison_requested.emit(list(compared))
    pump_for(3.5)
    film.open_page("play")
    start = awaited(window, "play.start")
    pump(start.isEnabled, "the configuration to be checked")
    film.click(start)
    pump_for(2.5)
    for key in PATH_TO_GOAL:
        press(QApplication.focusWidget() or window, key)
        pump_for(0.5)
    pump_for(2.0)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "images" / "tour.gif")
    parser.add_argument("--theme", default="dark")
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through `finally`, which ends the runs
    os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")
    app = QApplication(sys.argv[:1])
    with tempfile.TemporaryDirectory(prefix="mosaic-film-") as place:
        workspace = Workspace(Path(place) / "var")
        with connect(workspace) as trainer:
            try:
                compared = train_groups(trainer)
                program = Application(app, workspace, Path(place) / "settings.ini")
                lake = GameDraft("FrozenLake-v1", {"is_slippery": "false"})
                program.settings.put("theme", options.theme)
                program.settings.put_for_workspace("play_environment", lake.env_id)
                program.settings.put_for_workspace("play_games", {lake.env_id: lake.to_json()})
                program.start()
                program.workbench.apply_theme()
                program.window.resize(*WINDOW_SIZE)
                pump(lambda: program.workbench.status and len(program.workbench.runs) >= len(compared), "the runs")
                program.window.activateWindow()
                film = Film(program.window)
                play_tour(program, film, compared)
                film.save(options.out)
                close(program)
            finally:
                trainer.stop_daemon(cancel_runs=True)
                pump(lambda: read_daemon_address(workspace) is None, "the trainer to end", 60)
    return 0


if __name__ == "__main__":
    sys.exit(main())
