"""F45: a run that comes from someone else is refused or inert: its code, bombs, links and ids do no harm."""

from __future__ import annotations

import ast
import json
import os
import re
import shutil
import stat
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.helpers import shared_daemon
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended, scripted
from tests.helpers.worker_runs import small

import mosaic as package
from mosaic.contracts.errors import BadInput, NotAllowed, NotTrusted
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.trainer import run_import
from mosaic.trainer.admission import require_trust
from mosaic.trainer.client.file_transfer import pack_run
from mosaic.trainer.client.trainer_client import TrainerClient

plugins, workspace, live, trainer = shared_daemon.FIXTURES
MODULES = ("numpy", "secrets", "json", "gymnasium", "sitecustomize")


@pytest.fixture
def run(trainer: TrainerClient, workspace: Workspace, tmp_path: Path) -> Path:
    """The folder of a finished run, outside of the workspace."""
    return take_out(trainer, workspace, tmp_path, trainer.submit(scripted(steps=3)).run_id)


def take_out(trainer: TrainerClient, workspace: Workspace, tmp_path: Path, run_id: str) -> Path:
    ended(trainer, run_id)
    trainer.delete_run(run_id)
    outside = tmp_path / "elsewhere" / run_id
    shutil.move(workspace.trash / run_id, outside)
    return outside


def train(trainer: TrainerClient, **changes: str) -> str:
    worker = {"id": "cleanrl", "config": small(**changes)}
    return trainer.submit({"metadata": {"worker": worker}, "artifacts": {}}).run_id


def zipped(folder: Path) -> Path:
    """As `mosaic export` writes it: links stay links."""
    target = folder.with_suffix(".zip")
    with zipfile.ZipFile(target, "w", zipfile.ZIP_DEFLATED) as archive:
        for path in sorted(folder.rglob("*")):
            info = zipfile.ZipInfo(f"{folder.name}/{path.relative_to(folder)}")
            info.compress_type = zipfile.ZIP_DEFLATED
            if path.is_symlink():
                info.external_attr = (stat.S_IFLNK | 0o777) << 16
                archive.writestr(info, os.readlink(path))
            elif path.is_file():
                info.external_attr = (stat.S_IFREG | 0o644) << 16
                archive.writestr(info, path.read_bytes())
    return target


def as_folder(folder: Path) -> Path:
    return folder


FORMS = pytest.mark.parametrize("form", [as_folder, zipped])
Form = Callable[[Path], Path]


def assert_nothing_left(trainer: TrainerClient, workspace: Workspace) -> None:
    assert list(trainer.runs()) == []
    assert list(workspace.runs.iterdir()) == []


# --- code


@FORMS
def test_code_in_an_imported_folder_is_not_executed_by_resume(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, form: Form
) -> None:
    """F45: the worker runs in the folder, and imports nothing from it."""
    folder = take_out(trainer, workspace, tmp_path, train(trainer))
    canary = tmp_path / "canary"
    for name in MODULES:
        (folder / f"{name}.py").write_text(f"open({str(canary)!r}, 'a').write(__name__)\n")
    run_id = trainer.import_run(str(form(folder))).run_id
    view = trainer.resume(run_id, 128)
    assert (Path(view.run_dir) / "numpy.py").exists()
    assert ended(trainer, run_id).outcome == "succeeded"
    assert not canary.exists()


def test_every_python_process_of_ours_ignores_its_working_directory() -> None:
    """F45: `-P` or `-I` follows the interpreter wherever a command is built."""
    unsafe = []
    for file in sorted(Path(package.__file__).parents[1].rglob("*.py")):
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, (ast.List, ast.Tuple)) and len(node.elts) > 1:
                first, second = ast.unparse(node.elts[0]), ast.unparse(node.elts[1])
                if first == "sys.executable" and second not in ("'-P'", "'-I'"):
                    unsafe.append(f"{file}:{node.lineno}")
    assert unsafe == []


def test_a_program_that_an_imported_config_names_needs_trust(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    """F45: neither by resume nor by a copy of the config, even from a caller who passes an environment."""
    folder = take_out(trainer, workspace, tmp_path, train(trainer))
    canary = tmp_path / "canary"
    checkout = folder / "evil"
    (checkout / "cleanrl").mkdir(parents=True)
    (checkout / "cleanrl" / "ppo.py").write_text("\nclass Args:\n    seed: int = 1\n")
    python = checkout / "bin" / "python"
    python.parent.mkdir()
    python.write_text(f"#!/bin/sh\necho {'{0}'} >> '{canary}'\n")
    python.chmod(0o755)
    config = json.loads((folder / "config.json").read_text())
    config["metadata"]["worker"]["config"] |= {"algo": "cleanrl:ppo", "cleanrl": str(checkout)}
    config["metadata"]["is_imported"] = False
    (folder / "config.json").write_text(json.dumps(config))
    run_id = trainer.import_run(str(folder)).run_id
    with pytest.raises(NotTrusted, match=r"imported and would start a program \(cleanrl: .*--trust"):
        trainer.resume(run_id, 128)
    copied = trainer.config(run_id)
    with pytest.raises(NotAllowed, match="--trust"):
        trainer.submit(copied, environment=dict(os.environ))
    assert not canary.exists()
    assert [entry.message for entry in trainer.get_run(run_id).history][-1] == f"Imported from {folder.name}."


def test_a_trusted_copy_of_an_imported_script_is_run(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    """F45: what `mosaic resubmit RUN --trust` submits."""
    config = {"argv": [sys.executable, "-c", "pass"], "cwd": str(tmp_path)}
    payload = {"metadata": {"worker": {"id": "script", "config": config}}, "artifacts": {}}
    run_id = trainer.submit(payload, environment=dict(os.environ)).run_id
    trainer.import_run(str(take_out(trainer, workspace, tmp_path, run_id)))
    copied = trainer.config(run_id)
    with pytest.raises(NotAllowed, match="--trust"):
        trainer.submit(copied, environment=dict(os.environ))
    trusted = trainer.submit(copied, dict(os.environ), is_trusted=True)
    assert not trusted.is_imported
    assert ended(trainer, trusted.run_id).outcome == "succeeded"


@pytest.fixture
def imported(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[str, Path]:
    """An imported run whose environment id imports a module that its user once allowed, and the module's canary."""
    canary = tmp_path / "canary"
    modules = tmp_path / "modules"
    modules.mkdir()
    (modules / "evil_envs.py").write_text(
        f"open({str(canary)!r}, 'a').write('x')\nimport gymnasium\n"
        "gymnasium.register('Evil-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv', max_episode_steps=20)\n"
    )
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(filter(None, (str(modules), os.environ.get("PYTHONPATH")))))
    folder = take_out(trainer, workspace, tmp_path, train(trainer, env_id="evil_envs:Evil-v0"))
    stated = json.loads((folder / "config.json").read_text())["metadata"]["worker"]["imports"]
    assert (stated["modules"], str(modules) in stated["folders"]) == (["evil_envs"], True)
    canary.unlink()
    view = trainer.import_run(str(folder))
    assert view.is_imported
    imports = trainer.payload(view.run_id).metadata.worker.imports
    assert imports is not None
    assert imports.folders == (), "where its author had the module does not count here"
    return view.run_id, canary


def test_a_module_that_an_imported_environment_id_names_needs_trust(
    trainer: TrainerClient, workspace: Workspace, imported: tuple[str, Path]
) -> None:
    """F45: by resume, eval and resubmit alike, even where the user allows the module for other runs."""
    run_id, canary = imported
    refusal = (
        r"was imported and would import the module 'evil_envs' \((?:--env-id|env_id): evil_envs:Evil-v0\).*--trust"
    )
    with pytest.raises(NotTrusted, match=refusal):
        trainer.resume(run_id, 128)
    for arguments in (("resume", run_id, "--total-timesteps", "128"), ("resubmit", run_id), ("eval", run_id)):
        result = mosaic(workspace, *arguments)
        assert result.code == 2
        assert re.search(refusal, result.err)
    policy = f"{trainer.get_run(run_id).run_dir}/checkpoints/last"
    evaluation = {"policy_path": policy, "episodes": 1}
    worker = {"id": "cleanrl", "config": {"algo": "ppo", "env_id": "evil_envs:Evil-v0"}}
    unmarked = {"kind": "policy_eval", "metadata": {"worker": worker}, "artifacts": {}, "evaluation": evaluation}
    with pytest.raises(NotTrusted, match=refusal):
        trainer.submit(unmarked)
    assert not canary.exists()
    assert "needs --trust" in mosaic(workspace, "show", run_id).out


def test_what_an_imported_run_would_execute_is_executed_with_trust(
    trainer: TrainerClient, workspace: Workspace, imported: tuple[str, Path]
) -> None:
    """F45: `--trust`, and the module that the user's environment allows."""
    run_id, canary = imported
    result = mosaic(workspace, "resume", run_id, "--total-timesteps", "128", "--trust", "--follow")
    assert result.code == 0, result.err
    assert canary.exists()
    evaluated = mosaic(workspace, "eval", run_id, "--episodes", "2", "--trust", "--json")
    assert evaluated.code == 0, evaluated.err
    assert evaluated.json["episodes"] == 2


# --- bombs


def test_a_zip_bomb_is_refused_before_anything_is_written(
    trainer: TrainerClient, workspace: Workspace, run: Path
) -> None:
    """F45: 300 MB in 0.3 MB."""
    bomb = zipped(run)
    with zipfile.ZipFile(bomb, "a", zipfile.ZIP_DEFLATED) as archive, archive.open(f"{run.name}/zeros", "w") as file:
        for _ in range(300):
            file.write(bytes(1 << 20))
    with pytest.raises(BadInput, match="more than 200 to 1"):
        trainer.import_run(str(bomb))
    assert_nothing_left(trainer, workspace)


@FORMS
def test_a_run_of_too_many_files_is_refused(
    trainer: TrainerClient, workspace: Workspace, run: Path, form: Form
) -> None:
    (run / "many").mkdir()
    for number in range(run_import.MAX_FILES):
        (run / "many" / str(number)).touch()
    with pytest.raises(BadInput, match=f"the limit is {run_import.MAX_FILES:,}"):
        trainer.import_run(str(form(run)))
    assert_nothing_left(trainer, workspace)


@FORMS
def test_a_run_that_does_not_fit_on_the_disk_is_refused(
    trainer: TrainerClient, workspace: Workspace, run: Path, form: Form
) -> None:
    """F45: a sparse file, or a zip whose directory declares a size that it does not have."""
    size = run_import.MAX_BYTES + 1
    if form is as_folder:
        with open(run / "sparse", "wb") as file:
            file.truncate(size)
        source = run
    else:
        (run / "huge").write_bytes(b"")
        source = zipped(run)
        with zipfile.ZipFile(source) as archive:
            assert archive.getinfo(f"{run.name}/huge").file_size == 0
        declare_size(source, f"{run.name}/huge", size)
    with pytest.raises(BadInput, match="bytes"):
        trainer.import_run(str(source))
    assert_nothing_left(trainer, workspace)


def declare_size(archive: Path, name: str, size: int) -> None:
    """Patches the 32-bit size in the central directory to the largest one."""
    data = bytearray(archive.read_bytes())
    at = data.rindex(name.encode()) - 46
    assert data[at : at + 4] == b"PK\x01\x02"
    data[at + 24 : at + 28] = min(size, 0xFFFFFFFE).to_bytes(4, "little")
    archive.write_bytes(data)


# --- links and special files


@FORMS
def test_folders_that_are_too_deep_are_refused_at_once(
    trainer: TrainerClient, workspace: Workspace, run: Path, form: Form
) -> None:
    """F45: before anything is written, and before the deeper ones are looked at; so are paths that are too long."""
    deep = run
    for _ in range(40):
        deep = deep / "deep"
        deep.mkdir()
    (deep / "file").touch()
    with pytest.raises(BadInput, match=r"deep/deep.* folders deep .*at most 32 folders .*Nothing was imported"):
        trainer.import_run(str(form(run)))
    shutil.rmtree(run / "deep")
    long = run.joinpath(*["x" * 200] * 6)
    long.mkdir(parents=True)
    (long / "file").touch()
    with pytest.raises(BadInput, match=r"and 1,000 characters. Nothing was imported"):
        trainer.import_run(str(form(run)))
    assert_nothing_left(trainer, workspace)


def test_a_zip_of_2000_folders_costs_nothing(trainer: TrainerClient, workspace: Workspace, tmp_path: Path) -> None:
    """F45: each further level would cost more than the one before."""
    path = tmp_path / "deep.zip"
    with zipfile.ZipFile(path, "w") as archive:
        for depth in range(1, 2001):
            archive.writestr("RUN/" + "d/" * depth, "")
    with pytest.raises(BadInput, match="is 33 folders deep"):
        trainer.import_run(str(path))
    assert_nothing_left(trainer, workspace)


def test_a_link_out_of_the_folder_is_left_out(trainer: TrainerClient, workspace: Workspace, run: Path) -> None:
    """F45: also one that leads out by another link that points up."""
    targets = ("/etc/passwd", "../../../../etc/passwd", "deep/er/up/../../..", "deep/../../..", "..", "/")
    (run / "deep" / "er").mkdir(parents=True)
    (run / "deep" / "er" / "up").symlink_to("../..")
    log = next((run / "logs").glob("*.stdout.log"))
    log.unlink()
    log.symlink_to("/etc/passwd")
    for number, target in enumerate(targets):
        (run / f"out{number}").symlink_to(target)
    for source in (run, zipped(run)):
        imported = Path(trainer.import_run(str(source)).run_dir)
        assert os.readlink(imported / "deep" / "er" / "up") == "../.."
        assert list(imported.glob("out*")) == []
        for path in imported.rglob("*"):
            assert path.resolve().is_relative_to(imported.resolve())
        trainer.delete_run(imported.name)


@FORMS
def test_files_behind_a_link_are_refused_or_stay_inside(
    trainer: TrainerClient, workspace: Workspace, run: Path, form: Form
) -> None:
    """F45: a zip that holds a link and then a file below it."""
    source = zipped(run)
    with zipfile.ZipFile(source, "a") as archive:
        info = zipfile.ZipInfo(f"{run.name}/link")
        info.external_attr = (stat.S_IFLNK | 0o777) << 16
        archive.writestr(info, "logs" if form is zipped else "/tmp")
        archive.writestr(f"{run.name}/link/file", "x")
    if form is zipped:
        with pytest.raises(BadInput, match="inside a symbolic link"):
            trainer.import_run(str(source))
        assert_nothing_left(trainer, workspace)
    else:  # the link out is left out, so the file is one of the run
        imported = Path(trainer.import_run(str(source)).run_dir)
        assert (imported / "link" / "file").read_text() == "x"


def test_special_files_of_a_folder_are_left_out(trainer: TrainerClient, run: Path) -> None:
    os.mkfifo(run / "pipe")
    assert not (Path(trainer.import_run(str(run)).run_dir) / "pipe").exists()


def test_links_that_wandb_creates_survive_export_and_import(
    trainer: TrainerClient, workspace: Workspace, tmp_path: Path
) -> None:
    """F45: W&B's three links inside of the folder are kept, its link to the cache of the user is not. (R1.5)"""
    view = ended(trainer, trainer.submit(scripted(steps=3)).run_id)
    wandb = RunFolder(view.run_dir).wandb
    logs = wandb / "offline-run-1" / "logs"
    logs.mkdir(parents=True)
    (logs / "debug.log").write_text("d")
    (logs / "core.log").symlink_to("/root/.cache/wandb/core.log")
    (wandb / "debug.log").symlink_to("offline-run-1/logs/debug.log")
    (wandb / "latest-run").symlink_to("offline-run-1")
    with open(tmp_path / "run.zip", "wb") as file:
        pack_run(trainer, view.run_id, trainer.files(view.run_id), file)
    trainer.delete_run(view.run_id)
    imported = RunFolder(trainer.import_run(str(tmp_path / "run.zip")).run_dir).wandb
    assert (imported / "debug.log").read_text() == "d"
    assert os.readlink(imported / "latest-run") == "offline-run-1"
    assert not os.path.lexists(imported / "offline-run-1" / "logs" / "core.log")


# --- ids and damaged files


def test_an_id_that_is_not_safe_is_refused(trainer: TrainerClient, workspace: Workspace, run: Path) -> None:
    record = json.loads((run / "record.json").read_text())
    for run_id in ("ñ漢字", "last", "LAST", "A" * 5000, "", "..", "a/b", "a b", "x\x00y", "-rf"):
        (run / "record.json").write_text(json.dumps({**record, "run_id": run_id}))
        for source in (run, zipped(run)):
            with pytest.raises(BadInput, match="not a valid run id"):
                trainer.import_run(str(source))
    assert_nothing_left(trainer, workspace)


DAMAGED = (
    ("config.json", "[" * 100_000),
    ("config.json", "null"),
    ("config.json", '{"metadata": 3}'),
    ("config.json", "x" * 9_000_000),
    ("config.json", "../other"),
    ("record.json", "[" * 100_000 + "]" * 100_000),
    ("record.json", "{}"),
    ("record.json", "x" * 9_000_000),
)


def test_a_damaged_run_is_refused_with_a_sentence(trainer: TrainerClient, workspace: Workspace, run: Path) -> None:
    for name, content in DAMAGED:
        damaged = run.parent / "damaged" / run.name
        shutil.copytree(run, damaged)
        (damaged / name).write_text(content)
        for source in (damaged, zipped(damaged)):
            with pytest.raises(BadInput):
                trainer.import_run(str(source))
        shutil.rmtree(damaged.parent)
    assert_nothing_left(trainer, workspace)


def test_a_zip_with_a_name_that_occurs_twice_is_refused(
    trainer: TrainerClient, workspace: Workspace, run: Path
) -> None:
    source = zipped(run)
    with zipfile.ZipFile(source, "a") as archive, pytest.warns(UserWarning, match="Duplicate name"):
        archive.writestr(f"{run.name}/record.json", "{}")
    with pytest.raises(BadInput, match=r"record\.json"):
        trainer.import_run(str(source))
    assert_nothing_left(trainer, workspace)


def test_the_refusal_names_the_whole_command_that_would_be_started() -> None:
    """F45: as a shell takes it; nothing of it is left out without a word."""

    def refusal(*argv: str) -> str:
        config = {"argv": list(argv), "cwd": "/"}
        metadata = {"worker": {"id": "script", "config": config}, "is_imported": True}
        with pytest.raises(NotTrusted) as refused:
            require_trust(Payload.model_validate({"metadata": metadata, "artifacts": {}}))
        return str(refused.value)

    padded = "x" * 300
    assert f"(argv: python -c 'print(1) {padded}; evil()')" in refusal("python", "-c", f"print(1) {padded}; evil()")
    assert "… and 9,010 more characters)" in refusal("python", "-c", "x" * 10_000)
