"""Every algorithm's help page says what it must, of the settings and the algorithms that there are."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import cleanrl_worker
from cleanrl_worker.registry import ALGORITHMS, load_algorithm

EACH = pytest.mark.parametrize("name", ALGORITHMS)
FAMILIES = {"classic control", "Box2D", "Atari", "MuJoCo", "MiniGrid", "Procgen"}
_ALGORITHM = re.compile(r"(?:a2c|ppo|ppg|rpo|dqn|c51|pqn|qrdqn|tqc|sac|td3|ddpg|rainbow|qdagger)(?:_[a-z_]+)?")


def page_of(name: str) -> str:
    return (Path(cleanrl_worker.__file__).parent / "docs" / f"{name}.md").read_text()


def table_under(heading: str, page: str) -> list[list[str]]:
    """The cells of the table's rows, below its head."""
    _, found, rest = page.partition(f"\n## {heading}")
    assert found, f"no heading {heading!r}"
    lines = [line for line in rest.partition("\n## ")[0].splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in line.strip("|").split("|")] for line in lines[2:]]


def quoted(text: str) -> list[str]:
    return re.findall(r"`([^`]+)`", text)


@EACH
def test_a_page_has_description_usage_and_publication(name: str) -> None:
    page = page_of(name)
    assert page.startswith("# ")
    for part in ("\n**What it is.** ", "\n**When to use it.** ", "\n## How it runs\n", "\n## Files\n"):
        assert part in page, part
    assert re.search(r"Papers?: .+?<https://[^>]+>", page, re.DOTALL)


@EACH
def test_each_setting_has_its_sentence_and_its_usual_range(name: str) -> None:
    """R7.3: help."""
    rows = table_under("Settings", page_of(name))
    told = [setting for settings, _, _ in rows for setting in quoted(settings)]
    assert sorted(told) == sorted(load_algorithm(name).Config.model_fields)
    for settings, sentence, usual in rows:
        assert len(sentence) > 10, settings
        assert usual, settings


@EACH
def test_every_family_has_its_timesteps_or_the_reason_why_it_does_not_fit(name: str) -> None:
    rows = table_under("Recommended timesteps", page_of(name))
    assert {family for families, *_ in rows for family in families.split(", ")} >= FAMILIES
    for families, environment, steps, notes in rows:
        assert environment
        assert re.match(r"\d", steps) or (steps == "–" and notes), families
        # A word in quotes is a setting of this algorithm or another algorithm.
        for word in quoted(notes):
            assert word in load_algorithm(name).Config.model_fields or word in ALGORITHMS, word


@EACH
def test_pages_link_only_to_existing_algorithms(name: str) -> None:
    named = [word for word in quoted(page_of(name)) if _ALGORITHM.fullmatch(word)]
    assert set(named) <= {*ALGORITHMS, *load_algorithm(name).Config.model_fields}
