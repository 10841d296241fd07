"""`mosaic watch`: a run's environments, live in the terminal or as a video."""

from __future__ import annotations

import io
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import numpy as np

from mosaic.base import formatting
from mosaic.base.fastlane import (
    CONNECTED,
    UNAVAILABLE,
    WAITING,
    FrameHud,
    FrameRequest,
    LaneView,
    compose_grid,
    describe_cost,
    fit_size,
    full_grid,
    lanes_folder,
    scale_image,
    scale_image_smoothly,
)
from mosaic.base.media import VideoWriter
from mosaic.cli import output
from mosaic.cli.context import CliContext, Outage, command, pass_context
from mosaic.cli.parameters import DURATION, find_run, run_argument
from mosaic.contracts.errors import BadInput, BadReply, MissingExtra, MosaicError, NoDaemon, NotAllowed
from mosaic.contracts.options import RunKind
from mosaic.trainer.client.frame_sources import FrameRateMeter, RelayedFrames, has_local_frames

if TYPE_CHECKING:
    from mosaic.contracts.views import RunView
    from mosaic.trainer.client.trainer_client import FrameUpdate, TrainerClient

MAX_PIXELS = 1 << 26
"""Of a frame that a trainer sends."""
DEFAULT_VIDEO_S = 10.0
DEFAULT_RATE_HZ = 30.0
FIRST_FRAME_TIMEOUT_S = 20.0
"""How long a video waits for its first frame."""
MAX_VIDEO_SIDE_PX = 1280
STATUS_INTERVAL_S = 1.0
RECONNECT_PAUSE_S = 0.5
CLOSE_TIMEOUT_S = 2.0
TEXT_LINES = 2
NEXT_KEYS = ("\x1b[C", "n", "l")
PREVIOUS_KEYS = ("\x1b[D", "p", "h")


@command()
@run_argument()
@click.option("--env", "env", metavar="N", type=click.IntRange(0), help="Which environment.  [default: 0]")
@click.option("--grid", is_flag=True, help="All environments that can be watched.")
@click.option(
    "--rate", "rate_hz", metavar="HZ", type=click.FloatRange(0.5, 120), help="Frames per second of each environment."
)
@click.option(
    "--budget",
    metavar="PERCENT",
    type=click.FloatRange(0.1, 50),
    help="How much of the run's time drawing may take.  [default: 1.5]",
)
@click.option("--save", metavar="FILE", type=click.Path(dir_okay=False), help="Write an MP4 instead of showing it.")
@click.option(
    "--seconds", metavar="DURATION", type=DURATION, help=f"Length of the video.  [default: {DEFAULT_VIDEO_S:g}]"
)
@click.option("--remote", is_flag=True, help="Through the daemon, as from another machine.")
@pass_context
def watch(
    context: CliContext,
    run: str,
    env: int | None,
    grid: bool,
    rate_hz: float | None,
    budget: float | None,
    save: str | None,
    seconds: float | None,
    remote: bool,
) -> None:
    """Shows a run's environments live. The run renders only while someone watches.

    Keys: q ends, g changes between one environment and all, the arrows change the environment.
    """
    if env is not None and grid:
        raise BadInput("--env and --grid cannot both be given.")
    if seconds is not None and save is None:
        raise BadInput("--seconds is the length of a video. Name its file too: --save out.mp4")
    view = find_run(context, run, _closeness_to_frames)
    short = formatting.short_id(view.run_id)
    if view.stage == "finished":
        raise NotAllowed(
            f"Run {short} has ended ({view.outcome}): there is nothing to watch. "
            f"For a video of its policy: mosaic eval {short} --video"
        )
    if save is None and not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise BadInput(f"There is no terminal to draw in. Save a video instead: mosaic watch {short} --save out.mp4")
    if view.stage == "queued":
        reason = f" ({view.wait_reason})" if view.wait_reason else ""
        output.print_message(f"Run {short} is queued{reason}: there are no frames before it runs.")
    is_remote = remote or context.is_remote
    request = FrameRequest(rate_hz, None if budget is None else budget / 100)
    open_source = _frame_source_factory(context, view, request, is_remote)
    envs = () if grid else (env or 0,)
    if save is None:
        _show_in_terminal(context, view, open_source, envs)
    else:
        source = open_source(envs)
        _save_video(context, view, source, Path(save), seconds or DEFAULT_VIDEO_S, rate_hz or DEFAULT_RATE_HZ)


def _closeness_to_frames(view: RunView) -> int:
    """Running runs have frames; the others that have not ended may get some."""
    return {"running": 3, "finished": 0, "queued": 1}.get(view.stage, 2)


def _frame_source_factory(
    context: CliContext, view: RunView, request: FrameRequest, is_remote: bool
) -> Callable[[Sequence[int]], FrameSource]:
    def open_source(envs: Sequence[int]) -> FrameSource:
        if has_local_frames(view, is_remote):
            return LocalFrameSource(view.run_dir, envs, request)
        return RemoteFrameSource(context.connect, view.run_id, envs, request)

    return open_source


# --- frames


class LocalFrameSource(LaneView):
    def __init__(self, run_dir: str, envs: Sequence[int], request: FrameRequest) -> None:
        super().__init__(lanes_folder(run_dir), envs, request)

    def full_size(self) -> tuple[int, int]:
        """Width and height of the whole image at full size, once there is a frame."""
        return full_grid(self.rgb_images())[1]

    def render(self, width: int, height: int, is_smooth: bool = False) -> Any:
        """RGB within this size. Smooth is better and slower."""
        images = self.rgb_images()
        shape, size = full_grid(images, width / height)
        scale = scale_image_smoothly if is_smooth else scale_image
        return compose_grid(images, shape, *fit_size(*size, width, height), scale)


class RemoteFrameSource(RelayedFrames[Any]):
    """Receives in its own thread, also after the connection broke: when to give up is decided by the RunPoller."""

    def __init__(
        self,
        connect: Callable[[], TrainerClient],
        run_id: str,
        envs: Sequence[int],
        request: FrameRequest,
    ) -> None:
        super().__init__(run_id, envs, request, self._decode_image)
        self.huds: Sequence[FrameHud] = ()
        self._connect = connect
        self._trainer = connect()
        self._image: Any = None
        self._failure: MosaicError | None = None
        self._thread = threading.Thread(target=self._receive_until_closed, name="frames", daemon=True)
        self._thread.start()

    def _receive_until_closed(self) -> None:
        while not self.is_closed:
            try:
                self.receive(self._trainer)
                return
            except NoDaemon as error:
                self.state, self.reason = WAITING, str(error)
            except MosaicError as error:
                self.state, self.reason, self._failure = UNAVAILABLE, str(error), error
                return
            except ValueError:
                if not self.is_closed:
                    raise
                return  # gRPC's error for a closed channel
            self._trainer.close()
            self._reconnect()

    def _reconnect(self) -> None:
        while not self.is_closed:
            time.sleep(RECONNECT_PAUSE_S)
            try:
                self._trainer = self._connect()
                return
            except NoDaemon as error:
                self.reason = str(error)

    def _decode_image(self, update: FrameUpdate) -> Any:
        try:
            from PIL import Image
        except ImportError:
            raise MissingExtra("Frames from the daemon need Pillow: pip install 'mosaic-rl[train]'.") from None
        self.huds = update.huds
        try:
            image = Image.open(io.BytesIO(update.image), formats=("JPEG",))
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(f"{image.width} x {image.height} pixels")
            return np.asarray(image.convert("RGB"))
        except (OSError, ValueError) as error:
            raise BadReply(f"The trainer sent a frame that cannot be shown: {error}.") from None

    def poll(self) -> bool:
        """Return whether there is a new frame. Never waits."""
        if self._failure is not None:
            raise self._failure
        image = self.take_newest()
        if image is None:
            return False
        self._image = image
        return True

    def full_size(self) -> tuple[int, int]:
        return self._image.shape[1], self._image.shape[0]

    def render(self, width: int, height: int, is_smooth: bool = False) -> Any:
        wide, high = fit_size(self._image.shape[1], self._image.shape[0], width, height)
        return (scale_image_smoothly if is_smooth else scale_image)(self._image, high, wide)

    def close(self) -> None:
        super().close()
        deadline = time.monotonic() + CLOSE_TIMEOUT_S
        while self._thread.is_alive() and time.monotonic() < deadline:
            self._trainer.close()  # it may just have opened another one
            self._thread.join(0.1)


FrameSource = LocalFrameSource | RemoteFrameSource


class RunPoller:
    """Polls whether the run is still active, and the progress of an evaluation."""

    def __init__(self, context: CliContext, view: RunView) -> None:
        self._context = context
        self.view = view
        self.eval_line = ""
        self._outage = Outage(context, f"mosaic watch {formatting.short_id(view.run_id)}")
        self._next_poll_at = 0.0 if view.kind == RunKind.POLICY_EVAL else time.monotonic() + STATUS_INTERVAL_S

    @property
    def has_ended(self) -> bool:
        if self.view.stage != "finished" and time.monotonic() >= self._next_poll_at:
            self._next_poll_at = time.monotonic() + STATUS_INTERVAL_S
            try:
                self._poll()
                self._outage.note_success()  # the state of the frames tells the rest
            except NoDaemon as error:
                self._outage.note_failure(error)
        return bool(self.view.stage == "finished")

    def _poll(self) -> None:
        run_id = self.view.run_id
        self.view = self._context.call_with_reconnect(lambda trainer: trainer.get_run(run_id), retry_s=0.0)
        if self.view.kind == RunKind.POLICY_EVAL:
            read = self._context.call_with_reconnect
            evaluation = read(lambda trainer: next(trainer.read_evaluations(run_id), None), 0.0)
            self.eval_line = formatting.format_eval_line(evaluation.summary.batches[-1]) if evaluation else ""


# --- in the terminal


def _show_in_terminal(
    context: CliContext, view: RunView, open_source: Callable[[Sequence[int]], FrameSource], envs: Sequence[int]
) -> None:
    from mosaic.cli.terminal import TerminalScreen

    run_poller = RunPoller(context, view)
    env = envs[0] if envs else 0
    source = open_source(envs)
    meter = FrameRateMeter()
    try:
        with TerminalScreen(TEXT_LINES) as screen:
            while not run_poller.has_ended:
                area = screen.draw_area()
                if source.poll():
                    meter.record(time.monotonic())
                    screen.draw(source.render(*screen.renderer.max_image_size(area)), area)
                rate_hz = meter.rate_hz(time.monotonic())
                screen.set_text(status_lines(run_poller.view, source, rate_hz, bool(envs), run_poller.eval_line))
                key = screen.read_keys(1 / 120)
                if key in ("q", "Q", "\x1b"):
                    break
                selected = select_envs(key, env, envs)
                if selected is not None:
                    envs, env = selected, selected[0] if selected else env
                    source.close()
                    source = open_source(envs)
                    screen.clear()
    except KeyboardInterrupt:
        pass  # as good as q
    finally:
        source.close()
    if run_poller.has_ended:
        short = formatting.short_id(view.run_id)
        output.print_message(f"Run {short} has ended: {run_poller.view.status}. More: mosaic show {short}")


def select_envs(key: str, env: int, envs: Sequence[int]) -> tuple[int, ...] | None:
    """The environments to show after a key; none where it means nothing, an empty tuple for all."""
    if key == "g":
        return () if envs else (env,)
    if envs and key in NEXT_KEYS:
        return (env + 1,)
    if envs and key in PREVIOUS_KEYS and env > 0:
        return (env - 1,)
    return None


def status_lines(
    view: RunView, source: FrameSource, displayed_hz: float, is_single: bool, eval_line: str = ""
) -> list[str]:
    """Two lines below the image: the state of the environments, and how often they are rendered and why."""
    title = f"{view.env_id or 'run'} {formatting.short_id(view.run_id)}"
    if view.kind == RunKind.POLICY_EVAL:
        title += f" (Eval)  {eval_line}".rstrip()
    keys = "q quits, g grid, arrows" if is_single else "q quits, g one"
    if source.state != CONNECTED or not source.huds:
        return [f"{title}  {source.state}{': ' + source.reason if source.reason else ''}", keys]
    drawn = f"{displayed_hz:.1f} frames/s, {describe_cost(source.huds)}".rstrip(", ") + f"   {keys}"
    if is_single:
        hud = source.huds[0]
        return [
            f"{title}  env {hud.env}  episode {hud.episode:,}  step {hud.step:,}  "
            f"reward {formatting.format_number(hud.reward)}  return {formatting.format_number(hud.episodic_return)}",
            drawn,
        ]
    each = "  ".join(formatting.format_number(hud.episodic_return) for hud in source.huds)
    return [f"{title}  returns  {each}", drawn]


# --- as a video


def _save_video(
    context: CliContext, view: RunView, source: FrameSource, path: Path, seconds: float, rate_hz: float
) -> None:
    video = VideoWriter(path, rate_hz)
    try:
        _record_video(RunPoller(context, view), source, video, seconds)
        video.finish()
    except KeyboardInterrupt:
        video.finish()
    except NoDaemon:
        if video.size is None:
            video.discard()
        else:
            video.finish()  # what came until then is kept
        raise
    except BaseException:
        video.discard()
        raise
    finally:
        source.close()
    if video.size is None:
        raise MosaicError("Interrupted before the first frame came: nothing was saved.")
    count, (width, height) = video.frame_count, video.size
    if context.is_json:
        fields = {"path": str(path.absolute()), "frames": count, "seconds": count / video.rate_hz}
        output.print_json({**fields, "width": width, "height": height})
    else:
        output.print_message(f"Saved {count} frames ({width} by {height}) to {path}")


def _record_video(run_poller: RunPoller, source: FrameSource, video: VideoWriter, seconds: float) -> None:
    """Adds frames by the clock; a frame is repeated until there is a newer one."""
    from mosaic.base.fastlane import UNAVAILABLE, limit_size

    deadline = time.monotonic() + FIRST_FRAME_TIMEOUT_S
    while not source.poll():
        if source.state == UNAVAILABLE or run_poller.has_ended or time.monotonic() > deadline:
            why = source.reason if not run_poller.has_ended else "the run has ended"
            raise MosaicError(f"No frame came: {why}. Nothing was saved.")
        time.sleep(0.01)
    started_at = time.monotonic()
    image = None
    for number in range(max(1, round(seconds * video.rate_hz))):
        while time.monotonic() < started_at + number / video.rate_hz:
            time.sleep(0.002)
        if source.poll() or image is None:
            size = video.size or limit_size(*source.full_size(), MAX_VIDEO_SIDE_PX)
            image = source.render(*size, is_smooth=True)
        video.add(image)
        if run_poller.has_ended:
            return
