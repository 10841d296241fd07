"""R9.7: the BDI worker: train, cancel, resume, evaluate, and act again, through a real daemon."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("agentspeak")

from tests.helpers.daemons import ended, wait_for
from tests.helpers.worker_runs import events

from bdi_worker import describe, launcher
from bdi_worker.checker import check_request
from bdi_worker.schema_generator import render_schema
from bdi_worker.worker_config import parse_request
from mosaic.base.run_payloads import build_eval_payload, build_train_payload
from mosaic.contracts.errors import BadInput, ConfigRefused, MosaicError
from mosaic.contracts.folder import RunFolder
from mosaic.features.replay.api import replay_episodes
from mosaic.trainer.client.trainer_client import TrainerClient
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.policies import Policy, load_policy_file
from mosaic.worker.recorders import video_name
from mosaic.worker.recording import Recording

GATED_LAKE = '''
import pathlib, time
import gymnasium
from gymnasium.envs.toy_text.frozen_lake import FrozenLakeEnv

class GatedLake(FrozenLakeEnv):
    """Waits in its 1,000th step until a file exists, so that a test can cancel the run there."""

    def __init__(self, gate, **options):
        super().__init__(**options)
        self.gate, self.count = pathlib.Path(gate), 0

    def step(self, action):
        self.count += 1
        if self.count == 1000:
            (self.gate / "reached").touch()
            while not (self.gate / "open").exists():
                time.sleep(0.01)
        return super().step(action)

gymnasium.register("GatedLake-v0", entry_point="gated_lake:GatedLake", max_episode_steps=100)
'''
STEPS = 3_000


@pytest.fixture
def gate(tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the files that `GatedLake` reads and writes."""
    plugins.mkdir()
    (plugins / "gated_lake.py").write_text(GATED_LAKE)
    monkeypatch.setenv("MOSAIC_ENV_MODULES", "gated_lake")  # for what runs in this process
    monkeypatch.syspath_prepend(str(plugins))
    place = tmp_path / "gate"
    place.mkdir()
    return place


def settings(gate: Path, **changes: Any) -> dict[str, Any]:
    config = {"env_id": "gated_lake:GatedLake-v0", "total_timesteps": STEPS, "seed": 3, "checkpoint_every": 10_000}
    return {**config, "learning_rate": 0.5, "env_kwargs": {"gate": str(gate)}, **changes}


def payload(**changes: Any) -> dict[str, Any]:
    return build_train_payload("bdi", "bdi_q", changes, {})


def table(folder: RunFolder) -> dict[str, Any]:
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.step == STEPS
    arrays = {**checkpoint.weights, **checkpoint.arrays}
    return {name: array.tolist() for name, array in arrays.items()} | {"rng": checkpoint.facts["rng"]}


def play(policy: Policy, seed: int) -> tuple[float, int]:
    env = policy.make_env()
    observation, _ = env.reset(seed=seed)
    policy.reset()
    total, length, is_over = 0.0, 0, False
    while not is_over:
        observation, reward, is_terminated, is_truncated, _ = env.step(policy.act(observation))
        total, length, is_over = total + float(reward), length + 1, is_terminated or is_truncated
    env.close()
    return total, length


def test_a_run_is_cancelled_resumed_and_evaluated(gate: Path, tmp_path: Path, trainer: TrainerClient) -> None:
    """R9.7: the table of a run that was cancelled and resumed is that of an uninterrupted one, bit for bit."""
    view = trainer.submit(payload(**settings(gate)))
    wait_for((gate / "reached").exists, "the run to reach its 1,000th step", 100)
    trainer.cancel_run(view.run_id)
    (gate / "open").touch()
    view = ended(trainer, view.run_id)
    assert (view.outcome, view.checkpoint_step) != ("succeeded", STEPS)
    assert view.checkpoint_step is not None
    assert 900 <= view.checkpoint_step < STEPS  # the start of the episode

    trainer.resume(view.run_id)
    view = ended(trainer, view.run_id)
    assert view.outcome == "succeeded"
    folder = RunFolder(view.run_dir)
    tags = {series.tag for series in trainer.metrics(view.run_id)}
    assert {"charts/episodic_return", "charts/epsilon", "losses/td_error", "bdi/table_rows", "bdi/fallbacks"} <= tags

    uninterrupted = RunFolder(tmp_path / "uninterrupted")
    launcher.build_job(parse_request(payload(**settings(gate))), uninterrupted, is_resume=False)()
    assert table(folder) == table(uninterrupted)

    worker = {"id": "bdi", "config": {}}
    evaluation = trainer.submit(build_eval_payload(worker, str(folder.path), {"eval_batch_size": 9}))
    assert ended(trainer, evaluation.run_id).outcome == "succeeded"
    summary = trainer.read_json(evaluation.run_id, "eval_summary.json")
    assert (summary["algo"], summary["episodes"]) == ("bdi_q", 9)
    policy = load_policy_file(folder.path)
    assert (policy.algo, policy.step) == ("bdi_q", STEPS)
    played = [play(policy, seed) for seed in summary["seeds"]]
    assert played == list(zip(summary["returns"], summary["lengths"], strict=True))

    (folder.checkpoints / str(STEPS) / "weights.safetensors").write_bytes(b"damaged")
    with pytest.raises(MosaicError, match="is damaged"):
        load_policy_file(folder.checkpoints / str(STEPS))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+!act <- move(left", "not a valid AgentSpeak file: agent.asl, line 1: unexpected end of file"),
        ("@a[learn] +!act <- mvoe(left).", "mvoe is neither an action nor a belief of this agent"),
        ("@a[learn] +!act <- !act.", "does not act in the first step of FrozenLake-v1: the agent has not chosen"),
        ("+!act <- move(left).", "has no plan with [learn]"),
    ],
)
def test_a_file_that_cannot_be_trained_is_refused(text: str, expected: str, tmp_path: Path) -> None:
    file = tmp_path / "agent.asl"
    file.write_text(text)
    request = parse_request(payload(env_id="FrozenLake-v1", asl=str(file)))
    with pytest.raises(BadInput) as refusal:
        launcher.build_job(request, RunFolder(tmp_path / "run"), is_resume=False)
    assert expected in str(refusal.value)
    assert [problem.path for problem in refusal.value.problems] == ["asl"]


def test_an_agent_that_never_acts_later_fails_with_a_reason(tmp_path: Path) -> None:
    file = tmp_path / "agent.asl"
    file.write_text("@a[learn] +!act : at(0, 0) & not seen <- +seen; move(left).")
    request = parse_request(payload(env_id="FrozenLake-v1", asl=str(file), env_kwargs={"is_slippery": False}))
    job = launcher.build_job(request, RunFolder(tmp_path / "run"), is_resume=False)
    # The episode's limit is 100 steps, of which the first has an action: the second episode starts again.
    with pytest.raises(MosaicError, match="chose no action in 50 successive steps: no applicable plan"):
        job()
    lines = [json.loads(line) for line in (tmp_path / "run" / "journal.jsonl").read_text().splitlines()]
    assert [line["action"] for line in lines if line["kind"] == "actor_fallback"] == ["left"]
    assert lines[-1]["outcome"] == "failed"


def train_shortly(folder: RunFolder, file: Path) -> Any:
    given = {"env_id": "FrozenLake-v1", "asl": str(file), "total_timesteps": 200}
    launcher.build_job(parse_request(payload(**given)), folder, is_resume=False)()
    return parse_request(payload(**{**given, "total_timesteps": 400}))


def test_a_table_of_other_plans_is_refused(tmp_path: Path) -> None:
    file, folder = tmp_path / "agent.asl", RunFolder(tmp_path / "run")
    file.write_text("@a[learn] +!act <- move(left). @b[learn] +!act <- move(down).")
    longer = train_shortly(folder, file)
    file.write_text("@a[learn] +!act <- move(left). @c[learn] +!act <- move(down).")
    with pytest.raises(BadInput, match=r"!act/0: the file has no @b, the table has no @c"):
        launcher.build_job(longer, folder, is_resume=True)
    assert load_policy_file(folder.path).act(0) in (0, 1), "a checkpoint contains its own file"


def test_a_resumed_run_does_not_need_its_file(tmp_path: Path) -> None:
    file, folder = tmp_path / "agent.asl", RunFolder(tmp_path / "run")
    file.write_text("@a[learn] +!act <- move(left). @b[learn] +!act <- move(down).")
    longer = train_shortly(folder, file)
    file.unlink()
    launcher.build_job(longer, folder, is_resume=True)()
    checkpoint = last_good_checkpoint(folder)
    assert checkpoint is not None
    assert checkpoint.step == 400
    assert "resumes with the copy in its checkpoint" in (tmp_path / "run" / "journal.jsonl").read_text()


def test_stochastic_evaluation_and_minigrid(tmp_path: Path) -> None:
    pytest.importorskip("minigrid")
    folder = RunFolder(tmp_path / "run")
    given = {"env_id": "MiniGrid-Empty-5x5-v0", "total_timesteps": 1_500, "learning_rate": 0.5}
    launcher.build_job(parse_request(payload(**given)), folder, is_resume=False)()
    options = {"eval_batch_size": 5, "eval_stochastic": True}
    request = parse_request(build_eval_payload({"id": "bdi", "config": {}}, str(folder.path), options))
    launcher.build_job(request, RunFolder(tmp_path / "eval"), is_resume=False)()
    summary = json.loads((tmp_path / "eval" / "eval_summary.json").read_text())
    assert summary["deterministic"] is False
    assert np.mean(summary["returns"]) > 0.5


def test_options_that_the_worker_does_not_support_are_refused() -> None:
    request = parse_request(payload(env_id="FrozenLake-v1", save_model=True, hf_entity="me", video_mode="single"))
    with pytest.raises(
        ConfigRefused, match=r"artifacts\.model\.save: bdi_q does not support it.*model\.hub_entity: bdi_q"
    ):
        check_request(request)
    assert check_request(parse_request(payload(env_id="FrozenLake-v1", video_mode="single"))).warnings == ()
    with pytest.raises(ConfigRefused, match="bdi_q does not evaluate after a training"):
        check_request(parse_request(payload(env_id="FrozenLake-v1", eval_capture_video=True)))


def test_episodes_and_videos_are_stored_on_request_across_a_resume(tmp_path: Path) -> None:
    """R6.4: as for other workers; the table is the same as without."""
    given = {"env_id": "FrozenLake-v1", "seed": 3, "env_kwargs": {"success_rate": 0.5}, "total_timesteps": 300}
    plain, folder = RunFolder(tmp_path / "plain"), RunFolder(tmp_path / "run")
    stored = {**given, "record_episodes": True, "capture_video": True}
    launcher.build_job(parse_request(payload(**stored)), folder, is_resume=False)()
    stored["total_timesteps"] = 600
    launcher.build_job(parse_request(payload(**stored)), folder, is_resume=True)()
    for total in (300, 600):
        launcher.build_job(
            parse_request(payload(**{**given, "total_timesteps": total})), plain, is_resume=total == 600
        )()
    one, other = last_good_checkpoint(plain), last_good_checkpoint(folder)
    assert one is not None
    assert other is not None
    assert one.weights["values"].tolist() == other.weights["values"].tolist()
    rows = [row for event in events(folder, "episodes") for row in event["rows"]]
    with Recording(folder.recording) as recording:
        episodes = list(recording.episodes())
    assert [episode.number for episode in episodes] == list(range(len(rows)))
    assert all(report.is_identical for report in replay_episodes(folder.recording))
    cubes = [number for number in (0, 1, 8, 27, 64) if number < len(rows)]
    assert sorted(path.name for path in folder.videos.glob("*.mp4")) == sorted(map(video_name, cubes))
    assert len(cubes) > 3

    options = {"eval_batch_size": 3, "record_episodes": True}
    request = parse_request(build_eval_payload({"id": "bdi", "config": {}}, str(folder.path), options))
    launcher.build_job(request, RunFolder(tmp_path / "eval"), is_resume=False)()
    assert [report.is_identical for report in replay_episodes(tmp_path / "eval" / "recording.bin")] == [True] * 3


def test_the_committed_schema_is_up_to_date() -> None:
    committed = describe().schemas
    assert committed is not None
    assert committed.read_text() == render_schema(), "out of date: python -m bdi_worker.schema_generator --write"


def test_without_agentspeak_the_extra_is_named(tmp_path: Path) -> None:
    script = tmp_path / "missing.py"
    script.write_text(
        "import sys\nsys.modules['agentspeak'] = None\nfrom bdi_worker.cli import main\nsys.exit(main(['--checker']))\n"
    )
    question = b'{"id": 1, "ask": "check", "config": {}}\n'
    result = subprocess.run([sys.executable, script], input=question, capture_output=True, check=True, timeout=100)
    reply = json.loads(result.stdout)
    assert (reply["ok"], reply["error"]) == (False, "MissingExtra")
    assert "pip install 'mosaic-rl[bdi]'" in reply["message"]
