"""Tokens → text that can be shown while more is to come: whole characters, and nothing of a stop string.

All that was told together is what decoding the whole completion at once gives.
Boundary: one completion; the decoding itself is the tokenizer's.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

BROKEN = "�"
"""What a decoder gives for bytes that are no character (yet)."""
MAX_OPEN_TOKENS = 16
"""A character has four bytes: what is broken after so many tokens will not become whole."""


class TextStream:
    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str] = ()) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        """From the last settled place but one on: a token's text may depend on the one before it."""
        self._num_settled = 0
        """Of these, whose text has been taken."""
        self._held = ""
        """Decoded, but perhaps the beginning of a stop string."""
        self.is_stopped = False
        """A stop string came; nothing follows."""

    def add(self, tokens: Sequence[int]) -> str:
        """What can be told now that these tokens have come."""
        told = ""
        for token in tokens:
            self._tokens.append(token)
            num_open = len(self._tokens) - self._num_settled
            told += self._tell(self._settled(even_broken=num_open >= MAX_OPEN_TOKENS))
        return told

    def end(self) -> str:
        """The rest: nothing more comes."""
        told = self._tell(self._settled(even_broken=True))
        rest, self._held = self._held, ""
        return told + rest

    def _settled(self, *, even_broken: bool) -> str:
        """Text of the tokens whose characters are whole."""
        before = self._decode(self._tokens[: self._num_settled])
        text = self._decode(self._tokens)
        if len(text) <= len(before) or (text.endswith(BROKEN) and not even_broken):
            return ""
        del self._tokens[: self._num_settled]
        self._num_settled = len(self._tokens)
        return text[len(before) :]

    def _tell(self, text: str) -> str:
        if self.is_stopped:
            return ""
        text = self._held + text
        places = [place for stop in self._stop if (place := text.find(stop)) >= 0]
        if places:
            self.is_stopped, self._held = True, ""
            return text[: min(places)]
        length = max((_overlap(text, stop) for stop in self._stop), default=0)
        self._held = text[len(text) - length :]
        return text[: len(text) - length]


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of the text with which the stop string begins."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
