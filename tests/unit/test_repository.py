"""The repository describes itself correctly: stubs, pins, versions, documents."""

from __future__ import annotations

import os
import re
import sysconfig
import tomllib
from importlib.metadata import version
from pathlib import Path

import pytest
from grpc_tools import protoc

import mosaic
from mosaic.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").rglob("*.md"))]


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def code_lines(document: Path) -> list[str]:
    return [
        line.split("#")[0].strip()
        for block in re.findall(r"^```(?:sh|console)?\n(.*?)^```", document.read_text(), re.MULTILINE | re.DOTALL)
        for line in block.splitlines()
    ]


def test_the_protobuf_stubs_are_what_protoc_makes_of_the_proto(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", sysconfig.get_path("scripts") + os.pathsep + os.environ["PATH"])
    outputs = [f"--{kind}_out={tmp_path}" for kind in ("python", "grpc_python", "mypy", "mypy_grpc")]
    assert protoc.main(["protoc", f"-I{SOURCE}", *outputs, "mosaic/contracts/trainer.proto"]) == 0
    made = {path.name: path.read_text() for path in (tmp_path / "mosaic" / "contracts").iterdir()}
    committed = {path.name: path.read_text() for path in (SOURCE / "mosaic" / "contracts").glob("trainer_pb2*")}
    assert made == committed, "The stubs are stale: make stubs"


def test_the_installed_version_is_that_of_the_source() -> None:
    assert version("mosaic-rl") == mosaic.__version__


def test_the_changelog_knows_the_version_or_is_about_to() -> None:
    headings = re.findall(r"^## \[(.+?)\]", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert headings[0] == "Unreleased" or headings[0] == mosaic.__version__


def test_everything_that_pyproject_names_is_pinned() -> None:
    wanted = [
        *PROJECT["dependencies"],
        *(need for extra in PROJECT["optional-dependencies"].values() for need in extra),
    ]
    names = {normal(re.split(r"[\[<>=!~ ;]", need)[0]) for need in wanted}
    assert names - {normal(name) for name in pins()} == set()


def test_a_pin_is_a_version_that_any_machine_can_get() -> None:
    """No local build tag, no path, no range."""
    assert {name: pin for name, pin in pins().items() if not re.fullmatch(r"[0-9][0-9a-z.]*", pin)} == {}


def test_torch_is_the_release_that_was_proven() -> None:
    assert pins()["torch"] == "2.13.0"


def test_the_commands_to_make_that_documents_name_exist() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    named = {found for document in DOCUMENTS for found in re.findall(r"`make ([a-z]+)", document.read_text())}
    named |= {line.split()[1] for document in DOCUMENTS for line in code_lines(document) if line.startswith("make ")}
    assert {"run", "test"} <= named
    assert named - targets == set()


def test_the_commands_of_mosaic_that_documents_name_exist() -> None:
    named = {found for document in DOCUMENTS for found in re.findall(r"`mosaic ([a-z]+)", document.read_text())}
    named |= {
        call.split()[1]
        for document in DOCUMENTS
        for line in code_lines(document)
        for call in line.split(";")
        if re.match(r"\s*mosaic [a-z]", call)
    }
    assert len(named) > 10
    assert named - COMMANDS.keys() == set()


def test_the_links_between_documents_lead_somewhere() -> None:
    for document in DOCUMENTS:
        for target in re.findall(r"\]\(([^)#]+)[^)]*\)", document.read_text()):
            if "://" not in target:
                assert (document.parent / target).exists(), f"{document.name} links to {target}"


def test_continuous_integration_runs_what_a_developer_runs() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    assert [line for line in commands if "make" in line] == ["exec make test"]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_architecture_page_tells_of_every_room() -> None:
    told = (ROOT / "docs" / "architecture.md").read_text()
    rooms = [path.parent.name for path in (SOURCE / "mosaic").glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}`" not in told] == []
