"""The checker: one reply per request, whatever the request."""

from __future__ import annotations

import json
import pickle
import zipfile
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.helpers.worker_runs import SMALL, small, train_here

from cleanrl_worker.algorithms.run_checks import observation_warnings, step_warnings
from cleanrl_worker.evaluation.saved_policies import format_metadata, inspect_policy
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.shell import checker
from cleanrl_worker.shell.checker import REQUEST_HANDLERS
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.errors import BadInput, CheckpointDamaged
from mosaic.contracts.folder import WORKSPACE_VARIABLE, RunFolder
from mosaic.worker.checker_loop import answer_line
from mosaic.worker.checkpoints import load_checkpoint
from mosaic.worker.envs import family
from mosaic.worker.torch_files import save_state_dict


def ask(**question: Any) -> dict[str, Any]:
    return answer_line(json.dumps({"id": 7, **question}).encode(), REQUEST_HANDLERS)


@pytest.mark.parametrize(
    ("settings", "threads"),
    [
        ({}, 1),
        ({"hidden_sizes": [64, 64], "backend": "torch"}, 1),
        ({"hidden_sizes": [128], "backend": "torch"}, 1),
        ({"backend": "torch"}, 2),
        ({"hidden_sizes": [300]}, 2),
    ],
)
def test_a_second_thread_is_recommended_for_wide_layers_in_torch_only(settings: dict[str, Any], threads: int) -> None:
    own = {"algo_params": settings}
    config = {"algo": "sac_continuous_action", "env_id": "Pendulum-v1", "total_timesteps": 1000, "seed": 1, **own}
    assert ask(ask="check", config=config)["summary"]["cpus"] == threads


def test_a_good_config_is_answered_with_everything_that_a_run_would_use(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(WORKSPACE_VARIABLE, str(tmp_path / "var"))
    reply = ask(
        ask="check", config={**SMALL, "run_id": "R1", "extras": {"num_envs": 2, "num_steps": 16, "cuda": False}}
    )
    summary = reply["summary"]
    assert (reply["id"], reply["ok"]) == (7, True)
    assert summary["module"] == "cleanrl_worker.algorithms.ppo"
    assert summary["command"][1:4] == ["-P", "-m", "cleanrl_worker.cli"]
    assert summary["settings"]["cuda"] is False
    assert summary["settings"]["target_kl"] is None
    assert summary["settings"]["num_envs"] == 2
    assert summary["tensorboard_dir"] == str(tmp_path / "var" / "trainer" / "runs" / "R1" / "tensorboard")
    assert summary["directories"]["run"] == str(tmp_path / "var" / "trainer" / "runs" / "R1")
    assert summary["environment"] == {
        "id": "CartPole-v1",
        "family": "classic_control",
        "observation_space": "Box(4,) float32",
        "action_space": "Discrete(2)",
        "max_episode_steps": 500,
    }
    assert (summary["backend"], summary["seed"]) == ("numpy", 3)
    assert not (tmp_path / "var").exists(), "a check makes nothing"


@pytest.mark.parametrize(
    ("changes", "error", "sentence", "paths"),
    [
        ({"algo": "nosuch"}, "UnknownName", "No algorithm 'nosuch' in worker 'cleanrl'.", []),
        ({"env_id": "NoSuch-v9"}, "UnknownName", "No environment 'NoSuch-v9'.", ["env_id"]),
        ({"env_id": "../x"}, "ConfigRefused", "env_id: expected an environment id", ["env_id"]),
        ({"env_id": "Pendulum-v1"}, "BadInput", "ppo needs a discrete action space; Pendulum-v1 has Box(1,).",
         ["env_id"]),
        ({"extras": {"learning_rate": "banana"}}, "ConfigRefused", "extras.learning_rate: ", ["extras.learning_rate"]),
        ({"extras": {"nosuch": 1}}, "ConfigRefused", "extras.nosuch: unknown setting of 'ppo'", ["extras.nosuch"]),
        ({"extras": {"num_minibatches": 700}}, "ConfigRefused", "700 equal parts",
         ["num_envs", "num_steps", "num_minibatches"]),
        ({"extras": {"backend": "numpy", "activation": "elu"}}, "ConfigRefused", "activation = tanh and relu only",
         ["backend", "activation"]),
        ({"extras": {"backend": "numpy", "network": "nets:Wide"}}, "ConfigRefused", "not network = nets:Wide",
         ["backend", "network"]),
        ({"env_id": "os:CartPole-v1"}, "BadInput", "the module 'os' is not allowed: its run was not", ["env_id"]),
    ],
)  # fmt: skip
def test_a_bad_config_is_refused_by_the_class_of_its_error(
    changes: dict[str, Any], error: str, sentence: str, paths: list[str]
) -> None:
    reply = ask(ask="check", config=small(**changes))
    assert (reply["id"], reply["ok"], reply["error"]) == (7, False, error)
    assert sentence in reply["message"]
    assert [path for path, _ in reply["problems"]] == paths


def test_an_atari_game_without_its_extra_is_refused_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(family, "find_spec", lambda name: None if name == "ale_py" else find_spec(name))
    reply = ask(ask="check", config=small(env_id="ALE/Breakout-v5"))
    assert reply["error"] == "MissingExtra"
    assert reply["message"] == "'ALE/Breakout-v5' needs the Atari extra: pip install 'mosaic-rl[atari]'."


def test_an_api_key_never_comes_back() -> None:
    reply = ask(ask="check", config=small(extras={"wandb_api_key": "canary-key", "track_wandb": True}))
    assert reply["ok"]
    assert "canary-key" not in json.dumps(reply)


@pytest.mark.parametrize("line", [b"garbage", b"[]", b"3", b'"x"', b"{", b"\xff\xfe", b"[" * 100_000, b"{}", b"null"])
def test_garbage_gets_an_answer_too(line: bytes) -> None:
    reply = answer_line(line, REQUEST_HANDLERS)
    assert reply["ok"] is False
    assert reply["message"]


_keys = st.sampled_from(["algo", "env_id", "seed", "extras", "metadata", "run_id"])
_values = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=4)


@settings(max_examples=100, deadline=None)
@given(
    asked=st.sampled_from(["check", "checkpoint", "environments", "x"]) | _values,
    config=st.dictionaries(_keys, _values | st.dictionaries(st.text(), _values)) | _values,
)
def test_any_request_gets_an_answer(asked: Any, config: Any) -> None:
    line = json.dumps({"id": 1, "ask": asked, "config": config, "path": config, "family": config}).encode()
    reply = answer_line(line, REQUEST_HANDLERS)
    assert reply["ok"] is False or asked == "environments" or "summary" in reply
    assert "The check itself failed" not in reply.get("message", "")


def test_a_broken_environment_does_not_end_the_checker(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: Any) -> Any:
        raise RuntimeError("a bug of a plugin")

    monkeypatch.setattr(checker, "check_request", broken)
    reply = ask(ask="check", config=SMALL)
    assert (reply["ok"], reply["error"]) == (False, "MosaicError")
    assert "RuntimeError: a bug of a plugin" in reply["message"]
    assert "Traceback" in capsys.readouterr().err


def test_environments_and_algorithms_are_listed() -> None:
    rows = ask(ask="environments", family="classic_control")["environments"]
    assert "CartPole-v1" in [row["id"] for row in rows]
    assert ask(ask="environments", family="nosuch")["error"] == "UnknownName"
    reply = ask(ask="algorithms")
    assert reply["algorithms"] == sorted(ALGORITHMS)
    assert reply["schema"]["worker"] == "cleanrl"
    assert ask(ask="ping")["ok"] is True
    assert "Known: algorithms, check, " in ask(ask="nosuch")["message"]


# --- files of weights


@pytest.fixture
def trained(tmp_path: Path) -> RunFolder:
    return train_here(RunFolder(tmp_path / "a run"), small())


def test_a_checkpoint_is_described(trained: RunFolder) -> None:
    result = ask(ask="checkpoint", path=str(trained.last_checkpoint))["checkpoint"]
    assert (result["algo"], result["env_id"], result["seed"], result["step"]) == ("ppo", "CartPole-v1", 3, 64)
    assert result["weights"]["actor.4.weight"] == [2, 64]
    assert inspect_policy(str(trained.path)) == result
    model = next(trained.models.glob("*/*.cleanrl_model"))
    of_model = ask(ask="checkpoint", path=str(model))["checkpoint"]
    assert (of_model["kind"], of_model["algo"], of_model["env_id"]) == ("cleanrl_model", "ppo", "CartPole-v1")
    assert sorted(of_model["weights"]) == sorted(result["weights"])


def test_a_model_file_without_a_run_is_described_by_its_keys(trained: RunFolder, tmp_path: Path) -> None:
    lone = tmp_path / "elsewhere" / "ppo.cleanrl_model"
    lone.parent.mkdir()
    lone.write_bytes(next(trained.models.glob("*/*.cleanrl_model")).read_bytes())
    torch.save(torch.load(lone, weights_only=True), lone)
    result = inspect_policy(str(lone))
    assert (result["algo"], result["env_id"]) == ("ppo", None)
    assert "critic.0.bias" in result["weights"]


def test_a_lone_model_file_of_ours_states_where_it_comes_from(trained: RunFolder, tmp_path: Path) -> None:
    """R8.1: torch ignores what it states."""
    checkpoint = inspect_policy(str(trained.last_checkpoint))
    lone = tmp_path / "any name.pt"
    lone.write_bytes(next(trained.models.glob("*/*.cleanrl_model")).read_bytes())
    result = inspect_policy(str(lone))
    assert {**checkpoint, "kind": "cleanrl_model", "path": str(lone)} == result
    for weights_only, mmap in ((True, False), (True, True), (False, False)):
        weights = torch.load(lone, weights_only=weights_only, mmap=mmap)
        assert {name: list(array.shape) for name, array in weights.items()} == result["weights"]


@pytest.mark.parametrize(
    "change",
    [
        {"facts": {"algorithm": ["ppo"], "config": {}}},
        {"facts": {"algorithm": "ppo", "config": {"env_id": {}}}},
        {"arrays": {"wrapper.0.mean": {"dtype": "O", "shape": [1], "hex": "00" * 8}}},
        {"arrays": {"wrapper.0.mean": {"dtype": "<f8", "shape": [10**9], "hex": "00" * 8}}},
        {"arrays": {"wrapper.0.mean": {"dtype": "<f8", "shape": [1], "hex": 5}}},
        {"manifest": []},
        {"step": "1"},
        [],
        "no JSON",
    ],
)
def test_what_a_model_file_of_others_states_is_checked(trained: RunFolder, tmp_path: Path, change: Any) -> None:
    """F25: the preview of a policy."""
    valid = json.loads(format_metadata(load_checkpoint(trained.last_checkpoint)))
    text = change if isinstance(change, str) else json.dumps({**valid, **change} if change else change)
    save_state_dict(tmp_path / "x.pt", {"actor.0.weight": np.zeros((2, 2), np.float32)}, text)
    with pytest.raises(CheckpointDamaged, match=r"The metadata of .* is damaged"):
        inspect_policy(str(tmp_path / "x.pt"))


class Canary:
    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.path,)


@pytest.mark.parametrize("protocol", [0, 2, 4])
def test_a_model_file_that_would_run_code_is_refused_and_runs_none(tmp_path: Path, protocol: int) -> None:
    """F25: the preview of a policy."""
    canary, model = tmp_path / "canary", tmp_path / "ppo.cleanrl_model"
    with zipfile.ZipFile(model, "w") as archive:
        archive.writestr("archive/data.pkl", pickle.dumps({"a.weight": Canary(canary)}, protocol))
    with pytest.raises(BadInput, match="contains more than weights"):
        inspect_policy(str(model))
    assert not canary.exists()


def test_damaged_files_are_refused(trained: RunFolder, tmp_path: Path) -> None:
    model = next(trained.models.glob("*/*.cleanrl_model"))
    complete = model.read_bytes()
    for part in (b"", complete[:1], complete[: len(complete) // 2], complete[:-1], b"no zip at all"):
        model.write_bytes(part)
        with pytest.raises(CheckpointDamaged):
            inspect_policy(str(model))
    (trained.checkpoint(64) / "state.npz").write_bytes(b"")
    with pytest.raises(CheckpointDamaged, match="is damaged"):
        inspect_policy(str(trained.last_checkpoint))
    with pytest.raises(BadInput, match="neither a checkpoint nor a run folder"):
        inspect_policy(str(tmp_path / "nowhere"))


def test_a_payload_is_accepted_as_a_config() -> None:
    payload = {
        "metadata": {"worker": {"id": "cleanrl", "config": SMALL}},
        "artifacts": {"tensorboard": {"enabled": False}},
    }
    summary = ask(ask="check", config={**payload})
    assert summary["ok"] is False, "64 steps are less than one rollout"
    payload["metadata"]["worker"]["config"] = small()  # type: ignore[index]
    assert ask(ask="check", config=payload)["summary"]["tensorboard_dir"] is None
    assert checker.check_request(parse_request(payload)).to_json()["mode"] == "train"


def test_images_for_an_algorithm_of_vectors_and_rounded_steps_are_warned_of() -> None:
    """Before the run starts: CarRacing's pixels as one vector, and 512 steps of the 1,000 requested."""

    class Pixels(gymnasium.Env[Any, Any]):
        observation_space = gymnasium.spaces.Box(0, 255, (96, 96, 3), np.uint8)
        action_space = gymnasium.spaces.Discrete(2)

    (warning,) = observation_warnings(Pixels())
    assert "flattened to one long vector, which is hard to learn from." in warning
    config = load_algorithm("ppo").Config
    assert step_warnings(config(total_timesteps=1000)) == [
        "total_timesteps: 1,000 is not a multiple of the 512 steps of an update, so 512 steps are trained."
    ]
    assert step_warnings(config(total_timesteps=1024)) == []
    for name in ("dqn", "sac_continuous_action"):
        replay = load_algorithm(name).Config
        assert step_warnings(replay(total_timesteps=103, num_envs=4)) == [
            "total_timesteps: 103 is not a multiple of the 4 environments, so 100 steps are trained."
        ]
        assert step_warnings(replay(total_timesteps=103)) == []
    assert step_warnings(config(total_timesteps=100_000)) == [], "160 steps less"
    assert step_warnings(config()) == [], "the defaults are CleanRL's"
