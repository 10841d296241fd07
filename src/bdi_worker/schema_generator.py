"""Generates the settings of the algorithm as JSON: `python -m bdi_worker.schema_generator --write`."""

from __future__ import annotations

import sys
from typing import Any

from bdi_worker import WORKER_NAME, describe
from bdi_worker.worker_config import ALGORITHM, BdiSettings, WorkerConfig
from mosaic.worker.schema_fields import describe_fields, print_or_write, render_json

SUPPORTED_OPTIONS = (
    *("kind", "tensorboard_dir", "video_mode", "grid_limit", "eval_capture_video", "policy_path"),
    *("capture_video", "record_episodes"),
    *("track", "wandb_project_name", "wandb_entity", "wandb_run_name", "wandb_email", "wandb_api_key"),
    *("wandb_use_vpn_proxy", "wandb_http_proxy", "wandb_https_proxy", "fastlane_only"),
    *("eval_batch_size", "eval_repeat", "eval_stochastic", "record_steps", "seed_override"),
)


def build_schema() -> dict[str, Any]:
    """Return the content of schemas.json."""
    algorithm = {
        "module": "bdi_worker.training",
        "title": "BDI agent with learned plans",
        "summary": "An AgentSpeak agent that learns by Q-learning which of its applicable plans to take: those that "
        "are annotated with [learn]. The contexts of the plans say what is sensible at all, and the rest is "
        "learned. The table of values is the policy.",
        "help": "docs/bdi_q.md",
        "fields": describe_fields(BdiSettings),
        "supports": {
            "action_spaces": ["Discrete"],
            "observation_spaces": ["Discrete", "Dict"],
            "resume": True,
            "evaluation": True,
        },
    }
    return {
        "generated_by": "python -m bdi_worker.schema_generator --write",
        "worker": WORKER_NAME,
        "version": describe().version,
        "algorithms": {ALGORITHM: algorithm},
        "worker_fields": describe_fields(WorkerConfig),
        "options": list(SUPPORTED_OPTIONS),
    }


def render_schema() -> str:
    return render_json(build_schema()) + "\n"


if __name__ == "__main__":
    print_or_write(render_schema(), describe().schemas, sys.argv[1:])
