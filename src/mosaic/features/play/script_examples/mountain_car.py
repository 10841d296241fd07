"""Reaches the top in MountainCar: pushes in the direction in which the car moves."""

from typing import Any

LEFT, RIGHT = 0, 2


def act(observation: Any, info: Any) -> int:
    _position, velocity = observation
    return RIGHT if velocity >= 0 else LEFT
