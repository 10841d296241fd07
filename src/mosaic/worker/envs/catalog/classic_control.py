"""Classic control: poles, carts and hills."""

from __future__ import annotations

from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs.family import HEADLESS_VARIABLES, EnvEntry, EnvFamily, KeyBinding

_SIDES = (KeyBinding(("Left",), "left"), KeyBinding(("Right",), "right"))
ENTRIES = (
    EnvEntry(
        pattern="CartPole",
        about="Keep the pole upright by pushing the cart.",
        observation_names=("cart position", "cart velocity", "pole angle", "pole angular velocity"),
        settings=(SettingField("sutton_barto_reward", "bool", False, "Reward only the fall, with -1."),),
        actions=("left", "right"),
        keys=_SIDES,
        rules=(
            "Positions are in meters, angles in radians; positive is to the right. An action pushes the cart that way.",
            "The episode ends beyond 2.4 m, or when the pole leans more than 0.21 (12 degrees).",
            ({"sutton_barto_reward": False}, "Each step gives 1."),
            ({"sutton_barto_reward": True}, "The fall gives -1, no other step anything."),
        ),
        rate_hz=20,
    ),
    EnvEntry(
        pattern=r"MountainCar-",
        about="Swing the car up the hill.",
        observation_names=("position", "velocity"),
        actions=("left", "idle", "right"),
        keys=_SIDES,
        rules=(
            "The valley is at -0.5, the top at 0.5, where the episode ends. The engine is too weak to climb directly.",
            "Each step costs 1. An action accelerates that way.",
        ),
        idle_action="idle",
        rate_hz=30,
    ),
    EnvEntry(
        pattern="MountainCarContinuous",
        about="Swing the car up the hill.",
        keys=(
            KeyBinding(("Left",), axis=0, value=-1, label="left"),
            KeyBinding(("Right",), axis=0, value=1, label="right"),
        ),
        rate_hz=30,
    ),
    EnvEntry(
        pattern="Acrobot",
        about="Swing the lower link above the line.",
        observation_names=(
            "cosine of the first angle",
            "sine of the first angle",
            "cosine of the second angle",
            "sine of the second angle",
            "first angular velocity",
            "second angular velocity",
        ),
        rules=(
            "The first joint is fixed, the torque acts on the second. A step costs 1 until the tip is above the line.",
        ),
        actions=("torque_left", "idle", "torque_right"),
        keys=(KeyBinding(("Left",), "torque_left"), KeyBinding(("Right",), "torque_right")),
        idle_action="idle",
        rate_hz=15,
    ),
    EnvEntry(
        pattern="Pendulum",
        about="Swing the pendulum up and hold it there.",
        settings=(SettingField("g", "float", 10.0, "Gravity.", {"ge": 0}),),
        keys=(
            KeyBinding(("Left",), axis=0, value=2, label="turn left"),
            KeyBinding(("Right",), axis=0, value=-2, label="turn right"),
        ),
        rate_hz=30,
    ),
)

FAMILY = EnvFamily(
    name="classic_control",
    title="Classic control",
    about="Poles, carts and hills with a few numbers to observe; trained in seconds to minutes.",
    sample_env_id="CartPole-v1",
    extra="train",
    packages=("gymnasium",),
    entry_points=("gymnasium.envs.classic_control",),
    environment_variables=HEADLESS_VARIABLES,
    entries=ENTRIES,
)
