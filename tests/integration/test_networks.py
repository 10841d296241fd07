"""Networks that the settings give: their sizes, their activation function, and one of the user's own."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.helpers.algorithm_cases import assert_same_checkpoint, latest_checkpoint, train_run
from tests.helpers.commands import mosaic as command

import mosaic
from cleanrl_worker.learners.conv_network import ConvNetworkSizes
from cleanrl_worker.registry import load_algorithm
from cleanrl_worker.shell.checker import check_request
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import MODULES_VARIABLE, WORKSPACE_VARIABLE, Workspace

OWN = """
import torch
from torch import nn


class Residual(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.first, self.second = nn.Linear(inputs, 12), nn.Linear(12, 12)

    def forward(self, observations):
        hidden = torch.relu(self.first(observations))
        return hidden + torch.relu(self.second(hidden))


class Scalar(Residual):
    def forward(self, observations):
        return super().forward(observations).sum(1)


class WithBuffers(Residual):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.norm = nn.BatchNorm1d(inputs)


class Detached(Residual):
    def forward(self, observations):
        return super().forward(observations).detach()


class Unused(Residual):
    def forward(self, observations):
        return self.first(observations)


class Frozen(Residual):
    def __init__(self, inputs):
        super().__init__(inputs)
        self.first.requires_grad_(False)


class Narrow(nn.Module):
    def __init__(self, inputs):
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, observations):
        return self.layer(observations)


class Frames(nn.Module):
    def __init__(self, shape):
        super().__init__()
        self.layers = nn.Sequential(nn.Conv2d(shape[0], 16, 8, 8), nn.ReLU(), nn.Flatten(), nn.Linear(1600, 8))

    def forward(self, images):
        return torch.relu(self.layers(images))


class Plain:
    pass
"""
ROLLOUT = {"env_id": "CartPole-v1", "num_envs": 2, "num_steps": 16, "total_timesteps": 128, "checkpoint_every": 32}
VALUES = {"env_id": "CartPole-v1", "total_timesteps": 128, "learning_starts": 20, "buffer_size": 100, "batch_size": 8}
CONTROL = {**VALUES, "env_id": "Pendulum-v1"}
CASES: dict[str, dict[str, Any]] = {
    "ppo": ROLLOUT, "ppo_continuous_action": {**ROLLOUT, "env_id": "Pendulum-v1", "num_minibatches": 4},
    "pqn": ROLLOUT, "dqn": VALUES, "c51": VALUES,
    "sac_continuous_action": CONTROL, "td3_continuous_action": CONTROL, "ddpg_continuous_action": CONTROL,
}  # fmt: skip
FRAME_ALGORITHMS = ("dqn_atari", "c51_atari", "rainbow_atari", "sac_atari", "ppo_atari", "ppo_atari_lstm")
NETWORKS: dict[str, dict[str, Any]] = {
    "three-layers": {"hidden_sizes": (12, 10, 8)},
    "elu": {"hidden_sizes": (12,), "activation": "elu"},
    "own": {"network": "my_nets:Residual"},
}


@pytest.fixture
def own_module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of the module `my_nets`, which this process may import."""
    (tmp_path / "my_nets.py").write_text(OWN)
    monkeypatch.setenv(MODULES_VARIABLE, "my_nets")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "my_nets", raising=False)
    return tmp_path


@pytest.mark.parametrize("network", NETWORKS)
@pytest.mark.parametrize("name", CASES)
def test_a_stopped_training_resumes_as_if_it_had_not_been_stopped_and_its_policy_acts(
    name: str, network: str, own_module: Path
) -> None:
    module = load_algorithm(name)
    config = module.Config(**CASES[name], **NETWORKS[network], cuda=False)
    straight, stopped = own_module / "straight", own_module / "stopped"
    train_run(straight, name, config)
    train_run(stopped, name, config, stop_at=64)
    assert latest_checkpoint(stopped).step < 128
    train_run(stopped, name, config, latest_checkpoint(stopped))
    checkpoint = latest_checkpoint(stopped)
    assert_same_checkpoint(checkpoint, latest_checkpoint(straight))
    assert checkpoint.facts["backend"] == ("numpy" if network == "three-layers" else "torch")

    observations = np.random.default_rng(1).standard_normal((5, 4 if "CartPole" in config.env_id else 3), np.float32)
    actions = module.load_policy(checkpoint).act(observations, True, np.random.default_rng(1))
    assert len(actions) == 5
    state = module.state_dict_of(checkpoint)
    assert state
    if network == "three-layers":
        weights = [part for key, part in checkpoint.weights.items() if key.endswith("weight")]
        assert {12, 10, 8} <= {len(part) for part in weights}


@pytest.mark.parametrize("network", [{"hidden_sizes": (16, 8), "activation": "silu"}, {"network": "my_nets:Frames"}])
@pytest.mark.parametrize("name", FRAME_ALGORITHMS)
def test_what_sees_frames_is_that_of_the_settings(
    name: str, network: dict[str, Any], own_module: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ale_py")
    module = load_algorithm(name)
    monkeypatch.setattr(module, "SIZES", ConvNetworkSizes((4, 4, 4)))
    rollout = {"num_envs": 2, "num_steps": 8, "num_minibatches": 2, "total_timesteps": 32}
    replay = {"total_timesteps": 40, "learning_starts": 12, "buffer_size": 100, "batch_size": 4}
    settings = rollout if name.startswith("ppo") else replay
    if name == "rainbow_atari" and "network" in network:
        with pytest.raises(ValueError, match="takes no network of your own"):
            module.Config(**network)
        return
    config = module.Config(**settings, env_id="BreakoutNoFrameskip-v4", **network, cuda=False)
    train_run(tmp_path / "straight", name, config)
    train_run(tmp_path / "stopped", name, config, stop_at=20)
    train_run(tmp_path / "stopped", name, config, latest_checkpoint(tmp_path / "stopped"))
    checkpoint = latest_checkpoint(tmp_path / "stopped")
    assert_same_checkpoint(checkpoint, latest_checkpoint(tmp_path / "straight"))
    assert {16, 8} <= {len(part) for part in checkpoint.weights.values()}
    images = np.zeros((2, 4, 84, 84), np.uint8)
    assert len(module.load_policy(checkpoint).act(images, True, np.random.default_rng(1))) == 2


def test_a_network_of_256_units_is_trained_resumed_and_evaluated_from_command_line_and_python(
    workspace: Workspace, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.14: network size and activation."""
    monkeypatch.setenv(WORKSPACE_VARIABLE, str(workspace.root))
    refused = command(workspace, "train", "ppo", "--hidden-sizes", "256,,x")
    assert refused.code == 2
    assert "--hidden-sizes must be 1 to 8 whole numbers from 1 to 8192, separated by commas" in refused.err
    settings = ("--env-id", "CartPole-v1", "--total-timesteps", "1024", "--hidden-sizes", "256,256")
    done = command(workspace, "train", "ppo", *settings, "--activation", "relu", "--json")
    assert done.code == 0, done.err
    by_command = mosaic.runs()[0]
    by_python = mosaic.train("ppo", "CartPole-v1", total_timesteps=1024, hidden_sizes=[256, 256], activation="relu")
    by_python.wait()
    first, second = by_command.load_policy(), by_python.load_policy()
    observations = np.random.default_rng(1).standard_normal((64, 4), np.float32)
    np.testing.assert_array_equal(first.act(observations), second.act(observations))

    by_python.resume(total_timesteps=2048).wait()
    checkpoint = latest_checkpoint(by_python.folder)
    assert (checkpoint.step, checkpoint.weights["actor.2.weight"].shape) == (2048, (256, 256))
    assert len(by_python.evaluate(episodes=2).returns) == 2


def test_a_network_of_ones_own_is_found_in_the_callers_folder(
    workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.14: a network of the user's own."""
    (tmp_path / "my_nets.py").write_text(OWN)
    script = (
        "import mosaic\n"
        "run = mosaic.train('ppo', 'CartPole-v1', total_timesteps=1024, network='my_nets:Residual', cuda=False)\n"
        "assert len(run.wait().evaluate(episodes=2).returns) == 2\n"
        "assert run.load_policy().act([0.0, 0.0, 0.0, 0.0]) in (0, 1)\n"
        "print(run.settings['network'])\n"
    )
    monkeypatch.setenv(WORKSPACE_VARIABLE, str(workspace.root))
    done = subprocess.run([sys.executable, "-c", script], cwd=tmp_path, capture_output=True, text=True, timeout=110)
    assert done.returncode == 0, done.stderr
    assert done.stdout.endswith("my_nets:Residual\n")


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"network": "my_nets:Missing"}, "No Module 'Missing' in module 'my_nets'"),
        ({"network": "my_nets:Plain"}, "is not a subclass of torch.nn.modules.module.Module"),
        ({"network": "my_nets:Scalar"}, r"gives outputs \[2\] for 2 inputs; expected outputs \[2, features\]"),
        ({"network": "my_nets:Narrow"}, "cannot be created with 4 and applied"),
        ({"network": "my_nets:WithBuffers"}, "has buffers .*running_mean.* which a checkpoint would lack"),
        ({"network": "my_nets:Detached"}, r"would not be trained.* \(first.weight, first.bias, second.weight\)"),
        ({"network": "my_nets:Unused"}, r"would not be trained.* \(second.weight, second.bias\)"),
        ({"network": "my_nets:Frozen"}, r"would not be trained.* \(first.weight, first.bias\)"),
        ({"network": "other:Residual"}, "the module 'other' is not allowed"),
        ({"network": "my_nets:Residual", "backend": "numpy"}, "backend = numpy computes hidden layers with"),
        ({"activation": "gelu", "backend": "numpy"}, "not activation = gelu"),
        *(
            ({"network": text}, "network: expected a class as module:Class, such as my_nets:Wide")
            for text in ("my_nets", "my_nets:", ":Residual", "my nets:Residual", "my_nets:Residual(1)", "a:b:c", "a.:B")
        ),
        ({"hidden_sizes": []}, "hidden_sizes"),
        ({"hidden_sizes": [64] * 9}, "hidden_sizes"),
        ({"hidden_sizes": [64, 0]}, "hidden_sizes"),
        ({"hidden_sizes": "64,64"}, "hidden_sizes"),
        ({"activation": "sine"}, "activation"),
    ],
)
def test_what_does_not_fit_is_refused_before_anything_starts(
    settings: dict[str, Any], message: str, own_module: Path
) -> None:
    with pytest.raises(MosaicError, match=message):
        check_request(parse_request({"algo": "ppo", "env_id": "CartPole-v1", "algo_params": settings}))
