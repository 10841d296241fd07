"""A worker that follows its config: the daemon's counterpart in tests. Discovered by its entry point.

Config: `steps`, `dt` (seconds per step), `exit` (code), `kill` (signal to itself), `deaf` (ignores stop and SIGTERM),
`reject` (a sentence), `say` (to stderr), `child` (starts a daemonised child), `allocate_mb`,
`diverges_at` (the step from which returns are not finite: null in the journal), `contract` (in its handshake),
`tags` (how many metrics it logs).
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path


def describe():  # type: ignore[no-untyped-def]
    from mosaic.base.worker_registry import WorkerDescription

    return WorkerDescription(
        id="scripted",
        title="Scripted",
        version="1",
        command=(sys.executable, "-S", __file__),
    )


def main() -> int:
    sys.path.insert(0, os.environ["SCRIPTED_SOURCE"])
    from mosaic.base.journal import Follower, Journal, Outbox
    from mosaic.contracts.folder import RunFolder

    config = json.loads(Path(sys.argv[sys.argv.index("--config") + 1]).read_text(encoding="utf-8"))["metadata"][
        "worker"
    ]["config"]
    folder = RunFolder(os.environ["MOSAIC_RUN_DIR"])
    if config.get("deaf"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if config.get("child"):
        subprocess.Popen([sys.executable, "-c", "import time; time.sleep(300)"], start_new_session=True)
    outbox = Outbox(Journal(folder.journal))

    def write(kind: str, **fields: object) -> None:
        outbox.put(kind, fields)
        outbox.try_flush()

    inbox = Follower(folder.inbox, int(os.environ.get("MOSAIC_INBOX_OFFSET", 0)))
    if config.get("reject"):
        write("finished", outcome="rejected", reason=config["reject"])
        return 2
    resumed_from = None
    if "--resume" in sys.argv:
        resumed_from = max(int(path.name) for path in folder.checkpoints.iterdir() if path.name.isdigit())
    capabilities = [] if config.get("deaf") else ["inbox", "pause", "checkpoint", "resume"]
    contract = {"contract": config["contract"]} if "contract" in config else {}
    write(
        "hello",
        worker="scripted",
        version="1",
        pid=os.getpid(),
        capabilities=capabilities,
        resumed_from=resumed_from,
        **contract,
    )
    if config.get("say"):
        print(config["say"], file=sys.stderr, flush=True)
    memory = bytearray(config.get("allocate_mb", 0) << 20)
    memory[::4096] = b"x" * len(memory[::4096])
    total, step, is_paused = config.get("steps", 1), resumed_from or 0, False
    while step < total or is_paused:
        time.sleep(config.get("dt", 0.0))
        for line in inbox.read() if not config.get("deaf") else ():
            kind = line.body["kind"]
            if kind == "stop":
                folder.checkpoint(step).mkdir(parents=True, exist_ok=True)
                write("checkpoint", step=step, path=f"checkpoints/{step}")
                write("finished", outcome="stopped", global_step=step)
                return 0
            if kind in ("pause", "resume"):
                is_paused = kind == "pause"
                write("paused" if is_paused else "resumed", global_step=step)
        if is_paused:
            time.sleep(0.02)
            continue
        step += 1
        tags = ["scripted/step", *(f"scripted/{number}" for number in range(1, config.get("tags", 1)))]
        write("metrics", series={tag: [[step, time.time(), float(step)]] for tag in tags})
        episodic_return = None if step >= config.get("diverges_at", total + 1) else float(step)
        write("episodes", rows=[[step, 0, step, time.time(), episodic_return, 1]])
        write("progress", global_step=step, total_timesteps=total, sps=1.0)
    if config.get("kill"):
        os.kill(os.getpid(), config["kill"])
    if config.get("exit"):
        return int(config["exit"])
    write("finished", outcome="succeeded", global_step=step)
    return 0


if __name__ == "__main__":
    sys.exit(main())
