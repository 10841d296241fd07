"""Toy text: small grid worlds and card games."""

from __future__ import annotations

from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs.family import HEADLESS_VARIABLES, EnvEntry, EnvFamily, KeyBinding

ARROWS = (
    KeyBinding(("Left",), "left"),
    KeyBinding(("Down",), "down"),
    KeyBinding(("Right",), "right"),
    KeyBinding(("Up",), "up"),
)
_LAKE = EnvEntry(
    pattern="FrozenLake",
    about="Walk over the ice to the goal without falling into a hole.",
    settings=(
        SettingField("is_slippery", "bool", True, "Whether a move may go sideways."),
        SettingField(
            "map_name",
            "choice",
            "4x4",
            "The map; null: one drawn at random, the same each time.",
            {"choices": ("4x4", "8x8")},
            is_optional=True,
        ),
        SettingField("desc", "json", None, "Another map: rows of S, F, H and G.", is_optional=True),
    ),
    actions=("left", "down", "right", "up"),
    keys=ARROWS,
    rules=(
        "Rows count from the top, columns from the left, both from 0. A move into the border stays where it is.",
        "The goal gives {reward_schedule[0]:g} and ends the episode, a hole ends it with {reward_schedule[1]:g}. Any "
        "other step gives {reward_schedule[2]:g}.",
        (
            {"is_slippery": True},
            "The ice is slippery: a move goes where you want with probability {success_rate:.3g}, else to the left "
            "or the right of that direction, equally often.",
        ),
        ({"is_slippery": False}, "The ice is not slippery: a move goes where you want."),
    ),
    symbols="mosaic.worker.envs.symbols:frozen_lake",
)
_CLIFF = EnvEntry(
    pattern="CliffWalking",
    about="Walk along the cliff to the goal.",
    settings=(SettingField("is_slippery", "bool", False, "Whether a move may go sideways."),),
    actions=("up", "right", "down", "left"),
    keys=ARROWS,
    rules=(
        "Rows count from the top, columns from the left, both from 0.",
        "A step costs 1, one into the cliff 100 and puts you back to the start. The goal ends the episode.",
        (
            {"is_slippery": True},
            "The ground is slippery: a move goes where you want with probability 1/3, and to either side of that "
            "direction with 1/3 each.",
        ),
    ),
    symbols="mosaic.worker.envs.symbols:cliff_walking",
)
ENTRIES = (
    _LAKE.with_defaults("FrozenLake8x8", map_name="8x8"),
    _LAKE,
    _CLIFF.with_defaults("CliffWalkingSlippery", is_slippery=True),
    _CLIFF,
    EnvEntry(
        pattern="Taxi",
        about="Pick up the passenger and drop them off at the destination.",
        settings=(
            SettingField("is_rainy", "bool", False, "Whether a move may go sideways."),
            SettingField("fickle_passenger", "bool", False, "Whether the passenger may change the destination."),
        ),
        actions=("south", "north", "east", "west", "pickup", "dropoff"),
        keys=(
            KeyBinding(("Down",), "south"),
            KeyBinding(("Up",), "north"),
            KeyBinding(("Right",), "east"),
            KeyBinding(("Left",), "west"),
            KeyBinding(("P",), "pickup"),
            KeyBinding(("D",), "dropoff"),
        ),
        rules=(
            "Rows count from the top, columns from the left, both from 0.",
            "A step costs 1; pickup or dropoff where that is not possible costs 10. Dropping off the passenger at the "
            "destination gives 20 and ends the episode.",
            (
                {"is_rainy": True},
                "It rains: a move goes where you want with probability 0.8, to either side with 0.1 each.",
            ),
            (
                {"fickle_passenger": True},
                "The passenger may change the destination once, after the first move with them.",
            ),
        ),
        symbols="mosaic.worker.envs.symbols:taxi",
    ),
    EnvEntry(
        pattern="Blackjack",
        about="Come closer to 21 than the dealer, and not above.",
        observation_names=("your sum", "card of the dealer (1 is an ace)", "usable ace (1 or 0)"),
        settings=(
            SettingField("natural", "bool", False, "Whether a natural blackjack pays 1.5."),
            SettingField("sab", "bool", True, "Whether to follow the rules of Sutton and Barto."),
        ),
        actions=("stick", "hit"),
        keys=(KeyBinding(("S",), "stick"), KeyBinding(("H",), "hit")),
        rules=(
            "`hit` draws a card, `stick` ends your turn; above 21 you lose. The dealer then draws up to 17 or more.",
            "Winning gives 1, losing -1, a draw 0. An ace counts 11 where that is not above 21: then it is usable.",
            ({"natural": True, "sab": False}, "An ace and a ten at the start win 1.5, if you win."),
            ({"sab": True}, "An ace and a ten at the start win 1, unless the dealer has them, too."),
        ),
    ),
)

FAMILY = EnvFamily(
    name="toy_text",
    title="Toy text",
    about="Small grid worlds and card games with numbered states: FrozenLake, CliffWalking, Taxi, Blackjack.",
    sample_env_id="FrozenLake-v1",
    extra="train",
    packages=("gymnasium",),
    entry_points=("gymnasium.envs.toy_text",),
    environment_variables=HEADLESS_VARIABLES,
    entries=ENTRIES,
)
