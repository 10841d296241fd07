"""MiniGrid: grid worlds with keys, doors and missions."""

from __future__ import annotations

from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs.family import HEADLESS_VARIABLES, EnvEntry, EnvFamily, KeyBinding

ENTRIES = (
    EnvEntry(
        pattern="",
        about="A grid world with keys, doors and objects; the mission is a sentence.",
        settings=(
            SettingField("max_steps", "int", None, "Steps of an episode.", {"ge": 1}, is_optional=True),
            SettingField("see_through_walls", "bool", None, "Whether walls hide what is behind.", is_optional=True),
            SettingField("agent_view_size", "int", None, "How far the agent sees; odd.", {"ge": 3}, is_optional=True),
        ),
        actions=("left", "right", "forward", "pickup", "drop", "toggle", "done"),
        keys=(
            KeyBinding(("Left",), "left"),
            KeyBinding(("Right",), "right"),
            KeyBinding(("Up",), "forward"),
            KeyBinding(("P",), "pickup"),
            KeyBinding(("D",), "drop"),
            KeyBinding(("Space",), "toggle"),
            KeyBinding(("Return",), "done"),
        ),
        rules=(
            "Rows count from the top, columns from the left, both from 0. `agent down` faces down, the next row.",
            "`left` and `right` turn the agent on the spot; `forward` moves it to its cell ahead, if it is free. "
            "`pickup`, `drop` and `toggle` (opens doors and boxes) act on the cell that it faces.",
            "Fulfilling the mission ends the episode with a reward below 1 that falls with each step, lava with 0. "
            "`done` does nothing in most of these worlds.",
        ),
        symbols="mosaic.worker.envs.symbols:minigrid",
    ),
)

FAMILY = EnvFamily(
    name="minigrid",
    title="MiniGrid",
    about="Partially observed grid worlds with keys, doors and missions in text.",
    sample_env_id="MiniGrid-Empty-5x5-v0",
    extra="minigrid",
    packages=("gymnasium", "minigrid"),
    registering_module="minigrid",
    entry_points=("minigrid",),
    pattern=r"(MiniGrid|BabyAI)-",
    known_ids=("MiniGrid-Empty-5x5-v0", "MiniGrid-Empty-8x8-v0", "MiniGrid-DoorKey-5x5-v0"),
    environment_variables=HEADLESS_VARIABLES,
    entries=ENTRIES,
)
