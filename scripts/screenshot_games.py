"""The play sessions that `scripts/screenshots.py` shows: each kind of grid, each tab, a comparison and a failure."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial

from PySide6.QtCore import Qt
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QToolButton
from tests.helpers.gui import click, find, pump, pump_for

from mosaic.features.play.window import GRID, RAW, REPLAY, VIDEO, PlayView, SessionView
from mosaic.features.play.window_draft import ActorDraft, ControlMode, GameDraft
from mosaic.window.app import Application

LAKE = GameDraft("FrozenLake-v1", {"env_kwargs": '{"is_slippery": false}', "seed": "3"})
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


class Games:
    """Each scene begins its session, which continues until the next one does, or `end` is called."""

    def __init__(self, program: Application) -> None:
        self._program = program
        program.window.show_page("play")
        self._page: PlayView = pump(lambda: program.window.findChild(PlayView), "the page")
        self._view = find(self._page, "play.session", SessionView)

    def scenes(self) -> Iterator[tuple[str, Callable[[], None]]]:
        for name, (draft, keys) in GAMES.items():
            yield name, partial(self._play, draft, *keys)
        for tab in (GRID, RAW, VIDEO, REPLAY):
            yield f"lake-{tab.lower()}", partial(self._play_lake, tab)
        yield "failed", self._fail
        yield "compare", self._compare

    def end(self) -> None:
        self._stop()
        compare = find(self._page, "play.compare", QToolButton)
        if compare.isChecked():
            click(compare)

    def _stop(self) -> None:
        match = self._page.match
        if match.is_active:
            click(find(self._page, "play.start"))
            pump(lambda: not match.is_active, "the end")

    def _play(self, draft: GameDraft, *keys: Qt.Key) -> None:
        self._stop()
        window = self._program.window
        window.show_page("play")
        window.activateWindow()
        form = self._page.configuration
        form.configure(draft)
        pump(lambda: form.is_checked, "the worker's answer")
        click(find(self._page, "play.start"))
        sessions = self._page.match.sessions
        pump(lambda: all(session.state or session.problem for session in sessions), "the session")
        self._view.show_tab(GRID)
        self._view.take_focus()
        pump_for(0.3)
        for key in keys:
            QTest.keyClick(self._view, key)
            pump_for(0.4)

    def _play_lake(self, tab: str) -> None:
        """Play a whole episode and the beginning of the next one."""
        self._play(LAKE, *SAFE_PATH, *SAFE_PATH[:3])
        self._view.show_tab(tab)
        if tab == REPLAY:
            pump(lambda: self._view.replay.player.step is not None, "the replay")

    def _fail(self) -> None:
        script = self._program.workbench.workspace.root / "broken.py"
        script.write_text("def act(observation, info):\n    return 1 // int(observation > 100)\n", encoding="utf-8")
        actor = ActorDraft("script", {"script": str(script)})
        self._play(GameDraft("FrozenLake-v1", mode=ControlMode.ACTOR, actor=actor))
        pump(lambda: self._page.match.first.log_tail, "the failure")

    def _compare(self) -> None:
        self.end()
        click(find(self._page, "play.compare"))
        self._play(LAKE, *SAFE_PATH)
        pump(lambda: sum(self._page.match.wins) + self._page.match.draws, "the score")
