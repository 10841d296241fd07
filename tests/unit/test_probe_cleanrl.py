"""The settings of a CleanRL script are read without running it."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.cli_trainer import FakeTrainer, call
from tests.helpers.probe_cleanrl import make_checkout
from tests.helpers.probe_scripts import write_script

from cleanrl_worker.shell import user_cleanrl
from cleanrl_worker.shell.script_job import build_script_job
from cleanrl_worker.shell.worker_config import parse_request
from mosaic.contracts.errors import BadInput, ConfigRefused, MissingExtra, UnknownName
from mosaic.contracts.setting_field import SettingField


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    return make_checkout(tmp_path / "their checkout")


@pytest.fixture
def fields(checkout: Path) -> dict[str, SettingField]:
    return {field.name: field for field in user_cleanrl.script_fields(checkout / "cleanrl" / "walk.py")}


def test_only_files_with_args_are_algorithms(checkout: Path) -> None:
    assert list(user_cleanrl.script_algorithms(str(checkout))) == ["cleanrl:walk"]
    assert user_cleanrl.script_algorithms(str(checkout)) == user_cleanrl.script_algorithms(str(checkout / "cleanrl"))


@pytest.mark.parametrize("name", ["walk", "cleanrl:walk", "cleanrl.walk"])
def test_an_installed_cleanrl_is_found_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    """R3.5: a script of the package `cleanrl` in the caller's virtual environment needs no path."""
    environment = tmp_path / "venv"
    make_checkout(environment / "lib" / "python3.11" / "site-packages")
    (environment / "bin").mkdir()
    (environment / "bin" / "python").symlink_to(sys.executable)
    monkeypatch.setenv("VIRTUAL_ENV", str(environment))
    trainer = FakeTrainer()
    done = call(trainer, "train", name, "--num-envs", "2", "--detach")
    assert done.code == 0, done.err
    config = trainer.submitted[0]["metadata"]["worker"]["config"]
    assert (config["algo"], config["cleanrl"]) == ("cleanrl:walk", str(environment))
    assert user_cleanrl.find_checkout(config["cleanrl"]).python == str(environment / "bin" / "python")


@pytest.fixture
def installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A package `cleanrl` that this interpreter can import, but that must not be run."""
    folder = make_checkout(tmp_path / "packages")
    write_script(folder / "cleanrl", "raise SystemExit('it was imported')\n", "__init__.py")
    write_script(folder / "cleanrl", "\nclass Args:\n    x: int = (\n", "broken.py")
    monkeypatch.delenv("VIRTUAL_ENV", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    return folder


def test_the_scripts_of_an_importable_cleanrl_are_listed_and_explained(installed: Path) -> None:
    listed = call(FakeTrainer(), "algorithms", "--json")
    assert [entry["name"] for entry in json.loads(listed.out) if ":" in entry["name"]] == ["cleanrl:walk"]
    assert "CleanRL's own walk.py" in call(FakeTrainer(), "algorithms").out
    explained = call(FakeTrainer(), "algorithms", "cleanrl:walk").out
    assert "The learning rate." in explained
    assert call(FakeTrainer(), "algorithms", "cleanrl:wlak").code == 2


def test_a_config_names_a_script_of_an_importable_cleanrl_without_its_path(
    installed: Path, complete_interpreter: None
) -> None:
    job = build_script_job(parse_request({"algo": "cleanrl:walk", "algo_params": {"num_envs": 3}}))
    assert job.command == [sys.executable, str(installed / "cleanrl" / "walk.py"), "--num-envs", "3"]


def test_a_script_is_found_among_the_packages_of_another_interpreter(
    installed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    python = tmp_path / "their python"
    python.write_text(f"#!/bin/sh\nPYTHONPATH='{installed}' exec {sys.executable} \"$@\"\n")
    python.chmod(0o755)
    trainer = FakeTrainer()
    done = call(trainer, "train", "cleanrl:walk", "--cleanrl-python", str(python), "--detach")
    assert done.code == 0, done.err
    config = trainer.submitted[0]["metadata"]["worker"]["config"]
    assert (config["cleanrl"], config["cleanrl_python"]) == (str(installed), str(python))
    assert "no installed package" in call(trainer, "train", "cleanrl:walk", "--detach").err
    missing = call(trainer, "train", "cleanrl:walk", "--cleanrl-python", str(tmp_path / "nowhere"))
    assert (missing.code, "is not a Python interpreter that can be run" in missing.err) == (2, True)


def test_our_algorithms_come_before_those_of_an_installed_cleanrl(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R3.5: a name that MOSAIC knows is MOSAIC's."""
    package = tmp_path / "lib" / "python3.11" / "site-packages" / "cleanrl"
    write_script(package, "\nclass Args:\n    seed: int = 1\n", "ppo.py")
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path))
    trainer = FakeTrainer()
    assert call(trainer, "train", "ppo", "--detach").code == 0
    assert trainer.submitted[0]["metadata"]["worker"]["config"]["algo"] == "ppo"
    monkeypatch.setattr(importlib.util, "find_spec", lambda _: None)
    monkeypatch.setenv("VIRTUAL_ENV", str(tmp_path / "empty"))
    assert user_cleanrl.find_installed() is None


def test_a_script_that_cannot_be_parsed_does_not_hide_others(checkout: Path) -> None:
    write_script(checkout / "cleanrl", "\nclass Args:\n    x: int = (\n", "broken.py")
    assert list(user_cleanrl.script_algorithms(str(checkout))) == ["cleanrl:walk"]


def test_types_and_defaults_come_from_the_script(fields: dict[str, SettingField]) -> None:
    assert {name: (field.type, field.default) for name, field in fields.items()} == {
        "exp_name": ("str", "walk"),
        "seed": ("int", 1),
        "capture_video": ("bool", False),
        "env_id": ("str", "CartPole-v1"),
        "total_timesteps": ("int", 2000),
        "learning_rate": ("float", 3.0),
        "num_envs": ("int", 4),
        "anneal": ("bool", True),
        "target_kl": ("float", None),
        "limit": ("int", 5),
        "start": ("float", -0.5),
        "kind": ("choice", "a"),
        "sizes": ("json", [1, 2]),
        "when": ("float", None),
    }


def test_optional_settings_are_detected_with_and_without_an_annotation(fields: dict[str, SettingField]) -> None:
    assert {name for name, field in fields.items() if field.is_optional} == {"target_kl", "limit", "start", "when"}


def test_help_comes_from_the_docstrings(fields: dict[str, SettingField]) -> None:
    assert fields["seed"].help == "Seed of the experiment."
    assert "time.time()" in fields["when"].help
    assert fields["kind"].constraints == {"choices": ["a", "b"]}


def test_a_value_that_the_script_computes_is_not_a_setting(fields: dict[str, SettingField]) -> None:
    assert "batch_size" not in fields


def config(checkout: Path, algo: str = "cleanrl:walk", **extras: Any) -> dict[str, Any]:
    python = {"cleanrl_python": sys.executable}
    return {"algo": algo, "seed": 3, "extras": {"cleanrl": str(checkout), **python, **extras}}


def build_job(checkout: Path, **extras: Any) -> Any:
    return build_script_job(parse_request(config(checkout, **extras)))


@pytest.fixture
def complete_interpreter(monkeypatch: pytest.MonkeyPatch) -> None:
    """An interpreter with every package."""
    monkeypatch.setattr("cleanrl_worker.shell.script_job.missing_package_problem", lambda *_: None)


@pytest.mark.usefixtures("complete_interpreter")
def test_settings_become_flags_that_the_script_has(checkout: Path) -> None:
    job = build_job(checkout, algo_params={"anneal": False, "target_kl": 0.5, "limit": None}, capture_video=True)
    assert job.command == [
        *(sys.executable, str(checkout / "cleanrl" / "walk.py")),
        *("--seed", "3", "--capture-video", "--no-anneal", "--target-kl", "0.5", "--limit", "None"),
    ]
    summary = job.summary()
    assert (summary["algo"], summary["seed"], summary["total_timesteps"]) == ("cleanrl:walk", 3, 2000)


@pytest.mark.usefixtures("complete_interpreter")
@pytest.mark.parametrize(
    ("extras", "message"),
    [
        ({"algo_params": {"num_env": 2}}, r"algo_params\.num_env.*Did you mean 'num_envs'"),
        ({"algo_params": {"num_envs": 2.5}}, r"algo_params\.num_envs: expected a whole number"),
        ({"algo_params": {"seed": 4}}, r"algo_params\.seed is 4, but seed is 3"),
        ({"algo_params": {"num_envs": None}}, "not None"),
        ({"algo_params": {"kind": "c"}}, "one of a, b"),
        ({"algo_params": {"anneal": 1}}, "true or false"),
        ({"save_model": True}, r"extras\.save_model"),
        ({"batch_size": 3}, r"extras\.batch_size"),
        ({"tensorboard_dir": "there"}, r"extras\.tensorboard_dir: has no effect"),
        ({"wandb_run_name": "mine"}, r"extras\.wandb_run_name: has no effect"),
        ({"grid_limit": 2}, r"extras\.grid_limit: has no effect"),
    ],
)
def test_an_invalid_setting_is_rejected_with_its_path(checkout: Path, extras: dict[str, Any], message: str) -> None:
    """R3.3: reserved extras."""
    with pytest.raises(ConfigRefused, match=message):
        build_job(checkout, **extras)


@pytest.mark.usefixtures("complete_interpreter")
def test_a_missing_script_or_folder_is_named(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match="Did you mean 'walk'"):
        build_script_job(parse_request(config(checkout, "cleanrl:wlak")))
    with pytest.raises(BadInput, match="is not a folder"):
        build_script_job(parse_request(config(tmp_path / "nowhere")))
    with pytest.raises(ConfigRefused, match="--cleanrl PATH"):
        build_script_job(parse_request({"algo": "cleanrl:walk"}))


def test_an_interpreter_that_cannot_run_it_is_rejected(checkout: Path, tmp_path: Path) -> None:
    with pytest.raises(MissingExtra, match="cleanrl-python"):
        build_job(checkout, cleanrl_python=str(tmp_path / "python"))
