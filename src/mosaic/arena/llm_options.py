"""The options of the actor `llm` as it uses them, and what it has spent of its budget."""

from __future__ import annotations

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

from mosaic.arena.llm_client import Message, ModelFailure, Reply

_CHARACTERS_PER_TOKEN = 4


@dataclass(frozen=True)
class LlmOptions:
    """The options of its description, checked."""

    base_url: str | None
    temperature: float | None
    max_tokens: int | None
    reasoning_effort: str
    timeout_s: float
    history: int
    fallback: str | None
    template: str | None
    max_calls: int | None
    max_tokens_total: int | None
    max_cost: float | None
    price_per_million_input: float | None
    price_per_million_output: float | None

    @property
    def has_prices(self) -> bool:
        return None not in (self.price_per_million_input, self.price_per_million_output)

    def cost(self, input_tokens: int | None, output_tokens: int | None) -> float | None:
        """Return what these tokens cost; None where they are not counted, or the prices not given."""
        prices = self.price_per_million_input, self.price_per_million_output
        if None in (*prices, input_tokens, output_tokens):
            return None
        return ((input_tokens or 0) * (prices[0] or 0.0) + (output_tokens or 0) * (prices[1] or 0.0)) / 1e6


@dataclass
class Ledger:
    """What was spent. Requests of several threads add to it, those given up included."""

    options: LlmOptions
    calls: int = 0
    input_tokens: int | None = 0
    """None: the server did not count those of every reply."""
    output_tokens: int | None = 0
    _estimated_input: int = 0
    """Where a server does not count, estimated from the length of the text: a budget always has an end."""
    _estimated_output: int = 0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def start_call(self) -> None:
        """Count a request, or raise which limit is reached."""
        options = self.options
        with self._lock:
            spent = {
                "max_calls": (self.calls, options.max_calls),
                "max_tokens_total": (self._estimated_input + self._estimated_output, options.max_tokens_total),
                "max_cost": (options.cost(self._estimated_input, self._estimated_output) or 0.0, options.max_cost),
            }
            for name, (amount, limit) in spent.items():
                if limit is not None and amount >= limit:
                    raise ModelFailure("budget", f"The budget is used up: {name}={limit:g}.")
            self.calls += 1

    def add_reply(self, messages: Sequence[Message], reply: Reply) -> None:
        with self._lock:
            self.input_tokens = sum_counts([self.input_tokens, reply.input_tokens])
            self.output_tokens = sum_counts([self.output_tokens, reply.output_tokens])
            sent = sum(len(message["content"]) for message in messages)
            self._estimated_input += _estimate(reply.input_tokens, sent)
            self._estimated_output += _estimate(reply.output_tokens, len(reply.answer) + len(reply.thought))


def sum_counts(counts: Sequence[int | None]) -> int | None:
    """Return the sum; None where there is none, or where one is unknown."""
    known = [count for count in counts if count is not None]
    return sum(known) if known and len(known) == len(counts) else None


def _estimate(count: int | None, characters: int) -> int:
    return math.ceil(characters / _CHARACTERS_PER_TOKEN) if count is None else count
