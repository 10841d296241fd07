"""The W&B settings: the key is never shown, proxies are shown without passwords, the test fills one line per check."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from PySide6.QtWidgets import QApplication, QLabel, QLineEdit, QPushButton, QWidget
from tests.helpers.gui import click, find, pump, question_button, settle, type_text
from tests.helpers.gui_frames import StillTrainer, still_workbench, view_of

from mosaic.base import secret_store as secrets
from mosaic.contracts.folder import Workspace
from mosaic.features.tracking.window import WandbSettingsForm
from mosaic.window.fields import SecretField
from mosaic.window.workbench import Workbench

KEY = "canary0123456789abcdef0123456789abcdef01"
PROBE = """
import json, sys
request = json.load(sys.stdin)
for name in ("package", "server", "proxy"):
    print(json.dumps({"name": name, "state": "ok", "found": str(request["wandb"]), "todo": ""}), flush=True)
print(json.dumps({"name": "DNS", "state": "fail", "found": "it is unknown", "todo": "Check the network."}), flush=True)
"""


@pytest.fixture
def workbench(qapp: QApplication, workspace: Workspace, settings_path: Path, tmp_path: Path) -> Iterator[Workbench]:
    with still_workbench(workspace, settings_path, StillTrainer(view_of(tmp_path))) as made:
        yield made


@pytest.fixture
def page(workbench: Workbench, monkeypatch: pytest.MonkeyPatch) -> Iterator[WandbSettingsForm]:
    monkeypatch.setattr(secrets.KeyringClient, "request", lambda *_: None)
    made = WandbSettingsForm(workbench, lambda: [sys.executable, "-c", PROBE])
    made.show()
    pump(lambda: text(made, "key_state"), "the stored credentials")
    yield made
    made.close()
    made.check_process.close()
    made.deleteLater()
    settle()


def refresh(page: QWidget) -> None:
    for field in page.findChildren(SecretField):
        field.refresh()


def text(page: QWidget, name: str) -> str:
    return find(page, f"settings.wandb.{name}", QLabel).text()


def visible_text(page: QWidget) -> str:
    """Returns all text shown on the page."""
    texts = [label.text() + label.toolTip() for label in page.findChildren(QLabel)]
    for field in page.findChildren(QLineEdit):
        texts += [field.displayText(), field.placeholderText(), field.toolTip()]
    return " ".join(texts)


def test_a_key_is_masked_stored_and_removed(page: WandbSettingsForm) -> None:
    assert text(page, "key_state") == "No key of yours is stored."
    assert not find(page, "settings.wandb.remove_key", QPushButton).isEnabled()
    field = find(page, "settings.wandb.key", QLineEdit)
    type_text(field, KEY)
    assert KEY not in visible_text(page)
    click(find(page, "settings.wandb.store_key"))
    assert field.text() == ""
    pump(lambda: "stored in" in text(page, "key_state"), "the key to be stored")
    assert "secrets.json, which only you can read" in text(page, "key_state")
    assert secrets.find_secret("wandb_api_key") == KEY
    assert KEY not in visible_text(page)
    click(find(page, "settings.wandb.remove_key"))
    assert secrets.find_secret("wandb_api_key") == KEY, "it is asked first"
    click(question_button("secret.question.yes"))
    pump(lambda: text(page, "key_state") == "No key of yours is stored.", "the key to be removed")
    assert secrets.find_secret("wandb_api_key") is None


def test_keys_of_configs_are_shown_masked_and_removed(page: WandbSettingsForm) -> None:
    """R4.6: a run that names one is tracked, though no key of the user's is stored."""
    secrets.add_secret("wandb_api_key", KEY)
    refresh(page)
    pump(lambda: "wandb_api_key-2" in text(page, "key_state"), "the key to be listed")
    assert text(page, "key_state").endswith(f"wandb_api_key-2 (…{KEY[-4:]})")
    assert KEY not in visible_text(page)
    click(find(page, "settings.wandb.remove_key"))
    click(question_button("secret.question.yes"))
    pump(lambda: "configs" not in text(page, "key_state"), "the key to be removed")
    assert secrets.additional_secret_names("wandb_api_key") == []


def test_an_invalid_key_is_reported_and_not_stored(page: WandbSettingsForm, workbench: Workbench) -> None:
    messages: list[str] = []
    workbench.message_posted.connect(lambda text, _: messages.append(text))
    type_text(find(page, "settings.wandb.key"), "two words")
    click(find(page, "settings.wandb.store_key"))
    pump(lambda: messages, "the refusal")
    assert "one word without spaces" in messages[0]
    assert "two words" not in messages[0]


def test_a_key_in_the_environment_is_shown_as_such(page: WandbSettingsForm, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    refresh(page)
    pump(lambda: "environment" in text(page, "key_state"), "the key to be shown")
    assert not find(page, "settings.wandb.remove_key", QPushButton).isEnabled()


def test_proxies_are_shown_without_their_passwords(page: WandbSettingsForm, workspace: Workspace) -> None:
    workspace.root.mkdir(parents=True)
    (workspace.root / ".env").write_text("WANDB_VPN_HTTP_PROXY=http://me:hunter2@one:1\n")
    http, https = (find(page, f"settings.wandb.{kind}_proxy", QLineEdit) for kind in ("http", "https"))
    refresh(page)
    pump(lambda: ".env" in http.placeholderText(), "the proxy of the workspace")
    type_text(https, "http://me:hunter3@two:2")
    click(find(page, "settings.wandb.store_https_proxy"))
    pump(lambda: "stored" in https.placeholderText(), "the proxy to be stored")
    assert (http.placeholderText(), https.placeholderText()) == ("one:1 (from .env)", "two:2 (stored)")
    assert "hunter" not in visible_text(page)
    assert secrets.find_secret("wandb_vpn_https_proxy") == "http://me:hunter3@two:2"
    click(find(page, "settings.wandb.remove_https_proxy"))
    click(question_button("secret.question.yes"))
    pump(lambda: "such as" in https.placeholderText(), "the proxy to be removed")


def test_an_invalid_proxy_stays_in_its_field(page: WandbSettingsForm) -> None:
    field = find(page, "settings.wandb.http_proxy", QLineEdit)
    type_text(field, "ftp://x")
    click(find(page, "settings.wandb.store_http_proxy"))
    assert field.text() == "ftp://x"


def test_the_connection_test_shows_a_line_per_check(page: WandbSettingsForm) -> None:
    click(find(page, "settings.wandb.probe_vpn"))
    assert not find(page, "settings.wandb.probe", QPushButton).isEnabled()
    pump(lambda: find(page, "settings.wandb.probe", QPushButton).isEnabled(), "the test to end")
    assert text(page, "finding.package") == "{'use_vpn_proxy': True}"
    assert text(page, "finding.DNS") == "it is unknown. Check the network."
    assert text(page, "finding.key") == "not checked"
    click(find(page, "settings.wandb.probe"))
    pump(lambda: text(page, "finding.package") == "{}", "the second test")
    pump(lambda: not page.check_process.is_running, "the process to end")
