"""F60: an actor that does not act does not play: its fallbacks are counted, and a lasting failure stops the session."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.helpers.commands import mosaic
from tests.helpers.daemons import ended, running_daemon, wait_for
from tests.helpers.free_ports import free_ports
from tests.helpers.llm_server import Answer, LlmServer, fails, lists, running_llm_server, says
from tests.helpers.sessions import wait_for_state

from mosaic.contracts.folder import Workspace
from mosaic.trainer.client.trainer_client import TrainerClient

LAKE = ("FrozenLake-v1", "--env-kwargs", '{"is_slippery": false}', "--max-steps", "4")
RIGHT, NONSENSE = says("ACTION: right"), says("Let me think about it.")


@pytest.fixture(scope="module")
def server() -> Iterator[LlmServer]:
    with running_llm_server() as running:
        yield running


@pytest.fixture(scope="module")
def trainer(tmp_path_factory: pytest.TempPathFactory) -> Iterator[TrainerClient]:
    folder = tmp_path_factory.mktemp("silent")
    with running_daemon(Workspace(folder / "var"), folder / "plugins", "--max-runs", "4") as (_, client):
        for worker in ("play", "cleanrl"):  # they would otherwise start during a test
            client.ask_worker(worker, {"ask": "ping"})
        yield client


@pytest.fixture
def workspace(trainer: TrainerClient) -> Workspace:
    return Workspace(Path(trainer.get_status().workspace))


def ask(server: LlmServer, *answers: Answer, models: Answer | None = None) -> None:
    server.sent.clear()
    server.answers, server.models = list(answers), models or fails(404, "no such route")


def play(workspace: Workspace, server: LlmServer, *arguments: str) -> Any:
    return mosaic(workspace, "play", *LAKE, "--actor", "llm:a-model", *arguments, OPENAI_BASE_URL=server.url)


@pytest.mark.parametrize(("status", "words"), [(401, "bad key"), (404, "no such model")])
def test_a_lasting_failure_ends_a_session_as_failed(
    workspace: Workspace, server: LlmServer, status: int, words: str
) -> None:
    ask(server, RIGHT, RIGHT, fails(status, words))
    played = play(workspace, server)
    assert played.code not in (0, 2)
    assert words in played.out + played.err
    assert len(server.sent) == 3, "no more requests, and no fallbacks"


def test_a_spent_budget_ends_a_session_as_failed(workspace: Workspace, server: LlmServer) -> None:
    ask(server, RIGHT)
    played = play(workspace, server, "--actor-option", "max_calls=2")
    assert played.code not in (0, 2)
    assert "The budget is used up: max_calls=2" in played.out + played.err


@pytest.mark.parametrize(
    ("models", "words"),
    [
        (fails(401, "bad key"), "bad key"),
        (lists("b-model", "a-modell", "c"), "Did you mean 'a-modell'?"),
        (lists("a-model:latest", "other"), ""),
        (lists("only-one"), ""),
        (fails(404, "no such route"), ""),
        (fails(500), ""),
        (Answer(b"<html>"), ""),
    ],
)
def test_key_and_model_are_tried_before_the_start(
    workspace: Workspace, server: LlmServer, models: Answer, words: str
) -> None:
    ask(server, RIGHT, models=models)
    seconds = 10 + len(models.data)  # a verdict is kept for a config
    played = play(workspace, server, "--actor-option", f"timeout_s={seconds}")
    assert played.code == (2 if words else 0), played.err
    assert words in played.err
    assert bool(server.sent) is not bool(words)


def test_a_server_that_is_not_there_is_said_before_the_start(workspace: Workspace) -> None:
    (port,) = free_ports(1)
    arguments = ("--actor", "llm:a-model", "--actor-option", f"base_url=http://127.0.0.1:{port}/v1")
    played = mosaic(workspace, "play", *LAKE, *arguments)
    assert played.code == 2
    assert "Is the server running?" in played.err


def test_a_session_of_a_window_waits_until_someone_retries(trainer: TrainerClient, server: LlmServer) -> None:
    ask(server, RIGHT, fails(401, "bad key"), fails(401, "bad key"), RIGHT)
    actor = {"kind": "llm", "target": "a-model", "options": {"base_url": server.url}}
    config = {"env_id": LAKE[0], "actors": {"*": actor}, "episodes": 1, "max_steps": 3, "pauses_on_failure": True}
    payload = {"kind": "play", "metadata": {"worker": {"id": "play", "config": config}}, "artifacts": {}}
    run_id = trainer.submit(payload).run_id
    for pauses in (1, 2):

        def is_paused_again(pauses: int = pauses) -> bool:
            return sum(entry.stage == "paused" for entry in trainer.get_run(run_id).history) == pauses

        wait_for(is_paused_again, "the pause")
        assert len(server.sent) == 1 + pauses
        state = wait_for_state(trainer, run_id, lambda state: bool(state.failure), "the failure")
        assert (state.is_paused, state.step, "bad key" in state.failure) == (True, 1, True)
        trainer.resume(run_id)
    view = ended(trainer, run_id)
    assert view.outcome == "succeeded"
    summary = trainer.read_json(run_id, "play_summary.json")
    assert summary is not None
    totals = summary["agents"]["*"]["totals"]["llm:a-model"]
    assert (totals["decisions"], totals["fallbacks"]) == (3, 0)


def test_a_duel_of_fallbacks_has_no_result(workspace: Workspace, server: LlmServer, tmp_path: Path) -> None:
    (tmp_path / "no_plan.asl").write_text("known(nothing).\n")
    (tmp_path / "duel.yaml").write_text(
        "env: FrozenLake-v1\nenv_kwargs: {is_slippery: false}\nepisodes: 2\nmax_steps: 3\nactors:\n"
        f"- random\n- llm:a-model\n- {{actor: 'bdi:{tmp_path}/no_plan.asl', label: plans}}\n"
    )
    ask(server, NONSENSE)
    played = mosaic(workspace, "duel", str(tmp_path / "duel.yaml"), "--json", OPENAI_BASE_URL=server.url)
    assert played.code not in (0, 2)
    random, model, plans = played.json["actors"]
    assert (random["is_complete"], random["totals"]) == (True, None)
    for actor in (model, plans):
        assert (actor["is_complete"], actor["returns"]) == (False, None)
        assert actor["problem"].startswith("it did not play: 6 of 6 actions were the fallback")
    assert (model["totals"]["fallbacks"], model["totals"]["problems"]) == (6, {"no_action": 6})
    assert model["totals"]["input_tokens"] == 12 * 12
    shown = mosaic(workspace, "duel", str(tmp_path / "duel.yaml"), OPENAI_BASE_URL=server.url)
    assert "llm:a-model: 6 of 6 actions were the fallback, 180 tokens" in shown.out


def test_a_game_against_fallbacks_is_not_won(workspace: Workspace, server: LlmServer, tmp_path: Path) -> None:
    (tmp_path / "duel.yaml").write_text(
        "env: pettingzoo/tictactoe_v3\nepisodes: 1\nactors: [random]\nopponent: llm:a-model\n"
    )
    ask(server, NONSENSE)
    played = mosaic(workspace, "duel", str(tmp_path / "duel.yaml"), "--json", OPENAI_BASE_URL=server.url)
    assert played.code not in (0, 2)
    assert "its opponent did not play" in played.json["actors"][0]["problem"]
