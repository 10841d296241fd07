"""The keys of an environment as a person has changed them. No widget here."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from mosaic.contracts.errors import BadInput
from mosaic.contracts.key_binding import KeyBinding

SEPARATOR = "+"
"""Between keys that are held together, as the actor of a human reads them."""
RESERVED_KEYS = ("Esc", SEPARATOR)


def current_keys(bindings: Sequence[KeyBinding], changes: Mapping[str, str]) -> dict[str, tuple[str, ...]]:
    """The keys of each action, by its text."""
    return {
        binding.text: tuple(changes[binding.text].split(SEPARATOR)) if binding.text in changes else binding.keys
        for binding in bindings
    }


def editable_actions(bindings: Sequence[KeyBinding], changes: Mapping[str, str]) -> list[str]:
    """Actions with a key of their own; those of several keys follow from these."""
    return [text for text, keys in current_keys(bindings, changes).items() if len(keys) == 1]


def change_key(bindings: Sequence[KeyBinding], changes: Mapping[str, str], action: str, key: str) -> dict[str, str]:
    """Return the changes with another key for an action, also where that key is held together with others.

    Raises BadInput where the key is that of another action, or cannot be one.
    """
    keys = current_keys(bindings, changes)
    if not key or key in RESERVED_KEYS:
        raise BadInput(f"{key or 'This key'} cannot be the key of an action. Choose another.")
    taken = next((text for text, others in keys.items() if others == (key,) and text != action), None)
    if taken is not None:
        raise BadInput(f"{key} is the key of {taken!r}. Choose another, or change that one first.")
    (old,) = keys[action]
    changed = {text: tuple(key if one == old else one for one in others) for text, others in keys.items()}
    return {
        binding.text: SEPARATOR.join(changed[binding.text])
        for binding in bindings
        if changed[binding.text] != binding.keys
    }


def valid_changes(bindings: Sequence[KeyBinding], changes: Mapping[str, str]) -> dict[str, str]:
    """Leave out changes of actions that the environment does not have with its present settings."""
    known = {binding.text for binding in bindings}
    return {text: key for text, key in changes.items() if text in known}
