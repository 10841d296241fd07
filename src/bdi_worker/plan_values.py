"""Q-values under plans: which of the applicable plans of a goal is taken is learned.

Plans with the annotation `[learn]` have a value for each goal and state. A value is updated when the next choice is
made: a plan may last several steps, so this is Q-learning of a semi-Markov decision process,

    Q(g, s, p) += alpha * (R + gamma^k * max_p' Q(g', s', p') - Q(g, s, p)),

where R is the discounted reward of the k steps in between, and p' are the plans applicable at the next choice.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import agentspeak
import numpy as np
import numpy.typing as npt
from agentspeak import GoalType, Trigger, runtime

from bdi_worker.asl_source import AslSource
from bdi_worker.engine import Agent, Mind
from bdi_worker.percepts import Perception
from mosaic.contracts.errors import BadInput, CheckpointDamaged

LEARN = "learn"
Labels = dict[str, tuple[str, ...]]
"""By goal, such as `act/0`: the labels of its plans."""


@dataclass(slots=True)
class Row:
    """The plans of one goal in one state."""

    values: list[float]
    visits: list[int]

    def copy(self) -> Row:
        return Row(self.values[:], self.visits[:])


class PlanValues:
    """The table: a value and a number of visits for each goal, state and plan."""

    def __init__(self, labels: Labels) -> None:
        self.labels = labels
        self._rows: dict[tuple[str, str, str], Row] = {}

    def __len__(self) -> int:
        return len(self._rows)

    def row(self, goal: str, term: str, state: str) -> Row:
        """`term` is the goal with its arguments."""
        key = (goal, term, state)
        row = self._rows.get(key)
        if row is None:
            count = len(self.labels[goal])
            row = self._rows[key] = Row([0.0] * count, [0] * count)
        return row

    def to_arrays(self) -> dict[str, npt.NDArray[Any]]:
        """Return the table as arrays; rows of goals with fewer plans end with zeros."""
        width = max(map(len, self.labels.values()), default=0)
        values = np.zeros((len(self._rows), width))
        visits = np.zeros((len(self._rows), width), np.int64)
        for index, row in enumerate(self._rows.values()):
            values[index, : len(row.values)] = row.values
            visits[index, : len(row.visits)] = row.visits
        keys = np.array(list(self._rows), np.str_).reshape(-1, 3)
        return {"values": values, "visits": visits, "keys": keys}

    def to_arrays_before(self, changed: Mapping[int, tuple[Row, Row]], count: int) -> dict[str, npt.NDArray[Any]]:
        """Return the table as it was when it had `count` rows; `changed` has rows, and how they were then."""
        then = {id(row): earlier for row, earlier in changed.values()}
        table = PlanValues(self.labels)
        table._rows = {key: then.get(id(row), row) for key, row in self._rows.items()}
        return {name: part[:count] for name, part in table.to_arrays().items()}

    @classmethod
    def from_arrays(cls, labels: Labels, arrays: Mapping[str, npt.NDArray[Any]]) -> PlanValues:
        table = cls(labels)
        values, visits, keys = arrays["values"], arrays["visits"], arrays["keys"]
        width = max(map(len, labels.values()), default=0)
        if keys.shape != (len(values), 3) or values.shape != visits.shape or values.shape[1:] != (width,):
            raise CheckpointDamaged("The table of values has arrays of different sizes.")
        for index, (goal, term, state) in enumerate(keys.tolist()):
            if goal not in labels:
                raise CheckpointDamaged(f"The table of values has a goal {goal!r} without plans.")
            count = len(labels[goal])
            row = Row(values[index, :count].tolist(), visits[index, :count].tolist())
            table._rows[goal, term, state] = row
        return table


def check_labels(name: str, labels: Labels, saved: Mapping[str, Sequence[str]]) -> None:
    """Raise BadInput if a table was learned for other plans."""
    texts = []
    for goal in sorted({*labels, *saved}):
        here, there = labels.get(goal, ()), tuple(saved.get(goal, ()))
        parts = [f"the file has no @{label}" for label in there if label not in here]
        parts += [f"the table has no @{label}" for label in here if label not in there]
        if here != there:
            texts.append(f"!{goal}: {', '.join(parts) or 'their order differs'}")
    if texts:
        raise BadInput(
            f"The plans with [{LEARN}] in {name} are not those for which the values were learned ({'; '.join(texts)}). "
            "Use the file as it was, or train again."
        )


# --- learning


class _Choice(NamedTuple):
    row: Row
    plan: int


class _LearnedPlans(list[Any]):
    """The plans of one goal. agentspeak takes the first applicable plan of the list: it is given the chosen one."""

    def __init__(self, goal: str, plans: Sequence[Any], agent: LearningAgent) -> None:
        super().__init__(plans)
        self.goal = goal
        self._agent = agent

    def __iter__(self) -> Iterator[Any]:
        chosen = self._agent.choose(self)
        return iter(() if chosen is None else (self[chosen],))

    def applicable(self, agent: Any, term: Any) -> list[int]:
        """Return the plans whose head and context fit."""
        return [index for index in range(len(self)) if _is_applicable(self[index], agent, term)]


def _is_applicable(plan: Any, agent: Any, term: Any) -> bool:
    intention = runtime.Intention()
    heads = agentspeak.unify_annotated(plan.head, term, intention.scope, intention.stack)
    return any(True for _ in heads for _ in plan.context.execute(agent, intention))


class LearningAgent(Agent):
    """An agent that chooses among its plans with `[learn]` by their values."""

    table: PlanValues
    rng: np.random.Generator
    state: str = ""
    """The state that values belong to; set before each decision."""
    learning_rate: float = 0.0
    gamma: float = 1.0
    epsilon: float | None = None
    """The probability of a random choice; None: nothing is learned, and the first of the best plans is taken."""
    is_last: bool = False
    """Whether the choice is made only to update the one before."""
    error_sum: float = 0.0
    update_count: int = 0
    changed: dict[int, tuple[Row, Row]]
    """The rows that were updated in this episode, by identity, and copies of how they were before."""

    _term: Any = None
    _open: _Choice | None = None
    _reward: float = 0.0
    _discount: float = 1.0

    def call(self, trigger: Any, goal_type: Any, term: Any, calling_intention: Any, delayed: bool = False) -> Any:
        if goal_type == GoalType.achievement and trigger == Trigger.addition:
            self._term = agentspeak.freeze(term, calling_intention.scope, {})
        return super().call(trigger, goal_type, term, calling_intention, delayed)

    def choose(self, plans: _LearnedPlans) -> int | None:
        """Return the index of the plan to take; None if no plan is applicable."""
        usable = plans.applicable(self, self._term)
        if not usable:
            return None
        row = self.table.row(plans.goal, str(self._term), self.state)
        values = row.values
        if self.epsilon is None:
            return max(usable, key=values.__getitem__)
        # The last choice is closed first: it may be of the same row.
        self.close_choice(max(values[index] for index in usable))
        if self.is_last:
            return max(usable, key=values.__getitem__)
        if self.rng.random() < self.epsilon:
            chosen = usable[int(self.rng.integers(len(usable)))]
        else:
            best = max(values[index] for index in usable)
            ties = [index for index in usable if values[index] == best]
            chosen = ties[int(self.rng.integers(len(ties)))] if len(ties) > 1 else ties[0]
        self._open = _Choice(row, chosen)
        self._reward, self._discount = 0.0, 1.0
        return chosen

    def add_reward(self, reward: float) -> None:
        """Credit the reward of one step to the last choice."""
        self._reward += self._discount * reward
        self._discount *= self.gamma

    def drop_choice(self) -> None:
        """Forget the last choice without an update."""
        self._open = None

    def close_choice(self, bootstrap: float) -> None:
        """Update the value of the last choice, after which `bootstrap` can be expected."""
        if self._open is None:
            return
        row, plan = self._open.row, self._open.plan
        if id(row) not in self.changed:
            self.changed[id(row)] = row, row.copy()
        error = self._reward + self._discount * bootstrap - row.values[plan]
        row.values[plan] += self.learning_rate * error
        row.visits[plan] += 1
        self.error_sum += abs(error)
        self.update_count += 1
        self._open = None


def end_episode(mind: Mind, last_observation: Any = None) -> None:
    """Update the last choice; `last_observation` is that of an episode that was truncated.

    What can be expected there is the value of what the agent would choose next. Where it would choose none of the plans
    that are learned, nothing is known, and the last choice is not updated: to expect 0 would spoil its value.
    """
    agent: LearningAgent = mind.agent
    if last_observation is None:
        agent.close_choice(0.0)
    else:
        agent.is_last, agent.state = True, mind.perception.state(last_observation)
        mind.decide(last_observation)
        agent.is_last = False
    agent.drop_choice()


def build_learner(source: AslSource, perception: Perception, rng: np.random.Generator) -> Mind:
    """Build an agent that chooses its plans by a table, which is empty."""
    mind = Mind(source, perception, LearningAgent, rng)
    agent: LearningAgent = mind.agent
    labels: Labels = {}
    for key, plans in list(agent.plans.items()):
        if any(map(_is_learned, plans)):
            trigger, goal_type, functor, arity = key
            goal = f"{functor}/{arity}"
            if goal_type != GoalType.achievement or trigger != Trigger.addition:
                raise BadInput(f"{source.name}: [{LEARN}] is only for plans of goals (+!…), not of {functor}.")
            labels[goal] = _read_labels(source.name, goal, plans)
            agent.plans[key] = _LearnedPlans(goal, plans, agent)
    agent.table = PlanValues(labels)
    agent.changed = {}
    agent.rng = rng
    return mind


def _is_learned(plan: Any) -> bool:
    return plan.annotation is not None and any(str(term) == LEARN for term in plan.annotation.annotations)


def _read_labels(name: str, goal: str, plans: Sequence[Any]) -> tuple[str, ...]:
    labels = tuple("" if plan.annotation is None else str(plan.annotation.functor) for plan in plans)
    if not all(map(_is_learned, plans)) or "" in labels:
        raise BadInput(
            f"{name}: some plans of !{goal} have [{LEARN}], and others do not. Write it at all of them, such as "
            f"@name[{LEARN}] +!{goal.partition('/')[0]} <- ….; plans without it need a goal of their own."
        )
    if twice := [label for label in labels if labels.count(label) > 1]:
        raise BadInput(f"{name}: two plans of !{goal} have the label @{twice[0]}. Give each its own.")
    return labels
