"""Records what the script itself parses, prints, logs and saves."""

from __future__ import annotations

import inspect
import numbers
import os
import struct
import time
import traceback
import warnings
import weakref
from typing import Any

from mosaic.base.console_parser import ConsoleParser
from mosaic.contracts.names import LENGTH_TAG, RETURN_TAG
from mosaic.probe.inside.core import WANDB, WRITER, claim, current_probe
from mosaic.probe.inside.groups import call_as_evaluation
from mosaic.probe.inside.hooks import SCRIPT_DIR_VARIABLE, call_after, call_before, replace_method

_WANDB_STEP_NAMES = ("global_step", "step", "_step")
_MAX_SAVED_FILES = 1000
_SAVED_SUFFIXES = (".zip", "")
TENSORBOARD_VARIABLE = "CLEANRL_TENSORBOARD_DIR"
_MAIN_WRITER_FILE = ".main-writer"
_TENSOR_FORMATS = {1: "<f", 2: "<d"}
"""By TensorBoard's number of a data type: the format of its bytes."""

_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""By writer, the name of its folder."""
_console_parser = ConsoleParser()


def read_output(text: str) -> None:
    """Parse metrics from what the script prints."""
    if text[:1] == "g" and current_probe().episode_source in ("script", "probe"):
        return
    # print() writes the newline separately, so every text is a complete line.
    for reading in _console_parser.feed(text if text.endswith("\n") else text + "\n"):
        current_probe().add_console_reading(reading)


def silence_tyro(module: Any) -> None:
    """Hide tyro's warnings about defaults such as that of CleanRL's `target_kl: float = None`."""
    warnings.filterwarnings("ignore", category=UserWarning, module=r"tyro\b")


# --- scalars of TensorBoard's event files, each of which is written into a folder of its own in the run


def patch_event_writer(module: Any) -> None:
    kind = module.EventFileWriter
    call_before(kind, "__init__", "writers", _redirect)
    call_after(kind, "__init__", "writers", _link_event_file)
    call_before(kind, "add_event", "writers", _on_event)


def _redirect(writer: Any, logdir: Any, *args: Any, **kwargs: Any) -> Any:
    current_probe().has_writer = True
    run_log_dir = os.environ.get(TENSORBOARD_VARIABLE)
    path = os.fspath(logdir)
    if not run_log_dir or "://" in path:
        return None
    _names[writer] = name = folder_name(os.path.abspath(path), run_log_dir, os.environ.get(SCRIPT_DIR_VARIABLE, "/"))
    return (writer, os.path.join(run_log_dir, name), *args), kwargs


def folder_name(log_dir: str, run_log_dir: str, script_dir: str) -> str:
    """Return the folder of a writer below the run's TensorBoard folder; different log dirs have different ones."""
    for root in (run_log_dir, script_dir):
        name = os.path.relpath(log_dir, root)
        if name == os.curdir:
            return os.curdir if root == run_log_dir else "run"
        if name.split(os.sep)[0] != os.pardir:
            return name
    return log_dir.lstrip(os.sep)


def _link_event_file(result: Any, writer: Any, logdir: Any, *args: Any, **kwargs: Any) -> None:
    """Link the event file into the folder that the script named, where its user looks for it.

    The folder itself is not a link: a script may delete it or save models in it, which must outlive the run.
    """
    path = getattr(writer, "_file_name", None) or getattr(getattr(writer, "_ev_writer", None), "_file_name", None)
    if writer not in _names or path is None:
        return
    script_path = os.path.abspath(os.fspath(logdir))
    os.makedirs(script_path, exist_ok=True)
    link = os.path.join(script_path, os.path.basename(path))
    if link != os.path.abspath(path):
        try:
            os.link(path, link)
        except OSError:  # another file system
            os.symlink(path, link)


def _on_event(writer: Any, event: Any, *args: Any, **kwargs: Any) -> None:
    for value in event.summary.value:
        scalar = _scalar_of(value)
        if scalar is None:
            continue
        probe, prefix = current_probe(), _tag_prefix(_names.get(writer, ""))
        if not prefix or value.tag in (RETURN_TAG, LENGTH_TAG):  # an episode, from any writer
            probe.add_scalar(WRITER, value.tag, scalar, event.step)
        if prefix:
            probe.add_scalar(WRITER, prefix + value.tag, scalar, event.step)


def _scalar_of(value: Any) -> float | None:
    kind = value.WhichOneof("value")
    if kind == "simple_value":
        return float(value.simple_value)
    if kind != "tensor" or value.metadata.plugin_data.plugin_name != "scalars":
        return None
    tensor = value.tensor
    if tensor.tensor_content and tensor.dtype in _TENSOR_FORMATS:
        return float(struct.unpack(_TENSOR_FORMATS[tensor.dtype], tensor.tensor_content)[0])
    return next((float(number) for number in (*tensor.float_val, *tensor.double_val)), None)


def _tag_prefix(name: str) -> str:
    """Return what distinguishes the tags of a writer from those of the first one of the run, which has no prefix."""
    main = _main_writer_name(name)
    if name == main:
        return ""
    below_main = main + os.sep
    return (name[len(below_main) :] if name.startswith(below_main) else name) + "/"


_main_writer_names: list[str] = []


def _main_writer_name(name: str) -> str:
    """Return the name of the run's first writer, which may be in another process; this one's, if there is none yet."""
    if not _main_writer_names:
        path = os.path.join(current_probe().run_dir, _MAIN_WRITER_FILE)
        claim(path, name)
        with open(path, encoding="utf-8") as file:
            _main_writer_names.append(file.read())
    return _main_writer_names[0]


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
