"""Run by every interpreter that starts below a run: sets up the probe, then runs the sitecustomize we stand before."""

import os
import sys


def _begin():
    if "MOSAIC_PROBE" in os.environ and "MOSAIC_RUN_DIR" in os.environ:
        try:
            from _mosaic_probe import hooks

            hooks.install()
        except Exception as error:  # the script must run, whatever is wrong with us
            sys.stderr.write("mosaic: the probe could not be set up: %r\n" % (error,))


def _next():
    from importlib.machinery import PathFinder

    here = os.path.dirname(os.path.abspath(__file__))
    path = [entry for entry in sys.path if os.path.abspath(entry or ".") != here]
    spec = PathFinder.find_spec("sitecustomize", path)
    if spec is not None and spec.loader is not None:
        from importlib.util import module_from_spec

        module = module_from_spec(spec)
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)


_begin()
_next()
