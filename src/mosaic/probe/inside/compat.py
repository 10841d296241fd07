"""Emulates gymnasium 0.29 on gymnasium 1.x for older scripts, on request only.

Vector environments reset in the same step and report it as 0.29 did (`final_info`, `final_observation`); wrappers have
their old names and signatures; Atari is registered. Without it such scripts run, but learn from wrong transitions and
never see an episode end.
"""

from __future__ import annotations

import os
import re
import sys
import types
from typing import Any

from mosaic.probe.inside.core import current_probe
from mosaic.probe.inside.hooks import call_before, replace_method, report_failure

_ATARI_ID = re.compile(r"^(ALE/.*|.*(NoFrameskip|Deterministic)-v\d+)$")
_VERSIONED_ID = re.compile(r"^(.*)-v(\d+)$")
_OLD_KEY = re.compile(r"""["'](final_info|final_observation)["']""")
_EPISODE_TYPES = {"r": "float32", "l": "int32", "t": "float32"}


def warn_if_needed(envs: Any, autoreset_mode: Any) -> None:
    """Warn of a script without this layer that reads infos which its vector environment never returns."""
    probe = current_probe()
    version = getattr(sys.modules.get(type(envs).__module__.partition(".")[0]), "__version__", "0")
    is_same_step = "compat" in probe.parts or "SAME_STEP" in str(autoreset_mode).upper()
    if probe.has_checked_infos or is_same_step or "gymnasium" not in type(envs).__module__ or version.startswith("0."):
        return
    probe.has_checked_infos = True
    for path in _script_files():
        with open(path, encoding="utf-8", errors="replace") as file:
            match = _OLD_KEY.search(file.read())
        if match is not None:
            probe.warn(
                f"{os.path.basename(path)} reads {match.group(1)}, which gymnasium {version} returns with same-step "
                "autoreset only: it may never see an episode end. If it was written for gymnasium 0.29, start it with "
                "mosaic run --compat.",
                "needs_compat",
            )
            return


def _script_files() -> list[str]:
    """Return the script and the modules next to it that it has imported."""
    script = getattr(sys.modules.get("__main__"), "__file__", None)
    if script is None:
        return []
    folder = os.path.join(os.path.dirname(os.path.abspath(script)), "")
    paths = [os.path.abspath(getattr(module, "__file__", None) or "") for module in list(sys.modules.values())]
    installed = ("site-packages", os.path.dirname(__file__))
    return sorted(
        path
        for path in set(paths)
        if path.startswith(folder)
        and path.endswith(".py")
        and not any(part in path for part in installed)
        and os.path.isfile(path)  # not that of a module without one, such as torch.classes
    )


def patch_gymnasium(gymnasium: Any) -> None:
    if int(gymnasium.__version__.split(".")[0]) < 1:
        return
    if not hasattr(gymnasium.vector, "AutoresetMode"):
        current_probe().warn(
            "The compatibility layer for older scripts needs gymnasium 1.1 or newer, or 0.29 itself.",
            "compat_impossible",
        )
        return
    for name in ("SyncVectorEnv", "AsyncVectorEnv"):
        _patch_vector(getattr(gymnasium.vector, name), gymnasium.vector.AutoresetMode.SAME_STEP)
    _patch_wrappers(gymnasium.wrappers)
    _patch_make(gymnasium)


# --- vector environments


def _patch_vector(kind: Any, same_step: Any) -> None:
    call_before(kind, "__init__", "compat", lambda *args, **kwargs: (args, {"autoreset_mode": same_step, **kwargs}))
    original = kind.step

    def step(self: Any, actions: Any) -> Any:
        observations, rewards, terminations, truncations, infos = original(self, actions)
        if "final_info" in infos:
            infos = to_old_infos(infos, self.num_envs)
        return observations, rewards, terminations, truncations, infos

    replace_method(kind, "step", step)


def to_old_infos(infos: dict[str, Any], count: int) -> dict[str, Any]:
    """Convert infos to the form of 0.29: one dict per ended environment, and its last observation."""
    import numpy

    final_infos = infos["final_info"]
    ended = infos["_final_info"]
    finals = numpy.full(count, None, dtype=object)
    for index in numpy.flatnonzero(ended):
        final = _select_env_info(final_infos, int(index))
        if isinstance(final.get("episode"), dict):
            # 0.29 returned arrays with one element, with the types of its counters.
            final["episode"] = {
                name: numpy.array([value], dtype=_EPISODE_TYPES.get(name)) for name, value in final["episode"].items()
            }
        finals[index] = final
    old_infos = {name: value for name, value in infos.items() if name not in ("final_obs", "_final_obs")}
    old_infos["final_info"] = finals
    old_infos["final_observation"] = infos.get("final_obs")
    old_infos["_final_observation"] = infos.get("_final_obs", ended)
    return old_infos


def _select_env_info(batched: dict[str, Any], index: int) -> dict[str, Any]:
    """Return the info of one environment from the batched infos: `key` has the values, `_key` is the mask."""
    info = {}
    for name, values in batched.items():
        if name.startswith("_") and name[1:] in batched:
            continue
        mask = batched.get("_" + name)
        if mask is not None and not mask[index]:
            continue
        info[name] = _select_env_info(values, index) if isinstance(values, dict) else values[index]
    return info


# --- wrappers


def _patch_wrappers(wrappers: Any) -> None:
    adapters: dict[Any, Any] = {
        # The space of observations did not change by it.
        wrappers.TransformObservation: lambda self, env, func=None, observation_space=None, f=None: (
            (self, env, func or f, observation_space),
            {},
        ),
        wrappers.TransformReward: lambda self, env, func=None, f=None: ((self, env, func or f), {}),
        wrappers.ResizeObservation: lambda self, env, shape: (
            (self, env, (shape, shape) if isinstance(shape, int) else tuple(shape)),
            {},
        ),
        wrappers.RecordEpisodeStatistics: lambda *args, deque_size=None, **kwargs: (
            args,
            kwargs if deque_size is None else {**kwargs, "buffer_length": deque_size},
        ),
    }
    for kind, adapt in adapters.items():
        call_before(kind, "__init__", "compat", adapt)

    class FrameStack(wrappers.FrameStackObservation):  # type: ignore[misc]
        def __init__(self, env: Any, num_stack: int, lz4_compress: bool = False) -> None:
            super().__init__(env, num_stack)

    wrappers.FrameStack = FrameStack
    wrappers.GrayScaleObservation = wrappers.GrayscaleObservation
    wrappers.normalize = types.SimpleNamespace(RunningMeanStd=wrappers.utils.RunningMeanStd)


# --- names


def _patch_make(gymnasium: Any) -> None:
    original = gymnasium.make

    def make(id: Any, *args: Any, **kwargs: Any) -> Any:
        if isinstance(id, str) and _ATARI_ID.match(id) and id not in gymnasium.registry:
            try:
                import ale_py

                gymnasium.register_envs(ale_py)
            except Exception as error:
                report_failure("atari", error)
        try:
            return original(id, *args, **kwargs)
        except gymnasium.error.Error:
            _warn_newer_version(gymnasium, str(id))
            raise

    replace_method(gymnasium, "make", make)
    gymnasium.envs.registration.make = make


def _warn_newer_version(gymnasium: Any, name: str) -> None:
    """Warn when another version of the id exists: `HalfCheetah-v5` instead of `HalfCheetah-v2`."""
    match = _VERSIONED_ID.match(name)
    if match is None:
        return
    matches = [_VERSIONED_ID.match(other) for other in gymnasium.registry]
    versions = [int(other.group(2)) for other in matches if other is not None and other.group(1) == match.group(1)]
    if versions and max(versions) != int(match.group(2)):
        current_probe().warn(
            f"{name} does not exist in gymnasium {gymnasium.__version__}; {match.group(1)}-v{max(versions)} does: "
            "pass that id instead.",
            "environment_renamed",
        )
