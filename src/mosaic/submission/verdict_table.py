"""A worker's verdict on a config, for people."""

from __future__ import annotations

from typing import Any

from mosaic.submission.algorithm_schema import Algorithm, load_algorithms
from mosaic.submission.run_payloads import CORE_FIELD_NAMES

Json = dict[str, Any]


def verdict_rows(summary: Json, algorithm: Algorithm | None = None) -> list[tuple[str, str]]:
    """What is worth knowing before it starts; a worker that says less gets fewer rows."""
    env = summary.get("environment") or {}
    folders = summary.get("directories") or {}
    steps = summary.get("total_timesteps")
    longest = env.get("max_episode_steps")
    rows = [
        ("module", summary.get("module")),
        ("backend", summary.get("backend")),
        ("threads", summary.get("threads")),
        ("policy", summary.get("policy_path")),
        ("environment", env.get("id") or summary.get("env_id")),
        ("observations", env.get("observation_space")),
        ("actions", env.get("action_space")),
        ("episodes", f"at most {longest:,} steps each" if longest else None),
        ("steps", f"{steps:,}" if steps else None),
        ("seed", summary.get("seed")),
        ("changed", "\n".join(_non_default_settings(summary, algorithm)) or "nothing: every setting has its default"),
        ("run folder", folders.get("run")),
        ("tensorboard", summary.get("tensorboard_dir") or "off"),
        ("warning", "\n".join(summary.get("warnings") or ()) or None),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def _non_default_settings(summary: Json, algorithm: Algorithm | None) -> list[str]:
    algorithm = algorithm or load_algorithms().get(summary.get("algo") or "")
    if algorithm is None:
        return [f"{name} = {value}" for name, value in (summary.get("settings") or {}).items()]
    return [
        f"{name} = {value} (default {algorithm.default(name)})"
        for name, value in (summary.get("settings") or {}).items()
        if name not in CORE_FIELD_NAMES and value != algorithm.default(name)
    ]
