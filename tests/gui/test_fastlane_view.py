"""Frames as they are drawn: where the cells are, how pixels are enlarged, and what mouse and keys do."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from PySide6.QtCore import QPoint, QPointF, QSize, Qt
from PySide6.QtGui import QColor, QImage, QPaintEvent, QRegion
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication
from tests.helpers.gui import click, press, settle
from tests.helpers.gui_frames import hud_of, plain

from mosaic.base.fastlane import BGRX32, RGB24
from mosaic.base.formatting import format_eval_line
from mosaic.contracts.views import EvaluationBatch
from mosaic.window import theme
from mosaic.window.frames import CELL_GAP_PX, FrameGrid, arrange_grid, format_hud, is_smooth
from mosaic.window.lanes import FrameCell, to_image

RED, BLUE = (255, 0, 0), (0, 0, 255)


def cell(env: int, pixels: Any, **fields: Any) -> FrameCell:
    pixel_format = RGB24 if pixels.shape[2] == 3 else BGRX32
    return FrameCell(env, to_image(pixels, pixel_format), pixels, hud_of(env, **fields))


@pytest.fixture
def grid(qapp: QApplication) -> Any:
    view = FrameGrid()
    view.resize(800, 400)
    view.show()
    yield view
    view.close()
    view.deleteLater()


def take_screenshot(view: FrameGrid) -> QImage:
    settle()
    return view.grab().toImage()


# --- where the cells are


def test_eight_cells_are_two_rows_of_four_with_a_small_gap() -> None:
    """R5.1: live frames, grid."""
    arrangement = arrange_grid(8, QSize(600, 400), QSize(1200, 500))
    rows = sorted({rect.top() for rect in arrangement.cells})
    columns = sorted({rect.left() for rect in arrangement.cells})
    assert (len(rows), len(columns)) == (2, 4)
    assert columns[1] - columns[0] - arrangement.cells[0].width() == CELL_GAP_PX
    assert rows[1] - rows[0] - arrangement.cells[0].height() == CELL_GAP_PX
    assert arrangement.cells[0].left() >= 0
    assert arrangement.bounds.right() < 1200


def test_the_grid_follows_the_shape_of_the_view() -> None:
    tall = arrange_grid(8, QSize(600, 400), QSize(400, 1200))
    assert len({rect.left() for rect in tall.cells}) < len({rect.top() for rect in tall.cells})
    wide = arrange_grid(3, QSize(600, 400), QSize(1800, 400))
    assert len({rect.top() for rect in wide.cells}) == 1


def test_an_empty_grid_has_no_cells() -> None:
    assert arrange_grid(0, QSize(600, 400), QSize(800, 600)).cells == []
    assert arrange_grid(4, QSize(600, 400), QSize(0, 600)).cells == []


# --- how they are drawn


@pytest.mark.parametrize("channels", [3, 4])
def test_colors_are_right_in_both_formats_and_the_rest_is_the_window(grid: FrameGrid, channels: int) -> None:
    grid.show_cells([cell(0, plain((200, 100, 50), 60, 60, channels))])
    screenshot = take_screenshot(grid)
    assert screenshot.pixelColor(400, 200) == QColor(200, 100, 50)
    assert screenshot.pixelColor(5, 200) == QColor(theme.tokens().window)


def test_an_image_with_zero_alpha_is_opaque(grid: FrameGrid) -> None:
    grid.show_cells([cell(0, plain((9, 9, 9), 60, 60, 4))])
    settle()
    screenshot = QImage(800, 400, QImage.Format.Format_ARGB32_Premultiplied)
    grid.render(screenshot)
    assert screenshot.pixelColor(400, 200).alpha() == 255


def test_a_small_image_keeps_sharp_pixels(grid: FrameGrid) -> None:
    world = np.zeros((2, 4, 3), np.uint8)
    world[:, :2], world[:, 2:] = RED, BLUE
    grid.show_cells([cell(0, world)])
    screenshot = take_screenshot(grid)
    place = grid.rects()[0]
    colors = {screenshot.pixelColor(x, 200).name() for x in range(place.left(), place.right() + 1)}
    assert colors == {QColor(*RED).name(), QColor(*BLUE).name()}


def test_a_large_image_is_smoothed(grid: FrameGrid) -> None:
    world = np.zeros((300, 600, 3), np.uint8)
    world[:, :300], world[:, 300:] = RED, BLUE
    grid.show_cells([cell(0, world)])
    screenshot = take_screenshot(grid)
    assert len({screenshot.pixelColor(x, 200).name() for x in range(390, 410)}) > 2
    image = QImage(600, 300, QImage.Format.Format_RGB32)
    assert is_smooth(image, 1.5)
    assert not is_smooth(image, 8)
    assert is_smooth(QImage(84, 84, QImage.Format.Format_RGB32), 0.7)
    assert not is_smooth(QImage(84, 84, QImage.Format.Format_RGB32), 3)


def test_a_thin_line_survives_downscaling(grid: FrameGrid) -> None:
    world = np.full((400, 4000, 3), 255, np.uint8)
    world[:, 1999] = 0
    grid.show_cells([cell(0, world)])
    screenshot = take_screenshot(grid)
    middle = grid.rects()[0].center().y()
    assert min(screenshot.pixelColor(x, middle).lightness() for x in range(380, 420)) < 255


class Watched(FrameGrid):
    def __init__(self) -> None:
        super().__init__()
        self.drawn = QRegion()

    def paintEvent(self, event: QPaintEvent) -> None:
        self.drawn += event.region()
        super().paintEvent(event)


def test_only_the_cell_that_changed_is_drawn_again(qapp: QApplication) -> None:
    view = Watched()
    view.resize(800, 400)
    cells = [cell(env, plain(RED)) for env in range(4)]
    view.show_cells(cells)
    view.show()
    settle()
    view.drawn = QRegion()
    cells[2] = cell(2, plain(BLUE))
    view.show_cells(cells, {2})
    settle()
    assert view.drawn.boundingRect() == view.rects()[2]
    view.close()
    view.deleteLater()


def test_the_hud_is_below_a_fitted_image_and_over_a_zoomed_one(grid: FrameGrid) -> None:
    grid.show_cells([cell(0, plain((200, 100, 50), 60, 60))])
    grid.show_text("episode 1")
    place, is_over = grid._text_position()
    assert not is_over
    assert place.top() > grid.rects()[0].bottom()
    assert grid.rect().contains(place)
    grid.zoom_by(4)
    place, is_over = grid._text_position()
    assert is_over
    assert grid.rect().contains(place)
    assert take_screenshot(grid).pixelColor(place.left() + 2, place.center().y()).lightness() < 80


def test_a_cell_without_an_image_shows_a_message(grid: FrameGrid) -> None:
    grid.show_message("This environment cannot be rendered.")
    assert grid.message == "This environment cannot be rendered."
    grid.show_cells([cell(0, plain(RED))])
    assert grid.message == ""


# --- mouse and keys


def test_a_click_chooses_a_cell_and_a_drag_does_not(grid: FrameGrid) -> None:
    chosen: list[int] = []
    grid.env_clicked.connect(chosen.append)
    grid.show_cells([cell(env, plain(RED)) for env in (4, 5)])
    settle()
    click(grid, grid.rects()[1].center())
    assert chosen == [5]
    begin = grid.rects()[0].center()
    QTest.mousePress(grid, Qt.MouseButton.LeftButton, pos=begin)
    QTest.mouseMove(grid, begin + QPoint(40, 0))
    QTest.mouseRelease(grid, Qt.MouseButton.LeftButton, pos=begin + QPoint(40, 0))
    assert chosen == [5]


def test_zooming_holds_the_point_under_the_mouse(grid: FrameGrid) -> None:
    grid.show_cells([cell(0, plain(RED, 600, 400))])
    grid.zoom_by(3)
    at = QPointF(500, 150)

    def pixel() -> QPointF:
        rect = grid.rects()[0]
        return QPointF((at.x() - rect.left()) / grid.scale, (at.y() - rect.top()) / grid.scale)

    before = pixel()
    grid.zoom_by(1.5, at)
    assert abs(pixel().x() - before.x()) < 1.5
    assert abs(pixel().y() - before.y()) < 1.5
    assert not grid.is_fit
    grid.fit()
    assert grid.is_fit
    assert grid.rect().contains(grid.rects()[0])


def test_actual_size_shows_every_pixel_once(grid: FrameGrid) -> None:
    grid.show_cells([cell(0, plain(RED, 100, 50))])
    press(grid, Qt.Key.Key_1)
    assert grid.rects()[0].size() == QSize(100, 50)
    press(grid, Qt.Key.Key_0)
    assert grid.rects()[0].width() > 600


def test_a_zoomed_image_can_be_panned_to_its_edges_only(grid: FrameGrid) -> None:
    grid.show_cells([cell(0, plain(RED, 100, 50))])
    grid.zoom_by(2)
    QTest.mousePress(grid, Qt.MouseButton.LeftButton, pos=QPoint(10, 10))
    QTest.mouseMove(grid, QPoint(790, 390))
    QTest.mouseRelease(grid, Qt.MouseButton.LeftButton, pos=QPoint(790, 390))
    assert grid.rects()[0].topLeft() == QPoint(0, 0)


# --- the line over them


def test_the_hud_shows_the_state_of_one_environment() -> None:
    text = format_hud([cell(0, plain(RED), episode=12, step=134, reward=1.0)], 29.8)
    assert text == "episode 12   step 134   reward 1   return 3   29.8 frames/s, 1.8 % of the run's time"


def test_the_hud_shows_the_range_of_several_and_the_hovered_one() -> None:
    cells = [cell(0, plain(RED)), cell(1, plain(RED), episode=3, episodic_return=9.0), FrameCell(2, None, None, None)]
    assert format_hud(cells, 10.0).startswith("3 environments   episode 1 to 3   return 3 to 9, mean 6   10.0 frames/s")
    assert format_hud(cells, 10.0, hovered_env=1).startswith("environment 1   episode 3   step 2")
    assert format_hud([FrameCell(2, None, None, None)], 0.0) == ""


def test_the_hud_offers_more_frames_where_their_cost_limits_them() -> None:
    limited = [cell(0, plain(RED), is_limited=True)]
    text = format_hud(limited, 3.7, limit_hint="“More frames” allows 25 %")
    assert text.endswith("3.7 frames/s, limited to 5 % of the run's time: “More frames” allows 25 %")
    assert format_hud([cell(0, plain(RED))], 30.0, limit_hint="“More”").endswith(
        "30.0 frames/s, 1.8 % of the run's time"
    )


def test_the_hud_of_an_evaluation() -> None:
    """R5.5: HUD of an evaluation."""
    summary = EvaluationBatch(batch=3, episodes=50, avg_return=112.31, min_return=90.1, max_return=142.6)
    assert format_eval_line(summary) == "eval batch 3 | episodes=50 avg=112.3 min=90.1 max=142.6"
