"""The client of a daemon: its verbs, and what takes more than one call or has answers that must be checked."""

from __future__ import annotations

import fnmatch
import glob
import json
import posixpath
import queue
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any, NamedTuple, Self
from uuid import uuid4

import grpc

from mosaic.base.caller_environment import (
    import_folders,
    own_environment_hint,
    submitter,
    tracking_environment,
    with_imports,
)
from mosaic.base.files import is_inner_path
from mosaic.base.limited_json import decode_limited
from mosaic.contracts import trainer_pb2 as pb
from mosaic.contracts.errors import ConfigRefused, IdentityFailed, MosaicError, NoDaemon, NotAllowed, UnknownName
from mosaic.contracts.extras import require_sections
from mosaic.contracts.folder import PLAY_SUMMARY_NAME, is_run_id
from mosaic.contracts.model import AnyContract, parse_contract
from mosaic.contracts.names import EVENTS_SKIPPED, MAX_TIME
from mosaic.contracts.play import PLAY_WORKER
from mosaic.contracts.printable import make_printable
from mosaic.contracts.views import (
    CheckpointInfo,
    EnvironmentDetails,
    EnvironmentListing,
    EpisodeRow,
    MetricsCursor,
    MetricSeries,
    RunView,
    Verdict,
)
from mosaic.trainer.client.daemon_channel import DaemonChannel

if TYPE_CHECKING:
    from mosaic.base.fastlane import FrameHud
    from mosaic.contracts.events import Event
    from mosaic.contracts.payload import Payload
    from mosaic.contracts.play import PlaySummary, SessionCommand
    from mosaic.trainer.client.file_transfer import OnBytes


Json = dict[str, Any]

RUNS_PER_REPLY = 500
MAX_RUNS = 1_000_000
MAX_SMALL_FILE_BYTES = 64 << 20
"""Of a file that is read into memory, such as a summary."""
MAX_LINKS = 8
CLOSE_TIMEOUT_S = 5.0
MAX_GRID_SIDE = 256
"""Rows and columns of the environments in an image."""


class SubmissionUncertain(NoDaemon):
    """The answer to a submission was lost."""

    def __init__(self, error: NoDaemon) -> None:
        super().__init__(
            f"{error} Whether the run was accepted is not known: look before you submit it again: mosaic runs"
        )


class MetricsUpdate(NamedTuple):
    """The points of a run after a cursor."""

    cursor: MetricsCursor
    """Where to continue."""
    is_reload: bool
    """These are all points: what was read before the cursor no longer counts."""
    series: list[MetricSeries]


class WatchBatch(NamedTuple):
    cursor: int
    """Pass it to `watch` to continue from here."""
    events: list[Event]
    skipped: int
    """The number of events that this slow reader did not receive; `watch` adds a warning about them."""
    runs_with_points: frozenset[str] = frozenset()
    """Runs whose points have changed: `metrics_after` returns them."""


class FrameUpdate(NamedTuple):
    """A message to a viewer of a run's frames."""

    state: str
    """`connected`, `waiting` or `unavailable`."""
    reason: str
    image: bytes
    """A JPEG; empty where only the state is sent."""
    rows: int = 1
    columns: int = 1
    """The image is a grid of environments."""
    torn: int = 0
    """Frames that the daemon discarded because they were overwritten while it read them."""
    huds: Sequence[FrameHud] = ()
    """Those of the environments that have a frame."""


class RunFile(NamedTuple):
    """A file below a run's folder."""

    name: str
    """Relative to the folder, such as `videos/0.mp4`."""
    size_bytes: int
    modified_at: float
    link_target: str = ""
    """Of a symbolic link, such as `checkpoints/last`; else empty."""


class LogChunk(NamedTuple):
    data: bytes
    offset: int
    """Byte offset after it."""
    is_stderr: bool = False


class LogMatch(NamedTuple):
    """A line of a log that was searched for."""

    offset: int
    """Byte offset of the line, as `log` counts it."""
    line: int
    """From 1, in its own file."""
    is_stderr: bool
    text: str
    """A long one is cut."""


class LogMatches(NamedTuple):
    lines: list[LogMatch]
    """In the order of the log."""
    is_limited: bool
    """There are more."""


class TrainerClient(DaemonChannel):
    """The verbs of trainer.proto, and what takes more than a call: `run` is in each what it is there.

    Every method raises the MosaicError that the daemon raised.
    """

    def __init__(self, channel: grpc.Channel, token: str, is_local: bool = True, trainer_label: str = "") -> None:
        """`is_local`: the daemon's files can be opened on this machine. `trainer_label` names one on another."""
        super().__init__(channel, token, trainer_label)
        self.is_local = is_local

    def __enter__(self) -> TrainerClient:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # --- runs

    def submit(
        self,
        payload: Mapping[str, Any],
        environment: Mapping[str, str] | None = None,
        is_trusted: bool = False,
        key: str = "",
    ) -> RunView:
        """Submits a payload and returns the new run. A refusal (BadInput) is raised before anything is created.

        `environment` is for a run of the caller's own program; it is never stored. `is_trusted`: what an imported
        config would execute is executed. A second call with the same `key` returns the run of the first.
        """
        fields = self._payload_fields(payload, environment, is_trusted)
        try:
            with own_environment_hint(payload if self.is_local else {}):
                return self.submit_run(**fields, submission_key=key, submitted_by=submitter(self.is_local))
        except NoDaemon as error:
            raise SubmissionUncertain(error) from None

    def check(
        self, payload: Mapping[str, Any], environment: Mapping[str, str] | None = None, is_trusted: bool = False
    ) -> Verdict:
        """The worker's verdict; a refusal raises, as in `submit`."""
        with own_environment_hint(payload if self.is_local else {}):
            return self.check_run(**self._payload_fields(payload, environment, is_trusted))

    def _payload_fields(
        self, payload: Mapping[str, Any], environment: Mapping[str, str] | None, is_trusted: bool
    ) -> dict[str, Any]:
        if environment is not None and not self.is_local:
            raise NotAllowed(
                "A program runs in the environment of whoever submits it, which is not sent to another machine. Log in "
                "on the trainer's machine, and run it there: mosaic run -- …"
            )
        return {
            # With the modules that the config names; a remote trainer has other files.
            "payload_json": json.dumps(with_imports(payload) if self.is_local else dict(payload)),
            "environment": environment,
            "is_trusted": is_trusted,
            "tracking": tracking_environment(payload, self.is_local) if environment is None else {},
        }

    def resume(self, run: str, total_timesteps: int | None = None, is_trusted: bool = False) -> RunView:
        """Unpauses a run, or continues it from its last checkpoint; `is_trusted` as in `submit`."""
        folders = import_folders() if self.is_local else ()
        return self.resume_run(run, total_timesteps=total_timesteps, is_trusted=is_trusted, import_folders=folders)

    def config(self, run: str) -> Json:
        """The payload as it was accepted, to be shown or submitted again."""
        reply = self.call("GetConfig", pb.RunRequest(run=run))
        try:
            config: Json = decode_limited(reply.json, "The run's config")
            require_sections(config)
        except ConfigRefused as error:
            raise self.bad_reply(str(error)) from None
        return config

    def payload(self, run: str) -> Payload:
        """The same, to read fields of it."""
        from mosaic.contracts.payload import Payload  # many models, which most commands do not need

        return parse_contract(Payload, self.config(run), "The run's config was")

    def runs(
        self,
        status: Sequence[str] = (),
        tags: Sequence[str] = (),
        algo: str = "",
        env_id: str = "",
        group: str = "",
        include_archived: bool = False,
        limit: int = 0,
    ) -> list[RunView]:
        """Newest first. `status` takes stages and outcomes. Long lists come in several replies."""
        views: list[RunView] = []
        before = ""
        while True:
            count = min(RUNS_PER_REPLY, limit - len(views)) if limit else RUNS_PER_REPLY
            part = self.list_runs(
                status,
                tag=tags,
                algo=algo,
                env_id=env_id,
                group=group,
                include_archived=include_archived,
                limit=count,
                before=before,
            )
            views += part
            if len(part) > count or len({view.run_id for view in views}) < len(views):
                raise self.bad_reply("its list of runs repeats itself")
            if len(part) < count or len(views) == limit:
                return views
            if len(views) > MAX_RUNS:
                raise self.bad_reply(f"its list has more than {MAX_RUNS:,} runs")
            before = views[-1].run_id

    # --- telemetry

    def watch(self, after: int = 0, run: str = "", kinds: Sequence[str] = ()) -> Iterator[WatchBatch]:
        """Replays everything after the cursor `after` (-1: from now on), then streams without end.

        Besides the journals' events there are the daemon's own (`source` is `daemon`): kind `record`, with the
        run's whole view under `view`, at every change of stage, outcome, tags or notes; kind `deleted` when it is gone.
        Of the kinds `metrics` and `episodes` a batch only names the runs (`runs_with_points`). A batch without events
        comes first, and again when everything up to now has been replayed.
        """
        request = pb.WatchRequest(after=after, run=run, kinds=kinds)
        for reply in self.stream("WatchRuns", request, is_endless=True):
            batch = self._parse_batch(reply)
            if batch.skipped:
                from mosaic.contracts.events import WarningLogged

                text = f"{batch.skipped:,} events were skipped, because this program reads them too slowly."
                warning = WarningLogged(
                    kind=WarningLogged.KIND,
                    seq=batch.cursor,
                    at=time.time(),
                    run_id=run,
                    text=text,
                    code=EVENTS_SKIPPED,
                )
                batch = batch._replace(events=[*batch.events, warning])
            yield batch

    def metrics(self, run: str, tags: Sequence[str] = (), last_only: bool = False) -> Iterator[MetricSeries]:
        """Yields all points by tag, in parts of some thousand."""
        request = pb.MetricsRequest(run=run, tags=tags, last_only=last_only)
        for reply in self.stream("ReadMetrics", request):
            yield from map(self._parse_series, reply.series)

    def metrics_after(self, run: str, cursor: MetricsCursor, tags: Sequence[str] = ()) -> MetricsUpdate:
        """Reads the points that were logged after `cursor`; all points, where a resume has dropped some before it."""
        request = pb.MetricsRequest(run=run, tags=tags, generation=cursor.generation, last_point=cursor.last_point)
        replies = list(self.stream("ReadMetrics", request))
        if not replies:
            raise self.bad_reply("it has no points and no cursor")
        now = MetricsCursor(replies[0].generation, replies[0].last_point)
        series = [self._parse_series(series) for reply in replies for series in reply.series]
        return MetricsUpdate(now, now.generation != cursor.generation, series)

    def episodes(self, run: str) -> Iterator[EpisodeRow]:
        """One object an episode: number, env, step, at, return, length."""
        from pydantic import TypeAdapter

        rows = TypeAdapter(list[EpisodeRow])
        for reply in self.stream("ReadEpisodes", pb.RunRequest(run=run)):
            with self.decoding():
                part = rows.validate_json(reply.json)
            yield from part

    def log(
        self, run: str, is_stderr: bool = False, offset: int = 0, follow: bool = False, is_both: bool = False
    ) -> Iterator[LogChunk]:
        """The log's bytes from `offset` (negative: counted from its end); with `follow`, until the run has ended.

        `is_both`: stdout and stderr in the order of their writing; offsets then count the bytes of both.
        """
        request = pb.LogRequest(run=run, is_stderr=is_stderr, offset=offset, follow=follow, is_both=is_both)
        for reply in self.stream("ReadLog", request, is_endless=follow, max_bytes=None):
            yield LogChunk(reply.data, reply.offset, reply.is_stderr)

    def search_log(self, run: str, text: str, is_stderr: bool = False, is_both: bool = False) -> LogMatches:
        """Finds the lines of a whole log that contain a text; the case of ASCII letters is ignored."""
        return self._search_log(pb.LogSearchRequest(run=run, text=text, is_stderr=is_stderr, is_both=is_both))

    def find_log_errors(self, run: str, is_stderr: bool = False, is_both: bool = False) -> LogMatches:
        """Finds the lines of a whole log that report an error, such as tracebacks."""
        return self._search_log(pb.LogSearchRequest(run=run, is_errors=True, is_stderr=is_stderr, is_both=is_both))

    def _search_log(self, request: pb.LogSearchRequest) -> LogMatches:
        replies: list[pb.LogSearchReply] = list(self.stream("SearchLog", request))
        found = (match for reply in replies for match in reply.matches)
        lines = sorted(LogMatch(match.offset, match.line, match.is_stderr, match.text) for match in found)
        return LogMatches(lines, is_limited=any(reply.is_limited for reply in replies))

    def files(self, run: str, pattern: str = "*") -> list[RunFile]:
        """Lists the files below a run's folder whose name matches; `*` also matches `/`."""
        reply = self.call("ListFiles", pb.FilesRequest(run=run, pattern=pattern))
        return [self._parse_file(file, pattern) for file in reply.files]

    def _parse_file(self, file: pb.RunFile, pattern: str) -> RunFile:
        if not is_inner_path(file.name) or not fnmatch.fnmatchcase(file.name, pattern or "*"):
            raise self.bad_reply(f"{file.name[:200]!r} is not a file of the run that was asked for")
        if file.size_bytes < 0:
            raise self.bad_reply(f"{file.name[:200]!r} has {file.size_bytes:,} bytes")
        modified_at = file.modified_at if 0 <= file.modified_at <= MAX_TIME else 0.0
        return RunFile(file.name, file.size_bytes, modified_at, file.link_target)

    def read_file(self, run: str, name: str, offset: int = 0) -> Iterator[bytes]:
        """The content of a file below a run's folder, in parts; their sum is the caller's to limit."""
        request = pb.FileRequest(run=run, name=name, offset=offset)
        for reply in self.stream("ReadFile", request, max_bytes=None):
            yield reply.data

    def read_json(self, run: str, name: str) -> Any:
        """The content of a JSON file below a run's folder; None where it is missing, not valid JSON, or too large."""
        if not self.files(run, name):  # most runs have none, and the daemon would log a refusal
            return None
        try:
            return json.loads(self.read_small_file(run, name))
        except (UnknownName, ValueError, RecursionError):
            return None

    def play_summary(self, run: str) -> PlaySummary | None:
        """The results of a play session; None before its end."""
        from mosaic.contracts.play import PlaySummary

        stored = self.read_json(run, PLAY_SUMMARY_NAME)
        return None if stored is None else self._decode_part(PlaySummary, stored)

    def read_small_file(self, run: str, name: str) -> bytes:
        """The content of a file of at most MAX_SMALL_FILE_BYTES below a run's folder; else raises ValueError."""
        content = bytearray()
        for data in self.read_file(run, name):
            content += data
            if len(content) > MAX_SMALL_FILE_BYTES:
                raise ValueError(f"{name} has more than {MAX_SMALL_FILE_BYTES:,} bytes")
        return bytes(content)

    def open_file(self, run: str, name: str, on_bytes: OnBytes = lambda _: None) -> Path:
        """Return where a file or folder of a run can be opened here: in place, or a copy from a remote trainer."""
        from mosaic.trainer.client.file_transfer import download

        view = self.get_run(run)
        for _ in range(MAX_LINKS):
            pattern = glob.escape(name)
            files = self.files(view.run_id, pattern) or self.files(view.run_id, f"{pattern}/*")
            if not files:
                raise UnknownName(f"Run {view.run_id} has no file {name!r}. List them: mosaic show {view.run_id}")
            if files[0].name != name or not files[0].link_target:
                folder = Path(view.run_dir) if self.is_local else download(self, view.run_id, files, on_bytes)
                return folder / name
            name = posixpath.normpath(str(PurePosixPath(name).parent / files[0].link_target))
        raise self.bad_reply(f"{name[:200]!r} is a link that leads to more than {MAX_LINKS} others")

    def frames(
        self, run: str, envs: Sequence[int] = (), rate_hz: float = 0, max_side: int = 0, budget: float = 0
    ) -> Iterator[FrameUpdate]:
        """The newest frames of some environments, or of all as a grid, until the run ends. Slow readers get fewer."""
        requests: queue.SimpleQueue[pb.FramesRequest | None] = queue.SimpleQueue()
        requests.put(pb.FramesRequest(run=run, envs=envs, rate_hz=rate_hz, max_side=max_side, budget=budget))
        seen = 0
        try:
            for reply in self.stream("StreamFrames", iter(requests.get, None), is_endless=True):
                yield self._parse_frame(reply)
                if reply.image:
                    seen += 1
                    requests.put(pb.FramesRequest(seen=seen))
        finally:
            requests.put(None)

    def _parse_frame(self, reply: pb.FrameReply) -> FrameUpdate:
        from pydantic import TypeAdapter

        from mosaic.base.fastlane import FrameHud  # with numpy, which other calls do not need

        info = {"rows": 1, "columns": 1, "torn": 0, "envs": [], **self.decode_json(reply.hud_json or "{}")}
        values = tuple(info[key] for key in ("rows", "columns", "torn", "envs"))
        with self.decoding():
            rows, columns, torn, huds = TypeAdapter(tuple[int, int, int, list[FrameHud]]).validate_python(values)
        is_grid = 0 < rows <= MAX_GRID_SIDE and 0 < columns <= MAX_GRID_SIDE and len(huds) <= rows * columns
        if not is_grid or not all(0 <= hud.env < 1 << 31 for hud in huds):
            raise self.bad_reply(f"{len(huds)} environments in a grid of {rows} by {columns}")
        if reply.image and not reply.image.startswith(b"\xff\xd8"):
            raise self.bad_reply("a frame is not a JPEG")
        return FrameUpdate(reply.state, reply.reason, reply.image, rows, columns, torn, huds)

    def control_session(self, run: str) -> SessionControl:
        """Open a stream of commands to a play session."""
        return SessionControl(self, run)

    # --- decoding

    def _parse_series(self, series: pb.MetricSeries) -> MetricSeries:
        if not len(series.steps) == len(series.at) == len(series.values):
            raise self.bad_reply("a metric has steps, times and values of different counts")
        return MetricSeries(make_printable(series.tag, kept=""), series.steps, series.at, series.values)

    def _parse_batch(self, reply: pb.EventBatch) -> WatchBatch:
        from mosaic.contracts.events import decode_event  # many models, which most commands do not need

        with self.decoding():
            events = [decode_event(self.decode_json(event)) for event in reply.events_json]
        if not all(map(is_run_id, filter(None, (*reply.runs_with_points, *(event.run_id for event in events))))):
            raise self.bad_reply("an event names a run by what is not an id")
        return WatchBatch(reply.cursor, events, reply.skipped, frozenset(reply.runs_with_points))

    # --- workers and the daemon itself

    def ask_worker(self, worker: str, question: Json) -> Json:
        """A question to the worker's checker, such as `{"ask": "environments"}`."""
        request = pb.AskRequest(worker=worker, question_json=json.dumps(question))
        return self.decode_json(self.call("AskWorker", request).json)

    def environments(self, worker: str, family: str = "") -> list[EnvironmentListing]:
        """The environments of a worker, also those that are not installed; all, or those of one family."""
        question = {"ask": "environments"} | ({"family": family} if family else {})
        rows = self.ask_worker(worker, question).get("environments")
        return [self._decode_part(EnvironmentListing, row) for row in (rows if isinstance(rows, list) else [rows])]

    def environment(self, env_id: str, env_kwargs: Mapping[str, Any] | None = None) -> EnvironmentDetails:
        """What there is to know about an environment, created with these settings: agents, actions, keys."""
        config = {"env_id": env_id, "env_kwargs": dict(env_kwargs or {})}
        answer = self.ask_worker(PLAY_WORKER, {"ask": "environment", "config": config})
        return self._decode_part(EnvironmentDetails, answer.get("environment"))

    def inspect_checkpoint(self, worker: str, path: str) -> CheckpointInfo:
        """The worker's description of a checkpoint folder, a run folder or a model file on the trainer's machine."""
        answer = self.ask_worker(worker, {"ask": "checkpoint", "path": path})
        return self._decode_part(CheckpointInfo, answer.get("checkpoint"))

    def _decode_part(self, kind: type[AnyContract], data: Any) -> AnyContract:
        return self.decode(kind, json.dumps(data))


Call = Callable[[Callable[[TrainerClient], RunView]], RunView]
"""Makes a call that may safely be made twice, again where the connection broke."""


def new_submission_key() -> str:
    """A name for one run that is submitted: with it, the request can be repeated."""
    return uuid4().hex


def submit_once(
    call: Call, payload: Mapping[str, Any], environment: Mapping[str, str] | None = None, is_trusted: bool = False
) -> RunView:
    """Submit a run through a connection that is opened again where it breaks; the run is created once."""
    key, is_sent = new_submission_key(), False

    def submit(trainer: TrainerClient) -> RunView:
        nonlocal is_sent
        try:
            return trainer.submit(payload, environment, is_trusted, key)
        except NoDaemon:
            is_sent = True
            raise

    try:
        return call(submit)
    except (IdentityFailed, SubmissionUncertain):
        raise
    except NoDaemon as error:  # of a later attempt to connect
        if not is_sent:
            raise
        raise SubmissionUncertain(error) from None


class SessionControl:
    """Sends commands, such as keys, to a play session: one stream for as long as someone plays.

    `send` never blocks. What the daemon refuses ends the stream, and is raised by the next `send`.
    """

    def __init__(self, daemon: DaemonChannel, run_id: str) -> None:
        self._run_id = run_id
        self._daemon = daemon
        self._waiting: queue.SimpleQueue[pb.CommandRequest | None] = queue.SimpleQueue()
        self._call = daemon.send_stream("SendCommands", iter(self._waiting.get, None))

    def send(self, command: SessionCommand) -> None:
        if self._call.done():
            error = self._call.exception()
            raise self._daemon.to_error(error) if error else MosaicError("The session accepts no more commands.")
        fields = command.model_dump_json(exclude_defaults=True)
        self._waiting.put(pb.CommandRequest(run=self._run_id, kind=command.kind, fields_json=fields))

    def end(self) -> None:
        """End the stream after what was sent, without waiting for that."""
        self._waiting.put(None)

    def close(self) -> None:
        """Wait until everything was sent; raise what was refused."""
        self.end()
        try:
            self._call.result(timeout=CLOSE_TIMEOUT_S)
        except grpc.RpcError as error:
            raise self._daemon.to_error(error) from None
        except grpc.FutureTimeoutError:
            self._call.cancel()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self.close()
        else:
            self._waiting.put(None)
            self._call.cancel()
