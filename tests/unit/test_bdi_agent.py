"""R9.7: BDI agents: the engine, percepts, and learned plans."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("agentspeak")

from tests.learning.bdi import BdiLearner, Case, TabularLearner

from bdi_worker.asl_source import AslSource, list_examples, read_source
from bdi_worker.engine import Mind
from bdi_worker.percepts import find_perception
from bdi_worker.plan_values import PlanValues, build_learner, check_labels, end_episode
from bdi_worker.worker_config import BdiSettings
from mosaic.contracts.errors import BadInput
from mosaic.contracts.play import ActorChoice
from mosaic.worker.actors import Seat, Turn, make_actor
from mosaic.worker.envs import make


def lake_mind(text: str, **options: Any) -> Mind:
    mind = Mind(AslSource("agent.asl", text), find_perception(make("FrozenLake-v1")), **options)
    mind.start_episode()
    return mind


def play(mind: Mind, env: Any, seed: int) -> tuple[float, int]:
    observation, _ = env.reset(seed=seed)
    mind.start_episode()
    total, length, is_over = 0.0, 0, False
    while not is_over:
        decision = mind.decide(observation)
        assert not decision.problem
        observation, reward, is_terminated, is_truncated, _ = env.step(decision.action)
        total += float(reward)
        length += 1
        is_over = is_terminated or is_truncated
    return total, length


# --- deciding


@pytest.mark.parametrize(("env_id", "length"), [("FrozenLake-v1", 6), ("FrozenLake8x8-v1", 18)])
def test_an_agent_reaches_the_goal_of_the_frozen_lake(env_id: str, length: int) -> None:
    """R9.7: an AgentSpeak file acts in an environment."""
    env = make(env_id, is_slippery=False)
    mind = Mind(read_source("frozen_lake"), find_perception(env))
    assert play(mind, env, 1) == (1.0, length)
    assert play(mind, env, 2) == (1.0, length), "each episode starts with the beliefs of the file"


def test_an_agent_reaches_the_goal_in_minigrid() -> None:
    pytest.importorskip("minigrid")
    env = make("MiniGrid-Empty-6x6-v0")
    total, _ = play(Mind(read_source("minigrid"), find_perception(env)), env, 1)
    assert total > 0.9


def test_a_plan_lasts_several_steps() -> None:
    mind = lake_mind("+!act <- move(down); move(right); move(up).")
    assert [mind.decide(0).action for _ in range(5)] == [1, 2, 3, 1, 2]


def test_percepts_are_beliefs_that_come_and_go() -> None:
    mind = lake_mind(
        "+!act : at(0, 0) & hole(1, 1) & goal(3, 3) & size(4, 4) <- move(right). +!act : at(0, 1) <- move(up)."
    )
    assert [mind.decide(observation).action for observation in (0, 1, 0)] == [2, 3, 2]


def test_an_event_of_a_percept_can_act() -> None:
    assert lake_mind("+at(0, 0) <- move(up).").decide(0).action == 3


def test_waiting_counts_steps_and_is_no_problem() -> None:
    mind = lake_mind("+!act <- .wait(2); move(right).")
    decisions = [mind.decide(0) for _ in range(3)]
    assert [(one.action, one.is_waiting, one.problem) for one in decisions] == [
        (0, True, ""),
        (0, True, ""),
        (2, False, ""),
    ]


def test_decisions_do_not_depend_on_the_order_of_hashes(tmp_path: Path) -> None:
    script = tmp_path / "order.py"
    script.write_text(
        "from bdi_worker.asl_source import AslSource\nfrom bdi_worker.engine import Mind\n"
        "from bdi_worker.percepts import find_perception\nfrom mosaic.worker.envs import make\n"
        "text = ' '.join(f'can({name}).' for name in ('up', 'right', 'left', 'down')) + ' +!act : can(X) <- move(X).'\n"
        "mind = Mind(AslSource('a.asl', text), find_perception(make('FrozenLake-v1')))\n"
        "mind.start_episode()\nprint(mind.decide(0).action)\n"
    )
    results = [
        subprocess.run(
            [sys.executable, script],
            env={"PYTHONHASHSEED": seed, "PATH": ""},
            capture_output=True,
            text=True,
            check=True,
        )
        for seed in ("1", "2")
    ]
    assert [one.stdout for one in results] == ["3\n", "3\n"]


def test_printed_text_goes_to_the_log_without_colors(capsys: pytest.CaptureFixture[str]) -> None:
    lake_mind('+!act : at(R, C) <- .print("at", R, C); move(up).').decide(0)
    assert capsys.readouterr().out == "agent: at 0 0\n"


def test_random_numbers_come_from_the_generator_of_the_run() -> None:
    text = "+!act <- .random(X); if (X > 0.5) { move(up) } else { move(down) }."
    actions = [[mind.decide(0).action for _ in range(8)] for mind in (lake_mind(text), lake_mind(text))]
    assert actions[0] == actions[1]
    assert set(actions[0]) == {1, 3}


# --- files that are wrong


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+!act <- move(left", r"not a valid AgentSpeak file: agent\.asl, line 1: unexpected end of file"),
        ("// first\n+!act <- <- move(left).", r"agent\.asl, line 2: expected term, got '<-'"),
        ("+!act <- mvoe(left).", r"line 1: mvoe is neither an action nor a belief of this agent\. Did you mean move\?"),
        (
            "+!act <- move(lft).",
            r"move\(lft\) is not an action here\. Did you mean left\? Actions: left, down, right, up",
        ),
        ("+!act <- .send(bob, tell, hello).", r"\.send is neither an action nor a belief"),
        ("+!act <- X = 1/0; move(X).", "division by zero"),
    ],
)
def test_a_file_that_is_not_valid_is_refused_with_its_line(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        lake_mind(text)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("+!act <- !act.", "within 500 instructions and queries"),
        ("+!act <- while (true) { .my_name(X) }.", "within 500 instructions and queries"),
        (
            "n(1). n(2). n(3). +!act : n(A) & n(B) & n(C) & n(D) & n(E) & A > B & B > A <- move(up).",
            "within 500",
        ),
        ("a :- a. +!act : a <- move(up).", "within 500 instructions and queries"),
        ("+!act : .range(1000000000, X) & X < 0 <- move(up).", "a number up to 100,000"),
        ("+!other <- move(up).", r"no applicable plan for \+!act/0"),
        ("+!act : at(9, 9) <- move(up).", r"no applicable plan for \+!act/0"),
        ("+!act <- .fail; move(up).", "line 1: plan failure"),
        ("which(lft). +!act : which(X) <- move(X).", r"move\(lft\) is not an action here"),
        ("+!act <- .my_name(X).", r"ended without move\(…\)"),
    ],
)
def test_a_plan_without_an_action_gives_the_fallback_and_a_reason(text: str, expected: str) -> None:
    mind = lake_mind(text, budget=500)
    mind.fallback = 2
    for _ in range(2):
        decision = mind.decide(0)
        assert decision.action == 2
        assert re.search(expected, decision.problem)


def test_recovery_plans_are_warned_of() -> None:
    assert lake_mind("+!act <- move(up). -!act <- move(down).").warnings == [
        "agent.asl, line 1: recovery plans are ignored as of yet"
    ]


def test_an_unknown_file_names_the_examples() -> None:
    with pytest.raises(
        BadInput, match=r"Did you mean 'taxi_learn'\?.*Examples: frozen_lake, frozen_lake_ice, grid_learn"
    ):
        read_source("taxi_lern")
    assert len(list_examples()) == 6


def test_environments_without_percepts_are_refused() -> None:
    with pytest.raises(BadInput, match=r"no percepts in 'CartPole-v1'.*FrozenLake, CliffWalking, Taxi"):
        find_perception(make("CartPole-v1"))


# --- learning


def learn(example: str, env_id: str, steps: int, seed: int = 1, **settings: Any) -> float:
    """Train, and return the mean return of 20 greedy episodes."""
    env = make(env_id, **settings)
    perception = find_perception(env)
    mind = build_learner(read_source(example), perception, np.random.default_rng(seed))
    agent = mind.agent
    agent.learning_rate, agent.gamma = 0.5, 0.99
    step = 0
    while step < steps:
        observation, _ = env.reset(seed=seed + step)
        mind.start_episode()
        is_over = False
        while not is_over:
            agent.epsilon, agent.state = max(0.02, 1 - 2 * step / steps), perception.state(observation)
            observation, reward, is_terminated, is_truncated, _ = env.step(mind.decide(observation).action)
            agent.add_reward(float(reward))
            step += 1
            is_over = is_terminated or is_truncated
        end_episode(mind, None if is_terminated else observation)
    agent.epsilon = None
    returns = []
    for episode in range(20):
        observation, _ = env.reset(seed=10_000 + episode)
        mind.start_episode()
        is_over, total = False, 0.0
        while not is_over:
            agent.state = perception.state(observation)
            observation, reward, is_terminated, is_truncated, _ = env.step(mind.decide(observation).action)
            total += float(reward)
            is_over = is_terminated or is_truncated
        returns.append(total)
    return float(np.mean(returns))


def test_the_choice_of_plans_is_learned_on_the_lake() -> None:
    assert learn("grid_learn", "FrozenLake-v1", 3_000, is_slippery=False) == 1.0


def test_plans_of_nested_goals_are_learned() -> None:
    pytest.importorskip("minigrid")
    assert learn("minigrid_learn", "MiniGrid-Empty-5x5-v0", 2_000) > 0.8


def test_plans_without_contexts_are_tabular_q_learning_bit_for_bit() -> None:
    """R9.7: the update at the next choice changes nothing where each plan is one action."""
    case = Case("", "grid_learn", BdiSettings(total_timesteps=3_000))
    tables: list[Any] = []
    for kind in (BdiLearner, TabularLearner):
        env = make("FrozenLake-v1")
        learner = kind(case, env, np.random.default_rng(1))
        observation, _ = env.reset(seed=1)
        learner.start()
        step, is_over = 0, False
        while step < 2_000 or not is_over:  # in the middle of an episode, the last choice is not updated yet
            if is_over:
                observation, _ = env.reset()
                learner.start()
            action = learner.act(observation, case.settings.epsilon(step))
            following, reward, is_terminated, is_truncated, _ = env.step(action)
            is_over = bool(is_terminated or is_truncated)
            learner.learn(observation, action, float(reward), following, bool(is_terminated), is_over)
            observation, step = following, step + 1
        tables.append(learner.values)
    learned, expected = tables
    assert np.count_nonzero(expected) > 10
    assert {state: list(row) for state, row in learned.items()} == {s: list(expected[s]) for s in learned}
    assert {int(state) for state in np.flatnonzero(np.any(expected, axis=1))} <= set(learned)


def lake_learner(text: str) -> Mind:
    mind = build_learner(AslSource("agent.asl", text), find_perception(make("FrozenLake-v1")), np.random.default_rng(0))
    mind.agent.learning_rate, mind.agent.gamma, mind.agent.epsilon, mind.agent.state = 0.5, 0.9, 0.0, "0"
    mind.start_episode()
    return mind


def test_a_value_is_updated_at_the_next_choice_with_discounted_rewards() -> None:
    """One plan of two steps: 0.5 * (1 + 0.9 * 2 + 0.81 * 10 - 0)."""
    mind = lake_learner("@twice[learn] +!act <- move(up); move(down).")
    mind.agent.table.row("act/0", "act", "1").values[0] = 10.0
    for reward in (1.0, 2.0):
        mind.decide(0)
        mind.agent.add_reward(reward)
    mind.agent.state = "1"
    mind.decide(1)
    row = mind.agent.table.row("act/0", "act", "0")
    assert row.values == pytest.approx([0.5 * (1 + 0.9 * 2 + 0.81 * 10)])
    assert row.visits == [1]
    end_episode(mind)
    assert mind.agent.table.row("act/0", "act", "1").values == pytest.approx([5.0])


def test_a_truncated_episode_is_continued_by_the_best_applicable_plan() -> None:
    mind = lake_learner("@here[learn] +!act : at(0, 0) <- move(up). @there[learn] +!act : at(0, 1) <- move(down).")
    mind.agent.table.row("act/0", "act", "1").values[:] = [100.0, 10.0]
    mind.decide(0)
    mind.agent.add_reward(1.0)
    end_episode(mind, 1)
    assert mind.agent.table.row("act/0", "act", "0").values == pytest.approx([0.5 * (1 + 0.9 * 10), 0.0])


@pytest.mark.parametrize(
    "text",
    [
        "+!act : at(0, 1) <- move(down). +!act <- !go. @go[learn] +!go <- move(up).",
        "+!act <- !go. @go[learn] +!go <- move(up); move(down).",
    ],
    ids=["another plan would act", "the plan would continue"],
)
def test_a_truncated_episode_changes_nothing_where_nothing_would_be_chosen(text: str) -> None:
    """The table has no value for what follows; 0 would be a wrong one."""
    mind = lake_learner(text)
    mind.agent.table.row("go/0", "go", "0").values[0] = 10.0
    mind.decide(0)
    mind.agent.add_reward(0.0)
    end_episode(mind, 1)
    assert mind.agent.table.row("go/0", "go", "0").values == [10.0]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "@a[learn] +!act <- move(up). +!act <- move(down).",
            r"some plans of !act/0 have \[learn\], and others do not",
        ),
        ("@a[learn] +!act <- move(up). @a[learn] +!act <- move(down).", "two plans of !act/0 have the label @a"),
        ("@a[learn] +at(R, C) <- move(up).", "only for plans of goals"),
    ],
)
def test_annotations_that_do_not_fit_are_refused(text: str, expected: str) -> None:
    with pytest.raises(BadInput, match=expected):
        lake_learner(text)


def test_a_table_survives_its_arrays_and_is_refused_for_other_plans() -> None:
    table = PlanValues({"act/0": ("a", "b"), "go/1": ("c",)})
    table.row("act/0", "act", "7").values[1] = 1.5
    table.row("go/1", "go(red)", "8").visits[0] = 3
    copy = PlanValues.from_arrays(table.labels, table.to_arrays())
    assert copy.row("act/0", "act", "7").values == [0.0, 1.5]
    assert copy.row("go/1", "go(red)", "8").visits == [3]
    assert len(copy) == 2
    check_labels("x.asl", table.labels, {"act/0": ["a", "b"], "go/1": ["c"]})
    with pytest.raises(BadInput, match=r"!act/0: the file has no @d, the table has no @b; !go/1: the table has no @c"):
        check_labels("x.asl", table.labels, {"act/0": ["a", "d"]})


# --- the actor


def seat(env: Any, reports: list[dict[str, Any]]) -> Seat:
    return Seat(
        env_id="FrozenLake-v1",
        agent="*",
        observation_space=env.observation_space,
        action_space=env.action_space,
        env=env,
        report=lambda kind, **fields: reports.append({"kind": kind, **fields}),
    )


def test_the_actor_reports_its_fallbacks(tmp_path: Path) -> None:
    file = tmp_path / "stuck.asl"
    file.write_text("+!act : at(0, 0) <- move(right).")
    env, reports = make("FrozenLake-v1"), list[dict[str, Any]]()
    choice = ActorChoice(kind="bdi", target=str(file), options={"fallback": "down"})
    actor = make_actor(choice, seat(env, reports))
    actor.start_episode(1)
    assert [actor.act(Turn("*", step, observation, {})) for step, observation in enumerate((0, 1))] == [2, 1]
    actor.close()
    reason = "no applicable plan for +!act/0"
    assert reports[0] == {"kind": "actor_fallback", "agent": "*", "step": 1, "action": "down", "reason": reason}
    assert reports[1]["kind"] == "warning"
    assert "chose no action in 1 steps" in reports[1]["text"]
    with pytest.raises(BadInput, match=r"No action 'jump' in FrozenLake-v1.*Known: down, left, right, up"):
        make_actor(choice.model_copy(update={"options": {"fallback": "jump"}}), seat(env, []))


def test_plans_without_values_are_chosen_at_random() -> None:
    env = make("FrozenLake-v1")
    actor = make_actor(ActorChoice(kind="bdi", target="grid_learn"), seat(env, []))
    actor.start_episode(1)
    assert {actor.act(Turn("*", step, 0, {})) for step in range(40)} == {0, 1, 2, 3}
