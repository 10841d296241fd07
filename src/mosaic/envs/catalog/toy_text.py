"""Toy text: small grid worlds and card games."""

from __future__ import annotations

from mosaic.contracts.setting_field import SettingField
from mosaic.envs.family import HEADLESS_VARIABLES, EnvEntry, EnvFamily, KeyBinding

ARROWS = (
    KeyBinding(("Left",), "left"),
    KeyBinding(("Down",), "down"),
    KeyBinding(("Right",), "right"),
    KeyBinding(("Up",), "up"),
)
ENTRIES = (
    EnvEntry(
        pattern="FrozenLake",
        about="Walk over the ice to the goal without falling into a hole.",
        settings=(
            SettingField("is_slippery", "bool", True, "Whether a move may go sideways."),
            SettingField(
                "map_name",
                "choice",
                None,
                "The map; null is one that was drawn at random once.",
                {"choices": ("4x4", "8x8")},
                is_optional=True,
            ),
            SettingField("desc", "json", None, "Another map: rows of S, F, H and G.", is_optional=True),
        ),
        actions=("left", "down", "right", "up"),
        keys=ARROWS,
        symbols="mosaic.envs.symbols:frozen_lake",
    ),
    EnvEntry(
        pattern="CliffWalking",
        about="Walk along the cliff to the goal.",
        settings=(SettingField("is_slippery", "bool", False, "Whether a move may go sideways."),),
        actions=("up", "right", "down", "left"),
        keys=ARROWS,
        symbols="mosaic.envs.symbols:cliff_walking",
    ),
    EnvEntry(
        pattern="Taxi",
        about="Take the passenger to the hotel.",
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
        symbols="mosaic.envs.symbols:taxi",
    ),
    EnvEntry(
        pattern="Blackjack",
        about="Come closer to 21 than the dealer, and not above.",
        observation_names=("your sum", "card of the dealer", "usable ace (1 or 0)"),
        settings=(
            SettingField("natural", "bool", False, "Whether a natural blackjack pays 1.5."),
            SettingField("sab", "bool", False, "Whether to follow the rules of Sutton and Barto."),
        ),
        actions=("stick", "hit"),
        keys=(KeyBinding(("S",), "stick"), KeyBinding(("H",), "hit")),
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
