"""A group's conversations as completions of one prompt.

Agents decide what they send, so the conversations of a group may start differently. Their common first tokens
are the group's prompt; the rest of each conversation's own prompt is tokens that the model did not write.
"""

from collections.abc import Sequence
from itertools import takewhile

from grpo_engine.rollout.agents.dialogue import Row


def trained_rows(rows: Sequence[Row]) -> list[Row]:
    """The rows with sampled tokens, each cut after the last of them; the one with the newest turn is last."""
    kept = [row for row in rows if row.ends and any(row.sampled)]
    for row in kept:
        length = row.ends[-1].num_tokens
        del row.token_ids[length:], row.logprobs[length:], row.sampled[length:]
    return sorted(kept, key=lambda row: row.ends[-1].number)


def shared_tokens(rows: Sequence[Row]) -> int:
    """Number of first tokens that all rows share and that none of them sampled."""
    if not rows:
        return 0
    places = zip(*(row.token_ids[: row.first_sampled] for row in rows), strict=False)
    return sum(1 for _ in takewhile(lambda tokens: len(set(tokens)) == 1, places))


def joined(
    rows: Sequence[Row], start: int
) -> tuple[tuple[int, ...], tuple[float, ...], tuple[bool, ...], tuple[int, ...]]:
    """(token ids, log-probabilities, sampled, row starts) of the rows, one after another, from `start` on."""
    token_ids = [token for row in rows for token in row.token_ids[start:]]
    logprobs = [value for row in rows for value in row.logprobs[start:]]
    sampled = [value for row in rows for value in row.sampled[start:]]
    starts, position = [], 0
    for row in rows[:-1]:
        position += len(row.token_ids) - start
        starts.append(position)
    return tuple(token_ids), tuple(logprobs), tuple(sampled), tuple(starts)
