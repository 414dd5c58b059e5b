"""Counts tokens of rows with a model's tokenizer and chat template, without transformers.

Boundary: reads the tokenizer's files, `chat_template.jinja` and `config.json` of one folder; no weights.
Templates render like transformers' `apply_chat_template`, in Jinja's sandbox.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cached_property, lru_cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Template, TemplateError, nodes
from jinja2.ext import Extension, loopcontrols
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from tokenizers import Tokenizer

from grpo_engine.config.messages import TEMPLATE_ERRORS, rendered

_SPECIAL = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
_CONTEXT = ("max_position_embeddings", "n_positions", "max_sequence_length")
_GENERIC = ("PreTrainedTokenizerFast", "TokenizersBackend")
"""Classes of tokenizers whose end-of-sequence token is named by the model's files only."""


PIECE_CHARACTERS = 2**19
"""Characters of text that are tokenised at once."""


class ModelTextError(Exception):
    """The folder's tokenizer, template or configuration cannot be read."""


class DamagedModelTextError(ModelTextError):
    """A file exists, but its content is invalid."""


class RenderError(Exception):
    """The chat template refuses a conversation; the message is the reason."""


@dataclass(frozen=True)
class ModelText:
    """Tokenizer and chat template of one model, which turn rows into tokens."""

    tokenizer: Tokenizer
    template: Template | str
    """The chat template, or why there is none."""
    special_tokens: Mapping[str, str]
    context_tokens: int | None
    """The model's context length, for prompt and completion; None if its config has no limit."""
    num_embeddings: int | None
    """Number of tokens that the model has embeddings for; None if its config does not state it."""
    may_have_end: bool = True
    """False: the tokenizer has no end-of-sequence token."""

    @property
    def special_texts(self) -> list[str]:
        """Texts that become tokens with a meaning, such as the end of a turn."""
        added = self.tokenizer.get_added_tokens_decoder().values()
        return [token.content for token in added if token.special]

    @cached_property
    def has_unknown_tokens(self) -> bool:
        """Whether the tokenizer has tokens that the model lacks, such as added ones."""
        last = max((self.tokenizer.get_vocab_size() - 1, *self.tokenizer.get_added_tokens_decoder()))
        return self.num_embeddings is not None and last >= self.num_embeddings

    def unknown_token(self, text: str) -> str | None:
        """The token of the text with the largest id, and that id, if the model lacks it."""
        last = max((token for _, ids in self._ids([text]) for token in ids), default=0)
        if self.num_embeddings is None or last < self.num_embeddings:
            return None
        return f"{self.tokenizer.id_to_token(last)!r} ({last})"

    def render(
        self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any] | None, *, for_completion: bool
    ) -> str:
        """The conversation as text, with the beginning of an assistant's turn if a completion follows.

        Raises RenderError if the model has no readable template or its template refuses the conversation.
        """
        if isinstance(self.template, str):
            raise RenderError(self.template)
        render = partial(
            self.template.render,
            tools=tools or None,
            documents=None,
            add_generation_prompt=for_completion,
            **self.special_tokens,
        )
        try:
            text = rendered(lambda forms: render(messages=forms), messages)
            text.encode()  # a template may write half of a surrogate pair, which is not text
        except TEMPLATE_ERRORS as error:
            raise RenderError(f"the model's chat template refuses it: {error}") from error
        return text

    def lengths(self, texts: Sequence[str], *, rendered: bool) -> list[int]:
        """Tokens of each prompt; special tokens are added unless a template has rendered it."""
        special = 0 if rendered else self._num_added()
        counts = [special] * len(texts)
        for index, ids in self._ids(texts):
            counts[index] += len(ids)
        return counts

    def target_lengths(self, texts: Sequence[str]) -> list[int]:
        """Number of tokens to learn per text, up to the first end-of-sequence, which is added if missing."""
        end = self._end
        counts, complete = [1] * len(texts), set[int]()
        for index, ids in self._ids(texts):
            if index not in complete:
                counts[index] += ids.index(end) if end in ids else len(ids)
                complete |= {index} if end in ids else set()
        return counts

    @property
    def _end(self) -> int | None:
        return self.tokenizer.token_to_id(self.special_tokens.get("eos_token", ""))

    def _num_added(self) -> int:
        """Special tokens around a prompt, without an end of sequence, because a completion follows."""
        is_ended = self.tokenizer.encode("a").ids[-1:] == [self._end]
        return self.tokenizer.num_special_tokens_to_add(is_pair=False) - is_ended

    def _ids(self, texts: Sequence[str]) -> Iterator[tuple[int, list[int]]]:
        """(Index of a text, tokens of its next piece), few pieces at a time: a token takes 200 bytes here.

        A longer text than PIECE_CHARACTERS is cut between characters, so its count is a little high.
        """
        for batch in _batched(_pieces(texts)):
            encodings = self.tokenizer.encode_batch_fast(
                [text for _, text in batch], add_special_tokens=False
            )
            yield from zip((index for index, _ in batch), (each.ids for each in encodings), strict=True)


def _pieces(texts: Sequence[str]) -> Iterator[tuple[int, str]]:
    """Index and piece, in order; an empty text has none."""
    for index, text in enumerate(texts):
        for start in range(0, len(text), PIECE_CHARACTERS):
            yield index, text[start : start + PIECE_CHARACTERS]


def _batched(pieces: Iterable[tuple[int, str]]) -> Iterator[list[tuple[int, str]]]:
    """The pieces in lists of at most PIECE_CHARACTERS."""
    batch: list[tuple[int, str]] = []
    room = PIECE_CHARACTERS
    for index, text in pieces:
        if batch and len(text) > room:
            yield batch
            batch, room = [], PIECE_CHARACTERS
        batch.append((index, text))
        room -= len(text)
    if batch:
        yield batch


def load_model_text(folder: Path) -> ModelText:
    """Tokenizer, template and limits of a model folder, cached until a file of it changes.

    Raises ModelTextError if a file is missing or cannot be opened, DamagedModelTextError if it is invalid.
    """
    names = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")
    files = [folder / name for name in (*names, "config.json")]
    if not os.access(folder, os.R_OK | os.X_OK):
        raise ModelTextError(f"the folder of {folder.name} cannot be read")
    stamp = tuple(file.stat().st_mtime_ns if file.is_file() else 0 for file in files)
    return _load(folder, stamp)


@lru_cache(maxsize=8)
def _load(folder: Path, _stamp: tuple[int, ...]) -> ModelText:
    tokenizer_file = folder / "tokenizer.json"
    if not tokenizer_file.is_file():
        raise ModelTextError(f"{folder.name} has no tokenizer.json")
    settings = _read_json(folder / "tokenizer_config.json")
    template = _template(_template_source(folder, settings))
    tokenizer = _tokenizer(_text(tokenizer_file))
    tokenizer.no_truncation()
    tokenizer.no_padding()
    special = {name: text for name in _SPECIAL if (text := _token_text(settings.get(name)))}
    config = _read_json(folder / "config.json")
    limits = context_of(config), _number_in(config, "vocab_size")
    return ModelText(tokenizer, template, special, *limits, _may_have_end(folder, settings, config))


def _may_have_end(folder: Path, settings: Mapping[str, Any], config: Mapping[str, Any]) -> bool:
    """Whether a file or the tokenizer's class may name an end-of-sequence token."""
    files = (settings, _read_json(folder / "special_tokens_map.json"))
    # transformers ignores the stated class of these models and uses one of their own
    is_qwen = str(config.get("model_type")).startswith("qwen")
    has_own_class = is_qwen or settings.get("tokenizer_class") not in _GENERIC
    return has_own_class or any(_token_text(file.get("eos_token")) for file in files)


def _read_json(file: Path) -> dict[str, Any]:
    if not file.is_file():
        return {}
    try:
        data = json.loads(_text(file))
    except (ValueError, RecursionError) as error:
        raise DamagedModelTextError(f"{file.name} cannot be read: {error}") from error
    return data if isinstance(data, dict) else {}


def _text(file: Path) -> str:
    try:
        return file.read_text("utf-8")
    except OSError as error:  # its text has the path
        raise ModelTextError(f"{file.name} cannot be read: {error.strerror}") from error
    except ValueError as error:
        raise DamagedModelTextError(f"{file.name} cannot be read: {error}") from error


def _tokenizer(source: str) -> Tokenizer:
    try:
        tokenizer = Tokenizer.from_str(source)
    except Exception as error:  # tokenizers raises nothing narrower
        raise DamagedModelTextError(f"tokenizer.json cannot be read: {error}") from error
    # tokenizers 0.23 never frees the cache of a dropped tokenizer: 5 MB for each model that is loaded
    if resize := getattr(tokenizer.model, "_resize_cache", None):
        resize(0)
    return tokenizer


def _template_source(folder: Path, settings: Mapping[str, Any]) -> str | None:
    file = folder / "chat_template.jinja"
    if file.is_file():
        return _text(file)
    source = settings.get("chat_template")
    if isinstance(source, list):
        named = [each for each in source if isinstance(each, dict) and each.get("name") == "default"]
        source = named[-1].get("template") if named else None
    return source if isinstance(source, str) else None


def _template(source: str | None) -> Template | str:
    """The parsed template, or why there is none: rows that are plain prompts need none."""
    if not source:
        return "the model has no chat template"
    try:
        return _environment().from_string(source)
    except TEMPLATE_ERRORS as error:
        return f"the model's chat template cannot be read: {error}"


def _token_text(token: Any) -> str | None:
    text = token.get("content") if isinstance(token, dict) else token
    return text if isinstance(text, str) else None


def context_of(config: Mapping[str, Any]) -> int | None:
    """The context length in a model's configuration; None: no limit."""
    return _number_in(config, *_CONTEXT)


def _number_in(config: Mapping[str, Any], *names: str) -> int | None:
    """The first of these fields in a model's configuration, or in that of its language model."""
    for part in (config, config.get("text_config")):
        for name in names:
            if isinstance(part, Mapping) and isinstance(part.get(name), int):
                return int(part[name])
    return None


class _Generation(Extension):
    """`{% generation %}` marks the assistant's tokens for training; here it is ignored."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment() -> ImmutableSandboxedEnvironment:
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[_Generation, loopcontrols]
    )
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now(UTC).strftime(form)
    return environment


def _tojson(value: Any, ensure_ascii: bool = False, **options: Any) -> str:
    """JSON without Jinja's HTML escapes, as in transformers."""
    return json.dumps(value, ensure_ascii=ensure_ascii, **options)


def _raise_exception(message: str) -> None:
    raise TemplateError(message)
