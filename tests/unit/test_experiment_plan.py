"""Experiments: what a file may contain, the runs that follow from it, and which of them are submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from mosaic.base.formatting import format_ranges
from mosaic.base.run_payloads import apply_assignments
from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.experiment_member import ExperimentMember
from mosaic.contracts.payload import Payload
from mosaic.contracts.states import Outcome, Stage
from mosaic.contracts.views import RunView
from mosaic.features.experiments.api import read_experiment, repeat_member
from mosaic.features.experiments.core import (
    ExperimentPlan,
    choose_submissions,
    format_counts,
    match_runs,
    plan_experiment,
)
from mosaic.trainer.client.run_lookup import split_superseded

BASE: dict[str, Any] = {
    "name": "study",
    "algorithms": ["ppo", {"name": "dqn", "learning_rate": 1e-3}],
    "environments": ["CartPole-v1", {"id": "FrozenLake-v1", "env_kwargs": {"is_slippery": False}}],
    "seeds": "1-2",
    "settings": {"total_timesteps": 1000},
    "options": {"cpus": 1, "tags": ["paper"]},
}


def plan(**changes: Any) -> ExperimentPlan:
    return plan_experiment(read_experiment({**BASE, **changes}))


def keys(made: ExperimentPlan) -> set[str]:
    return {run.key for run in made.runs}


def view_of(made: ExperimentPlan, at: int, run_id: str, outcome: Outcome | None, attempt: int = 1) -> RunView:
    member = Payload.parse(made.runs[at].build_payload(attempt)).metadata.experiment
    stage = Stage.RUNNING if outcome is None else Stage.FINISHED
    changes = {"group": made.name, "experiment": member, "stage": stage, "outcome": outcome}
    return RunView.placeholder(run_id).model_copy(update=changes)


def test_every_combination_is_a_run_with_the_settings_of_all_sections() -> None:
    made = plan(variants={"slow": {"learning_rate": 1e-5}, "default": None})
    titles = {run.cell.title for run in made.runs}
    assert len(made.runs) == len(keys(made)) == 16
    assert "dqn, slow on FrozenLake-v1" in titles
    payload = next(run for run in made.runs if run.cell.title == "dqn, default on FrozenLake-v1").build_payload()
    parsed = Payload.parse(payload)
    config = parsed.metadata.worker.config
    assert (config["algo"], config["env_id"], config["seed"], config["total_timesteps"]) == (
        *("dqn", "FrozenLake-v1"),
        *(1, 1000),
    )
    assert config["algo_params"] == {"learning_rate": 1e-3, "env_kwargs": {"is_slippery": False}}
    assert (parsed.metadata.group, parsed.metadata.tags, parsed.resources.cpus) == ("study", ("paper",), 1)
    slow = next(run for run in made.runs if run.cell.title == "dqn, slow on CartPole-v1")
    assert slow.build_payload()["metadata"]["worker"]["config"]["algo_params"]["learning_rate"] == 1e-5


def test_the_key_of_a_run_depends_on_its_settings_and_not_on_its_options_order_or_labels() -> None:
    same = (
        plan(options={"cpus": 2}),
        plan(settings={"total_timesteps": 1000.0, "gamma": 0.99}),  # 0.99 is the default
        plan(algorithms=[{"name": "dqn", "label": "DQN", "learning-rate": 0.001}, "ppo"]),
    )
    assert all(keys(other) == keys(plan()) for other in same)
    assert len(keys(plan(seeds=[2, 3])) & keys(plan())) == 4
    for changes in ({"settings": {"total_timesteps": 2000}}, {"seeds": "3-4"}):
        assert not keys(plan(**changes)) & keys(plan())
    assert plan().runs[0].key == "df122998b3150137a37a7b92ac853d5f", "A stored key must be found by later versions."


def test_a_run_that_is_submitted_again_by_hand_is_not_part_of_the_experiment() -> None:
    payload = Payload.parse(plan().runs[0].build_payload())
    assert payload.metadata.experiment is not None
    again = payload.without_experiment().to_json()
    assert "experiment" not in again["metadata"]
    assert {**again["metadata"], "experiment": None} == {**payload.to_json()["metadata"], "experiment": None}


REFUSED: dict[str, dict[str, Any]] = {
    r"algoritms: unknown key. Did you mean 'algorithms'\?$": {"algoritms": []},
    "algorithms.1: No algorithm 'pppo'.* Did you mean 'ppo'": {"algorithms": ["dqn", "pppo"]},
    r"algorithms.0.lerning_rate: ppo has no such setting. Did you mean 'learning_rate'": {
        "algorithms": [{"name": "ppo", "lerning_rate": 1}]
    },
    "settings.clip_coef: dqn has no such setting": {"settings": {"clip_coef": 0.1}},
    'variants.big.learning_rate: "high" does not fit; expected a number above': {
        "variants": {"big": {"learning_rate": "high"}}
    },
    "environments.0.seed: the section 'seeds' states it": {"environments": [{"id": "CartPole-v1", "seed": 3}]},
    "algorithms.0.name: missing": {"algorithms": [{"learning_rate": 0.1}]},
    "'cpu' is not an option of a run. Did you mean 'cpus'": {"options": {"cpu": 1}},
    "cpus: 0 does not fit; expected a whole number of at least 1": {"options": {"cpus": 0}},
    "'group' is not an option": {"options": {"group": "x"}},
    "two algorithms are called 'ppo'; give each a label": {"algorithms": ["ppo", {"name": "ppo", "gamma": 0.9}]},
    "have the same settings": {"algorithms": ["ppo", {"name": "ppo", "label": "again"}]},
    "seeds: 'a-b' is not a list of seeds": {"seeds": "a-b"},
    "the seed 4 is listed twice": {"seeds": [4, 4]},
    "these are 2,000 runs; at most 1,000 are accepted": {"seeds": "1-500"},
    "name: expected letters, digits": {"name": "a b"},
    "environments: tuple should have at least 1 item": {"environments": []},
}


@pytest.mark.parametrize("words", REFUSED)
def test_what_does_not_fit_is_refused_by_its_path(words: str) -> None:
    with pytest.raises(ConfigRefused, match=words):
        plan(**REFUSED[words])


def test_a_file_is_read_with_numbers_as_people_write_them(tmp_path: Path) -> None:
    path = tmp_path / "study.yaml"
    path.write_text(
        "name: s\nalgorithms: [ppo, {name: dqn, learning_rate: 1e-3}]\nenvironments: [CartPole-v1]\n"
        "seeds: 1-3,7\nsettings: {total_timesteps: 10k, hidden_sizes: '32,32'}\noptions: {memory_mb: 2k}\n"
    )
    config = read_experiment(path)
    assert config.seeds == (1, 2, 3, 7)
    payload = plan_experiment(config).cells[1].payload
    written = payload["metadata"]["worker"]["config"]
    assert (written["total_timesteps"], written["algo_params"]["hidden_sizes"]) == (10_000, [32, 32])
    assert payload["resources"] == {"memory_mb": 2000}
    path.write_text(path.read_text().replace("10k", "1e4"))
    assert plan_experiment(read_experiment(path)).cells[1].total_timesteps == 10_000
    path.write_text("name: s\nname: t\n")
    with pytest.raises(ConfigRefused, match="line 1: the key 'name' occurs twice"):
        read_experiment(path)
    assert format_ranges(config.seeds) == "1-3,7"


def test_only_missing_runs_are_submitted_and_those_that_failed_on_request() -> None:
    made = plan()
    views = [
        view_of(made, 0, "A", Outcome.SUCCEEDED),
        view_of(made, 1, "B", Outcome.FAILED),
        view_of(made, 2, "C", Outcome.CANCELLED),
        view_of(made, 3, "D", None),
        view_of(made, 4, "E", Outcome.FAILED),
        view_of(made, 4, "F", Outcome.LOST, attempt=2),
    ]
    runs = match_runs(made, views)
    planned = made.runs
    assert format_counts([run.status for run in runs]) == (
        "1 of 8 done, 1 failed, 1 lost, 1 cancelled, 1 running, 3 missing"
    )
    assert choose_submissions(runs, is_retry=False) == [(planned[at], 1) for at in (5, 6, 7)]
    assert choose_submissions(runs, is_retry=True) == [
        *((planned[1], 2), (planned[2], 2), (planned[4], 3)),
        *((planned[at], 1) for at in (5, 6, 7)),
    ]


def test_later_attempts_and_changed_settings_replace_earlier_runs() -> None:
    before, after = plan(), plan(settings={"total_timesteps": 2000})
    views = [
        view_of(before, 0, "A", Outcome.SUCCEEDED),  # its settings were changed
        view_of(before, 1, "B", Outcome.SUCCEEDED),
        view_of(before, 2, "C", Outcome.FAILED),
        view_of(before, 2, "D", Outcome.SUCCEEDED, attempt=2),
        view_of(after, 0, "E", Outcome.SUCCEEDED),
        RunView.placeholder("F").model_copy(update={"group": "study"}),
    ]
    current, superseded = split_superseded(views)
    assert [view.run_id for view in current] == ["B", "D", "E", "F"]
    assert [view.run_id for view in superseded] == ["A", "C"]
    elsewhere = [view.model_copy(update={"group": "other"}) for view in views[4:5]]
    assert split_superseded([views[0], *elsewhere])[1] == [], "another experiment replaces nothing"


def test_a_group_that_is_submitted_again_keeps_its_labels_and_has_keys_of_its_own() -> None:
    made = plan()
    first, second = (view_of(made, at, f"R{at}", Outcome.SUCCEEDED) for at in (0, 4))
    assert first.experiment is not None
    config = made.runs[0].build_payload()
    same = repeat_member(first, config, config, [first, second])["experiment"]
    assert same == {**first.experiment.model_dump(), "attempt": 2}, "it replaces the first one"
    assert repeat_member(first, config, config, [])["experiment"]["attempt"] == 1, "another group"

    longer = [apply_assignments(made.runs[at].build_payload(), {"total_timesteps": 2000}) for at in (0, 4)]
    changed = [
        repeat_member(view, config, payload, [])["experiment"]
        for view, payload in zip((first, second), longer, strict=True)
    ]
    assert len({one["key"] for one in changed} | {first.experiment.key}) == 3
    assert len({one["settings_key"] for one in changed} | {first.experiment.settings_key}) == 2, "but for the seed"
    assert {(one["setting"], one["environment"]) for one in changed} == {("ppo", "CartPole-v1")}
    other = apply_assignments(config, {"env_id": "Acrobot-v1"})
    assert repeat_member(first, config, other, []) == {}, "its label would be wrong"


def test_a_member_states_its_keys_as_digests() -> None:
    with pytest.raises(ValueError, match="pattern"):
        ExperimentMember(key="x", settings_key="y", setting="ppo", environment="CartPole-v1")
