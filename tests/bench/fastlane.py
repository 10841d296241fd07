"""What live frames cost, and how old they are when they are seen.

    python -m tests.bench.fastlane [writer] [age] [torn] [kills] [training] [--pairs N] [--steps N]

`writer`: time of one publish of a 600 by 400 frame, and of CartPole drawn and published.
`age`: from the moment a frame was drawn to the moment it is in a reader's image, at 60 Hz.
`torn`: a million reads against a writer flat out; none may be torn.
`kills`: the writer's group killed a hundred times; nothing may be left.
`training`: steps per second of our own PPO worker without lanes, with lanes and no viewer, with one viewer of one
environment at 30 Hz, and with one and with five viewers of eight. Each takes turns of a second with a worker that has
no lanes, so that both meet the same machine. Two ratios are given: by the wall clock, which also counts that viewers
take processor time on a small machine, and by the worker's own processor time, which counts what it pays itself.
The first quarter of each run is not counted: what is imported and set up once weighs on a short run only.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from tests.bench.process_turns import run_alternately, running_time_s

from mosaic.base.fastlane import (
    NO_REQUEST,
    FrameRequest,
    FrameTap,
    LaneReader,
    LaneView,
    LaneWriter,
    lanes_folder,
    reap_all,
)
from mosaic.base.fastlane.lane_files import LANES_VARIABLE, lanes_root

HEIGHT, WIDTH = 400, 600
FRAME_METADATA: dict[str, Any] = {"episode": 1, "step": 1, "reward": 1.0, "episodic_return": 1.0, "render_s": 0.0}
LANE_WRITER_SCRIPT = Path(__file__).parents[1] / "helpers" / "lane_writer.py"
COLOR_COUNT = 251


def percentiles(seconds: Sequence[float]) -> str:
    ordered = sorted(seconds)
    return (
        f"p50 {ordered[len(ordered) // 2] * 1e3:.3f} ms, p99 {ordered[len(ordered) * 99 // 100] * 1e3:.3f} ms"
        f" (n={len(ordered)})"
    )


def time_calls(call: Callable[[], object], times: int) -> list[float]:
    taken = []
    for _ in range(times):
        started = time.perf_counter()
        call()
        taken.append(time.perf_counter() - started)
    return taken


def bench_writer() -> None:
    folder = lanes_folder("bench writer")
    for channels, name in ((3, "RGB24"), (4, "BGRX32")):
        lane = LaneWriter(folder, 0)
        frame = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, channels), np.uint8)
        time_calls(lambda lane=lane, frame=frame: lane.publish(frame, **FRAME_METADATA), 20)  # type: ignore[misc]
        found = time_calls(lambda lane=lane, frame=frame: lane.publish(frame, **FRAME_METADATA), 3000)  # type: ignore[misc]
        print(f"writer   publish {name:6} {percentiles(found)}")
        lane.close()
    lane = LaneWriter(folder, 0)
    found = time_calls(lane.is_due, 200_000)
    print(f"writer   is_due without a viewer {statistics.median(found) * 1e9:.0f} ns")
    from mosaic.worker import envs

    env = envs.make("CartPole-v1")
    env.reset(seed=1)
    tap = FrameTap(env, lane)
    time_calls(lambda: tap.publish_frame(1, 1, 0.0, 0.0), 20)
    print(
        "writer   CartPole drawn and published "
        f"{percentiles(time_calls(lambda: tap.publish_frame(1, 1, 0.0, 0.0), 1000))}"
    )
    lane.close()


def bench_frame_age(seconds: float = 5.0) -> None:
    """The writer draws 60 times a second; the reader repaints 60 times a second, or looks every millisecond."""
    folder = lanes_folder("bench age")
    child = subprocess.Popen([*THIS_COMMAND, "--draw", folder, str(seconds * 2 + 4)])
    for name, every_s in (("repainting at 60 Hz", 1 / 60), ("looking every ms", 0.001)):
        reader = LaneReader(folder, 0, FrameRequest(60, 0.5))
        ages: list[float] = []
        while reader.read_newest() is None:
            time.sleep(0.01)
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            time.sleep(every_s)
            frame = reader.read_newest()
            if frame is not None:
                ages.append(time.time() - frame.rendered_at)
        print(f"age      {name}: {percentiles(ages)}")
    child.terminate()
    child.wait()
    reap_all()


def write_frames(folder: str, seconds: float) -> None:
    lane = LaneWriter(folder, 0, rate_hz=60, budget=0.5)
    frame = np.random.default_rng(0).integers(0, 255, (HEIGHT, WIDTH, 4), np.uint8)
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if lane.is_due():
            lane.publish(frame, **FRAME_METADATA)
        time.sleep(0.0005)


def bench_torn_reads(reads: int = 1_000_000) -> None:
    """Every read is one that finds a new frame."""
    for side, part in ((16, reads * 9 // 10), (256, reads // 10)):
        folder = lanes_folder("bench torn")
        child = subprocess.Popen(
            [sys.executable, str(LANE_WRITER_SCRIPT), folder, "1", str(side), "600"], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        child.stdout.readline()
        reader = LaneReader(folder)
        taken = bad = looks = 0
        while taken < part:
            looks += 1
            frame = reader.read_newest()
            if frame is not None:
                taken += 1
                bad += not (int(frame.image.min()) == int(frame.image.max()) == frame.step % COLOR_COUNT)
        child.kill()
        child.wait()
        reap_all()
        print(
            f"torn     {side} by {side}: {taken:,} frames taken in {looks:,} looks, {bad} of them torn; "
            f"{reader.torn_reads:,} torn ones were thrown away, {reader.failed_reads:,} looks gave up"
        )


def bench_kills(times: int = 100) -> None:
    left = 0
    for attempt in range(times):
        command = [sys.executable, str(LANE_WRITER_SCRIPT), lanes_folder(f"bench kills {attempt}"), "4", "64", "60"]
        child = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True)
        assert child.stdout is not None
        child.stdout.readline()
        os.killpg(child.pid, signal.SIGKILL)
        child.wait()
        left += 4
    reaped = reap_all()
    gone = "nothing is left" if not os.path.exists(lanes_root()) else f"LEFT: {os.listdir(lanes_root())}"
    print(f"kills    {times} groups killed, {left} lanes, {reaped} reaped, {gone}")


# --- training


class ViewerSetup(NamedTuple):
    name: str
    viewers: int
    envs: Sequence[int]
    extras: dict[str, Any]
    request: FrameRequest = NO_REQUEST


FASTLANE_TAB = FrameRequest(30.0, 0.05)
WITHOUT_LANES = ViewerSetup("without lanes", 0, (), {"video_mode": "off"})
SETUPS = (
    ViewerSetup("lanes, no viewer", 0, (), {}),
    ViewerSetup("one viewer, one environment", 1, (0,), {}),
    ViewerSetup("the FastLane tab, one environment", 1, (0,), {}, FASTLANE_TAB),
    ViewerSetup("one viewer, grid of 8", 1, (), {}),
    ViewerSetup("five viewers, grid of 8", 5, (), {}),
)
TARGET_RATIOS = {
    "lanes, no viewer": 0.99,
    "one viewer, one environment": 0.98,
    "the FastLane tab, one environment": 0.95,
}
GRID_TARGET_RATIO = 0.97


THIS_COMMAND = (sys.executable, "-m", "tests.bench.fastlane")
PIPE_OPTIONS: dict[str, Any] = {"stdout": subprocess.PIPE, "text": True}


class WorkerSpeed(NamedTuple):
    wall_sps: float
    cpu_sps: float
    frames: int


def run_viewer(folder: str, envs: Sequence[int], request: FrameRequest) -> None:
    """A viewer that repaints at 60 Hz until it is told to end."""
    watched = LaneView(folder, envs, request)
    frames = 0
    is_over = False

    def end(*_: object) -> None:
        nonlocal is_over
        is_over = True

    signal.signal(signal.SIGTERM, end)
    while not is_over:
        frames += bool(watched.poll())
        time.sleep(1 / 60)
    print(frames)


def run_pair(setup: ViewerSetup, env_id: str, steps: int, seed: int) -> tuple[WorkerSpeed, WorkerSpeed]:
    """A worker without lanes and one of the given kind, by turns."""
    with tempfile.TemporaryDirectory(prefix="mosaic-bench-") as place:
        viewers = [
            subprocess.Popen(
                [*THIS_COMMAND, "--view", lanes_folder(_run_dir(place, setup)), *map(str, setup.envs)]
                + ["--as-tab"] * (setup.request == FASTLANE_TAB),
                **PIPE_OPTIONS,
            )
            for _ in range(setup.viewers)
        ]
        bare, watched = (_start_worker(place, one, env_id, steps, seed) for one in (WITHOUT_LANES, setup))
        held = run_alternately(bare.pid, watched.pid)
        said = [json.loads(worker.communicate()[0].splitlines()[-1]) for worker in (bare, watched)]
        seen = 0
        for viewer in viewers:
            viewer.terminate()
            seen += int(viewer.communicate()[0])
        first, second = (
            WorkerSpeed(steps / running_time_s(held[worker.pid], began, ended), steps / cpu_s, seen)
            for worker, (steps, began, ended, cpu_s) in zip((bare, watched), said, strict=True)
        )
        return first, second


def _run_dir(temp_dir: str, setup: ViewerSetup) -> Path:
    return Path(temp_dir) / setup.name / "run"


def _start_worker(temp_dir: str, setup: ViewerSetup, env_id: str, steps: int, seed: int) -> subprocess.Popen[str]:
    run_dir = _run_dir(temp_dir, setup)
    run_dir.mkdir(parents=True)
    algo = "ppo" if env_id == "CartPole-v1" else "ppo_continuous_action"
    extras = {"num_envs": 8, "num_steps": 128, **setup.extras}
    config = {"run_id": "bench", "algo": algo, "env_id": env_id, "total_timesteps": steps, "seed": seed}
    file = run_dir.with_name("config.json")
    file.write_text(json.dumps({**config, "extras": extras}))
    environment = {**os.environ, "MOSAIC_RUN_DIR": str(run_dir), "OMP_NUM_THREADS": "1", "MOSAIC_VAR": temp_dir}
    return subprocess.Popen([*THIS_COMMAND, "--train", str(file), str(run_dir)], env=environment, **PIPE_OPTIONS)


def run_worker(config_path: str, run_dir: str) -> None:
    """Trains, and prints the steps of all but the first quarter, when they were taken, and the processor time."""
    from cleanrl_worker.shell import launcher
    from cleanrl_worker.shell.worker_config import parse_request, read_config_file
    from mosaic.contracts.folder import RunFolder

    config = read_config_file(config_path)
    opened: list[Any] = []

    class RecordedRun(launcher.ConsoleRun):
        def __init__(self, *arguments: Any, **options: Any) -> None:
            super().__init__(*arguments, **options)
            opened.append(self)

    samples: list[tuple[float, float, int]] = []
    is_over = threading.Event()

    def sample() -> None:
        while not is_over.wait(0.02):
            if opened and opened[0].global_step > config["total_timesteps"] / 4:
                samples.append((time.perf_counter(), time.process_time(), opened[0].global_step))

    launcher.ConsoleRun = RecordedRun  # type: ignore[misc]
    thread = threading.Thread(target=sample)
    thread.start()
    launcher.build_job(parse_request(config))(RunFolder(run_dir), False)
    is_over.set()
    thread.join()
    first, last = samples[0], next(one for one in reversed(samples) if one[2] > samples[0][2])
    print(json.dumps([last[2] - first[2], first[0], last[0], last[1] - first[1]]))


def format_spread(values: Sequence[float]) -> str:
    return f"{statistics.median(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def bench_training(env_id: str, steps: int, pairs: int, words: str) -> None:
    setups = [setup for setup in SETUPS if words in setup.name]
    print(f"training {env_id}, 8 environments, {steps:,} steps, {pairs} pairs of each kind", flush=True)
    results: dict[str, list[tuple[WorkerSpeed, WorkerSpeed]]] = {kind.name: [] for kind in setups}
    for number in range(pairs):
        for kind in setups:
            results[kind.name].append(run_pair(kind, env_id, steps, number + 1))
    for kind in setups:
        found = results[kind.name]
        pace = statistics.median(mine.wall_sps for _, mine in found)
        cpu = [mine.cpu_sps / bare.cpu_sps for bare, mine in found]
        wall = [mine.wall_sps / bare.wall_sps for bare, mine in found]
        line = f"  {kind.name:34} {pace:9,.0f} steps/s   ratio by processor time {format_spread(cpu)}"
        line += f", by the clock {format_spread(wall)}; wanted {TARGET_RATIOS.get(kind.name, GRID_TARGET_RATIO)}"
        if kind.viewers:
            line += f"; {statistics.median(mine.frames for _, mine in found) / kind.viewers:.0f} repaints a viewer"
        print(line, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", help="writer, age, torn, kills, training; all where none is named")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=600_000)
    parser.add_argument("--env-id", default="CartPole-v1", help="or a MuJoCo environment")
    parser.add_argument("--draw", nargs=2, metavar=("FOLDER", "SECONDS"), help=argparse.SUPPRESS)
    parser.add_argument("--train", nargs=2, metavar=("CONFIG", "RUN_DIR"), help=argparse.SUPPRESS)
    parser.add_argument("--view", nargs="+", metavar="FOLDER", help=argparse.SUPPRESS)
    parser.add_argument("--as-tab", action="store_true", help=argparse.SUPPRESS)
    parser.add_argument("--viewers", metavar="WORDS", default="", help="of `training`, only those with these words")
    chosen = parser.parse_args()
    if chosen.draw:
        return write_frames(chosen.draw[0], float(chosen.draw[1]))
    if chosen.train:
        return run_worker(*chosen.train)
    if chosen.view:
        request = FASTLANE_TAB if chosen.as_tab else NO_REQUEST
        return run_viewer(chosen.view[0], [int(env) for env in chosen.view[1:]], request)
    parts: dict[str, Callable[[], None]] = {
        "writer": bench_writer,
        "age": bench_frame_age,
        "torn": bench_torn_reads,
        "kills": bench_kills,
        "training": lambda: bench_training(chosen.env_id, chosen.steps, chosen.pairs, chosen.viewers),
    }
    unknown = [part for part in chosen.parts if part not in parts]
    if unknown:
        parser.error(f"no part {unknown[0]!r}; known: {', '.join(parts)}")
    # Apart from other people's lanes on this machine.
    os.environ[LANES_VARIABLE] = str(Path(lanes_root()).with_name(f"mosaic-bench-{os.getpid()}"))
    for part in chosen.parts or parts:
        parts[part]()
    return None


if __name__ == "__main__":
    main()
