"""One long-lived child process per worker that answers questions: checks, environments, checkpoint metadata.

JSON lines: `{"id": n, "ask": …}` in; out `{"id": n, "ok": true, …}` or `{"id": n, "ok": false, "error": class,
"message": sentence}`. It is started on the first question, outside the daemon's lock, and restarted when it has died.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import subprocess
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator
from typing import Any

import structlog
from pydantic import ValidationError

from mosaic.base.worker_registry import WorkerDescription
from mosaic.contracts.errors import MosaicError, decode_problems, error_class
from mosaic.contracts.folder import WORKSPACE_VARIABLE, Workspace
from mosaic.contracts.model import format_validation_error
from mosaic.contracts.payload import Payload
from mosaic.contracts.views import Verdict, VerdictSummary
from mosaic.trainer.records import summary_fields

log = structlog.get_logger("mosaic.trainer.checkers")

CHECKER_TIMEOUT_S = 120.0
"""A checker that takes longer for one answer is killed."""
LOCK_POLL_S = 0.1
MAX_CACHED_VERDICTS = 256
MAX_SEED = 2**31


class Checker:
    """The child of one worker. One question at a time."""

    def __init__(self, worker: WorkerDescription, workspace: Workspace) -> None:
        self._worker = worker
        self._log_path = workspace.logs / f"checker.{worker.id}.log"
        # So that it names the folders of this workspace.
        self._variables = {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1", WORKSPACE_VARIABLE: str(workspace.root)}
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        self._is_closed = False
        self._count = 0

    def ask(self, question: dict[str, Any]) -> dict[str, Any]:
        """Returns its answer; raises the error that a refusal names."""
        with self._lock:
            try:
                answer = self._exchange(question)
            except (OSError, ValueError):
                # It died between two questions or during this one: a new one is asked again.
                self._end()
                try:
                    answer = self._exchange(question)
                except (OSError, ValueError) as error:
                    self._end()
                    raise MosaicError(
                        f"The checker of worker {self._worker.id!r} failed ({error}). Its log: {self._log_path}"
                    ) from None
        if answer.get("ok"):
            return answer
        raise error_class(str(answer.get("error")))(
            str(answer.get("message") or "The worker refused without giving a reason."),
            decode_problems(answer.get("problems")),
        )

    def _exchange(self, question: dict[str, Any]) -> dict[str, Any]:
        process = self._ensure_started()
        stdin, stdout = process.stdin, process.stdout
        assert stdin is not None
        assert stdout is not None
        self._count += 1
        # A checker that hangs is killed, which ends the read. A new one would hang too.
        is_late = threading.Event()

        def end_late() -> None:
            is_late.set()
            process.kill()

        alarm = threading.Timer(CHECKER_TIMEOUT_S, end_late)
        alarm.start()
        try:
            stdin.write(json.dumps({**question, "id": self._count}).encode() + b"\n")
            stdin.flush()
            while line := stdout.readline():
                answer = json.loads(line)
                if isinstance(answer, dict) and answer.get("id") == self._count:
                    return answer
            if is_late.is_set():
                self._end()
                raise MosaicError(
                    f"The checker of worker {self._worker.id!r} had no answer within {CHECKER_TIMEOUT_S:g} s and was "
                    f"ended; code of your own that it imports may hang. Its log: {self._log_path}"
                )
            raise OSError("it ended without an answer")
        finally:
            alarm.cancel()

    def _ensure_started(self) -> subprocess.Popen[bytes]:
        if self._is_closed:
            raise OSError("the daemon is ending")
        if self._process is None or self._process.poll() is not None:
            assert self._worker.checker is not None
            self._log_path.parent.mkdir(parents=True, exist_ok=True)
            with open(self._log_path, "ab") as output:
                self._process = subprocess.Popen(
                    self._worker.checker,
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    cwd="/",
                    env={**os.environ, **self._variables},
                )
            log.info("checker_started", worker=self._worker.id, pid=self._process.pid)
        return self._process

    def _end(self) -> None:
        """Kill it: it has nothing to save, and while it imports it would not notice that its stdin is closed."""
        process, self._process = self._process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()

    def close(self) -> None:
        """End it, also while it is busy, so that no thread waits for its answer."""
        self._is_closed = True
        while not self._lock.acquire(timeout=LOCK_POLL_S):
            if self._process is not None:
                self._process.kill()
        try:
            self._end()
        finally:
            self._lock.release()

    def start(self) -> None:
        """Start it ahead of its first question, unless the daemon is ending."""
        with self._lock:
            if self._is_closed:
                return
            try:
                self._ensure_started()
            except OSError as error:
                log.warning("checker_not_started", worker=self._worker.id, error=str(error))


class Checkers:
    """The checkers of all workers, and the verdicts they gave."""

    def __init__(self, workers: dict[str, WorkerDescription], workspace: Workspace) -> None:
        self._checkers = {
            worker.id: Checker(worker, workspace) for worker in workers.values() if worker.checker is not None
        }
        self._workers = workers
        self._workspace = workspace
        self._lock = threading.Lock()
        self._verdicts: OrderedDict[str, Verdict] = OrderedDict()
        self._own_checkers: set[Checker] = set()
        """Those that import a submitter's modules, while they do."""
        self._is_closed = False

    def warm_up(self) -> None:
        """Starts the one of the first worker in the background, so that its first question is answered at once."""
        for checker in list(self._checkers.values())[:1]:
            threading.Thread(target=checker.start, daemon=True, name="checker-warm-up").start()

    def ask(self, worker_id: str, question: dict[str, Any]) -> dict[str, Any]:
        checker = self._checkers.get(worker_id)
        if checker is None:
            raise MosaicError(f"The worker {worker_id!r} has no checker to ask.")
        return checker.ask(question)

    def check(self, worker_id: str, payload: Payload) -> Verdict:
        """The worker's verdict on a payload. Configs that differ in nothing but the seed share one.

        Modules of the submitter's are imported by a checker of their own: they may change between two questions.
        """
        if worker_id not in self._checkers:
            return Verdict(summary=summarize_config(payload), is_checked=False)
        has_imports = payload.metadata.worker.imports is not None
        key = None if has_imports else verdict_key(payload, self._workers[worker_id].programs)
        with self._lock:
            if key is not None and (known := self._verdicts.get(key)) is not None:
                self._verdicts.move_to_end(key)
                return _with_seed(known, payload.metadata.worker.config.get("seed"))
        shared = contextlib.nullcontext(self._checkers[worker_id])
        with self._own_checker(worker_id) if has_imports else shared as checker:
            try:
                verdict = Verdict.model_validate(checker.ask({"ask": "check", "config": payload.to_json()}))
            except ValidationError as error:
                raise MosaicError(
                    f"The checker of worker {worker_id!r} gave an invalid verdict: {format_validation_error(error)}"
                ) from None
        if key is not None:
            with self._lock:
                self._verdicts[key] = verdict
                while len(self._verdicts) > MAX_CACHED_VERDICTS:
                    self._verdicts.popitem(last=False)
        return verdict

    @contextlib.contextmanager
    def _own_checker(self, worker_id: str) -> Iterator[Checker]:
        checker = Checker(self._workers[worker_id], self._workspace)
        with self._lock:
            if self._is_closed:
                raise MosaicError("The daemon is ending and checks no more configs. Try again.")
            self._own_checkers.add(checker)
        try:
            yield checker
        finally:
            checker.close()
            with self._lock:
                self._own_checkers.discard(checker)

    def close(self) -> None:
        """End all of them, also those that are busy."""
        with self._lock:
            self._is_closed = True
            checkers = [*self._checkers.values(), *self._own_checkers]
        for checker in checkers:
            checker.close()


def verdict_key(payload: Payload, programs: Iterable[str] = ()) -> str | None:
    """None where the verdict depends on files that may change: those of a policy or of a user's program."""
    choice = payload.metadata.worker
    config = dict(choice.config)
    if payload.is_evaluation or any(config.get(name) for name in programs):
        return None
    if type(seed := config.get("seed")) is int and 0 <= seed < MAX_SEED:
        config["seed"] = 0  # of other values the worker may think differently
    data = payload.to_json()
    rest = {name: data.get(name) for name in ("artifacts", "evaluation", "resources")}
    text = json.dumps([choice.id, config, rest], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _with_seed(verdict: Verdict, seed: Any) -> Verdict:
    """Return a verdict on the same config with another seed."""
    summary = verdict.summary
    if seed is None or summary.seed == seed:
        return verdict
    settings = summary.settings | ({"seed": seed} if "seed" in summary.settings else {})
    return verdict.model_copy(update={"summary": summary.model_copy(update={"seed": seed, "settings": settings})})


def summarize_config(payload: Payload) -> VerdictSummary:
    """Returns what a config itself states, for a worker that nobody can ask."""
    known = {name: value for name, value in summary_fields(payload, {}).items() if name in VerdictSummary.model_fields}
    config = payload.metadata.worker.config
    own = config.get("algo_params")
    settings = {name: value for name, value in config.items() if name not in known and name != "algo_params"}
    return VerdictSummary(**known, settings=settings | (own if isinstance(own, dict) else {}))
