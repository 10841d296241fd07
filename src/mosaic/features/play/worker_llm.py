"""The actor `llm:MODEL`: a language model chooses the actions, through any OpenAI-compatible endpoint.

A request runs in a thread of its own, so the session never waits for a server. Whatever a server or a model does, the
actor has an action at its deadline: the model's, or the stated fallback.
"""

from __future__ import annotations

import json
import math
import os
import re
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from string import Template
from typing import Any

from mosaic.base.secret_store import find_secret
from mosaic.contracts.errors import BadInput, unknown_name_error
from mosaic.contracts.play import ANY_AGENT, BASE_URL_VARIABLE, LLM_KEY_NAME, ActorChoice
from mosaic.features.play.worker_llm_client import (
    LASTING,
    ChatClient,
    Message,
    ModelFailure,
    Problem,
    Reply,
    SamplingSettings,
    check_base_url,
    is_loopback,
)
from mosaic.worker.actors import ActorFailed, Seat, Turn
from mosaic.worker.play_envs import describe_rules, describe_state, find_missing_words, name_actions

# --- What a language model is sent about an environment, and how its answer is read. Pure.


MAX_TEMPLATE_BYTES = 100_000
SEPARATOR = "---"
"""A line of a template file between what is sent once and what is sent at each turn."""
PLACEHOLDERS = ("env_id", "agent", "about", "notes", "actions", "state", "legal_actions", "step", "reward")
_SYSTEM = """You play $env_id$agent. $about
$notes
All actions: $actions
At each turn you get the state and the actions that are legal now. Think briefly, then choose one of them.
End your answer with one line of this form:
ACTION: name"""
_TURN = """Step $step. Reward since your last turn: $reward.
$state
Legal actions: $legal_actions
End with: ACTION: name"""
_MAX_LISTED_ACTIONS = 50
_THOUGHT = re.compile(r"<(think|thinking|reasoning)>.*?(</\1>|\Z)", re.DOTALL | re.IGNORECASE)
_ANSWER = re.compile(r"\bACTION\W*[:=]\W*([^\n]*)", re.IGNORECASE)


@dataclass(frozen=True)
class PromptTemplate:
    system: str = _SYSTEM
    turn: str = _TURN

    def format_system(self, values: Mapping[str, str]) -> str:
        return Template(self.system).substitute({**dict.fromkeys(PLACEHOLDERS, ""), **values}).strip()

    def format_turn(self, values: Mapping[str, str]) -> str:
        return Template(self.turn).substitute({**dict.fromkeys(PLACEHOLDERS, ""), **values}).strip()


def read_template(path: Path) -> PromptTemplate:
    """Read a template file: the text sent once, a line `---`, and the text sent at each turn."""
    try:
        data = path.read_bytes()[: MAX_TEMPLATE_BYTES + 1]
        text = data.decode("utf-8")
    except OSError as error:
        raise BadInput(f"template: {path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"template: {path} is not UTF-8 text.") from None
    if len(data) > MAX_TEMPLATE_BYTES:
        raise BadInput(f"template: {path} has more than {MAX_TEMPLATE_BYTES:,} bytes.")
    for match in Template.pattern.finditer(text):
        if match["invalid"] is not None:
            raise BadInput(f"template: {path} has a $ without a name; write $$ for the character itself.")
        name = match["named"] or match["braced"]
        if name is not None and name not in PLACEHOLDERS:
            raise unknown_name_error("placeholder", f"${name}", [f"${known}" for known in PLACEHOLDERS], str(path))
    system, *turn = re.split(rf"^{SEPARATOR}[ \t]*$", text, maxsplit=1, flags=re.MULTILINE)
    return PromptTemplate(system, turn[0] if turn else _TURN)


def format_actions(names: Sequence[str]) -> str:
    return ", ".join(names)


def number_actions(names: Sequence[str]) -> dict[str, str]:
    """Return the names by the numbers that a model may give instead: their own, as in `column_3`, else their places."""
    if len(names) > _MAX_LISTED_ACTIONS:
        return {}
    own = [re.fullmatch(r"\D*(\d+)", name) for name in names]
    return {str(place) if match is None or None in own else match[1]: name
            for place, (name, match) in enumerate(zip(names, own, strict=True))}  # fmt: skip


def list_actions(names: Sequence[str]) -> str:
    """Return all actions, with their numbers unless the names have them."""
    numbers = number_actions(names)
    if not numbers:
        return "those that are legal, at each turn"
    if all(number in name for number, name in numbers.items()):
        return format_actions(names)
    return ", ".join(f"{name} ({number})" for number, name in numbers.items())


def format_repair(failure: ModelFailure, legal: Sequence[str]) -> str:
    """Return what a model is sent after an answer without a legal action."""
    return (
        f"{failure} The legal actions are: {format_actions(legal)}. "
        "Answer with one line and nothing else, of the form: ACTION: name"
    )


def parse_action(reply: Reply, names: Sequence[str], legal: Sequence[str]) -> str:
    """Return the legal action that a reply chooses, or raise what is wrong with it."""
    answer = _THOUGHT.sub("", reply.text).strip()
    stated = _ANSWER.findall(answer)
    if reply.tool_arguments is not None:
        answer = _read_arguments(reply.tool_arguments)
    elif stated:
        answer = stated[-1]
    elif reply.is_cut_off:
        raise ModelFailure("cut_off", "The answer was cut off before it named an action: raise max_tokens.")
    if not answer:
        only = "has only thoughts" if reply.thought or reply.text else "is empty"
        raise ModelFailure("empty", f"The answer {only}.")
    mentioned = _mentioned_names(answer, names, is_first_enough=bool(stated))
    if len(mentioned) != 1:
        what = "no action" if not mentioned else f"several actions ({', '.join(mentioned)})"
        raise ModelFailure("no_action", f"The answer names {what}.")
    if mentioned[0] not in legal:
        raise ModelFailure("illegal_action", f"The action {mentioned[0]} is not legal now.")
    return mentioned[0]


def _read_arguments(text: str) -> str:
    """Return the action in the arguments of a tool call; the text itself if it is not valid JSON."""
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        return text
    if isinstance(arguments, dict):
        arguments = arguments.get("action", next(iter(arguments.values()), ""))
    return str(arguments)


def _mentioned_names(text: str, names: Sequence[str], is_first_enough: bool) -> list[str]:
    """Return the names in a text, each once; spaces and case may differ, and a longer name hides a shorter one.

    With `is_first_enough`, a name at the beginning is the only one: what follows is a reason.
    """
    known = {_plain(name): name for name in names if name}
    longest_first = "|".join(map(re.escape, sorted(known, key=len, reverse=True)))
    pattern = re.compile(rf"(?<!\w)({longest_first})(?!\w)")
    plain = _plain(text)
    numbers = number_actions(names)
    number = re.match(r"\(?#?(\d+)\b", plain)
    is_number = number is not None and (is_first_enough or number.end() == len(plain.rstrip(")")))
    if number is not None and is_number and number[1] in numbers and not pattern.match(plain):
        return [numbers[number[1]]]
    if is_first_enough and (first := pattern.match(plain)):
        return [known[first[1]]]
    return list(dict.fromkeys(known[match] for match in pattern.findall(plain)))


def _plain(text: str) -> str:
    return re.sub(r"[\s_-]+", " ", text).strip(" .*`'\"").lower()


# --- The actor `llm:MODEL`: a language model chooses the actions, through any OpenAI-compatible endpoint. A request
#     runs in a thread of its own, so the session never waits for a server. Whatever a server or a model does, the
#     actor has an action at its deadline: the model's, or the stated fallback.


DEFAULT_BASE_URL = "http://127.0.0.1:11434/v1"
"""Of Ollama on this machine."""
GRACE_S = 0.5
"""How long after its deadline a request that hangs is given up."""
MAX_RUNNING = 8
"""Requests of one actor that have not ended, those that were given up included."""
MAX_LOGGED_PROMPT = 8_000
MAX_LOGGED_REPLY = 4_000

_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class LlmOptions:
    """The options of its description, checked."""

    base_url: str | None
    temperature: float | None
    max_tokens: int | None
    reasoning_effort: str
    timeout_s: float
    history: int
    fallback: str | None
    template: str | None
    max_calls: int | None
    max_tokens_total: int | None
    max_cost: float | None
    price_per_million_input: float | None
    price_per_million_output: float | None

    @property
    def has_prices(self) -> bool:
        return None not in (self.price_per_million_input, self.price_per_million_output)

    def cost(self, input_tokens: int | None, output_tokens: int | None) -> float | None:
        """Return what these tokens cost; None where they are not counted, or the prices not given."""
        prices = self.price_per_million_input, self.price_per_million_output
        if None in (*prices, input_tokens, output_tokens):
            return None
        return ((input_tokens or 0) * (prices[0] or 0.0) + (output_tokens or 0) * (prices[1] or 0.0)) / 1e6


@dataclass
class Ledger:
    """What was spent. Requests of several threads add to it, those given up included."""

    options: LlmOptions
    calls: int = 0
    input_tokens: int | None = 0
    """None: the server did not count those of every reply."""
    output_tokens: int | None = 0
    _estimated_input: int = 0
    """Where a server does not count, estimated from the length of the text: a budget always has an end."""
    _estimated_output: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start_call(self) -> None:
        """Count a request, or raise which limit is reached."""
        options = self.options
        with self._lock:
            spent = {
                "max_calls": (self.calls, options.max_calls),
                "max_tokens_total": (self._estimated_input + self._estimated_output, options.max_tokens_total),
                "max_cost": (options.cost(self._estimated_input, self._estimated_output) or 0.0, options.max_cost),
            }
            for name, (amount, limit) in spent.items():
                if limit is not None and amount >= limit:
                    raise ModelFailure("budget", f"The budget is used up: {name}={limit:g}.")
            self.calls += 1

    def add_reply(self, messages: Sequence[Message], reply: Reply) -> None:
        with self._lock:
            self.input_tokens = sum_counts([self.input_tokens, reply.input_tokens])
            self.output_tokens = sum_counts([self.output_tokens, reply.output_tokens])
            sent = sum(len(message["content"]) for message in messages)
            self._estimated_input += _estimate(reply.input_tokens, sent)
            self._estimated_output += _estimate(reply.output_tokens, len(reply.answer) + len(reply.thought))


def sum_counts(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None where there is none, or where one is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _estimate(count: int | None, characters: int) -> int:
    return math.ceil(characters / _CHARACTERS_PER_TOKEN) if count is None else count


@dataclass
class Decision:
    """What came of one request, with all its attempts."""

    action: str | None = None
    """None: the fallback is taken."""
    problem: Problem | None = None
    """Why the fallback is taken."""
    detail: str = ""
    replies: list[Reply] = field(default_factory=list)
    """One, or the one that was rejected and the one that the model was asked for instead."""
    attempts: int = 0

    @property
    def input_tokens(self) -> int | None:
        return sum_counts([reply.input_tokens for reply in self.replies])

    @property
    def output_tokens(self) -> int | None:
        return sum_counts([reply.output_tokens for reply in self.replies])


@dataclass
class Request:
    """One question to the model. Its reply counts only while the actor still holds it."""

    step: int
    messages: list[Message]
    names: Sequence[str]
    """Of all actions at this turn."""
    legal: list[str]
    started_at: float
    deadline: float
    canceled: threading.Event = field(default_factory=threading.Event)
    decision: Decision | None = None
    """Set by its thread, once."""


class LlmActor:
    def __init__(self, choice: ActorChoice, seat: Seat) -> None:
        self._options = options = LlmOptions(**choice.options)
        if options.max_cost is not None and not options.has_prices:
            raise BadInput("max_cost needs price_per_million_input and price_per_million_output.")
        url = check_base_url(options.base_url or os.environ.get(BASE_URL_VARIABLE, "").strip() or DEFAULT_BASE_URL)
        self._names = seat.action_names or tuple(str(index) for index in range(int(seat.action_space.n)))
        if options.fallback is not None and options.fallback not in self._names:
            raise unknown_name_error("action", options.fallback, self._names, seat.env_id)
        missing = find_missing_words(seat.env.unwrapped, seat.entry, seat.observation_space)
        if missing and options.template is None:
            raise BadInput(
                f"{choice} cannot play {seat.env_id}: {missing}. A prompt that explains them: template=FILE."
            )
        self._template = read_template(Path(options.template)) if options.template else PromptTemplate()
        key = find_secret(LLM_KEY_NAME)
        sampling = SamplingSettings(options.temperature, options.max_tokens, options.reasoning_effort or None)
        self._client = ChatClient(url, choice.target, key, sampling)
        self._seat = seat
        self._model = choice.target
        self._fixed_values = self._describe_env()
        self._system = self._template.format_system(self._fixed_values)
        self._ledger = Ledger(options)
        self._request: Request | None = None
        self._lock = threading.Lock()
        self._running = 0
        """Threads that use the client; with `_is_closed`, under the lock: the last one to leave closes it."""
        self._is_closed = False
        self._history: deque[tuple[str, str]] = deque(maxlen=options.history)
        self._problems: dict[Problem, int] = {}
        self.problem = ""
        """Why the last decision was the fallback."""
        self._decisions = 0
        self._latency_s = 0.0
        try:
            self._client.check()
        except BadInput:
            self._client.close()
            raise
        if key and url.startswith("http:") and not is_loopback(url):
            self._warn("llm_key_unencrypted", f"The key is sent to {url} without encryption. Use https where you can.")

    # --- acting

    def start_episode(self, seed: int) -> None:
        self._give_up()
        self._history.clear()

    def act(self, turn: Turn) -> Any:
        if self._request is None or self._request.step != turn.step:
            self._give_up()
            self._request = self._start_request(turn)
        request = self._request
        decision = request.decision
        if decision is None:
            if time.monotonic() < request.deadline + GRACE_S:
                return None
            decision = Decision(problem="timeout", detail="The request hangs and was given up.", attempts=1)
        self._give_up()
        if decision.problem in LASTING:
            self.problem = self._client.mask(decision.detail)
            raise ActorFailed(f"{self._model}: {self.problem}")
        return self._apply(request, decision, turn)

    def close(self) -> None:
        """Cancel what is on its way. Its thread ends by itself, at the latest at its deadline."""
        self._give_up()
        with self._lock:
            self._is_closed = True
            is_unused = self._running == 0
        if is_unused:
            self._client.close()

    def summarize(self) -> Mapping[str, Any]:
        """Return totals for the summary of the session."""
        ledger = self._ledger
        return {
            "calls": ledger.calls,
            "input_tokens": ledger.input_tokens,
            "output_tokens": ledger.output_tokens,
            "cost": self._options.cost(ledger.input_tokens, ledger.output_tokens),
            "decisions": self._decisions,
            "fallbacks": sum(self._problems.values()),
            "problems": dict(self._problems),
            "mean_latency_s": round(self._latency_s / self._decisions, 4) if self._decisions else None,
        }

    def _give_up(self) -> None:
        if self._request is not None:
            self._request.canceled.set()
            self._request = None

    def _start_request(self, turn: Turn) -> Request:
        names = name_actions(self._seat.env.unwrapped, self._seat.entry, turn, self._names)
        legal = [names[index] for index in turn.legal_actions or range(len(names))]
        messages: list[Message] = [{"role": "system", "content": self._system}]
        for earlier, action in self._history:
            messages.append({"role": "user", "content": earlier})
            messages.append({"role": "assistant", "content": f"ACTION: {action}"})
        messages.append({"role": "user", "content": self._format_turn(turn, legal)})
        now = time.monotonic()
        request = Request(turn.step, messages, names, legal, now, now + self._options.timeout_s)
        with self._lock:
            if self._running >= MAX_RUNNING:  # only where even a connection takes longer than its deadline
                text = f"{self._running} earlier requests still hang."
                request.decision = Decision(problem="timeout", detail=text)
                return request
            self._running += 1
        threading.Thread(target=self._decide, args=(request,), name="llm-request", daemon=True).start()
        return request

    def _apply(self, request: Request, decision: Decision, turn: Turn) -> int:
        """Return the action of a decision, and write it to the journal."""
        latency_s = time.monotonic() - request.started_at
        action = decision.action or self._fallback(request.legal)
        self._decisions += 1
        self._latency_s += latency_s
        self.problem = "" if decision.problem is None else self._client.mask(decision.detail)
        if decision.problem is not None:
            self._count_problem(decision.problem, decision.detail)
        self._history.append((request.messages[-1]["content"], action))
        reply = decision.replies[-1] if decision.replies else Reply()
        rejected = decision.replies[0].answer if len(decision.replies) > 1 else ""
        self._report(
            "llm_turn",
            agent="" if turn.agent == ANY_AGENT else turn.agent,
            step=turn.step,
            model=self._model,
            prompt=self._shorten(_format_messages(request.messages), MAX_LOGGED_PROMPT),
            reply=self._shorten(reply.answer, MAX_LOGGED_REPLY),
            thought=self._shorten(reply.thought, MAX_LOGGED_REPLY),
            rejected_reply=self._shorten(rejected, MAX_LOGGED_REPLY),
            action=action,
            was_fallback=decision.action is None,
            problem=decision.problem,
            detail=self._client.mask(decision.detail),
            input_tokens=decision.input_tokens,
            output_tokens=decision.output_tokens,
            cost=self._options.cost(decision.input_tokens, decision.output_tokens),
            latency_s=round(latency_s, 4),
            attempts=decision.attempts,
        )
        return request.names.index(action)

    def _fallback(self, legal: Sequence[str]) -> str:
        idle = None if self._seat.entry is None else self._seat.entry.idle_action
        return next((name for name in (self._options.fallback, idle) if name in legal), None) or legal[0]

    # --- in the request's thread

    def _decide(self, request: Request) -> None:
        decision = Decision()
        try:
            decision.action = self._ask(request, decision)
        except ModelFailure as failure:
            decision.problem, decision.detail = failure.problem, str(failure)
        except Exception as error:  # a defect here must not stop the session either
            decision.problem, decision.detail = "failed", f"{type(error).__name__}: {error}"
        with self._lock:
            self._running -= 1
            is_last = self._is_closed and self._running == 0
        if is_last:
            self._client.close()
        request.decision = decision

    def _ask(self, request: Request, decision: Decision) -> str:
        reply = self._complete(request, request.messages, decision)
        try:
            return parse_action(reply, request.names, request.legal)
        except ModelFailure as failure:
            answer: Message = {"role": "assistant", "content": reply.answer or "(no answer)"}
            repair: Message = {"role": "user", "content": format_repair(failure, request.legal)}
            reply = self._complete(request, [*request.messages, answer, repair], decision, failure.problem == "cut_off")
        return parse_action(reply, request.names, request.legal)

    def _complete(
        self, request: Request, messages: Sequence[Message], decision: Decision, has_more_tokens: bool = False
    ) -> Reply:
        def start_call() -> None:
            self._ledger.start_call()
            decision.attempts += 1

        reply = self._client.complete(messages, request.deadline, request.canceled, start_call, has_more_tokens)
        self._ledger.add_reply(messages, reply)
        decision.replies.append(reply)
        return reply

    # --- text

    def _describe_env(self) -> dict[str, str]:
        seat = self._seat
        about = seat.entry.about if seat.entry is not None else ""
        return {
            "env_id": seat.env_id,
            "agent": "" if seat.agent == ANY_AGENT else f" as {seat.agent}",
            "about": about,
            "notes": describe_rules(seat.env, seat.entry),
            "actions": list_actions(self._names),
        }

    def _format_turn(self, turn: Turn, legal: Sequence[str]) -> str:
        values = {
            "state": describe_state(self._seat.env.unwrapped, self._seat.entry, turn),
            "legal_actions": format_actions(legal),
            "step": str(turn.step),
            "reward": f"{turn.reward:g}",
        }
        return self._template.format_turn({**self._fixed_values, **values})

    def _shorten(self, text: str, length: int) -> str:
        masked = self._client.mask(text)
        return masked if len(masked) <= length else f"{masked[: length // 2]} … {masked[-length // 2 :]}"

    # --- the journal

    def _count_problem(self, problem: Problem, detail: str) -> None:
        """Warn at the first time of each problem."""
        self._problems[problem] = self._problems.get(problem, 0) + 1
        if self._problems[problem] == 1:
            self._warn(f"llm_{problem}", f"{self._model}: {detail} The fallback action was taken.")

    def _warn(self, code: str, text: str) -> None:
        self._report("warning", text=self._client.mask(text), code=code)

    def _report(self, kind: str, **fields: Any) -> None:
        if self._seat.report is not None:
            self._seat.report(kind, **fields)


def _format_messages(messages: Sequence[Message]) -> str:
    return "\n\n".join(f"[{message['role']}]\n{message['content']}" for message in messages)
