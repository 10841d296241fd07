"""Records the scalars of TensorBoard's event files, and writes each file into a folder of its own in the run.

SummaryWriters of torch, skrl and others write by tensorboard's EventFileWriter; tensorboardX has one of its own.
"""

from __future__ import annotations

import os
import struct
import weakref
from typing import Any

from mosaic.contracts.metric_tags import LENGTH_TAG, RETURN_TAG
from mosaic.probe.inside.core import WRITER, claim, current_probe
from mosaic.probe.inside.hooks import SCRIPT_DIR_VARIABLE, call_after, call_before

TENSORBOARD_VARIABLE = "CLEANRL_TENSORBOARD_DIR"
_MAIN_WRITER_FILE = ".main-writer"
_TENSOR_FORMATS = {1: "<f", 2: "<d"}
"""By TensorBoard's number of a data type: the format of its bytes."""

_names: weakref.WeakKeyDictionary[Any, str] = weakref.WeakKeyDictionary()
"""By writer, the name of its folder."""


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
