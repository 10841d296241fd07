"""The bridge's part of one attempt: starts it on a node, keeps the run folder here equal, passes commands on."""

from __future__ import annotations

import asyncio
import json
import secrets
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, Protocol

import structlog

from mosaic.base.fastlane import Frame, FrameRequest
from mosaic.base.files import file_size
from mosaic.base.journal import Follower
from mosaic.base.processes import boot_id
from mosaic.contracts.commands import STOP
from mosaic.contracts.folder import RunFolder
from mosaic.trainer.executors.local import GRACE_S
from mosaic.trainer.executors.ray_cluster.folder_sync import (
    CHUNK_BYTES,
    KEEPER_NAME,
    FileEntry,
    Listing,
    LocalFolder,
    is_appended,
    is_needed_to_resume,
    make_plan,
    read_chunk,
    split_before_exit,
)
from mosaic.trainer.executors.ray_cluster.frame_mirror import UNWATCHED_S, FrameMirror
from mosaic.trainer.executors.ray_cluster.messages import (
    AttemptEnded,
    AttemptLost,
    AttemptNotStarted,
    AttemptPlaced,
    AttemptRefused,
    AttemptReport,
    StartAttempt,
)
from mosaic.trainer.executors.ray_cluster.node_actor import LIFELINE_S, NodeFacts, NodeLaunch, NodeReport

log = structlog.get_logger("mosaic.trainer.executors.ray_cluster")

POLL_S = 0.4
FINAL_POLL_S = 0.05
"""While there is more to copy than one answer holds, and when the run has ended."""
RETRY_S = 1.0
SHARED_GRACE_S = LIFELINE_S + GRACE_S["stop"] + GRACE_S["term"] + 3.0
"""How long a keeper whose actor is gone may still write to a folder that it shares with the next attempt."""
_TOKEN_PREFIX = ".ray-token-"


class NodeGone(Exception):
    """The actor has ended for good; the message is the beginning of a sentence, such as `Node 10.0.0.3 was lost`."""


class StartRefused(Exception):
    """The actor could not start the run; the message says why."""


class Node(Protocol):
    """An actor on a node. Waits while the node cannot be reached; NodeGone when that is for good."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Call a method of NodeActor; StartRefused where that has raised."""

    def kill(self) -> None:
        """End the actor; nothing happens if it has ended."""


class AttemptBridge:
    """One attempt. `is_current` tells whether it is the run's last one: what a superseded one sends is dropped."""

    def __init__(
        self,
        run_id: str,
        attempt: int,
        folder: Path,
        node: Node,
        report: Callable[[AttemptReport], None],
        is_current: Callable[[], bool],
        is_streamed: bool,
    ) -> None:
        """`is_streamed`: whether the folder is copied even where the node sees it."""
        self._run_id = run_id
        self._attempt = attempt
        self._folder = RunFolder(folder)
        self._node = node
        self._report = report
        self._is_current = is_current
        self._is_streamed = is_streamed
        self._is_copied: bool | None = None
        self._local = LocalFolder(self._folder, is_current)
        self._earlier: Listing | None = None
        self._mirror = FrameMirror(self._folder)
        self._has_own_lanes = False
        """Whether the worker's lanes are those of this machine."""

    async def run(self, start: StartAttempt | None) -> None:
        """Start the attempt, or follow one that was started; return when it has ended or is lost.

        The actor ends with it, but not when this is cancelled: the next bridge finds it.
        """
        try:
            if await (self._begin(start) if start is not None else self._find()):
                await self._follow()
        except NodeGone as gone:
            self._mirror.close()
            await self._wait_for_writers()
            self._send(AttemptLost(run_id=self._run_id, attempt=self._attempt, reason=str(gone)))
        except Exception:
            self._node.kill()
            await self._wait_for_writers()
            raise
        finally:
            self._mirror.close()
        self._node.kill()

    async def _wait_for_writers(self) -> None:
        """Until no keeper without its actor can write to a shared folder, in which the next attempt begins."""
        if self._is_copied is not True:
            await asyncio.sleep(SHARED_GRACE_S)

    def _send(self, message: AttemptReport) -> None:
        if self._is_current():
            self._report(message)

    # --- starting

    async def _begin(self, start: StartAttempt) -> bool:
        """Start the keeper; return whether there is something to follow."""
        self._is_copied = True  # until the keeper runs, nothing is written to the folder
        try:
            facts = await self._wait_for_place(start.inbox_offset)
            if facts is None:
                self._send(AttemptNotStarted(run_id=self._run_id, attempt=self._attempt))
                return False
            if refusal := facts.refuse():
                raise StartRefused(refusal)
            is_copied = self._is_streamed or not facts.sees_folder
            self._set_machine(facts, is_copied)
            await self._node.call("prepare", None if is_copied else str(self._folder.path))
            if is_copied:
                await self._upload()
            launch = NodeLaunch(
                worker=start.worker,
                config=json.dumps(start.config),
                is_resume=start.is_resume,
                threads=start.cpus,
                limits={"seconds": start.max_seconds, "memory_mb": start.memory_mb},
                grace_s=GRACE_S,
                end_key=start.end_key,
            )
            self._is_copied = is_copied
            await self._node.call("begin", launch, start.inbox_offset)
        except StartRefused as error:
            self._send(AttemptRefused(run_id=self._run_id, attempt=self._attempt, reason=str(error)))
            return False
        self._send(AttemptPlaced(run_id=self._run_id, attempt=self._attempt, node=facts.address))
        return True

    async def _wait_for_place(self, inbox_offset: int) -> NodeFacts | None:
        """Wait until the cluster has a place for the actor; None if a stop was requested meanwhile."""
        token, path = secrets.token_hex(16), self._folder.path / f"{_TOKEN_PREFIX}{secrets.token_hex(4)}"
        inbox = Follower(self._folder.inbox, inbox_offset)
        path.write_text(token, encoding="utf-8")
        asked = asyncio.ensure_future(self._node.call("describe", str(path), token))
        try:
            while not asked.done():
                await asyncio.wait((asked,), timeout=POLL_S)
                if not asked.done() and any(line.body["kind"] == STOP for line in inbox.read()):
                    return None
            facts: NodeFacts = asked.result()
            return facts
        finally:
            asked.cancel()
            path.unlink(missing_ok=True)

    def _set_machine(self, facts: NodeFacts, is_copied: bool) -> None:
        self._has_own_lanes = not is_copied and facts.boot_id == boot_id()

    async def _upload(self) -> None:
        """Send what an attempt that continues needs, and the inbox, so that offsets in it are the same there."""
        inbox = FileEntry("inbox.jsonl", file_size(self._folder.inbox), self._folder.inbox.stat().st_mtime_ns)
        for entry in (
            inbox,
            *filter(lambda entry: is_needed_to_resume(entry.path), self._local.listing.files.values()),
        ):
            offset = 0
            while offset < entry.size:
                data = read_chunk(self._folder.path, entry.path, offset, min(CHUNK_BYTES, entry.size - offset))
                if not data:
                    break  # it was deleted meanwhile
                offset = await self._node.call("write", entry.path, offset, data, entry.mtime_ns)
        for path, target in self._local.listing.links.items():
            await self._node.call("link", path, target)

    async def _find(self) -> bool:
        """Find what an earlier bridge has started; return whether there is something to follow."""
        facts: NodeFacts = await self._node.call("describe", "", secrets.token_hex(4))
        report: NodeReport = await self._node.call("poll", {}, 0)
        if not report.is_started:
            self._send(AttemptNotStarted(run_id=self._run_id, attempt=self._attempt))
            return False
        self._is_copied = report.is_copied
        self._set_machine(facts, report.is_copied)
        self._send(AttemptPlaced(run_id=self._run_id, attempt=self._attempt, node=facts.address))
        return True

    # --- following

    async def _follow(self) -> None:
        frames = asyncio.create_task(self._mirror_frames())
        try:
            while self._is_current():
                try:
                    wait_s = await self._follow_once()
                except OSError as error:  # such as a full disk here: the node keeps what could not be written
                    log.warning("files_not_copied", run_id=self._run_id, error=str(error))
                    self._local = LocalFolder(self._folder, self._is_current)
                    wait_s = RETRY_S
                if wait_s is None:
                    return
                await asyncio.sleep(wait_s)
        finally:
            frames.cancel()
            with suppress(asyncio.CancelledError, NodeGone):
                await frames

    async def _follow_once(self) -> float | None:
        """Copy what is new, pass commands on; return how long to wait before the next time, None after the end."""
        offsets = {path: entry.size for path, entry in self._local.listing.files.items()}
        report: NodeReport = await self._node.call("poll", offsets, CHUNK_BYTES)
        if report.attempt != self._attempt:
            return None
        is_ended = not report.is_keeper_alive
        is_equal = not report.is_copied or await self._apply(report, is_ended)
        self._mirror.set_lanes(() if self._has_own_lanes else report.lanes)
        if is_ended and is_equal:
            await self._node.call("clean_up")
            self._send(AttemptEnded(run_id=self._run_id, attempt=self._attempt))
            return None
        if not is_ended:
            await self._pass_commands(report)
        return POLL_S if is_equal and not is_ended else FINAL_POLL_S

    async def _apply(self, report: NodeReport, is_final: bool) -> bool:
        """Put what has come in place and fetch what has changed; return whether the folders are equal now.

        The line that reports the exit comes last: the run is over for the daemon when it reads it.
        """
        keeper_lines = report.chunks.pop(KEEPER_NAME, b"")
        for path in filter(is_appended, report.listing.files):
            if path in report.chunks or path not in self._local.listing.files:  # also one that is empty
                self._local.append(path, self._local.size(path), report.chunks.get(path, b""))
        plan = make_plan(report.listing, self._local.listing, self._earlier, is_final)
        self._earlier = report.listing
        is_equal = set(plan.appended) <= {KEEPER_NAME}
        for entry in plan.whole:
            if await self._fetch(entry):
                self._local.put_file(entry)
            else:
                is_equal = False
        for unit, files in plan.checkpoints.items():
            are_fetched = [await self._fetch(entry) for entry in files]
            if all(are_fetched):
                self._local.put_checkpoint(unit, files)
            is_equal &= all(are_fetched)
        for unit in plan.removed_checkpoints:
            self._local.remove_checkpoint(unit)
        self._local.set_links(plan.links, plan.removed_links)
        now, withheld = split_before_exit(keeper_lines)
        self._local.append(KEEPER_NAME, self._local.size(KEEPER_NAME), now)
        if is_final and is_equal:
            self._local.append(KEEPER_NAME, self._local.size(KEEPER_NAME), withheld)
            size = report.listing.files[KEEPER_NAME].size if KEEPER_NAME in report.listing.files else 0
            is_equal = self._local.size(KEEPER_NAME) >= size
        return is_equal

    async def _fetch(self, entry: FileEntry) -> bool:
        """Copy a file next to its place; return whether it is complete and unchanged."""
        draft = self._local.begin_file(entry)
        if draft is None:
            return True
        with open(draft, "wb") as file:
            while file.tell() < entry.size:
                data: bytes = await self._node.call("read", entry.path, file.tell())
                if not data:
                    return False
                file.write(data)
            return file.tell() == entry.size

    async def _pass_commands(self, report: NodeReport) -> None:
        """Send what was written to the inbox here since; a folder that is shared has one inbox."""
        if report.is_copied and file_size(self._folder.inbox) > report.inbox_size:
            lines = read_chunk(self._folder.path, "inbox.jsonl", report.inbox_size)
            complete = lines[: lines.rfind(b"\n") + 1]
            if complete:
                await self._node.call("tell", report.inbox_size, complete)

    async def _mirror_frames(self) -> None:
        async def fetch(requests: dict[int, FrameRequest]) -> dict[int, Frame]:
            found: dict[int, Frame] = await self._node.call("frames", requests)
            return found

        while True:
            try:
                wait_s = await self._mirror.copy_frames(fetch)
            except NodeGone:
                return
            except Exception as error:  # frames are not worth a run
                log.warning("frames_not_copied", run_id=self._run_id, error=str(error))
                wait_s = UNWATCHED_S
            await asyncio.sleep(wait_s)
