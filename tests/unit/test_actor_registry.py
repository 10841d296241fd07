"""Actors and environment families of other packages: one that cannot be loaded does not break the others."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path

import pytest

from mosaic.contracts.errors import MosaicError
from mosaic.contracts.play import ActorChoice
from mosaic.worker.actor_registry import discover_actors
from mosaic.worker.actors import Seat, make_actor
from mosaic.worker.envs import families


@pytest.fixture
def plugins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A package whose actors and family are named by entry points, three of which cannot be loaded."""
    metadata = tmp_path / "third-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text("Metadata-Version: 2.1\nName: third\nVersion: 1.0\n")
    (metadata / "entry_points.txt").write_text(
        "[mosaic.actors]\nbroken = third_broken:describe\nwrong = third_actors:wrong\nthird = third_actors:describe\n"
        "random = third_broken:describe\n[mosaic.env_families]\nbroken = third_broken:FAMILY\n"
    )
    (tmp_path / "third_broken.py").write_text("import no_such_package\n")
    (tmp_path / "third_actors.py").write_text(
        "from mosaic.worker.actor_registry import ActorDescription\n"
        "def wrong(): return 5\n"
        "def describe(): return ActorDescription('third', 'Third', 'Acts.', '', 'mosaic.worker.actors:RandomActor')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    discover_actors.cache_clear()
    yield tmp_path
    discover_actors.cache_clear()


def test_an_actor_that_cannot_be_loaded_is_listed_with_the_reason(plugins: Path) -> None:
    """R9.3: the others work."""
    actors = discover_actors()
    assert actors["third"].title == "Third"
    assert {kind for kind, actor in actors.items() if actor.problem} == {"broken", "wrong"}
    assert "No module named 'no_such_package'" in actors["broken"].problem
    assert "it returned 5" in actors["wrong"].problem
    with pytest.raises(MosaicError, match=r"'broken' \(third_broken:describe\) cannot be loaded"):
        make_actor(ActorChoice.parse("broken"), Seat("FrozenLake-v1", "*", None, None))


def test_a_family_that_cannot_be_loaded_is_skipped_with_a_warning(plugins: Path) -> None:
    with pytest.warns(UserWarning, match="family 'broken'.*cannot be loaded"):
        assert "toy_text" in families._load_families()
