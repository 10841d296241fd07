"""Which policy is the best, and how that is shown."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator

from tests.helpers.cli_trainer import FakeTrainer, call
from tests.helpers.evaluations import batch, evaluation

from mosaic.contracts.views import Evaluation
from mosaic.features.evaluate.core import rank_policies

STEADY = [200.0, 202.0, 198.0, 200.0] * 5
WILD = [10.0, 500.0, 400.0, 20.0] * 5
"""A higher mean than STEADY's, and far less sure."""


class Evaluated(FakeTrainer):
    def __init__(self, *results: Evaluation) -> None:
        super().__init__()
        self.results = results

    def read_evaluations(self, run: str = "", env_id: str = "") -> Iterator[Evaluation]:
        return (one for one in self.results if env_id in ("", one.summary.env_id))


def test_the_lower_end_of_the_interval_decides_for_each_environment() -> None:
    places = rank_policies([evaluation(3, WILD), evaluation(2, STEADY), evaluation(1, [1.0, 2.0], env_id="Acrobot-v1")])
    assert [(place.env_id, place.rank, place.run_id) for place in places] == [
        ("Acrobot-v1", 1, "01EVAL00001"),
        ("CartPole-v1", 1, "01EVAL00002"),
        ("CartPole-v1", 2, "01EVAL00003"),
    ]
    assert places[1].mean.point < places[2].mean.point
    assert places[1].mean.low > places[2].mean.low


def test_the_newest_evaluation_of_a_checkpoint_counts_with_all_its_batches() -> None:
    old, new = evaluation(1, [500.0] * 4), evaluation(2, [100.0, 102.0], [104.0, 102.0])
    same = new.model_copy(update={"trained": old.trained})
    assert old.trained is not None
    policy_path = f"/runs/{old.trained.run_id}/runs/name/ppo.cleanrl_model"
    by_file = same.model_copy(update={"summary": new.summary.model_copy(update={"policy_path": policy_path})})
    for newer in (same, by_file):
        [place] = rank_policies([newer, old])
        assert (place.run_id, place.episodes, place.mean.point) == ("01EVAL00002", 4, 102.0)


def test_policies_without_a_local_run_are_distinguished_by_file() -> None:
    one = evaluation(1, STEADY, trained=None, policy_path="/elsewhere/a/ppo.cleanrl_model", checkpoint_step=None)
    other = evaluation(2, STEADY, trained=None, policy_path="/elsewhere/b/checkpoints/5")
    assert {place.policy_label for place in rank_policies([other, one])} == {"ppo.cleanrl_model", "b"}


def test_a_stochastic_policy_is_ranked_separately() -> None:
    sure, drawn = evaluation(1, STEADY), evaluation(2, WILD, deterministic=False)
    assert len(rank_policies([drawn.model_copy(update={"trained": sure.trained}), sure])) == 2


def test_equally_good_policies_share_a_rank() -> None:
    perfect = [500.0] * 5
    places = rank_policies([evaluation(3, STEADY), evaluation(2, perfect), evaluation(1, perfect)])
    assert [place.rank for place in places] == [1, 1, 3]


def test_without_an_interval_a_policy_comes_last() -> None:
    not_finite = {**batch(1, [500.0, 500.0]), "returns": [500.0, None]}
    endless = evaluation(2, batches=[not_finite])
    first, *others = rank_policies([evaluation(3, [500.0]), endless, evaluation(1, [1.0, 2.0])])
    assert first.run_id == "01EVAL00001"
    assert not any(math.isfinite(place.mean.low) for place in others)


def test_the_command_prints_a_table_for_each_environment() -> None:
    trainer = Evaluated(evaluation(2, STEADY), evaluation(1, [1.0, 2.0], env_id="Acrobot-v1", deterministic=False))
    lines = [line.rstrip() for line in call(trainer, "leaderboard").out.splitlines()]
    assert lines[0] == "Acrobot-v1"
    assert "ppo (stochastic)" in lines[2]
    assert lines[4] == "CartPole-v1"
    assert lines[5].split()[:4] == ["RANK", "POLICY", "ALGO", "STEP"]
    assert lines[6].split()[:6] == ["1", "D00002", "seed", "2", "ppo", "512"]
    assert "200  199.3 to 200.7  200" in lines[6]


def test_the_command_answers_programs_in_json() -> None:
    [row] = json.loads(call(Evaluated(evaluation(2, [1.0])), "leaderboard", "--json").out)
    assert row["ci95"] == [None, None]
    assert (row["rank"], row["episodes"], row["avg_return"], row["seed"]) == (1, 1, 1.0, 2)
    assert row["run_id"] == "01TRAINED00002"
    assert row["evaluation"] == "01EVAL00002"


def test_an_empty_board_and_an_unknown_environment_are_reported() -> None:
    assert "No policy has been evaluated yet" in call(Evaluated(), "leaderboard").err
    assert call(Evaluated(), "leaderboard", "--json", "--env", "x").out == "[]\n"
    result = call(Evaluated(evaluation(1, STEADY)), "leaderboard", "--env", "CartPole-v0")
    assert result.code == 2
    assert result.err.startswith("No environment 'CartPole-v0' in the evaluations. Did you mean 'CartPole-v1'?")
