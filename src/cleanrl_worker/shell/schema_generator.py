"""Generates the settings of each algorithm as JSON: `python -m cleanrl_worker.shell.schema_generator --write`.

Command line, forms and validation share this file, which can be used without importing the worker.
"""

from __future__ import annotations

import inspect
import sys
from pathlib import Path
from typing import Any

from cleanrl_worker import describe
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.shell.worker_config import WORKER_NAME, WorkerConfig
from mosaic.contracts.options import OPTIONS
from mosaic.worker.schema_fields import describe_fields, print_or_write, render_json

_PACKAGE = Path(__file__).parent.parent


def build_schema() -> dict[str, Any]:
    """Return the content of schemas.json."""
    description = describe()
    return {
        "generated_by": "python -m cleanrl_worker.shell.schema_generator --write",
        "worker": WORKER_NAME,
        "version": description.version,
        "algorithms": {name: _describe_algorithm(name) for name in sorted(ALGORITHMS)},
        "worker_fields": describe_fields(WorkerConfig),
        "options": [option.name for option in OPTIONS.values() if option.is_worker_option],
    }


def _describe_algorithm(name: str) -> dict[str, Any]:
    entry, module = ALGORITHMS[name], load_algorithm(name)
    settings = describe_fields(module.Config)
    title, _, rest = inspect.cleandoc(module.__doc__ or name).partition("\n")
    paragraph = (rest.strip() or title).partition("\n\n")[0]
    page = f"docs/{name}.md"
    return {
        "module": module.__name__,
        "title": title.rstrip("."),
        "summary": " ".join(paragraph.split()),
        "help": page if (_PACKAGE / page).exists() else "",
        "fields": settings,
        "supports": {
            "action_spaces": list(entry.action_spaces),
            "observation_spaces": list(entry.observation_spaces),
            "sees": "images" if entry.is_for_games else "vectors, images" if entry.sees_images else "vectors",
            "games": "atari" if entry.is_for_atari else "procgen" if entry.is_for_procgen else None,
            "is_suggested": entry.is_suggested,
            "resume": True,
            "evaluation": hasattr(module, "load_policy"),
            "backends": ["auto", "numpy", "torch"] if module.Config.has_kernels else ["auto", "torch"],
        },
    }


def render_schema() -> str:
    return render_json(build_schema()) + "\n"


if __name__ == "__main__":
    print_or_write(render_schema(), describe().schemas, sys.argv[1:])
