"""The render rate and the composition of several images: both without a clock or a file."""

from __future__ import annotations

import numpy as np
import pytest

from mosaic.base.fastlane import (
    BGRX32,
    RGB24,
    as_rgb,
    compose_grid,
    fit_size,
    grid_shape,
    scale_image,
    scale_image_smoothly,
)
from mosaic.base.fastlane.requests import RATE_BOUNDS_HZ, FrameRequest, decode_request, divide_request, encode_request
from mosaic.base.fastlane.writer import RenderPacer


@pytest.mark.parametrize(
    ("count", "shape"),
    [
        (1, (1, 1)),
        (2, (1, 2)),
        (4, (2, 2)),
        (5, (2, 3)),
        (6, (2, 3)),
        (7, (2, 4)),
        (8, (2, 4)),
        (9, (3, 3)),
        (16, (4, 4)),
    ],
)
def test_a_wide_view_gets_a_wide_grid(count: int, shape: tuple[int, int]) -> None:
    assert grid_shape(count) == shape


@pytest.mark.parametrize("view", [1.5, 16 / 9, 80 / 44, 120 / 76])
def test_eight_are_two_rows_of_four_in_any_usual_view(view: float) -> None:
    assert grid_shape(8, view) == (2, 4)


def test_a_tall_view_gets_a_tall_grid() -> None:
    assert grid_shape(8, view_aspect_ratio=0.5) == (4, 2)
    assert grid_shape(3, view_aspect_ratio=0.3) == (3, 1)


def test_a_grid_has_room_for_every_cell_and_no_empty_row() -> None:
    for count in range(1, 70):
        shape = grid_shape(count)
        assert shape.rows * shape.columns >= count
        assert (shape.rows - 1) * shape.columns < count


def test_images_are_placed_in_rows_from_the_left() -> None:
    images = [np.full((10, 10, 3), 50 * (index + 1), np.uint8) for index in range(3)]
    canvas = compose_grid([*images, None], grid_shape(4, 1.0, 1.0), 20, 20)
    assert [int(canvas[y, x, 0]) for y in (5, 15) for x in (5, 15)] == [50, 100, 150, 24]


def test_an_image_keeps_its_aspect_ratio_in_its_cell() -> None:
    canvas = compose_grid([np.full((10, 20, 3), 200, np.uint8)], grid_shape(1), 20, 20)
    assert [int(canvas[y, 10, 0]) for y in (2, 10, 17)] == [24, 200, 24]


def test_smaller_images_are_means_and_larger_ones_repeat_pixels() -> None:
    stripes = np.zeros((30, 30, 3), np.uint8)
    stripes[:, ::3] = 240
    assert (scale_image(stripes, 10, 10) == 80).all()
    assert scale_image(stripes, 60, 90).shape == (60, 90, 3)
    assert scale_image_smoothly(stripes, 20, 40).shape == (20, 40, 3)
    assert fit_size(600, 400, 80, 44) == (66, 44)


def test_both_formats_become_rgb() -> None:
    pixel = np.array([[[1, 2, 3, 99]]], np.uint8)
    assert as_rgb(pixel, BGRX32).tolist() == [[[3, 2, 1]]]
    assert as_rgb(pixel[:, :, :3], RGB24).tolist() == [[[1, 2, 3]]]


def record_frames(pace: RenderPacer, cost_s: float, times: int = 50) -> RenderPacer:
    for _ in range(times):
        pace.record_frame(cost_s, pace.interval_s)
    return pace


def test_cheap_frames_come_at_the_requested_rate() -> None:
    pace = record_frames(RenderPacer(), 0.0002)
    assert (pace.interval_s, pace.is_limited) == (1 / 30, False)
    assert pace.measured_cost == pytest.approx(1.7 * 0.0002 * 30)


def test_expensive_frames_come_as_often_as_the_budget_allows() -> None:
    pace = record_frames(RenderPacer(budget=0.02), 0.008)
    assert pace.interval_s == pytest.approx(0.010 / 0.02)
    assert pace.is_limited
    pace.request = FrameRequest(30, 0.1)
    assert pace.interval_s == pytest.approx(0.010 / 0.1)
    assert record_frames(pace, 0.008).measured_cost == pytest.approx(0.1, rel=0.05)


def test_watched_environments_share_rate_and_budget() -> None:
    pace = record_frames(RenderPacer(), 0.0002)
    pace.watched_count = 8
    assert pace.interval_s == pytest.approx(8 / 30)
    expensive = record_frames(RenderPacer(budget=0.02), 0.008)
    expensive.watched_count = 8
    assert expensive.interval_s == pytest.approx(8 * 0.010 / 0.02)


def test_a_reader_divides_the_budget_among_its_lanes_and_shares_it_with_other_readers() -> None:
    pace = record_frames(RenderPacer(), 0.008)
    pace.request = FrameRequest(30, 0.05, share=0.5, lane_count=8)
    pace.watched_count = 8
    assert pace.interval_s == pytest.approx(0.010 / 0.025)
    pace.watched_count = 16
    assert pace.interval_s == pytest.approx(0.010 / 0.0125)


def test_the_setup_of_rendering_does_not_slow_later_frames() -> None:
    pace = RenderPacer()
    pace.record_frame(2.0)
    assert pace.interval_s == 1 / 30
    record_frames(pace, 0.0002)
    pace.record_frame(5.0)
    assert pace.interval_s < 1
    record_frames(pace, 0.0002)
    assert pace.interval_s == pytest.approx(1 / 30, rel=0.1)


def test_occasional_preemption_counts() -> None:
    pace = record_frames(RenderPacer(), 0.0002)
    for _ in range(30):
        record_frames(pace, 0.0002, 9)
        pace.record_frame(0.01)
    assert pace.is_limited


# --- what a reader asks for


@pytest.mark.parametrize(
    ("requested", "granted"),
    [
        (60, 60.0),
        (1e9, RATE_BOUNDS_HZ[1]),
        (-3, RATE_BOUNDS_HZ[0]),
        ('"60"', None),
        ("null", None),
        ("true", None),
        ("NaN", None),
    ],
)
def test_requests_are_moved_into_their_bounds(requested: object, granted: float | None) -> None:
    assert decode_request(f'{{"rate_hz": {requested}}}'.encode())[0] == FrameRequest(granted)


def test_a_request_is_read_as_it_was_written() -> None:
    request = FrameRequest(30.0, 0.05, 0.125, 8)
    assert decode_request(encode_request(request, 12.5)) == (request, 12.5)
    assert encode_request(FrameRequest(), 12.5) == b""


def test_one_environment_gets_all_and_several_share_what_a_viewer_can_draw() -> None:
    request = FrameRequest(30, 0.05)
    assert divide_request(request, [4]) == {4: FrameRequest(30, 0.05, 1.0, 1)}
    parts = divide_request(request, range(8))
    assert set(parts.values()) == {FrameRequest(7.5, 0.05, 0.125, 8)}
    assert set(divide_request(FrameRequest(), range(8)).values()) == {FrameRequest()}


def test_the_environment_that_is_looked_at_gets_half_of_the_time_and_the_full_rate() -> None:
    parts = divide_request(FrameRequest(30, 0.05), range(8), focused_env=3)
    assert parts[3] == FrameRequest(30, 0.05, 0.5, 8)
    assert sum(part.share or 0 for part in parts.values()) == pytest.approx(1)
    assert parts[0].rate_hz == pytest.approx(30 / 7)
    assert divide_request(FrameRequest(30, 0.05), range(8), focused_env=99)[0].share == 0.125
