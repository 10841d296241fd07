"""Every algorithm through the real daemon: submitted, trained, paused, cancelled, resumed and evaluated.

One run goes from its first step to its last. Another with the same settings is paused, let go on and cancelled in the
middle, and resumed. Both must end with the same checkpoint, to the last bit, and the same curves.
"""

from __future__ import annotations

import importlib.util
import math
import zipfile
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.conftest import logged_problems
from tests.helpers import image_env
from tests.helpers.algorithm_cases import assert_same_checkpoint, write_teacher
from tests.helpers.daemons import ended, running_daemon, wait_for
from tests.helpers.held_worker import HELD_AT, install_held_worker

from cleanrl_worker.registry import ALGORITHMS
from mosaic.base.journal import read_all
from mosaic.base.run_payloads import build_eval_payload
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.views import RunView
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.torch_files import METADATA

Json = dict[str, Any]
Curves = dict[str, list[tuple[int, float]]]
SPEED = "charts/SPS"
"""The only curve that two equal runs do not share."""
TOTAL = 448
SAVED_EVERY = 128
HELD_STEP = 150
"""Behind the first checkpoint, and in the middle of a rollout."""
SEED = 3
pytestmark = pytest.mark.timeout(300)  # four processes, most with torch, on a machine that may be busy


class Case(NamedTuple):
    env_id: str
    settings: Json
    tags: set[str]
    """What CleanRL's script of that name logs, beside what all of them do."""
    is_exact: bool = True
    """Whether a resumed run is as if it had never been interrupted."""


CART, PENDULUM = "CartPole-v1", "Pendulum-v1"
GAME, POOLED_GAME = "RoadRunnerNoFrameskip-v4", "RoadRunner-v5"
"""The road runner is caught soon, whatever it does."""
SHORT_GAMES: Json = {"env_kwargs": {"max_num_frames_per_episode": 200}}
STUDENT = "qdagger_dqn_atari_impalacnn"
EPISODES = {"charts/episodic_return", "charts/episodic_length", SPEED}
ROLLOUT: Json = {"num_envs": 2, "num_steps": 32, "num_minibatches": 2, "update_epochs": 1}
SMALL_LAYERS: Json = {"hidden_sizes": [16]}
"""Behind convolutions, so that a checkpoint of a network for frames is small."""
SMALL_GAME: Json = {**SMALL_LAYERS, **SHORT_GAMES}
REPLAY: Json = {"buffer_size": 200, "batch_size": 8, "learning_starts": 60}
FOLLOWED: Json = {**REPLAY, "target_network_frequency": 40}
POLICY = {
    "charts/learning_rate",
    *(f"losses/{name}" for name in ("value_loss", "policy_loss", "entropy", "old_approx_kl", "approx_kl")),
}
GRADIENT = POLICY | {"losses/clipfrac", "losses/explained_variance"}
ADVANTAGE = {*(f"losses/{name}" for name in ("value_loss", "policy_loss", "entropy")), "losses/explained_variance"}
EPISODIC_MEMORY = {
    "charts/entropy_coefficient",
    "losses/loss",
    "losses/reconstruction_loss",
    *(f"episode/{name}_mean" for name in ("r", "l", "value", "advantage")),
}
VALUE = {"losses/td_loss", "losses/q_values"}
ATOMS = {"losses/loss", "losses/q_values"}
CRITIC = {"losses/qf1_values", "losses/qf1_loss", "losses/actor_loss"}
CRITICS = {*CRITIC, "losses/qf2_values", "losses/qf2_loss", "losses/qf_loss"}
ENTROPY = {"losses/alpha", "losses/alpha_loss"}
POOL = {"charts/avg_episodic_return"}
IMAGES = " with images"
"""After the name of an algorithm: the case in which it sees images of 40 × 40 pixels."""
SPOT = "image_env:Spot-v0"
TINY: Json = {"network": "image_env:Tiny", "hidden_sizes": [16]}
CASES = {
    "ppo": Case(CART, ROLLOUT, GRADIENT),
    "ppo_continuous_action": Case(PENDULUM, ROLLOUT, GRADIENT),
    "rpo_continuous_action": Case(PENDULUM, ROLLOUT, GRADIENT),
    "a2c": Case(CART, {"num_envs": 2, "num_steps": 32}, ADVANTAGE),
    "ppo_lstm": Case(CART, ROLLOUT, GRADIENT),
    "ppo_trxl": Case(CART, {**ROLLOUT, "trxl_dim": 8}, GRADIENT | EPISODIC_MEMORY),
    "pqn": Case(CART, ROLLOUT, VALUE),
    "dqn": Case(CART, FOLLOWED, VALUE),
    "c51": Case(CART, {**FOLLOWED, "n_atoms": 11}, ATOMS),
    "qrdqn": Case(CART, {**FOLLOWED, "n_quantiles": 11}, ATOMS),
    "sac_continuous_action": Case(PENDULUM, REPLAY, CRITICS | ENTROPY),
    "td3_continuous_action": Case(PENDULUM, REPLAY, CRITICS),
    "ddpg_continuous_action": Case(PENDULUM, REPLAY, CRITIC),
    "tqc": Case(PENDULUM, {**REPLAY, "n_quantiles": 5}, CRITICS | ENTROPY),
    "ppo_atari": Case(GAME, SMALL_GAME | ROLLOUT, GRADIENT),
    "ppo_atari_lstm": Case(GAME, SMALL_GAME | ROLLOUT, GRADIENT),
    "ppo_atari_multigpu": Case(GAME, SMALL_GAME | {**ROLLOUT, "local_num_envs": 1}, GRADIENT),
    "dqn_atari": Case(GAME, SMALL_GAME | FOLLOWED, VALUE),
    "c51_atari": Case(GAME, SMALL_GAME | {**FOLLOWED, "n_atoms": 11}, ATOMS),
    "rainbow_atari": Case(GAME, SMALL_GAME | {**FOLLOWED, "n_atoms": 11}, VALUE | {"charts/beta"}),
    "sac_atari": Case(GAME, SMALL_GAME | FOLLOWED, CRITICS | ENTROPY),
    # Held in its offline phase. It gets its teacher from the fixture.
    STUDENT: Case(
        GAME,
        {
            **FOLLOWED,
            **SMALL_GAME,
            "batch_size": 4,
            "teacher_steps": 140,
            "offline_steps": 60,
            "teacher_eval_episodes": 1,
        },
        VALUE
        | {"losses/loss", "losses/distill_loss", "charts/distill_coeff", "charts/epsilon"}
        | {"charts/teacher/avg_episodic_return"}
        | {f"charts/offline/{name}" for name in ("loss", "q_loss", "distill_loss")},
    ),
    # Games of envpool cannot be brought back.
    "ppo_atari_envpool": Case(POOLED_GAME, SMALL_LAYERS | ROLLOUT, GRADIENT | POOL, is_exact=False),
    "pqn_atari_envpool": Case(POOLED_GAME, SMALL_LAYERS | ROLLOUT, VALUE | POOL, is_exact=False),
    "ppo_rnd_envpool": Case(
        POOLED_GAME,
        {**ROLLOUT, **SMALL_LAYERS, "num_iterations_obs_norm_init": 1},
        POLICY | POOL | {"losses/fwd_loss"},
        is_exact=False,
    ),
    "ppo_procgen": Case("starpilot", ROLLOUT, GRADIENT, is_exact=False),
    # A phase of two rollouts ends with each 64 steps. It is held in the third.
    "ppg_procgen": Case(
        "starpilot",
        {"num_envs": 2, "num_steps": 16, "num_minibatches": 2, "n_iteration": 2, "e_auxiliary": 1},
        GRADIENT | {f"losses/aux/{name}" for name in ("kl_loss", "aux_value_loss", "real_value_loss")},
        is_exact=False,
    ),
    "ppo_pettingzoo": Case(
        "pettingzoo/simple_spread_v3",
        {**ROLLOUT, "env_kwargs": {"N": 2, "max_cycles": 15}},
        GRADIENT | {f"agents/agent_{number}/episodic_return" for number in (0, 1)},
    ),
    "ppo_pettingzoo_ma_atari": Case(
        "pettingzoo/boxing_v2",
        {**ROLLOUT, "env_kwargs": {"max_cycles": 120}},
        GRADIENT | {"charts/episodic_return-player0", "charts/episodic_length-player1"},
    ),
    f"ppo_continuous_action{IMAGES}": Case(SPOT, {**ROLLOUT, **TINY}, GRADIENT),
}


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerClient]:
    """One daemon for all of them, with room for two runs side by side."""
    place = tmp_path_factory.mktemp("lives")
    workspace, plugins = Workspace(place / "it's a place" / "var"), place / "plug ins"
    install_held_worker(plugins)
    CASES[STUDENT].settings["teacher_policy"] = write_teacher(place / "dqn_atari.cleanrl_model", actions=18)
    with running_daemon(workspace, plugins, "--max-runs", "2") as (_, connection):
        connection.check(payload_of("ppo"))  # so that the checker is there before the first test looks around
        yield connection
    assert not (problems := logged_problems(workspace.daemon_log)), problems


def payload_of(name: str, **ui: Any) -> Json:
    case = CASES[name]
    extras = {"cuda": False, "checkpoint_every": SAVED_EVERY, **case.settings}
    config = {
        "algo": name.removesuffix(IMAGES),
        "env_id": case.env_id,
        "total_timesteps": TOTAL,
        "seed": SEED,
        "extras": extras,
    }
    worker: Json = {"id": "cleanrl", "config": config}
    if case.env_id == SPOT:
        worker["imports"] = {"modules": ["image_env"], "folders": [str(Path(image_env.__file__).parent)]}
    # One thread each, so that two run side by side.
    return {
        "metadata": {"worker": worker, "ui": ui},
        "artifacts": {},
        "resources": {"cpus": 1},
    }


@pytest.mark.parametrize("name", dict.fromkeys((*ALGORITHMS, *CASES)))
def test_an_algorithm_trains_pauses_is_cancelled_resumes_and_is_evaluated(name: str, trainer: TrainerClient) -> None:
    """R3.6: algorithms."""
    spec = ALGORITHMS[name.removesuffix(IMAGES)]
    if spec.runs_in_envpool:
        pytest.importorskip("envpool")
    if spec.is_for_procgen and importlib.util.find_spec("PyQt5") is None:
        pytest.skip("Qt 5 is not installed: pip install 'mosaic-rl[procgen]'")
    if spec.is_for_atari:
        pytest.importorskip("ale_py")
    if spec.has_several_agents:
        pytest.importorskip("multi_agent_ale_py" if spec.is_for_atari else "mpe2")
    straight = trainer.submit(payload_of(name)).run_id
    broken = trainer.submit(payload_of(name, **{HELD_AT: HELD_STEP})).run_id
    pause_and_go_on(trainer, broken)
    cancel(trainer, broken)
    whole = ended(trainer, straight)
    trainer.resume(broken)
    evaluation = trainer.submit(evaluation_of(whole, trainer)).run_id
    resumed, evaluated = ended(trainer, broken), ended(trainer, evaluation)

    assert_trained(trainer, name, whole)
    assert_resumed(trainer, name, resumed, whole)
    assert_evaluated(trainer, evaluated, whole)


# --- steering


def pause_and_go_on(trainer: TrainerClient, run_id: str) -> None:
    """Once it has saved a checkpoint."""
    reach(trainer, run_id, "running")
    trainer.pause_run(run_id)
    reach(trainer, run_id, "paused")
    trainer.resume(run_id)
    reach(trainer, run_id, "running")


def reach(trainer: TrainerClient, run_id: str, stage: str) -> None:
    def is_there() -> bool:
        view = trainer.get_run(run_id)
        assert view.stage != "finished", view.reason
        return view.stage == stage and (view.checkpoint_step or 0) >= SAVED_EVERY

    wait_for(is_there, f"run {run_id} to be {stage}", seconds=60)


def cancel(trainer: TrainerClient, run_id: str) -> None:
    """It stops where it stands, saves a checkpoint, and ends by itself: no signal was needed."""
    trainer.cancel_run(run_id)
    view = ended(trainer, run_id)
    folder = RunFolder(view.run_dir)
    assert (view.outcome, view.reason) == ("cancelled", "Cancelled on request.")
    assert (view.global_step or 0) < TOTAL
    kept = read_all(folder.keeper)
    (exited,) = (line for line in kept if line["kind"] == "exited")
    assert (exited["code"], exited["signal"]) == (0, None)
    assert not [line for line in kept if line["kind"] == "escalated"]
    told = [line["kind"] for line in read_all(folder.journal)]
    assert ("paused" in told, "resumed" in told, told[-1]) == (True, True, "finished")
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    assert SAVED_EVERY <= checkpoint.step <= (view.global_step or 0)


def evaluation_of(view: RunView, trainer: TrainerClient) -> Json:
    """One episode of what it ended with."""
    last = RunFolder(view.run_dir).last_checkpoint
    worker = trainer.config(view.run_id)["metadata"]["worker"]
    return build_eval_payload(worker, str(last), {"eval_batch_size": 1})


# --- what is left of it


def assert_trained(trainer: TrainerClient, name: str, view: RunView) -> None:
    folder, case = RunFolder(view.run_dir), CASES[name]
    assert (view.outcome, view.global_step) == ("succeeded", TOTAL), view.reason
    saved = [line["step"] for line in read_all(folder.journal) if line["kind"] == "checkpoint"]
    assert (len(saved), saved[-1]) == (math.ceil(TOTAL / SAVED_EVERY), TOTAL)
    assert case.tags | EPISODES <= curves(trainer, view.run_id).keys()
    written = EventAccumulator(str(folder.tensorboard), size_guidance={"scalars": 0}).Reload()
    assert "hyperparameters/text_summary" in written.Tags()["tensors"]
    assert model_of(folder, name)


def assert_resumed(trainer: TrainerClient, name: str, view: RunView, whole: RunView) -> None:
    """As if it had never been interrupted, or it says that it is not."""
    folder, straight = RunFolder(view.run_dir), RunFolder(whole.run_dir)
    assert (view.outcome, len(view.attempts)) == ("succeeded", 2), view.reason
    events = read_all(folder.journal)
    first, second = (line["resumed_from"] for line in events if line["kind"] == "hello")
    assert first is None
    assert SAVED_EVERY <= second < TOTAL
    warnings = [line["code"] for line in events if line["kind"] == "warning"]
    assert warnings == ([] if CASES[name].is_exact else ["resumed_inexactly"])
    if not CASES[name].is_exact:
        return
    one, other = last_good_checkpoint(straight), last_good_checkpoint(folder)
    assert one is not None
    assert other is not None
    assert_same_checkpoint(one, other)
    assert model_of(folder, name) == model_of(straight, name)
    ours, theirs = (curves(trainer, run.run_id) for run in (view, whole))
    assert ours.pop(SPEED)
    assert theirs.pop(SPEED)
    assert ours == theirs


def assert_evaluated(trainer: TrainerClient, view: RunView, whole: RunView) -> None:
    assert view.outcome == "succeeded", view.reason
    (found,) = trainer.read_evaluations(view.run_id)
    assert (found.trained and found.trained.run_id, found.summary.checkpoint_step) == (whole.run_id, TOTAL)
    (batch,) = found.summary.batches
    (expected,) = batch.returns
    ((_, played),) = curves(trainer, view.run_id)["eval/episodic_return"]
    assert math.isfinite(played)
    assert played == pytest.approx(expected)


def curves(trainer: TrainerClient, run_id: str) -> Curves:
    found: Curves = defaultdict(list)
    for part in trainer.metrics(run_id):
        found[part.tag] += zip(part.steps, part.values, strict=True)
    return dict(found)


def model_of(folder: RunFolder, name: str) -> dict[str, bytes]:
    """The members of the file, besides the one that names its run."""
    name = name.removesuffix(IMAGES)
    (path,) = folder.models.glob(f"*__{name}__{SEED}__*/{name}.cleanrl_model")
    with zipfile.ZipFile(path) as archive:
        return {member: archive.read(member) for member in archive.namelist() if not member.endswith(METADATA)}
