"""The error for an algorithm that no worker has, with the nearest one in purpose where its name is known."""

from __future__ import annotations

from collections.abc import Iterable

from mosaic.contracts.errors import UnknownName, unknown_name_error

_NEAREST = {
    ("ppo", "ppo_continuous_action"): "acer acktr appo npg trpo",
    ("ppg_procgen", "ppo"): "ppg phasicpolicygradient",
    ("a2c", "ppo"): "a3c impala pg reinforce vpg",
    ("dqn", "pqn"): "apex ddqn doubledqn duelingdqn qlearning r2d2 sarsa",
    ("qrdqn", "c51"): "fqf iqn",
    ("sac_continuous_action", "tqc"): "crossq droq redq",
    ("td3_continuous_action",): "d4pg naf",
    ("sac_atari",): "sacd sacdiscrete",
    ("ppo_lstm", "ppo_atari_lstm"): "recurrentppo",
    ("ppo_trxl", "ppo_lstm"): "gtrxl transformerppo",
}
"""By names of ours: names of the field that we do not have, in lower case and without separators."""


def unknown_algorithm_error(name: str, known: Iterable[str], where: str = "") -> UnknownName:
    known = set(known)
    plain = name.lower().translate({ord(separator): None for separator in "-_ "})
    nearest = next((ours for ours, others in _NEAREST.items() if plain in others.split()), ())
    return unknown_name_error("algorithm", name, known, where, [ours for ours in nearest if ours in known])
