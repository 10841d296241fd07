"""Updates and inference of every algorithm on a GPU: eager, as CUDA graphs and compiled; and whether they agree.

    python -m tests.bench.gpu_steps --all
    python -m tests.bench.gpu_steps sac_continuous_action ppo_atari [--compiled]

Needs only torch (2.11 and up) and numpy: batches are synthetic. All columns are the same code; `eager`
launches every kernel separately. Columns are measured in turns, in rounds; a ratio is the median over the rounds, with
the lowest and the highest. Every algorithm has its own process, so that one that fails or hangs affects no other.
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

from tests.bench import import_stubs

import_stubs.install_stubs()

# Lets torch look for a device without initializing it, so that processes can be forked afterwards.
os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")
os.environ.setdefault("TORCHINDUCTOR_COMPILE_THREADS", "1")

import numpy as np  # noqa: E402
import torch  # noqa: E402
from tests.bench.gpu_subjects import SUBJECTS, Subject, max_difference  # noqa: E402

EAGER: dict[str, Any] = {"cuda_graphs": False, "compile": False}
GRAPH: dict[str, Any] = {"cuda_graphs": True, "compile": False}
COMPILED: dict[str, Any] = {"cuda_graphs": True, "compile": True}
UPDATES = 20
TOLERANCE = 1e-4
"""Between graph and eager, over weights, moments and targets. They are the same kernels in the same order."""
ROUNDS, ROUND_S = 7, 0.08
ALGORITHM_TIMEOUT_S, MEASURE_BUDGET_S = 60, 6
"""The time after which an algorithm is aborted, and the time to measure one."""
SLOW_TO_COMPILE = ("ppo_atari_lstm",)
"""Compiling these takes minutes, because every step of the LSTM is unrolled."""


def synchronize() -> None:
    if torch.cuda.is_available():
        torch.cuda.synchronize()


# --- do they agree?


def run_updates(subject: Subject, first: int, last: int) -> None:
    """Do some updates, with a lower learning rate and an update of the target network in between."""
    for index in range(first, last):
        subject.set_learning_rate_factor(0.1 if index >= UPDATES // 2 else 1.0)
        subject.update(index)
        if index in (5, 10, 15):
            subject.update_target(1.0 if index == 10 else 0.3)


def collect_state(subject: Subject) -> dict[str, Any]:
    return {**subject.checkpoint_state(), "outputs": np.array(subject.act())}


def check_agreement(name: str) -> list[str]:
    """Return what was compared and the difference."""
    make = SUBJECTS[name]
    eager, graph = make(name, **EAGER), make(name, **GRAPH)
    lines = []

    def report(what: str, distance: float) -> None:
        verdict = "agrees" if distance <= TOLERANCE else f"DIFFERS (over {TOLERANCE:g})"
        lines.append(f"{name:24} {what}: at most {distance:.1e} apart, {verdict}")

    for subject in (eager, graph):
        torch.manual_seed(1)
        run_updates(subject, 0, UPDATES // 2)
        if subject is graph:
            half = graph.checkpoint_state()
            state = graph.learner.compute.random_state()
        run_updates(subject, UPDATES // 2, UPDATES)
    whole = collect_state(graph)
    report(
        f"graph and eager after {UPDATES} updates, with a lower rate and a moved target in between",
        max_difference(collect_state(eager), whole),
    )

    resumed = make(name, half, **GRAPH)
    resumed.learner.compute.restore_random_state(state)
    run_updates(resumed, UPDATES // 2, UPDATES)
    report(
        "a graph that was resumed from a checkpoint, and one that was not",
        max_difference(collect_state(resumed), whole),
    )

    saved_values = [(part, part.detach().clone()) for part in graph.mutable_tensors()]
    state = graph.learner.compute.random_state()
    ends = []
    for _ in range(2):
        with torch.no_grad():
            for part, value in saved_values:
                part.copy_(value)
        graph.learner.compute.restore_random_state(state)
        for index in range(4):
            graph.update(index)
        ends.append(collect_state(graph))
    report("a graph that replays after a state was loaded into it, twice", max_difference(*ends))

    before = collect_state(graph)["weights"]
    graph.set_learning_rate_factor(0.0)
    for index in range(1, 3):
        graph.update(index)
    after = collect_state(graph)["weights"]
    still = {key: part for key, part in before.items() if "target" not in key and key != "log_alpha"}
    report("weights before and after updates at rate 0", max_difference(still, {key: after[key] for key in still}))
    return lines


# --- how long do they take?


def seconds_per_call(work: Callable[[int], object], calls: int) -> float:
    synchronize()
    started_at = time.perf_counter()
    for index in range(calls):
        work(index)
    synchronize()
    return (time.perf_counter() - started_at) / calls


def prepare_comparison(name: str, kind: str, settings: dict[str, Any]) -> Callable[[], list[str]]:
    """Create both subjects, capture and compile their steps, and return what measures them."""
    subjects = {"eager": SUBJECTS[name](name, **EAGER), kind: SUBJECTS[name](name, **settings)}
    for subject in subjects.values():
        for index in range(8):  # both kinds of an update of SAC
            subject.update(index)
            subject.act()
    return lambda: format_timings(name, subjects)


def format_timings(name: str, subjects: dict[str, Subject]) -> list[str]:
    steps = subjects["eager"].gradient_steps
    lines = []
    for what in ("update", "acting"):
        works: dict[str, Callable[[int], object]] = {}
        for kind, subject in subjects.items():
            works[kind] = subject.update if what == "update" else lambda _, act=subject.act: act()  # type: ignore[misc]
        if what == "acting" and (numpys := subjects["eager"].act_in_numpy) is not None:
            works["numpy"] = lambda _, act=numpys: act()  # type: ignore[misc]
        calls = {kind: max(4, int(ROUND_S / seconds_per_call(work, 8))) for kind, work in works.items()}
        rounds = [{kind: seconds_per_call(work, calls[kind]) for kind, work in works.items()} for _ in range(ROUNDS)]
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


def describe_machine() -> list[str]:
    if not torch.cuda.is_available():
        return [f"torch {torch.__version__}, no GPU: every column is the same eager code"]
    from cleanrl_worker.learners.torch_backend import InferenceStep, TorchContext

    acting = InferenceStep((1, 4), torch.float32, 1, lambda seen: seen[:, :1], TorchContext.set_up(cuda=True))
    seen = np.zeros((1, 4), np.float32)
    seconds_per_call(lambda _: acting(seen), 100)
    floor = min(seconds_per_call(lambda _: acting(seen), 500) for _ in range(5))
    return [
        f"torch {torch.__version__}, {torch.cuda.get_device_name(0)}",
        f"inference of an empty network, with both transfers: {floor * 1e6:.1f} us",
    ]


# --- a process for each


def run_guarded(label: str, work: Callable[[], list[str]]) -> list[str]:
    try:
        return work()
    except Exception as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        message = " ".join(str(error).split())[:300]
        return [f"{label} FAILED: {type(error).__name__}: {message} ({last.filename}:{last.lineno})"]


def child_main(name: str, part: str, connection: Any) -> None:
    os.setpgid(0, 0)
    if part == "machine":
        connection.send(run_guarded("the machine", describe_machine))
    elif part == "graph":
        lines = run_guarded(f"{name:24} {part}", lambda: prepare_comparison(name, "graph", GRAPH)())
        connection.send([*lines, *run_guarded(f"{name:24} checks", lambda: check_agreement(name))])
    else:
        measure: list[Callable[[], list[str]]] = []

        def prepare() -> list[str]:
            measure.append(prepare_comparison(name, "compiled", COMPILED))
            return []

        failed = run_guarded(f"{name:24} {part}", prepare)
        connection.send("ready")
        connection.recv()
        connection.send(failed or run_guarded(f"{name:24} {part}", measure[0]))


class AlgorithmProcess:
    """Measures one algorithm in its own process, so that a failure affects no other."""

    start_method = "fork"
    """Forked, so that torch is imported once; no device is initialized before."""

    def __init__(self, name: str, part: str) -> None:
        context: Any = multiprocessing.get_context(self.start_method)
        self._label = f"{name:24} {part}"
        self.connection, wire = context.Pipe()
        self._process = context.Process(target=child_main, args=(name, part, wire))
        self._process.start()
        wire.close()

    def receive(self, timeout_s: float) -> Any:
        try:
            return (
                self.connection.recv()
                if self.connection.poll(timeout_s)
                else [f"{self._label} ABORTED after {timeout_s:.0f} s"]
            )
        except EOFError:
            return [f"{self._label} FAILED: its process ended without a result"]

    def kill(self) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, signal.SIGKILL)  # and the compiler's helpers
        self._process.join()


def run_in_child(name: str, part: str, timeout_s: float) -> list[str]:
    child = AlgorithmProcess(name, part)
    try:
        found: list[str] = child.receive(timeout_s)
        return found
    finally:
        child.kill()


def print_lines(lines: list[str]) -> None:
    print("\n".join(lines), flush=True)


def compile_all(names: list[str], remaining_s: Callable[[], float]) -> None:
    """Compile all at once, which takes long, then measure one after the other."""
    children = {name: AlgorithmProcess(name, "compiled") for name in names}
    try:
        until = time.monotonic() + max(10.0, remaining_s() - MEASURE_BUDGET_S * len(names))
        ready = {name: child.receive(max(0.1, until - time.monotonic())) for name, child in children.items()}
        for name, answer in ready.items():
            if answer != "ready":
                children[name].kill()
                print_lines(answer)
        for name in (name for name, answer in ready.items() if answer == "ready"):
            children[name].connection.send("go")
            print_lines(children[name].receive(max(1.0, min(ALGORITHM_TIMEOUT_S, remaining_s()))))
            children[name].kill()
    finally:
        for child in children.values():
            child.kill()


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
    started_at = time.monotonic()

    def left() -> float:
        return float(chosen.seconds) - (time.monotonic() - started_at)

    torch.optim.Adam([torch.nn.Parameter(torch.zeros(1))])  # imports the compiler, for all processes
    first = run_in_child("", "machine", ALGORITHM_TIMEOUT_S)
    if "FAILED" in first[0] and "fork" in first[0]:
        AlgorithmProcess.start_method = "spawn"
        first = run_in_child("", "machine", ALGORITHM_TIMEOUT_S)
    print_lines(first)
    for name in names:
        print_lines(
            run_in_child(name, "graph", min(ALGORITHM_TIMEOUT_S, left()))
            if left() > 5
            else [f"{name:24} not started: no time left"]
        )
    if chosen.compiled or chosen.all:
        wanted = [name for name in names if name not in SLOW_TO_COMPILE]
        print_lines([f"{name:24} is not compiled: that takes minutes" for name in names if name in SLOW_TO_COMPILE])
        compile_all(wanted, left)
    print_lines([f"{time.monotonic() - started_at:.0f} s in all"])


if __name__ == "__main__":
    main()
