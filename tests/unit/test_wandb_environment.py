from __future__ import annotations

from pathlib import Path

import pytest

from mosaic.base.secret_store import put_secret
from mosaic.contracts.payload import WandbArtifacts
from mosaic.features.tracking.sidecar.wandb_environment import (
    load_workspace_dotenv,
    normalize_address,
    resolve_proxies,
    strip_credentials,
    wandb_environment,
)


def test_a_dotenv_file_is_read_with_quotes_comments_and_export(tmp_path: Path) -> None:
    text = "\n".join(
        [
            "\ufeff# proxies",
            "",
            "PLAIN=http://a:1  # the office",
            "export EXPORTED = spaced ",
            """DOUBLE="a # b\\n\\"c\\"" # after""",
            "SINGLE='$x \\n'",
            "EMPTY=",
            "HASH=a#b",
            "WINDOWS=yes\r",
        ]
    )
    (tmp_path / ".env").write_text(text, encoding="utf-8")
    dotenv = load_workspace_dotenv(tmp_path)
    assert dotenv.problems == []
    assert dotenv.values == {
        "PLAIN": "http://a:1",
        "EXPORTED": "spaced",
        "DOUBLE": 'a # b\n"c"',
        "SINGLE": "$x \\n",
        "EMPTY": "",
        "HASH": "a#b",
        "WINDOWS": "yes",
    }


def test_invalid_lines_of_a_dotenv_file_are_reported_by_number_and_never_repeated(tmp_path: Path) -> None:
    path = tmp_path / ".env"
    path.write_text("GOOD=1\n\nhunter2\nKEY='hunter2\n=hunter2")
    dotenv = load_workspace_dotenv(tmp_path)
    assert dotenv.values == {"GOOD": "1"}
    assert dotenv.problems == [f"{path}, line {line}: skipped; expected NAME=value." for line in (3, 4, 5)]


def test_the_dotenv_file_in_a_workspace_precedes_the_one_next_to_it(tmp_path: Path) -> None:
    root = tmp_path / "var"
    root.mkdir()
    assert load_workspace_dotenv(root).values == {}
    (tmp_path / ".env").write_text("A=outside")
    assert load_workspace_dotenv(root).values == {"A": "outside"}
    assert load_workspace_dotenv(tmp_path / "other").values == {}
    (root / ".env").write_text("A=inside")
    assert load_workspace_dotenv(root).values == {"A": "inside"}
    (root / ".env").write_bytes(b"\xff\xfe")
    assert "not valid UTF-8" in load_workspace_dotenv(root).problems[0]


def test_proxies_are_used_only_if_enabled(tmp_path: Path) -> None:
    """R4.5: proxies."""
    (tmp_path / ".env").write_text("WANDB_VPN_HTTP_PROXY=http://env:1\nWANDB_VPN_HTTPS_PROXY=http://env:2")
    assert resolve_proxies(WandbArtifacts(), tmp_path) == (None, None, [])
    disabled = resolve_proxies(WandbArtifacts(http_proxy="http://given:1"), tmp_path)
    assert disabled[:2] == (None, None)
    assert "wandb_use_vpn_proxy is not" in disabled.problems[0]
    assert resolve_proxies(WandbArtifacts(use_vpn_proxy=True), tmp_path) == ("http://env:1", "http://env:2", [])
    given = WandbArtifacts(use_vpn_proxy=True, https_proxy="given:3")
    assert resolve_proxies(given, tmp_path) == ("http://given:3", "http://given:3", [])


def test_the_proxies_that_wandb_itself_reads_are_used_where_no_other_is_named(tmp_path: Path) -> None:
    """R4.5: proxies."""
    inherited = {"WANDB_HTTP_PROXY": "shell:1", "WANDB_HTTPS_PROXY": "shell:2"}
    vpn = WandbArtifacts(use_vpn_proxy=True)
    assert resolve_proxies(vpn, tmp_path, inherited) == ("http://shell:1", "http://shell:2", [])
    assert resolve_proxies(WandbArtifacts(), tmp_path, inherited) == (None, None, [])
    given = WandbArtifacts(use_vpn_proxy=True, http_proxy="given:3")
    env, _ = wandb_environment(given, tmp_path, inherited)
    assert env["WANDB_HTTP_PROXY"] == env["WANDB_HTTPS_PROXY"] == env["https_proxy"] == "http://given:3"
    (tmp_path / ".env").write_text("WANDB_HTTPS_PROXY=file:4")
    assert resolve_proxies(vpn, tmp_path, inherited) == ("http://file:4", "http://file:4", [])


def test_a_missing_or_invalid_proxy_is_reported_without_its_password(tmp_path: Path) -> None:
    missing = resolve_proxies(WandbArtifacts(use_vpn_proxy=True), tmp_path)
    assert "there is no proxy" in missing.problems[0]
    put_secret("wandb_vpn_https_proxy", "http://mine:1")
    assert resolve_proxies(WandbArtifacts(use_vpn_proxy=True), tmp_path) == ("http://mine:1", "http://mine:1", [])
    wrong = resolve_proxies(WandbArtifacts(use_vpn_proxy=True, http_proxy="ftp://me:hunter2@x"), tmp_path)
    assert (wrong.http, wrong.https) == (None, None)
    assert wrong.problems == [
        "The http proxy for W&B is not a valid address; expected one such as http://10.0.0.1:3128."
    ]


def test_the_environment_for_wandb_has_key_and_proxies_and_excludes_loopback(tmp_path: Path) -> None:
    put_secret("wandb_api_key", "mine")
    put_secret("wandb_https_proxy", "http://me:pw@proxy:8")
    wandb = WandbArtifacts(use_vpn_proxy=True, https_proxy="secret:wandb_https_proxy")
    variables, problems = wandb_environment(wandb, tmp_path, {"no_proxy": "intra.net, localhost"})
    assert problems == []
    assert variables["WANDB_API_KEY"] == "mine"
    assert variables["HTTPS_PROXY"] == variables["https_proxy"] == "http://me:pw@proxy:8"
    assert variables["NO_PROXY"] == variables["no_proxy"] == "intra.net,localhost,127.0.0.1,::1"
    assert wandb_environment(WandbArtifacts(), tmp_path, {})[0] == {"WANDB_API_KEY": "mine"}


def test_the_key_of_a_config_precedes_the_users(tmp_path: Path) -> None:
    put_secret("wandb_api_key", "mine")
    put_secret("wandb_api_key-2", "theirs")
    wandb = WandbArtifacts(api_key="secret:wandb_api_key-2")
    assert wandb_environment(wandb, tmp_path, {})[0]["WANDB_API_KEY"] == "theirs"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("http://a:1", "http://a:1"),
        ("a:1", "http://a:1"),
        ("socks5://a", "socks5://a"),
        ("http://", None),
        ("a:port", None),
        ("a b", None),
        ("http://[", None),
    ],
)
def test_addresses_of_proxies_are_validated(text: str, expected: str | None) -> None:
    assert normalize_address(text) == expected


def test_a_proxy_is_shown_without_its_password() -> None:
    assert strip_credentials("http://me:hunter2@proxy:3128") == "proxy:3128"
    assert strip_credentials("http://proxy:3128") == "proxy:3128"
