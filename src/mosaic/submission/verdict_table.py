"""A worker's verdict on a config, for people."""

from __future__ import annotations

from typing import TYPE_CHECKING

from mosaic.submission.algorithm_schema import Algorithm, load_algorithms
from mosaic.submission.run_payloads import CORE_FIELD_NAMES

if TYPE_CHECKING:
    from mosaic.contracts.views import VerdictSummary


def verdict_rows(summary: VerdictSummary, algorithm: Algorithm | None = None) -> list[tuple[str, str]]:
    """What is worth knowing before a run starts; a worker that reports less gets fewer rows."""
    env = summary.environment
    steps, max_episode_steps = summary.total_timesteps, env.max_episode_steps
    rows = [
        ("module", summary.module),
        ("backend", summary.backend),
        ("threads", summary.threads),
        ("policy", summary.policy_path),
        ("environment", env.id or summary.env_id),
        ("observations", env.observation_space),
        ("actions", env.action_space),
        ("episodes", f"at most {max_episode_steps:,} steps each" if max_episode_steps else None),
        ("steps", f"{steps:,}" if steps else None),
        ("seed", summary.seed),
        ("changed", "\n".join(_non_default_settings(summary, algorithm)) or "nothing: every setting has its default"),
        ("run folder", summary.directories.get("run")),
        ("tensorboard", summary.tensorboard_dir or "off"),
        ("warning", "\n".join(summary.warnings) or None),
    ]
    return [(name, str(value)) for name, value in rows if value is not None]


def _non_default_settings(summary: VerdictSummary, algorithm: Algorithm | None) -> list[str]:
    algorithm = algorithm or load_algorithms().get(summary.algo or "")
    if algorithm is None:
        return [f"{name} = {value}" for name, value in summary.settings.items()]
    return [
        f"{name} = {value} (default {algorithm.default(name)})"
        for name, value in summary.settings.items()
        if name not in CORE_FIELD_NAMES and value != algorithm.default(name)
    ]
