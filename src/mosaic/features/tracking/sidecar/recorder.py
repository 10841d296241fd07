"""Logs a run to W&B, as one of its offline runs inside the run's folder, and to trackio's local dashboard."""

from __future__ import annotations

import importlib
import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

from mosaic.base.formatting import short_id
from mosaic.base.journal import EventSink, Follower
from mosaic.contracts.events import Episodes, Finished, Hello, Hyperparameters, Metrics, ProgressReported, Sample
from mosaic.contracts.extras import flatten_sections
from mosaic.contracts.folder import RunFolder, Workspace
from mosaic.contracts.names import LENGTH_TAG, RETURN_TAG
from mosaic.contracts.payload import Payload
from mosaic.features.tracking.sidecar import sync_state
from mosaic.features.tracking.sidecar.sync_state import SyncEntry, SyncState
from mosaic.probe.script_env import wandb_variables

DEFAULT_PROJECT = "mosaic"
MONITOR_VARIABLE = "WANDB_MONITOR_GYM"
"""W&B's variable for logging videos. Its hook into gym is never used: it breaks the closing of environments."""
STEP_METRIC = "global_step"
"""The x axis of every chart, as in CleanRL's own runs."""
INIT_TIMEOUT_S = 120.0
FLUSH_S = 5.0
_FALSE_VALUES = ("0", "false", "no", "off")
_MAX_TAG_CHARS = 64
_HIDDEN_PREFIXES = ("wandb_", "hf_", "track_", "upload_")
"""Options of tracking, which are not settings of the run."""
_TRACKIO_REMOTE_VARIABLES = ("TRACKIO_SPACE_ID", "TRACKIO_SERVER_URL", "TRACKIO_BUCKET_ID", "TRACKIO_WEBHOOK_URL")
"""Only the local dashboard is supported: these would send a run elsewhere."""

# --- what is logged: each point of a run once, in order, over all attempts

MetricPoint = tuple[int, float, str, float]
"""Step, time, tag, value."""


class SettingsItem(NamedTuple):
    values: dict[str, Any]


class ScalarsItem(NamedTuple):
    step: int
    at: float
    values: dict[str, float]


class HardwareItem(NamedTuple):
    at: float
    values: dict[str, float]


class VideoItem(NamedTuple):
    path: Path
    step: int


TrackerItem = SettingsItem | ScalarsItem | HardwareItem | VideoItem


class TrackerFeed:
    """`journal_from` is the offset of this attempt in the journal; None: all attempts have ended.

    An attempt's handshake determines which points of the earlier ones are still valid, so nothing is read before it.
    """

    def __init__(self, folder: RunFolder, journal_from: int | None = None) -> None:
        self._folder = folder
        self._journal_from = journal_from
        self._followers: dict[Path, Follower] = {}
        self._keeper_follower = Follower(folder.keeper)
        self._last_valid_steps: list[float] = []
        """By attempt, after what precedes the first one; empty while they are unknown."""
        self._attempt = 0
        self._videos: set[Path] = set()
        self.step = 0
        self.outcome: str | None = None
        """The last one that the worker reported."""

    def read(self, is_over: bool = False) -> Iterator[TrackerItem]:
        """Yields what is new. `is_over`: a missing handshake will not come any more."""
        if not self._last_valid_steps and not self._read_attempts(is_over):
            return
        for path in self._folder.journals():
            for line in self._followers.setdefault(path, Follower(path)).read_rest():
                yield from self._convert_event(line.body, path == self._folder.journal)
        for line in self._keeper_follower.read_rest():
            if line.body["kind"] == Sample.KIND:
                yield _hardware_item(line.body)
        yield from self._new_videos()

    def _read_attempts(self, is_over: bool) -> bool:
        """Returns whether it is known which points of the attempts are valid."""
        lines = Follower(self._folder.journal).read_rest()
        hellos = [(line.body.get("resumed_from"), line.end) for line in lines if line.body["kind"] == Hello.KIND]
        count = len(hellos)
        if self._journal_from is not None:
            earlier = sum(end <= self._journal_from for _, end in hellos)
            if earlier and count == earlier and not is_over:
                return False
            count = earlier + 1  # what follows is for the next attempt's sidecar
        steps = last_valid_steps([resumed_from for resumed_from, _ in hellos[:count]])
        self._last_valid_steps = [math.inf, *steps, *[math.inf] * (count - len(steps))]
        return True

    def _convert_event(self, body: Mapping[str, Any], is_main: bool) -> Iterable[TrackerItem]:
        kind, last_step = body["kind"], math.inf
        if is_main:  # other processes of a run write journals of their own, which are not resumed
            self._attempt += kind == Hello.KIND
            if self._attempt >= len(self._last_valid_steps):
                return []
            last_step = self._last_valid_steps[self._attempt]
        try:
            if kind == Finished.KIND and is_main:
                self.outcome = str(body["outcome"])
            elif kind == Hyperparameters.KIND:
                return [SettingsItem(dict(body["values"]))]
            elif kind == ProgressReported.KIND:
                self.step = max(self.step, int(body["global_step"]))
            elif kind == Metrics.KIND:
                points = (
                    (int(step), float(at), str(tag), _float_or_nan(value))
                    for tag, series in body["series"].items()
                    for step, at, value in series
                )
                return group_by_step(point for point in points if point[0] <= last_step)
            elif kind == Episodes.KIND:
                return [
                    ScalarsItem(step, at, {RETURN_TAG: _float_or_nan(value), LENGTH_TAG: float(length)})
                    for _, _, step, at, value, length in body["rows"]
                    if step <= last_step
                ]
        except (KeyError, TypeError, ValueError, AttributeError):
            pass  # an incomplete line of another program
        return []

    def _new_videos(self) -> list[TrackerItem]:
        """Videos get their final names when they are complete."""
        paths = sorted(path for path in self._folder.videos.rglob("*.mp4") if not path.name.startswith("."))
        new = [path for path in paths if path not in self._videos]
        self._videos.update(new)
        return [VideoItem(path, self.step) for path in new]


def last_valid_steps(resumed_from_steps: list[int | None]) -> list[float]:
    """Returns the last valid step of each attempt, given the steps that they resumed from (None: from the start)."""
    steps: list[float] = []
    bound = math.inf
    for resumed_from in reversed(resumed_from_steps):
        steps.append(bound)
        bound = min(bound, -1 if resumed_from is None else resumed_from)
    return steps[::-1]


def group_by_step(points: Iterable[MetricPoint]) -> list[TrackerItem]:
    """Groups the points of one step into a row; a repeated tag starts the next row."""
    rows: list[TrackerItem] = []
    step, at, values = 0, 0.0, dict[str, float]()
    for point in sorted(points, key=lambda point: point[:2]):
        if values and (point[0] != step or point[2] in values):
            rows.append(ScalarsItem(step, at, values))
            values = {}
        step, at = point[:2]
        values[point[2]] = point[3]
    if values:
        rows.append(ScalarsItem(step, at, values))
    return rows


def _hardware_item(body: Mapping[str, Any]) -> HardwareItem:
    values = {"cpu": float(body["cpu_percent"]), "proc.memory.rssMB": float(body["rss_mb"])}
    for number, gpu in enumerate(body.get("gpus") or ()):
        values[f"gpu.{number}.gpu"] = gpu["util_percent"]
        values[f"gpu.{number}.memoryAllocatedBytes"] = gpu["memory_used_mb"] * 2**20
    return HardwareItem(body["at"], values)


def _float_or_nan(value: Any) -> float:
    return math.nan if value is None else float(value)


def find_checkpoints(folder: RunFolder) -> dict[Path, tuple[str, ...]]:
    """Returns the last and the best checkpoint with their names; one entry where the last is the best."""
    names: dict[Path, tuple[str, ...]] = {}
    for name, link in (("last", folder.last_checkpoint), ("best", folder.best_checkpoint)):
        if link.is_dir():
            target = link.resolve()
            names[target] = (*names.get(target, ()), name)
    return names


# --- the trackers


class Recorder:
    """Logs a run to one tracker, from its first point on, whenever it is started.

    `journal_from` is the offset of this attempt in the journal; None: all attempts have ended.
    A tracker that fails is reported once and dropped; the run and other trackers continue. Subclasses define `open`,
    `close` and what is logged in between.
    """

    name: ClassVar[str]

    def __init__(self, folder: RunFolder, payload: Payload, journal_from: int | None, emit_event: EventSink) -> None:
        self._folder = folder
        self._payload = payload
        self._feed = TrackerFeed(folder, journal_from)
        self._emit_event = emit_event
        self._run: Any = None
        self.problem: str | None = None
        """Why it no longer records."""
        self.is_started = False
        self.row_count = 0
        """Rows of scalars logged so far."""

    def start(self) -> None:
        self.is_started = True
        if self._call_guarded(self.open):
            self._emit_event("tracking_started", tracker=self.name)

    def follow(self, is_over: bool = False) -> None:
        """Logs what is new."""
        self._call_guarded(partial(self._log_new_items, is_over))

    def finish(self) -> bool:
        """Logs the rest, or everything; returns whether the complete run was recorded."""
        if not self.is_started:
            self.start()
        self.follow(is_over=True)
        for path, aliases in find_checkpoints(self._folder).items():
            step = int(path.name) if path.name.isdigit() else 0
            self._call_guarded(partial(self.log_checkpoint, path, step, aliases))
        if self._call_guarded(self.close):
            self._emit_event("tracking_ended", tracker=self.name, rows=self.row_count)
        return self.problem is None

    def open(self) -> None:
        raise NotImplementedError

    def log_settings(self, values: Mapping[str, Any]) -> None:
        """Logs every hyperparameter, including defaults."""

    def log_scalars(self, step: int, at: float, values: Mapping[str, float]) -> None: ...

    def log_hardware(self, at: float, values: Mapping[str, float]) -> None: ...

    def log_video(self, path: Path, step: int) -> None: ...

    def log_checkpoint(self, path: Path, step: int, aliases: tuple[str, ...]) -> None:
        """`aliases` are `last`, `best` or both."""

    def close(self) -> None:
        raise NotImplementedError

    def _log_new_items(self, is_over: bool) -> None:
        for item in self._feed.read(is_over):
            match item:
                case ScalarsItem(step, at, values):
                    self.log_scalars(step, at, values)
                    self.row_count += 1
                case HardwareItem(at, values):
                    self.log_hardware(at, values)
                case VideoItem(path, step):
                    self.log_video(path, step)
                case SettingsItem(values):
                    self.log_settings(values)

    def _call_guarded(self, call: Callable[[], None]) -> bool:
        if self.problem is None:
            try:
                call()
                return True
            except (Exception, SystemExit) as error:
                self.problem = _failure_message(self.name, error, self._folder.run_id)
                self._emit_event("warning", text=self.problem, code="tracking_failed")
        return False


class TrackioRecorder(Recorder):
    """For `trackio show`, with TRACKIO_DIR set to the workspace's `trackio`."""

    name = "trackio"

    def open(self) -> None:
        for variable in _TRACKIO_REMOTE_VARIABLES:
            os.environ.pop(variable, None)
        trackio_folder = Workspace.containing(self._folder).trackio
        trackio_folder.mkdir(parents=True, exist_ok=True)
        os.environ["TRACKIO_DIR"] = str(trackio_folder)
        import trackio

        run_id, payload = self._folder.run_id, self._payload
        name, suffix = run_name(payload, run_id), short_id(run_id)
        self._run = trackio.init(
            payload.artifacts.trackio.project or DEFAULT_PROJECT,
            name=name if name.endswith(suffix) else f"{name}-{suffix}",
            group=payload.metadata.group,
            config={**flatten_config(payload), "run_id": run_id},  # it accepts a config at the start only
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def log_scalars(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log(dict(values), step=step)

    def log_hardware(self, at: float, values: Mapping[str, float]) -> None:
        self._run.log_system(dict(values))

    def log_video(self, path: Path, step: int) -> None:
        import trackio

        self._run.log({"videos": trackio.Video(str(path), format="mp4")}, step=step)

    def close(self) -> None:
        self._run.finish()


class WandbRecorder(Recorder):
    """Writes one of wandb's offline folders and adds it to the sync state."""

    name = "wandb"

    def __init__(
        self,
        folder: RunFolder,
        payload: Payload,
        journal_from: int | None,
        emit_event: EventSink,
        state: SyncState,
    ) -> None:
        super().__init__(folder, payload, journal_from, emit_event)
        self._run_fields = wandb_run_fields(payload, folder.run_id)
        self._has_videos = logs_videos(os.environ)
        self._state = state
        self._entry = SyncEntry(is_whole=False)

    def follow(self, is_over: bool = False) -> None:
        super().follow(is_over)
        self._entry.records = self.row_count

    def finish(self) -> bool:
        self._entry.is_whole = super().finish()
        if self._state.entries:
            sync_state.write(self._folder, self._state)
        return self._entry.is_whole

    def open(self) -> None:
        self._state.project, self._state.entity = self._run_fields["project"], self._run_fields["entity"]
        sync_state.write(self._folder, self._state)  # so that a folder without an entry is known to be incomplete
        os.environ.update(wandb_variables(self._folder))
        timeout_s = float(os.environ.pop("WANDB_INIT_TIMEOUT", "") or INIT_TIMEOUT_S)
        os.environ.pop(MONITOR_VARIABLE, None)
        import wandb

        settings = wandb.Settings(
            console="off",  # the sidecar's output is not the run's
            disable_code=True,
            disable_git=True,
            init_timeout=timeout_s,
            silent=True,
            x_disable_meta=True,  # would describe the sidecar; the keeper measures the run
            x_disable_stats=True,
            x_save_requirements=False,
            x_start_time=_first_event_time(self._folder),
            x_transaction_log_flush_interval=FLUSH_S,
        )
        self._run = wandb.init(mode="offline", settings=settings, **self._run_fields)
        self._run.define_metric(STEP_METRIC)
        self._run.define_metric("*", step_metric=STEP_METRIC)
        # Earlier recordings are contained in this one, which starts with the run's first point.
        for entry in self._state.entries.values():
            entry.state = sync_state.SUPERSEDED
        self._state.entries[Path(self._run.dir).parent.name] = self._entry
        sync_state.write(self._folder, self._state)

    def log_settings(self, values: Mapping[str, Any]) -> None:
        self._run.config.update(dict(values), allow_val_change=True)

    def log_scalars(self, step: int, at: float, values: Mapping[str, float]) -> None:
        self._run.log({**values, STEP_METRIC: step, "_timestamp": at})

    def log_hardware(self, at: float, values: Mapping[str, float]) -> None:
        """Writes what wandb's own monitor would write; there is no public API for it."""
        records: Any = importlib.import_module("wandb.proto.wandb_internal_pb2")
        interface = self._run._interface
        stats = records.StatsRecord(stats_type=records.StatsRecord.SYSTEM)
        stats.timestamp.FromNanoseconds(int(at * 1e9))
        for name, value in values.items():
            item = stats.item.add()
            item.key, item.value_json = name, repr(float(value))
        interface._publish(interface._make_record(stats=stats))

    def log_video(self, path: Path, step: int) -> None:
        if self._has_videos:
            import wandb

            name = "eval/video" if path.parent == self._folder.eval_videos else "videos"
            self._run.log({name: wandb.Video(str(path), format="mp4"), STEP_METRIC: step})

    def log_checkpoint(self, path: Path, step: int, aliases: tuple[str, ...]) -> None:
        import wandb

        artifact = wandb.Artifact(f"checkpoint-{self._run.id}", "model", metadata={"step": step})
        artifact.add_dir(str(path))
        self._run.log_artifact(artifact, aliases=[*aliases, f"step-{step}"])

    def close(self) -> None:
        outcome = self._feed.outcome
        if outcome is not None:
            self._run.summary["outcome"] = outcome
        self._run.finish(exit_code=1 if outcome == "failed" else 0)


def wandb_run_fields(payload: Payload, run_id: str, environ: Mapping[str, str] = os.environ) -> dict[str, Any]:
    """Returns the arguments of `wandb.init` that describe the run."""
    wandb, metadata = payload.artifacts.wandb, payload.metadata
    return {
        "id": run_id,
        "name": wandb.run_name or environ.get("WANDB_NAME") or run_name(payload, run_id),
        "project": wandb.project or environ.get("WANDB_PROJECT") or DEFAULT_PROJECT,
        "entity": wandb.entity or environ.get("WANDB_ENTITY") or None,
        "group": metadata.group,
        "tags": [tag[:_MAX_TAG_CHARS] for tag in metadata.tags] or None,  # None: WANDB_TAGS, as for the group
        "notes": metadata.notes,
        "job_type": "eval" if payload.is_evaluation else "train",
        "config": flatten_config(payload),
    }


def logs_videos(environ: Mapping[str, str]) -> bool:
    return environ.get(MONITOR_VARIABLE, "").strip().lower() not in _FALSE_VALUES


def run_name(payload: Payload, run_id: str) -> str:
    """Returns the name of a run; by default as CleanRL names it, with our id in place of the time."""
    config = payload.metadata.worker.config
    parts = [str(config[key]) for key in ("env_id", "algo", "seed") if config.get(key) is not None]
    return payload.run_name or "__".join([*parts, short_id(run_id)])


def flatten_config(payload: Payload) -> dict[str, Any]:
    """Returns the settings of a run as one flat table, without tracking options, keys and proxies."""
    config = payload.metadata.worker.config
    flat = {name: value for name, value in config.items() if name != "algo_params" and value is not None}
    flat |= flatten_sections(payload.to_json())
    flat |= config.get("algo_params") or {}
    return {name: value for name, value in flat.items() if not name.startswith(_HIDDEN_PREFIXES)}


def _first_event_time(folder: RunFolder) -> float:
    try:
        with open(folder.journal, "rb") as file:
            return float(json.loads(file.readline())["at"])
    except (OSError, ValueError, KeyError, TypeError):
        return time.time()


def _failure_message(name: str, error: BaseException, run_id: str) -> str:
    if isinstance(error, ModuleNotFoundError) and error.name == name:
        later = f" Then: mosaic wandb sync {run_id}" if name == "wandb" else ""
        command = f"pip install 'mosaic-rl[{name}]'"
        return f"The run is not recorded for {name}, which is not installed. Install it: {command}.{later}"
    details = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return f"{name} failed and no longer records the run ({details}). The run continues."
