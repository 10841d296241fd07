"""The question before something of an imported run is executed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from PySide6.QtCore import QObject

from mosaic.client import TrainerClient
from mosaic.contracts.errors import NotTrusted
from mosaic.gui.views import widgets as ui
from mosaic.gui.workbench import Workbench

TrustedCall = Callable[[TrainerClient, bool], Any]
"""A call of the trainer, and whether what an imported config would execute is trusted."""


def ask_with_trust(
    workbench: Workbench,
    call: TrustedCall,
    then: Callable[[Any], None],
    owner: QObject,
    failed: Callable[[Exception], None] | None = None,
    on_question: Callable[[], None] = lambda: None,
    is_repeatable: bool = False,
) -> None:
    """Make a call; where it is refused because it would execute code of an imported run, ask, naming that code."""
    failed = failed or workbench.show_error
    ask = partial(workbench.bridge.ask, owner=owner, is_repeatable=is_repeatable)

    def refuse(error: Exception) -> None:
        if not isinstance(error, NotTrusted):
            failed(error)
            return
        on_question()
        ui.confirm(
            workbench.window,
            "trust.question",
            "Imported run",
            "Execute code of an imported run?",
            error.risk,
            "Trust it and run",
            lambda: ask(lambda trainer: call(trainer, True), then, failed),
            "Do not run",
        )

    ask(lambda trainer: call(trainer, False), then, refuse)
