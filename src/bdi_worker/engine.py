"""Runs an AgentSpeak agent synchronously: percepts in, one action out.

agentspeak interprets the file; here is what makes it usable in a training loop. A decision is bounded by a budget, so
that no file can hang it, and depends on nothing but the file, the percepts and a random generator: beliefs are ordered
(agentspeak's are sets of hashed text), `.wait` counts environment steps, and actions that read the clock or write
files are left out. Each episode starts with the beliefs and goals of the file.
"""

from __future__ import annotations

import collections
import logging
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from bdi_worker.asl_source import AslSource
from bdi_worker.percepts import Percept, Perception, Text
from mosaic.contracts.errors import BadInput, MissingExtra, similar_names

try:
    import agentspeak
    from agentspeak import GoalType, Literal, Trigger, lexer, parser, runtime, stdlib
except ModuleNotFoundError as error:
    raise MissingExtra(f"BDI agents need {error.name}, which is not installed: pip install 'mosaic-rl[bdi]'.") from None

BUDGET = 10_000
"""What one decision may spend: an instruction costs one, a query one for each belief or rule that it reads."""
MAX_INTENTIONS = 1_000
MAX_RANGE = 100_000
GOAL = "act"
"""The goal that is posted when nothing is intended."""
MOVE = "move"
_LEFT_OUT = {".print", ".random", ".wait", ".range", ".send", ".broadcast", ".date", ".time", ".dump", ".control_flow"}
"""Actions of agentspeak that are replaced here, have no receiver, read the clock, or write to files."""
_PERCEPT = frozenset([Literal("source", (Literal("percept"),))])


@dataclass(frozen=True)
class Decision:
    action: int
    problem: str = ""
    """Why the agent has not chosen it itself; empty if it has."""
    is_waiting: bool = False
    """Whether it had no action because it waits."""


class _Messages(logging.Handler):
    """Collects what agentspeak logs, because its exceptions contain only the number of errors."""

    def __init__(self) -> None:
        super().__init__()
        self._texts: collections.deque[str] = collections.deque(maxlen=20)

    def emit(self, record: logging.LogRecord) -> None:
        location = getattr(record, "loc", None)
        place = f"{location.filename}, line {location.lineno}: " if location else ""
        self._texts.append(f"{place}{record.getMessage()}")

    def take(self) -> list[str]:
        texts = list(self._texts)
        self._texts.clear()
        return texts


def _collect_messages() -> _Messages:
    """Replace the handlers of agentspeak's loggers, which write colored text to stderr."""
    messages = _Messages()
    for module in (lexer, parser, runtime, stdlib):
        logger = getattr(module, "LOGGER", None)
        if logger is not None:
            logger.handlers[:] = [messages]
            logger.propagate = False
    return messages


_messages = _collect_messages()


class _Budget:
    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._left = limit

    def refill(self) -> None:
        self._left = self._limit

    def spend(self, amount: int = 1) -> None:
        self._left -= amount
        if self._left < 0:
            raise agentspeak.AslError(
                f"the agent has not chosen an action within {self._limit:,} instructions and queries; "
                "a plan or a rule may call itself without end"
            )


class _Beliefs(dict[Any, None]):
    """The beliefs of one name, in the order in which they were added. Reading them costs budget."""

    def __init__(self, budget: _Budget) -> None:
        super().__init__()
        self._budget = budget

    def add(self, belief: Any) -> None:
        self.setdefault(belief)

    def remove(self, belief: Any) -> None:
        del self[belief]

    def __iter__(self) -> Iterator[Any]:
        self._budget.spend(1 + len(self))
        return iter(tuple(self.keys()))  # a plan may change them meanwhile


class _Rules(list[Any]):
    """The rules of one name. Reading them costs budget."""

    def __init__(self, budget: _Budget) -> None:
        super().__init__()
        self._budget = budget

    def __iter__(self) -> Iterator[Any]:
        self._budget.spend(1 + len(self))
        return super().__iter__()


class _World(runtime.Environment):  # type: ignore[misc]
    """What agentspeak calls the environment: its time is the number of decisions."""

    def __init__(self, budget: _Budget) -> None:
        super().__init__()
        self.budget = budget
        self.clock = 0

    def time(self) -> float:
        return self.clock


class Agent(runtime.Agent):  # type: ignore[misc]
    """An agent whose queries are ordered and bounded."""

    def __init__(self, env: _World, name: str) -> None:
        super().__init__(env, name)
        self.beliefs: dict[Any, _Beliefs] = collections.defaultdict(lambda: _Beliefs(env.budget))
        self.rules: dict[Any, _Rules] = collections.defaultdict(lambda: _Rules(env.budget))


class _ActionWaiter(runtime.Waiter):  # type: ignore[misc]
    """Suspends an intention that has acted until the next observation."""


class Mind:
    """An agent of an .asl file in one environment."""

    def __init__(
        self,
        source: AslSource,
        perception: Perception,
        agent_class: type[Agent] = Agent,
        rng: np.random.Generator | None = None,
        budget: int = BUDGET,
    ) -> None:
        """Raise BadInput if the file is not valid, or names an action that the environment does not have."""
        self.rng = np.random.default_rng(0) if rng is None else rng
        self.perception = perception
        self._action_names = perception.action_names
        self.fallback = perception.idle_action
        """The action that is taken where the agent chooses none."""
        self._budget = _Budget(budget)
        self._world = _World(self._budget)
        self._chosen: int | None = None
        self._name = source.name.removesuffix(".asl")
        actions = self._make_actions()
        self._ast, self.agent, self.warnings = self._build(source, actions, agent_class)
        _check_bodies(self._ast, source.name, actions, perception)
        self._percepts: dict[Percept, Any] = {}

    # --- reading the file

    def _build(self, source: AslSource, actions: Any, agent_class: type[Agent]) -> tuple[Any, Any, list[str]]:
        _messages.take()
        text = agentspeak.StringSource(source.name, source.text)
        try:
            log = agentspeak.Log(runtime.LOGGER, 3)
            ast = parser.parse(source.name, lexer.TokenStream(text, log), log)
            log.throw()
            _, agent = self._world.build_agent_from_ast(text, ast, actions, agent_class)
        except Exception as error:  # its parser raises errors of its own, and of Python for some files
            raise BadInput(f"{source.name} is not a valid AgentSpeak file: {_describe(error)}.") from None
        return ast, agent, _messages.take()

    def _make_actions(self) -> Any:
        actions = agentspeak.Actions()
        for (name, arity), function in stdlib.actions.actions.items():
            if name not in _LEFT_OUT:
                actions.add(name, arity, function)
        for name, function in stdlib.actions.variadic_actions.items():
            if name not in _LEFT_OUT:
                actions.add(name, None, function)
        actions.add(MOVE, 1, self._move)
        actions.add(".print", None, self._print)
        actions.add_function(".random", (), lambda: float(self.rng.random()))
        actions.add(".wait", 1, self._wait)
        actions.add(".range", 2, self._range)
        return actions

    # --- the actions of its plans

    def _move(self, agent: Any, term: Any, intention: Any) -> Iterator[None]:
        value = agentspeak.grounded(term.args[0], intention.scope)
        name = value.functor if isinstance(value, Literal) else value
        if name not in self._action_names:
            raise agentspeak.AslError(_unknown_action(agentspeak.asl_str(value), self._action_names))
        self._chosen = self._action_names.index(name)
        intention.waiter = _ActionWaiter()
        yield

    def _print(self, agent: Any, term: Any, intention: Any) -> Iterator[None]:
        texts = (agentspeak.asl_str(agentspeak.freeze(part, intention.scope, {})) for part in term.args)
        print(f"{self._name}: {' '.join(texts)}", flush=True)
        yield

    def _wait(self, agent: Any, term: Any, intention: Any) -> Iterator[None]:
        """Wait for a number of environment steps, or for an event such as "+carrying(_, _)"."""
        steps = agentspeak.grounded(term.args[0], intention.scope)
        if agentspeak.is_number(steps):
            intention.waiter = runtime.Waiter(until=self._world.clock + steps - 0.5)
            yield
        else:
            yield from stdlib.actions.lookup(".wait", 1)(agent, term, intention)

    def _range(self, agent: Any, term: Any, intention: Any) -> Iterator[None]:
        count = agentspeak.grounded(term.args[0], intention.scope)
        if not agentspeak.is_number(count) or count > MAX_RANGE:
            raise agentspeak.AslError(f".range needs a number up to {MAX_RANGE:,}")
        for _ in stdlib.actions.lookup(".range", 2)(agent, term, intention):
            self._budget.spend()
            yield

    # --- deciding

    def start_episode(self) -> None:
        """Forget everything but the file."""
        self._world.clock = 0
        self._percepts = {}
        agent = self.agent
        agent.intentions.clear()
        agent.beliefs.clear()
        self._budget.refill()
        try:
            for belief in self._ast.beliefs:
                self._post(GoalType.belief, belief.accept(runtime.BuildTermVisitor({})), delayed=True)
            for goal in self._ast.goals:
                self._post(GoalType.achievement, goal.atom.accept(runtime.BuildTermVisitor({})), delayed=True)
            for percept in self.perception.fixed:
                self._post(GoalType.belief, _to_literal(percept))
        except Exception as error:
            raise BadInput(
                f"{self._name}: the initial beliefs and goals cannot be set up: {_describe(error)}."
            ) from None

    def decide(self, observation: Any) -> Decision:
        """Return the next action: the agent's, or the fallback."""
        self._chosen = None
        self._world.clock += 1
        self._budget.refill()
        try:
            self._perceive(observation)
            self._wake()
            self._run()
            if self._chosen is None and not any(self.agent.intentions):
                self._post(GoalType.achievement, Literal(GOAL), delayed=True)
                self._run()
        except Exception as error:  # plans compute: they can fail in all of Python's ways
            self.agent.intentions.clear()
            return Decision(self.fallback, _describe(error))
        if self._chosen is not None:
            return Decision(self._chosen)
        if any(self.agent.waiters()):
            return Decision(self.fallback, is_waiting=True)
        return Decision(self.fallback, f"the plan of !{GOAL} ended without {MOVE}(…)")

    def _perceive(self, observation: Any) -> None:
        """Update the beliefs that are percepts."""
        percepts = dict.fromkeys(self.perception.percepts(observation))
        for percept in [old for old in self._percepts if old not in percepts]:
            literal = self._percepts.pop(percept)
            self.agent.call(Trigger.removal, GoalType.belief, literal, runtime.Intention())
        for percept in percepts:
            if percept not in self._percepts:
                self._percepts[percept] = _to_literal(percept)
                self._post(GoalType.belief, self._percepts[percept])

    def _post(self, kind: Any, literal: Any, delayed: bool = False) -> None:
        self.agent.call(Trigger.addition, kind, literal, runtime.Intention(), delayed=delayed)

    def _wake(self) -> None:
        if len(self.agent.intentions) > MAX_INTENTIONS:
            raise agentspeak.AslError(f"the agent has more than {MAX_INTENTIONS:,} intentions")
        for stack in self.agent.intentions:
            if stack and isinstance(stack[-1].waiter, _ActionWaiter):
                stack[-1].waiter = None

    def _run(self) -> None:
        while self._chosen is None and self.agent.step():
            self._budget.spend()


def _describe(error: Exception) -> str:
    """Return what went wrong as a part of a sentence."""
    texts = _messages.take()
    if isinstance(error, agentspeak.AggregatedError) and texts:
        return "; ".join(texts)
    if isinstance(error, RecursionError):
        return "its terms are nested too deeply, or a rule calls itself without end"
    return str(error) if isinstance(error, agentspeak.AslError) else f"{type(error).__name__}: {error}"


def _to_literal(percept: Percept) -> Any:
    name, *arguments = percept
    terms = (Literal(arg) if isinstance(arg, str) and not isinstance(arg, Text) else arg for arg in arguments)
    return Literal(name, tuple(str(term) if isinstance(term, Text) else term for term in terms), _PERCEPT)


def _unknown_action(name: str, known: Sequence[str]) -> str:
    near = similar_names(name, known)
    hint = f" Did you mean {near[0]}?" if near else ""
    return f"{MOVE}({name}) is not an action here.{hint} Actions: {', '.join(known)}"


# --- checking before anything runs


def _check_bodies(ast: Any, name: str, actions: Any, perception: Perception) -> None:
    """Raise BadInput for actions that do not exist: agentspeak takes them for queries of beliefs, which just fail."""
    formulas = [formula for plan in ast.plans if plan.body for formula in _formulas(plan.body)]
    added = (agentspeak.FormulaType.add, agentspeak.FormulaType.replace)
    believed = {belief.functor for belief in ast.beliefs} | {rule.head.functor for rule in ast.rules}
    believed |= {formula.term.functor for formula in formulas if formula.formula_type in added}
    believed |= {plan.event.head.functor for plan in ast.plans if plan.event.goal_type == GoalType.belief}
    believed |= set(perception.names)
    known = {action for action, _ in actions.actions} | set(actions.variadic_actions)
    for formula in formulas:
        term = formula.term
        if formula.formula_type != agentspeak.FormulaType.term or not isinstance(term, parser.AstLiteral):
            continue
        where = f"{name}, line {term.loc.lineno}"
        if term.functor not in known | believed:
            near = similar_names(term.functor, known | believed)
            hint = f" Did you mean {near[0]}?" if near else f" An agent acts with {MOVE}(…)."
            raise BadInput(f"{where}: {term.functor} is neither an action nor a belief of this agent.{hint}")
        if term.functor == MOVE and len(term.terms) == 1 and isinstance(term.terms[0], parser.AstLiteral):
            action = term.terms[0].functor
            if action not in perception.action_names:
                raise BadInput(f"{where}: {_unknown_action(action, perception.action_names)}.")


def _formulas(node: Any) -> Iterable[Any]:
    """Yield the formulas of a plan's body, those in loops and branches included."""
    if isinstance(node, parser.AstFormula):
        yield node
    elif isinstance(node, parser.AstBody):
        for formula in node.formulas:
            yield from _formulas(formula)
    else:
        for part in ("body", "if_body", "else_body"):
            if (inner := getattr(node, part, None)) is not None:
                yield from _formulas(inner)
