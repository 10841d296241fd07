"""Trainers on other machines: addresses, tokens, profiles, proofs and versions, without a connection."""

from __future__ import annotations

import json
import stat
import sys
from pathlib import Path

import pytest

from mosaic.base.certificates import compute_fingerprint, join_address, split_address
from mosaic.base.handshake import compute_proof
from mosaic.base.secret_store import put_secret
from mosaic.base.trainer_profiles import (
    TrainerProfile,
    profiles_path,
    read_profiles,
    remove_profile,
    save_profile,
    set_default,
)
from mosaic.contracts.errors import BadInput, MissingExtra, UnknownName
from mosaic.contracts.folder import TOKEN_VARIABLE, Workspace
from mosaic.trainer.auth import Credentials
from mosaic.trainer.client.remote_trainer import find_remote_trainer, older_side, read_token
from mosaic.trainer.listeners import parse_listen_address
from mosaic.trainer.tls_identity import load_or_create_identity


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(TOKEN_VARIABLE, raising=False)


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> str:
    pytest.importorskip("cryptography")
    workspace = Workspace(tmp_path_factory.mktemp("var"))
    workspace.create_private()
    return load_or_create_identity(workspace).certificate


# --- addresses


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("gpu", ("gpu", 50055)),
        ("gpu.example.org:7", ("gpu.example.org", 7)),
        ("10.0.0.4:65535", ("10.0.0.4", 65535)),
        ("[::1]:50055", ("::1", 50055)),
        ("[fe80::1]", ("fe80::1", 50055)),
        ("fe80::1", ("fe80::1", 50055)),
    ],
)
def test_an_address_is_a_host_with_or_without_a_port(text: str, parts: tuple[str, int]) -> None:
    assert split_address(text, 50055) == parts
    assert split_address(join_address(*parts), 1) == parts


@pytest.mark.parametrize("text", ["", ":1", "gpu:", "gpu:x", "gpu:0", "gpu:70000", "a b:1", "[::1", "u@gpu", "gpu/x:1"])
def test_an_invalid_address_is_refused(text: str) -> None:
    assert split_address(text, 50055) is None
    with pytest.raises(BadInput, match="expected HOST or HOST:PORT"):
        parse_listen_address(text)
    with pytest.raises(BadInput, match="neither a known name nor HOST:PORT"):
        find_remote_trainer(text)


# --- tokens


def test_a_token_comes_from_the_environment_or_from_a_copied_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    copied = tmp_path / "daemon.json"
    copied.write_text(json.dumps({"address": "127.0.0.1:1", "token": "local", "remote_token": "lasting"}))
    plain = tmp_path / "remote_token"
    plain.write_text("lasting\n")
    monkeypatch.setenv(TOKEN_VARIABLE, "environment")
    assert read_token(None) == "environment"
    assert read_token(copied) == "local"
    assert read_token(copied, is_remote=True) == "lasting"
    assert read_token(plain, is_remote=True) == read_token(plain) == "lasting"


def test_without_a_token_the_error_names_its_file(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"daemon\.json"):
        read_token(None)
    with pytest.raises(BadInput, match="cannot be read"):
        read_token(tmp_path / "missing")
    for content in ("[]", "{}", "", "two words", '{"token": ""}'):
        (tmp_path / "other").write_text(content)
        with pytest.raises(BadInput, match="has no token"):
            read_token(tmp_path / "other")


# --- profiles


def test_profiles_are_stored_for_the_user_only_and_without_the_token(certificate: str) -> None:
    save_profile(TrainerProfile("gpu", "10.0.0.4:50055", certificate))
    put_secret("trainer_token.gpu", "abc")
    set_default("gpu")
    assert stat.S_IMODE(profiles_path().stat().st_mode) == 0o600
    assert "abc" not in profiles_path().read_text()
    assert read_profiles().default == "gpu"
    by_name, by_address, by_host = map(find_remote_trainer, ("gpu", "10.0.0.4:50055", "10.0.0.4"))
    assert by_name == by_address == by_host
    assert (by_name.token, by_name.label) == ("abc", "gpu (10.0.0.4:50055)")
    remove_profile("gpu")
    assert read_profiles() == ({}, None)


def test_a_trainer_that_is_not_known_is_refused_with_the_command(certificate: str) -> None:
    save_profile(TrainerProfile("gpu", "10.0.0.4:50055", certificate))
    with pytest.raises(UnknownName, match=r"No trainer 'gpx'\. Did you mean 'gpu'\? Known: gpu, local\."):
        set_default("gpx")
    with pytest.raises(BadInput, match=r"'gpx' is not known\. Did you mean 'gpu'\? Add it: mosaic trainer add"):
        find_remote_trainer("gpx")
    with pytest.raises(BadInput, match="token of the trainer gpu is not stored"):
        find_remote_trainer("gpu")
    for name in ("local", "Big", "a b", "", "-x"):
        with pytest.raises(BadInput, match="cannot be the name of a trainer"):
            save_profile(TrainerProfile(name, "10.0.0.4:50055", certificate))


@pytest.mark.parametrize("content", ["", "[]", '{"trainers": {"gpu": {}}}', '{"trainers": {"gpu": 1}}'])
def test_a_damaged_file_of_trainers_is_named(content: str) -> None:
    profiles_path().parent.mkdir(parents=True)
    profiles_path().write_text(content)
    with pytest.raises(BadInput, match=r"trainers\.json is damaged"):
        read_profiles()


def test_the_end_of_a_tunnel_needs_only_a_token() -> None:
    remote = find_remote_trainer("127.0.0.1:50055", token="abc")
    assert (remote.address, remote.certificate, remote.option) == ("127.0.0.1:50055", "", "127.0.0.1:50055")


# --- the identity of a daemon


def test_the_key_is_made_once_and_readable_by_its_owner_only(tmp_path: Path) -> None:
    pytest.importorskip("cryptography")
    workspace = Workspace(tmp_path)
    workspace.create_private()
    identity = load_or_create_identity(workspace)
    for path in (workspace.tls_identity, workspace.remote_token):
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        path.chmod(0o644)
    assert load_or_create_identity(workspace) == identity
    assert stat.S_IMODE(workspace.tls_identity.stat().st_mode) == 0o600, "opened by somebody, closed again"
    workspace.tls_identity.write_text("nonsense")
    with pytest.raises(BadInput, match=r"tls_identity\.pem is damaged.*Delete it"):
        load_or_create_identity(workspace)


def test_without_cryptography_the_command_to_install_it_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "cryptography", None)
    workspace = Workspace(tmp_path)
    workspace.create_private()
    with pytest.raises(MissingExtra, match=r"pip install 'mosaic-rl\[remote\]'"):
        load_or_create_identity(workspace)


def test_a_proof_that_is_relayed_behind_another_certificate_is_refused(certificate: str) -> None:
    own = compute_fingerprint(certificate)
    credentials = Credentials("local", "lasting", own)
    assert credentials.prove("client", "nonce", own) == compute_proof("lasting", "client", "nonce", own)
    assert credentials.prove("client", "nonce", "SHA256:relay") is None
    assert credentials.prove("client", "nonce", "") == compute_proof("local", "client", "nonce")
    assert compute_proof("lasting", "client", "nonce", own) != compute_proof("lasting", "client", "nonce")
    assert credentials.knows("local")
    assert credentials.knows("lasting")
    assert not Credentials("local").knows("")
    assert Credentials("local").prove("client", "nonce", own) is None, "a daemon without TLS"


# --- versions


@pytest.mark.parametrize(
    ("client", "daemon", "older"),
    [
        ("0.1.0", "0.1.7", None),
        ("0.1.0", "0.2.0", "client"),
        ("0.10.0", "0.9.3", "daemon"),
        ("1.0.0", "0.9.0", "daemon"),
        ("1.0.0", "unknown", "daemon"),
    ],
)
def test_the_older_side_has_to_be_upgraded(client: str, daemon: str, older: str | None) -> None:
    assert older_side(client, daemon) == older
