"""Save images of the Play page while sessions are played: each tab, each kind of grid, a comparison and a failure.

xvfb-run -a -s "-screen 0 1920x1080x24" .venv/bin/python scripts/play_screenshots.py --out FOLDER
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))
if not (os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY")):
    os.environ["QT_QPA_PLATFORM"] = "offscreen:configfile=" + os.path.relpath(
        Path(__file__).parents[1] / "tests" / "helpers" / "screen.json"
    )
os.environ.setdefault("QTWEBENGINE_DISABLE_SANDBOX", "1")

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from tests.helpers.gui import click, close, find, pump, pump_for

from mosaic.client import connect, read_daemon_address
from mosaic.contracts.folder import Workspace
from mosaic.gui.app import Application
from mosaic.gui.models.game_draft import ActorDraft, ControlMode, GameDraft
from mosaic.gui.panels.play_panel import PlayView
from mosaic.gui.views.session_view import GRID, RAW, REPLAY, VIDEO, SessionView

ROOT = Path(__file__).parents[1]
LAKE = GameDraft("FrozenLake-v1", {"is_slippery": "false"}, session_texts={"seed": "3"})
SAFE_PATH = (
    Qt.Key.Key_Down, Qt.Key.Key_Down, Qt.Key.Key_Right, Qt.Key.Key_Right, Qt.Key.Key_Down, Qt.Key.Key_Right,
)  # fmt: skip
GAMES: dict[str, tuple[GameDraft, tuple[Qt.Key, ...]]] = {
    "taxi": (GameDraft("Taxi-v4"), (Qt.Key.Key_Up,)),
    "cliff": (GameDraft("CliffWalking-v1"), (Qt.Key.Key_Up, Qt.Key.Key_Right)),
    "blackjack": (GameDraft("Blackjack-v1"), ()),
    "cartpole": (GameDraft("CartPole-v1"), ()),
    "lander": (GameDraft("LunarLander-v3", {"continuous": "true"}), ()),
    "atari": (GameDraft("ALE/Pong-v5"), ()),
    "minigrid": (GameDraft("MiniGrid-DoorKey-8x8-v0"), (Qt.Key.Key_Left,)),
    "objects": (GameDraft("MiniGrid-KeyCorridorS6R3-v0"), (Qt.Key.Key_Right,)),
    "tictactoe": (GameDraft("pettingzoo/tictactoe_v3"), (Qt.Key.Key_5, Qt.Key.Key_3, Qt.Key.Key_7)),
    "connect_four": (GameDraft("pettingzoo/connect_four_v3"), (Qt.Key.Key_4, Qt.Key.Key_3, Qt.Key.Key_4)),
}


class PlayScreenshots:
    def __init__(self, program: Application, options: argparse.Namespace) -> None:
        self._program = program
        self._options = options
        page = program.window.findChild(PlayView)
        assert page is not None
        self._page = page
        self._view = find(page, "play.session", SessionView)
        self.count = 0

    def capture_all(self) -> None:
        scenes: dict[str, Callable[[], None]] = {
            "idle": lambda: self._save("idle"),
            "lake": self._capture_lake,
            "compare": self._capture_comparison,
            "failed": self._capture_failure,
            **{name: lambda name=name: self._capture_game(name) for name in GAMES},  # type: ignore[misc]
        }
        for name, capture in scenes.items():
            if self._options.only in name:
                capture()

    @contextmanager
    def _playing(self, draft: GameDraft) -> Iterator[None]:
        form = self._page.configuration
        form.configure(draft)
        pump(lambda: form.is_checked, "the worker's answer")
        click(find(self._page, "play.start"))
        match = self._page.match
        pump(lambda: all(session.state or session.problem for session in match.sessions), "the session")
        self._view.take_focus()
        pump_for(0.3)
        yield
        if match.is_active:
            click(find(self._page, "play.start"))
        pump(lambda: not match.is_active, "the end")

    def _tap(self, *keys: Qt.Key) -> None:
        for key in keys:
            QTest.keyClick(self._view, key)
            pump_for(0.4)

    def _capture_game(self, name: str) -> None:
        draft, keys = GAMES[name]
        with self._playing(draft):
            self._tap(*keys)
            self._save(name)

    def _capture_lake(self) -> None:
        with self._playing(LAKE):
            self._tap(*SAFE_PATH)
            pump_for(1.5)
            self._tap(*SAFE_PATH[:3])
            for tab in (GRID, RAW, VIDEO, REPLAY):
                self._view.show_tab(tab)
                if tab == REPLAY:
                    pump(lambda: self._view.replay.player.step is not None, "the replay")
                pump_for(0.5)
                self._save(f"lake-{tab.lower()}")
            self._view.show_tab(GRID)
        self._save("lake-ended")

    def _capture_comparison(self) -> None:
        compare = find(self._page, "play.compare")
        click(compare)
        pump_for(0.3)
        self._save("compare-configured")
        with self._playing(LAKE):
            self._tap(*SAFE_PATH)
            pump(lambda: sum(self._page.match.wins) + self._page.match.draws, "the score")
            self._tap(*SAFE_PATH[:2])
            self._save("compare")
        click(compare)

    def _capture_failure(self) -> None:
        script = self._program.workbench.workspace.root / "broken.py"
        script.write_text("def act(observation, info):\n    return 1 // int(observation > 100)\n")
        actor = ActorDraft("script", {"script": str(script)})
        with self._playing(GameDraft("FrozenLake-v1", mode=ControlMode.ACTOR, actor=actor)):
            pump(lambda: self._page.match.first.log_tail, "the failure")
            self._save("failed")

    def _save(self, name: str) -> None:
        window = self._program.window
        window.activateWindow()
        for theme in self._options.themes.split(","):
            self._program.settings.put("theme", theme)
            self._program.workbench.apply_theme()
            for size in self._options.sizes.split(","):
                window.resize(*map(int, size.split("x")))
                pump_for(0.4)
                window.grab().save(str(self._options.out / f"{size}-{theme}-play-{name}.png"))
                self.count += 1


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, default=ROOT / "build" / "screenshots")
    parser.add_argument("--themes", default="light,dark")
    parser.add_argument("--sizes", default="1366x768,1920x1080")
    parser.add_argument("--only", default="", help="only scenes whose name contains this, such as compare")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))  # through `finally`: the sessions would continue
    app = QApplication(sys.argv[:1])
    with tempfile.TemporaryDirectory(prefix="mosaic-pictures-") as place:
        workspace = Workspace(Path(place) / "var")
        with connect(workspace) as trainer:
            try:
                program = Application(app, workspace, Path(place) / "settings.ini")
                program.start()
                program.window.show_page("play")
                pump(lambda: program.workbench.status, "the trainer")
                screenshots = PlayScreenshots(program, options)
                screenshots.capture_all()
                close(program)
            finally:
                trainer.stop_daemon(cancel_runs=True)
                pump(lambda: read_daemon_address(workspace) is None, "the trainer to end", 60)
    print(f"{screenshots.count} images in {options.out}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
