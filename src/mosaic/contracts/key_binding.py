"""What a key means in an environment. No pydantic: the catalog of environments is read by everyone."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class KeyBinding:
    """Keys that mean an action while all of them are held."""

    keys: tuple[str, ...]
    """Names of keys as Qt writes them: `Left`, `Space`, `W`."""
    action: str = ""
    """The name of a discrete action."""
    axis: int = 0
    """The component of a continuous action, where `action` is empty."""
    value: float = 0.0
    """What that component becomes."""
    label: str = ""
    """What it does, for the screen; the name of the action where empty."""

    @property
    def text(self) -> str:
        return self.label or self.action.replace("_", " ")
