"""AgentSpeak files: those of a user, and the examples that are shipped with this package."""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from pathlib import Path

from mosaic.contracts.errors import BadInput, similar_names

EXAMPLES = Path(__file__).parent / "examples"
SUFFIX = ".asl"
MAX_BYTES = 1_000_000


@dataclass(frozen=True)
class AslSource:
    """The text of an agent."""

    name: str
    """Shown in messages: the name of an example, or of a file."""
    text: str

    @property
    def sha256(self) -> str:
        return hashlib.sha256(self.text.encode()).hexdigest()


def list_examples() -> list[str]:
    return sorted(path.stem for path in EXAMPLES.glob(f"*{SUFFIX}"))


def read_source(target: str) -> AslSource:
    """Read an .asl file, or the example with that name."""
    path = Path(target).expanduser()
    if target in list_examples():
        path = EXAMPLES / f"{target}{SUFFIX}"
    elif not os.path.isfile(path):
        near = similar_names(path.stem, list_examples())
        hint = f" Did you mean {near[0]!r}?" if near else ""
        where = "" if path.is_absolute() else " Give the whole path."
        raise BadInput(f"There is no file {path}.{hint}{where} Examples: {', '.join(list_examples())}.")
    try:
        data = path.read_bytes()
        if len(data) > MAX_BYTES:
            raise BadInput(f"{path} has {len(data):,} bytes; an .asl file may have {MAX_BYTES:,}.")
        text = data.decode()
    except OSError as error:
        raise BadInput(f"{path} cannot be read: {error.strerror or error}.") from None
    except UnicodeDecodeError:
        raise BadInput(f"{path} is not a text file in UTF-8.") from None
    if re.search(r"\{\s*include\s*\(", text):
        # A checkpoint contains the agent: what it includes would be missing there.
        raise BadInput(f"{path} includes another file. Copy that file's content into it.")
    return AslSource(path.name, text)
