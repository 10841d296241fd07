"""Balances CartPole: pushes the cart towards the side to which the pole falls."""

from typing import Any


def act(observation: Any, info: Any) -> int:
    _position, _velocity, angle, angular_velocity = observation
    return int(angle + 0.5 * angular_velocity > 0)
