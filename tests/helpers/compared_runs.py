"""Groups of finished runs for commands that compare them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from tests.helpers.cli_trainer import FakeTrainer, view

from mosaic.contracts.views import MetricSeries, RunView

TAG = "charts/episodic_return"
SCORES = {"fast": (10.0, 20.0, 30.0), "slow": (1.0, 2.0, 15.0)}
"""By group: what the runs of its seeds return in the end."""


class FinishedGroups(FakeTrainer):
    """Three seeds of each group; a run's last ten episodes return its score, those before a hundredth of it."""

    def __init__(self) -> None:
        super().__init__()
        self.scores: dict[str, float] = {}
        self.payloads: dict[str, Any] = {}
        for group, scores in SCORES.items():
            for seed, score in enumerate(scores, 1):
                run_id = f"01{group.upper()}{seed}".rjust(26, "0")
                self.views[run_id] = view(run_id, group=group, seed=seed, stage="finished", outcome="succeeded")
                self.scores[run_id] = score
                rate = {"fast": 0.01, "slow": 0.001}[group]
                config = {"algo": "ppo", "env_id": "CartPole-v1", "seed": seed}
                settings = {"algo_params": {"learning_rate": rate}}
                self.payloads[run_id] = {
                    "metadata": {
                        "worker": {"id": "cleanrl", "config": config | settings}, "group": group, "ui": {"x": run_id}
                    }
                }  # fmt: skip

    def runs(self, *filters: Any, **named: Any) -> list[RunView]:
        """Newest first."""
        return [one for one in self.views.values() if one.group == named.get("group")][::-1]

    def config(self, run: str) -> dict[str, Any]:
        return dict(self.payloads[run])

    def metrics(self, run: str, tags: Sequence[str] = (), last_only: bool = False) -> Iterator[MetricSeries]:
        values = [self.scores[run] / 100] * 90 + [self.scores[run]] * 10
        if not tags or TAG in tags:
            yield MetricSeries(TAG, range(100), [0.0] * 100, values)
        if not tags or "losses/loss" in tags:
            yield MetricSeries("losses/loss", range(100), [0.0] * 100, [1.0] * 100)

    def move_to(self, run: str, env_id: str) -> None:
        """As if it had been trained on another environment."""
        self.views[run] = self.views[run].model_copy(update={"env_id": env_id})
        self.payloads[run]["metadata"]["worker"]["config"]["env_id"] = env_id
