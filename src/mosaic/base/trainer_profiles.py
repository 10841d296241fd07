"""The trainers on other machines that the user has added: name, address and pinned certificate. No secrets.

They are in one file of the user's configuration folder; their tokens are in the secret store.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from mosaic.base.certificates import compute_fingerprint
from mosaic.base.files import config_folder, lock_private_folder, write_json
from mosaic.contracts.errors import BadInput, unknown_name_error

LOCAL = "local"
"""The name of this machine's own trainer."""
_NAME = re.compile(r"[a-z0-9][a-z0-9_.-]{0,39}")


class TrainerProfile(NamedTuple):
    name: str
    address: str
    """`HOST:PORT`."""
    certificate: str
    """As PEM; a trainer that shows another one is refused."""

    @property
    def fingerprint(self) -> str:
        return compute_fingerprint(self.certificate)

    @property
    def secret_name(self) -> str:
        """Under which its token is stored."""
        return f"trainer_token.{self.name}"


class TrainerProfiles(NamedTuple):
    trainers: dict[str, TrainerProfile]
    default: str | None
    """None: this machine's own."""

    def get(self, name: str) -> TrainerProfile:
        if name not in self.trainers:
            raise unknown_name_error("trainer", name, [*self.trainers, LOCAL])
        return self.trainers[name]

    def find_by_address(self, address: str) -> TrainerProfile | None:
        return next((profile for profile in self.trainers.values() if profile.address == address), None)


def profiles_path() -> Path:
    return config_folder() / "trainers.json"


def check_profile_name(name: str) -> str:
    if name == LOCAL or not _NAME.fullmatch(name):
        raise BadInput(
            f"{name!r} cannot be the name of a trainer; expected up to 40 of a-z, 0-9 and _ . - such as 'gpu', "
            f"and not {LOCAL!r}, which is this machine's own."
        )
    return name


def read_profiles() -> TrainerProfiles:
    path = profiles_path()
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        trainers = {
            check_profile_name(name): TrainerProfile(name, str(fields["address"]), str(fields["certificate"]))
            for name, fields in data["trainers"].items()
        }
        for profile in trainers.values():
            _ = profile.fingerprint
    except FileNotFoundError:
        return TrainerProfiles({}, None)
    except OSError as error:
        raise BadInput(f"The trainers in {path} cannot be read: {error.strerror or error}.") from None
    except (ValueError, KeyError, TypeError, AttributeError, BadInput):
        raise BadInput(f"{path} is damaged. Fix it, or remove it and add the trainers again.") from None
    default = data.get("default")
    return TrainerProfiles(trainers, default if default in trainers else None)


def save_profile(profile: TrainerProfile) -> None:
    """Adds a trainer, or replaces the one of that name."""
    check_profile_name(profile.name)
    _change(lambda profiles: profiles._replace(trainers={**profiles.trainers, profile.name: profile}))


def remove_profile(name: str) -> TrainerProfile:
    """Removes a trainer and returns it; where it was the default, this machine's own is again."""
    removed = read_profiles().get(name)

    def without(profiles: TrainerProfiles) -> TrainerProfiles:
        others = {key: profile for key, profile in profiles.trainers.items() if key != name}
        return TrainerProfiles(others, None if profiles.default == name else profiles.default)

    _change(without)
    return removed


def set_default(name: str | None) -> None:
    """None: this machine's own."""
    if name is not None:
        read_profiles().get(name)
    _change(lambda profiles: profiles._replace(default=name))


def _change(change: Callable[[TrainerProfiles], TrainerProfiles]) -> None:
    path = profiles_path()
    try:
        with lock_private_folder(path.parent):
            trainers, default = change(read_profiles())
            content = {
                name: {"address": profile.address, "certificate": profile.certificate}
                for name, profile in trainers.items()
            }
            write_json(path, {"default": default, "trainers": content}, mode=0o600)
    except OSError as error:
        raise BadInput(f"The trainers cannot be stored in {path}: {error.strerror or error}.") from None
