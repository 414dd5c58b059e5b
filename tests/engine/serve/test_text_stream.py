"""Streamed text: it equals the text decoded at once, in whole characters."""

from collections.abc import Sequence
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models

from grpo_engine.serve.text_stream import BROKEN, TextStream

BYTES = Tokenizer(models.BPE({f"<0x{n:02X}>": n for n in range(256)}, [], byte_fallback=True))
"""One token per byte, as models write text outside their vocabulary."""
BYTES.decoder = decoders.ByteFallback()
WORDS = Tokenizer(models.WordLevel({"▁a": 0, "▁be": 1, "c": 2, "!": 3}, unk_token="c"))
"""Its first space is no part of the text, so that a token's text depends on the one before it."""
WORDS.decoder = decoders.Metaspace()


def decode(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    text: str = tokenizer.decode(list(ids))
    return text


def streamed(tokenizer: Tokenizer, ids: Sequence[int], stop: Sequence[str] = ()) -> list[str]:
    stream = TextStream(partial(decode, tokenizer), stop)
    return [*(stream.add([token]) for token in ids), stream.end()]


@settings(deadline=None, max_examples=50)
@given(st.text(max_size=12))
def test_no_partial_character_is_returned(text: str) -> None:
    pieces = streamed(BYTES, list(text.encode()))
    assert "".join(pieces) == text
    assert BROKEN in text or not any(BROKEN in piece for piece in pieces)


@settings(deadline=None, max_examples=50)
@given(st.lists(st.integers(0, 3), max_size=30))
def test_pieces_together_are_the_whole_text(ids: list[int]) -> None:
    assert "".join(streamed(WORDS, ids)) == decode(WORDS, ids)


def test_invalid_bytes_are_returned_after_a_few_tokens() -> None:
    pieces = streamed(BYTES, [0xFF] * 100)
    assert "".join(pieces) == decode(BYTES, [0xFF] * 100)
    assert len(pieces[20] + "".join(pieces[:20])) >= 16


@pytest.mark.parametrize(
    ("text", "stop", "shown"),
    [
        ("one, two, three", [" two"], "one,"),
        ("one END", ["END", "END OF"], "one "),
        ("almost EN", ["END"], "almost EN"),
        ("aab", ["ab"], "a"),
        ("nothing", ["of it"], "nothing"),
        ("both b and a", ["a", "b"], ""),
        ("héé", ["éé"], "h"),
    ],
)
def test_no_part_of_a_stop_string_is_returned(text: str, stop: list[str], shown: str) -> None:
    stream = TextStream(partial(decode, BYTES), stop)
    pieces = [stream.add([token]) for token in text.encode()]
    assert "".join(pieces) + stream.end() == shown
    assert stream.is_stopped == any(one in text for one in stop)
