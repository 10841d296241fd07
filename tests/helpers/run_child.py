"""Producers of runs that tests start, signal and kill: `python run_child.py BEHAVIOR RUN_FOLDER`."""

from __future__ import annotations

import multiprocessing
import os
import resource
import signal
import sys
import threading
import time

import numpy as np

from mosaic.contracts.folder import RunFolder
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.run import Run


def print_line(text: object) -> None:
    print(text, flush=True)


def save_forever(folder: RunFolder) -> None:
    """Save without end, some steps twice, and print each step that is saved."""
    with Run(folder, worker="saver", version="1", tensorboard=folder.tensorboard) as run:
        checkpoint = last_good_checkpoint(folder)
        run.hello(checkpoint)
        step = run.global_step
        while True:
            step += 1
            for repetition in range(2 if step % 3 == 0 else 1):
                run.episode(env=0, step=step, episodic_return=float(step % 5), length=1)
                weights = {"w": np.full(2000, step, np.float32)}
                run.save_checkpoint(
                    step, weights=weights, arrays={"a": np.full(5000, step)}, facts={"repetition": repetition}
                )
                print_line(step)


def log_forever(folder: RunFolder) -> None:
    """Log without end."""
    with Run(folder, worker="logger", version="1", tensorboard=folder.tensorboard) as run:
        run.hello()
        step = 0
        while True:
            step += 1
            run.scalar("losses/value_loss", step / 7, step)
            run.episode(env=0, step=step, episodic_return=step / 3, length=step)
            run.update(step)
            time.sleep(0.001)


def step_until_stopped(folder: RunFolder) -> None:
    """Step until a stop is requested."""
    with Run(folder, worker="stepper", version="1") as run:
        run.hello()
        step = 0
        while not run.stop_requested:
            step += 1
            run.update(step)
            if step == 1:
                print_line("ready")
            time.sleep(0.001)
        run.finish("stopped")


def ignore_interrupt(folder: RunFolder) -> None:
    """Notice the first Ctrl-C and ignore it."""
    with Run(folder, worker="ignorer", version="1") as run:
        run.hello()
        print_line("ready")
        while not run.stop_requested:
            time.sleep(0.001)
        print_line("requested")
        time.sleep(60)


def fork_child(folder: RunFolder) -> None:
    """Fork a child that must die of SIGTERM although its parent handles it."""
    with Run(folder, worker="forker", version="1") as run:
        run.hello()
        child = multiprocessing.get_context("fork").Process(target=time.sleep, args=(60,))
        child.start()
        assert child.pid is not None
        time.sleep(0.1)
        os.kill(child.pid, signal.SIGINT)
        child.terminate()
        child.join(20)
        print_line(child.exitcode)
        run.finish()


def fill_disk(folder: RunFolder) -> None:
    """Train while no file may grow beyond a limit for some time; nothing may be missing afterwards."""
    with Run(folder, worker="full", version="1", tensorboard=folder.tensorboard) as run:
        run.hello()
        for step in range(1, 4001):
            if step == 1000:
                save(run, step)
                resource.setrlimit(resource.RLIMIT_FSIZE, (2000, resource.RLIM_INFINITY))
            if step == 2000:
                save(run, step)
            if step == 3000:
                resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
                save(run, step)
            run.scalar("losses/value_loss", step / 7, step)
            run.episode(env=0, step=step, episodic_return=step / 3, length=step)
            run._due_at = 0.0
            run.update(step)
        run.finish()


def train_briefly(folder: RunFolder) -> None:
    """Train 30 steps with a checkpoint at every tenth, from the last one on; print each step that is saved."""
    with Run(folder, worker="brief", version="1", tensorboard=folder.tensorboard, total_timesteps=30) as run:
        run.hello(last_good_checkpoint(folder))
        for step in range(run.global_step + 1, 31):
            run.scalar("value", step, step)
            run._due_at = 0.0
            run.update(step)
            if step % 10 == 0:
                weights = {"w": np.full(4, step, np.float32)}
                saved = run.save_checkpoint(step, weights=weights, arrays={"a": np.zeros(9000)}, facts={})
                if saved is not None:
                    print_line(step)
        run.finish()


def finish_on_full_disk(folder: RunFolder) -> None:
    """End while no file may grow, until a line arrives on stdin."""
    with Run(folder, worker="full", version="1", total_timesteps=10) as run:
        run.hello()
        resource.setrlimit(resource.RLIMIT_FSIZE, (300, resource.RLIM_INFINITY))
        print_line("full")

        def free() -> None:
            sys.stdin.readline()
            resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))

        threading.Thread(target=free, daemon=True).start()
        run.scalar("losses/value_loss", 1.0, 10)
        run.update(10)
        save(run, 10)
        run.finish("stopped" if run.stop_requested else "succeeded")


def save(run: Run, step: int) -> None:
    saved = run.save_checkpoint(step, weights={"w": np.zeros(4, np.float32)}, arrays={"a": np.zeros(9000)}, facts={})
    print_line(saved.name if saved else None)


if __name__ == "__main__":
    globals()[sys.argv[1]](RunFolder(sys.argv[2]))
