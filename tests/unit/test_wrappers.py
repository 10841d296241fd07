"""Wrappers that a config names: their text, what they change, and what is refused."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from gymnasium.wrappers import FrameStackObservation
from tests.helpers import image_env  # noqa: F401 (registers Spot-v0)

from cleanrl_worker.environments.vector import EpisodeEnd, VectorEnvs
from mosaic.contracts.arguments import parse_wrapper
from mosaic.contracts.errors import BadInput
from mosaic.contracts.payload import Imports
from mosaic.contracts.setting_field import SettingField
from mosaic.worker.envs import make
from mosaic.worker.envs.user_modules import allow_imports
from mosaic.worker.envs.wrappers import NAMED_WRAPPERS, WrappedEnv, try_wrapped

FIELD = SettingField("wrappers", "wrappers", is_optional=True)


def test_a_wrapper_has_named_arguments_that_are_plain_values() -> None:
    assert parse_wrapper("frame-stack") == ("frame-stack", {})
    spec = " my.wrappers:Sticky(probability=0.25, names=['a', \"b,)\"], is_on=True, limits={'x': (1, None)}) "
    arguments = {"probability": 0.25, "names": ["a", "b,)"], "is_on": True, "limits": {"x": (1, None)}}
    assert parse_wrapper(spec) == ("my.wrappers:Sticky", arguments)
    assert parse_wrapper("a(x=y, on=false, size=8x8)").arguments == {"x": "y", "on": False, "size": "8x8"}
    bad_ones = ("", "a b", "a(1)", "a(**{})", "a(x=__import__('os'))", "a(x=1", "a(x=1)(y=2)", "a:b:c", "a(x")
    for bad in (*bad_ones, "a(x=1, x=2)"):
        with pytest.raises(ValueError, match=r"frame-stack\(stack_size=4\)"):
            parse_wrapper(bad)


def test_a_list_is_split_at_its_commas_outside_of_arguments() -> None:
    texts = ["frame-stack(stack_size=2)", "my:W(a=[1, 2], b=',(')", "flatten"]
    assert FIELD.parse(", ".join(texts)) == texts
    assert FIELD.parse("") is None
    with pytest.raises(BadInput, match="--wrapper must be wrappers such as frame-stack"):
        FIELD.parse("frame-stack(4)", "--wrapper")


def test_the_first_wrapper_is_the_innermost_one() -> None:
    env = make("CartPole-v1", wrappers=["frame-stack(stack_size=3)", "flatten"])
    assert env.observation_space.shape == (12,)
    assert isinstance(env, WrappedEnv)
    assert isinstance(getattr(env.env, "env", None), FrameStackObservation)
    env.close()


def test_an_episode_is_reported_by_the_rewards_of_the_environment_itself() -> None:
    """The learner gets the scaled ones, whether it asks for them by rollout or by step."""
    for is_rollout in (True, False):
        envs = VectorEnvs(
            lambda: make("CartPole-v1", wrappers=["reward-scale(scale=0.1)", "time-limit(max_episode_steps=5)"]), 2, 1
        )
        envs.start()
        into, rewards = np.zeros((2, 4), np.float32), np.zeros(2)
        ends: list[EpisodeEnd] = []
        for _ in range(5):
            actions = np.array([0, 1])
            if is_rollout:
                ends += envs.step(actions.tolist(), into)
            else:
                ends += envs.advance(actions, into, rewards)
                assert rewards.tolist() == [0.1, 0.1]
        if is_rollout:
            assert envs.finish_rollout(np.tile(np.array([0, 1]), (5, 1))).tolist() == [[0.1, 0.1]] * 5
        assert [(end.episodic_return, end.length, end.is_terminal) for end in ends] == [(5.0, 5, False)] * 2
        envs.close()


def test_environments_share_the_statistics_of_their_wrappers() -> None:
    envs = VectorEnvs(lambda: make("CartPole-v1", wrappers=["normalize-observation"]), 3, 1)
    envs.start()
    arrays, _ = envs.checkpoint_state()
    assert float(arrays["wrapper.0.count"]) == pytest.approx(3.0001)
    frozen = make("CartPole-v1", wrappers=["normalize-observation"])
    assert isinstance(frozen, WrappedEnv)
    frozen.restore_statistics(arrays)
    frozen.set_frozen(True)
    first, _ = frozen.reset(seed=5)
    np.testing.assert_array_equal(first, frozen.reset(seed=5)[0])
    np.testing.assert_array_equal(frozen.statistics()["wrapper.0.mean"], arrays["wrapper.0.mean"])
    envs.close()
    frozen.close()


@pytest.mark.parametrize(
    ("spec", "problem"),
    [
        ("frame-stak", "No wrapper 'frame-stak'. Did you mean 'frame-stack'?"),
        ("reward-scale", "reward-scale cannot be put around CartPole-v1: TypeError: .*'scale'"),
        ("time-limit(max_episode_steps=0)", "ValueError: Expect the `max_episode_steps` to be positive"),
        ("rescale-action", "requires a Box action space"),
        ("frame-stack(stack_size=1000000000)", "at most 1,000 observations can be stacked, not 1,000,000,000"),
        ("reward-scale(scale=1e999)", "expected a finite scale, not inf"),
        ("os:system", "the module 'os' is not allowed"),
        ("own_wrappers_of_a_test:Missing", "No Wrapper 'Missing' in module .* Known: Bad, Silent, Wrong"),
        (
            "own_wrappers_of_a_test:NotOne",
            "NotOne' is not a subclass of gymnasium.core.Wrapper",
        ),
        ("own_wrappers_of_a_test:Bad", "own_wrappers_of_a_test:Bad cannot be put around .*: ZeroDivisionError"),
        ("own_wrappers_of_a_test:Wrong", "gives an observation .* that is not in its observation space"),
        ("own_wrappers_of_a_test:Silent", "does not work with these wrappers: TypeError: cannot unpack"),
    ],
)
def test_a_wrapper_that_does_not_work_is_refused_with_its_cause(
    spec: str, problem: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "own_wrappers_of_a_test.py").write_text(
        "import gymnasium\n"
        "class Bad(gymnasium.Wrapper):\n    def __init__(self, env): 1 / 0\n"
        "class Wrong(gymnasium.ObservationWrapper):\n    def observation(self, observation): return observation[:3]\n"
        "class Silent(gymnasium.Wrapper):\n    def reset(self, **options): pass\n"
        "class NotOne: pass\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    allow_imports(Imports(modules=("own_wrappers_of_a_test",)))
    with pytest.raises(BadInput, match=problem) as raised:  # noqa: PT012
        env = make("CartPole-v1", wrappers=[spec])
        assert isinstance(env, WrappedEnv)
        try_wrapped(env)
    assert raised.value.problems[0].path == "wrappers"


def test_every_named_wrapper_works() -> None:
    arguments = {"reward-scale": "(scale=2)", "time-limit": "(max_episode_steps=9)"}
    for name in NAMED_WRAPPERS:
        is_for_images = name in ("grayscale", "resize-observation")
        env = make("Spot-v0" if is_for_images else "Pendulum-v1", wrappers=[f"{name}{arguments.get(name, '')}"])
        assert isinstance(env, WrappedEnv)
        try_wrapped(env)
        env.close()
