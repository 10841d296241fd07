"""Box2D: two-dimensional physics."""

from __future__ import annotations

from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs.family import HEADLESS_VARIABLES, EnvEntry, EnvFamily, KeyBinding

_THROTTLED = "Whether the engines are throttled instead of switched."
_LANDER_SETTINGS = (
    SettingField("gravity", "float", -10.0, "Gravity.", {"gt": -12, "lt": 0}),
    SettingField("enable_wind", "bool", False, "Whether there is wind."),
    SettingField("wind_power", "float", 15.0, "The strength of the wind.", {"ge": 0, "le": 20}),
    SettingField("turbulence_power", "float", 1.5, "The strength of turbulence.", {"ge": 0, "le": 2}),
)
_THROTTLES = (
    KeyBinding(("Up",), axis=0, value=1, label="main engine"),
    KeyBinding(("Left",), axis=1, value=-1, label="left engine"),
    KeyBinding(("Right",), axis=1, value=1, label="right engine"),
)
_WALKER = EnvEntry(
    pattern="BipedalWalker",
    about="Walk without falling.",
    settings=(SettingField("hardcore", "bool", False, "Whether there are ladders, stumps and pits."),),
    keys=(
        KeyBinding(("Q",), axis=0, value=1, label="left hip forward"),
        KeyBinding(("A",), axis=0, value=-1, label="left hip back"),
        KeyBinding(("W",), axis=1, value=1, label="left knee forward"),
        KeyBinding(("S",), axis=1, value=-1, label="left knee back"),
        KeyBinding(("O",), axis=2, value=1, label="right hip forward"),
        KeyBinding(("K",), axis=2, value=-1, label="right hip back"),
        KeyBinding(("P",), axis=3, value=1, label="right knee forward"),
        KeyBinding(("L",), axis=3, value=-1, label="right knee back"),
    ),
    rate_hz=30,
)
ENTRIES = (
    EnvEntry(
        pattern="LunarLanderContinuous",
        about="Land between the flags.",
        settings=(SettingField("continuous", "bool", True, _THROTTLED), *_LANDER_SETTINGS),
        keys=_THROTTLES,
        rate_hz=40,
    ),
    EnvEntry(
        pattern="LunarLander",
        about="Land between the flags.",
        observation_names=(
            "horizontal position",
            "height",
            "horizontal speed",
            "vertical speed",
            "angle",
            "angular speed",
            "left leg touches",
            "right leg touches",
        ),
        settings=(SettingField("continuous", "bool", False, _THROTTLED), *_LANDER_SETTINGS),
        actions=("idle", "left_engine", "main_engine", "right_engine"),
        keys=(
            KeyBinding(("Up",), "main_engine"),
            KeyBinding(("Left",), "left_engine"),
            KeyBinding(("Right",), "right_engine"),
            *_THROTTLES,
        ),
        rules=(
            "You are above the place to land, which is at position 0 and height 0. Angles are positive to the left. "
            "`main_engine` pushes up; `left_engine` pushes and turns to the left, `right_engine` to the right.",
            "Coming closer, slower and upright gives points, a leg on the ground 10, a landing 100, a crash -100; each "
            "use of the main engine costs 0.3, of another 0.03.",
            ({"enable_wind": True}, "There is wind, which changes."),
        ),
        idle_action="idle",
        rate_hz=40,
    ),
    _WALKER.with_defaults("BipedalWalkerHardcore", hardcore=True),
    _WALKER,
    EnvEntry(
        pattern="CarRacing",
        about="Drive around the track.",
        settings=(
            SettingField("continuous", "bool", True, "Whether steering and pedals are gradual."),
            SettingField("domain_randomize", "bool", False, "Whether the colors change with each track."),
            SettingField("lap_complete_percent", "float", 0.95, "How much of the track is a lap.", {"gt": 0, "le": 1}),
        ),
        keys=(
            KeyBinding(("Left",), axis=0, value=-1, label="left"),
            KeyBinding(("Right",), axis=0, value=1, label="right"),
            KeyBinding(("Up",), axis=1, value=1, label="gas"),
            KeyBinding(("Down",), axis=2, value=0.8, label="brake"),
            KeyBinding(("Left",), "steer_left"),
            KeyBinding(("Right",), "steer_right"),
            KeyBinding(("Up",), "gas"),
            KeyBinding(("Down",), "brake"),
        ),
        actions=("idle", "steer_right", "steer_left", "gas", "brake"),
        idle_action="idle",
        rate_hz=30,
    ),
)

FAMILY = EnvFamily(
    name="box2d",
    title="Box2D",
    about="Two-dimensional physics: landing, walking, driving from pixels.",
    sample_env_id="LunarLander-v3",
    extra="box2d",
    packages=("gymnasium", "Box2D"),
    entry_points=("gymnasium.envs.box2d",),
    environment_variables=HEADLESS_VARIABLES,
    entries=ENTRIES,
)
