"""The actor `llm` against a real server on loopback: whatever it replies, the session has an action."""

from __future__ import annotations

import re
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended, running_daemon, wait_for
from tests.helpers.llm_server import (
    Answer,
    LlmServer,
    Sent,
    fails,
    running_llm_server,
    running_slow_headers,
    says,
    stream,
)

from mosaic.base.journal import read_all
from mosaic.contracts.errors import BadInput, MissingExtra, NotTrusted, UnknownName
from mosaic.contracts.events import EVENT_TYPES, LlmTurn
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.payload import Payload
from mosaic.contracts.play import ANY_AGENT, ActorChoice
from mosaic.features.play import worker_llm as llm_actor
from mosaic.features.play import worker_llm_client as llm_client
from mosaic.features.play.worker_llm import LlmActor, list_actions, parse_action
from mosaic.features.play.worker_llm_client import ChatClient, ModelFailure, Reply, SamplingSettings
from mosaic.trainer.admission import require_trust
from mosaic.worker.actors import ActorFailed, Seat, Turn, make_actor
from mosaic.worker.envs.factory import find_family
from mosaic.worker.play_envs import PlayEnv, action_names, describe_state, make_play_env, name_actions
from mosaic.worker.recording import RecordingHeader

KEY = "sk-canary-0123456789abcdef"
LAKE = "FrozenLake-v1"
NAMES = ("left", "down", "right", "up")
RIGHT = says("I go to the right.\nACTION: right")
NONSENSE = says("Let me think about it.")


class Table:
    """An actor at a seat of FrozenLake, and what it wrote to the journal."""

    def __init__(self, url: str, **options: Any) -> None:
        self.events: list[dict[str, Any]] = []
        self.env: PlayEnv = make_play_env(RecordingHeader(env_id=LAKE))
        self.env.reset(1)
        family = find_family(LAKE)
        assert family is not None
        seat = Seat(
            env_id=LAKE,
            agent=ANY_AGENT,
            observation_space=self.env.observation_space(ANY_AGENT),
            action_space=self.env.action_space(ANY_AGENT),
            action_names=NAMES,
            env=self.env.env,
            entry=family.find_entry(LAKE),
            report=lambda kind, **fields: self.events.append({"kind": kind, **fields}),
        )
        options = {"base_url": url, "timeout_s": 60, **options}
        actor = make_actor(ActorChoice(kind="llm", target="a-model", options=options), seat)
        assert isinstance(actor, LlmActor)
        self.actor = actor
        self._steps = 0

    def turn(self, step: int | None = None, **fields: Any) -> Turn:
        self._steps += 1
        return Turn(ANY_AGENT, self._steps if step is None else step, 0, {}, **fields)

    def act(self, turn: Turn | None = None) -> str:
        """Ask until there is an action, as a session does; return its name."""
        turn = turn or self.turn()
        deadline = time.monotonic() + 100
        while (action := self.actor.act(turn)) is None:
            assert time.monotonic() < deadline
            time.sleep(0.001)
        return NAMES[action]

    @property
    def turns(self) -> list[LlmTurn]:
        found = [{"seq": 1, **event} for event in self.events if event["kind"] == "llm_turn"]
        return [LlmTurn.model_validate(event) for event in found]

    @property
    def warnings(self) -> list[str]:
        return [event["code"] for event in self.events if event["kind"] == "warning"]

    def close(self) -> None:
        self.actor.close()
        self.env.close()


@pytest.fixture
def server() -> Iterator[LlmServer]:
    with running_llm_server() as running:
        yield running


@pytest.fixture
def sit(server: LlmServer, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Table]]:
    monkeypatch.setattr(llm_client, "BACKOFF_S", 0.01)
    tables: list[Table] = []

    def sit_down(*answers: Answer | Callable[[Sent], Answer], **options: Any) -> Table:
        server.answers = list(answers)
        tables.append(Table(server.url, **options))
        return tables[-1]

    yield sit_down
    for table in tables:
        table.close()


Sit = Callable[..., Table]


def test_a_good_reply_is_the_action_and_is_recorded(server: LlmServer, sit: Sit) -> None:
    """R9.8: prompt, reply, cost and latency."""
    table = sit(RIGHT, price_per_million_input="100", price_per_million_output=1000)
    assert table.act() == "right"
    assert table.act(table.turn(legal_actions=[0, 2], reward=0.5)) == "right"
    first, second = table.turns
    assert EVENT_TYPES["llm_turn"] is LlmTurn
    assert (first.action, first.was_fallback, first.problem, first.attempts) == ("right", False, None, 1)
    assert (first.input_tokens, first.output_tokens) == (12, 3)
    assert first.cost == pytest.approx(0.0042)
    assert first.reply == "I go to the right.\nACTION: right"
    for part in (LAKE, "Walk over the ice", "row 0: start with agent | ice", "left, down, right, up"):
        assert part in first.prompt
    assert "Legal actions: left, right\n" in second.prompt
    assert "since your last turn: 0.5" in second.prompt
    roles = [message["role"] for message in server.sent[1].body["messages"]]
    assert roles == ["system", "user", "assistant", "user"]
    assert server.sent[1].body["messages"][2]["content"] == "ACTION: right"
    assert server.sent[0].body["model"] == "a-model"
    assert "Authorization" not in server.sent[0].headers
    summary = dict(table.actor.summarize())
    assert summary.pop("mean_latency_s") > 0
    assert summary == {
        "calls": 2, "input_tokens": 24, "output_tokens": 6, "cost": pytest.approx(0.0084), "decisions": 2,
        "fallbacks": 0, "problems": {},
    }  # fmt: skip


def test_a_bad_reply_is_repaired_once(server: LlmServer, sit: Sit) -> None:
    table = sit(NONSENSE, RIGHT, NONSENSE, says("up or down", usage=None), fallback="down")
    assert [table.act(), table.act()] == ["right", "down"]
    repaired, given_up = table.turns
    assert (repaired.was_fallback, repaired.attempts, repaired.rejected_reply) == (False, 2, "Let me think about it.")
    assert "The legal actions are: left, down, right, up." in server.sent[1].body["messages"][-1]["content"]
    assert (given_up.was_fallback, given_up.problem, given_up.attempts) == (True, "no_action", 2)
    assert given_up.detail == "The answer names several actions (up, down)."
    assert (repaired.input_tokens, given_up.input_tokens) == (24, None)
    assert table.warnings == ["llm_no_action"]


def test_the_session_never_waits_and_a_late_reply_is_dropped(server: LlmServer, sit: Sit) -> None:
    table = sit(says("ACTION: up", way="hang"), RIGHT)
    first = table.turn()
    assert table.actor.act(first) is None
    wait_for(lambda: server.sent, "the request")
    assert table.actor.act(first) is None
    table.actor.start_episode(2)
    later = table.turn(step=first.step)
    assert table.act(later) == "right"
    server.released.set()
    assert table.act() == "right"
    assert [turn.action for turn in table.turns] == ["right", "right"]
    # What the dropped reply cost is counted all the same.
    wait_for(lambda: table.actor.summarize()["input_tokens"] == 36, "the late reply")
    assert table.actor.summarize()["calls"] == 3


@pytest.mark.parametrize("way", ["hang", "trickle"])
def test_a_slow_reply_is_not_waited_for(sit: Sit, way: str) -> None:
    """A trickle would never end by a limit for each read."""
    table = sit(says("ACTION: up" + " " * 5000, way=way), timeout_s=0.3)
    assert table.act() == "left"
    assert [turn.problem for turn in table.turns] == ["timeout"]
    assert table.turns[0].latency_s >= 0.3
    assert table.turns[0].input_tokens is None


def test_a_busy_server_is_asked_again_when_it_says(server: LlmServer, sit: Sit) -> None:
    table = sit(fails(429, Retry_After="0"), RIGHT, fails(429, Retry_After="900"))
    assert [table.act(), table.act(), table.act()] == ["right", "left", "left"]
    assert [turn.problem for turn in table.turns] == [None, "busy", "busy"]
    assert [turn.attempts for turn in table.turns] == [2, 1, 0]
    assert "for another 900 s" in table.turns[2].detail or "899" in table.turns[2].detail
    assert len(server.sent) == 3


def test_a_lost_connection_is_tried_again(sit: Sit) -> None:
    table = sit(Answer(way="drop"), says("ACTION: up", way="half"), fails(503), RIGHT, Answer(way="drop"))
    assert table.act() == "right"
    assert table.turns[0].attempts == 4
    assert table.act() == "left"
    assert table.turns[1].problem == "connection"


@pytest.mark.parametrize(
    ("answer", "problem", "words"),
    [
        (fails(500, "boom"), "server", "boom"),
        (fails(418, "teapot"), "refused", "teapot"),
        (fails(302), "refused", "302"),
        (Answer(b"<html>hello</html>"), "malformed", "<html>hello</html>"),
        (Answer(b'{"choices": ['), "malformed", "chat completion"),
        (Answer(b'{"choices": []}'), "malformed", "chat completion"),
        (Answer(b'{"error": {"message": "not loaded"}}'), "malformed", "not loaded"),
        (Answer(b"[" * 100_000), "malformed", "chat completion"),
        (Answer(b" " * 1_100_000), "too_long", "1,000,000"),
        (says(None), "empty", "is empty"),
        (says("", reasoning="I should go right"), "empty", "only thoughts"),
        (says("<think>right? ACTION: up", finish="length"), "cut_off", "raise max_tokens"),
        (says("I could go right", finish="length"), "cut_off", "raise max_tokens"),
        (says("ACTION: jump"), "no_action", "no action"),
        (says("ACTION: up"), "illegal_action", "up is not legal"),
    ],
)
def test_every_failure_has_a_name_and_the_fallback(
    sit: Sit, monkeypatch: pytest.MonkeyPatch, answer: Answer, problem: str, words: str
) -> None:
    """R9.8: a bad reply never stops the session."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    table = sit(answer)
    assert table.act(table.turn(legal_actions=[1, 2])) == "down"
    (turn,) = table.turns
    assert (turn.problem, turn.was_fallback) == (problem, True)
    assert words in turn.detail
    assert KEY not in str(table.events)
    assert table.warnings == [f"llm_{problem}"]


@pytest.mark.parametrize(
    ("answer", "words"),
    [
        (fails(401, f"bad key {KEY}"), "bad key ***. Set OPENAI_API_KEY"),
        (fails(404, "no such model"), "no such model. Check the name"),
    ],
)
def test_a_lasting_failure_is_not_an_action(
    sit: Sit, monkeypatch: pytest.MonkeyPatch, answer: Answer, words: str
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    table = sit(answer, RIGHT)
    with pytest.raises(ActorFailed, match=re.escape(words)):
        table.act()
    assert table.act() == "right"
    assert table.actor.summarize()["decisions"] == 1


@pytest.mark.parametrize(
    "answer",
    [
        says(None, tool_calls=[{"function": {"name": "act", "arguments": '{"action": "right"}'}}]),
        says(None, tool_calls=[{"function": {"name": "act", "arguments": "{action: right"}}]),
        says("<think>\nleft? up?\n</think>\n\n**Right**"),
        says("ACTION: left, no:\nAction: `right`."),
        says("**ACTION:** Right, since left and up are walls"),
        says([{"type": "text", "text": "ACTION: right"}]),
        says("right", reasoning_content="left or up"),
        says("ACTION: right\nBecause", finish="length"),
        says("The best choice is right"),
        says("ACTION:\nright"),
        says("2"),
        says("I go on.\nACTION: 2"),
        says("ACTION: (2), since 3 is a wall"),
        says("ACTION: right 3 times"),
        says(None, tool_calls=[{"function": {"name": "act", "arguments": '{"action": 2}'}}]),
        stream("I go", " to the right.\nACT", "ION: right"),
        stream("", arguments=('{"act', 'ion": "ri', 'ght"}')),
    ],
)
def test_answers_are_understood_in_many_forms(sit: Sit, answer: Answer) -> None:
    table = sit(answer)
    assert table.act() == "right"
    assert table.turns[0].attempts == 1


@pytest.mark.parametrize(
    "budget",
    [
        {"max_calls": 1},
        {"max_tokens_total": 15},
        {"max_cost": 0.001, "price_per_million_input": 100, "price_per_million_output": 0},
    ],
)
def test_a_budget_that_is_used_up_means_no_more_requests(server: LlmServer, sit: Sit, budget: dict[str, Any]) -> None:
    table = sit(RIGHT, **budget)
    assert table.act() == "right"
    for _ in range(2):
        with pytest.raises(ActorFailed, match="The budget is used up"):
            table.act()
    assert len(server.sent) == 1
    assert table.actor.summarize()["fallbacks"] == 0


def test_a_budget_ends_even_if_the_server_does_not_count(server: LlmServer, sit: Sit) -> None:
    table = sit(says("ACTION: right", usage=None), max_tokens_total=50)
    assert table.act() == "right"
    with pytest.raises(ActorFailed, match="max_tokens_total=50"):
        table.act()
    assert table.actor.summarize()["input_tokens"] is None
    assert len(server.sent) == 1


def test_parameters_that_a_model_refuses_are_left_out(server: LlmServer, sit: Sit) -> None:
    def answer(sent: Sent) -> Answer:
        if "reasoning_effort" in sent.body:
            return fails(400, "unknown value")
        if "max_tokens" in sent.body:
            return fails(400, "Unsupported parameter: 'max_tokens'. Use 'max_completion_tokens' instead.")
        return RIGHT

    table = sit(answer, reasoning_effort="none", max_tokens=77, temperature=0.5)
    assert [table.act(), table.act()] == ["right", "right"]
    assert [turn.attempts for turn in table.turns] == [3, 1]
    assert server.sent[0].body["reasoning_effort"] == "none"
    body = server.sent[-1].body
    assert (body["max_completion_tokens"], body["temperature"]) == (77, 0.5)


@pytest.mark.parametrize(
    ("beginning", "more", "pause_s"),
    [
        (b"HTTP/1.1 200 OK\r\nX-Slow: ", b"a", 0.05),
        (b"", b"HTTP/1.1 100 Continue\r\n\r\n", 0.0),
        (b"", b"HTTP/1.1 103 Early Hints\r\nX-A: b\r\n\r\n", 0.03),
        (b"HTTP/1.1 200 OK\r\nContent-Length: 9000\r\n\r\n", b" ", 0.05),
        (b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n", b"1\r\n \r\n", 0.05),
    ],
    ids=["headers", "100", "103", "body", "chunks"],
)
def test_a_reply_that_never_ends_is_cut_at_its_deadline(beginning: bytes, more: bytes, pause_s: float) -> None:
    """F59: each part comes in time; no thread and no connection is left."""
    with running_slow_headers(beginning, more, pause_s) as server:
        client = ChatClient(server.url, "a-model", None, SamplingSettings())
        for _ in range(2):
            with pytest.raises(ModelFailure) as failure:
                client.complete([], time.monotonic() + 1.0, threading.Event(), lambda: None)
            assert failure.value.problem == "timeout"
            wait_for(lambda: server.open == 0, "the connection to be closed")
        assert "llm-deadline" not in {thread.name for thread in threading.enumerate()}
        client.close()


def test_an_actor_has_some_requests_that_hang_and_no_more(
    server: LlmServer, sit: Sit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """F59: the others are the fallback at once."""
    monkeypatch.setattr(llm_actor, "MAX_RUNNING", 2)
    table = sit(says("ACTION: up", way="hang"))
    for step in (1, 2):
        assert table.actor.act(table.turn(step)) is None
        wait_for(lambda: len(server.sent) == step, "the request")  # noqa: B023
    assert table.act(table.turn(3)) == "left"
    assert [(turn.problem, turn.detail, turn.attempts) for turn in table.turns] == [
        ("timeout", "2 earlier requests still hang.", 0)
    ]
    assert len(server.sent) == 2


@pytest.mark.parametrize("field", ["content", "reasoning_content", "tool_calls"])
def test_a_key_that_a_reply_repeats_is_not_kept(server: LlmServer, field: str) -> None:
    """F59: nor shown, nor sent again."""
    text = f"My key is {KEY}."
    message: dict[str, Any] = {field: [{"function": {"arguments": text}}] if field == "tool_calls" else text}
    server.answers = [says(**message)]
    client = ChatClient(server.url, "a-model", KEY, SamplingSettings())
    reply = client.complete([], time.monotonic() + 60, threading.Event(), lambda: None)
    client.close()
    assert server.sent[0].headers["Authorization"] == f"Bearer {KEY}"
    assert KEY not in repr(reply)
    assert "My key is ***." in repr(reply)


def test_closing_does_not_wait_for_a_server(server: LlmServer, sit: Sit) -> None:
    table = sit(says("ACTION: up", way="hang"))
    assert table.actor.act(table.turn()) is None
    wait_for(lambda: server.sent, "the request")
    table.actor.close()
    assert not server.released.is_set()
    assert table.turns == []


def test_closing_closes_the_connection_also_before_the_thread_of_the_request_has_ended(
    sit: Sit, monkeypatch: pytest.MonkeyPatch
) -> None:
    may_end = threading.Event()

    class SlowlyEndingThread(threading.Thread):
        def run(self) -> None:
            super().run()
            if self.name == "llm-request":
                may_end.wait()

    monkeypatch.setattr(threading, "Thread", SlowlyEndingThread)
    table = sit(RIGHT)
    assert table.act() == "right"
    table.actor.close()
    may_end.set()
    assert table.actor._client._client.is_closed


def test_options_are_checked_by_the_actor(sit: Sit, tmp_path: Path) -> None:
    with pytest.raises(UnknownName, match=r"No option 'timeout' in the actor 'llm'\. Did you mean 'timeout_s'"):
        sit(RIGHT, timeout=3)
    with pytest.raises(BadInput, match="The option timeout_s must be a number above 0"):
        sit(RIGHT, timeout_s=-1)
    with pytest.raises(BadInput, match="max_cost needs price_per_million_input"):
        sit(RIGHT, max_cost=1)
    with pytest.raises(UnknownName, match=r"No action 'lef' in FrozenLake-v1\. Did you mean 'left'"):
        sit(RIGHT, fallback="lef")
    with pytest.raises(BadInput, match="'ftp://x' is not an address"):
        sit(RIGHT, base_url="ftp://x")
    with pytest.raises(BadInput) as refused:
        sit(RIGHT, base_url=f"http://me:{KEY}@127.0.0.1/v1")
    assert KEY not in str(refused.value)
    with pytest.raises(BadInput, match="cannot be read: No such file"):
        sit(RIGHT, template=str(tmp_path / "missing"))
    with pytest.raises(BadInput, match="takes no options; got 'speed'"):
        make_actor(ActorChoice(kind="random", options={"speed": 1}), Seat(LAKE, ANY_AGENT, None, None))


def test_the_prompt_can_be_replaced_by_a_file(server: LlmServer, sit: Sit, tmp_path: Path) -> None:
    path = tmp_path / "prompt.txt"
    path.write_text("Rules of ${env_id} for $$5.\n---\nNow: $state\nChoose: $legal_actions")
    table = sit(RIGHT, template=str(path))
    table.act(table.turn(legal_actions=[2]))
    system, turn = (message["content"] for message in server.sent[0].body["messages"])
    assert system == "Rules of FrozenLake-v1 for $5."
    assert turn.startswith("Now: row 0: start")
    assert turn.endswith("Choose: right")
    path.write_text("The $stat")
    with pytest.raises(UnknownName, match=r"No placeholder '\$stat' in .* Did you mean '\$state'"):
        sit(RIGHT, template=str(path))


@pytest.mark.parametrize("text", ["2 holes are near", "I see 3 cells", "9", "ACTION: 7"])
def test_a_number_that_is_no_answer_is_not_an_action(sit: Sit, text: str) -> None:
    table = sit(says(text))
    assert table.act(table.turn(legal_actions=[1, 2])) == "down"
    assert table.turns[0].problem == "no_action"


def test_a_number_in_the_name_of_an_action_is_its_number() -> None:
    columns = [f"column_{number}" for number in range(1, 8)]
    assert parse_action(Reply("ACTION: 3"), columns, columns) == "column_3"
    assert "(" not in list_actions(columns)
    assert parse_action(Reply("3"), ["3", "7"], ["3", "7"]) == "3"


def test_a_model_without_a_role_for_the_system_gets_that_text_from_the_user(server: LlmServer, sit: Sit) -> None:
    def answer(sent: Sent) -> Answer:
        has_system = any(message["role"] == "system" for message in sent.body["messages"])
        return fails(400, "System role not supported") if has_system else RIGHT

    table = sit(answer)
    assert [table.act(), table.act()] == ["right", "right"]
    assert [turn.attempts for turn in table.turns] == [2, 1]
    assert [message["role"] for message in server.sent[-1].body["messages"]] == ["user", "assistant", "user"]
    assert "Walk over the ice" in server.sent[-1].body["messages"][0]["content"]


def test_a_server_that_only_streams_is_asked_to(server: LlmServer, sit: Sit) -> None:
    def answer(sent: Sent) -> Answer:
        return stream("ACTION: right") if sent.body.get("stream") else fails(400, "stream must be set to true")

    table = sit(answer)
    assert table.act() == "right"
    assert (table.turns[0].attempts, table.turns[0].input_tokens, table.turns[0].output_tokens) == (2, 12, 3)


def test_an_answer_that_was_cut_off_is_repaired_with_more_tokens(server: LlmServer, sit: Sit) -> None:
    table = sit(says("<think>left? right?", finish="length"), RIGHT, RIGHT, max_tokens=100)
    assert [table.act(), table.act()] == ["right", "right"]
    assert [sent.body["max_tokens"] for sent in server.sent] == [100, 400, 100]


def prompt(env_id: str, server: LlmServer, **settings: Any) -> str:
    """Return what a model is told of the first turn."""
    env = make_play_env(RecordingHeader(env_id=env_id, env_kwargs=settings))
    try:
        env.reset(3)
        family, turn = find_family(env_id), env.turns[0]
        entry = None if family is None else family.find_entry(env_id)
        space = env.action_space(turn.agent)
        seat = Seat(
            env_id=env_id,
            agent=turn.agent,
            observation_space=env.observation_space(turn.agent),
            action_space=space,
            action_names=action_names(env.env, entry, int(space.n)),
            env=env.env,
            entry=entry,
        )
        actor = make_actor(ActorChoice(kind="llm", target="a-model", options={"base_url": server.url}), seat)
        assert isinstance(actor, LlmActor)
        actor.act(turn)
        wait_for(lambda: server.sent, "the request")
        actor.close()
        return server.sent[0].prompt
    finally:
        env.close()


@pytest.mark.parametrize(
    ("env_id", "settings", "told", "not_told"),
    [
        ("FrozenLake-v1", {}, ["slippery: a move goes where you want with probability 0.333", "after 100 steps"], []),
        ("FrozenLake-v1", {"success_rate": 0.9}, ["with probability 0.9,"], []),
        ("FrozenLake-v1", {"is_slippery": False}, ["is not slippery"], ["probability"]),
        ("Taxi-v4", {"is_rainy": True}, ["It rains", "A step costs 1", "destination"], ["hotel"]),
        ("Taxi-v4", {}, [], ["rains"]),
        ("CliffWalking-v1", {}, ["one into the cliff 100"], ["slippery"]),
        ("Blackjack-v1", {}, ["stick (0), hit (1)", "your sum: ", "(1 is an ace)"], ["Rows", "goal", "1.5"]),
        ("Blackjack-v1", {"natural": True}, ["unless the dealer has them, too"], ["1.5"]),
        ("Blackjack-v1", {"natural": True, "sab": False}, ["1.5"], ["unless"]),
        ("LunarLander-v3", {}, ["`left_engine` pushes and turns to the left", "a crash -100"], ["wind"]),
        (
            "MiniGrid-DoorKey-5x5-v0",
            {},
            ["`forward` moves", "key yellow", "`agent down` faces down", "Rows count", "after 250 steps"],
            ["seen in part"],
        ),
        ("pettingzoo/tictactoe_v3", {}, ["row 0: empty | empty", "player_1 sets crosses"], ["pad", "yellow", "floor"]),
        ("pettingzoo/connect_four_v3", {}, ["column_1, column_2", "player_0 has red"], ["crosses", "(0)"]),
        (
            "pettingzoo/chess_v6",
            {},
            [
                "Legal actions: a2a3, a2a4",
                "UCI",
                "8 r n b q k b n r",
                "FEN: rnbqkbnr/pppppppp/8/8/8/8/PPPPPPPP/RNBQKBNR w",
            ],
            ["crosses", "0, 1, 2"],
        ),
        (
            "pettingzoo/go_v5",
            {"board_size": 5, "komi": 0.5},
            ["as black_0", " 5 . . . . .", "A B C D E", "Legal actions: A5, B5,", "E1, pass", "White gets 0.5 points"],
            ["crosses", "Observation"],
        ),
        (
            "pettingzoo/texas_holdem_v4",
            {},
            [
                "Your hand: ",
                " of ",
                "Cards that all see: none yet",
                "Bets: player_0 ",
                "Legal actions: call, raise",
            ],
            ["crosses", "Observation", "['"],
        ),
        (
            "pettingzoo/texas_holdem_no_limit_v6",
            {},
            ["Bets: player_0 ", "Left to bet: player_0 9"],
            ["np.int64"],
        ),
        ("pettingzoo/leduc_holdem_v4", {}, ["Your hand: ", "of hearts", "A pair with the card"], ["crosses"]),
    ],
)
@pytest.mark.filterwarnings("ignore:.*precision lowered")  # of poker without limit
def test_a_prompt_says_what_the_game_is(
    server: LlmServer, env_id: str, settings: dict[str, Any], told: list[str], not_told: list[str]
) -> None:
    server.answers = [RIGHT]
    try:
        text = prompt(env_id, server, **settings)
    except MissingExtra as error:
        pytest.skip(str(error))
    assert [part for part in told if part not in text] == []
    assert [part for part in not_told if part in text] == []


@pytest.mark.parametrize(
    ("env_id", "answer", "name"),
    [
        ("pettingzoo/chess_v6", "ACTION: e2e4", "e2e4"),
        ("pettingzoo/chess_v6", "I play e2e4 and win in 12 moves.", "e2e4"),
        ("pettingzoo/chess_v6", "ACTION: e2e5", None),
        ("pettingzoo/go_v5", "Action: d4, as the 3 stones there need it", "D4"),
        ("pettingzoo/go_v5", "I **pass**.", "pass"),
    ],
)
def test_moves_are_named(env_id: str, answer: str, name: str | None) -> None:
    try:
        env = make_play_env(RecordingHeader(env_id=env_id))
    except MissingExtra as error:
        pytest.skip(str(error))
    env.reset(3)
    family, turn = find_family(env_id), env.turns[0]
    entry = None if family is None else family.find_entry(env_id)
    names = name_actions(env.core, entry, turn, action_names(env.env, entry, int(env.action_space(turn.agent).n)))
    legal = [names[action] for action in turn.legal_actions or ()]
    if name is None:
        with pytest.raises(ModelFailure):
            parse_action(Reply(answer), names, legal)
    else:
        action = names.index(parse_action(Reply(answer), names, legal))
        assert names[action] == name
        env.step({turn.agent: action})
        state = describe_state(env.core, entry, env.turns[0])
        assert ("4 . . . . P . . ." if name == "e2e4" else f"Last move: {name}") in state
    env.close()


@pytest.mark.parametrize(
    ("env_id", "settings"),
    [
        ("ALE/Pong-v5", {}),
        ("ALE/Pong-v5", {"obs_type": "ram"}),
        ("pettingzoo/simple_spread_v3", {}),
    ],
)
def test_a_model_that_would_be_told_nothing_is_refused(
    server: LlmServer, env_id: str, settings: dict[str, Any]
) -> None:
    with pytest.raises(BadInput, match=f"llm:a-model cannot play {env_id}: it would be told nothing but numbers"):
        prompt(env_id, server, **settings)


@pytest.mark.parametrize(
    ("env_id", "parts"),
    [
        ("Taxi-v4", ["stop R", "passenger", "destination", "walls between the cells (row, column) (0, 1) and (0, 2)"]),
        ("CliffWalking-v1", ["row 3: start with agent | cliff | cliff"]),
        ("CartPole-v1", ["cart position: 0.001182\n", "pole angular velocity: "]),
        ("Blackjack-v1", ["your sum: ", "card of the dealer (1 is an ace): "]),
        ("MountainCarContinuous-v0", ["Observation: [-0."]),
    ],
)
def test_a_state_is_described_in_words(env_id: str, parts: list[str]) -> None:
    env = make_play_env(RecordingHeader(env_id=env_id))
    env.reset(1)
    family = find_family(env_id)
    assert family is not None
    text = describe_state(env.core, family.find_entry(env_id), env.turns[0])
    assert all(part in text for part in parts), text
    env.close()


def test_without_httpx_the_extra_is_named(sit: Sit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "httpx", None)
    with pytest.raises(MissingExtra, match=r"The actor 'llm' needs httpx: pip install 'mosaic-rl\[llm\]'"):
        sit(RIGHT)


def test_an_imported_config_does_not_get_the_key_without_trust() -> None:
    def payload(**actor: Any) -> Payload:
        config = {"env_id": LAKE, "actors": {ANY_AGENT: actor}}
        metadata = {"worker": {"id": "play", "config": config}, "is_imported": True}
        return Payload.parse({"kind": "play", "metadata": metadata, "artifacts": {}})

    require_trust(payload(kind="random"))
    with pytest.raises(NotTrusted, match="send your API key to http://evil/v1"):
        require_trust(payload(kind="llm", target="m", options={"base_url": "http://evil/v1"}))
    with pytest.raises(NotTrusted, match=r"run the actor script:/tmp/x\.py"):
        require_trust(payload(kind="script", target="/tmp/x.py"))


def test_a_session_is_played_canceled_and_keeps_the_key_to_itself(
    workspace: Workspace, plugins: Path, server: LlmServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R4.6, R9.8: the key is in no file of the run."""
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    server.answers = [fails(429, f"slow down, {KEY}", Retry_After="0"), NONSENSE, RIGHT]
    common = ("--env-kwargs", '{"is_slippery": false}', "--max-steps", "4", "--json")
    with running_daemon(workspace, plugins) as (_, trainer):
        arguments = ("--actor", "llm:a-model", "--actor-option", "timeout_s=60")
        played = mosaic(workspace, "play", LAKE, *arguments, *common, OPENAI_BASE_URL=server.url)
        assert played.code == 0, played.err
        (episode,) = played.json["episodes"]
        assert episode["length"] == 4
        totals = played.json["agents"][ANY_AGENT]["totals"]["llm:a-model"]
        assert (totals["calls"], totals["decisions"], totals["fallbacks"]) == (6, 4, 0)
        events = read_all(RunFolder(trainer.get_run(played.json["run_id"]).run_dir).journal)
        assert [event["action"] for event in events if event["kind"] == "llm_turn"] == ["right"] * 4
        refused = mosaic(workspace, "play", LAKE, *arguments, "--actor-option", "temprature=1", *common)
        assert refused.code == 2
        assert "Did you mean 'temperature'?" in refused.err
        server.answers = [says("ACTION: up", way="hang")]
        actor = {"kind": "llm", "target": "m", "options": {"base_url": server.url, "timeout_s": 3000}}
        metadata = {"worker": {"id": "play", "config": {"env_id": LAKE, "actors": {ANY_AGENT: actor}}}}
        before = len(server.sent)
        run_id = trainer.submit({"kind": "play", "metadata": metadata, "artifacts": {}}).run_id
        wait_for(lambda: len(server.sent) > before, "the request")
        trainer.cancel_run(run_id)
        assert ended(trainer, run_id).status == "ended"
    assert {sent.headers["Authorization"] for sent in server.sent} == {f"Bearer {KEY}"}
    leaks = [path for path in workspace.root.rglob("*") if path.is_file() and KEY.encode() in path.read_bytes()]
    assert leaks == []
