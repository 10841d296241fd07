"""The repository describes itself correctly: stubs, pins, versions, documents."""

from __future__ import annotations

import os
import re
import runpy
import tomllib
import zipfile
from datetime import date
from importlib.metadata import distributions, version
from pathlib import Path

import pytest
import yaml
from hatchling.builders.wheel import WheelBuilder

import mosaic
from mosaic.cli.main import COMMANDS

ROOT = Path(__file__).parents[2]
SOURCE = ROOT / "src"
PYPROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
PROJECT = PYPROJECT["project"]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "SECURITY.md", *sorted((ROOT / "docs").rglob("*.md"))]
GENERATED = ROOT / "docs" / "reference" / "algorithms"
"""Pages of the site that are not in the repository; a strict build checks links to them."""


def normal(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def pins() -> dict[str, str]:
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def named_by_pyproject() -> set[str]:
    requirements = [*PROJECT["dependencies"], *PYPROJECT["build-system"]["requires"]]
    requirements += [need for extra in PROJECT["optional-dependencies"].values() for need in extra]
    # An extra that is made of others names the project itself.
    return {normal(re.split(r"[\[<>=!~ ;]", requirement)[0]) for requirement in requirements} - {PROJECT["name"]}


def code_lines(document: Path) -> list[str]:
    return [
        line.split("#")[0].strip()
        for block in re.findall(
            r"^```(?:sh|console)?\n(.*?)^```", document.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
        )
        for line in block.splitlines()
    ]


def as_numbers(release: str) -> tuple[int, ...]:
    return tuple(map(int, release.split(".")))


@pytest.fixture
def in_repository(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", os.environ["PATH"])  # the stubs' generator extends it
    monkeypatch.chdir(ROOT)


@pytest.mark.usefixtures("in_repository")
def test_the_protobuf_stubs_are_what_protoc_makes_of_the_proto(tmp_path: Path) -> None:
    runpy.run_path("scripts/generate.py")["generate_stubs"](tmp_path)
    current = {path.name: path.read_text() for path in (tmp_path / "mosaic" / "contracts").iterdir()}
    stubs = {path.name: path.read_text() for path in (SOURCE / "mosaic" / "contracts").glob("trainer_pb2*")}
    assert stubs == current, "The stubs are out of date: make stubs"


def test_the_stubs_run_with_the_oldest_packages_that_pyproject_allows() -> None:
    oldest = dict(requirement.split(">=") for requirement in PROJECT["dependencies"])
    contracts = SOURCE / "mosaic" / "contracts"
    protobuf = re.search(r"Protobuf Python Version: ([0-9.]+)", (contracts / "trainer_pb2.py").read_text())
    grpc = re.search(r"GRPC_GENERATED_VERSION = '([0-9.]+)'", (contracts / "trainer_pb2_grpc.py").read_text())
    assert protobuf is not None
    assert grpc is not None
    assert as_numbers(oldest["protobuf"]) >= as_numbers(protobuf[1])
    assert as_numbers(oldest["grpcio"]) >= as_numbers(grpc[1])


def test_wheels_get_the_stubs_of_the_generator_that_is_pinned() -> None:
    assert f"grpcio-tools=={pins()['grpcio-tools']}" in PYPROJECT["build-system"]["requires"]


@pytest.mark.usefixtures("in_repository")
def test_the_wheel_has_types_stubs_schema_and_help_pages(tmp_path: Path) -> None:
    [wheel] = WheelBuilder(str(ROOT)).build(directory=str(tmp_path), versions=["standard"])
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    packages = {name.split("/")[0] for name in names if ".dist-info" not in name}
    assert packages == {"mosaic", "cleanrl_worker", "bdi_worker"}
    files = {path for package in packages for path in (SOURCE / package).rglob("*") if path.is_file()}
    assert names >= {path.relative_to(SOURCE).as_posix() for path in files if "__pycache__" not in path.parts}
    contracts = {
        f"mosaic/contracts/trainer_pb2{end}"
        for end in (".py", ".pyi", "_grpc.py", "_grpc.pyi", "_verbs.py", "_handlers.py")
    }
    assert {"mosaic/py.typed", "cleanrl_worker/py.typed", "mosaic/contracts/trainer.proto", *contracts} <= names
    assert not {name for name in names if "__pycache__" in name}
    has_library = "cleanrl_worker/environments/libclassic_control.so" in names
    assert str(wheel).endswith("py3-none-any.whl") != has_library


def test_the_installed_version_is_that_of_the_source() -> None:
    assert version("mosaic-rl") == mosaic.__version__


def test_the_newest_section_of_the_changelog_is_that_of_the_version() -> None:
    headings = re.findall(r"^## \[(.+?)\](?: - (\S+))?$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    release, day = headings[headings[0] == ("Unreleased", "")]  # which only exists once something has changed
    assert release == mosaic.__version__
    assert date.fromisoformat(day)


def test_the_citation_is_of_the_released_version() -> None:
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    released = re.search(r"^## \[([0-9.]+)\] - (\S+)$", (ROOT / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert released is not None
    assert (citation["version"], str(citation["date-released"])) == released.groups()
    assert citation["license"] == PROJECT["license"]
    # The keys that version 1.2.0 of the format requires.
    assert citation["cff-version"] == "1.2.0"
    assert citation["message"]
    assert citation["title"]
    assert citation["authors"]


def test_the_forms_for_issues_have_what_is_required() -> None:
    folder = ROOT / ".github" / "ISSUE_TEMPLATE"
    assert yaml.safe_load((folder / "config.yml").read_text())["blank_issues_enabled"] is True
    for form in (folder / "bug_report.yml", folder / "feature_request.yml"):
        content = yaml.safe_load(form.read_text())
        assert content["name"]
        assert content["description"]
        assert any(part.get("validations", {}).get("required") for part in content["body"])
        assert all(part["type"] in ("markdown", "textarea", "input", "dropdown") for part in content["body"])


def test_the_dockerfile_installs_extras_and_runs_commands_that_exist() -> None:
    text = (ROOT / "Dockerfile").read_text()
    (extras,) = re.findall(r"mosaic-rl\[([a-z0-9_,]+)\]", text)
    assert set(extras.split(",")) <= set(PROJECT["optional-dependencies"])
    copied = [path for line in re.findall(r"^COPY (?!--from)(.+) \S+$", text, re.MULTILINE) for path in line.split()]
    assert copied
    assert all((ROOT / path).exists() for path in copied)
    ignored = (ROOT / ".dockerignore").read_text().split()
    assert not set(copied) & set(ignored)
    assert set(re.findall(r"\bmosaic ([a-z]+)", text)) <= {*COMMANDS}
    assert re.search(r"^USER (?!root)\S+$", text, re.MULTILINE)


def test_the_classifiers_name_the_pythons_that_are_tested() -> None:
    workflow = yaml.safe_load((ROOT / ".github" / "workflows" / "tests.yml").read_text())
    prefix = "Programming Language :: Python :: 3."
    named = [f"3.{one.removeprefix(prefix)}" for one in PROJECT["classifiers"] if one.startswith(prefix)]
    assert dict.fromkeys(workflow["jobs"], named) == {
        job: steps["strategy"]["matrix"]["python"] for job, steps in workflow["jobs"].items()
    }
    assert named == [*runpy.run_path(str(ROOT / "scripts" / "wheels.py"))["VERSIONS"]]


def test_everything_that_pyproject_names_is_pinned() -> None:
    assert named_by_pyproject() - {normal(name) for name in pins()} == set()


def test_a_pin_is_a_version_that_any_machine_can_get() -> None:
    """No local build tag, no path, no range."""
    assert {name: pin for name, pin in pins().items() if not re.fullmatch(r"[0-9][0-9a-z.]*", pin)} == {}


def test_the_tests_run_with_the_pinned_versions() -> None:
    pinned = {normal(name): pin for name, pin in pins().items() if normal(name) in named_by_pyproject()}
    installed = {normal(found.name): found.version.split("+")[0] for found in distributions()}
    differing = {name: installed[name] for name in pinned.keys() & installed.keys() if installed[name] != pinned[name]}
    assert differing == {}, "installed versions that constraints.txt does not have: scripts/setup.sh test"


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
            path = (document.parent / target).resolve()
            if "://" not in target and GENERATED not in path.parents:
                assert path.exists(), f"{document.name} links to {target}"


def test_continuous_integration_runs_what_a_developer_runs() -> None:
    commands = (ROOT / ".ci" / "run").read_text().splitlines()
    wheels = 'make wheels ARGS="--extras minimal,train"'
    assert [line for line in commands if "make" in line] == ["make test", "make audit", wheels]
    assert os.access(ROOT / ".ci" / "run", os.X_OK)


def test_the_page_of_packages_lists_every_package() -> None:
    told = (ROOT / "docs" / "concepts" / "packages.md").read_text()
    rooms = [path.parent.name for path in (SOURCE / "mosaic").glob("*/__init__.py")]
    assert [room for room in rooms if f"`{room}`" not in told] == []


def test_the_table_of_requirements_names_tests_that_exist() -> None:
    text = (ROOT / "docs" / "requirements.md").read_text()
    named = re.findall(r"`(\w+/test_\w+\.py)(?:::(\w+))?`", text)
    assert len(named) > 50
    missing = [f"{path}::{test}" for path, test in named if f"def {test}" not in (ROOT / "tests" / path).read_text()]
    assert missing == []
