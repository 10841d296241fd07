"""The catalog of environments, and the errors for those that cannot be created."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import gymnasium
import pytest
from gymnasium.envs.registration import EnvSpec

from cleanrl_worker.registry import load_algorithm
from mosaic.base.fastlane.tap import FrameRenderer
from mosaic.contracts.errors import BadInput, MissingExtra, UnknownName
from mosaic.contracts.folder import MODULES_VARIABLE
from mosaic.worker.envs import FAMILIES, family, list_environments, make
from mosaic.worker.envs.factory import family_of, find_family
from mosaic.worker.envs.render_check import check_rendering

needs_mujoco = pytest.mark.skipif(find_spec("mujoco") is None, reason="the mujoco extra is not installed")


@pytest.fixture
def without(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that makes a package look not installed."""

    def hide(package: str) -> None:
        monkeypatch.setattr(family, "find_spec", lambda name: None if name == package else find_spec(name))

    return hide


def test_an_environment_is_created_without_the_checking_wrapper() -> None:
    env = make("CartPole-v1")
    assert "PassiveEnvChecker" not in str(env)
    assert family_of(env) == "classic_control"
    env.close()


@pytest.mark.parametrize(
    ("env_id", "suggestion"),
    [
        ("CartPol-v1", "CartPole-v1"),
        ("cartpole-v1", "CartPole-v1"),
        ("CartPole-v3", "CartPole-v1"),
        ("Taxi-v3", "Taxi-v4"),
        ("LunarLander-v2", "LunarLander-v3"),
        ("HalfCheetah-v2", "HalfCheetah-v5"),
        ("Breakout-v5", "ALE/Breakout-v5"),
        ("Breakout", "ALE/Breakout-v5"),
        ("breakout", "ALE/Breakout-v5"),
        ("lunarlander", "LunarLander-v3"),
    ],
)
def test_an_unknown_id_raises_with_the_closest_known_id(env_id: str, suggestion: str) -> None:
    with pytest.raises(UnknownName, match=rf"No environment '{env_id}'.* Did you mean '{suggestion}'\?"):
        make(env_id)


@pytest.mark.parametrize("env_id", ["NoSuch-v9", "Foo-v1", "Foo"])
def test_an_id_unlike_any_other_gets_no_suggestion(env_id: str) -> None:
    """The version of an id is no likeness."""
    with pytest.raises(UnknownName) as raised:
        make(env_id)
    assert "Did you mean" not in str(raised.value)
    assert "Known: " in str(raised.value)


@pytest.mark.parametrize(
    ("env_id", "package", "sentence"),
    [
        ("ALE/Pong-v5", "ale_py", "'ALE/Pong-v5' needs the Atari extra: pip install 'mosaic-rl[atari]'."),
        ("PongNoFrameskip-v4", "ale_py", "'PongNoFrameskip-v4' needs the Atari extra: pip install 'mosaic-rl[atari]'."),
        (
            "MiniGrid-Empty-5x5-v0",
            "minigrid",
            "'MiniGrid-Empty-5x5-v0' needs the MiniGrid extra: pip install 'mosaic-rl[minigrid]'.",
        ),
        ("HalfCheetah-v5", "mujoco", "'HalfCheetah-v5' needs the MuJoCo extra: pip install 'mosaic-rl[mujoco]'."),
        ("LunarLander-v3", "Box2D", "'LunarLander-v3' needs the Box2D extra: pip install 'mosaic-rl[box2d]'."),
        ("phys2d/CartPole-v1", "jax", "'phys2d/CartPole-v1' needs the package 'jax': pip install gymnasium jax."),
    ],
)
def test_a_family_that_is_not_installed_is_named_with_its_extra(
    env_id: str, package: str, sentence: str, without: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    import gymnasium

    without(package)
    if FAMILIES["atari"].owns_name(env_id) or FAMILIES["minigrid"].owns_name(env_id):
        monkeypatch.delitem(gymnasium.registry, env_id, raising=False)
    with pytest.raises(MissingExtra) as raised:
        make(env_id)
    assert str(raised.value) == sentence


def test_an_unsupported_family_raises() -> None:
    with pytest.raises(MissingExtra, match="belongs to Procgen, which this version of MOSAIC does not support yet"):
        make("procgen-coinrun-v0")


def test_an_id_cannot_import_a_module_that_is_not_allowed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "my_envs.py").write_text(
        "import gymnasium\ngymnasium.register('MyCart-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    with pytest.raises(BadInput, match=f"is not allowed: .* If you trust it, set {MODULES_VARIABLE}=my_envs"):
        make("my_envs:MyCart-v0")
    monkeypatch.setenv(MODULES_VARIABLE, "other, my_envs")
    env = make("my_envs:MyCart-v0")
    env.close()
    import gymnasium

    del gymnasium.registry["MyCart-v0"]


def test_the_default_of_ppo_trxl_names_what_to_install(without: Callable[[str], None]) -> None:
    """R3.6: the package states another gymnasium than it works with."""
    without("memory_gym")
    env_id = load_algorithm("ppo_trxl").Config.model_fields["env_id"].default
    with pytest.raises(MissingExtra, match=r"the package 'memory_gym': .*pip install --no-deps memory-gym"):
        make(env_id)


def test_dm_control_names_what_to_install_and_is_its_own_family(
    without: Callable[[str], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """R9.4: shimmy registers its environments with functions, which do not name the family."""
    without("dm_control")
    with pytest.raises(MissingExtra, match=r"'dm_control': pip install 'shimmy\[dm-control\]' 'mujoco<4'"):
        make("dm_control/cheetah-run-v0")
    monkeypatch.setitem(
        gymnasium.registry, "dm_control/dog-run-v0", EnvSpec("dm_control/dog-run-v0", partial(make, ""))
    )
    assert [row["family"] for row in list_environments() if row["id"] == "dm_control/dog-run-v0"] == ["dm_control"]
    assert find_family("dm_control/dog-run-v0") is FAMILIES["dm_control"]


def test_the_list_includes_families_that_are_not_installed(without: Callable[[str], None]) -> None:
    """R9.4: families that are not installed are listed with their extra."""
    without("ale_py")
    rows = {row["id"]: row for row in list_environments()}
    assert rows["CartPole-v1"] == {
        "id": "CartPole-v1",
        "family": "classic_control",
        "is_installed": True,
        "extra": "train",
        "max_episode_steps": 500,
    }
    assert rows["ALE/Breakout-v5"]["is_installed"] is False
    assert rows["ALE/Breakout-v5"]["extra"] == "atari"
    assert "HalfCheetah-v2" not in rows, "a retired id cannot be created"
    assert {row["family"] for row in list_environments("box2d")} == {"box2d"}
    with pytest.raises(UnknownName, match="Did you mean 'mujoco'"):
        list_environments("mujco")


def test_known_harmless_warnings_are_not_shown_and_others_are() -> None:
    with warnings.catch_warnings(record=True) as shown:
        warnings.simplefilter("always")
        make("CartPole-v0").close()  # "is out of date"
        warnings.warn("something new", stacklevel=1)
    assert [str(warning.message) for warning in shown] == ["something new"]


@needs_mujoco
def test_mujoco_writes_neither_to_the_console_nor_to_a_log_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    make("HalfCheetah-v5").close()
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


@needs_mujoco
def test_the_camera_follows_the_cheetah_when_rendering() -> None:
    env = make("HalfCheetah-v5")
    core: Any = env.unwrapped
    camera_id, shadowsize = core.mujoco_renderer.camera_id, core.model.vis.quality.shadowsize
    env.reset(seed=1)
    renderer = FrameRenderer(env)
    renderer.render_frame()
    own: Any = renderer._mujoco
    assert own.renderer.camera_id == core.model.camera("track").id
    renderer.close()
    assert (core.mujoco_renderer.camera_id, core.model.vis.quality.shadowsize) == (camera_id, shadowsize), (
        "the script's"
    )
    env.close()


def test_settings_that_an_environment_does_not_accept_raise() -> None:
    with pytest.raises(BadInput, match="No setting 'gravity_on_mars' in CartPole-v1"):
        make("CartPole-v1", gravity_on_mars=True)
    with pytest.raises(BadInput, match="'MiniGrid-Empty-8x8-v0' does not accept these settings"):
        make("MiniGrid-Empty-8x8-v0", gravity_on_mars=True)


def test_a_render_check_of_a_missing_family_returns_the_install_command(without: Callable[[str], None]) -> None:
    without("ale_py")
    assert check_rendering("atari") == {
        "ok": False,
        "family": "atari",
        "env_id": "ALE/Pong-v5",
        "message": "Not installed: pip install 'mosaic-rl[atari]'",
    }
    with pytest.raises(UnknownName, match="No environment family 'nosuch'"):
        check_rendering("nosuch")
