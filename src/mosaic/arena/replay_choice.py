"""Decides whether the episodes of a recording can be simulated again, and what is stored where they cannot."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

import gymnasium

from mosaic.arena.recording import RecordingHeader
from mosaic.arena.video_recorder import render_rate
from mosaic.envs.factory import find_family
from mosaic.envs.reproducible import random_state
from mosaic.fastlane.tap import FrameRenderer, can_render

if TYPE_CHECKING:
    from mosaic.arena.play_envs import PlayEnv
    from mosaic.contracts.play import PlayConfig

Warn = Callable[[str, str], None]
WARNING = "not_simulated_again"


def explain_irreproducible(env_id: str, core: Any = None) -> str:
    """Return why the same start and actions may give another episode; empty where they give the same one.

    `core` is the unwrapped environment, where there is one.
    """
    family, spec = find_family(env_id), gymnasium.registry.get(env_id.rpartition(":")[2])
    if family is not None and not family.is_reproducible:
        return f"episodes of {family.title} are different each time"
    if spec is not None and spec.nondeterministic:
        return "it is registered as nondeterministic"
    if spec is not None and core is not None and random_state(core) is None:
        return "it has no random state that can be stored"
    return ""


def choose_session_replay(
    header: RecordingHeader, env: PlayEnv, config: PlayConfig, names: tuple[str, ...], warn: Warn
) -> RecordingHeader:
    """Return the header of a session: where its episodes cannot be simulated again, frames are stored if there are."""
    reason = explain_irreproducible(header.env_id, env.core)
    problem = _find_render_problem(env, config.seed) if reason or config.compare_frames else ""
    if not reason:
        if problem:
            warn(f"Frames of {header.env_id} are not compared in a replay: {problem}", "frames_not_compared")
        return header.model_copy(update={"has_frame_hashes": config.compare_frames and not problem})
    stored: Literal["frames", "nothing"] = "nothing" if problem else "frames"
    consequence = f"only actions and rewards are recorded: {problem}" if problem else "its frames are stored as videos"
    warn(f"{header.env_id} cannot be simulated again, because {reason}, so {consequence}.", WARNING)
    return header.model_copy(
        update={"replay": stored, "reason": reason, "action_names": names, "rate_hz": render_rate(env.env)}
    )


def _find_render_problem(env: PlayEnv, seed: int) -> str:
    """Return why the environment cannot be rendered, by rendering it once; empty where it can."""
    if not can_render(env.env):
        return "it cannot be rendered"
    try:
        env.reset(seed)
        FrameRenderer(env.env).render_frame()
    except Exception as error:  # graphics drivers raise all kinds of errors
        return str(error) or type(error).__name__
    return ""


def choose_replay_without_frames(header: RecordingHeader, warn: Warn) -> RecordingHeader:
    """Return the header of a training or an evaluation. Rendering each step would be too slow there."""
    reason = explain_irreproducible(header.env_id)
    if not reason:
        return header
    warn(
        f"{header.env_id} cannot be simulated again, because {reason}, so only actions and rewards are recorded.",
        WARNING,
    )
    return header.model_copy(update={"replay": "nothing", "reason": reason})
