"""MuJoCo: robots in a physics engine."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from importlib import import_module

from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs.family import EnvEntry, EnvFamily, KeyBinding

_HARMLESS_MUJOCO_WARNING = re.compile(r"compiler attribute '\w+' is deprecated")


def _silence_mujoco() -> None:
    """Replace MuJoCo's warning handler, which would also write MUJOCO_LOG.TXT to the current folder."""
    mujoco = import_module("mujoco")
    set_handler: Callable[[Callable[[str], None]], None] | None = getattr(mujoco, "set_mju_user_warning", None)
    if set_handler is not None:
        set_handler(_show_mujoco)


def _show_mujoco(text: str) -> None:
    if not _HARMLESS_MUJOCO_WARNING.match(text):
        print(f"MuJoCo: {text}", file=sys.stderr)


_COMMON = (
    SettingField("frame_skip", "int", None, "Simulator steps per action.", {"ge": 1, "le": 100}, is_optional=True),
    SettingField("reset_noise_scale", "float", None, "How much the start varies.", {"ge": 0}, is_optional=True),
)
ENTRIES = (
    EnvEntry(
        pattern="InvertedPendulum",
        about="Keep the pole upright by moving the cart.",
        settings=_COMMON,
        keys=(
            KeyBinding(("Left",), axis=0, value=-1, label="left"),
            KeyBinding(("Right",), axis=0, value=1, label="right"),
        ),
        rate_hz=25,
    ),
    EnvEntry(
        pattern="Reacher",
        about="Touch the target with the arm.",
        settings=_COMMON,
        keys=(
            KeyBinding(("Left",), axis=0, value=1, label="shoulder left"),
            KeyBinding(("Right",), axis=0, value=-1, label="shoulder right"),
            KeyBinding(("Up",), axis=1, value=1, label="elbow left"),
            KeyBinding(("Down",), axis=1, value=-1, label="elbow right"),
        ),
        rate_hz=25,
    ),
    EnvEntry(pattern="", about="A robot moved by torques.", settings=_COMMON, rate_hz=25),
)

FAMILY = EnvFamily(
    name="mujoco",
    title="MuJoCo",
    about="Robots in a physics engine, moved by continuous torques.",
    sample_env_id="HalfCheetah-v5",
    extra="mujoco",
    packages=("gymnasium", "mujoco"),
    entry_points=("gymnasium.envs.mujoco",),
    # Without a display MuJoCo aborts unless off-screen rendering is selected before its import.
    environment_variables={"MUJOCO_GL": "egl"},
    no_rendering_variables={"MUJOCO_GL": "disable"},
    render_help=(
        "Set MUJOCO_GL=egl (or osmesa), and on Debian or Ubuntu: "
        "apt-get install libegl1 libgl1 libegl-mesa0 libgl1-mesa-dri"
    ),
    after_import=_silence_mujoco,
    entries=ENTRIES,
)
