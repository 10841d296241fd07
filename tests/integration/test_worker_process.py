"""The CleanRL worker as a process: its files, its exit codes, its messages, and its checker."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from concurrent import futures
from pathlib import Path
from typing import Any

import grpc
import pytest
from tests.helpers.worker_runs import COMMAND, events, run_worker, small

from cleanrl_worker.shell.registration import schedule_registration
from mosaic.base.handshake import TOKEN_KEY, compute_proof
from mosaic.base.worker_registry import WorkerDescription
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import MosaicError
from mosaic.contracts.folder import TOKEN_VARIABLE, RunFolder, Workspace
from mosaic.contracts.trainer_pb2_grpc import TrainerServicer, add_TrainerServicer_to_server
from mosaic.trainer import checkers

CARTPOLE = {"algo": "ppo", "env_id": "CartPole-v1", "total_timesteps": 2000, "seed": 1}


@pytest.fixture
def place(tmp_path: Path) -> Path:
    return tmp_path / "it's a place" / "var"


def python_path_with(folder: Path) -> str:
    """Return a PYTHONPATH with one more folder."""
    return os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])


def test_a_run_leaves_every_file_that_applies(place: Path) -> None:
    import torch

    folder = RunFolder(place / "trainer" / "runs" / "R1")
    done = run_worker(place, {**CARTPOLE, "run_id": "R1"})
    assert (done.returncode, done.stderr) == (0, "")
    _, _, step, _, episodic_return, _ = events(folder, "episodes")[-1]["rows"][-1]
    assert step < 1536
    assert done.stdout.splitlines()[-1] == f"global_step={step}, episodic_return={episodic_return:g}", "where it ended"
    assert folder.journal.exists()
    assert folder.last_checkpoint.resolve().name == "1536"
    analytics = json.loads(folder.analytics.read_text())
    model = folder.path / analytics["model"]
    assert model.match("runs/CartPole-v1__ppo__1__*/ppo.cleanrl_model")
    weights = torch.load(model, weights_only=True)
    layers = [
        f"{net}.{layer}.{part}" for net in ("critic", "actor") for layer in (0, 2, 4) for part in ("weight", "bias")
    ]
    assert sorted(weights) == sorted(layers)
    assert weights["actor.4.weight"].shape == (2, 64)
    assert analytics["tensorboard"]["dir"] == str(model.parent.relative_to(folder.path))
    assert [path.name[:11] for path in sorted(model.parent.iterdir())] == ["events.out.", "ppo.cleanrl"]
    assert events(folder, "finished")[0]["outcome"] == "succeeded"
    assert sorted(path.name for path in place.iterdir()) == ["config.json", "trainer"], "nothing is left elsewhere"


def test_a_second_worker_does_not_write_into_the_run_of_the_first(place: Path) -> None:
    folder = RunFolder(place / "trainer" / "runs" / "R1")
    assert run_worker(place, {**small(), "run_id": "R1"}).returncode == 0
    before = {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()}
    again = run_worker(place, {**small(total_timesteps=128), "run_id": "R1"})
    assert (again.returncode, again.stdout) == (2, "")
    assert again.stderr.startswith(f"There is a run 'R1' already, in {folder.path}. Give another run_id")
    assert {path: path.read_bytes() for path in folder.path.rglob("*") if path.is_file()} == before
    resumed = run_worker(place, {**small(total_timesteps=128), "run_id": "R1"}, "--resume")
    assert resumed.returncode == 0, resumed.stderr
    assert [event["attempt"] for event in events(folder, "hello")] == [1, 2]
    assert (folder.checkpoint(128) / "manifest.json").exists()


def test_event_files_of_a_worker_started_by_hand_go_to_cleanrls_folder_unless_the_variable_is_set(place: Path) -> None:
    """R4.1: without CLEANRL_TENSORBOARD_DIR, event files go to `runs/<run name>`; the dry run shows it."""
    dry = run_worker(place, {**small(), "run_id": "R1"}, "--dry-run", "--emit-summary")
    shown = Path(json.loads(dry.stdout)["tensorboard_dir"])
    assert shown.match("R1/runs/CartPole-v1__ppo__3__*")
    given = place / "given"
    assert run_worker(place, small(), CLEANRL_TENSORBOARD_DIR=str(given)).returncode == 0
    assert next(given.iterdir()).name.startswith("events.out.tfevents.")


def test_a_small_run_imports_no_torch_and_stays_small(place: Path) -> None:
    place.mkdir(parents=True)
    config = place / "config.json"
    config.write_text(json.dumps({**CARTPOLE, "total_timesteps": 1000}))
    script = (
        "import json, re, sys\n"
        "def peak_mb():\n"
        "    return int(re.search(r'VmHWM:\\s+(\\d+)', open('/proc/self/status').read())[1]) / 1024\n"
        "import gymnasium, numpy, pydantic\n"
        "gymnasium.make('CartPole-v1').reset()\n"
        "libraries_mb = peak_mb()\n"
        "from cleanrl_worker import cli\n"
        f"code = cli.main(['--config', {str(config)!r}, '--grpc', '--grpc-target', '127.0.0.1:9'])\n"
        "heavy = {'torch', 'grpc', 'tensorboard', 'pygame', 'matplotlib', 'av'} & set(sys.modules)\n"
        "print(json.dumps([code, sorted(heavy), libraries_mb, peak_mb()]))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "MOSAIC_VAR": str(place), TOKEN_VARIABLE: "t"},
        capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    code, heavy, libraries_mb, peak_mb = json.loads(done.stdout.splitlines()[-1])
    assert (code, heavy) == (0, [])
    assert peak_mb < 2 * libraries_mb


def test_a_dry_run_reports_everything_and_creates_nothing(place: Path) -> None:
    """R3.4: dry run."""
    done = run_worker(place, {**CARTPOLE, "extras": {"cuda": False}}, "--dry-run", "--emit-summary", "--seed", "9")
    assert (done.returncode, done.stderr) == (0, "")
    summary = json.loads(done.stdout)
    assert (summary["settings"]["cuda"], summary["settings"]["seed"]) == (False, 9)
    assert summary["module"] == "cleanrl_worker.algorithms.ppo"
    shown = run_worker(place, CARTPOLE, "--dry-run")
    assert "ppo on CartPole-v1: this would run." in shown.stdout
    assert [path.name for path in place.iterdir()] == ["config.json"]


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"algo": "nosuch"}, "No algorithm 'nosuch' in worker 'cleanrl'."),
        ({"env_id": "NoSuch-v9"}, "No environment 'NoSuch-v9'."),
        ({"run_id": "../x"}, "run_id: expected up to 64 letters, digits"),
        ({"extras": {"algo_params": {"learning_rate": "banana"}}}, "extras.algo_params.learning_rate: "),
        ({"extras": {"nosuch": True}}, "extras.nosuch: unknown setting of 'ppo'"),
    ],
)
def test_a_refusal_is_one_sentence_exit_code_2_and_no_folder(
    place: Path, changes: dict[str, Any], sentence: str
) -> None:
    done = run_worker(place, {**CARTPOLE, **changes})
    assert (done.returncode, done.stdout) == (2, "")
    assert sentence in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in place.iterdir()] == ["config.json"]


def test_a_run_folder_in_use_records_the_refusal(place: Path) -> None:
    folder = RunFolder(place / "R2")
    done = run_worker(place, {**CARTPOLE, "env_id": "Pendulum-v1"}, run_dir=folder.path)
    assert done.returncode == 2
    finished = events(folder, "finished")
    assert [(event["outcome"], event["reason"]) for event in finished] == [("rejected", done.stderr.strip())]


@pytest.mark.parametrize(("text", "sentence"), [("{", "is not valid JSON"), ("[]", "expected a JSON object")])
def test_an_invalid_config_is_refused(place: Path, text: str, sentence: str) -> None:
    place.mkdir(parents=True)
    (place / "c.json").write_text(text)
    done = subprocess.run(
        [*COMMAND, "--config", str(place / "c.json")], capture_output=True, text=True, timeout=100, cwd=place
    )
    assert done.returncode == 2
    assert sentence in done.stderr
    missing = subprocess.run(COMMAND, capture_output=True, text=True, timeout=100, cwd=place)
    assert missing.returncode == 2


def test_a_bug_shows_its_traceback_and_exit_code_1(place: Path) -> None:
    """An environment that raises during training stands for any bug."""
    place.mkdir(parents=True)
    (place / "broken_env.py").write_text(
        "import gymnasium\n"
        "from gymnasium.envs.classic_control.cartpole import CartPoleEnv\n"
        "class Broken(CartPoleEnv):\n"
        "    def step(self, action):\n"
        "        raise KeyError('a bug')\n"
        "gymnasium.register('Broken-v0', Broken)\n"
    )
    folder = RunFolder(place / "R3")
    done = run_worker(
        place, {**CARTPOLE, "env_id": "broken_env:Broken-v0"}, run_dir=folder.path,
        MOSAIC_ENV_MODULES="broken_env", PYTHONPATH=python_path_with(place),
    )  # fmt: skip
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1] == "KeyError: 'a bug'"
    assert events(folder, "finished") == []


def test_a_run_resumes_in_its_own_folder(place: Path) -> None:
    folder = RunFolder(place / "R4")
    assert run_worker(place, small(total_timesteps=64), run_dir=folder.path).returncode == 0
    assert run_worker(place, small(total_timesteps=128), "--resume", run_dir=folder.path).returncode == 0
    assert [event["resumed_from"] for event in events(folder, "hello")] == [None, 64]
    assert len(list(folder.models.iterdir())) == 1


def test_an_evaluation_gives_the_same_returns_each_time(place: Path) -> None:
    trained = RunFolder(place / "R5")
    assert run_worker(place, small(), run_dir=trained.path).returncode == 0
    result = []
    for name in ("E1", "E2"):
        folder = RunFolder(place / name)
        config = {"extras": {"mode": "policy_eval", "policy_path": str(trained.last_checkpoint), "eval_episodes": 10}}
        done = run_worker(place, config, run_dir=folder.path)
        assert (done.returncode, done.stderr) == (0, "")
        result.append(json.loads(folder.eval_summary.read_text())["returns"])
    assert result[0] == result[1]
    assert len(result[0]) == 10
    dry = run_worker(place, config, "--dry-run", "--emit-summary")
    summary = json.loads(dry.stdout)
    assert (summary["eval_batch_size"], summary["eval_repeat"], summary["algo"]) == (10, False, "ppo")


def test_the_checker_answers_on_a_clean_stdout_until_its_stdin_ends(place: Path) -> None:
    questions = [
        {"id": 1, "ask": "ping"},
        {"id": 2, "ask": "check", "config": CARTPOLE},
        {"id": 3, "ask": "check", "config": {**CARTPOLE, "algo": "pppo"}},
        {"id": 4, "ask": "probe", "family": "classic_control"},
        {"id": 5, "ask": "check", "config": {**CARTPOLE, "env_id": "noisy_env:Noisy-v0"}},
    ]
    lines = b"\xff garbage\n\n" + b"".join(json.dumps(question).encode() + b"\n" for question in questions)
    place.mkdir(parents=True)
    libraries = place.parent / "libraries"
    libraries.mkdir()
    (libraries / "noisy_env.py").write_text(
        "import gymnasium, os\n"
        "print('hello from a library')\n"
        "os.write(1, b'and from its C code')\n"
        "gymnasium.register('Noisy-v0', 'gymnasium.envs.classic_control.cartpole:CartPoleEnv')\n"
    )
    environment = {**os.environ, "PYTHONPATH": python_path_with(libraries), "MOSAIC_ENV_MODULES": "noisy_env"}
    done = subprocess.run(
        [*COMMAND, "--checker"], input=lines, env=environment, capture_output=True, timeout=100, cwd=place
    )
    replies = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0
    assert [reply["id"] for reply in replies] == [None, 1, 2, 3, 4, 5]
    assert [reply["ok"] for reply in replies] == [False, True, True, False, True, True]
    assert replies[3]["error"] == "UnknownName"
    assert replies[4]["shape"] == [400, 600, 3]
    assert b"hello from a library" in done.stderr
    assert list(place.iterdir()) == []


def test_importing_the_catalogue_imports_no_environment_library() -> None:
    script = (
        "import sys, mosaic.worker.envs, cleanrl_worker; "
        "print(sorted({'gymnasium', 'numpy', 'torch'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=100)
    assert done.stdout == "[]\n", done.stderr


def test_a_render_check_of_a_broken_driver_names_the_variable_to_set() -> None:
    """F24: before a run starts."""
    pytest.importorskip("mujoco")
    script = (
        "import json; from mosaic.worker.envs.render_check import check_rendering; "
        "print(json.dumps(check_rendering('mujoco')))"
    )
    done = subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, "MUJOCO_GL": "bad"}, capture_output=True, text=True, timeout=100,
    )  # fmt: skip
    result = json.loads(done.stdout)
    assert result["ok"] is False
    assert "invalid value for environment variable MUJOCO_GL: bad" in result["message"]
    assert "Set MUJOCO_GL=egl" in result["message"]


# --- registration with the daemon


class FakeDaemon(TrainerServicer):
    """A daemon that knows the token, or pretends to."""

    def __init__(self, token: str) -> None:
        self.token = token
        self.heard: list[pb.RegisterRequest] = []
        self.tokens: list[str] = []

    def Identify(self, request: Any, context: Any) -> pb.IdentifyReply:
        return pb.IdentifyReply(proof=compute_proof(self.token, "server", request.nonce))

    def RegisterWorker(self, request: Any, context: Any) -> pb.RegisterReply:
        self.heard.append(request)
        self.tokens.append(dict(context.invocation_metadata())[TOKEN_KEY])
        return pb.RegisterReply(is_known=True)


@pytest.mark.parametrize(("known", "heard"), [("secret", 1), ("something else", 0)])
def test_a_worker_registers_once_and_only_with_a_verified_daemon(
    known: str, heard: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """R2.3: the worker's command."""
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    daemon = FakeDaemon(known)  # type: ignore[abstract]
    server = grpc.server(futures.ThreadPoolExecutor(2))
    add_TrainerServicer_to_server(daemon, server)
    port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        registration = schedule_registration(f"127.0.0.1:{port}", "R9", ("inbox",), delay_s=0)
        registration.join(30)
    finally:
        server.stop(0).wait()
    assert len(daemon.heard) == heard
    assert daemon.tokens == ["secret"] * heard
    if heard:
        assert (daemon.heard[0].run, daemon.heard[0].worker, daemon.heard[0].pid) == ("R9", "cleanrl", os.getpid())


def test_a_target_that_does_not_answer_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        registration = schedule_registration(f"127.0.0.1:{taken.getsockname()[1]}", "R9", (), delay_s=0)
        registration.join(30)
    assert not registration.is_alive()


def test_a_short_run_never_registers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(TOKEN_VARIABLE, "secret")
    registration = schedule_registration("127.0.0.1:9", "R9", (), delay_s=1e6)
    registration.cancel()
    registration.join(30)
    assert not registration.is_alive()


def test_a_checker_that_hangs_is_ended_and_not_asked_again(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    starts = place / "starts"
    hanging = f"open({str(starts)!r}, 'a').write('x'); import time; time.sleep(1000)"
    worker = WorkerDescription("slow", "Slow", "1", ("true",), checker=(sys.executable, "-c", hanging))
    monkeypatch.setattr(checkers, "CHECKER_TIMEOUT_S", 2.0)
    place.mkdir(parents=True)
    checker = checkers.Checker(worker, Workspace(place))
    try:
        with pytest.raises(MosaicError, match=r"had no answer within 2 s and was ended; .*checker\.slow\.log"):
            checker.ask({"ask": "check"})
        assert starts.read_text() == "x"
    finally:
        checker.close()
