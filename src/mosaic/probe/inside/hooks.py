"""Patches known modules right after their import. Nothing else is imported at startup."""

from __future__ import annotations

import os
import sys
import time

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes milliseconds to import
    from typing import Any

INSTRUCTIONS_VARIABLE = "MOSAIC_PROBE"
"""Instructions to the probe, such as `frames=1 total_timesteps=500`."""
RUN_DIR_VARIABLE = "MOSAIC_RUN_DIR"
SCRIPT_DIR_VARIABLE = "MOSAIC_SCRIPT_DIR"
"""The folder in which the script was started."""
FIRST_PROCESS_VARIABLE = "MOSAIC_PROBE_FIRST"
"""The pid of the process that writes journal.jsonl; all others have their own journal."""

IMPORT_MARK = ".importing"
"""A file of the run that is written while the program imports modules, for the keeper."""
IMPORT_MARK_S = 2.0
_CREATE = os.O_WRONLY | os.O_CREAT | os.O_TRUNC

# By module, or package and `.*`: the part of the probe it belongs to, and `our module:function`, called with it.
PATCHES = {
    "gymnasium.core": ("", "environments:patch_core"),
    "gym.core": ("", "environments:patch_core"),
    "gymnasium.vector.vector_env": ("", "vectors:patch_vector_base"),
    "gym.vector.vector_env": ("", "vectors:patch_vector_base"),
    "pettingzoo.utils.env": ("", "agents:patch_pettingzoo"),
    "cloudpickle.cloudpickle": ("", "hooks:patch_cloudpickle"),
    "gymnasium.envs.registration": ("", "environments:patch_registration"),
    "gymnasium.vector.sync_vector_env": ("", "environments:patch_vector"),
    "gymnasium.vector.async_vector_env": ("", "environments:patch_vector"),
    "gym.envs.registration": ("", "environments:patch_registration"),
    "gym.vector.sync_vector_env": ("", "environments:patch_vector"),
    "gym.vector.async_vector_env": ("", "environments:patch_vector"),
    "gymnasium": ("compat", "compat:patch_gymnasium"),
    "envpool.registration": ("", "vectors:patch_envpool"),
    "stable_baselines3.common.vec_env.dummy_vec_env": ("", "environments:patch_vector"),
    "stable_baselines3.common.vec_env.subproc_vec_env": ("", "environments:patch_vector"),
    "stable_baselines3.common.base_class": ("", "totals:patch_baselines"),
    "skrl.trainers.torch.base": ("", "totals:patch_skrl"),
    "skrl.trainers.jax.base": ("", "totals:patch_skrl"),
    "torchrl.collectors._base": ("", "totals:patch_torchrl_collectors"),
    "torchrl.trainers.trainers": ("", "totals:patch_torchrl_trainer"),
    "tianshou.env.venvs": ("", "environments:patch_vector"),
    "tianshou.trainer": ("", "totals:patch_tianshou"),
    "tqdm.std": ("metrics", "totals:patch_tqdm"),
    "stable_baselines3.common.evaluation": ("", "recorders:patch_evaluation"),
    "stable_baselines3.common.callbacks": ("", "recorders:patch_callbacks"),
    "tensorboard.summary.writer.event_file_writer": ("metrics", "recorders:patch_event_writer"),
    "tensorboardX.event_file_writer": ("metrics", "recorders:patch_event_writer"),
    "gymnasium.wrappers.rendering": ("", "recorders:patch_video_recorder"),
    "gymnasium.wrappers.record_video": ("", "recorders:patch_video_recorder"),
    "gym.wrappers.record_video": ("", "recorders:patch_video_recorder"),
    "stable_baselines3.common.vec_env.vec_video_recorder": ("", "recorders:patch_video_recorder"),
    "wandb.sdk.wandb_run": ("wandb", "recorders:patch_wandb_run"),
    "wandb.integration.gym": ("wandb", "recorders:patch_wandb_monitor"),
    "torch.serialization": ("checkpoints", "recorders:patch_torch"),
    "subprocess": ("", "hooks:patch_subprocess"),
    "cleanrl_utils.evals.*": ("own_evaluation", "recorders:patch_cleanrl_evaluation"),
    "argparse": ("metrics", "totals:patch_argparse"),
    "click.core": ("metrics", "totals:patch_click"),
    "typer._click.core": ("metrics", "totals:patch_click"),
    "fire.core": ("metrics", "totals:patch_fire"),
    "hydra.core.utils": ("metrics", "totals:patch_hydra"),
    "lightning.pytorch.trainer.trainer": ("", "totals:patch_lightning"),
    "pytorch_lightning.trainer.trainer": ("", "totals:patch_lightning"),
    "tyro._cli": ("metrics", "totals:patch_tyro"),
    "tyro": ("", "recorders:silence_tyro"),
}
_CONSOLE_WORDS = ("global_step", "global step", "episodic", "fps", "time_elapsed", "wall_time")
"""One of them is in every line that the console parser understands."""


class Instructions:
    """The parsed content of MOSAIC_PROBE."""

    def __init__(self, text: str) -> None:
        options = dict(word.split("=", 1) for word in text.split() if "=" in word)
        self.parts = {name for name, value in options.items() if value == "1" and name != "total_timesteps"}
        total = options.get("total_timesteps", "")
        self.total_timesteps = int(total) if total.isdigit() and int(total) else None


def install() -> None:
    instructions = Instructions(os.environ[INSTRUCTIONS_VARIABLE])
    if not instructions.parts:
        return
    _write_handshake(os.environ[RUN_DIR_VARIABLE])
    sys.meta_path.insert(0, PatchFinder(instructions.parts))
    _keep_on_path_of_children()
    sys.excepthook = _print_without_own_frames
    if "console" in instructions.parts:
        _patch_stdout()


def _write_handshake(run_dir: str) -> None:
    """Write the handshake, in the first interpreter of the run only. Formatted by hand: importing json takes longer."""
    try:
        file = os.open(
            os.path.join(run_dir, "journal.jsonl"), os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND, 0o600
        )
    except OSError:
        return
    try:
        version = "Python " + ".".join(map(str, sys.version_info[:3]))
        fields = f'"seq":1,"at":{time.time():.6f},"kind":"hello","worker":"script","version":"{version}"'
        hello = f'{{{fields},"pid":{os.getpid()},"capabilities":[],"attempt":1}}\n'
        os.write(file, (hello + _packages_line()).encode())
        os.environ[FIRST_PROCESS_VARIABLE] = str(os.getpid())
    finally:
        os.close(file)


def _packages_line() -> str:
    """Format the event `packages`; the names and versions that it holds need no escaping."""
    from mosaic.base.packages import installed_packages, python_version

    packages = ",".join(f'"{name}":"{version}"' for name, version in installed_packages().items())
    fields = f'"seq":2,"at":{time.time():.6f},"kind":"packages","python":"{python_version()}"'
    return f'{{{fields},"packages":{{{packages}}}}}\n'


_PROBE_FOLDER = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def _with_probe(python_path: str) -> str:
    if not python_path or _PROBE_FOLDER in python_path.split(os.pathsep):
        return python_path or _PROBE_FOLDER
    return _PROBE_FOLDER + os.pathsep + python_path


def _with_probe_on_path(env: Any) -> Any:
    """Return the environment that a script passes to a program, with the probe on its path; unchanged without ours."""
    try:
        variables = {os.fsdecode(name): value for name, value in env.items()}
    except (AttributeError, TypeError):
        return env
    if INSTRUCTIONS_VARIABLE not in variables:
        return env
    return {**variables, "PYTHONPATH": _with_probe(os.fsdecode(variables.get("PYTHONPATH", "")))}


def _keep_on_path_of_children() -> None:
    """Keep the probe on the path of child processes if the script sets PYTHONPATH, which it still reads as it set it.

    Without an environment of their own, children get that of the process, which `os.environ` sets by `putenv`.
    """
    for name in ("execv", "execve", "posix_spawn", "posix_spawnp"):  # which the functions of `os` for this call
        if hasattr(os, name):
            _patch_program_start(name)
    original = os.putenv

    def putenv(name: Any, value: Any) -> None:
        original(name, _with_probe(os.fsdecode(value)) if os.fsdecode(name) == "PYTHONPATH" else value)

    os.putenv = putenv
    if hasattr(os.environ, "putenv"):  # before Python 3.9
        os.environ.putenv = putenv


def _patch_program_start(name: str) -> None:
    original = getattr(os, name)

    def start(path: Any, argv: Any, *env: Any, **options: Any) -> Any:
        core: Any = sys.modules.get(__name__.rpartition(".")[0] + ".core")
        if core is not None and "exec" in name:  # what this process has recorded would be lost
            core.before_exit()
        options.update({"env": _with_probe_on_path(options["env"])} if "env" in options else {})
        return original(path, argv, *map(_with_probe_on_path, env), **options)

    start.__name__ = start.__qualname__ = name
    start.__doc__, start.__module__ = original.__doc__, original.__module__
    replace_method(os, name, start)
    if original in os.supports_fd:
        os.supports_fd.add(start)


def patch_subprocess(module: Any) -> None:
    call_before(module.Popen, "__init__", "processes", _on_popen)


def _on_popen(process: Any, *args: Any, **kwargs: Any) -> Any:
    kwargs.update({"env": _with_probe_on_path(kwargs["env"])} if "env" in kwargs else {})
    return (process, *args), kwargs


def _print_without_own_frames(kind: Any, error: Any, trace: Any) -> None:
    """Print an uncaught exception as it is printed without the probe."""
    own, cause = os.path.dirname(__file__), error
    for _ in range(20):  # causes, of which there may be a ring
        if cause is None:
            break
        entries, entry = [], cause.__traceback__
        while entry is not None:
            entries += [] if entry.tb_frame.f_code.co_filename.startswith(own) else [entry]
            entry = entry.tb_next
        for entry, following in zip(entries, [*entries[1:], None]):
            entry.tb_next = following
        cause.__traceback__ = entries[0] if entries else None
        cause = cause.__cause__ or cause.__context__
    sys.__excepthook__(kind, error, error.__traceback__)


def _patch_stdout() -> None:
    """Parse what is printed. An attribute of the stream is patched, so that sys.stdout stays the same object."""
    stream: Any = sys.stdout
    if stream is None:
        return
    write = stream.write

    def listening_write(text: str) -> Any:
        try:
            # Before it is written: the keeper parses the log until it sees that the probe does.
            if text[:2] in ("--", "| ") or any(word in text for word in _CONSOLE_WORDS):
                from mosaic.probe.inside.recorders import read_output

                read_output(text)
        except Exception as error:
            report_failure("console", error)
        return write(text)

    if hasattr(stream, "__dict__"):
        stream.write = listening_write


_failed_parts: set[str] = set()


def report_failure(part: str, error: Exception) -> None:
    """Log the first failure of a part as a warning; nothing is raised into the script."""
    if part in _failed_parts:
        return
    _failed_parts.add(part)
    try:
        from mosaic.probe.inside.core import current_probe

        current_probe().warn(f"The probe's part {part} failed: {type(error).__name__}: {error}", "probe_failed")
    except Exception:
        pass


def call_before(owner: Any, name: str, part: str, prepare: Any) -> None:
    """Patch `owner.name` to call `prepare` first, with the same arguments; it may return others as (args, kwargs)."""
    original = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        try:
            args, kwargs = prepare(*args, **kwargs) or (args, kwargs)
        except Exception as error:
            report_failure(part, error)
        return original(*args, **kwargs)

    replace_method(owner, name, patched)


def call_after(owner: Any, name: str, part: str, record: Any) -> None:
    """Patch `owner.name` to call `record` afterwards, with its result and its arguments."""
    original = getattr(owner, name)

    def patched(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        try:
            record(result, *args, **kwargs)
        except Exception as error:
            report_failure(part, error)
        return result

    replace_method(owner, name, patched)


def replace_method(owner: Any, name: str, patched: Any) -> None:
    """Set a patch of `owner.name` that looks like what it replaces, and remembers it."""
    from functools import update_wrapper

    original = getattr(owner, name)
    update_wrapper(patched, original)
    patched._mosaic_original = original
    setattr(owner, name, patched)


def patch_cloudpickle(module: Any) -> None:
    """Leave our patches out of pickled classes, which other processes may load without the probe."""
    call_after(module, "_extract_class_dict", "cloudpickle", _restore_originals)


def _restore_originals(attributes: Any, *args: Any) -> None:
    for name, value in list(attributes.items()):
        while hasattr(value, "_mosaic_original"):
            value = attributes[name] = value._mosaic_original


class PatchFinder:
    """The first finder on sys.meta_path, which delegates to the others."""

    def __init__(self, parts: set[str]) -> None:
        self._parts = parts
        self._next_mark_at = time.monotonic() + IMPORT_MARK_S

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> Any:
        if time.monotonic() >= self._next_mark_at:
            self._next_mark_at = time.monotonic() + IMPORT_MARK_S
            try:
                os.close(os.open(os.path.join(os.environ[RUN_DIR_VARIABLE], IMPORT_MARK), _CREATE, 0o600))
            except OSError:
                return None  # the run folder is gone
        part, patch = PATCHES.get(name) or PATCHES.get(name.rpartition(".")[0] + ".*") or ("", "")
        if not patch:
            return None
        if part and part not in self._parts:
            return None
        for finder in sys.meta_path:
            find = None if finder is self else getattr(finder, "find_spec", None)
            spec = find(name, path, target) if find is not None else None
            if spec is not None:
                if spec.loader is not None and hasattr(spec.loader, "exec_module"):
                    spec.loader = PatchLoader(spec.loader, patch)
                return spec
        return None


class PatchLoader:
    """Runs the module's own loader and then our patch."""

    def __init__(self, loader: Any, patch: str) -> None:
        self._loader = loader
        self._patch = patch

    def __getattr__(self, name: str) -> Any:
        if name == "_loader":  # of a copy that is not initialized yet
            raise AttributeError(name)
        return getattr(self._loader, name)

    def create_module(self, spec: Any) -> Any:
        return self._loader.create_module(spec)

    def exec_module(self, module: Any) -> None:
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        try:
            name, _, function = self._patch.partition(":")
            package = __name__.rpartition(".")[0]
            getattr(__import__(package + "." + name, fromlist=[function]), function)(module)
        except Exception as error:
            report_failure(module.__name__, error)
