"""Unmodified user scripts through the real daemon and keeper."""

from __future__ import annotations

import json
import os
import signal
import sys
from pathlib import Path

import psutil
import pytest
from tests.helpers import shared_daemon
from tests.helpers.daemons import ended, wait_for
from tests.helpers.probe_scripts import (
    CARTPOLE,
    caller_environment,
    episodes,
    events,
    points,
    script_payload,
    start_script,
    wait_for_frame,
    write_script,
)

from mosaic.base.fastlane import LaneReader, lanes_folder
from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES
ENVPOOL = """
    import numpy as np
    class Pool:
        num_envs, step_count = 3, 0
        def step(self, actions):
            self.step_count += 1
            return np.zeros(3), np.full(3, 2.0), np.full(3, self.step_count % 5 == 0), {}
    def make(name, num_envs, seed=42): return Pool()
"""
ENDLESS = """
    import time, gymnasium as gym
    env = gym.make("CartPole-v1")
    env.reset(seed=1)
    while True:
        if any(env.step(env.action_space.sample())[2:4]):
            env.reset()
        time.sleep(0.0005)
"""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return tmp_path / "the user's folder"


def wait_until_running(trainer: TrainerClient, run_id: str) -> None:
    wait_for(lambda: trainer.get_run(run_id).stage == "running", "the run to be running")


def run_of(trainer: TrainerClient, run_id: str) -> RunFolder:
    return RunFolder(trainer.get_run(run_id).run_dir)


def test_a_script_becomes_a_run_with_episodes_seeds_and_progress(trainer: TrainerClient, folder: Path) -> None:
    run_id = start_script(trainer, folder, CARTPOLE.format(episodes=30), algo="script", total_timesteps=900)
    view = ended(trainer, run_id)
    assert (view.outcome, view.episodes, view.env_id, view.seed) == ("succeeded", 30, "CartPole-v1", 7)
    assert view.total_timesteps == 900
    rows = list(trainer.episodes(run_id))
    assert view.global_step == sum(row.length for row in rows)
    assert all(row.episodic_return == row.length for row in rows), "CartPole's reward is one per step"
    assert not events(run_of(trainer, run_id), "warning")


def test_the_script_runs_in_the_callers_folder_and_environment(trainer: TrainerClient, folder: Path) -> None:
    """F26: without LD_PRELOAD."""
    code = """
        import os, sys
        print(os.getcwd(), os.environ["MY_SECRET"], os.environ.get("LD_PRELOAD"), os.environ["OMP_NUM_THREADS"])
        print(os.environ["CLEANRL_TENSORBOARD_DIR"])
        assert "MOSAIC_TOKEN" not in os.environ
    """
    environment = caller_environment(MY_SECRET="canary-4711", LD_PRELOAD="/nowhere.so")
    run_id = start_script(trainer, folder, code, environment=environment)
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded", view.reason
    run = run_of(trainer, run_id)
    printed = run.stdout_log("script").read_text()
    assert printed == f"{folder} canary-4711 None 1\n{run.tensorboard}\n"


def test_the_callers_environment_is_never_written_to_disk(
    trainer: TrainerClient, folder: Path, workspace: Workspace
) -> None:
    environment = caller_environment(MY_SECRET="canary-0815")
    run_id = start_script(trainer, folder, "pass", environment=environment, env_names=["MY_SECRET"])
    ended(trainer, run_id)
    leaks = [path for path in workspace.root.rglob("*") if path.is_file() and b"canary-0815" in path.read_bytes()]
    assert leaks == []


def test_a_config_from_elsewhere_may_not_choose_the_program(trainer: TrainerClient, folder: Path) -> None:
    """F26: only a caller who passes its environment may."""
    payload = script_payload([sys.executable, "-c", "print('pwned')"], folder)
    for call in (trainer.submit, trainer.check):
        with pytest.raises(ConfigRefused, match=r"metadata\.worker\.config\.argv.*mosaic run"):
            call(payload)
    foreign = {
        "metadata": {"worker": {"id": "cleanrl", "config": {"algo": "cleanrl:ppo", "extras": {"cleanrl": "/"}}}},
        "artifacts": {},
    }
    with pytest.raises(ConfigRefused, match=r"config\.cleanrl"):
        trainer.submit(foreign)
    assert trainer.runs() == []


@pytest.mark.parametrize(
    ("config", "path"),
    [
        ({"argv": []}, "argv"),
        ({"argv": ["a\0b"]}, "argv"),
        ({"argv": ["true"], "cwd": "relative"}, "cwd"),
        ({"argv": ["true"], "shell": True}, "shell"),
        ({"argv": ["true"], "probe": {"frames": "no way"}}, "probe.frames"),
    ],
)
def test_a_malformed_script_is_rejected_with_its_key(
    trainer: TrainerClient, folder: Path, config: dict[str, object], path: str
) -> None:
    """F26: NUL, a relative folder, unknown keys."""
    payload = script_payload([], folder)
    payload["metadata"]["worker"]["config"].update(config)
    with pytest.raises(ConfigRefused, match=rf"metadata\.worker\.config\.{path}"):
        trainer.submit(payload, caller_environment())


def test_a_failing_script_has_a_reason(trainer: TrainerClient, folder: Path) -> None:
    run_id = start_script(trainer, folder, "raise SystemExit('out of luck')")
    view = ended(trainer, run_id)
    assert view.outcome == "failed"
    assert "out of luck" in (view.reason or "")
    missing = trainer.submit(script_payload(["/no/such/program"], folder), caller_environment())
    assert "not found" in (ended(trainer, missing.run_id).reason or "")


def test_cancel_ends_a_script_and_keeps_what_it_recorded(trainer: TrainerClient, folder: Path) -> None:
    run_id = start_script(trainer, folder, ENDLESS)
    wait_for(lambda: trainer.get_run(run_id).episodes > 3, "some episodes")
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id)
    assert view.outcome == "cancelled"
    assert (view.global_step or 0) > 20
    exited = [line for line in (RunFolder(view.run_dir).keeper).read_text().splitlines() if "exited" in line]
    assert f'"signal":{int(signal.SIGINT)}' in exited[0], "it dies of the signal, as it would without the probe"


def test_a_cancelled_script_can_save_in_except_keyboard_interrupt(trainer: TrainerClient, folder: Path) -> None:
    code = """
        import signal, time
        try:
            open("ready", "w").close()
            while True:
                time.sleep(0.01)
        except KeyboardInterrupt:
            open("saved", "w").close()
    """
    run_id = start_script(trainer, folder, code)
    wait_for(lambda: (folder / "ready").exists(), "the script to run")
    trainer.cancel_run(run_id)
    assert ended(trainer, run_id).outcome == "cancelled"
    assert (folder / "saved").exists()


def test_a_script_is_paused_by_signal(trainer: TrainerClient, folder: Path) -> None:
    run_id = start_script(trainer, folder, ENDLESS)
    wait_for(lambda: trainer.get_run(run_id).episodes > 1, "some episodes")
    trainer.pause_run(run_id)
    wait_for(lambda: trainer.get_run(run_id).stage == "paused", "the pause")
    pid = trainer.get_run(run_id).pid
    wait_for(lambda: psutil.Process(pid).status() == psutil.STATUS_STOPPED, "the process to stop")
    trainer.resume(run_id)
    wait_for(lambda: trainer.get_run(run_id).stage == "running", "the run to resume")
    trainer.cancel_run(run_id)
    assert ended(trainer, run_id).outcome == "cancelled"


def test_a_daemonized_child_of_a_script_is_gone_after_cancel(trainer: TrainerClient, folder: Path) -> None:
    code = """
        import os, subprocess, sys, time
        child = subprocess.Popen(
            [sys.executable, "-c", "import os, time\\nif os.fork(): os._exit(0)\\nos.setsid()\\n"
             "open('child', 'w').write(str(os.getpid()))\\ntime.sleep(300)"], start_new_session=True)
        child.wait()
        time.sleep(300)
    """
    run_id = start_script(trainer, folder, code)
    wait_for(lambda: (folder / "child").exists() and (folder / "child").read_text(), "the child")
    child = int((folder / "child").read_text())
    assert psutil.pid_exists(child)
    trainer.cancel_run(run_id)
    ended(trainer, run_id)
    assert not psutil.pid_exists(child)


def test_any_output_of_a_script_is_harmless(trainer: TrainerClient, folder: Path) -> None:
    """F7: what it logs in between is still found."""
    code = """
        import os, sys
        sys.stdout.write("x" * 5_000_000)
        sys.stdout.flush()
        os.write(1, bytes(range(256)) * 2000)
        for part in range(500):
            sys.stdout.write("\\r%3d%%|%s" % (part // 5, "#" * (part // 10)))
        sys.stdout.buffer.write(b"\\xff\\xfe\\x00\\n")
        print()
        print("global_step=64, episodic_return=[12.]")
        print("| rollout/ |  |" + " " * 100_000)
        sys.stderr.write("y" * 1_000_000)
    """
    run_id = start_script(trainer, folder, code)
    view = ended(trainer, run_id)
    assert (view.outcome, view.global_step, view.episodic_return) == ("succeeded", 64, 12.0)
    assert sum(len(chunk.data) for chunk in trainer.log(run_id)) > 5_000_000


def test_the_console_is_parsed_for_a_script_that_the_probe_cannot_enter(trainer: TrainerClient, folder: Path) -> None:
    code = """
        import sys
        for step in range(1, 6):
            print(f"global_step={step * 100}, episodic_return={step}.5, fps=200")
        print("-----------\\n| time/ | |\\n| total_timesteps | 900 |\\n| train/ | |\\n| loss | 0.5 |\\n-----------")
    """
    run_id = start_script(trainer, folder, code, flags=("-I",))
    view = ended(trainer, run_id)
    assert (view.outcome, view.episodes, view.global_step) == ("succeeded", 5, 900)
    assert [row.episodic_return for row in trainer.episodes(run_id)] == [1.5, 2.5, 3.5, 4.5, 5.5]
    last = {series.tag: series.values[-1] for series in trainer.metrics(run_id, last_only=True)}
    assert last["train/loss"] == 0.5


def test_the_probe_enters_the_python_started_by_a_shell_script(trainer: TrainerClient, folder: Path) -> None:
    write_script(folder, CARTPOLE.format(episodes=5), "inner.py")
    shell = write_script(folder, f'{sys.executable} -c pass\nexec "{sys.executable}" inner.py\n', "go.sh")
    view = trainer.submit(script_payload(["sh", str(shell)], folder), caller_environment())
    assert ended(trainer, view.run_id).episodes == 5


def test_a_module_can_be_run(trainer: TrainerClient, folder: Path) -> None:
    write_script(folder, CARTPOLE.format(episodes=4), "mine.py")
    view = trainer.submit(script_payload([sys.executable, "-m", "mine"], folder), caller_environment())
    assert ended(trainer, view.run_id).episodes == 4


def test_the_users_own_sitecustomize_still_runs(trainer: TrainerClient, folder: Path) -> None:
    site = folder / "site"
    write_script(site, "import builtins\nbuiltins.mine = 'yes'\n", "sitecustomize.py")
    environment = caller_environment(PYTHONPATH=str(site))
    run_id = start_script(trainer, folder, "print(mine)", environment=environment)
    assert ended(trainer, run_id).outcome == "succeeded"
    assert run_of(trainer, run_id).stdout_log("script").read_text() == "yes\n"


def test_scalars_of_a_summary_writer_are_in_the_journal_and_its_file_is_in_the_run(
    trainer: TrainerClient, folder: Path
) -> None:
    code = """
        import gymnasium as gym
        from torch.utils.tensorboard import SummaryWriter
        writer = SummaryWriter("runs/mine")
        env = gym.wrappers.RecordEpisodeStatistics(gym.make("CartPole-v1"))
        env.reset(seed=1)
        env.action_space.seed(1)
        for step in range(2000):
            *_, terminated, truncated, info = env.step(env.action_space.sample())
            if terminated or truncated:
                writer.add_scalar("charts/episodic_return", info["episode"]["r"], step)
                writer.add_scalar("charts/episodic_length", info["episode"]["l"], step)
                print(f"global_step={step}, episodic_return={info['episode']['r']}")
                env.reset()
            if step % 100 == 0:
                writer.add_scalar("losses/value_loss", 1 / (1 + step), step)
        writer.close()
        open("runs/mine/model", "w").close()
    """
    run_id = start_script(trainer, folder, code)
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded", view.reason
    run = run_of(trainer, run_id)
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (linked,) = (folder / "runs" / "mine").glob("events*")
    assert linked.read_bytes() == (run.tensorboard / "runs" / "mine" / linked.name).read_bytes()
    assert (folder / "runs" / "mine" / "model").exists()
    assert not list(run.tensorboard.rglob("model"))
    own = EventAccumulator(str(run.tensorboard / "runs" / "mine"), size_guidance={"scalars": 0})
    own.Reload()
    for tag in ("charts/episodic_return", "charts/episodic_length", "losses/value_loss"):
        expected = [(event.step, event.value) for event in own.Scalars(tag)]
        recorded = [
            pair for series in trainer.metrics(run_id, [tag]) for pair in zip(series.steps, series.values, strict=True)
        ]
        assert recorded == expected
    assert not events(run, "warning")


def test_writers_have_folders_and_series_of_their_own_also_in_other_processes(
    trainer: TrainerClient, folder: Path
) -> None:
    write_script(
        folder,
        """
        import sys
        from torch.utils.tensorboard import SummaryWriter
        for name in sys.argv[1:]:
            writer = SummaryWriter(name)
            for step in range(5):
                writer.add_scalar("loss", step + len(name), step)
            writer.close()
        """,
        "inner.py",
    )
    shell = write_script(
        folder,
        f'"{sys.executable}" inner.py logs/seed1/ppo logs/seed2/ppo\nmkdir sub && cd sub\n'
        f'"{sys.executable}" ../inner.py logs/seed1/ppo\n',
        "go.sh",
    )
    view = trainer.submit(script_payload(["sh", str(shell)], folder), caller_environment())
    assert ended(trainer, view.run_id).outcome == "succeeded"
    run = run_of(trainer, view.run_id)
    names = {"logs/seed1/ppo", "logs/seed2/ppo", "sub/logs/seed1/ppo"}
    assert {str(path.parent.relative_to(run.tensorboard)) for path in run.tensorboard.rglob("events*")} == names
    assert {str(path.parent.relative_to(folder)) for path in folder.rglob("events*")} == names
    by_tag = points(run)
    assert {tag: len(rows) for tag, rows in by_tag.items()} == {
        "loss": 5,
        "logs/seed2/ppo/loss": 5,
        "sub/logs/seed1/ppo/loss": 5,
    }
    assert not events(run, "warning")


def test_any_writer_of_event_files_is_recorded(trainer: TrainerClient, folder: Path) -> None:
    code = """
        from tensorboard.compat.proto.event_pb2 import Event
        from tensorboard.compat.proto.summary_pb2 import Summary
        from tensorboard.summary.writer.event_file_writer import EventFileWriter
        writer = EventFileWriter(logdir="runs")
        for step in range(3):
            value = Summary.Value(tag="Loss / Policy loss", simple_value=step / 2)
            writer.add_event(Event(step=step, summary=Summary(value=[value])))
        writer.close()
    """
    run_id = start_script(trainer, folder, code)
    assert ended(trainer, run_id).outcome == "succeeded"
    rows = points(run_of(trainer, run_id))["Loss / Policy loss"]
    assert [row[::2] for row in rows] == [[0, 0.0], [1, 0.5], [2, 1.0]]


def test_the_processes_of_an_async_vector_environment_report_their_episodes(
    trainer: TrainerClient, folder: Path
) -> None:
    code = """
        import gymnasium as gym, numpy as np
        envs = gym.vector.AsyncVectorEnv([lambda: gym.make("CartPole-v1") for _ in range(3)])
        envs.reset(seed=5)
        for _ in range(400):
            envs.step(envs.action_space.sample())
        envs.close()
    """
    run_id = start_script(trainer, folder, code)
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded", view.reason
    rows = episodes(run_of(trainer, run_id))
    assert {row[1] for row in rows} == {0, 1, 2}
    assert view.episodes == len(rows) > 20
    assert view.global_step == 1200
    assert {event["seed"] for event in events(run_of(trainer, run_id), "environment")} >= {5, 6, 7}


@pytest.mark.parametrize("how", ["fork", "pool", "terminated pool", "spawn", "os.fork"])
def test_episodes_of_child_processes_are_all_counted(trainer: TrainerClient, folder: Path, how: str) -> None:
    code = """
        import multiprocessing, os, sys
        import gymnasium as gym
        def train(seed):
            env = gym.make("CartPole-v1")
            env.reset(seed=seed)
            for _ in range(15):
                while not any(env.step(env.action_space.sample())[2:4]):
                    pass
                env.reset()
        if __name__ == "__main__":
            how = sys.argv[1]
            if how == "os.fork":
                for seed in range(3):
                    if not os.fork():
                        train(seed)
                        os._exit(0)
                while True:
                    try:
                        os.wait()
                    except ChildProcessError:
                        break
            elif how.endswith("pool"):
                pool = multiprocessing.get_context("fork").Pool(2)
                pool.map(train, range(3), chunksize=1)
                (pool.terminate if how.startswith("term") else pool.close)()
                pool.join()
            else:
                children = [multiprocessing.get_context(how).Process(target=train, args=(seed,)) for seed in range(3)]
                for child in children:
                    child.start()
                for child in children:
                    child.join()
    """
    run_id = start_script(trainer, folder, code, how)
    view = ended(trainer, run_id)
    assert (view.outcome, view.episodes) == ("succeeded", 45), view.reason
    assert not events(run_of(trainer, run_id), "warning")


def test_vector_environments_of_every_kind_are_counted_once(trainer: TrainerClient, folder: Path) -> None:
    code = """
        import gymnasium as gym
        for envs in (
            gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="sync"),
            gym.make_vec("CartPole-v1", num_envs=2, vectorization_mode="vector_entry_point"),
            gym.vector.SyncVectorEnv([lambda: gym.make("CartPole-v1")] * 2),
        ):
            envs.reset(seed=1)
            envs.action_space.seed(1)
            ended = 0
            for _ in range(300):
                _, _, terminated, truncated, _ = envs.step(envs.action_space.sample())
                ended += (terminated | truncated).sum()
            print(ended, flush=True)
            envs.close()
    """
    run_id = start_script(trainer, folder, code)
    ended(trainer, run_id)
    run = run_of(trainer, run_id)
    counted = [int(line) for line in run.stdout_log("script").read_text().split()]
    rows = episodes(run)
    # The second is built as a whole, so that its environments are numbered at its first reset.
    assert [sum(row[1] in pair for row in rows) for pair in ((0, 1), (4, 5), (2, 3))] == counted
    assert all(row[4] == row[5] for row in rows)


def test_environments_that_cannot_be_rendered_are_unavailable_and_counted(trainer: TrainerClient, folder: Path) -> None:
    """F24: in a script."""
    write_script(folder / "envpool", "from envpool.registration import make\n", "__init__.py")
    write_script(folder / "envpool", ENVPOOL, "registration.py")
    code = """
        import envpool, os, time
        envs = envpool.make("Count", num_envs=3, seed=8)
        for _ in range(10):
            envs.step(None)
        while not os.path.exists("seen"):
            time.sleep(0.01)
    """
    run_id = start_script(trainer, folder, code)
    wait_until_running(trainer, run_id)
    reader = LaneReader(lanes_folder(trainer.get_run(run_id).run_dir), 0)
    wait_for(lambda: reader.read_newest() is None and reader.state == "unavailable", "the reason")
    assert "cannot be rendered" in reader.reason
    reader.close()
    (folder / "seen").touch()
    view = ended(trainer, run_id)
    assert (view.outcome, view.episodes, view.global_step) == ("succeeded", 6, 30)
    assert (view.env_id, view.seed) == ("Count", 8)
    assert [row.episodic_return for row in trainer.episodes(run_id)] == [10.0] * 6


def test_frames_are_published_to_a_reader(trainer: TrainerClient, folder: Path) -> None:
    run_id = start_script(trainer, folder, ENDLESS)
    wait_until_running(trainer, run_id)
    lanes = lanes_folder(trainer.get_run(run_id).run_dir)
    frame = wait_for_frame(trainer.get_run(run_id).run_dir)
    assert frame.image.shape[:2] == (400, 600)
    assert frame.step >= 1
    trainer.cancel_run(run_id)
    ended(trainer, run_id)
    wait_for(lambda: not os.path.exists(lanes), "the lane to be removed")


def test_files_saved_by_a_script_are_listed(trainer: TrainerClient, folder: Path) -> None:
    run_id = start_script(trainer, folder, "import torch\ntorch.save({'a': torch.zeros(2)}, 'model.pt')\n")
    assert ended(trainer, run_id).outcome == "succeeded"
    (saved,) = events(run_of(trainer, run_id), "artifact")
    assert (saved["what"], saved["path"]) == ("checkpoint_file", str(folder / "model.pt"))


MOVIEPY = """
    class ImageSequenceClip:
        def __init__(self, frames, fps): self.frames = frames
        def write_videofile(self, path, **_): open(path, "wb").write(b"mp4")
"""
PRODUCTIVE = """
    import gymnasium as gym, torch
    def play(env):
        env.reset(seed=1)
        while not any(env.step(env.action_space.sample())[2:4]):
            pass
    def evaluate(env):
        play(env)
    env = gym.wrappers.RecordVideo(gym.make("CartPole-v1", render_mode="rgb_array"), "films", lambda n: n == 0)
    for _ in range(4):
        play(env)
    env.close()
    torch.save({"a": torch.zeros(2)}, "model.pt")
    other = gym.make("Acrobot-v1", max_episode_steps=20)
    for _ in range(3):
        evaluate(other)
"""


def test_analytics_of_a_script_list_videos_checkpoints_and_evaluations(trainer: TrainerClient, folder: Path) -> None:
    """R3.10: what a script produces is listed, by gymnasium's own recorder (with a stand-in for moviepy)."""
    write_script(folder / "moviepy" / "video" / "io", MOVIEPY, "ImageSequenceClip.py")
    for package in ("moviepy", "moviepy/video", "moviepy/video/io"):
        write_script(folder / package, "", "__init__.py")
    (folder / "films").mkdir()
    (folder / "films" / "of-an-earlier-run.mp4").touch()
    os.utime(folder / "films" / "of-an-earlier-run.mp4", (1.0, 1.0))
    run_id = start_script(trainer, folder, PRODUCTIVE)
    assert ended(trainer, run_id).outcome == "succeeded"
    analytics = json.loads(run_of(trainer, run_id).analytics.read_text())
    assert analytics["videos"] == [str(folder / "films" / "rl-video-episode-0.mp4")]
    assert analytics["checkpoints"] == [str(folder / "model.pt")]
    evaluation = analytics["evaluation"]
    assert (evaluation["episodes"], evaluation["avg_return"], evaluation["min_return"]) == (3, -20.0, -20.0)
    assert evaluation["scalars"]["eval/episodic_length"]["value"] == 20.0


def test_tyros_warnings_about_annotations_are_not_in_the_log(trainer: TrainerClient, folder: Path) -> None:
    """R3.8: tyro's harmless warnings are hidden, other warnings are not (with a stand-in for tyro)."""
    cli = """
        import warnings
        def cli(kind):
            warnings.warn("The field target-kl is annotated with type float, but the default value None has NoneType.")
            return kind()
    """
    write_script(folder / "tyro", "from ._cli import cli\n", "__init__.py")
    write_script(folder / "tyro", cli, "_cli.py")
    code = """
        import tyro, warnings
        tyro.cli(object)
        warnings.warn("mine")
    """
    view = ended(trainer, start_script(trainer, folder, code))
    assert view.outcome == "succeeded"
    log = run_of(trainer, view.run_id).stderr_log("script").read_text()
    assert "mine" in log
    assert "target-kl" not in log


def test_each_part_can_be_turned_off(trainer: TrainerClient, folder: Path) -> None:
    code = CARTPOLE.format(episodes=3) + "    print('global_step=5, episodic_return=1')\n"
    parts = dict.fromkeys(("frames", "metrics", "checkpoints", "console", "wandb"), False)
    off = start_script(trainer, folder / "off", code, probe=parts)
    frames = start_script(trainer, folder / "frames", code, probe={**parts, "frames": True})
    assert ended(trainer, off).outcome == ended(trainer, frames).outcome == "succeeded"
    assert not run_of(trainer, off).journal.exists()
    assert episodes(run_of(trainer, frames)) == []


def test_scalars_of_wandb_are_recorded(trainer: TrainerClient, folder: Path) -> None:
    write_script(folder / "wandb", "from wandb.sdk.wandb_run import Run\ndef init(**_): return Run()\n", "__init__.py")
    write_script(folder / "wandb" / "sdk", "", "__init__.py")
    write_script(
        folder / "wandb" / "sdk", "class Run:\n    step = 3\n    def log(self, data, step=None): pass\n", "wandb_run.py"
    )
    code = """
        import os, wandb
        print(os.environ["WANDB_MODE"], os.environ["WANDB_DIR"])
        run = wandb.init()
        run.log({"losses/x": 2.0, "text": "not a number"})
        run.log({"losses/x": 3.0, "global_step": 40})
    """
    run_id = start_script(trainer, folder, code)
    assert ended(trainer, run_id).outcome == "succeeded"
    run = run_of(trainer, run_id)
    assert [point[::2] for point in points(run)["losses/x"]] == [[3, 2.0], [40, 3.0]]
    assert run.stdout_log("script").read_text() == f"offline {run.path}\n"


def test_a_failure_of_the_probe_is_reported_once_and_the_script_continues(trainer: TrainerClient, folder: Path) -> None:
    code = """
        import gymnasium as gym
        class Strange(gym.Env):
            observation_space = action_space = gym.spaces.Discrete(2)
            def reset(self, *, seed=None, options=None): return 0, {}
            def step(self, action): return 0, {"agent": 1.0}, {"agent": False}, {"agent": False}, {}
        gym.register("Strange-v0", Strange)
        env = gym.make("Strange-v0", disable_env_checker=True)
        env.reset()
        for _ in range(100):
            env.step(0)
        print("done")
    """
    run_id = start_script(trainer, folder, code)
    assert ended(trainer, run_id).outcome == "succeeded"
    run = run_of(trainer, run_id)
    assert run.stdout_log("script").read_text() == "done\n"
    assert [event["code"] for event in events(run, "warning")] == ["probe_failed"]
