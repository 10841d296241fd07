"""The documentation site, built as `make docs` does: no broken links, nothing from other sites."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from mosaic.base.algorithm_schema import load_algorithms
from mosaic.cli.main import COMMANDS
from mosaic.contracts.events import EVENT_TYPES
from mosaic.contracts.states import Stage

ROOT = Path(__file__).parents[2]
LOADED = re.compile(
    r'<(?:script|img|iframe)[^>]* src="([^"]+)"|<link[^>]* rel="(?:stylesheet|preconnect)"[^>]* href="([^"]+)"'
)


def build(config: Path, site: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--config-file", str(config), "--site-dir", str(site)],
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    result = build(ROOT / "mkdocs.yml", folder)
    assert result.returncode == 0, result.stderr
    return folder


def test_commands_algorithms_events_and_stages_are_on_their_pages(site: Path) -> None:
    text = (site / "reference" / "commands.html").read_text()
    assert [name for name in COMMANDS if f'id="mosaic-{name}"' not in text] == []
    for name, algorithm in load_algorithms().items():
        page = (site / "reference" / "algorithms" / f"{name}.html").read_text()
        assert [field.flag for field in algorithm.fields if f"<code>{field.flag}</code>" not in page] == []
    text = (site / "reference" / "events.html").read_text()
    assert [kind for kind in EVENT_TYPES if f">{kind}<" not in text] == []
    text = (site / "concepts" / "lifecycle.html").read_text()
    assert [stage for stage in Stage if f">{stage}</text>" not in text] == []


def test_the_python_api_has_signatures_and_sentences(site: Path) -> None:
    text = (site / "reference" / "python.html").read_text()
    assert 'id="mosaic.features.runs.api.Client.train"' in text
    assert 'id="mosaic.features.runs.api_run.Run.evaluate"' in text


def test_drawings_are_part_of_their_pages_and_no_marker_is_left(site: Path) -> None:
    assert '<svg class="drawing"' in (site / "architecture.html").read_text()
    assert [page.name for page in site.rglob("*.html") if "<!-- from the code" in page.read_text()] == []


def test_a_page_loads_nothing_from_other_sites(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 60
    loaded = {one or other for page in pages for one, other in LOADED.findall(page.read_text())}
    assert loaded
    assert {address for address in loaded if "//" in address} == set()
    styles = [sheet.read_text() for sheet in site.rglob("*.css")]
    assert [style for style in styles if re.search(r"url\([\"']?(?:https?:)?//", style)] == []


def test_a_broken_link_or_anchor_fails_the_build(tmp_path: Path) -> None:
    rules = yaml.safe_load((ROOT / "mkdocs.yml").read_text())["validation"]
    config, page = tmp_path / "mkdocs.yml", tmp_path / "docs" / "index.md"
    config.write_text(json.dumps({"site_name": "small", "plugins": [], "validation": rules}))
    page.parent.mkdir()
    for link, is_good in {"index.md#here": True, "index.md#nowhere": False, "missing.md": False}.items():
        page.write_text(f"# Here\n\n[link]({link})\n")
        assert (build(config, tmp_path / "site").returncode == 0) is is_good, link
