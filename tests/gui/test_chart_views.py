"""One chart: what it draws, what the mouse does to it, and how it is taken away."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from PySide6.QtCore import QPoint, Qt, QTimer
from PySide6.QtGui import QColor, QContextMenuEvent, QGuiApplication, QImage
from PySide6.QtTest import QTest
from PySide6.QtWidgets import QApplication, QLabel
from tests.helpers.gui import find, pump, settle

from mosaic.contracts.folder import Workspace
from mosaic.window import theme
from mosaic.window.chart import Chart, LinkBox
from mosaic.window.plot import Axis, SharedAxis, format_ticks
from mosaic.window.settings import GuiSettings
from mosaic.window.tables import ReadOnlyTable

BLUE, RED = QColor("#0072b2"), QColor("#d55e00")


@pytest.fixture
def chart(qapp: QApplication) -> Iterator[Chart]:
    """Shown, with one curve: y is x, from 0 to 1000."""
    chart = Chart("value_loss", "chart")
    chart.resize(480, 300)
    chart.ensure_curve("run", "a run", BLUE).extend(np.arange(0.0, 1001.0), np.arange(0.0, 1001.0))
    chart.show()
    chart.schedule_redraw()
    pump(lambda: chart.plot.view.viewRange()[0] == [0, 1000], "the chart to be drawn")
    yield chart
    chart.close()
    chart.deleteLater()
    settle()


def place(chart: Chart, x: float) -> QPoint:
    """Where on the plot's surface a value of x lies."""
    low, high = chart.plot.view.viewRange()[1]
    scene = chart.plot.view.mapViewToScene(QPoint(round(x), round((low + high) / 2)))
    return QPoint(chart.plot.mapFromScene(scene))


def drag(chart: Chart, begin: float, end: float) -> None:
    surface, here, there = chart.plot.viewport(), place(chart, begin), place(chart, end)
    QTest.mousePress(surface, Qt.MouseButton.LeftButton, pos=here)
    for share in (0.2, 0.6, 1.0):
        QTest.mouseMove(surface, here + (there - here) * share)
        QApplication.processEvents()
    QTest.mouseRelease(surface, Qt.MouseButton.LeftButton, pos=there)
    QApplication.processEvents()


def test_the_axes_show_the_whole_curve(chart: Chart) -> None:
    (begin, end), (low, high) = chart.plot.view.viewRange()
    assert (begin, end) == (0, 1000)
    assert low == pytest.approx(0, abs=50)
    assert high == pytest.approx(1000, abs=50)
    assert find(chart, "chart.values", QLabel).text() == "1,000"


def test_dragging_zooms_x_and_y_fits_the_visible_points(chart: Chart) -> None:
    drag(chart, 200, 600)
    (begin, end), (low, high) = chart.plot.view.viewRange()
    assert begin == pytest.approx(200, abs=10)
    assert end == pytest.approx(600, abs=10)
    assert 100 <= low < 250
    assert 550 < high <= 700


def test_a_double_click_resets(chart: Chart) -> None:
    chart.zoom(100, 200)
    assert chart.plot.view.viewRange()[0] == [100, 200]
    QTest.mouseDClick(chart.plot.viewport(), Qt.MouseButton.LeftButton, pos=place(chart, 150))
    pump(lambda: chart.plot.view.viewRange()[0] == [0, 1000], "the zoom to be reset")


def test_a_zoomed_chart_stays_where_it_is_while_its_curve_grows(chart: Chart) -> None:
    chart.zoom(100, 200)
    chart.curves()["run"].extend(np.arange(1001.0, 5000.0), np.ones(3999))
    chart.redraw()
    assert chart.plot.view.viewRange()[0] == [100, 200]


def test_the_crosshair_is_shared_and_shows_the_values(qapp: QApplication) -> None:
    cross = SharedAxis()
    charts = [Chart(name, name, cross) for name in ("one", "two")]
    for number, chart in enumerate(charts, 1):
        chart.ensure_curve("run", "a run", BLUE).extend(np.arange(11.0), number * np.arange(11.0))
        chart.show()
    charts[0].plot.hover_changed.emit(4.2)
    pump(lambda: charts[1].plot.crosshair_line.isVisible(), "the crosshair of the other chart")
    assert [find(chart, f"{chart.title}.values", QLabel).text() for chart in charts] == ["step 4   4", "step 4   8"]
    charts[0].plot.hover_changed.emit(None)
    pump(lambda: not charts[1].plot.crosshair_line.isVisible(), "the crosshair to go")
    for chart in charts:
        chart.close()
        chart.deleteLater()
    cross.deleteLater()


@pytest.fixture
def linked(qapp: QApplication) -> Iterator[list[Chart]]:
    """Three charts with one x axis; the last one is by time and has an axis of its own."""
    steps, time = SharedAxis(), SharedAxis()
    charts = [Chart("one", "one", steps), Chart("two", "two", steps), Chart("time", "time", time)]
    charts[2].set_x_kind("relative")
    for each in charts:
        each.ensure_curve("run", "a run", BLUE).extend(np.arange(1001.0), np.arange(1001.0))
        each.resize(480, 300)
        each.show()
        each.schedule_redraw()
    pump(lambda: all(x_range(each) == [0, 1000] for each in charts), "the charts to be drawn")
    yield charts
    for part in (*charts, steps, time):
        part.deleteLater()
    settle()


def x_range(chart: Chart) -> list[float]:
    return list(chart.plot.view.viewRange()[0])


def test_a_zoom_in_one_chart_is_that_of_all_with_the_same_axis_until_a_double_click(linked: list[Chart]) -> None:
    one, two, time = linked
    drag(one, 200, 600)
    begin, end = x_range(one)
    assert x_range(one) == pytest.approx([200, 600], abs=10)
    pump(lambda: x_range(two) == [begin, end], "the zoom of the other chart")
    assert x_range(time) == [0, 1000], "A range of steps is none of seconds."
    late = Chart("late", "late", one.axis)
    late.redraw()
    assert x_range(late) == [begin, end], "A chart that is created later shows the same range."
    late.deleteLater()
    QTest.mouseDClick(two.plot.viewport(), Qt.MouseButton.LeftButton, pos=place(two, 400))
    pump(lambda: x_range(one) == x_range(two) == [0, 1000], "both to be reset")


def test_charts_that_are_not_linked_are_zoomed_alone_until_they_are(linked: list[Chart]) -> None:
    one, two, _ = linked
    one.axis.set_linked(False)
    one.zoom(100, 200)
    settle()
    assert (x_range(one), x_range(two)) == ([100, 200], [0, 1000])
    one.axis.set_linked(True)
    pump(lambda: x_range(two) == [100, 200], "the other chart to follow")


def test_a_range_is_forgotten_when_the_axis_shows_something_else(linked: list[Chart]) -> None:
    one, two, _ = linked
    one.zoom(100, 200)
    one.set_x_kind("relative")
    two.set_x_kind("relative")
    pump(lambda: x_range(one) == x_range(two) == [0, 1000], "the whole range of both")


def test_the_choice_to_link_charts_is_remembered_for_the_workspace(
    qapp: QApplication, workspace: Workspace, settings_path: Path
) -> None:
    settings = GuiSettings(workspace, settings_path)
    calls: list[bool] = []
    box = LinkBox("link", settings, calls.append)
    box.click()
    other = LinkBox("other", settings, calls.append)
    assert calls == [True, False, False]
    other.click()
    box.show()
    assert box.isChecked()
    for each in (box, other):
        each.deleteLater()


def test_smoothing_keeps_the_raw_line_in_the_background(chart: Chart) -> None:
    chart.set_smoothing(0.9)
    chart.redraw()
    drawn = chart._items["run"]
    assert len(drawn.raw.getData()[0])
    assert drawn.line.getData()[1][5] < drawn.raw.getData()[1][5]
    chart.set_smoothing(0.0)
    chart.redraw()
    assert len(drawn.raw.getData()[0]) == 0


def test_the_only_known_point_of_a_curve_is_a_dot(chart: Chart) -> None:
    chart.curves()["run"].replace(np.arange(3.0), np.array([np.nan, 7.0, np.nan]))
    chart.redraw()
    dots = chart._items["run"].dots
    assert (dots.isVisible(), [list(values) for values in dots.getData()]) == (True, [[1.0], [7.0]])
    chart.curves()["run"].replace(np.arange(3.0), np.array([np.nan, 7.0, 8.0]))
    chart.redraw()
    assert not dots.isVisible()


def test_a_chart_painted_before_its_new_axis_is_complete(chart: Chart) -> None:
    chart.set_log(True)
    chart.set_x_kind("wall")
    chart.grab()
    assert chart.plot.left.kind == "number"
    chart.redraw()
    chart.grab()
    assert (chart.plot.left.kind, chart.plot.bottom.kind) == ("log", "wall")


def test_a_million_points_are_reduced_to_some_hundred(chart: Chart) -> None:
    chart.curves()["run"].replace(np.arange(1e6), np.random.default_rng(0).normal(size=1_000_000))
    chart.redraw()
    assert len(chart._items["run"].line.getData()[0]) < 600


def test_a_hidden_chart_is_not_drawn(chart: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    drawn: list[int] = []
    monkeypatch.setattr(chart, "redraw", lambda: drawn.append(1))
    chart.hide()
    settle()
    drawn.clear()
    chart.schedule_redraw()
    QTest.qWait(150)
    assert not drawn
    chart.show()
    pump(lambda: drawn, "the chart to be drawn when it is visible again")


def test_many_changes_are_drawn_once(chart: Chart, monkeypatch: pytest.MonkeyPatch) -> None:
    settle()
    drawn: list[int] = []
    monkeypatch.setattr(chart, "redraw", lambda: drawn.append(1))
    for _ in range(100):
        chart.schedule_redraw()
    pump(lambda: drawn, "the chart to be drawn")
    assert len(drawn) == 1


def test_a_chart_without_points_shows_a_message(chart: Chart) -> None:
    chart.set_empty_text("Nothing yet")
    chart.curves()["run"].replace(np.empty(0), np.empty(0))
    chart.redraw()
    hints = [label for label in chart.findChildren(QLabel) if label.text() == "Nothing yet"]
    assert hints[0].isVisible()


def test_a_chart_is_exported_as_png_svg_and_csv(chart: Chart, tmp_path: Path) -> None:
    chart.save_png(tmp_path / "chart.png")
    image = QImage(str(tmp_path / "chart.png"))
    assert image.width() == 2 * chart.width()
    assert any(image.pixelColor(x, image.height() // 2) != image.pixelColor(4, 4) for x in range(image.width()))
    chart.save_svg(tmp_path / "chart.svg")
    drawing = (tmp_path / "chart.svg").read_text()
    assert "<polyline" in drawing or "<path" in drawing
    assert "<image" not in drawing
    chart.save_csv(tmp_path / "chart.csv")
    lines = (tmp_path / "chart.csv").read_text().splitlines()
    assert lines[0] == "run,tag,step,value,smoothed"
    assert lines[3] == "a run,value_loss,2,2,2"
    assert len(lines) == 1002


def test_names_in_a_saved_or_copied_table_are_no_formulas(chart: Chart, qapp: QApplication, tmp_path: Path) -> None:
    """As those of imported runs may be; numbers stay numbers."""
    name = '=HYPERLINK("a, b")'
    chart.ensure_curve("other", name, BLUE).extend(np.array([1.0]), np.array([-2.0]))
    chart.save_csv(tmp_path / "chart.csv")
    with open(tmp_path / "chart.csv", encoding="utf-8", newline="") as file:
        rows = list(csv.reader(file))
    assert rows[-1] == [f"'{name}", "value_loss", "1", "-2", "-2"]
    table = ReadOnlyTable("table")
    table.show_rows(("Name", "Value"), [(name, "-2.5"), ("two\tcells\n", "-1,234")])
    assert table.to_tsv() == f"Name\tValue\n'{name}\t-2.5\ntwo\\tcells\\n\t-1,234\n"
    table.deleteLater()


def test_the_chart_menu_has_only_its_own_actions(chart: Chart) -> None:
    actions = chart.plot.actions()
    assert [action.text() for action in actions] == [
        "Reset zoom",
        "Copy image",
        "Save as PNG…",
        "Save as SVG…",
        "Save as CSV…",
    ]
    actions[1].trigger()
    assert not QGuiApplication.clipboard().image().isNull()
    QGuiApplication.clipboard().clear()


def test_a_right_click_opens_the_chart_menu(chart: Chart) -> None:
    titles: list[str] = []

    def read_menu() -> None:
        menu = QApplication.activePopupWidget()
        assert menu is not None
        titles.extend(action.text() for action in menu.actions())
        menu.close()

    QTimer.singleShot(0, chart, read_menu)
    position = place(chart, 500)
    event = QContextMenuEvent(QContextMenuEvent.Reason.Mouse, position, chart.plot.viewport().mapToGlobal(position))
    QApplication.sendEvent(chart.plot.viewport(), event)
    assert titles[0] == "Reset zoom"


def test_a_chart_follows_the_theme(chart: Chart, qapp: QApplication) -> None:
    theme.apply(qapp, "dark")
    settle()
    image = chart.plot.grab().toImage()
    theme.apply(qapp, "light")
    assert image.pixelColor(2, 2).name() == theme.DARK.surface


def test_curves_with_the_same_key_replace_each_other(chart: Chart) -> None:
    assert chart.ensure_curve("run", "another name", RED) is chart.curves()["run"]
    chart.ensure_curve("other", "other", BLUE)
    chart.remove_curve("run")
    assert list(chart.curves()) == ["other"]


@pytest.mark.parametrize(
    ("values", "spacing", "labels"),
    [
        ([0, 20_000, 40_000], 20_000, ["0", "20k", "40k"]),
        ([10_110, 10_120], 10, ["10.11k", "10.12k"]),
        ([0, 0.2, 0.4], 0.2, ["0", "0.2", "0.4"]),
        ([0.0001, 0.0002], 0.0001, ["0.0001", "0.0002"]),
        ([-500, 0, 500], 500, ["-500", "0", "500"]),
        ([5e6, 10e6], 5e6, ["5M", "10M"]),
        ([0, 5e5, 1e6, 1.5e6], 5e5, ["0", "500k", "1M", "1.5M"]),
        ([0.000249, 0.0002495, 0.00025], 5e-7, ["0.000249", "0.0002495", "0.00025"]),
        ([-2000, 0, 2000], 2000, ["-2,000", "0", "2,000"]),
        ([9_999_990, 10_000_000], 10, ["9.99999M", "10M"]),
    ],
)
def test_ticks_are_round_and_their_labels_differ(values: list[float], spacing: float, labels: list[str]) -> None:
    assert format_ticks(values, spacing) == labels


@pytest.mark.parametrize(
    ("kind", "low", "high", "min_ticks"),
    [("number", 0, 1000, 3), ("relative", 0, 7200, 3), ("log", -3, 2, 3), ("log", 0.1, 0.9, 2)],
)
def test_every_axis_has_visible_ticks(qapp: QApplication, kind: str, low: float, high: float, min_ticks: int) -> None:
    axis = Axis("left")
    axis.set_kind(kind)
    ((spacing, ticks),) = axis.tickValues(low, high, 300)
    assert min_ticks <= len(ticks) <= 11
    assert low - 1e-6 <= ticks.min()
    assert ticks.max() <= high + 1e-6
    assert len(set(axis.tickStrings(ticks, 1, spacing))) == len(ticks)
