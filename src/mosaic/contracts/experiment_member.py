"""The place of a run in its experiment, stored with the run."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from mosaic.contracts.model import Contract

Digest = Annotated[str, Field(pattern=r"^[0-9a-f]{32}$")]
Label = Annotated[str, Field(min_length=1, max_length=240, pattern=r"^[^\x00-\x1f]*$")]


class ExperimentMember(Contract):
    """Which of an experiment's runs this is. The daemon accepts each attempt of a key once in a group."""

    key: Digest
    """A hash of algorithm, environment, settings and seed."""
    settings_key: Digest
    """The same without the seed."""
    attempt: Annotated[int, Field(ge=1, lt=2**31)] = 1
    """1 for the first run of this key, one more for each run that replaces one that failed."""
    setting: Label
    """How results name its algorithm and variant."""
    environment: Label
    """How results name its environment."""
