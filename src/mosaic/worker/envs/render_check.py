"""Checks whether a family can be rendered: `python -m mosaic.worker.envs.render_check mujoco` prints one JSON line.

It runs in its own process, because a failing graphics driver may crash it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from mosaic.contracts.errors import BadInput, MosaicError, unknown_name_error
from mosaic.worker.envs.families import FAMILIES, EnvFamily

RENDER_TIMEOUT_S = 60.0


def check_rendering(family_name: str) -> dict[str, Any]:
    """Return `{ok, family, env_id, shape, seconds}`, or `{ok: false, family, env_id, message}` with advice."""
    if family_name not in FAMILIES:
        raise unknown_name_error("environment family", family_name, FAMILIES)
    family = FAMILIES[family_name]
    target = {"family": family.name, "env_id": family.sample_env_id}
    if family.is_unsupported:
        return {"ok": False, **target, "message": f"{family.title} is not supported yet."}
    if not family.is_installed:
        return {"ok": False, **target, "message": f"Not installed: {family.install_command}"}
    try:
        result = subprocess.run(
            [sys.executable, "-P", "-m", "mosaic.worker.envs.render_check", family.name],
            stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", errors="replace", timeout=RENDER_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"ok": False, **target, "message": f"No frame within {RENDER_TIMEOUT_S:.0f} s. {family.render_help}"}
    if result.returncode == 0:
        return {**target, **json.loads(result.stdout.splitlines()[-1])}
    return {"ok": False, **target, "message": _failure_message(family, result)}


def require_rendering(family_name: str) -> dict[str, Any]:
    """Render one frame of a family, or raise why that fails."""
    result = check_rendering(family_name)
    if not result["ok"]:
        raise BadInput(result["message"])
    return result


def _failure_message(family: EnvFamily, result: subprocess.CompletedProcess[str]) -> str:
    lines = [line for line in result.stderr.splitlines() if line.strip()]
    last_line = lines[-1].strip() if lines else "no output"
    ending = signal.Signals(-result.returncode).name if result.returncode < 0 else f"exit code {result.returncode}"
    return f"No frame from {family.sample_env_id} ({ending}: {last_line}). {family.render_help}"


def _render_sample(family: EnvFamily) -> dict[str, Any]:
    from mosaic.worker.envs.factory import make

    started = time.perf_counter()
    env = make(family.sample_env_id, render_mode="rgb_array")
    env.reset(seed=1)
    frame: Any = env.render()
    seconds = time.perf_counter() - started
    return {"ok": True, "shape": list(frame.shape), "seconds": round(seconds, 3)}


def main() -> int:
    """Render one frame; print the result to stdout, and what libraries print to stderr."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as reply:
        os.dup2(2, 1)
        try:
            print(json.dumps(_render_sample(FAMILIES[sys.argv[1]])), file=reply, flush=True)
        except MosaicError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    # Some drivers crash at exit; the frame has been rendered.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
