"""The parts of the play page without a trainer: keys, tiles, buttons, texts."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
from PySide6.QtCore import QEvent, Qt
from PySide6.QtGui import QImage, QKeyEvent
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QCheckBox, QLabel, QLineEdit, QRadioButton, QWidget
from tests.helpers.gui import click, find, settle

from mosaic.contracts.key_binding import KeyBinding
from mosaic.contracts.play import Keys
from mosaic.contracts.views import SeatState, SessionState, SymbolGrid
from mosaic.features.play.window import format_raw, format_score, format_turn
from mosaic.features.play.window_board import COLORS, MAX_TILE_PX, TILES, SymbolGridView, render_symbol
from mosaic.features.play.window_keys import ActionButtons, KeyCapture
from mosaic.window import theme
from mosaic.window import widgets as ui

Watched = tuple[QWidget, KeyCapture, list[Keys]]


@pytest.fixture
def watched(qapp: QApplication) -> Iterator[Watched]:
    """A widget whose keys are captured, next to a field that could get the focus."""
    window = QWidget()
    game, field = QWidget(), QLineEdit()
    game.setFocusPolicy(Qt.FocusPolicy.StrongFocus)
    ui.column(game, field, parent=window)
    capture = KeyCapture(game)
    capture.watch(game)
    sent: list[Keys] = []
    capture.keys_changed.connect(sent.append)
    capture.set_active(True)
    window.show()
    window.activateWindow()
    QTest.qWaitForWindowActive(window)
    game.setFocus()
    yield game, capture, sent
    window.close()


def test_keys_are_sent_as_they_are_held(watched: Watched) -> None:
    game, _, sent = watched
    QTest.keyPress(game, Qt.Key.Key_Up)
    QTest.keyPress(game, Qt.Key.Key_Space)
    QTest.keyRelease(game, Qt.Key.Key_Up)
    QTest.keyRelease(game, Qt.Key.Key_Space)
    assert sent == [
        Keys(down=("Up",), pressed=("Up",)),
        Keys(down=("Up", "Space"), pressed=("Space",)),
        Keys(down=("Space",)),
        Keys(),
    ]


def test_repeated_keys_are_ignored(watched: Watched) -> None:
    game, _, sent = watched
    QTest.keyPress(game, Qt.Key.Key_Left)
    for kind in (QEvent.Type.KeyRelease, QEvent.Type.KeyPress):
        repeated = QKeyEvent(kind, Qt.Key.Key_Left, Qt.KeyboardModifier.NoModifier, "", True)
        QApplication.sendEvent(game, repeated)
    assert sent == [Keys(down=("Left",), pressed=("Left",))]


def test_a_key_has_one_name_from_press_to_release(watched: Watched) -> None:
    """With Shift it may have another when it is released."""
    game, _, sent = watched
    scan_code = 16
    for kind, key in ((QEvent.Type.KeyPress, Qt.Key.Key_7), (QEvent.Type.KeyRelease, Qt.Key.Key_Slash)):
        event = QKeyEvent(kind, key, Qt.KeyboardModifier.NoModifier, scan_code, 0, 0)
        QApplication.sendEvent(game, event)
    assert sent == [Keys(down=("7",), pressed=("7",)), Keys()]


def test_arrows_and_space_leave_the_focus_where_it_is(watched: Watched) -> None:
    game, _, _ = watched
    for key in (Qt.Key.Key_Down, Qt.Key.Key_Right, Qt.Key.Key_Space, Qt.Key.Key_Return):
        QTest.keyClick(game, key)
        assert QApplication.focusWidget() is game
    QTest.keyClick(game, Qt.Key.Key_Tab)
    assert QApplication.focusWidget() is not game


@pytest.mark.parametrize(
    "lose", [lambda game: game.window().findChild(QLineEdit).setFocus(), lambda game: game.window().hide()]
)
def test_all_keys_are_released_when_the_focus_is_lost(watched: Watched, lose: Callable[[QWidget], None]) -> None:
    game, _, sent = watched
    QTest.keyPress(game, Qt.Key.Key_Left)
    lose(game)
    settle()
    assert sent[-1] == Keys()


def test_keys_with_ctrl_are_not_the_sessions(watched: Watched) -> None:
    game, capture, sent = watched
    QTest.keyClick(game, Qt.Key.Key_K, Qt.KeyboardModifier.ControlModifier)
    capture.set_active(False)
    QTest.keyClick(game, Qt.Key.Key_Left)
    assert sent == []


def test_escape_leaves(watched: Watched) -> None:
    game, capture, sent = watched
    left: list[None] = []
    capture.left.connect(lambda: left.append(None))
    QTest.keyPress(game, Qt.Key.Key_Left)
    QTest.keyClick(game, Qt.Key.Key_Escape)
    assert (left, sent[-1]) == ([None], Keys())


# --- tiles

SYMBOLS = [
    *("floor", "ice", "hole", "goal", "start", "cliff", "wall", "lava", "cross", "circle"),
    *("red_piece", "yellow_piece", "floor+agent", "floor+taxi", "floor+taxi_with_passenger"),
    *("stop_R+passenger", "stop_G", "stop_Y+destination", "stop_B"),
    *(f"floor+agent_{direction}" for direction in ("right", "down", "left", "up")),
    *(f"{name}_{color}" for name in ("key", "ball", "box", "goal", "floor") for color in COLORS),
    *(f"door_{color}_{state}" for color in COLORS for state in ("open", "closed", "locked")),
]
"""All that the symbols of the catalog can be."""


@pytest.mark.parametrize("name", ["light", "dark"])
def test_every_symbol_has_a_drawing_of_its_own(qapp: QApplication, name: str) -> None:
    """R9.5: and they differ in both themes."""
    theme.apply(qapp, name)
    assert {part for symbol in SYMBOLS for part in symbol.split("+")} == set(TILES)
    drawn: dict[bytes, str] = {}
    for symbol in SYMBOLS:
        image = render_symbol(symbol, 40, 1.0).toImage().convertToFormat(QImage.Format.Format_RGB32)
        pixels = bytes(image.constBits())
        assert pixels not in drawn, f"{symbol} looks like {drawn[pixels]}"
        drawn[pixels] = symbol
    theme.apply(qapp, "light")


@pytest.mark.parametrize("name", ["light", "dark"])
@pytest.mark.parametrize("kind", [QCheckBox, QRadioButton])
def test_what_is_on_is_seen_also_where_it_is_locked(
    qapp: QApplication, kind: type[QCheckBox | QRadioButton], name: str
) -> None:
    theme.apply(qapp, name)
    box = kind()
    box.setEnabled(False)
    images = []
    for is_on in (True, False):
        box.setAutoExclusive(False)
        box.setChecked(is_on)
        images.append(box.grab().toImage())
    on, off = images
    different = sum(on.pixel(x, y) != off.pixel(x, y) for x in range(on.width()) for y in range(on.height()))
    assert different > 40
    theme.apply(qapp, "light")


def test_a_symbol_without_a_drawing_is_written(qapp: QApplication) -> None:
    """As of an environment family of a plug-in."""
    assert render_symbol("dragon", 40, 1.0).toImage() != render_symbol("floor", 40, 1.0).toImage()


@pytest.mark.parametrize(("width", "height"), [(400, 300), (403, 777), (90, 90), (2000, 1500)])
def test_tiles_are_squares_of_whole_pixels_in_the_view(qapp: QApplication, width: int, height: int) -> None:
    view = SymbolGridView()
    view.resize(width, height)
    view.show_symbols(SymbolGrid(rows=(("ice",) * 8,) * 8, caption="a mission"))
    places = [place for row in view.tile_rects() for place in row]
    assert len({(place.width(), place.height()) for place in places}) == 1
    assert places[0].width() == places[0].height() <= MAX_TILE_PX
    assert places[1].left() - places[0].right() == 2
    assert view.rect().contains(places[0])
    assert view.rect().contains(places[-1])
    view.grab()


def test_the_view_says_why_there_is_no_grid(qapp: QApplication) -> None:
    view = SymbolGridView()
    view.show_symbols(None, "No symbols.")
    assert view.message == "No symbols."
    view.grab()
    view.show_symbols(SymbolGrid(rows=(("ice",),)))
    assert view.message == ""


# --- buttons and texts


def test_the_buttons_show_their_keys_and_only_legal_ones_are_enabled(qapp: QApplication) -> None:
    buttons = ActionButtons()
    pressed: list[int] = []
    buttons.pressed.connect(pressed.append)
    buttons.show_actions(("noop", "up_fire"), (KeyBinding(("Up", "Space"), "up_fire"),))
    assert [one.text() for one in buttons.buttons] == ["noop", "up fire  ↑ + Space"]
    buttons.enable_actions(True, [1])
    assert [one.isEnabled() for one in buttons.buttons] == [False, True]
    buttons.show()
    click(buttons.buttons[1])
    assert pressed == [1]


def test_continuous_actions_show_the_keys_alone(qapp: QApplication) -> None:
    buttons = ActionButtons()
    buttons.show_actions((), (KeyBinding(("Left",), axis=0, value=-1.0, label="steer left"),))
    assert buttons.buttons == []
    assert find(buttons, "play.keys", QLabel).text() == "← steer left"


def make_state(*seats: SeatState, **fields: object) -> SessionState:
    given = {"episode": 2, "step": 3, "seed": 7, "ending": "running", "is_paused": False, "rate_hz": None}
    return SessionState.model_validate({**given, "action_names": ("left",), "seats": seats, **fields})


def make_seat(**fields: object) -> SeatState:
    given = {"agent": "", "actor": "human", "is_human": True, "can_switch": False, "is_to_act": True}
    numbers = {"episodic_return": 1.5, "last_action": "left", "last_reward": -1.0}
    return SeatState.model_validate({**given, **numbers, **fields})


def test_the_score_has_the_mean_of_complete_episodes() -> None:
    state = make_state(make_seat(mean_return=2.0), complete_episodes=4)
    assert format_score(state) == "Episode 2   step 3   reward -1   return 1.5   mean of 4: 2   seed 7"


def test_the_line_of_turns_shows_problems_first() -> None:
    other = make_seat(agent="b", actor="llm:m", is_human=False, is_to_act=False, last_action="")
    state = make_state(make_seat(agent="a"), other)
    assert format_turn(state, True, False) == ("a: your turn   last action of a: left", False)
    assert format_turn(make_state(make_seat()), True, False)[0] == "Your turn   last action: left"
    assert format_turn(state, True, True)[0].startswith("Paused   a: your turn")
    refused = make_state(make_seat(agent="a"), other.model_copy(update={"problem": "No answer in 2 s."}))
    assert format_turn(refused, True, False) == ("b: No answer in 2 s.", True)


def test_the_raw_text_has_no_color_codes() -> None:
    text = format_raw(make_state(make_seat(), text="\x1b[43mS\x1b[0mFF", observation="0", info="prob: 1.0"))
    assert text == "Text\nSFF\n\nObservation\n0\n\nInfo\nprob: 1.0\n\nActions\n  0  left"
