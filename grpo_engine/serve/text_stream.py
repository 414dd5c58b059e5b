"""Decodes tokens to text while they are sampled: whole characters only, and no part of a stop string.

The pieces together equal the decoded whole completion.
"""

from collections.abc import Callable, Sequence

BROKEN = "�"
"""What a decoder returns for bytes that are not a character (yet)."""
MAX_OPEN_TOKENS = 16
"""After this many tokens, an incomplete character stays incomplete; a character has at most four bytes."""


class TextStream:
    def __init__(self, decode: Callable[[Sequence[int]], str], stop: Sequence[str]) -> None:
        self._decode = decode
        self._stop = tuple(stop)
        self._tokens: list[int] = []
        """The last returned tokens and all later ones; a token's text may depend on the one before."""
        self._num_settled = 0
        """Number of leading tokens whose text has been returned."""
        self._held = ""
        """Decoded text that may be the start of a stop string."""
        self.is_stopped = False
        """Whether a stop string was found; nothing follows."""

    def add(self, tokens: Sequence[int]) -> str:
        """New text after these tokens."""
        text = ""
        for token in tokens:
            self._tokens.append(token)
            num_open = len(self._tokens) - self._num_settled
            text += self._before_stop(self._settled(even_broken=num_open >= MAX_OPEN_TOKENS))
        return text

    def end(self) -> str:
        """The rest of the text, after the last token."""
        text = self._before_stop(self._settled(even_broken=True))
        rest, self._held = self._held, ""
        return text + rest

    def _settled(self, *, even_broken: bool) -> str:
        """Text of the tokens whose characters are complete."""
        before = self._decode(self._tokens[: self._num_settled])
        text = self._decode(self._tokens)
        if len(text) <= len(before) or (text.endswith(BROKEN) and not even_broken):
            return ""
        del self._tokens[: self._num_settled]
        self._num_settled = len(self._tokens)
        return text[len(before) :]

    def _before_stop(self, text: str) -> str:
        """The text before a stop string. If the end of the text may be the start of one, it is held back."""
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
    """Length of the longest end of the text that is also a beginning of the stop string."""
    most = min(len(text), len(stop) - 1)
    return next((size for size in range(most, 0, -1) if text.endswith(stop[:size])), 0)
