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

# torch may look for a device when it is imported; so it does that without touching it, and processes can part.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tests.bench.gpu_subjects import SUBJECTS, Subject, apart  # noqa: E402

EAGER: dict[str, Any] = {"cuda_graphs": False, "compile": False}
GRAPH: dict[str, Any] = {"cuda_graphs": True, "compile": False}
COMPILED: dict[str, Any] = {"cuda_graphs": True, "compile": True}
UPDATES = 20
TOLERANCE = 1e-4
"""Between graph and eager, over weights, moments and targets. They are the same kernels in the same order."""
ROUNDS, ROUND_S = 7, 0.08
ROW_S, MEASURE_S = 60, 6
"""After so long an algorithm is given up; so long it takes to measure one."""
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
        verdict = "agrees" if distance <= TOLERANCE else f"DIFFERS (over {TOLERANCE:g})"
        lines.append(f"{name:24} {what}: at most {distance:.1e} apart, {verdict}")

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


def compared(name: str, kind: str, settings: dict[str, Any]) -> Callable[[], list[str]]:
    """Makes both subjects, and captures and compiles what they do; the rest measures."""
    subjects = {"eager": SUBJECTS[name](name, **EAGER), kind: SUBJECTS[name](name, **settings)}
    for subject in subjects.values():
        for index in range(8):  # both kinds of an update of SAC
            subject.update(index)
            subject.act()
    return lambda: table(name, subjects)


def table(name: str, subjects: dict[str, Subject]) -> list[str]:
    steps = subjects["eager"].steps
    lines = []
    for what in ("update", "acting"):
        works: dict[str, Callable[[int], object]] = {}
        for kind, subject in subjects.items():
            works[kind] = subject.update if what == "update" else lambda _, act=subject.act: act()  # type: ignore[misc]
        if what == "acting" and (numpys := subjects["eager"].in_numpy) is not None:
            works["numpy"] = lambda _, act=numpys: act()  # type: ignore[misc]
        calls = {kind: max(4, int(ROUND_S / seconds(work, 8))) for kind, work in works.items()}
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


def machine() -> list[str]:
    if not torch.cuda.is_available():
        return [f"torch {torch.__version__}, no GPU: every column is the same eager code"]
    from cleanrl_worker.torch_backend import Acting, Compute

    acting = Acting((1, 4), torch.float32, 1, lambda seen: seen[:, :1], Compute.prepared(cuda=True))
    seen = np.zeros((1, 4), np.float32)
    seconds(lambda _: acting(seen), 100)
    floor = min(seconds(lambda _: acting(seen), 500) for _ in range(5))
    return [
        f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}",
        f"an act that computes nothing, to the device and back: {floor * 1e6:.1f} us",
    ]


# --- a process for each


def guarded(label: str, work: Callable[[], list[str]]) -> list[str]:
    try:
        return work()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        said = " ".join(str(error).split())[:300]
        return [f"{label} FAILED: {type(error).__name__}: {said} ({last.filename}:{last.lineno})"]


def work_on(name: str, part: str, wire: Any) -> None:
    os.setpgid(0, 0)
    if part == "machine":
        wire.send(guarded("the machine", machine))
    elif part == "graph":
        lines = guarded(f"{name:24} {part}", lambda: compared(name, "graph", GRAPH)())
        wire.send([*lines, *guarded(f"{name:24} checks", lambda: check(name))])
    else:
        measure: list[Callable[[], list[str]]] = []
        failed = guarded(f"{name:24} {part}", lambda: measure.append(compared(name, "compiled", COMPILED)) or [])  # type: ignore[func-returns-value]
        wire.send("ready")
        wire.recv()
        wire.send(failed or guarded(f"{name:24} {part}", measure[0]))


class Child:
    """Works on one algorithm, apart from here: whatever happens to it happens to nothing else."""

    kind = "fork"
    """torch is imported once for all, and no device has been touched before they part."""

    def __init__(self, name: str, part: str) -> None:
        context: Any = multiprocessing.get_context(self.kind)
        self._label = f"{name:24} {part}"
        self.wire, wire = context.Pipe()
        self._process = context.Process(target=work_on, args=(name, part, wire))
        self._process.start()
        wire.close()

    def answer(self, limit_s: float) -> Any:
        try:
            return self.wire.recv() if self.wire.poll(limit_s) else [f"{self._label} GIVEN UP after {limit_s:.0f} s"]
        except EOFError:
            return [f"{self._label} FAILED: its process ended without a word"]

    def end(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # and the compiler's helpers
        self._process.join()


def asked(name: str, part: str, limit_s: float) -> list[str]:
    child = Child(name, part)
    try:
        found: list[str] = child.answer(limit_s)
        return found
    finally:
        child.end()


def say(lines: list[str]) -> None:
    print("\n".join(lines), flush=True)


def compile_all(names: list[str], left: Callable[[], float]) -> None:
    """All are compiled at once, which takes long, and then measured one by one."""
    children = {name: Child(name, "compiled") for name in names}
    try:
        until = time.monotonic() + max(10.0, left() - MEASURE_S * len(names))
        ready = {name: child.answer(max(0.1, until - time.monotonic())) for name, child in children.items()}
        for name, answer in ready.items():
            if answer != "ready":
                children[name].end()
                say(answer)
        for name in (name for name, answer in ready.items() if answer == "ready"):
            children[name].wire.send("go")
            say(children[name].answer(max(1.0, min(ROW_S, left()))))
            children[name].end()
    finally:
        for child in children.values():
            child.end()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", choices=[*SUBJECTS, []], help="algorithms; none: see --all")
    parser.add_argument("--all", action="store_true", help="every algorithm, compiled as well")
    parser.add_argument("--compiled", action="store_true", help="compiled as well")
    parser.add_argument("--seconds", type=float, default=345, help="how long all of it may take")
    chosen = parser.parse_args()
    names = list(SUBJECTS) if chosen.all else chosen.names
    if not names:
        parser.error("name algorithms, or --all")
    began = time.monotonic()

    def left() -> float:
        return float(chosen.seconds) - (time.monotonic() - began)

    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # pulls in the compiler, for all
    first = asked("", "machine", ROW_S)
    if "FAILED" in first[0] and "fork" in first[0]:
        Child.kind = "spawn"
        first = asked("", "machine", ROW_S)
    say(first)
    for name in names:
        say(asked(name, "graph", min(ROW_S, left())) if left() > 5 else [f"{name:24} not begun: the time is over"])
    if chosen.compiled or chosen.all:
        wanted = [name for name in names if name not in UNROLLED]
        say([f"{name:24} is not compiled: that takes minutes" for name in names if name in UNROLLED])
        compile_all(wanted, left)
    say([f"{time.monotonic() - began:.0f} s in all"])


if __name__ == "__main__":
    main()
