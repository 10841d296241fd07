"""Whether a family really gives pictures here: `python -m mosaic.envs.render_check mujoco` prints one JSON line.

A program of its own, because a graphics driver that fails may take the process with it.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from typing import Any

from mosaic.contracts.errors import MosaicError, unknown_name_error
from mosaic.envs.catalogue import FAMILIES, EnvFamily

RENDER_TIMEOUT_S = 60.0


def check_rendering(family_name: str) -> dict[str, Any]:
    """`{ok, family, env_id, shape, seconds}`, or `{ok: false, family, env_id, message}` saying what to do."""
    if family_name not in FAMILIES:
        raise unknown_name_error("environment family", family_name, FAMILIES)
    family = FAMILIES[family_name]
    about = {"family": family.name, "env_id": family.sample_env_id}
    if family.is_unsupported:
        return {"ok": False, **about, "message": f"{family.title} comes with a later version."}
    if not family.is_installed:
        return {"ok": False, **about, "message": f"Not installed: {family.install_command}"}
    try:
        done = subprocess.run(
            [sys.executable, "-m", "mosaic.envs.render_check", family.name],
            stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=RENDER_TIMEOUT_S,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"ok": False, **about, "message": f"No picture within {RENDER_TIMEOUT_S:.0f} s. {family.render_help}"}
    if done.returncode == 0:
        return {**about, **json.loads(done.stdout.splitlines()[-1])}
    return {"ok": False, **about, "message": _failure_message(family, done)}


def _failure_message(family: EnvFamily, done: subprocess.CompletedProcess[str]) -> str:
    words = [line for line in done.stderr.splitlines() if line.strip()]
    last = words[-1].strip() if words else "it said nothing"
    ending = signal.Signals(-done.returncode).name if done.returncode < 0 else f"exit code {done.returncode}"
    return f"No picture from {family.sample_env_id} ({ending}: {last}). {family.render_help}"


def _render_sample(family: EnvFamily) -> dict[str, Any]:
    from mosaic.envs.factory import make

    started = time.perf_counter()
    env = make(family.sample_env_id, render_mode="rgb_array")
    env.reset(seed=1)
    frame: Any = env.render()
    seconds = time.perf_counter() - started
    return {"ok": True, "shape": list(frame.shape), "seconds": round(seconds, 3)}


def main() -> int:
    """Draws one frame; the reply is on stdout, the libraries' own words are on stderr."""
    with os.fdopen(os.dup(1), "w") as reply:
        os.dup2(2, 1)
        try:
            print(json.dumps(_render_sample(FAMILIES[sys.argv[1]])), file=reply, flush=True)
        except MosaicError as error:
            print(error, file=sys.stderr)
            return error.exit_code
    # Some drivers crash while they are taken down; the frame is what was asked for.
    os._exit(0)


if __name__ == "__main__":
    sys.exit(main())
