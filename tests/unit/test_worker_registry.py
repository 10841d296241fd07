from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete, MultiDiscrete, Text, Tuple
from pydantic import ValidationError
from tests.helpers.cli_trainer import call

from cleanrl_worker import registry
from cleanrl_worker.algorithms import base
from cleanrl_worker.algorithms.settings import RolloutConfig
from cleanrl_worker.learners.devices import choose_backend
from cleanrl_worker.registry import ALGORITHMS, AlgorithmSpec
from mosaic.base.algorithm_schema import get_algorithm

VECTOR = Box(-1, 1, (4,), np.float32)
IMAGE = Box(0, 255, (84, 84, 3), np.uint8)


def make_env(actions: gymnasium.Space[Any], observations: gymnasium.Space[Any] = VECTOR) -> Any:
    env: Any = gymnasium.Env()
    env.action_space, env.observation_space = actions, observations
    return env


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_algorithm_offers_the_same_names_and_explains_itself(name: str) -> None:
    module = registry.load_algorithm(name)
    assert name == module.NAME
    for offered in ("Config", "Agent", "check", "train", "load_policy", "state_dict_of"):
        assert hasattr(module, offered), offered
    config = module.Config()
    assert config.exp_name == name
    page = get_algorithm(name).help_page()
    for needed in ("# ", "Recommended timesteps", "https://"):
        assert needed in page, needed


@pytest.mark.parametrize("name", ALGORITHMS)
def test_every_default_is_valid_where_it_is_stated(name: str) -> None:
    config = registry.load_algorithm(name).Config
    assert config.model_validate(config().model_dump()) == config()


TORCH_ONLY = [name for name in ALGORITHMS if not registry.load_algorithm(name).Config.has_kernels]


@pytest.mark.parametrize("name", [name for name in TORCH_ONLY if name != "ppo_atari_multigpu"])
def test_what_only_torch_computes_takes_auto_and_torch_and_refuses_numpy_with_the_reason(name: str) -> None:
    kind = registry.load_algorithm(name).Config
    assert kind().backend == "auto"
    for backend in ("auto", "torch"):
        assert base.resolve_backend(kind(backend=backend)) == "torch"
    if hasattr(kind, "kernel_units"):
        assert choose_backend(kind(cuda=False, hidden_sizes=(8,))) == "torch"
    with pytest.raises(ValidationError, match="numpy has no kernels for this algorithm, so torch computes it"):
        kind(backend="numpy")
    (field,) = (field for field in get_algorithm(name).fields if field.name == "backend")
    assert (field.default, field.constraints) == ("auto", {"choices": ["auto", "torch"]})


def test_every_algorithm_for_frames_or_with_quantiles_or_memory_is_computed_by_torch_alone() -> None:
    frames = {name for name, spec in ALGORITHMS.items() if spec.is_for_games}
    assert set(TORCH_ONLY) == frames | {"qrdqn", "tqc", "ppo_lstm", "ppo_trxl"}


def test_a_config_can_change_inherited_defaults_and_only_those() -> None:
    class Config(RolloutConfig, defaults={"env_id": "A-v0", "total_timesteps": 512, "exp_name": "a", "num_envs": 2}):
        pass

    assert (Config().num_envs, Config().num_steps) == (2, 128)
    assert RolloutConfig.model_fields["num_envs"].default == 4
    with pytest.raises(ValidationError, match="less than or equal to 4096"):
        Config(num_envs=5000)
    with pytest.raises(TypeError, match="there is no setting 'num_env' to give a default"):
        type("Misspelled", (RolloutConfig,), {"__module__": __name__}, defaults={"num_env": 2})


def test_what_fits_follows_from_the_table(monkeypatch: pytest.MonkeyPatch) -> None:
    discrete = ["ppo", "dqn", "c51", "pqn", "qrdqn", "a2c", "ppo_lstm", "ppo_trxl"]
    assert base.compatible_algorithms(make_env(Discrete(2))) == discrete
    continuous = base.compatible_algorithms(make_env(Box(-1, 1, (2,), np.float32)))
    assert continuous[:2] == ["ppo_continuous_action", "rpo_continuous_action"]
    assert "sac_continuous_action" in continuous
    assert "sac_continuous_action" not in base.compatible_algorithms(make_env(Box(-np.inf, np.inf, (2,), np.float32)))
    assert base.compatible_algorithms(make_env(MultiDiscrete([2, 2]))) == ["ppo", "a2c", "ppo_lstm", "ppo_trxl"]
    for actions in (Tuple((Discrete(2), Discrete(2))), Box(0, 3, (2,), np.int64), Box(-1, 1, (0,), np.float32)):
        assert base.compatible_algorithms(make_env(actions)) == []
    assert base.compatible_algorithms(make_env(Discrete(2), Text(5))) == []
    # Algorithms for Atari frames fit only Atari games; other images become vectors.
    monkeypatch.setitem(ALGORITHMS, "image_algorithm", AlgorithmSpec(("Discrete",), ("Box",), is_for_atari=True))
    image = make_env(Discrete(2), IMAGE)
    assert base.compatible_algorithms(image) == discrete
    monkeypatch.setattr(base, "family_of", lambda env: "atari")
    assert "image_algorithm" in base.compatible_algorithms(image)
    assert "ppo" not in base.compatible_algorithms(image)


def test_a_refusal_names_what_fits_if_anything_does() -> None:
    """R3.8: harmless warnings; odd spaces."""
    cartpole = gymnasium.make("CartPole-v1")
    assert str(
        base.unsupported_actions_error("sac_continuous_action", "a continuous (Box) action space", cartpole)
    ) == (
        "sac_continuous_action needs a continuous (Box) action space; CartPole-v1 has Discrete(2). "
        "These fit: ppo, dqn, c51, pqn, qrdqn, a2c, ppo_lstm, ppo_trxl."
    )
    cartpole.action_space = MultiDiscrete([2, 2])
    refusal = str(base.unsupported_actions_error("dqn", "a discrete action space", cartpole))
    assert refusal.endswith("CartPole-v1 has MultiDiscrete([2 2]). These fit: ppo, a2c, ppo_lstm, ppo_trxl.")
    cartpole.action_space = Tuple((Discrete(2), Discrete(2)))
    refusal = str(base.unsupported_actions_error("ppo", "a discrete action space", cartpole))
    assert refusal.endswith("No algorithm of this worker supports it.")


def test_the_command_line_lists_what_each_is_for() -> None:
    message = call(None, "algorithms")
    lines = {line.split()[0]: line.split() for line in message.out.splitlines()}
    assert lines["NAME"][:6] == ["NAME", "ACTIONS", "SEES", "COMPUTES", "WITH", "WHAT"]
    assert ALGORITHMS.keys() <= lines.keys()
    assert lines["dqn"][1:5] == ["discrete", "vectors", "numpy,", "torch"]
    assert lines["rpo_continuous_action"][1:4] == ["continuous", "vectors,", "images"]
