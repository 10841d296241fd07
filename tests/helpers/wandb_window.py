"""The W&B tab with its page, in a separate process: prints the text of the page, through a proxy and without.

    python wandb_window.py WORKSPACE SETTINGS PAGE_URL PROXY LOOPBACK_URL

Exits with 77 where WebEngine cannot be loaded.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[2]))

from PySide6.QtCore import QUrl
from PySide6.QtNetwork import QNetworkProxy
from PySide6.QtWidgets import QApplication
from tests.helpers.gui_frames import RUN, StillTrainer, still_workbench, view_of

import mosaic.window.app  # noqa: F401 - sets what WebEngine wants before there is an application
from mosaic.contracts.folder import Workspace
from mosaic.contracts.states import Stage
from mosaic.contracts.views import WandbStatus
from mosaic.features.tracking.window import WandbTab
from mosaic.window import web

PATIENCE_S = 60.0


class Trainer(StillTrainer):
    url = ""

    def read_wandb(self, run: str = "") -> Iterator[WandbStatus]:
        yield WandbStatus(run_id=RUN, stage=Stage.FINISHED, state="synced", url=self.url)


def main(workspace: str, settings: str, page_url: str, proxy: str, loopback_url: str) -> int:
    try:
        web.preload()
    except ImportError as error:
        print(error, file=sys.stderr)
        return 77
    app = QApplication(["wandb-window"])
    trainer = Trainer(view_of(workspace, stage="finished", has_wandb=True))
    trainer.url = page_url
    trainer.payload = {"artifacts": {"wandb": {"use_vpn_proxy": True, "http_proxy": proxy}}}
    report: dict[str, Any] = {}
    deadline = time.monotonic() + PATIENCE_S

    def pump(is_done: Callable[[], Any]) -> None:
        while not is_done() and time.monotonic() < deadline:
            app.processEvents()
            time.sleep(0.01)

    def read(tab: WandbTab, name: str, word: str) -> None:
        """Waits until the page shows the word."""
        asked_at = 0.0

        def look() -> bool:
            nonlocal asked_at
            if tab.web is not None and time.monotonic() - asked_at > 0.2:
                asked_at = time.monotonic()
                tab.web.page().toPlainText(lambda text: report.__setitem__(name, text))
            return word in report.get(name, "")

        pump(look)

    with still_workbench(Workspace(workspace), Path(settings), trainer) as workbench:
        tab = WandbTab(workbench)
        tab.resize(800, 600)
        tab.show_run(RUN)
        tab.show()
        read(tab, "page", "proxy")
        report["proxy"] = QNetworkProxy.applicationProxy().hostName()
        if tab.web is not None:
            tab.web.load(QUrl(loopback_url))
            read(tab, "loopback", "direct")
        tab.hide()
        report["proxy_when_hidden"] = QNetworkProxy.applicationProxy().hostName()
        tab._on_closing()
        tab.deleteLater()
        app.processEvents()
    print(json.dumps(report))
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
