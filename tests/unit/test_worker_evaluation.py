"""Evaluation on new seeds: equal seeds give equal returns; what does not fit is refused by name."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from tests.helpers.algorithm_cases import write_teacher
from tests.helpers.worker_runs import events, small, train_here

from cleanrl_worker.evaluation.loading import env_maker, load_for_evaluation, recording_header
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.shell.launcher import ConsoleRun
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.base.curves import mean_with_band
from mosaic.base.files import write_json
from mosaic.base.scores import iqm
from mosaic.contracts.errors import BadInput, CheckpointDamaged, ConfigRefused
from mosaic.contracts.events import Steps
from mosaic.contracts.folder import RunFolder
from mosaic.features.replay.api import replay_episodes
from mosaic.worker import checkpoints, evaluation_batches
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.envs import make
from mosaic.worker.evaluation import Episode, evaluate, pool_summaries, summarize
from mosaic.worker.evaluation_batches import first_evaluation_seed
from mosaic.worker.recording import RecordedEpisode, Recording, RecordingWriter


class PushingPolicy:
    """Pushes in the direction in which the pole leans, or randomly."""

    def __init__(self) -> None:
        self.batches: list[int] = []

    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        self.batches.append(len(observations))
        return (observations[:, 2] > 0).astype(int) if deterministic else rng.integers(0, 2, len(observations))


@pytest.fixture
def trained(tmp_path: Path) -> RunFolder:
    return train_here(RunFolder(tmp_path / "it's a run"), small())


IN_ONE_PROCESS = {
    name for name, entry in ALGORITHMS.items() if name != "ppo_atari_multigpu" and not entry.has_several_agents
}
"""Algorithms of one agent and one process; the others have tests of their own."""


def evaluation(policy_path: object, **changes: Any) -> dict[str, Any]:
    extras = {"mode": "policy_eval", "policy_path": str(policy_path), "eval_episodes": 3, **changes.pop("extras", {})}
    return {"extras": extras, **changes}


@pytest.mark.parametrize("deterministic", [True, False])
def test_the_same_seeds_give_the_same_returns(deterministic: bool) -> None:
    def play() -> list[Episode]:
        return evaluate(PushingPolicy(), lambda: make("CartPole-v1"), range(100, 120), deterministic)

    first = play()
    assert first == play()
    assert [episode.seed for episode in first] == list(range(100, 120))
    assert len({episode.length for episode in first}) > 3, "each seed gives a different start"


def test_an_episode_equals_that_of_a_single_environment() -> None:
    together = evaluate(PushingPolicy(), lambda: make("CartPole-v1"), range(7, 27))
    for index in (0, 9, 19):
        alone = evaluate(PushingPolicy(), lambda: make("CartPole-v1"), [7 + index])
        assert alone[0].length == together[index].length


@pytest.mark.parametrize("seeds", [range(11), [3], [7, 15, 23]])
def test_every_call_of_the_policy_has_the_same_number_of_rows(seeds: Sequence[int]) -> None:
    policy = PushingPolicy()
    evaluate(policy, lambda: make("CartPole-v1"), seeds)
    assert set(policy.batches) == {8}


def test_samples_of_an_episode_do_not_depend_on_the_others() -> None:
    together = evaluate(PushingPolicy(), lambda: make("CartPole-v1"), range(20), deterministic=False)
    assert len({episode.length for episode in together}) > 3
    for seed in (0, 7, 19):
        alone = evaluate(PushingPolicy(), lambda: make("CartPole-v1"), [seed], deterministic=False)
        assert (alone[0].length, alone[0].episodic_return) == (together[seed].length, together[seed].episodic_return)


def test_the_return_of_a_seed_is_bit_equal_in_any_batch(tmp_path: Path) -> None:
    config = small(algo="ppo_continuous_action", env_id="Pendulum-v1", extras={"num_minibatches": 2})
    policy = load_for_evaluation(parse_request(evaluation(train_here(RunFolder(tmp_path / "p"), config).path))).policy
    together = evaluate(policy, lambda: make("Pendulum-v1"), range(100, 120))
    for seeds in (range(103, 111), [119], [111, 103, 119]):
        for episode in evaluate(policy, lambda: make("Pendulum-v1"), seeds):
            assert episode.episodic_return == together[episode.seed - 100].episodic_return


def test_a_stopped_evaluation_omits_unfinished_episodes() -> None:
    ended: list[Episode] = []
    episodes = evaluate(
        PushingPolicy(),
        lambda: make("CartPole-v1"),
        range(50),
        on_episode=ended.append,
        on_step=lambda steps: len(ended) < 5,
    )
    assert 5 <= len(episodes) < 50
    assert sorted(ended, key=lambda episode: episode.index) == episodes


def test_actions_outside_the_box_are_clipped() -> None:
    class LoudPolicy:
        def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
            return np.full((len(observations), 1), 1e9)

    episodes = evaluate(LoudPolicy(), lambda: make("MountainCarContinuous-v0"), [1])
    assert episodes[0].episodic_return == pytest.approx(-0.1 * episodes[0].length)  # its price of full throttle


def test_the_summary_matches_its_episodes() -> None:
    episodes = [Episode(index, 10 + index, float(value), 5) for index, value in enumerate([1, 2, 3, 4, 5, 6, 7, 100])]
    summary = summarize(episodes)
    assert summary["episodes"] == 8
    assert summary["avg_return"] == 16
    assert (summary["median_return"], summary["min_return"], summary["max_return"]) == (4.5, 1, 100)
    assert summary["iqm"] == iqm(np.array([3.0, 4, 5, 6, 1, 2, 7, 100])) == 4.5
    spread = mean_with_band(np.array(summary["returns"])[:, None])
    assert summary["ci95"] == [spread.low[0], spread.high[0]], "the same interval as in a comparison of runs"
    assert summarize(episodes[:1])["ci95"] is None, "one episode says nothing about the next"
    assert summarize([])["episodes"] == 0
    assert pool_summaries([summarize(episodes[:3]), summarize(episodes[3:])]) == summary
    json.dumps(summary, allow_nan=False)


def test_a_return_that_is_not_finite_is_null_and_so_is_the_mean() -> None:
    summary = summarize([Episode(0, 1, 5.0, 3), Episode(1, 2, float("nan"), 3)])
    assert (summary["returns"], summary["avg_return"], summary["ci95"]) == ([5.0, None], None, None)
    assert pool_summaries([summary]) == summary
    json.dumps(summary, allow_nan=False)


def test_seeds_of_an_evaluation_are_never_those_of_training() -> None:
    assert first_evaluation_seed(1) == 1_010_000
    assert first_evaluation_seed(2) - first_evaluation_seed(1) >= 10_000


def test_an_evaluation_writes_its_summary_its_events_and_its_scalars(trained: RunFolder, tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "an evaluation"), evaluation(trained.path))
    summary = json.loads(folder.eval_summary.read_text())
    batch = summary["batches"][0]
    assert summary["episodes"] == batch["episodes"] == 3
    assert batch["seeds"] == [1_030_000, 1_030_001, 1_030_002]
    assert summary["avg_return"] == pytest.approx(np.mean(batch["returns"]))
    assert [event["batches"] for event in events(folder, "policy_eval_completed")] == [1]
    assert len(events(folder, "policy_eval_started")) == 1
    assert events(folder, "eval_summary_update")[0]["summary"]["avg_return"] == summary["avg_return"]
    assert list(folder.tensorboard_eval.iterdir())
    assert not folder.tensorboard.exists()
    tags = {tag for event in events(folder, "metrics") for tag in event["series"]}
    assert {"eval/episodic_return", "eval/avg_return", "eval/iqm"} <= tags
    assert json.loads(folder.analytics.read_text())["evaluation"]["avg_return"] == summary["avg_return"]
    restored = train_here(RunFolder(tmp_path / "again"), evaluation(trained.last_checkpoint))
    assert json.loads(restored.eval_summary.read_text())["returns"] == summary["returns"]


def test_an_episode_that_would_never_end_is_truncated_with_one_warning(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in ("mosaic.worker.evaluation", "mosaic.worker.evaluation_batches"):
        monkeypatch.setattr(sys.modules[module], "MAX_EPISODE_STEPS", 5)
    folder = train_here(RunFolder(tmp_path / "evaluation"), evaluation(trained.path))
    assert json.loads(folder.eval_summary.read_text())["batches"][0]["lengths"] == [5, 5, 5]
    (message,) = (event["text"] for event in events(folder, "warning") if event.get("code") == "eval_cut_warning")
    assert message.startswith("An episode was truncated after 5 steps: CartPole-v1 has no lower time limit")


def test_a_lone_model_has_the_statistics_of_its_wrappers(tmp_path: Path) -> None:
    """R8.1: and is as useful as the checkpoint of its run."""
    wrapped = small(extras={"wrappers": ["normalize-observation"]})
    folder = train_here(RunFolder(tmp_path / "trained"), wrapped)
    lone = tmp_path / "renamed.pt"
    shutil.copy(next(folder.models.glob("*/*.cleanrl_model")), lone)
    summaries = []
    for name, path in (("run", folder.path), ("file", lone)):
        played = train_here(RunFolder(tmp_path / name), evaluation(path))
        summaries.append(json.loads(played.eval_summary.read_text()))
    assert summaries[0]["returns"] == summaries[1]["returns"]


def test_a_seed_may_be_given(trained: RunFolder, tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "given"), evaluation(trained.path, extras={"seed_override": 0}))
    assert json.loads(folder.eval_summary.read_text())["seeds"] == [0, 1, 2]


def test_a_model_file_refers_to_its_run(trained: RunFolder) -> None:
    model = next(trained.models.glob("*/ppo.cleanrl_model"))
    result = load_for_evaluation(parse_request(evaluation(model))).saved_policy
    assert result.checkpoint is not None
    assert (result.path, result.checkpoint.path) == (model, trained.checkpoint(64))


def test_a_run_that_has_no_checkpoint_is_evaluated_by_its_model(trained: RunFolder, tmp_path: Path) -> None:
    by_checkpoint = train_here(RunFolder(tmp_path / "one"), evaluation(trained.path))
    shutil.rmtree(trained.checkpoints)
    trained.config.write_text(json.dumps(small()))
    by_model = train_here(RunFolder(tmp_path / "other"), evaluation(trained.path))
    summaries = [json.loads(folder.eval_summary.read_text()) for folder in (by_checkpoint, by_model)]
    assert summaries[0]["returns"] == summaries[1]["returns"]
    assert summaries[0]["seeds"] == summaries[1]["seeds"]


def cleanrl_agent() -> torch.nn.Module:
    """The agent as CleanRL's ppo.py builds it."""
    torch.manual_seed(1)
    module = torch.nn.Module()
    for name, outputs in (("critic", 1), ("actor", 2)):
        layers = [torch.nn.Linear(4, 64), torch.nn.Tanh(), torch.nn.Linear(64, 64), torch.nn.Tanh()]
        module.add_module(name, torch.nn.Sequential(*layers, torch.nn.Linear(64, outputs)))
    return module


def test_a_model_that_cleanrl_saved_acts_as_its_network_does(tmp_path: Path) -> None:
    agent = cleanrl_agent()
    model = tmp_path / "runs" / "CartPole-v1__ppo__7__1700000000" / "ppo.cleanrl_model"
    model.parent.mkdir(parents=True)
    torch.save(agent.state_dict(), model)
    match = load_for_evaluation(parse_request(evaluation(model)))
    assert (match.algo, match.env_id, match.first_seed) == ("ppo", "CartPole-v1", first_evaluation_seed(7))
    observations = np.random.default_rng(0).standard_normal((50, 4)).astype(np.float32)
    expected = agent.get_submodule("actor")(torch.from_numpy(observations)).argmax(1).numpy()
    assert (match.policy.act(observations, True, np.random.default_rng(0)) == expected).all()
    folder = train_here(RunFolder(tmp_path / "played"), evaluation(model))
    assert json.loads(folder.eval_summary.read_text())["checkpoint_step"] is None


def test_a_bare_state_dict_needs_algorithm_and_environment_to_be_named(tmp_path: Path) -> None:
    bare = tmp_path / "weights.pt"
    torch.save(cleanrl_agent().state_dict(), bare)

    def refusal(**settings: Any) -> str:
        with pytest.raises(BadInput) as refused:
            load_for_evaluation(parse_request(evaluation(bare, **settings)))
        return str(refused.value)

    assert "does not state its algorithm. Give it: --algo" in refusal(env_id="CartPole-v1")
    assert "does not state its environment. Give it: --env-id" in refusal(algo="ppo")
    assert "do not fit ppo on 'Acrobot-v1'" in refusal(algo="ppo", env_id="Acrobot-v1")
    assert "ppo needs a discrete action space" in refusal(algo="ppo", env_id="Pendulum-v1")
    assert "also needs the mean and variance" in refusal(algo="ppo_continuous_action", env_id="Pendulum-v1")
    assert "No algorithm 'pppo' in worker 'cleanrl'." in refusal(algo="pppo", env_id="CartPole-v1")
    assert load_for_evaluation(
        parse_request(evaluation(bare, algo="ppo", env_id="CartPole-v1"))
    ).first_seed == first_evaluation_seed(1)
    torch.save({"other.weight": torch.zeros(2)}, bare)
    assert "lacks 'critic.0.weight'" in refusal(algo="ppo", env_id="CartPole-v1")
    torch.save([1, 2, 3], bare)
    assert "does not contain a state dict of ppo" in refusal(algo="ppo", env_id="CartPole-v1")


def test_a_model_file_has_the_keys_of_cleanrl_in_their_order(tmp_path: Path) -> None:
    continuous = small(algo="ppo_continuous_action", env_id="Pendulum-v1", extras={"num_minibatches": 2})
    for name, config in (("discrete", small()), ("continuous", continuous)):
        folder = train_here(RunFolder(tmp_path / name), config)
        checkpoint = last_good_checkpoint(folder)
        assert checkpoint is not None
        shape = checkpoint.facts["shape"]
        network = load_algorithm(str(config["algo"])).Agent(shape["observation_size"], shape["actions"]).module()
        saved = torch.load(next(folder.models.glob("*/*.cleanrl_model")), weights_only=True)
        assert list(saved) == list(network.state_dict())


def test_a_damaged_model_file_is_refused_although_its_run_has_checkpoints(trained: RunFolder) -> None:
    model = next(trained.models.glob("*/ppo.cleanrl_model"))
    model.write_bytes(model.read_bytes()[:-50])
    with pytest.raises(CheckpointDamaged, match="is damaged or not a file written by torch"):
        load_for_evaluation(parse_request(evaluation(model)))


@pytest.mark.parametrize("algo", sorted(IN_ONE_PROCESS))
def test_every_algorithm_is_evaluated_from_a_fresh_checkpoint(
    algo: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.2: evaluation registry."""
    env_id = "CartPole-v1" if "Discrete" in ALGORITHMS[algo].action_spaces else "Pendulum-v1"
    if ALGORITHMS[algo].is_for_procgen:
        pytest.importorskip("envpool")
        pytest.importorskip("PyQt5")
        env_id = "leaper"
    elif ALGORITHMS[algo].extra is not None:
        pytest.importorskip(str(ALGORITHMS[algo].extra))
    known = load_algorithm(algo).Config.model_fields
    has_processes = "local_num_envs" in known
    if ALGORITHMS[algo].is_for_atari:
        pytest.importorskip("ale_py")
        env_id = "PongNoFrameskip-v4"
        if not has_processes:  # the others would not have the small network
            monkeypatch.setattr(load_algorithm(algo), "SIZES", ConvNetworkSizes((4, 4, 4), (8,)))
    elif ALGORITHMS[algo].has_several_agents:
        pytest.importorskip("mpe2")
        env_id = "pettingzoo/simple_reference_v3"  # two agents
    tiny: dict[str, Any] = {
        name: value
        for name, value in {
            "local_num_envs" if has_processes else "num_envs": 2, "num_steps": 16, "num_minibatches": 2,
            "buffer_size": 64, "learning_starts": 32,
            "batch_size": 8, "num_iterations_obs_norm_init": 1, "trxl_dim": 8, "n_iteration": 2,
        }.items()
        if name in known
    }  # fmt: skip
    if ALGORITHMS[algo].needs_teacher:
        teacher = write_teacher(tmp_path / "dqn_atari.cleanrl_model", actions=6)
        tiny |= {"teacher_policy": teacher, "teacher_steps": 16, "offline_steps": 4, "teacher_eval_episodes": 1}
        tiny["env_kwargs"] = {"max_num_frames_per_episode": 80}
    config = {"algo": algo, "env_id": env_id, "total_timesteps": 64, "extras": tiny}
    folder = train_here(RunFolder(tmp_path / "trained"), config)
    episodes = 1 if ALGORITHMS[algo].is_for_games else 3  # a game takes its time
    for name, is_drawn in (("best", False), ("drawn", True)):
        extras = {"eval_stochastic": is_drawn, "eval_episodes": episodes}
        played = train_here(RunFolder(tmp_path / name), evaluation(folder.path, extras=extras))
        summary = json.loads(played.eval_summary.read_text())
        assert (summary["algo"], summary["episodes"], summary["deterministic"]) == (algo, episodes, not is_drawn)
    model = next(folder.models.glob("*/*.cleanrl_model"))
    assert load_for_evaluation(parse_request(evaluation(model))).algo == algo
    lone = tmp_path / "elsewhere" / "copied.pt"
    lone.parent.mkdir()
    shutil.copy(model, lone)
    bare = {key: value for key, value in evaluation(lone).items() if key not in ("algo", "env_id")}
    bare["extras"] = {**bare["extras"], "eval_episodes": episodes}
    if algo == "sac_atari":  # its model, a tuple of networks, is not all of its agent
        with pytest.raises(BadInput, match=r"lacks .* Choose another checkpoint"):
            load_for_evaluation(parse_request(bare))
        return
    again = train_here(RunFolder(tmp_path / "lone"), bare)
    first, second = (json.loads(one.eval_summary.read_text()) for one in (RunFolder(tmp_path / "best"), again))
    assert (second["returns"], second["seeds"]) == (first["returns"], first["seeds"])


def test_mismatched_policies_and_environments_are_refused_by_name(trained: RunFolder, tmp_path: Path) -> None:
    def refusal(kind: type[Exception] = BadInput, **changes: Any) -> str:
        with pytest.raises(kind) as refused:
            load_for_evaluation(parse_request(evaluation(changes.pop("path", trained.path), **changes)))
        return str(refused.value)

    assert "is of 'ppo', not of 'ppo_continuous_action'" in refusal(algo="ppo_continuous_action")
    assert (
        "was trained on 'CartPole-v1' (observations Box (4,), actions Discrete 2); "
        "'Acrobot-v1' has observations Box (6,), actions Discrete 3"
    ) in refusal(env_id="Acrobot-v1")
    assert "is neither a checkpoint nor a run folder" in refusal(path=tmp_path)
    assert "There is no file" in refusal(path=tmp_path / "x.cleanrl_model")
    assert "extras.eval_episodes is 3, but extras.eval_batch_size is 4." in refusal(
        ConfigRefused, extras={"eval_batch_size": 4}
    )
    assert "extras.gamma: an evaluation takes its settings" in refusal(ConfigRefused, extras={"gamma": 1})
    with pytest.raises(ConfigRefused, match=r"extras\.policy_path: missing"):
        load_for_evaluation(parse_request({"extras": {"mode": "policy_eval"}}))


def test_a_damaged_checkpoint_is_refused_before_anything_starts(trained: RunFolder) -> None:
    weights = trained.checkpoint(64) / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1])
    with pytest.raises(CheckpointDamaged, match="is damaged"):
        load_for_evaluation(parse_request(evaluation(trained.checkpoint(64))))


def test_observations_that_are_not_arrays_are_flattened(tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "cards"), small(env_id="Blackjack-v1"))
    played = train_here(RunFolder(tmp_path / "played"), evaluation(folder.path))
    assert json.loads(played.eval_summary.read_text())["episodes"] == 3


def test_videos_are_recorded_only_on_request_with_their_metadata(trained: RunFolder, tmp_path: Path) -> None:
    """R8.4: videos of an evaluation."""
    import av

    folder = train_here(RunFolder(tmp_path / "E1"), evaluation(trained.path, extras={"eval_capture_video": True}))
    names = sorted(path.name for path in folder.eval_videos.iterdir())
    assert names == [f"rl-video-episode-{n}{end}" for n in range(3) for end in (".meta.json", ".mp4")]
    summary = json.loads(folder.eval_summary.read_text())
    assert summary["videos"] == [f"videos/E1-eval/rl-video-episode-{n}.mp4" for n in range(3)]
    meta = json.loads((folder.eval_videos / "rl-video-episode-1.meta.json").read_text())
    assert (meta["episode_return"], meta["episode_length"]) == (summary["returns"][1], summary["lengths"][1])
    assert {"episode_id", "timestamp"} <= set(meta)
    with av.open(str(folder.eval_videos / "rl-video-episode-1.mp4")) as video:
        stream = video.streams.video[0]
        assert (stream.codec_context.name, stream.codec_context.pix_fmt) == ("h264", "yuv420p")
        assert sum(1 for _ in video.decode(stream)) == meta["episode_length"] + 1
    quiet = train_here(RunFolder(tmp_path / "E2"), evaluation(trained.path))
    assert not quiet.videos.exists()


def test_a_checkpoint_without_its_normalizer_is_refused(tmp_path: Path) -> None:
    config = small(algo="ppo_continuous_action", env_id="Pendulum-v1", extras={"num_minibatches": 2})
    complete = last_good_checkpoint(train_here(RunFolder(tmp_path / "whole"), config))
    assert complete is not None
    lacking = {name: array for name, array in complete.arrays.items() if not name.startswith("observation")}
    assert len(lacking) < len(complete.arrays)
    path = checkpoints.write(RunFolder(tmp_path / "cut"), 64, complete.weights, lacking, complete.facts, {})
    with pytest.raises(BadInput, match="has no 'observation"):
        load_for_evaluation(parse_request(evaluation(path)))


def test_with_repeat_it_continues_with_further_seeds_until_stopped(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.3: batches."""
    update = ConsoleRun.update

    def stop_later(run: ConsoleRun, global_step: int) -> None:
        update(run, global_step)
        run.stop_requested = run.episode_count >= 7

    monkeypatch.setattr(ConsoleRun, "update", stop_later)
    folder = train_here(RunFolder(tmp_path / "repeated"), evaluation(trained.path, extras={"eval_repeat": True}))
    summary = json.loads(folder.eval_summary.read_text())
    assert [batch["seeds"][0] for batch in summary["batches"][:2]] == [1_030_000, 1_030_003]
    assert 2 <= len(summary["batches"]) <= 3
    assert [event["outcome"] for event in events(folder, "finished")] == ["stopped"]
    assert summary["episodes"] == sum(batch["episodes"] for batch in summary["batches"]) == len(summary["returns"])
    assert summary["avg_return"] == pytest.approx(np.mean(summary["returns"]))
    assert (summary["eval_repeat"], summary["eval_batch_size"]) == (True, 3)


def test_repeated_batches_spend_a_bounded_share_of_time_on_writing_the_summary(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.3: the summary is complete at the end, without being rewritten at every batch."""
    update, written = ConsoleRun.update, []

    def stop_later(run: ConsoleRun, global_step: int) -> None:
        update(run, global_step)
        run.stop_requested = run.episode_count >= 12

    def count_writes(path: Path, data: dict[str, Any]) -> None:
        written.append(len(data["batches"]))
        write_json(path, data)

    monkeypatch.setattr(ConsoleRun, "update", stop_later)
    monkeypatch.setattr(evaluation_batches, "write_json", count_writes)
    monkeypatch.setattr(evaluation_batches, "MAX_WRITING_SHARE", 1e-9)
    folder = train_here(RunFolder(tmp_path / "long"), evaluation(trained.path, extras={"eval_repeat": True}))
    batches = json.loads(folder.eval_summary.read_text())["batches"]
    assert len(batches) >= 4
    assert written == [1, len(batches)]


def test_analytics_are_written_at_each_batch(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R8.3: each batch updates analytics.json at once, for a bounded share of the time."""
    folder = RunFolder(tmp_path / "batches")
    play_batch, seen = evaluation_batches.EvaluationBatches.play_batch, []

    def note_analytics(batches: evaluation_batches.EvaluationBatches) -> bool:
        play_batch(batches)
        seen.append(json.loads(folder.analytics.read_text())["evaluation"]["batch"])
        return len(seen) < 3

    monkeypatch.setattr(evaluation_batches, "MAX_WRITING_SHARE", 1e9)
    monkeypatch.setattr(evaluation_batches.EvaluationBatches, "play_batch", note_analytics)
    train_here(folder, evaluation(trained.path, extras={"eval_repeat": True}))
    assert seen == [1, 2, 3]


def test_single_steps_are_recorded_on_request_and_reproduce_the_episode(trained: RunFolder, tmp_path: Path) -> None:
    """R6.1: an evaluation records its single steps where asked; their seed and actions are the episode."""
    plain = train_here(RunFolder(tmp_path / "plain"), evaluation(trained.path))
    assert events(plain, "step") == []
    folder = train_here(RunFolder(tmp_path / "steps"), evaluation(trained.path, extras={"record_steps": True}))
    batch = json.loads(folder.eval_summary.read_text())["batches"][0]
    assert batch["returns"] == json.loads(plain.eval_summary.read_text())["batches"][0]["returns"]
    rows = [row for event in events(folder, "step") for row in Steps.model_validate(event).rows]
    for seed, length, episodic_return in zip(batch["seeds"], batch["lengths"], batch["returns"], strict=True):
        own = [row for row in rows if row[0] == seed]
        assert [row[1] for row in own] == list(range(1, length + 1))
        env = gymnasium.make("CartPole-v1")
        env.reset(seed=seed)
        assert [env.step(row[4])[1] for row in own] == [row[3] for row in own]
        assert sum(row[3] or 0.0 for row in own) == episodic_return
        env.close()
    contradictory = {"record_steps": True, "fastlane_only": True}
    with pytest.raises(ConfigRefused, match="fastlane_only asks for no records of steps"):
        parse_request(evaluation(trained.path, extras=contradictory))


def test_a_further_attempt_appends_to_the_earlier_summary(trained: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "twice")
    for _ in range(2):
        train_here(folder, evaluation(trained.path))
    summary = json.loads(folder.eval_summary.read_text())
    assert [batch["batch"] for batch in summary["batches"]] == [1, 2]
    assert summary["seeds"] == list(range(1_030_000, 1_030_006))
    folder.eval_summary.write_text("{")
    train_here(folder, evaluation(trained.path))
    assert json.loads(folder.eval_summary.read_text())["episodes"] == 3
    assert folder.eval_summary.with_name("eval_summary.json.damaged").read_text() == "{"
    assert [event["code"] for event in events(folder, "warning")] == ["eval_summary_warning"]


def test_a_model_that_was_asked_for_is_evaluated_after_training_and_recorded_only_if_requested(
    tmp_path: Path,
) -> None:
    """R3.11: models, evaluation after training, upload."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    plain = train_here(RunFolder(tmp_path / "plain"), small())
    assert not plain.eval_summary.exists()
    saved = train_here(RunFolder(tmp_path / "saved"), small(extras={"save_model": True}))
    summary = json.loads(saved.eval_summary.read_text())
    assert summary["episodes"] == 10
    assert summary["policy_path"] == "checkpoints/64"
    assert not saved.videos.exists()
    points = EventAccumulator(str(saved.tensorboard)).Reload().Scalars("eval/episodic_return")
    assert len(points) == 10
    trained_episodes = sum(len(event["rows"]) for event in events(plain, "episodes"))
    assert sum(len(event["rows"]) for event in events(saved, "episodes")) == trained_episodes
    assert events(saved, "finished")[0]["global_step"] == 64
    recorded = train_here(RunFolder(tmp_path / "recorded"), small(extras={"eval_capture_video": True}))
    assert len(list(recorded.eval_videos.glob("*.mp4"))) == 3


def test_an_evaluation_without_frames_continues_and_warns(
    trained: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def blind(*_: Any) -> None:
        raise RuntimeError("no GL here")

    monkeypatch.setattr("gymnasium.envs.classic_control.cartpole.CartPoleEnv.render", blind)
    folder = train_here(RunFolder(tmp_path / "blind"), evaluation(trained.path, extras={"eval_capture_video": True}))
    assert json.loads(folder.eval_summary.read_text())["episodes"] == 3
    assert [event["code"] for event in events(folder, "warning")] == ["no_video"]
    assert "no GL here" in events(folder, "warning")[0]["text"]
    assert not folder.videos.exists()


@pytest.mark.parametrize("extras", [{}, {"eval_stochastic": True}])
def test_episodes_are_recorded_on_request_and_simulated_again(
    trained: RunFolder, tmp_path: Path, extras: dict[str, Any]
) -> None:
    """R6.4: each episode of an evaluation is in its recording, by the order of the seeds."""
    plain = train_here(RunFolder(tmp_path / "plain"), evaluation(trained.path, extras=extras))
    assert not plain.recording.exists()
    folder = RunFolder(tmp_path / "recorded")
    for attempt in (1, 2):
        train_here(folder, evaluation(trained.path, extras={"record_episodes": True, **extras}))
        summary = json.loads(folder.eval_summary.read_text())
        with Recording(folder.recording) as recording:
            episodes = list(recording.episodes())
        assert [episode.number for episode in episodes] == list(range(3 * attempt))
        assert [episode.seed for episode in episodes] == summary["seeds"]
        assert [episode.total_reward for episode in episodes] == summary["returns"]
        assert {change.actor for episode in episodes for change in episode.actors} == {"policy"}
    assert summary["batches"][0]["returns"] == json.loads(plain.eval_summary.read_text())["returns"]
    assert [report.is_identical for report in replay_episodes(folder.recording)] == [True] * 6


def test_what_an_interrupted_batch_recorded_is_dropped(trained: RunFolder, tmp_path: Path) -> None:
    folder = RunFolder(tmp_path / "killed")
    request = evaluation(trained.path, extras={"record_episodes": True})
    train_here(folder, request)
    folder.eval_summary.unlink()  # as if it had been killed before the batch was complete
    train_here(folder, request)
    with Recording(folder.recording) as recording:
        assert [episode.seed for episode in recording.episodes()] == json.loads(folder.eval_summary.read_text())[
            "seeds"
        ]


def test_the_evaluation_after_training_is_in_its_recording(tmp_path: Path) -> None:
    folder = train_here(RunFolder(tmp_path / "run"), small(extras={"record_episodes": True, "save_model": True}))
    summary = json.loads(folder.eval_summary.read_text())
    with Recording(folder.recording) as recording:
        episodes = list(recording.episodes())
    evaluated = [episode for episode in episodes if episode.actors]
    assert [episode.number for episode in evaluated] == list(range(len(episodes)))[-len(evaluated) :]
    assert [(episode.seed, episode.total_reward) for episode in evaluated] == list(
        zip(summary["seeds"], summary["returns"], strict=True)
    )
    assert len(episodes) > len(evaluated) == 10
    assert all(report.is_identical for report in replay_episodes(folder.recording))


def test_the_recording_has_the_actions_and_rewards_of_the_environment(tmp_path: Path) -> None:
    """R6.4: also of a policy that normalizes observations and clips actions."""
    settings = {"num_envs": 1, "num_steps": 64}
    config = small(algo="ppo_continuous_action", env_id="Pendulum-v1", extras=settings)
    trained = train_here(RunFolder(tmp_path / "run"), config)
    request = evaluation(trained.path, extras={"record_episodes": True, "eval_stochastic": True, "eval_episodes": 2})
    folder = train_here(RunFolder(tmp_path / "recorded"), request)
    returns = json.loads(folder.eval_summary.read_text())["returns"]
    reports = list(replay_episodes(folder.recording))
    assert [report.total_reward for report in reports] == pytest.approx(returns, rel=1e-12)
    assert all(report.is_identical for report in reports)


class ChancePolicy:
    def act(self, observations: np.ndarray, deterministic: bool, rng: np.random.Generator) -> np.ndarray:
        return rng.integers(0, 4, len(observations))


def test_whole_atari_games_are_recorded(tmp_path: Path) -> None:
    pytest.importorskip("ale_py")
    header = recording_header("ppo_atari", "BreakoutNoFrameskip-v4", {})
    assert header is not None
    with RecordingWriter(tmp_path / "recording.bin", header) as writer:

        def on_episode(episode: Episode) -> None:
            steps = episode.steps
            assert steps is not None
            writer.append([RecordedEpisode(0, episode.seed, None, steps.actions, steps.rewards, "terminated")])

        make_game = partial(env_maker("ppo_atari"), header.env_id)
        evaluate(ChancePolicy(), make_game, [5], deterministic=False, on_episode=on_episode, records_steps=True)
    (report,) = replay_episodes(tmp_path / "recording.bin")
    assert (report.is_identical, report.steps > 50) == (True, True)
