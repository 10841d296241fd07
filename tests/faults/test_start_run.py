"""F62: programs that call `mosaic.start_run`: what they log, how they end, and the processes that they start."""

from __future__ import annotations

import argparse
import copy
import dataclasses
import json
import math
import os
import pickle
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from tests.helpers.daemons import LiveDaemon, wait_for

import mosaic
from mosaic.base.journal import read_all
from mosaic.contracts.folder import WORKSPACE_VARIABLE, RunFolder
from mosaic.features.runs import api_attached as attached_run

POINTS = 50
BEGIN = f"""
import atexit, os, signal, sys, threading, time
import mosaic

threads = []
atexit.register(lambda: [thread.join() for thread in threads])  # called after the run has ended
run = mosaic.start_run(sys.argv[1])
for step in range(1, {POINTS + 1}):
    run.log({{"x": step}}, step=step)


def wait_for_files():
    journal = run.folder / "journal.jsonl"
    while '"global_step":{POINTS}' not in journal.read_text():
        time.sleep(0.01)


"""


class Ending(NamedTuple):
    code: str
    """What follows BEGIN, from line 18 on."""
    exit_code: int
    status: str
    reason: str
    stderr: str = ""
    """The last line that it prints."""


SUCCESS = "It completed all its steps."
ENDINGS = {
    "end": Ending("", 0, "succeeded", SUCCESS),
    "exit": Ending("sys.exit()", 0, "succeeded", SUCCESS),
    "exit-0": Ending("sys.exit(0)", 0, "succeeded", SUCCESS),
    "exit-3": Ending("sys.exit(3)", 3, "failed", "It exited with 3."),
    "exit-text": Ending("sys.exit('no data')", 1, "failed", "It exited with 'no data'.", "no data"),
    "error": Ending(
        "def train():\n    json = __import__('json')\n    json.loads('{')\n\n\ntrain()",
        1,
        "failed",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1) "
        "(error.py, line 20)",
        "json.decoder.JSONDecodeError: Expecting property name enclosed in double quotes: line 1 column 2 (char 1)",
    ),
    "interrupt": Ending(  # where the tests run in the background of a shell, it would be ignored
        "signal.signal(signal.SIGINT, signal.default_int_handler)\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(60)",
        -2, "cancelled", "It was interrupted.",
    ),
    "os-exit": Ending("wait_for_files()\nos._exit(0)", 0, "failed", "without finishing it."),
    "kill": Ending("wait_for_files()\nos.kill(os.getpid(), signal.SIGKILL)", -9, "failed", "without finishing it."),
    "with-exit-0": Ending("with run:\n    sys.exit(0)", 0, "succeeded", SUCCESS),
    "with-exit-3": Ending("with run:\n    sys.exit(3)", 3, "failed", "It exited with 3."),
    "with-error": Ending(
        "with run:\n    1 / 0", 1, "failed", "ZeroDivisionError: division by zero (with-error.py, line 19)",
        "ZeroDivisionError: division by zero",
    ),
    "caught": Ending(
        "try:\n    1 / 0\nexcept ZeroDivisionError:\n    pass", 0, "succeeded", SUCCESS
    ),
    "thread": Ending(
        "def log():\n    while threading.main_thread().is_alive():\n        pass\n"
        "    for step in range(100):\n        run.log({'late': step}, step=step)\n\n\n"
        "threading.Thread(target=log).start()", 0, "succeeded", SUCCESS
    ),
    "daemon-thread": Ending(
        "def log():\n    while True:\n        run.log({'late': 1}, step=1)\n        time.sleep(0)\n\n\n"
        "threads.append(threading.Thread(target=log, daemon=True))\nthreads[0].start()", 0, "succeeded", SUCCESS
    ),
    "collected": Ending("run = None", 0, "succeeded", SUCCESS),
    "nested": Ending(
        "with mosaic.start_run('inner') as inner:\n    inner.log({'y': 1}, step=1)\n"
        "second = mosaic.start_run('second')\nsecond.log({'y': 1}, step=1)", 0, "succeeded", SUCCESS
    ),
}  # fmt: skip
RARE = ("exit", "exit-text", "with-exit-3", "with-error", "os-exit", "caught", "collected", "completed")
"""Of the endings and notebooks, those that only MOSAIC_FULL_SWEEP=1 runs."""


@pytest.fixture
def client(daemon: LiveDaemon) -> Iterator[mosaic.Client]:
    with mosaic.connect(daemon.workspace.root) as connected:
        yield connected


def chosen(cases: Iterable[str]) -> list[str]:
    return [name for name in cases if name not in RARE or os.environ.get("MOSAIC_FULL_SWEEP")]


def start(daemon: LiveDaemon, script: Path, *arguments: str) -> subprocess.Popen[str]:
    environment = {**os.environ, WORKSPACE_VARIABLE: str(daemon.workspace.root)}
    return subprocess.Popen(
        [sys.executable, script, *arguments],
        env=environment,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended_run(client: mosaic.Client, name: str) -> mosaic.Run:
    run = client.get_run(name)
    wait_for(lambda: run.refresh().is_finished, f"the run {name} to end")
    return run


def metrics(run: mosaic.Run) -> Mapping[str, Any]:
    return {tag: series.values.tolist() for tag, series in run.metrics().items()}


def test_a_run_ends_as_its_program_does_and_no_point_is_lost(
    client: mosaic.Client, daemon: LiveDaemon, tmp_path: Path, record_property: Any
) -> None:
    """F62, R11.2: by its last statement, sys.exit, an exception, Ctrl-C or a signal."""
    names = chosen(ENDINGS)
    record_property("tries", len(names))
    for first in range(0, len(names), 6):
        started = {}
        for name in names[first : first + 6]:
            script = tmp_path / f"{name}.py"
            script.write_text(BEGIN + ENDINGS[name].code + "\n")
            started[name] = start(daemon, script, name)
        for name, process in started.items():
            _, printed = process.communicate(timeout=120)
            ending, run = ENDINGS[name], ended_run(client, name)
            shown = f"{name}: {printed} {run!r} {run.view.reason}"
            assert process.returncode == ending.exit_code, shown
            assert run.status == ending.status, shown
            assert str(run.view.reason).endswith(ending.reason), shown
            assert run.view.global_step == (99 if name == "thread" else POINTS), shown
            assert metrics(run)["x"] == list(range(1, POINTS + 1)), shown
            if ending.status == "succeeded":
                assert not printed, shown
            assert printed.rstrip().endswith(ending.stderr), shown
    assert metrics(ended_run(client, "thread"))["late"] == list(range(100))
    assert [ended_run(client, name).status for name in ("inner", "second")] == ["succeeded"] * 2


def test_a_wrong_value_name_or_step_is_refused_and_nothing_of_the_call_is_stored(client: mosaic.Client) -> None:
    class Unusual:
        def __float__(self) -> float:
            raise RuntimeError("no number")

    good = {"good": 1.0}
    bad_names: list[Any] = [0, None, ("a",), b"loss", "", " ", "a\nb", "\x1b[31m", "\ud800", "x" * 201]
    bad_values: list[Any] = [None, "1", b"1", [1.0], np.ones(2), {}, 1j, 10**400, Unusual(), object()]
    bad_steps: list[Any] = [
        2**63,
        -(2**63) - 1,
        2**70,
        math.nan,
        math.inf,
        1.5,
        "1",
        None,
        np.float64(0.5),
        np.arange(2),
    ]
    with client.start_run("values") as run:
        for name in bad_names:
            with pytest.raises(mosaic.BadInput, match="is not a name of a metric; expected text of 1 to 200"):
                run.log({**good, name: 1.0}, step=1)
        for value in bad_values:
            with pytest.raises(mosaic.BadInput, match=r"'bad': .* is not a number"):
                run.log({**good, "bad": value}, step=1)
            with pytest.raises(mosaic.BadInput, match="'episodic_return': "):
                run.log_episode(value, 1, step=1)
        for step in bad_steps:
            with pytest.raises(mosaic.BadInput, match=r"step: .* is not a whole number of at most 64 bits"):
                run.log(good, step=step)
            with pytest.raises(mosaic.BadInput, match="length: "):
                run.log_episode(1.0, step, step=1)
            with pytest.raises(mosaic.BadInput, match="step: "):
                run.save_checkpoint({}, step=step)
        with pytest.raises(mosaic.BadInput, match="leave out what has no value"):
            run.log({"bad": None}, step=1)  # type: ignore[dict-item]
        with pytest.raises(mosaic.BadInput, match="negative"):
            run.save_checkpoint({}, step=-1)
        torch = pytest.importorskip("torch")
        numbers = [
            True,
            2,
            np.float32(3),
            np.array([[4]]),
            torch.tensor(5.0, requires_grad=True),
            math.nan,
            math.inf,
            1e300,
        ]
        for step, value in enumerate([np.int64(-5), 2**63 - 1, 10.0, torch.tensor(3)]):
            run.log({f"number {index} é": number for index, number in enumerate(numbers)}, step=value)
            run.log_episode(numbers[step], 4, step=step)
        with pytest.raises(mosaic.BadInput, match="config: a str"):
            client.start_run("refused", "lr=1")
    assert (run.status, run.view.global_step, run.view.episodes) == ("succeeded", 2**63 - 1, 4)
    stored = run.metrics()
    assert [stored[f"number {index} é"].values[0] for index in range(5)] == [1, 2, 3, 4, 5]
    assert stored["number 0 é"].steps.tolist() == [-5, 2**63 - 1, 10, 3]
    assert not {"good", "bad"} & set(stored)
    assert [path.name for path in run.folder.parent.iterdir()] == [run.id]


@dataclasses.dataclass(slots=True)
class Settings:
    lr: float
    sizes: tuple[int, ...]
    clip: float = math.inf


def test_settings_are_read_from_what_programs_keep_them_in(client: mosaic.Client) -> None:
    values = {
        "seed": np.int64(3),
        "lr": np.float32(0.5),
        "gap": math.nan,
        "array": np.arange(3),
        7: None,
    }
    cases: dict[str, tuple[Any, dict[str, Any]]] = {
        "mapping": (
            {**values, "inner": Settings(0.1, (1, 2)), "kind": int},
            {"seed": 3, "lr": 0.5, "gap": "nan", "array": [0, 1, 2], "7": None}
            | {"inner": {"lr": 0.1, "sizes": [1, 2], "clip": "inf"}, "kind": "<class 'int'>"},
        ),
        "dataclass": (Settings(0.1, (64, 64)), {"lr": 0.1, "sizes": [64, 64], "clip": "inf"}),
        "namespace": (argparse.Namespace(seed=5, path=Path("a/b")), {"seed": 5, "path": "a/b"}),
    }
    for name, (config, expected) in cases.items():
        with client.start_run(name, config) as run:
            pass
        assert run.status == "succeeded", run.view.reason
        config = run.config["metadata"]["worker"]["config"]
        assert {key: config.get(key, config["algo_params"].get(key)) for key in expected} == expected
    assert client.get_run("mapping").view.seed == 3


def test_a_value_that_cannot_be_written_keeps_no_run_from_its_end(
    client: mosaic.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise ValueError("this one is bad")

    run = client.start_run("guarded")
    monkeypatch.setattr(run._handle, "_progress", fail)
    journal = RunFolder(run.folder).journal
    wait_for(lambda: b"values_lost" in journal.read_bytes(), "the writer to report it")
    run.log({"x": 1.0}, step=1)
    run.finish()
    assert (run.status, metrics(run)) == ("succeeded", {"x": [1.0]})
    assert any("this one is bad (test_start_run.py, line " in entry.message for entry in run.view.history)


NOTEBOOK = """
import json, sys, nbclient, nbformat
notebook = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(text) for text in json.loads(sys.argv[1])])
nbclient.NotebookClient(notebook, timeout=120, kernel_name="python3", allow_errors=True).execute()
"""
CELLS = {
    "completed": ("succeeded", SUCCESS, ["run.log({'x': 200}, step=200)"]),
    "repaired": ("succeeded", SUCCESS, ["1 / 0", "run.log({'x': 200}, step=200)"]),
    "broken": (
        "failed",
        "ZeroDivisionError: division by zero (Cell In[3], line 2)",
        ["run.log({'x': 200}, step=200)", "x = 1\n1 / 0"],
    ),
}


@pytest.mark.timeout(300)
def test_a_run_ends_with_the_last_cell_of_its_notebook(
    client: mosaic.Client, daemon: LiveDaemon, tmp_path: Path, record_property: Any
) -> None:
    """F62, R11.2: as that cell ended."""
    names = chosen(CELLS)
    record_property("tries", len(names))
    script = tmp_path / "notebook.py"
    script.write_text(NOTEBOOK)
    begin = (
        "import mosaic\nrun = mosaic.start_run({!r})\nfor step in range(1, 200):\n    run.log({{'x': step}}, step=step)"
    )
    started = {name: start(daemon, script, json.dumps([begin.format(name), *CELLS[name][2]])) for name in names}
    for name, process in started.items():
        _, printed = process.communicate(timeout=200)
        assert process.returncode == 0, printed
        run = ended_run(client, name)
        assert (run.status, run.view.reason, run.view.global_step) == (*CELLS[name][:2], 200), printed
        assert metrics(run)["x"] == list(range(1, 201))


WORKERS = """
import atexit, multiprocessing as mp, multiprocessing.util, os, pickle, subprocess, sys, time
import numpy as np
import mosaic

CHILD = "import pickle, sys, workers; workers.work(pickle.load(sys.stdin.buffer), 'subprocess')"


def work(run, name):
    for step in range(1, 101):
        run.log({name: step}, step=step)
        run.show_frame(np.zeros((8, 8, 3), np.uint8))
        if step % 10 == 0:
            run.log_episode(step, 10, step=step)
    return os.getpid()


def work_late(run, is_ending):
    is_ending.wait()
    time.sleep(1)
    work(run, "late")


def save(run):
    run.log({"saver": 1}, step=150)
    return str(run.save_checkpoint({"w": np.ones(2)}, step=150))


if __name__ == "__main__":
    run = mosaic.start_run("workers", {"total_timesteps": 200})
    work(run, "main")
    run.save_checkpoint({"w": np.zeros(2)}, step=100)
    processes = [
        mp.get_context(kind).Process(target=work, args=(run, f"{kind}{number}"))
        for kind in ("fork", "spawn", "forkserver")
        for number in range(2)
    ]
    for process in processes:
        process.start()
    with mp.get_context("fork").Pool(2) as pool:
        pool.starmap(work, [(run, f"pool{number}") for number in range(4)], chunksize=1)
        assert pool.apply(save, (run,)) == str(run.folder / "checkpoints" / "150")
    if (child := os.fork()) == 0:
        with run:
            work(run, "os.fork")
            raise RuntimeError("the child fails")
    os.waitpid(child, 0)
    here = os.path.dirname(os.path.abspath(__file__))
    subprocess.run([sys.executable, "-c", CHILD], cwd=here, input=pickle.dumps(run), check=True)
    run.log({"main": 200}, step=120)
    # Python waits for these seven processes at its end.
    is_ending = mp.get_context("fork").Event()
    mp.get_context("fork").Process(target=work_late, args=(run, is_ending)).start()
    atexit.register(is_ending.set)
"""
WORKER_NAMES = {
    *("main", "fork0", "fork1", "spawn0", "spawn1", "forkserver0", "forkserver1"),
    *("pool0", "pool1", "pool2", "pool3", "os.fork", "subprocess", "late"),
}


@pytest.mark.timeout(300)
def test_all_processes_of_a_program_log_into_its_run(client: mosaic.Client, daemon: LiveDaemon, tmp_path: Path) -> None:
    """F62, R11.2: forked, spawned, of a pool, and started with the pickled run."""
    script = tmp_path / "workers.py"
    script.write_text(WORKERS)
    process = start(daemon, script)
    _, printed = process.communicate(timeout=250)
    assert process.returncode == 0, printed
    run = ended_run(client, "workers")
    assert (run.status, run.view.global_step, run.view.checkpoint_step) == ("succeeded", 150, 150), run.view.reason
    stored = metrics(run)
    assert set(stored) == {*WORKER_NAMES, "saver", "charts/episodic_return", "charts/episodic_length"}
    expected = list(range(1, 101))
    assert {name: sorted(stored[name])[:100] for name in WORKER_NAMES} == dict.fromkeys(WORKER_NAMES, expected)
    assert len(run.episodes()) == run.view.episodes == 10 * len(WORKER_NAMES)
    line = 1 + WORKERS.splitlines().index('            raise RuntimeError("the child fails")')
    failure = f"failed: RuntimeError: the child fails (workers.py, line {line})"
    assert any(failure in entry.message for entry in run.view.history), run.view.history

    folder = RunFolder(run.folder)
    for journal in folder.journals():
        assert [event["seq"] for event in read_all(journal)] == list(range(1, 1 + len(read_all(journal))))
    shown = set()
    for place in (folder.tensorboard, *folder.tensorboard.glob("process-*")):
        accumulator = EventAccumulator(str(place), size_guidance={"scalars": 0})
        accumulator.Reload()
        for tag in WORKER_NAMES & set(accumulator.Tags()["scalars"]):
            assert [event.value for event in accumulator.Scalars(tag)][:100] == expected
            shown.add(tag)
    assert shown == WORKER_NAMES
    analytics = json.loads(folder.analytics.read_text())
    assert [one["step"] for one in analytics["checkpoints"]] == [100, 150]


OUTLIVED = """
import os, signal, sys, time
import mosaic

run = mosaic.start_run(sys.argv[1])
run.log({"x": 1}, step=1)
begun, begin = os.pipe()
if (child := os.fork()) == 0:
    run.log({"y": 1}, step=2)
    while not list(run.folder.glob(f"journal.{os.getpid()}.jsonl")):
        time.sleep(0.01)
    os.write(begin, b".")
    while not run.should_stop:
        time.sleep(0.01)
    try:
        while True:
            run.log({"late": 1}, step=3)
    except mosaic.NotAllowed as error:
        print(error, flush=True)
    os._exit(0)
os.read(begun, 1)
print(child, flush=True)
if sys.argv[1] == "finished":
    run.finish()
elif sys.argv[1] == "killed":
    os.kill(os.getpid(), signal.SIGKILL)
elif sys.argv[1] == "paused":
    while True:
        time.sleep(1)
"""


@pytest.mark.parametrize("name", ["finished", "killed", "paused"])
def test_a_process_that_outlives_the_run_is_named(
    client: mosaic.Client, daemon: LiveDaemon, tmp_path: Path, name: str
) -> None:
    script = tmp_path / "outlived.py"
    script.write_text(OUTLIVED)
    process = start(daemon, script, name)
    assert process.stdout is not None
    pid = process.stdout.readline().strip()
    if name == "paused":
        paused = client.get_run(name).pause()
        wait_for(lambda: paused.refresh().status == "paused", "the pause")
        process.kill()
    told, errors = process.communicate(timeout=120)
    run = ended_run(client, name)
    assert f"Run {run.id} has ended, with the process that started it: " in told, errors
    named = f"Processes still log into it ({pid}); what they log from now on is lost."
    if name == "finished":
        assert run.status == "succeeded"
        assert any(named in entry.message for entry in run.view.history)
    else:
        assert run.status == "failed"
        assert named in str(run.view.reason)
    assert metrics(run).keys() >= {"x", "y"}
    assert client.get_run(run.id).status == run.status


def test_a_run_that_is_copied_in_its_process_is_the_same(client: mosaic.Client) -> None:
    with client.start_run("copied") as run:
        assert pickle.loads(pickle.dumps(run)) is copy.deepcopy({"run": run})["run"] is run
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(attached_run, "boot_id", lambda: "elsewhere")
            elsewhere = pickle.dumps(run)
        with pytest.raises(mosaic.NotAllowed, match="on another machine"):
            pickle.loads(elsewhere)
        thread = threading.Thread(target=run.log, args=({"x": 1.0}, 1))
        thread.start()
        thread.join()
    calls: list[Callable[[], object]] = [
        lambda: run.log({"x": 2.0}, 2),
        lambda: run.log_episode(1.0, 1),
        lambda: run.save_checkpoint({}, 3),
        lambda: run.show_frame(np.zeros((8, 8, 3), np.uint8)),
    ]
    for call in calls:
        with pytest.raises(mosaic.NotAllowed, match="has been finished; start another one"):
            call()
    assert run.should_stop
    assert metrics(run) == {"x": [1.0]}
