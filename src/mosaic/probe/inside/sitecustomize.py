"""Runs in every interpreter of a run: installs the probe, then runs the sitecustomize that this one hides."""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing takes milliseconds to import
    from typing import Any


def _install_probe() -> None:
    if "MOSAIC_PROBE" in os.environ and "MOSAIC_RUN_DIR" in os.environ:
        try:
            from mosaic.probe.inside import hooks

            hooks.install()
        except Exception as error:  # the script must run, whatever happens here
            sys.stderr.write(f"mosaic: the probe could not be installed: {error!r}\n")


def _run_next_sitecustomize() -> None:
    # The frozen parts of importlib are loaded already: importing importlib.util would take milliseconds.
    bootstrap: Any
    external: Any
    bootstrap, external = sys.modules["_frozen_importlib"], sys.modules["_frozen_importlib_external"]
    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = external.PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        module = bootstrap.module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_install_probe()
_run_next_sitecustomize()
