"""Conversations as text, by a tokenizer's chat template."""

from typing import Any, cast

from transformers import PreTrainedTokenizerBase

from grpo_engine.config.messages import TEMPLATE_ERRORS


def rendered(
    tokenizer: PreTrainedTokenizerBase, messages: list[dict[str, Any]], *, for_completion: bool = False
) -> str | None:
    """A conversation as text; None if there is no chat template or if it refuses the conversation."""
    if tokenizer.chat_template is None:
        return None
    try:
        return cast(
            str,
            tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=for_completion),
        )
    except TEMPLATE_ERRORS:
        return None
