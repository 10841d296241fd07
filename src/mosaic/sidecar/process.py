"""The sidecar's own process: record, upload, end."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

from mosaic.contracts.files import write_json
from mosaic.contracts.folder import RunFolder
from mosaic.contracts.payload import Payload
from mosaic.hub.after import last_outcome, push_trained
from mosaic.journal import Journal
from mosaic.sidecar import ledger
from mosaic.sidecar.feed import Feed
from mosaic.sidecar.ledger import SyncState
from mosaic.sidecar.reach import Trouble
from mosaic.sidecar.recorder import Recorder
from mosaic.sidecar.sync import LiveUpload, kept_offline, upload_all, upload_environment
from mosaic.sidecar.watch import LOOK_S, Watch
from mosaic.sidecar.wishes import Wishes, wishes

LIMIT_S = 600.0
"""We end so long after the run, whatever is left to do."""
LIVE_PATIENCE_S = 60.0
"""For an upload that follows a run to come to its end when the run has."""


class Sidecar:
    """Of one attempt, which begins at `journal_from` in the journal.

    `is_upload_only`: the run is a program of the user's, which tracks itself.
    """

    def __init__(self, folder: RunFolder, watch: Watch, journal_from: int, is_upload_only: bool) -> None:
        self._folder = folder
        self._watch = watch
        self._journal_from = journal_from
        self._is_upload_only = is_upload_only
        self._feed = Feed(folder, journal_from)
        self._journal = Journal(folder.sidecar)
        self._has_said_trouble = False

    def run(self, repo: str | None = None) -> None:
        """`repo`: where on the Hugging Face Hub the policy goes in the end."""
        deadline = time.monotonic() + LIMIT_S
        while True:
            try:
                with ledger.locked(self._folder):
                    self._go_along(repo)
                    return
            except BlockingIOError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(LOOK_S)

    def push(self, repo: str) -> None:
        """Once the run is over, and only if it has succeeded."""
        end_after(LIMIT_S)
        if not self._watch.is_superseded:
            push_trained(self._folder, repo, last_outcome(self._folder.journal, self._journal_from), self._say)

    def _go_along(self, repo: str | None) -> None:
        state = ledger.claimed(ledger.read(self._folder) or SyncState(self._folder.run_id))
        payload = Payload.model_validate_json(self._folder.config.read_text())
        recorder = Recorder(self._folder, self._wanted(payload), state, self._say)
        env = self._environment(payload)
        uploads = LiveUpload(self._folder, env, state)
        try:
            self._follow(recorder, uploads)
            if not self._watch.is_superseded:  # else the next attempt's sidecar records and uploads it all
                # At the same time: either server may take all the time that there is.
                pushing = threading.Thread(target=self.push, args=(repo,)) if repo else None
                if pushing:
                    pushing.start()
                recorder.finish(self._feed.outcome)
                trouble = uploads.end(LIVE_PATIENCE_S, self._is_wanted)
                trouble = upload_all(self._folder, env, state, lambda _: None, LIMIT_S, self._is_wanted) or trouble
                self._told(trouble if self._is_wanted() else None)
                if state.entries and not state.waiting:
                    self._say("wandb_synced", url=state.url)
                if pushing:
                    pushing.join()
        finally:
            uploads.end()
            state.process = None
            if state.entries:
                ledger.write(self._folder, state)
        if state.entries and self._is_wanted():
            list_wandb(self._folder, state)

    def _is_wanted(self) -> bool:
        self._watch.is_over()  # takes in what its keeper says
        return not self._watch.is_superseded

    def _wanted(self, payload: Payload) -> Wishes:
        if self._is_upload_only:
            return Wishes()
        return wishes(payload, self._folder.run_id, os.environ, _began_at(self._folder) or time.time())

    def _environment(self, payload: Payload) -> dict[str, str]:
        """With the key and the proxies, of this moment: before wandb, imported into this process, adds its own."""
        env, problems = upload_environment(self._folder, payload)
        for problem in problems:
            self._say("warning", text=problem, code="wandb_settings")
        return env

    def _follow(self, recorder: Recorder, uploads: LiveUpload) -> None:
        """Until the run is over and everything that it has written is recorded."""
        is_over = is_recording = False
        while not is_over:
            is_over = self._watch.is_over()
            if is_over:
                end_after(LIMIT_S)
            if not is_recording and self._has_begun():
                is_recording = True
                recorder.start()
            if is_recording:
                recorder.give(self._feed.read(is_over))
            if not is_over:
                self._told(uploads.tick())
                time.sleep(LOOK_S)

    def _has_begun(self) -> bool:
        """A worker that never says a word leaves nothing to record, and its own start comes before ours."""
        try:
            return self._folder.journal.stat().st_size > self._journal_from
        except OSError:
            return False

    def _told(self, trouble: Trouble | None) -> None:
        """Once: whoever reads the run's events is not told every hour that the network is still not there."""
        if trouble is not None and not self._has_said_trouble:
            self._has_said_trouble = True
            self._say("warning", text=kept_offline(trouble, self._folder.run_id), code="wandb_offline")

    def _say(self, kind: str, /, **facts: object) -> None:
        with suppress(OSError):  # a full disk
            self._journal.append(kind, **facts)


def record(folder: RunFolder) -> None:
    """Makes the W&B recording of a run that is over, from its beginning. Its caller holds the ledger's lock."""
    payload = Payload.model_validate_json(folder.config.read_text())
    feed = Feed(folder)
    journal = Journal(folder.sidecar)
    problems: list[str] = []

    def say(kind: str, /, **facts: object) -> None:
        journal.append(kind, **facts)
        if kind == "warning":
            problems.append(str(facts["text"]))

    wanted = Wishes(wandb=wishes(payload, folder.run_id, os.environ, _began_at(folder)).wandb)
    recorder = Recorder(folder, wanted, ledger.read(folder) or SyncState(folder.run_id), say)
    recorder.start()
    recorder.give(feed.read(is_over=True))
    recorder.finish(feed.outcome)
    journal.close()
    if problems:
        raise SystemExit(problems[-1])


def _began_at(folder: RunFolder) -> float | None:
    try:
        with open(folder.journal, "rb") as file:
            return float(json.loads(file.readline())["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return None


def list_wandb(folder: RunFolder, state: SyncState) -> None:
    """Enters it into analytics.json, whose writer has ended with the run."""
    try:
        body: dict[str, Any] = json.loads(folder.analytics.read_text())
        body["wandb"] = ledger.listed(state)
        write_json(folder.analytics, body)
    except (OSError, ValueError, TypeError):
        return


def end_after(seconds: float) -> None:
    """From now on, whatever hangs: with everything that we have started, which is in our session or in a child's."""

    def end() -> None:
        for pid in _children():
            with suppress(OSError):
                os.killpg(pid, signal.SIGKILL)
        os._exit(1)

    timer = threading.Timer(seconds, end)
    timer.daemon = True
    timer.start()


def _children() -> list[int]:
    with suppress(OSError):
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    return []
