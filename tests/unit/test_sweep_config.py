"""What a sweep's file may say, and which runs it means."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from mosaic.base.algorithm_schema import get_algorithm, load_algorithms
from mosaic.contracts.errors import ConfigRefused
from mosaic.contracts.setting_field import SettingField
from mosaic.features.sweeps.cli import format_initial_file, print_best_trials
from mosaic.features.sweeps.core import (
    TrialRow,
    TrialStatus,
    build_search_space,
    changed_keys,
    default_entries,
    parse_sweep,
    plan_sweep,
    read_sweep,
)

CONFIG: dict[str, Any] = {
    "name": "study",
    "algorithm": "ppo",
    "environments": ["CartPole-v1"],
    "settings": {"total_timesteps": 1000},
    "search": {"learning_rate": {"low": 1e-4, "high": 1e-2, "log": True}, "num_steps": {"values": [64, 128]}},
}
TWO = {"environments": ["CartPole-v1", "Acrobot-v1"]}


@pytest.mark.parametrize(
    ("changes", "problem"),
    [
        ({"trails": 5}, "trails: unknown key. Did you mean 'trials'?"),
        ({"search": {"gamma": {"lwo": 0.9, "high": 1}}}, "search.gamma.lwo: unknown key. Did you mean 'low'?"),
        ({"pruning": {"method": "asha", "reduction": 3}}, "pruning.reduction: unknown key. Did you mean 'reduction_f"),
        ({"pruning": "hyperband"}, "pruning.method: input should be 'asha', 'median' or 'none'"),
        ({"pruning": {"method": "asha", "startup_trials": 3}}, "startup_trials goes with median"),
        ({"search": {}}, "search: expected settings with what to try"),
        ({"search": {"gamma": {"low": 0.9}}}, "search.gamma: low and high go together"),
        ({"search": {"gamma": {"low": 0.9, "high": 0.5}}}, "search.gamma: expected low below high"),
        ({"search": {"gamma": {"low": 0, "high": 1, "log": True}}}, "with log, low must be above 0"),
        ({"search": {"gamma": {"values": [0.9, 0.5]}}}, "search.gamma: expected ascending values"),
        ({"search": {"gamma": {"choices": [0.9, 0.9]}}}, "search.gamma: a choice is listed twice"),
        ({"search": {"gamma": {"low": "20q", "high": 1}}}, "search.gamma.low: expected a number such as 0.01, 20k or"),
        ({"sampler": "grid"}, "search.learning_rate: a grid needs choices or values instead of a range"),
        ({"score": "lower", "seeds_per_trial": 1}, "score: lower needs at least 2 seeds_per_trial"),
        (TWO, "reference_scores must say which returns count as 0 and 1"),
        ({"algorithm": "pppo"}, "algorithm: No algorithm 'pppo'"),
        ({"search": {"learning_rat": {"low": 0.1, "high": 0.2}}}, "search.learning_rat: ppo has no such setting. Did"),
        ({"search": {"gamma": {"low": 0.9, "high": 1.5}}}, "search.gamma: 1.5 does not fit; expected a number of at"),
        ({"search": {"num_steps": {"values": [1, 64]}}}, "search.num_steps: 1 does not fit"),
        ({"search": {"activation": {"low": 0, "high": 1}}}, "search.activation: it has no range; give choices of one"),
        ({"search": {"activation": {"choices": ["tanh", "sigmoid"]}}}, 'search.activation: "sigmoid" does not fit'),
        ({"search": {"total_timesteps": {"values": [1, 2]}}}, "trials of different length cannot be compared"),
        ({"search": {"seed": {"values": [1, 2]}}}, "search.seed: every trial has the same seeds"),
        ({"settings": {"num_steps": 64}}, "search.num_steps: 'settings' states a value of it, too"),
        ({"settings": {"gama": 0.9}}, "settings.gama: ppo has no such setting"),
    ],
)
def test_what_does_not_fit_is_refused_by_its_path(changes: dict[str, Any], problem: str) -> None:
    with pytest.raises(ConfigRefused) as refused:
        plan_sweep(parse_sweep(CONFIG | changes))
    assert problem in str(refused.value)


def test_ranges_values_and_reference_scores_may_be_written_as_the_flags_take_them(tmp_path: Path) -> None:
    file = tmp_path / "sweep.yaml"
    file.write_text("""
name: study
algorithm: dqn
environments: [CartPole-v1]
settings: {total_timesteps: 1M}
search:
  learning_rate: {low: "3e-4", high: 1e-2, log: true}
  buffer_size: {low: 10k, high: 1M, log: true}
  learning_starts: {values: [500, 2.5k, "10,000"]}
reference_scores: {CartPole-v1: {low: 20, high: 0.5k}}
""")
    config = parse_sweep(read_sweep(file))
    rate, size, starts = build_search_space(get_algorithm("dqn"), config.search, {})[0]
    assert (rate.low, rate.high) == (3e-4, 1e-2)
    assert (size.low, size.high, size.is_int) == (10_000, 1_000_000, True)
    assert starts.options == (500, 2500, 10_000)
    assert config.reference_scores["CartPole-v1"].high == 500


def test_the_default_search_of_every_algorithm_fits_its_schema() -> None:
    for name, algorithm in load_algorithms().items():
        entries = default_entries(algorithm)
        if not any(field.name == "total_timesteps" for field in algorithm.fields):
            continue
        dimensions, problems = build_search_space(algorithm, entries, {})
        assert not problems, (name, problems)
        assert len(dimensions) >= 3, name
        rates = [one for one in dimensions if one.name in ("learning_rate", "policy_lr", "init_lr")]
        assert all(one.contains(algorithm.default(one.name)) for one in rates), name
        assert rates, name


def test_default_ranges_stay_within_the_limits_of_another_worker() -> None:
    fields = (
        SettingField("learning_rate", "float", 0.5, constraints={"gt": 0, "lt": 1}),
        SettingField("gamma", "float", 0.5, constraints={"ge": 0, "le": 0.6}),
        SettingField("gae_lambda", "float", 0.9, constraints={"ge": 0.85, "le": 0.95}),
        SettingField("update_epochs", "int", 2, constraints={"ge": 1, "le": 3}),
    )
    entries = default_entries(replace(get_algorithm("ppo"), fields=fields))
    assert {name: (entry.low, entry.high) for name, entry in entries.items()} == {
        "learning_rate": (0.05, 0.5),
        "gae_lambda": (0.85, 0.95),
        "update_epochs": (1, 3),
    }


def test_the_file_that_init_writes_is_accepted_and_means_the_default_search(tmp_path: Any) -> None:
    for name in ("ppo", "a2c", "dqn", "sac_continuous_action", "ppo_trxl"):
        path = tmp_path / f"{name}.yaml"
        path.write_text(format_initial_file(get_algorithm(name), "CartPole-v1", f"{name}-study"))
        written = plan_sweep(parse_sweep(read_sweep(path)))
        default = plan_sweep(parse_sweep(CONFIG | {"algorithm": name, "search": "default"}))
        assert written.dimensions == default.dimensions


def test_a_setting_that_is_fixed_is_left_out_of_the_default_search() -> None:
    plan = plan_sweep(parse_sweep(CONFIG | {"search": "default", "settings": {"gamma": 0.9}}))
    names = [dimension.name for dimension in plan.dimensions]
    assert "learning_rate" in names
    assert "gamma" not in names


def test_each_trial_has_runs_of_its_own_that_are_found_again() -> None:
    plan = plan_sweep(parse_sweep(CONFIG | {"seeds_per_trial": 3}))
    params = {"learning_rate": 1e-3, "num_steps": 64}
    first, again = (plan.plan_trial("a", 0, params) for _ in range(2))
    keys = [run.key for run in first.runs]
    assert [run.seed for run in first.runs] == [1, 2, 3]
    assert keys == [run.key for run in again.runs]
    others = [plan.plan_trial("a", 1, params), plan.plan_trial("b", 0, params)]
    assert not set(keys) & {run.key for other in others for run in other.runs}
    config = first.runs[0].build_payload()["metadata"]["worker"]["config"]
    assert config["algo_params"] == params
    assert config["total_timesteps"] == 1000


def test_a_grid_has_all_combinations_and_no_more_trials() -> None:
    search = {"num_steps": {"values": [64, 128]}, "activation": {"choices": ["tanh", "relu", "elu"]}}
    grid = parse_sweep(CONFIG | {"search": search, "sampler": "grid"})
    assert plan_sweep(grid).trial_count == 6
    assert plan_sweep(grid).grid()[1] == {"num_steps": 64, "activation": "relu"}
    assert plan_sweep(parse_sweep(CONFIG | {"search": search, "sampler": "grid", "trials": 4})).trial_count == 4
    assert plan_sweep(parse_sweep(CONFIG | {"search": search})).trial_count == 20


def test_only_what_does_not_change_the_meaning_of_scores_may_change_in_a_study() -> None:
    stored = parse_sweep(CONFIG)
    assert changed_keys(stored, parse_sweep(CONFIG | {"trials": 50, "parallel": 8, "options": {"cpus": 1}})) == []
    assert changed_keys(stored, parse_sweep(CONFIG | {"metric": "area", "seeds_per_trial": 5})) == [
        "seeds_per_trial",
        "metric",
    ]


def test_the_preset_of_a_trial_has_its_settings_and_neither_seed_nor_options() -> None:
    plan = plan_sweep(parse_sweep(CONFIG | {"options": {"tags": ["x"], "cpus": 1}}))
    preset = plan.build_preset({"learning_rate": 1e-3, "num_steps": 64})
    assert (preset.worker, preset.algorithm, preset.seeds, preset.rest) == ("cleanrl", "ppo", None, {})
    core = {"env_id": "CartPole-v1", "total_timesteps": plan.plan_defaults().cells[0].total_timesteps}
    assert preset.settings == {**core, "learning_rate": 1e-3, "num_steps": 64}


@pytest.mark.parametrize(("columns", "heading"), [("80", "SETTINGS"), ("200", "LEARNING_RATE")])
def test_the_table_of_trials_shows_every_score_in_a_narrow_terminal(
    columns: str, heading: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", columns)
    plan = plan_sweep(parse_sweep(CONFIG | {"search": "default", "seeds_per_trial": 2}))
    params = plan.default_params or {}
    rows = [TrialRow(at, TrialStatus.DONE, params, 100.0 + at, seed_scores=(99.0, 101.0 + 2 * at)) for at in range(3)]
    print_best_trials(plan, rows)
    lines = capsys.readouterr().out.splitlines()
    assert heading in lines[0]
    assert [line.split()[:2] for line in lines if line.split()[0].isdigit()] == [
        ["2", "102"],
        ["1", "101"],
        ["0", "100"],
    ]
    assert "…" not in "".join(lines)
