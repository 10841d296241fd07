"""Every setting of a run with its default, and what the run was started with."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

from mosaic.base.algorithm_schema import get_algorithm
from mosaic.base.formatting import surroundings_rows
from mosaic.base.packages import installed_packages
from mosaic.contracts.events import decode_event
from mosaic.contracts.run_settings import RunSettings, SettingValue
from mosaic.features.runs.daemon import describe_settings, find_algorithm, worker_options
from mosaic.keeper.surroundings import describe_machine, find_repository, read_commit


def train_payload(**config: Any) -> dict[str, Any]:
    given = {"algo": "ppo", "env_id": "CartPole-v1", **config}
    return {"metadata": {"worker": {"id": "cleanrl", "config": given}}, "artifacts": {}}


def describe(payload: dict[str, Any], *events: dict[str, Any]) -> RunSettings:
    decoded = [decode_event({"seq": number, **event}) for number, event in enumerate(events)]
    return describe_settings(payload, find_algorithm(payload), worker_options(payload), decoded)


def by_name(settings: RunSettings) -> dict[str, SettingValue]:
    return {setting.name: setting for setting in settings.settings}


def test_every_setting_is_listed_once_whether_it_was_set_or_not() -> None:
    settings = describe(train_payload())
    names = [setting.name for setting in settings.settings]
    assert len(names) == len(set(names))
    assert {field.name for field in get_algorithm("ppo").fields} <= set(names)
    assert {"learning_rate", "num_envs", "gamma", "priority", "capture_video", "memory_mb"} <= set(names)
    assert not {"policy_path", "eval_repeat"} & set(names), "those of an evaluation"
    known = by_name(settings)
    assert (known["learning_rate"].value, known["learning_rate"].default) == (0.00025, 0.00025)


def test_only_what_differs_from_its_default_is_changed() -> None:
    payload = train_payload(seed=7, total_timesteps=500_000, algo_params={"learning_rate": 0.001, "gamma": 0.99})
    payload["metadata"]["tags"] = ["x"]
    payload["metadata"]["ui"] = {"form": "state"}
    changed = {setting.name for setting in describe(payload).settings if setting.is_changed}
    assert changed == {"seed", "learning_rate", "tags"}
    assert not by_name(describe(payload))["algo"].has_default


def test_what_the_worker_reported_counts_where_nothing_was_set() -> None:
    values = {"learning_rate": 0.5, "total_timesteps": 1000, "from_the_worker": (1, 2)}
    settings = by_name(describe(train_payload(total_timesteps=2000), {"kind": "hyperparameters", "values": values}))
    assert settings["learning_rate"].is_changed
    assert settings["total_timesteps"].value == 2000, "a run that was extended"
    assert settings["from_the_worker"].value == [1, 2]
    assert not settings["from_the_worker"].has_default


def test_an_evaluation_has_its_own_settings() -> None:
    payload = train_payload() | {"kind": "policy_eval", "evaluation": {"policy_path": "/x", "episodes": 10}}
    settings = by_name(describe(payload))
    assert "learning_rate" not in settings
    assert settings["eval_batch_size"].is_changed
    assert settings["policy_path"].value == "/x"


def test_a_script_and_an_unknown_worker_show_what_was_submitted() -> None:
    config = {"argv": ["python", "x.py"], "cwd": "/tmp"}
    for worker in ("script", "uninstalled"):
        payload = {"metadata": {"worker": {"id": worker, "config": config}}, "artifacts": {}}
        settings = by_name(describe(payload))
        assert settings["metadata.worker.config.argv"].value == ["python", "x.py"]
        assert not any(setting.is_changed for setting in settings.values())


def test_the_newest_attempt_counts() -> None:
    machine = {"kind": "machine", "host": "h", "system": "Linux 6", "cpu": "A CPU", "cpus": 8, "memory_mb": 16_000}
    process = {"pid": 1, "start": "", "boot_id": ""}
    old = {"kind": "source", "folder": "/old", "commit": "0" * 40}
    new = {"kind": "source", "folder": "/new", "commit": "abcdef0123456789", "is_dirty": True}
    settings = describe(
        train_payload(),
        {"kind": "worker_started", "process": process},
        {"kind": "packages", "python": "3.10.0", "packages": {"torch": "1"}},
        old,
        {"kind": "worker_started", "process": process},
        {"kind": "packages", "python": "3.11.7", "packages": {"torch": "2.6.0", "other": "1"}},
        new,
        machine,
    )
    assert surroundings_rows(settings) == [
        ("Python", "3.11.7, torch 2.6.0"),
        ("commit", "abcdef0123 in /new, with uncommitted changes"),
        ("machine", "h, Linux 6, 8 × A CPU, 16.8 GB of memory"),
    ]


def test_packages_are_read_from_the_names_of_their_folders(tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first / "Some_Package-1.2.dist-info", second / "some_package-1.0.dist-info"):
        folder.mkdir(parents=True)
    (second / "old-0.1.egg-info").mkdir()
    (second / 'bad"name-1.dist-info').mkdir()
    assert installed_packages([str(first), str(second), "/nowhere"]) == {"old": "0.1", "some-package": "1.2"}
    assert "gymnasium" in installed_packages()


def test_the_commit_and_whether_files_differ_from_it_are_read(tmp_path: Path) -> None:
    def git(*arguments: str) -> None:
        identity = ["-c", "user.name=n", "-c", "user.email=e@x"]
        subprocess.run(["git", *identity, *arguments], cwd=tmp_path, check=True, capture_output=True)

    git("init")
    assert read_commit(str(tmp_path)) is None, "it has no commit"
    (tmp_path / "code").mkdir()
    (tmp_path / "code" / "x.py").write_text("1")
    git("add", ".")
    git("commit", "-m", "first")
    assert find_repository(str(tmp_path / "code")) == str(tmp_path)
    clean = read_commit(str(tmp_path))
    assert clean is not None
    assert (len(clean["commit"]), clean["is_dirty"]) == (40, False)
    (tmp_path / "code" / "x.py").write_text("2")
    changed = read_commit(str(tmp_path))
    assert changed is not None
    assert changed["is_dirty"]


def test_the_machine_is_described() -> None:
    machine = describe_machine()
    assert machine["cpus"] > 0
    assert machine["memory_mb"] > 100
    assert machine["cpu"]
