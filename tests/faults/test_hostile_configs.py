"""F26: a config is data. Paths, modules, shell text and variables in it are refused by field, or do nothing."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.helpers.daemons import ended, install_scripted_worker
from tests.helpers.probe_scripts import caller_environment, script_payload
from tests.helpers.worker_runs import small

from mosaic.contracts.errors import BadInput, ConfigRefused, MosaicError
from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

CANARY_VARIABLE = "MOSAIC_TEST_CANARY"
MODULE = f"import os\nopen(os.environ[{CANARY_VARIABLE!r}], 'w').close()\n"
COMMAND = f'touch "${CANARY_VARIABLE}"'
PIECES = (
    *("..", "/", "\\", "~", ".", ":", "-", " ", "\0", "\n", "\r", "\t", "\x1b[2J", "\u202e", "'", '"', "%n", "{0}"),
    *(f"$({COMMAND})", f"`{COMMAND}`", f";{COMMAND};", f"|{COMMAND}", f"\n{COMMAND}\n", "LD_PRELOAD=/nowhere.so"),
    *("canary_module", "canary_module:", "os:", "cleanrl:", "/etc/passwd", "secret:", "CartPole-v1", "ppo", "a", "é"),
)
HOSTILE = st.lists(st.sampled_from(PIECES), min_size=1, max_size=5).map("".join)
CONFIG = "metadata.worker.config"
NAMES = (
    *("metadata.group", "metadata.tags", "metadata.worker.id", "metadata.worker.worker_id"),
    *("artifacts.trackio.project", f"{CONFIG}.run_id", f"{CONFIG}.worker_id"),
)
"""Fields whose values become parts of paths, ids or file names."""
LABEL = "run_name"
"""A name for people, from which the name of a folder is derived."""
FOLDER = "artifacts.tensorboard.directory"
CHOICES = ("kind", "artifacts.video.mode", f"{CONFIG}.algo", f"{CONFIG}.env_id")
TEXTS = (
    *("metadata.notes", "artifacts.wandb.project", "artifacts.wandb.entity", "artifacts.wandb.run_name"),
    *("artifacts.wandb.email", "artifacts.model.hub_entity"),
)
"""Fields of any text, which is only shown or sent on."""


def payload_with(values: Mapping[str, Any]) -> dict[str, Any]:
    """A valid payload with these values at their paths."""
    payload: dict[str, Any] = {"metadata": {"worker": {"id": "cleanrl", "config": small()}}, "artifacts": {}}
    for path, value in values.items():
        *parents, key = path.split(".")
        section = payload
        for parent in parents:
            section = section.setdefault(parent, {})
        section[key] = [value] if key == "tags" else value
    return payload


@pytest.fixture
def canary(tmp_path: Path, plugins: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once a text of a config has been executed, by a shell or by an import."""
    path = tmp_path / "canary"
    install_scripted_worker(plugins)
    (plugins / "canary_module.py").write_text(MODULE)
    monkeypatch.setenv(CANARY_VARIABLE, str(path))
    # As from another program: this client would list the modules that its own user names, so that they are imported.
    monkeypatch.setattr("mosaic.trainer.client.trainer_client.with_imports", dict)
    return path


def files_outside(workspace: Workspace, place: Path) -> set[Path]:
    """What lies around the workspace, where a path with `..` would lead."""
    return {path for path in place.rglob("*") if not path.is_relative_to(workspace.root)}


def refusal_of(trainer: TrainerClient, payload: dict[str, Any]) -> MosaicError | None:
    try:
        trainer.check(payload)
    except MosaicError as refusal:
        return refusal
    return None


def assert_harmless(field: str, text: str, workspace: Workspace) -> None:
    """What was accepted as a part of a path stays inside of its folder, and has no character with a meaning."""
    if field in NAMES:
        assert not set(text) & set("/\\$`;|&\"' \0\n\r\t\x1b"), f"{field} accepts {text!r}"
    if field == LABEL:
        assert text.strip().isprintable(), f"{field} accepts {text!r}"
        assert not set(text) & set("/\\"), f"{field} accepts {text!r}"
    if field == FOLDER:
        assert text.isprintable(), f"{field} accepts {text!r}"
        assert (workspace.root / text).resolve().is_relative_to(workspace.root)


def test_a_hostile_value_is_refused_by_its_field_or_harmless(
    canary: Path, request: pytest.FixtureRequest, workspace: Workspace, tmp_path: Path
) -> None:
    """F26: traversal, absolute paths, NUL, newlines, modules, shell text and variables in each field of text."""
    trainer: TrainerClient = request.getfixturevalue("trainer")  # now: its daemon inherits the canary's variable
    before = files_outside(workspace, tmp_path)
    accepted: dict[str, str] = {}

    @settings(max_examples=300, derandomize=True, database=None)
    @given(field=st.sampled_from((*NAMES, LABEL, FOLDER, *CHOICES, *TEXTS)), text=HOSTILE)
    @example(field=FOLDER, text="../../../escaped")
    @example(field=FOLDER, text="a\nb")
    @example(field=f"{CONFIG}.env_id", text="canary_module:Maze-v0")
    @example(field=f"{CONFIG}.algo", text="canary_module")
    @example(field=f"{CONFIG}.run_id", text="../../x")
    def check(field: str, text: str) -> None:
        refusal = refusal_of(trainer, payload_with({field: text}))
        if refusal is None:
            accepted[field] = text
            assert_harmless(field, text, workspace)
        else:
            assert isinstance(refusal, BadInput), refusal
            assert field.rpartition(".")[2] in str(refusal) or repr(text) in str(refusal)
        assert not canary.exists()

    check()
    assert set(TEXTS) <= accepted.keys(), "The corpus never reached a field of any text."
    shell_text = f"$({COMMAND}) `{COMMAND}`; {COMMAND}"
    view = ended(trainer, trainer.submit(payload_with(dict.fromkeys(TEXTS, shell_text))).run_id)
    assert (view.outcome, view.notes) == ("succeeded", shell_text)
    assert not canary.exists()
    assert files_outside(workspace, tmp_path) == before


FORBIDDEN_KEYS = {
    "argv": [sys.executable, "-c", MODULE],
    "cleanrl": "/",
    "env": {"LD_PRELOAD": "/nowhere.so"},
    "LD_PRELOAD": "/nowhere.so",
    "module": "canary_module",
    "extras.entry_point": "canary_module:Env",
}


def test_a_config_cannot_name_a_program_a_module_or_a_variable(trainer: TrainerClient) -> None:
    """F26: there is no such key, or it is accepted only from a caller who passes an environment."""
    for key, value in FORBIDDEN_KEYS.items():
        with pytest.raises(ConfigRefused, match=key):
            trainer.submit(payload_with({f"{CONFIG}.{key}": value}))
        assert trainer.runs() == [], key


VARIABLES = {
    "a name with an equals sign": {"A=B": "x"},
    "an empty name": {"": "x"},
    "NUL in a name": {"A\0B": "x"},
    "NUL in a value": {"A": "x\0y"},
}


def test_an_environment_that_no_process_can_have_is_refused(trainer: TrainerClient, tmp_path: Path) -> None:
    """F26: a variable that the keeper could not pass on is named at once."""
    payload = script_payload([sys.executable, "-c", "pass"], tmp_path)
    for name, variables in VARIABLES.items():
        with pytest.raises(BadInput, match="environment variable"):
            trainer.submit(payload, caller_environment(**variables))
        assert trainer.runs() == [], name
