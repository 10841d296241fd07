"""Update and acting steps of every algorithm on a GPU: one by one, as CUDA graphs, compiled; and whether they agree.

    python -m tests.bench.gpu_steps --all
    python -m tests.bench.gpu_steps sac_continuous_action ppo_atari [--compiled]

Needs torch (2.11 and up) and numpy and nothing else: batches are made up. All columns are the same code; `eager`
launches every kernel by itself. Columns are measured by turns, in rounds; a ratio is the median over the rounds, with
the lowest and the highest. Every algorithm has a process of its own, so that one which fails or hangs spoils no other.
"""

from __future__ import annotations

import argparse
import contextlib
import multiprocessing
import os
import signal
import statistics
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent.parent))

from tests.bench import bare_worker

bare_worker.prepare()

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tests.bench.gpu_subjects import SUBJECTS, Subject, apart  # noqa: E402

EAGER: dict[str, Any] = {"cuda_graphs": False, "compile": False}
GRAPH: dict[str, Any] = {"cuda_graphs": True, "compile": False}
COMPILED: dict[str, Any] = {"cuda_graphs": True, "compile": True}
UPDATES = 20
TOLERANCE = 1e-4
"""Between graph and eager, over weights, moments and targets. They are the same kernels in the same order."""
ROUNDS, ROUND_S = 7, 0.12
ROW_S, COMPILED_S = 60, 75
"""After so long an algorithm is given up."""
UNROLLED = ("ppo_atari_lstm",)
"""Compiling these takes minutes: every step of the memory is written out."""


def wait() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# --- do they agree?


def lived(subject: Subject, first: int, last: int) -> None:
    """Some updates; on the way the learning rate falls and the target network moves."""
    for index in range(first, last):
        subject.set_rate(0.1 if index >= UPDATES // 2 else 1.0)
        subject.update(index)
        if index in (5, 10, 15):
            subject.follow(1.0 if index == 10 else 0.3)


def outcome(subject: Subject) -> dict[str, Any]:
    return {**subject.saved(), "said": np.array(subject.act())}


def check(name: str) -> list[str]:
    """What was compared and how far it was apart."""
    make = SUBJECTS[name]
    eager, graph = make(name, **EAGER), make(name, **GRAPH)
    lines = []

    def tell(what: str, distance: float) -> None:
        verdict = "" if distance <= TOLERANCE else f"  <-- DIFFERS (over {TOLERANCE:g})"
        lines.append(f"  {what}: {distance:.1e}{verdict}")

    for subject in (eager, graph):
        torch.manual_seed(1)
        lived(subject, 0, UPDATES // 2)
        if subject is graph:
            half = graph.saved()
            state = graph.learner.compute.random_state()
        lived(subject, UPDATES // 2, UPDATES)
    whole = outcome(graph)
    tell(
        f"graph and eager after {UPDATES} updates, the rate lower and the target moved on the way",
        apart(outcome(eager), whole),
    )

    resumed = make(name, half, **GRAPH)
    resumed.learner.compute.restore_random_state(state)
    lived(resumed, UPDATES // 2, UPDATES)
    tell("a graph that was resumed from a checkpoint, and one that was not", apart(outcome(resumed), whole))

    kept = [(part, part.detach().clone()) for part in graph.kept()]
    state = graph.learner.compute.random_state()
    ends = []
    for _ in range(2):
        with torch.no_grad():
            for part, value in kept:
                part.copy_(value)
        graph.learner.compute.restore_random_state(state)
        for index in range(4):
            graph.update(index)
        ends.append(outcome(graph))
    tell("a graph that replays after a state was loaded into it, twice", apart(*ends))

    before = outcome(graph)["weights"]
    graph.set_rate(0.0)
    for index in range(1, 3):
        graph.update(index)
    after = outcome(graph)["weights"]
    still = {key: part for key, part in before.items() if "target" not in key and key != "log_alpha"}
    tell("weights before and behind updates at rate 0", apart(still, {key: after[key] for key in still}))
    return lines


# --- how long do they take?


def seconds(work: Callable[[int], object], calls: int) -> float:
    wait()
    began = time.perf_counter()
    for index in range(calls):
        work(index)
    wait()
    return (time.perf_counter() - began) / calls


def table(name: str, kinds: dict[str, dict[str, Any]]) -> list[str]:
    subjects = {kind: SUBJECTS[name](name, **settings) for kind, settings in kinds.items()}
    steps = subjects["eager"].steps
    lines = []
    for what in ("update", "acting"):
        works: dict[str, Callable[[int], object]] = {}
        for kind, subject in subjects.items():
            works[kind] = subject.update if what == "update" else lambda _, act=subject.act: act()  # type: ignore[misc]
        if what == "acting" and (numpys := subjects["eager"].in_numpy) is not None:
            works["numpy"] = lambda _, act=numpys: act()  # type: ignore[misc]
        calls = {}
        for kind, work in works.items():
            seconds(work, 8)  # both kinds of an update of SAC, and every capture
            calls[kind] = max(4, int(ROUND_S / seconds(work, 8)))
        rounds = [{kind: seconds(work, calls[kind]) for kind, work in works.items()} for _ in range(ROUNDS)]
        parts = [f"{name:24} {what:7}"]
        for kind in works:
            cost = statistics.median(taken[kind] for taken in rounds) / (steps if what == "update" else 1)
            part = f"{kind} {cost * 1e6:8.1f} us"
            if kind != "eager":
                ratios = sorted(taken["eager"] / taken[kind] for taken in rounds)
                part += f" x{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
            parts.append(part)
        lines.append("  ".join(parts))
    return lines


# --- one process for each


def work_on(name: str, part: str, answers: Any) -> None:
    os.setpgid(0, 0)
    try:
        if part == "checks":
            answers.send(check(name))
        elif part == "machine":
            there = torch.cuda.is_available()
            device = torch.cuda.get_device_name(0) if there else "no GPU: every column is the same eager code"
            answers.send([f"torch {torch.__version__}, {device}"])
        else:
            answers.send(table(name, {"eager": EAGER, part: GRAPH if part == "graph" else COMPILED}))
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        answers.send([f"{name:24} {part} FAILED: {type(error).__name__}: {error} ({last.filename}:{last.lineno})"])


def apart_from_here(name: str, part: str, limit_s: float) -> list[str]:
    """What a process of its own answers within a time."""
    context = multiprocessing.get_context("fork")  # no device has been touched here: torch is imported once for all
    answers, sender = context.Pipe(duplex=False)
    process = context.Process(target=work_on, args=(name, part, sender))
    process.start()
    sender.close()
    try:
        if not answers.poll(limit_s):
            return [f"{name:24} {part} GIVEN UP after {limit_s:.0f} s"]
        found: list[str] = answers.recv()
        return found
    except EOFError:
        return [f"{name:24} {part} FAILED: its process ended without a word"]
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid or 0, signal.SIGKILL)  # and the compiler's helpers
        process.join()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*SUBJECTS, []], help="algorithms; none: see --all")
    parser.add_argument("--all", action="store_true", help="every algorithm, and compiled while time is left")
    parser.add_argument("--compiled", action="store_true", help="compiled as well")
    parser.add_argument("--seconds", type=float, default=340, help="when to begin nothing more")
    chosen = parser.parse_args()
    names = list(SUBJECTS) if chosen.all else chosen.names
    if not names:
        parser.error("name algorithms, or --all")
    began = time.monotonic()

    def left() -> float:
        return float(chosen.seconds) - (time.monotonic() - began)

    def say(lines: list[str]) -> None:
        print("\n".join(lines), flush=True)

    say(apart_from_here("", "machine", ROW_S))
    for name in names:
        if left() < 5:
            say([f"{name:24} not begun: {chosen.seconds:.0f} s are over"])
            continue
        say(apart_from_here(name, "graph", min(ROW_S, left())))
        say([f"  {name}: differences at most", *apart_from_here(name, "checks", max(5, min(ROW_S, left())))])
    for name in names if chosen.compiled or chosen.all else ():
        if name in UNROLLED or left() < 20:
            say([f"{name:24} compiled not begun: " + ("it takes minutes" if name in UNROLLED else "no time is left")])
            continue
        say(apart_from_here(name, "compiled", min(COMPILED_S, left())))
    say([f"{time.monotonic() - began:.0f} s in all"])


if __name__ == "__main__":
    main()
