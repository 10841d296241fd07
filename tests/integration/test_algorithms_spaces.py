"""All kinds of spaces: what fits is trained on, resumed, evaluated and saved; the rest is refused."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiBinary, MultiDiscrete, Sequence, Text, Tuple
from tests.helpers.worker_runs import events, train_here

from cleanrl_worker.evaluation.loading import load_for_evaluation
from cleanrl_worker.registry import ALGORITHMS, load_algorithm
from cleanrl_worker.shell.checker import check_request, format_summary
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.errors import BadInput
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.play import ActorChoice
from mosaic.worker.actors import Seat, Turn, make_actor
from mosaic.worker.checkpoints import last_good_checkpoint
from mosaic.worker.envs.spaces import flat_size

ENV_ID = "Shown-v0"
SHOWN: dict[str, gymnasium.Space[Any]] = {
    "one number": Box(-1, 1, (), np.float64),
    "whole numbers": Box(-5, 5, (4,), np.int64),
    "a small image": Box(0, 255, (4, 4, 3), np.uint8),
    "a state": Discrete(6, start=3),
    "switches": MultiBinary((2, 2)),
    "dials": MultiDiscrete([3, 2, 4], start=[1, 0, -2]),
    "a pair": Tuple((Discrete(4), Box(-1, 1, (2,), np.float32))),
    "a dictionary": Dict({"place": Box(-1, 1, (2,), np.float64), "door": Discrete(2)}),
    "a dictionary with words": Dict({"image": Box(0, 255, (3, 3), np.uint8), "mission": Text(9)}),
}
CHOICES, FORCES = Discrete(3, start=-1), Box(-2, 1, (2, 1), np.float32)
VECTOR_ALGORITHMS = [
    name for name, entry in ALGORITHMS.items() if not entry.is_for_games and not entry.has_several_agents
]
TINY = {
    "num_envs": 2, "num_steps": 8, "num_minibatches": 2, "update_epochs": 1, "n_iteration": 2, "buffer_size": 40,
    "batch_size": 4, "train_frequency": 4, "target_network_frequency": 8, "checkpoint_every": 16, "anneal_lr": False,
    "learning_starts": 16, "trxl_dim": 8,
}  # fmt: skip


class SampleEnv(gymnasium.Env[Any, Any]):
    """Observations are samples of its space; large actions are rewarded."""

    def __init__(self, observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> None:
        self.observation_space, self.action_space = observations, actions

    def _show(self) -> Any:
        self.observation_space.seed(int(self.np_random.integers(2**31)))
        return self.observation_space.sample()

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._show(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        return self._show(), float(np.sum(action)), bool(self.np_random.random() < 0.2), False, {}


@contextmanager
def register_env(observations: gymnasium.Space[Any], actions: gymnasium.Space[Any]) -> Iterator[str]:
    spaces = {"observations": observations, "actions": actions}
    gymnasium.register(ENV_ID, entry_point=SampleEnv, max_episode_steps=6, kwargs=spaces)  # type: ignore[arg-type]
    try:
        yield ENV_ID
    finally:
        del gymnasium.registry[ENV_ID]


def actions_of(name: str) -> gymnasium.Space[Any]:
    return CHOICES if "Discrete" in ALGORITHMS[name].action_spaces else FORCES


def config_of(name: str, env_id: str, steps: int = 32) -> dict[str, Any]:
    known = load_algorithm(name).Config.model_fields
    settings = {key: value for key, value in TINY.items() if key in known}
    if "local_num_envs" in known:
        settings["local_num_envs"] = settings.pop("num_envs") // 2
    return {"algo": name, "env_id": env_id, "total_timesteps": steps, "seed": 3, "extras": settings}


def assert_lives(name: str, env_id: str, place: Path) -> None:
    """Check that it trains, resumes exactly, and is evaluated from its checkpoint and from its model."""
    uninterrupted = train_here(RunFolder(place / "straight"), config_of(name, env_id))
    folder = train_here(RunFolder(place / "run"), config_of(name, env_id, steps=16))
    train_here(folder, config_of(name, env_id), is_resume=True)
    assert events(folder, "warning") == []
    first, second = last_good_checkpoint(uninterrupted), last_good_checkpoint(folder)
    assert first is not None
    assert second is not None
    assert first.step == second.step == 32
    if "end_e" not in first.facts["config"]:  # epsilon follows the length
        assert all((first.weights[key] == second.weights[key]).all() for key in first.weights)
    extras = {"mode": "policy_eval", "policy_path": str(folder.path), "eval_episodes": 2}
    for is_drawn in (False, True):
        played = train_here(
            RunFolder(place / f"played {is_drawn}"), {"extras": {**extras, "eval_stochastic": is_drawn}}
        )
        assert json.loads(played.eval_summary.read_text())["episodes"] == 2
    (model,) = folder.models.glob("*/*.cleanrl_model")
    assert load_for_evaluation(parse_request({"extras": {**extras, "policy_path": str(model)}})).algo == name


@pytest.mark.parametrize("name", VECTOR_ALGORITHMS)
def test_all_numeric_observation_spaces_are_supported(name: str, tmp_path: Path) -> None:
    for shown, observations in SHOWN.items():
        with register_env(observations, actions_of(name)) as env_id:
            folder = train_here(RunFolder(tmp_path / shown), config_of(name, env_id))
        checkpoint = last_good_checkpoint(folder)
        assert checkpoint is not None
        assert checkpoint.step == 32
        assert checkpoint.facts["shape"]["observation_size"] == flat_size(observations)


@pytest.mark.parametrize(("shown", "name"), zip(SHOWN, VECTOR_ALGORITHMS, strict=False))
def test_runs_with_any_observation_space_are_resumed_and_evaluated(shown: str, name: str, tmp_path: Path) -> None:
    with register_env(SHOWN[shown], actions_of(name)) as env_id:
        assert_lives(name, env_id, tmp_path / "a user's runs")


@pytest.mark.parametrize("env_id", ["FrozenLake-v1", "Taxi-v4", "Blackjack-v1", "MiniGrid-Empty-5x5-v0"])
def test_discrete_tuple_and_dict_observations_are_supported(env_id: str, tmp_path: Path) -> None:
    if env_id.startswith("MiniGrid"):
        pytest.importorskip("minigrid")
    assert_lives("dqn" if env_id == "FrozenLake-v1" else "ppo", env_id, tmp_path)


def test_the_dry_run_names_ignored_parts_of_observations() -> None:
    with register_env(SHOWN["a dictionary with words"], CHOICES) as env_id:
        summary = check_request(parse_request(config_of("ppo", env_id)))
    message = "The agent will not see 'mission' of Shown-v0's observations: only numbers are supported."
    assert summary.warnings == (message,)
    assert message in format_summary(summary)
    assert summary.environment.observation_space == "Dict(image: Box(3, 3) uint8, mission: Text)"


def refusal(name: str, env_id: str) -> str:
    with pytest.raises(BadInput) as refused:
        check_request(parse_request(config_of(name, env_id)))
    return str(refused.value)


@pytest.mark.parametrize(
    ("actions", "has"),
    [
        (MultiDiscrete([3, 2]), "MultiDiscrete([3 2])"),
        (MultiBinary(4), "MultiBinary(4)"),
        (Tuple((Discrete(2), Box(-1, 1, (1,)))), "Tuple(Discrete(2), Box(1,) float32)"),
        (Dict({"left": Discrete(2)}), "Dict(left: Discrete(2))"),
        (Box(0, 3, (2,), np.int64), "Box(2,) int64"),
    ],
    ids=str,
)
@pytest.mark.parametrize("name", VECTOR_ALGORITHMS)
def test_unsupported_action_spaces_are_refused(name: str, actions: Any, has: str) -> None:
    needed = "discrete action space" if actions_of(name) is CHOICES else "continuous (Box) action space"
    if name in ("a2c", "ppo_lstm"):
        needed = "discrete or continuous (Box) action space"
    fitting = [known for known, entry in ALGORITHMS.items() if type(actions).__name__ in entry.action_spaces]
    with register_env(SHOWN["a pair"], actions) as env_id:
        if name in fitting and has != "Box(2,) int64":
            assert check_request(parse_request(config_of(name, env_id))).warnings == ()
            return
        message = refusal(name, env_id)
    fits = (
        "These fit: ppo, a2c, ppo_lstm, ppo_trxl."
        if has.startswith("Multi")
        else "No algorithm of this worker supports it."
    )
    assert message == f"{name} needs a {needed}; Shown-v0 has {has}. {fits}"


@pytest.mark.parametrize(
    "actions",
    [MultiDiscrete(np.array([[3, 2], [4, 2]]), start=np.array([[1, 0], [-2, 5]])), MultiBinary(3), MultiDiscrete([5])],
    ids=str,
)
def test_several_choices_at_once_are_trained_resumed_evaluated_and_played(actions: Any, tmp_path: Path) -> None:
    with register_env(SHOWN["a state"], actions) as env_id:
        assert_lives("ppo", env_id, tmp_path)
        seat = Seat(env_id, "*", SHOWN["a state"], actions)
        for is_drawn in (False, True):
            actor = make_actor(ActorChoice.parse(f"policy:{tmp_path / 'run'}", {"stochastic": is_drawn}), seat)
            actor.start_episode(1)
            assert actions.contains(actor.act(Turn("*", 0, np.int64(4), {})))
        with pytest.raises(BadInput, match="A human cannot act in Shown-v0: its actions are Multi"):
            make_actor(ActorChoice.parse("human"), seat)
        in_torch = {**config_of("ppo", env_id), "algo_params": {"backend": "torch", "cuda": False}}
        train_here(RunFolder(tmp_path / "torch"), in_torch)


@pytest.mark.parametrize("highest", [np.inf, float(np.finfo(np.float32).max)])
def test_unbounded_actions_fit_only_algorithms_without_bounds(highest: float) -> None:
    bounds = np.array([1, highest], np.float32)
    unbounded = Box(-bounds, bounds)
    with register_env(SHOWN["a pair"], unbounded) as env_id:
        for name in ("sac_continuous_action", "td3_continuous_action", "ddpg_continuous_action"):
            assert refusal(name, env_id) == (
                f"{name} needs a continuous (Box) action space with bounds; Shown-v0 has Box(2,) without bounds. "
                "These fit: ppo_continuous_action, rpo_continuous_action, a2c, ppo_lstm."
            )
        for name in ("ppo_continuous_action", "rpo_continuous_action"):
            assert check_request(parse_request(config_of(name, env_id))).to_json()["facts"]["actions"] == [2]


@pytest.mark.parametrize("name", VECTOR_ALGORITHMS)
def test_observations_without_numbers_or_with_too_many_are_refused(name: str) -> None:
    for observations, message in (
        (
            Sequence(Discrete(3)),
            f"{name} needs observations that can be flattened to a vector; Shown-v0 has Sequence. ",
        ),
        (Discrete(10**9), f"{name} flattens observations to a vector; that of Shown-v0 would have 1,000,000,000 "),
    ):
        with register_env(observations, actions_of(name)) as env_id:
            assert refusal(name, env_id).startswith(message)


@pytest.mark.parametrize("name", [name for name, entry in ALGORITHMS.items() if not entry.has_several_agents])
def test_no_algorithm_is_suggested_that_would_refuse(name: str) -> None:
    """Every algorithm with every combination of spaces."""
    shown = [*SHOWN.values(), Box(0, 255, (84, 84, 3), np.uint8), Sequence(Discrete(3))]
    done: list[gymnasium.Space[Any]] = [CHOICES, FORCES, MultiBinary(2), Box(-np.inf, np.inf, (2,), np.float32)]
    seen = set()
    for observations in shown:
        for actions in done:
            with register_env(observations, actions) as env_id:
                try:
                    check_request(parse_request(config_of(name, env_id)))
                except BadInput as refused:
                    _, _, names = str(refused).partition(": ")
                    for suggested in names.rstrip(".").split(", ") if names else ():
                        seen.add(suggested)
                        check_request(parse_request(config_of(suggested, env_id)))
    assert seen or name in ("a2c", "ppo_lstm"), "something was suggested, except by those that fit all of them"


def test_the_refusal_of_continuous_control_in_cartpole_reads_as_promised() -> None:
    assert refusal("sac_continuous_action", "CartPole-v1") == (
        "sac_continuous_action needs a continuous (Box) action space; CartPole-v1 has Discrete(2). "
        "These fit: ppo, dqn, c51, pqn, qrdqn, a2c, ppo_lstm, ppo_trxl."
    )


def test_image_algorithms_are_suggested_for_images_and_others_warn() -> None:
    pytest.importorskip("ale_py")
    fit = "These fit: ppo_atari, ppo_atari_lstm, dqn_atari, c51_atari, rainbow_atari, sac_atari"
    assert refusal("sac_continuous_action", "PongNoFrameskip-v4").partition("(6). ")[2].startswith(fit)
    (warning,) = check_request(parse_request(config_of("ppo", "PongNoFrameskip-v4"))).warnings
    assert fit in warning
    assert check_request(parse_request(config_of("ppo_atari", "PongNoFrameskip-v4"))).warnings == ()
