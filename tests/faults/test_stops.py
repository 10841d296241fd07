"""F47: a stop saves what was trained, however slow the environment is, and the run resumes as if there had been none.

A cell is an algorithm, a way to stop it (cancel, pause, time limit, SIGTERM) and a moment: a few steps after the start,
or inside a later cycle of steps and updates. `make test` takes a sample; MOSAIC_FULL_SWEEP=1 takes all cells of the
algorithms whose extras are installed, and names the others.
"""

from __future__ import annotations

import itertools
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.algorithm_cases import assert_same_checkpoint, write_teacher
from tests.helpers.daemons import ended, wait_for
from tests.helpers.worker_runs import events, train_here

from bdi_worker import launcher as bdi_launcher
from bdi_worker.worker_config import parse_request as parse_bdi_request
from cleanrl_worker.environments.envpool_games import EnvpoolEnvs
from cleanrl_worker.environments.vector import VectorEnvs
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from mosaic.base.checkpoint_files import list_steps
from mosaic.base.journal import Journal
from mosaic.base.run_payloads import build_train_payload
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import Checkpoint, last_good_checkpoint

pytestmark = pytest.mark.timeout(1800)
IS_FULL = bool(os.environ.get("MOSAIC_FULL_SWEEP"))
DELAY_S = 0.05
KINDS, MOMENTS = ("cancel", "pause", "time limit", "SIGTERM"), ("start", "later")
GAME = "BreakoutNoFrameskip-v4"

_ROLLOUT = {"num_envs": 2, "num_steps": 8, "total_timesteps": 80}
_PPO = {**_ROLLOUT, "num_minibatches": 2, "update_epochs": 2}
_REPLAY = {"total_timesteps": 60, "buffer_size": 50, "batch_size": 4, "learning_starts": 20}
_CONTROL = {"env_id": "Pendulum-v1", **_REPLAY, "hidden_sizes": [8, 8], "backend": "numpy"}
_GAMES = {**_PPO, "total_timesteps": 64, "cuda": False, "hidden_sizes": [8], "env_id": GAME}
_GAME_REPLAY = {**_REPLAY, "env_id": GAME, "cuda": False, "target_network_frequency": 8, "hidden_sizes": [8]}
_POOL = {**_GAMES, "env_id": "Breakout-v5"}
SETTINGS: dict[str, dict[str, Any]] = {
    "ppo": _PPO,
    "a2c": {**_ROLLOUT, "num_steps": 4},
    "pqn": _PPO,
    "ppo_continuous_action": {**_PPO, "env_id": "Pendulum-v1"},
    "rpo_continuous_action": {**_PPO, "env_id": "Pendulum-v1"},
    "ppo_lstm": {**_PPO, "cuda": False},
    "ppo_trxl": {
        **_PPO, "cuda": False, "trxl_dim": 8, "trxl_num_heads": 2, "trxl_num_layers": 1, "trxl_memory_length": 4,
    },
    "ppo_pettingzoo": {**_PPO, "num_envs": 4, "num_steps": 4, "env_id": "tests.helpers.parallel_env:relay"},
    "ppo_pettingzoo_ma_atari": {**_GAMES, "env_id": "boxing_v2"},
    "dqn": _REPLAY,
    "c51": {**_REPLAY, "n_atoms": 7},
    "qrdqn": {**_REPLAY, "n_quantiles": 7, "cuda": False},
    "sac_continuous_action": _CONTROL,
    "td3_continuous_action": _CONTROL,
    "ddpg_continuous_action": _CONTROL,
    "tqc": {**_CONTROL, "backend": "torch", "cuda": False},
    "ppo_atari": _GAMES,
    "ppo_atari_lstm": _GAMES,
    "ppo_atari_multigpu": {**_GAMES, "local_num_envs": 1, "num_processes": 2},
    "dqn_atari": _GAME_REPLAY,
    "c51_atari": _GAME_REPLAY,
    "rainbow_atari": _GAME_REPLAY,
    "sac_atari": _GAME_REPLAY,
    "qdagger_dqn_atari_impalacnn": {
        **_GAME_REPLAY, "total_timesteps": 72, "teacher_steps": 24, "offline_steps": 12, "teacher_eval_episodes": 1,
        "env_kwargs": {"max_num_frames_per_episode": 80},
    },
    "ppo_atari_envpool": _POOL,
    "pqn_atari_envpool": _POOL,
    "ppo_rnd_envpool": {**_POOL, "num_iterations_obs_norm_init": 1},
    "ppo_procgen": {**_PPO, "env_id": "bigfish", "cuda": False, "hidden_sizes": [8]},
    "ppg_procgen": {
        **_ROLLOUT, "env_id": "bigfish", "cuda": False, "hidden_sizes": [8], "num_minibatches": 2, "n_iteration": 2,
        "total_timesteps": 96, "e_auxiliary": 1, "num_aux_rollouts": 1, "n_aux_grad_accum": 2,
    },
    "bdi_q": {"env_id": "FrozenLake-v1", "total_timesteps": 80, "checkpoint_every": 1000},
}  # fmt: skip
STEPS = {
    **dict.fromkeys(SETTINGS, (3, 34)),
    "qdagger_dqn_atari_impalacnn": (3, 30),
    "ppg_procgen": (3, 42),
    "ppo_rnd_envpool": (3, 56),
    # Fewer environments of this process: they are of teams, or the other process has one of two.
    **dict.fromkeys(("ppo_pettingzoo", "ppo_pettingzoo_ma_atari"), (3, 18)),
    "ppo_atari_multigpu": (3, 18),
}
"""Environment steps of the process after which it is stopped: at the start, and in a later cycle."""
STEPS_TO_STOP = 4
"""Steps until a stop is obeyed: fewer than are left of the rollout."""
EXTRAS = {"envpool": ("envpool", "procgen"), "multi_agent_ale_py": ("ma_atari",), "ale_py": ("atari",)}
SAMPLE = [
    ("ppo", "cancel", "later"),
    ("a2c", "time limit", "start"),
    ("ppo_continuous_action", "pause", "later"),
    ("ppo_lstm", "SIGTERM", "later"),
    ("ppo_pettingzoo", "time limit", "later"),
    ("dqn", "pause", "later"),
    ("tqc", "cancel", "later"),
    ("ppo_atari_lstm", "pause", "later"),
    ("rainbow_atari", "SIGTERM", "later"),
    ("qdagger_dqn_atari_impalacnn", "cancel", "later"),
    ("bdi_q", "pause", "later"),
    ("bdi_q", "cancel", "start"),
]


class SlowSteps:
    """Counts the steps of all environments of this process, delays each, and acts at one of them."""

    def __init__(self) -> None:
        self.is_slow = False
        self.count = self.act_at = 0
        self.act: Callable[[], object] = int

    def take(self, steps: int = 1) -> None:
        for _ in range(steps if self.is_slow else 0):
            time.sleep(DELAY_S)
            self.count += 1
            if self.count == self.act_at:
                self.act()

    @contextmanager
    def stopping(self, at: int, act: Callable[[], object]) -> Iterator[None]:
        self.is_slow, self.count, self.act_at, self.act = True, 0, at, act
        yield
        self.is_slow = False


@pytest.fixture
def slow(monkeypatch: pytest.MonkeyPatch) -> SlowSteps:
    """Slow environments, and small networks for images."""
    from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

    steps = SlowSteps()

    def delay(kind: Any) -> None:
        original = kind.step

        def step(environments: Any, *arguments: Any) -> Any:
            steps.take(len(environments) if hasattr(environments, "__len__") else 1)
            return original(environments, *arguments)

        monkeypatch.setattr(kind, "step", step)

    for kind in (VectorEnvs, EnvpoolEnvs, FrozenLakeEnv):
        delay(kind)
    # All are imported before: the other process of multigpu has its network of full size.
    for name, module in [(name, load_algorithm(name)) for name in ALGORITHMS]:
        if name != "ppo_atari_multigpu" and hasattr(module, "SIZES"):
            monkeypatch.setattr(module, "SIZES", ConvNetworkSizes((4, 4, 4), (8,)))
    monkeypatch.setenv("MOSAIC_ENV_MODULES", "tests.helpers.parallel_env")
    return steps


def missing_extra(name: str) -> str | None:
    for module, parts in EXTRAS.items():
        if any(part in name for part in parts) and find_spec(module) is None:
            return module
    return None


def run(name: str, place: Path, is_resume: bool = False) -> RunFolder:
    """Train in this process, by the job of the worker."""
    folder = RunFolder(place)
    settings = dict(SETTINGS[name])
    if name == "bdi_q":
        payload = build_train_payload("bdi", name, {**settings, "seed": 3}, {})
        bdi_launcher.build_job(parse_bdi_request(payload), folder, is_resume)()
        return folder
    if name == "qdagger_dqn_atari_impalacnn":
        settings["teacher_policy"] = write_teacher(place.parent / "teacher" / "dqn_atari.cleanrl_model", 4)
    config = {"env_id": settings.pop("env_id", "CartPole-v1"), "total_timesteps": settings.pop("total_timesteps")}
    return train_here(folder, {"algo": name, "seed": 3, **config, "extras": settings}, is_resume)


def last(folder: RunFolder) -> Checkpoint:
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None, "there is no checkpoint"
    return checkpoint


def order(folder: RunFolder, command: str) -> None:
    inbox = Journal(folder.inbox)
    inbox.append(command)
    inbox.close()


def stop_while_paused(folder: RunFolder, found: list[int]) -> None:
    """What a user does who pauses a run and ends it later; note the checkpoints that the pause left."""
    wait_for(lambda: events(folder, "paused"), "the run to be paused")
    found.extend(list_steps(folder))
    order(folder, "stop")


def stop(name: str, kind: str, at: int, place: Path, slow: SlowSteps) -> RunFolder:
    """Train until a step, and stop the run there; return its folder."""
    folder, found = RunFolder(place), list[int]()
    thread = threading.Thread(target=stop_while_paused, args=(folder, found))

    def pause() -> None:
        order(folder, "pause")
        thread.start()

    acts: dict[str, Callable[[], None]] = {
        "cancel": lambda: order(folder, "stop"),
        "pause": pause,
        "SIGTERM": lambda: os.kill(os.getpid(), signal.SIGTERM),
        # As the keeper does, at a moment of its own: here between two steps.
        "time limit": lambda: threading.Timer(DELAY_S / 2, os.kill, (os.getpid(), signal.SIGTERM)).start(),
    }
    with slow.stopping(at, acts[kind]):
        run(name, place)
    assert slow.count <= at + STEPS_TO_STOP
    if kind == "pause":
        thread.join()
        assert found == list_steps(folder), "the stop of a paused run has nothing more to save"
    return folder


def logged(checkpoint: Checkpoint) -> Any:
    log = checkpoint.manifest["log"]
    counts = {tag: (point["step"], point["count"]) for tag, point in log["scalars"].items()}
    return log["episodes"], log["recent_returns"], counts


def check_cell(name: str, kind: str, moment: str, straight: RunFolder, place: Path, slow: SlowSteps) -> str:
    """Return how the run resumed."""
    folder = stop(name, kind, STEPS[name][MOMENTS.index(moment)], place, slow)
    stopped, report = last(folder), events(folder, "finished")[-1]
    assert (report["outcome"], report["global_step"]) == ("stopped", stopped.step)
    assert list_steps(folder) == [stopped.step]
    assert (stopped.step > 0) == (moment == "later" or "replay" in stopped.facts)
    if moment == "start":
        assert report["reason"] == "Nothing was trained yet."

    run(name, place, is_resume=True)
    inexact = [event for event in events(folder, "warning") if event["code"] == "resumed_inexactly"]
    assert bool(inexact) == ("envpool" in name or "procgen" in name)
    if inexact:  # envpool cannot restore its games
        assert last(folder).step == last(straight).step
        return "resumed with new games"
    assert_same_checkpoint(last(straight), last(folder))
    assert logged(last(straight)) == logged(last(folder))
    return "resumed exactly"


@pytest.mark.skipif(IS_FULL, reason="a part of the full sweep")
@pytest.mark.parametrize(("name", "kind", "moment"), SAMPLE)
def test_a_stop_saves_and_the_run_resumes_exactly(
    name: str, kind: str, moment: str, tmp_path: Path, slow: SlowSteps
) -> None:
    """F47: a sample, with one algorithm of each kind of loop."""
    if missing := missing_extra(name):
        pytest.skip(f"{name}: {missing} is not installed")
    check_cell(name, kind, moment, run(name, tmp_path / "straight"), tmp_path / "stopped", slow)


@pytest.mark.skipif(not IS_FULL, reason="MOSAIC_FULL_SWEEP=1")
@pytest.mark.parametrize("name", SETTINGS)
def test_every_stop_of_every_algorithm_saves_and_resumes_exactly(
    name: str, tmp_path: Path, slow: SlowSteps, record_property: Callable[[str, object], None]
) -> None:
    """F47, R2.8: all cells of an algorithm."""
    assert {*ALGORITHMS, "bdi_q"} == SETTINGS.keys()
    if missing := missing_extra(name):
        pytest.skip(f"{name}: {missing} is not installed")
    cells = list(itertools.product(KINDS, MOMENTS))
    record_property("tries", len(cells))
    straight = run(name, tmp_path / "straight")
    for kind, moment in cells:
        how = check_cell(name, kind, moment, straight, tmp_path / f"{kind} {moment}", slow)
        print(f"{name}: {kind}, {moment}: saved, {how}")


@pytest.mark.parametrize("name", ["ppo", "dqn", "sac_continuous_action", "ppo_atari", "bdi_q"])
def test_a_slow_training_is_saved_by_the_clock(
    name: str, tmp_path: Path, slow: SlowSteps, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F47, R2.8: a crash costs minutes; here tenths of a second. What is saved once is not saved again."""
    if missing := missing_extra(name):
        pytest.skip(f"{name}: {missing} is not installed")
    minutes = 0.2 / 60
    monkeypatch.setitem(SETTINGS, name, {**SETTINGS[name], "total_timesteps": 48, "checkpoint_minutes": minutes})
    with slow.stopping(0, int):
        folder = run(name, tmp_path / "run")
    saved = [event["step"] for event in events(folder, "checkpoint")]
    assert saved == sorted(set(saved))
    assert len(saved) >= 3
    assert saved[-1] == 48
    best = {int(folder.best_checkpoint.resolve().name)} if folder.best_checkpoint.is_symlink() else set()
    assert set(list_steps(folder)) == {48, *best}


# --- through the daemon

SLOW_CART = '''
import pathlib, time
import gymnasium
from gymnasium.envs.classic_control import CartPoleEnv

class SlowCart(CartPoleEnv):
    """Takes 50 ms a step while a file exists."""

    def __init__(self, brake, **options):
        super().__init__(**options)
        self.brake = pathlib.Path(brake)

    def step(self, action):
        if self.brake.exists():
            time.sleep(0.05)
        return super().step(action)

gymnasium.register("SlowCart-v0", entry_point="braked_cart:SlowCart", max_episode_steps=100)
'''
LIMIT_S = 30.0
"""Long enough for the worker to start on a machine that is busy."""


@pytest.fixture
def brake(tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    plugins.mkdir(exist_ok=True)
    (plugins / "braked_cart.py").write_text(SLOW_CART)
    monkeypatch.setenv("MOSAIC_ENV_MODULES", "braked_cart")  # for what runs in this process
    monkeypatch.syspath_prepend(str(plugins))
    file = tmp_path / "brake"
    file.touch()
    return file


@pytest.mark.parametrize(
    ("name", "settings", "kind"),
    [
        ("ppo", {"total_timesteps": 1536}, "cancel"),  # a rollout by its default settings: 512 steps, 26 s
        ("ppo", {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "total_timesteps": 1280}, "pause"),
        ("dqn", {"learning_starts": 10, "buffer_size": 1000, "total_timesteps": 2000}, "SIGTERM"),
        pytest.param(
            "ppo_lstm", {"num_envs": 4, "num_steps": 8, "total_timesteps": 3200}, "time limit",
            marks=pytest.mark.skipif(not IS_FULL, reason="MOSAIC_FULL_SWEEP=1"),
        ),
    ],
)  # fmt: skip
def test_a_run_of_the_daemon_that_is_stopped_resumes_exactly(
    name: str, settings: dict[str, Any], kind: str, brake: Path, tmp_path: Path, trainer: TrainerClient
) -> None:
    """F47: with the daemon, the keeper, and a worker of its own."""
    settings = {**settings, "env_id": "braked_cart:SlowCart-v0", "env_kwargs": {"brake": str(brake)}, "seed": 3}
    options = {"max_seconds": LIMIT_S} if kind == "time limit" else {}
    view = trainer.submit(build_train_payload("cleanrl", name, {**settings, **options}, {}))
    run_id, folder = view.run_id, RunFolder(view.run_dir)
    least = 1 if kind == "cancel" else 60
    wait_for(lambda: (trainer.get_run(run_id).global_step or 0) >= least, "its first steps", 200)
    if kind == "cancel":
        trainer.cancel_run(run_id)
    elif kind == "pause":
        trainer.pause_run(run_id)
        wait_for(lambda: trainer.get_run(run_id).stage == "paused", "it to be paused")
        os.kill(events(folder, "hello")[0]["pid"], signal.SIGKILL)
    elif kind == "SIGTERM":
        os.kill(events(folder, "hello")[0]["pid"], signal.SIGTERM)
    view = ended(trainer, run_id)

    outcomes = {"cancel": "cancelled", "pause": "failed", "SIGTERM": "cancelled", "time limit": "failed"}
    assert (view.outcome, view.reason is not None) == (outcomes[kind], True)
    assert ("Nothing was trained yet." in str(view.reason)) == (kind == "cancel")
    stopped = last(folder)
    assert stopped.step == view.checkpoint_step
    assert (stopped.step == 0) == (kind == "cancel")

    brake.unlink()
    trainer.resume(run_id)
    assert ended(trainer, run_id).outcome == "succeeded"
    payload = build_train_payload("cleanrl", name, settings, {})
    worker = payload["metadata"]["worker"]["config"]
    straight = train_here(RunFolder(tmp_path / "straight"), worker)
    assert_same_checkpoint(last(straight), last(folder))
    assert logged(last(straight)) == logged(last(folder))
