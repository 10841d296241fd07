"""Errors that the user can act on. Shown as they are, without a traceback.

MosaicError                 LOG700, exit 1
├── BadInput                LOG701, exit 2
│   ├── ConfigRefused       LOG705: a submission that does not fit its contract
│   ├── UnknownName         LOG706: a name that is not known, with the nearest known one
│   ├── MissingExtra        LOG707: an optional package that this request needs
│   ├── NotAllowed          LOG708: a good request at the wrong time
│   │   └── NotTrusted      LOG712: an imported config would execute code, and is not trusted
│   ├── ReadOnlyWorkspace   LOG717: the workspace was not created by this user, and is not trusted
│   ├── CheckpointDamaged   LOG709: a checkpoint whose bytes do not match its manifest
│   ├── RecordingDamaged    LOG715: a recording of episodes that cannot be read
│   └── WrongWorker         LOG714: a saved policy of another worker
├── RunEnded                LOG702, exit 3: the run that was waited for failed
├── DiskFull                LOG711, exit 1: the workspace's disk is full
├── StorageFailed           LOG713, exit 1: a file of the workspace cannot be read or written
├── NoDaemon                LOG703, exit 4
│   └── IdentityFailed      LOG710: something else answers on the daemon's port
│       └── TokenRefused    LOG719, exit 2: the daemon does not accept the token that was given
├── VersionMismatch         LOG716, exit 1: client and daemon are too different to talk to each other
├── BadReply                LOG718, exit 1: a trainer answered what cannot be used
└── AlreadyRunning          LOG704, exit 75: a second daemon for one workspace
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import NamedTuple

from mosaic.contracts.printable import make_printable

MAX_SUGGESTED = 3
MAX_LISTED = 24
MAX_SHOWN = 100
"""Characters of a name that is not known."""


class FieldProblem(NamedTuple):
    """What is wrong with one key of a config."""

    path: str
    """Such as `metadata.worker.config.seed`; empty where the problem concerns several keys together."""
    problem: str

    @property
    def setting(self) -> str:
        """The name of its flag, its field in forms and its keyword in Python, as `learning_rate`."""
        from mosaic.contracts.options import OPTIONS_BY_PATH  # which raises errors of this module

        path = re.sub(r"(\.\d+)+$", "", self.path)  # of an item of a list, the list
        return OPTIONS_BY_PATH[path].name if path in OPTIONS_BY_PATH else path.rpartition(".")[2]


class MosaicError(Exception):
    """The user can act on this. The message states what happened, what was expected and what to do."""

    exit_code = 1
    log_code = "LOG700"
    """Repeated in the log, where it can be searched; each class has its own."""

    def __init__(self, message: str = "", problems: Iterable[FieldProblem] = ()) -> None:
        super().__init__(make_printable(message))
        self.problems = tuple(problems)
        """The same, by field: for forms, which mark the field instead of showing the sentence."""


class BadInput(MosaicError):
    exit_code = 2
    log_code = "LOG701"


class ConfigRefused(BadInput):
    log_code = "LOG705"


class UnknownName(BadInput):
    log_code = "LOG706"


class MissingExtra(BadInput):
    log_code = "LOG707"


class NotAllowed(BadInput):
    log_code = "LOG708"


class NotTrusted(NotAllowed):
    log_code = "LOG712"

    @classmethod
    def for_risk(cls, risk: str) -> NotTrusted:
        """`risk` is a sentence: what would be executed."""
        return cls(f"{risk} If you trust it, add --trust.", [FieldProblem("", risk)])

    @property
    def risk(self) -> str:
        return self.problems[0].problem if self.problems else str(self)


class ReadOnlyWorkspace(BadInput):
    log_code = "LOG717"


class CheckpointDamaged(BadInput):
    log_code = "LOG709"


class RecordingDamaged(BadInput):
    log_code = "LOG715"


class WrongWorker(BadInput):
    log_code = "LOG714"


class RunEnded(MosaicError):
    exit_code = 3
    log_code = "LOG702"


class DiskFull(MosaicError):
    log_code = "LOG711"


class StorageFailed(MosaicError):
    log_code = "LOG713"


class NoDaemon(MosaicError):
    exit_code = 4
    log_code = "LOG703"


class IdentityFailed(NoDaemon):
    log_code = "LOG710"


class TokenRefused(IdentityFailed):
    exit_code = 2
    log_code = "LOG719"


class VersionMismatch(MosaicError):
    log_code = "LOG716"


class BadReply(MosaicError):
    log_code = "LOG718"


class AlreadyRunning(MosaicError):
    exit_code = 75
    log_code = "LOG704"


def refuse_key(path: str, problem: str) -> ConfigRefused:
    """Return the error for one key of a config: `LOG705 kind: expected train.`"""
    return ConfigRefused(f"LOG705 {path}: {problem}", [FieldProblem(path, problem)])


@contextmanager
def problems_of(path: str) -> Iterator[None]:
    """Attribute an error of this block that names no field to one."""
    try:
        yield
    except MosaicError as error:
        error.problems = error.problems or (FieldProblem(path, str(error)),)
        raise


def decode_problems(data: object) -> list[FieldProblem]:
    """Problems that came as JSON (`[[path, problem], …]`); what does not fit is left out."""
    pairs = data if isinstance(data, list) else []
    return [FieldProblem(str(pair[0]), str(pair[1])) for pair in pairs if isinstance(pair, list) and len(pair) == 2]


def error_class(name: str) -> type[MosaicError]:
    """The class of this module for a name that came over the wire; MosaicError where it is unknown."""
    kind = globals().get(name)
    return kind if isinstance(kind, type) and issubclass(kind, MosaicError) else MosaicError


def unknown_name_error(
    what: str,
    name: str,
    known: Iterable[str],
    where: str = "",
    alternatives: Iterable[str] = (),
    near: Sequence[str] | None = None,
) -> UnknownName:
    """`No algorithm 'pppo' in worker 'cleanrl'. Did you mean 'ppo'? Known: dqn, ppo.`

    `alternatives` are known names that serve the same purpose, instead of those that are spelled similarly (`near`).
    """
    names, name = sorted(known), name[:MAX_SHOWN]
    if other := " or ".join(map(repr, alternatives)):
        hint = f" The nearest in purpose: {other}."
    else:
        near = similar_names(name, names) if near is None else near
        hint = f" Did you mean {' or '.join(map(repr, near))}?" if near else ""
    some = ", ".join(names[:MAX_LISTED]) + (", …" if len(names) > MAX_LISTED else "")
    listed = f" Known: {some}." if names else ""
    return UnknownName(f"No {what} {name!r}{' in ' + where if where else ''}.{hint}{listed}")


def similar_names(name: str, known: Iterable[str]) -> list[str]:
    """Return the names that are meant by `name`: by case, as a word of theirs, as their initials, or by spelling."""
    names = sorted(known)
    lowered = {candidate.lower(): candidate for candidate in reversed(names)}
    if name.lower() in lowered:
        return [lowered[name.lower()]]
    near = [other for other in names if _initials(other) == name.lower()] + _names_with_part(name, names)
    if not near:
        near = [lowered[match] for match in difflib.get_close_matches(name.lower(), lowered, n=1, cutoff=0.6)]
    return near[:MAX_SUGGESTED]


def similar_environments(env_id: str, known: Iterable[str]) -> list[str]:
    """Return the newest versions of the environments that are meant by `env_id`; its own version says nothing."""
    newest = {_without_version(one): one for one in sorted(known, key=_version)}
    name = _without_version(env_id)
    near = similar_names(name, newest)
    if not near and len(name) > 2:
        near = [other for other in newest if other.lower().startswith(name.lower())]
    return [newest[other] for other in near[:MAX_SUGGESTED]]


def _without_version(env_id: str) -> str:
    return re.sub(r"-v\d+$", "", env_id)


def _version(env_id: str) -> int:
    match = re.search(r"-v(\d+)$", env_id)
    return int(match[1]) if match else -1


def _initials(name: str) -> str:
    """`lr` for `learning_rate`; empty for a single word."""
    words = re.findall(r"[a-z0-9]+", name.lower())
    return "".join(word[0] for word in words) if len(words) > 1 else ""


def _names_with_part(part: str, names: list[str]) -> list[str]:
    """Return the names that have `part` as a word of theirs, such as `sac_atari` for `sac`."""
    pattern = re.compile(rf"(?<![a-z0-9]){re.escape(part.lower())}(?![a-z0-9])")
    return [name for name in names if part and pattern.search(name.lower())]
