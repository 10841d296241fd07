"""Records what the script itself parses, prints, logs and saves."""

from __future__ import annotations

import functools
import inspect
import numbers
import os
import time
import traceback
import warnings
from typing import Any

from mosaic.common.console_parser import ConsoleParser
from mosaic.probe.inside import totals
from mosaic.probe.inside.core import WANDB, current_probe
from mosaic.probe.inside.groups import call_as_evaluation
from mosaic.probe.inside.hooks import call_after, call_before, replace_method

_WANDB_STEP_NAMES = ("global_step", "step", "_step")
_MAX_SAVED_FILES = 1000
_SAVED_SUFFIXES = (".zip", "")

_console_parser = ConsoleParser()


def read_output(text: str) -> None:
    """Parse metrics from what the script prints."""
    if text[:1] == "g" and current_probe().has_better_episode_source:
        return
    # print() writes the newline separately, so every text is a complete line.
    for reading in _console_parser.feed(text if text.endswith("\n") else text + "\n"):
        current_probe().add_console_reading(reading)


def silence_tyro(module: Any) -> None:
    """Hide tyro's warnings about defaults such as that of CleanRL's `target_kl: float = None`."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"tyro\b")


# --- wandb.log; its folders and its offline mode are set by environment variables before the import


def patch_wandb_run(module: Any) -> None:
    call_before(module.Run, "log", "wandb", _on_wandb_log)


def _on_wandb_log(run: Any, data: Any, step: Any = None, *args: Any, **kwargs: Any) -> None:
    if step is None:
        steps = (data[name] for name in _WANDB_STEP_NAMES if isinstance(data.get(name), numbers.Real))
        step = next(steps, getattr(run, "step", None))
    for tag, value in data.items():
        if tag in _WANDB_STEP_NAMES or isinstance(value, bool):
            continue
        if isinstance(value, numbers.Real) or getattr(value, "shape", None) == ():
            current_probe().add_scalar(WANDB, str(tag), value, step)


def patch_wandb_monitor(module: Any) -> None:
    """Disable `monitor_gym`, which on gymnasium 1.x breaks closing every environment that records videos."""
    module.monitor = lambda: None


# --- saved models, of torch and of Stable-Baselines3


def patch_torch(module: Any) -> None:
    call_after(module, "save", "checkpoints", lambda result, obj, f, *args, **kwargs: report_saved_file(f))


def patch_baselines(module: Any) -> None:
    totals.patch_baselines(module)
    if "checkpoints" in current_probe().parts:
        call_after(
            module.BaseAlgorithm,
            "save",
            "checkpoints",
            lambda result, model, path, *args, **kwargs: report_saved_file(path),
        )


def patch_callbacks(module: Any) -> None:
    """Patch the end of `learn`: what a script steps afterwards is evaluation, until it calls `learn` again."""
    call_after(module.BaseCallback, "on_training_end", "environments", _on_training_end)


def _on_training_end(*args: Any) -> None:
    current_probe().is_evaluating = True


def patch_evaluation(module: Any) -> None:
    call_as_evaluation(module, "evaluate_policy")


def patch_cleanrl_evaluation(module: Any) -> None:
    """Let CleanRL's evaluation after training record videos only if the run asks for them, and never fail the run."""
    evaluate = getattr(module, "evaluate", None)
    if evaluate is None:
        return
    signature = inspect.signature(evaluate)

    @functools.wraps(evaluate)
    def evaluate_saved_model(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs)
            if "capture_video" in signature.parameters:
                given.arguments["capture_video"] = "eval_capture_video" in current_probe().parts
            return evaluate(*given.args, **given.kwargs)
        except Exception as error:
            traceback.print_exc()
            reason = f"{type(error).__name__}: {error}"
            current_probe().warn(f"The script's evaluation after training failed: {reason}", "evaluation_failed")
            return []

    replace_method(module, "evaluate", evaluate_saved_model)


def patch_video_recorder(module: Any) -> None:
    """Note where gymnasium's RecordVideo and Stable-Baselines3's VecVideoRecorder write."""
    for name in ("RecordVideo", "VecVideoRecorder"):
        if hasattr(module, name):
            call_after(getattr(module, name), "__init__", "videos", _on_video_recorder)


def _on_video_recorder(result: Any, recorder: Any, *args: Any, **kwargs: Any) -> None:
    current_probe().analytics.video_folders.add(os.path.abspath(recorder.video_folder))


def report_saved_file(target: Any) -> None:
    """Report a file that the script has saved; the file is not moved. Streams are ignored."""
    if not isinstance(target, (str, os.PathLike)):
        return
    probe = current_probe()
    path = os.path.abspath(os.fspath(target))
    saved_path = next((path + suffix for suffix in _SAVED_SUFFIXES if os.path.isfile(path + suffix)), None)
    if saved_path is None or saved_path.startswith(os.path.join(probe.run_dir, "wandb")):
        return
    if len(probe.saved_files) >= _MAX_SAVED_FILES and saved_path not in probe.saved_files:
        return
    entry = {"path": saved_path, "step": probe.global_step, "size_bytes": os.path.getsize(saved_path)}
    probe.saved_files[saved_path] = {**entry, "at": time.time()}
    probe.has_unwritten_analytics = True
    probe.write_event("artifact", what="checkpoint_file", **entry)
