"""Runs that are watched: by the worker alone, through the daemon, and from the command line."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from tests.helpers.daemons import LiveDaemon, ended, wait_for
from tests.helpers.worker_runs import events, run_worker, small, train_here

from mosaic.base.fastlane import Frame, FrameRequest, LaneView, as_rgb, lane_indices, lanes_folder
from mosaic.base.fastlane.lane_files import LANES_VARIABLE
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Imports
from mosaic.trainer.client.connect import connect
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.envs.user_modules import allow_imports

HALF_CHEETAH: dict[str, Any] = {"algo": "ppo_continuous_action", "env_id": "HalfCheetah-v5"}
LONG = 100_000_000


class Watcher:
    """Watches a run from a thread, as a viewer would from another process."""

    def __init__(self, folder: RunFolder, **options: Any) -> None:
        self.seen: list[dict[int, Frame | None]] = []
        self._view = LaneView(lanes_folder(folder.path), **options)
        self._is_closing = threading.Event()
        self._thread = threading.Thread(target=self._watch)

    def __enter__(self) -> Watcher:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_closing.set()
        self._thread.join()
        self._view.close()

    def _watch(self) -> None:
        while not self._is_closing.wait(0.005):
            if self._view.poll():
                self.seen.append(dict(self._view.frames))

    @property
    def frames(self) -> list[Frame]:
        return [frame for frames in self.seen for frame in frames.values() if frame is not None]


def weights(folder: RunFolder) -> bytes:
    return (folder.last_checkpoint / "weights.safetensors").read_bytes()


@pytest.mark.parametrize("kind", [{"total_timesteps": 40_000}, {**HALF_CHEETAH, "total_timesteps": 4096}])
def test_watching_does_not_change_what_is_learned(tmp_path: Path, kind: dict[str, Any]) -> None:
    """R5.2: watching costs little."""
    config = small(**kind, extras={"num_envs": 2, "num_steps": 128})
    plain = train_here(RunFolder(tmp_path / "plain"), config)
    watched = RunFolder(tmp_path / "it's watched")
    with Watcher(watched, request=FrameRequest(120, 0.5)) as watcher:
        train_here(watched, config)
    assert watcher.frames
    assert len({frame.image.tobytes() for frame in watcher.frames}) > 1
    assert any(frame.step > 0 for frame in watcher.frames)
    assert weights(plain) == weights(watched)


OWN_PIXELS = """
import gymnasium as gym
import numpy as np
class Pixels(gym.ObservationWrapper):
    def __init__(self, env):
        super().__init__(env)
        env.unwrapped.render_mode = "rgb_array"
        self.observation_space = gym.spaces.Box(0.0, 1.0, (70,), np.float32)
    def observation(self, observation):
        return self.env.unwrapped.render()[::60, ::60].mean(-1).astype(np.float32).reshape(-1) / 255
"""


def test_watching_does_not_change_what_is_learned_from_pixels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """F61: the particles of LunarLander, which `render` ages, are a part of what the policy sees."""
    (tmp_path / "own_pixels_of_a_test.py").write_text(OWN_PIXELS)
    monkeypatch.syspath_prepend(tmp_path)
    allow_imports(Imports(modules=("own_pixels_of_a_test",)))
    settings = {"num_envs": 2, "num_steps": 128, "wrappers": ["own_pixels_of_a_test:Pixels"]}
    config = small(env_id="LunarLander-v3", total_timesteps=2048, extras=settings)
    plain = train_here(RunFolder(tmp_path / "plain"), config)
    watched = RunFolder(tmp_path / "watched")
    with Watcher(watched, request=FrameRequest(120, 0.5)) as watcher:
        train_here(watched, config)
    assert watcher.frames
    assert weights(plain) == weights(watched)


def test_a_mujoco_frame_shows_the_environment(tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "run")
    config = small(**HALF_CHEETAH, total_timesteps=8192, extras={"num_envs": 1, "num_steps": 128})
    with Watcher(folder) as watcher:
        train_here(folder, config)
    frame = watcher.frames[-1]
    assert frame.image.shape == (480, 480, 3)
    assert len(np.unique(frame.image)) > 50


@pytest.mark.parametrize("driver", ["bad", "glfw"])
def test_a_failing_graphics_driver_only_disables_frames(tmp_path: Path, driver: str) -> None:
    """F24: the warning names the variable to set."""
    folder = RunFolder(tmp_path / "run")
    config = small(**HALF_CHEETAH, total_timesteps=8192, extras={"num_envs": 1, "num_steps": 128})
    screen = {"DISPLAY": "", "WAYLAND_DISPLAY": ""}
    with Watcher(folder) as watcher:
        done = run_worker(tmp_path, config, run_dir=folder.path, MUJOCO_GL=driver, **screen)
    assert done.returncode == 0, done.stderr
    assert not watcher.frames
    warnings = events(folder, "warning")
    assert [event["code"] for event in warnings] == ["frames_off"]
    assert "MUJOCO_GL=egl" in warnings[0]["text"]


def test_an_evaluation_can_be_watched(tmp_path: Path) -> None:
    trained = train_here(RunFolder(tmp_path / "trained"), small())
    folder = RunFolder(tmp_path / "evaluated")
    extras = {"mode": "policy_eval", "policy_path": str(trained.path), "eval_episodes": 4000}
    with Watcher(folder) as watcher:
        train_here(folder, {"extras": extras})
    assert watcher.frames
    assert max(frame.episode for frame in watcher.frames) > 1
    assert not os.path.exists(lanes_folder(folder.path))


@pytest.mark.parametrize(
    ("extras", "lanes"), [({}, 8), ({"video_mode": "single"}, 1), ({"grid_limit": 3}, 3), ({"video_mode": "off"}, 0)]
)
def test_the_config_sets_the_number_of_lanes(tmp_path: Path, extras: dict[str, Any], lanes: int) -> None:
    folder = RunFolder(tmp_path / "run")
    config = small(total_timesteps=20_480, extras={"num_envs": 10, "num_steps": 64, **extras})
    counts: list[int] = []
    done = threading.Event()

    def count_lanes() -> None:
        while not done.wait(0.001):
            counts.append(len(lane_indices(lanes_folder(folder.path))))

    thread = threading.Thread(target=count_lanes)
    thread.start()
    train_here(folder, config)
    done.set()
    thread.join()
    assert max(counts) == lanes
    assert not os.path.exists(lanes_folder(folder.path))


def test_no_room_for_frames_is_one_warning_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: the folder for lanes cannot be created."""
    blocked = tmp_path / "a file"
    blocked.write_text("")
    monkeypatch.setenv(LANES_VARIABLE, str(blocked / "lanes"))
    folder = train_here(RunFolder(tmp_path / "run"), small())
    assert [event["code"] for event in events(folder, "warning")] == ["frames_off"]
    assert events(folder, "finished")[0]["outcome"] == "succeeded"


@pytest.mark.skipif(os.getuid() != 0, reason="only root can make a small file system")
def test_a_full_file_system_is_one_warning_and_training_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F36: shared memory is full."""
    tiny = tmp_path / "tiny"
    tiny.mkdir()
    mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k,mode=700", "tmpfs", str(tiny)], check=False)
    if mounted.returncode:
        pytest.skip("mounting is not permitted on this machine")
    try:
        monkeypatch.setenv(LANES_VARIABLE, str(tiny / "lanes"))
        folder = RunFolder(tmp_path / "run")
        with Watcher(folder):
            train_here(folder, small(total_timesteps=40_960, extras={"num_steps": 128}))
        assert [event["code"] for event in events(folder, "warning")] == ["frames_off"]
        assert "No space left" in events(folder, "warning")[0]["text"]
        assert events(folder, "finished")[0]["outcome"] == "succeeded"
    finally:
        subprocess.run(["umount", str(tiny)], check=True)


# --- through the daemon


def cartpole(**config: Any) -> dict[str, Any]:
    worker = {"id": "cleanrl", "config": small(total_timesteps=LONG, **config)}
    return {"metadata": {"worker": worker}, "artifacts": {}}


@contextmanager
def running(trainer: TrainerClient, payload: dict[str, Any]) -> Iterator[str]:
    run_id = trainer.submit(payload).run_id
    wait_for(lambda: trainer.get_run(run_id).stage == "running", "the run to start")
    try:
        yield run_id
    finally:
        if trainer.get_run(run_id).stage != "finished":
            trainer.cancel_run(run_id)
            ended(trainer, run_id)


def test_frames_come_through_the_daemon_until_the_run_ends(trainer: TrainerClient, workspace: Workspace) -> None:
    with running(trainer, cartpole(extras={"num_envs": 8, "num_steps": 64})) as run_id:
        images = []
        states = []
        for update in trainer.frames(run_id, max_side=480, rate_hz=60, budget=0.2):
            states.append(update.state)
            if update.image:
                images.append(np.asarray(Image.open(io.BytesIO(update.image))))
                last = update
                if len(images) == 12:
                    trainer.cancel_run(run_id)
        # The first may have been composed before all environments had rendered.
        assert images[-1].shape == (160, 480, 3)
        assert (last.rows, last.columns, [hud.env for hud in last.huds]) == (2, 4, list(range(8)))
        assert len({image.tobytes() for image in images}) > 1
        assert states[-1] == "unavailable"
        assert update.reason == "the run has ended"
        ended(trainer, run_id)
    events = [json.loads(line)["event"] for line in workspace.daemon_log.read_text().splitlines()]
    assert events.count("fastlane_connected") == 1


def test_a_local_viewer_and_a_remote_one_see_the_same_environment(trainer: TrainerClient, workspace: Workspace) -> None:
    """R5.4: remote frames."""
    with running(trainer, cartpole()) as run_id:
        view = LaneView(lanes_folder(workspace.run(run_id).path), [0], FrameRequest(budget=0.5))
        wait_for(view.poll, "a frame")
        frame = view.frames[0]
        assert frame is not None
        assert as_rgb(frame.image, frame.format).shape == (400, 600, 3)
        update = next(update for update in trainer.frames(run_id, envs=[0]) if update.image)
        assert Image.open(io.BytesIO(update.image)).size == (600, 400)
        assert update.huds[0].budget


def test_the_lanes_of_a_killed_worker_are_reaped(trainer: TrainerClient, workspace: Workspace) -> None:
    """F36: by the daemon that started it."""
    with running(trainer, cartpole()) as run_id:
        lanes = lanes_folder(workspace.run(run_id).path)
        wait_for(lambda: lane_indices(lanes), "lanes")
        worker = trainer.get_run(run_id).attempts[-1].worker
        assert worker is not None
        os.kill(worker["pid"], signal.SIGKILL)
        assert ended(trainer, run_id).outcome == "failed"
        wait_for(lambda: not os.path.exists(lanes), "the daemon to clean up")


def test_a_new_daemon_reaps_lanes_of_runs_that_died_without_one(daemon: LiveDaemon, workspace: Workspace) -> None:
    """F36: keeper and worker are killed while no daemon runs."""
    with connect(workspace, may_start=False) as trainer:
        run_id = trainer.submit(cartpole()).run_id
        wait_for(lambda: trainer.get_run(run_id).stage == "running", "the run to start")
        lanes = lanes_folder(workspace.run(run_id).path)
        wait_for(lambda: lane_indices(lanes), "lanes")
        attempt = trainer.get_run(run_id).attempts[-1]
        daemon.kill()
    for process in (attempt.keeper, attempt.worker):
        assert process is not None
        os.kill(process["pid"], signal.SIGKILL)
    with daemon.start() as trainer:
        assert ended(trainer, run_id).outcome in ("lost", "failed")
        wait_for(lambda: not os.path.exists(lanes), "the new daemon to clean up")


# --- from the command line


def mosaic(workspace: Workspace, *arguments: str) -> subprocess.CompletedProcess[str]:
    code = "import sys; from mosaic.cli.main import main; sys.exit(main())"
    return subprocess.run(
        [sys.executable, "-c", code, *arguments, "--var", str(workspace.root)],
        stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60,
    )  # fmt: skip


@pytest.mark.parametrize("option", [(), ("--remote",)])
def test_a_video_is_saved(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, option: tuple[str, ...]
) -> None:
    import av

    path = tmp_path / "a video.mp4"
    with running(trainer, cartpole(extras={"num_envs": 4, "num_steps": 64})) as run_id:
        done = mosaic(workspace, "watch", run_id, "--grid", "--save", str(path), "--seconds", "0.5", "--json", *option)
        assert done.returncode == 0, done.stderr
        without_save = mosaic(workspace, "watch", run_id)
    summary = json.loads(done.stdout)
    assert (summary["frames"], summary["seconds"], summary["path"]) == (15, 0.5, str(path))
    with av.open(str(path)) as container:
        frames = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    assert len(frames) == 15
    assert frames[0].shape == (summary["height"], summary["width"], 3)
    assert frames[-1].mean() > 100
    assert without_save.returncode == 2
    assert "--save out.mp4" in without_save.stderr


def test_a_run_that_has_ended_cannot_be_watched(trainer: TrainerClient, workspace: Workspace) -> None:
    payload = {"metadata": {"worker": {"id": "cleanrl", "config": small()}}, "artifacts": {}}
    run_id = trainer.submit(payload).run_id
    ended(trainer, run_id)
    done = mosaic(workspace, "watch", run_id)
    assert done.returncode == 2
    assert "has ended (succeeded)" in done.stderr
    updates = list(trainer.frames(run_id))
    assert [(update.state, update.reason) for update in updates][-1] == ("unavailable", "the run has ended")
