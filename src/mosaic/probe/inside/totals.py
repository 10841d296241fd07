"""Finds out how many steps a script is going to take: from its arguments, its trainer or its progress bar."""

from __future__ import annotations

import inspect
from typing import Any

from mosaic.probe.inside.core import BarProgress, current_probe
from mosaic.probe.inside.environments import find_group
from mosaic.probe.inside.groups import call_as_evaluation, calling_place, is_worker_process
from mosaic.probe.inside.hooks import call_after, call_before
from mosaic.probe.inside.recorders import report_saved_file

_STEP_ARGUMENTS = ("total_timesteps", "n_timesteps", "num_timesteps", "total_steps", "total_env_steps", "num_env_steps")
_VAGUE_ARGUMENT = "steps"
"""It may be another number of steps than that of the whole training."""
_MAX_CONFIG_DEPTH = 3


def set_total(steps: Any) -> None:
    """Set the total of this process, if none is known. What is not a number of steps is ignored."""
    probe = current_probe()
    if probe.total_timesteps is None and _is_count(steps):
        probe.total_timesteps = int(steps)
        probe.report_now()  # other processes may be those that step


def extend_total(steps: Any) -> None:
    """Note that this process is going to take these steps, and may have taken others before."""
    probe = current_probe()
    if _is_count(steps):
        probe.total_timesteps = max(probe.total_timesteps or 0, probe.steps + int(steps))
        probe.report_now()


def _is_count(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 1 <= value < 1 << 63


# --- arguments


def patch_argparse(module: Any) -> None:
    call_after(module.ArgumentParser, "parse_known_args", "arguments", _read_arguments)


def patch_tyro(module: Any) -> None:
    call_after(module, "cli", "arguments", _read_arguments)


def _read_arguments(result: Any, *_: Any, **__: Any) -> None:
    if is_worker_process():
        return  # the same arguments as in the process that has started it
    arguments = result[0] if isinstance(result, tuple) else result
    _read_settings(vars(arguments) if hasattr(arguments, "__dict__") else {})


def _read_settings(settings: Any, depth: int = 0) -> None:
    """Take the total from the settings of a program, by name."""
    set_total(next((settings[name] for name in _STEP_ARGUMENTS if _is_count(settings.get(name))), None))
    if _is_count(settings.get(_VAGUE_ARGUMENT)):
        current_probe().vague_total = int(settings[_VAGUE_ARGUMENT])
    if depth < _MAX_CONFIG_DEPTH:
        for name in list(settings):
            if name != "hydra" and hasattr(settings.get(name), "items"):
                _read_settings(settings[name], depth + 1)


def patch_click(module: Any) -> None:
    """Patch click, which typer is built on."""
    call_before(module.Command, "invoke", "arguments", lambda command, context: _read_settings(context.params))


def patch_fire(module: Any) -> None:
    call_before(module, "_CallAndUpdateTrace", "arguments", _on_fire)


def _on_fire(component: Any, args: Any, *_: Any, **__: Any) -> None:
    """Read the defaults of the function that fire calls, and the arguments that replace them."""
    try:
        defaults = {name: parameter.default for name, parameter in inspect.signature(component).parameters.items()}
    except (TypeError, ValueError):
        return
    words = [word.lstrip("-").replace("-", "_") for argument in args for word in argument.split("=", 1)]
    given = {name: int(value) for name, value in zip(words, words[1:]) if name in defaults and value.isdigit()}
    _read_settings({**defaults, **given}, _MAX_CONFIG_DEPTH)


def patch_hydra(module: Any) -> None:
    def on_job(*args: Any, **kwargs: Any) -> None:
        _read_settings(module.OmegaConf.to_container(kwargs.get("config") or args[1]))

    call_before(module, "run_job", "arguments", on_job)


def patch_lightning(module: Any) -> None:
    call_before(module.Trainer, "fit", "arguments", _on_lightning)


def _on_lightning(trainer: Any, *args: Any, **kwargs: Any) -> None:
    """Take the share of its steps or epochs that is done; they are updates, not steps of an environment."""

    def fraction() -> Any:
        for done, total in ((trainer.global_step, trainer.max_steps), (trainer.current_epoch, trainer.max_epochs)):
            if _is_count(total):
                return round(min(1.0, done / total), 4)
        return None

    current_probe().read_fraction = fraction


# --- trainers


def patch_baselines(module: Any) -> None:
    call_before(module.BaseAlgorithm, "_setup_learn", "arguments", _on_learn)
    if "checkpoints" in current_probe().parts:
        call_after(
            module.BaseAlgorithm, "save", "checkpoints", lambda _, model, path, *__, **___: report_saved_file(path)
        )


def _on_learn(model: Any, total_timesteps: Any, *args: Any, **kwargs: Any) -> None:
    """Note that training starts, or continues: each call of `learn` takes that many steps more."""
    current_probe().is_evaluating = False
    group = find_group(model.env)
    if group is not None:
        group.train()
    extend_total(total_timesteps)


def patch_skrl(module: Any) -> None:
    call_after(
        module.Trainer, "__init__", "arguments", lambda result, trainer, *_, **__: set_total(_skrl_steps(trainer))
    )
    call_before(module.Trainer, "train", "arguments", lambda trainer: extend_total(_skrl_steps(trainer)))
    call_as_evaluation(module.Trainer, "eval")


def _skrl_steps(trainer: Any) -> Any:
    """Return the steps of one call of `train`."""
    timesteps = getattr(trainer.cfg, "timesteps", None)
    return timesteps * trainer.env.num_envs if _is_count(timesteps) else None


def patch_torchrl_collectors(module: Any) -> None:
    call_before(
        module.BaseCollector,
        "__iter__",
        "arguments",
        lambda collector: extend_total(getattr(collector, "total_frames", None)),
    )


def patch_torchrl_trainer(module: Any) -> None:
    call_before(module.Trainer, "train", "arguments", lambda trainer: set_total(trainer.total_frames))


def patch_tianshou(module: Any) -> None:
    call_before(module.OnlineTrainer, "run", "arguments", _on_tianshou)
    call_as_evaluation(module.Trainer, "_test_step")


def _on_tianshou(trainer: Any, *args: Any, **kwargs: Any) -> None:
    extend_total(trainer.params.max_epochs * trainer.params.epoch_num_steps)


# --- tqdm


class OuterBar:
    """The outermost progress bar that is open, and what was counted when it was created."""

    def __init__(self, bar: Any) -> None:
        self._first_step = current_probe().steps
        self._first = bar.n
        self._last_ratio = (0, 0.0)
        """The count of the bar and the steps per count, when they were last compared."""

    def compare(self, bar: Any) -> None:
        """Set the total if each count of the bar is the same number of steps, else the fraction that is done."""
        probe = current_probe()
        done = bar.n - self._first
        if done <= 0 or not _is_count(bar.total):
            return
        last_done, last_ratio = self._last_ratio
        ratio = (probe.steps - self._first_step) / done
        if done == last_done:
            return
        is_constant = ratio == last_ratio and ratio == int(ratio) and ratio > 0
        total = self._first_step + int(ratio * (bar.total - self._first)) if is_constant else None
        self._last_ratio = done, ratio
        probe.bar = BarProgress(total, round(min(1.0, bar.n / bar.total), 4))


_open_bar: tuple[int, OuterBar] | None = None
_bar_places: set[Any] = set()


def patch_tqdm(module: Any) -> None:
    call_after(module.tqdm, "__init__", "arguments", _on_bar_created)
    call_after(module.tqdm, "refresh", "arguments", _on_bar_refreshed)
    call_before(module.tqdm, "close", "arguments", _on_bar_closed)


def _on_bar_created(result: Any, bar: Any, *args: Any, **kwargs: Any) -> None:
    global _open_bar
    if _open_bar is not None or bar.disable:
        return
    place = calling_place()
    if place in _bar_places:  # one of several in turn, such as epochs: it does not show all that the script does
        current_probe().bar = current_probe().bar and BarProgress(None, None)
    else:
        _open_bar = id(bar), OuterBar(bar)
    _bar_places.add(place)


def _on_bar_refreshed(result: Any, bar: Any, *args: Any, **kwargs: Any) -> None:
    if _open_bar is not None and _open_bar[0] == id(bar):
        _open_bar[1].compare(bar)


def _on_bar_closed(bar: Any) -> None:
    global _open_bar
    _on_bar_refreshed(None, bar)
    if _open_bar is not None and _open_bar[0] == id(bar):
        _open_bar = None
