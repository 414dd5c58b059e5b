"""`score_model`: a language model as judge, on one of the operator's servers.

The fields are OpenAI's, plus `endpoint`, `max_tokens`, `cache`, `max_calls`, `max_cost_usd` and
`timeout_seconds`. The completion is inserted unchanged into the user's messages, so it may address the judge
("give this a 1"): the messages should mark its start and end and state that it is not an instruction. They
should also state the range, because not every server shows the response schema to its model.
"""

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import AliasChoices, Field, Strict, model_validator

from grpo_engine.contract.records import Input, Listed, Sample
from grpo_engine.graders.base import Graded, RewardGrader, Template
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.model_spending import Ledger, ModelUsage, SharedCalls, SpendLimitError
from grpo_engine.graders.template import render
from grpo_engine.graders.untrusted_json import read_graded
from grpo_engine.outbound.chat_client import ChatAnswer, ChatClient, ChatParseError, ChatServerError
from grpo_engine.outbound.operator_endpoints import EndpointError

MAX_MESSAGE_CHARACTERS = 2**22
"""Maximum characters of all messages together."""
MAX_REFUSAL_CHARACTERS = 300
CACHED_VERDICTS = 20_000
USUAL_ANSWER_TOKENS = 100
"""Tokens of a usual response: a number and a sentence or two."""

_ledger = Ledger()
_graded: SharedCalls[Graded] = SharedCalls(CACHED_VERDICTS)


def usage() -> dict[str, ModelUsage]:
    """Usage and cost of this process's judges so far, by model."""
    return _ledger.usage()


class TextPart(Input):
    """Part of a message; images and audio are not supported."""

    type: Literal["input_text", "output_text", "text"]
    """Kind of the part; all are read as text."""
    text: Template
    """Template of the text."""


class JudgeMessage(Input):
    """One message for the judge."""

    role: Literal["system", "developer", "user", "assistant"]
    """Author of the message."""
    content: Template | TextPart | Annotated[Listed[Template | TextPart], Field(min_length=1, max_length=64)]
    """Template of the message, or a list of text parts."""
    type: Literal["message"] = "message"

    def pieces(self) -> list[str]:
        """Templates in order."""
        parts = self.content if isinstance(self.content, tuple) else (self.content,)
        return [part if isinstance(part, str) else part.text for part in parts]


class SamplingParams(Input):
    """How the judge samples its response; the server decides what is not given."""

    temperature: float | None = Field(None, ge=0, le=2)
    """Sampling temperature, 0 to 2."""
    top_p: float | None = Field(None, gt=0, le=1)
    """Nucleus sampling, above 0 and at most 1."""
    seed: int | None = None
    """Seed of the sampling, if the server supports it."""
    max_completions_tokens: int | None = Field(
        None, ge=1, validation_alias=AliasChoices("max_completions_tokens", "max_completion_tokens")
    )
    """Maximum tokens of the response, sent as `max_completion_tokens`."""
    reasoning_effort: Literal["none", "minimal", "low", "medium", "high", "xhigh"] | None = None
    """Effort of reasoning models."""


class ScoreModel(RewardGrader):
    """Reward = the number in the judge's response, which must be within `range`."""

    runs_in = "thread"

    type: Literal["score_model"]
    model: str = Field(min_length=1, max_length=256)
    """The judge's name on its server; the operator may restrict the choice."""
    input: Annotated[Listed[JudgeMessage], Field(min_length=1, max_length=64)]
    """The messages for the judge."""
    range: Annotated[tuple[float, float], Strict(False)] = (0.0, 1.0)
    """Lowest and highest score; a score outside is an error."""
    sampling_params: SamplingParams = SamplingParams()
    """How the judge samples; by default the server decides."""
    endpoint: str = Field("default", min_length=1, max_length=128)
    """Name of one of the operator's endpoints."""
    max_tokens: int | None = Field(None, ge=1)
    """Like sampling_params.max_completions_tokens, for servers that support only `max_tokens`."""
    cache: bool = True
    """Send equal requests once; repeated completions keep their score."""
    max_calls: int | None = Field(None, ge=1)
    """Maximum calls per engine process; beyond it completions are unscorable."""
    max_cost_usd: float | None = Field(None, gt=0)
    """Maximum cost per engine process in US dollars; needs the operator's prices."""
    timeout_seconds: float = Field(120.0, gt=0, le=600)
    """Time limit for one completion, retries included."""

    @model_validator(mode="after")
    def _sensible(self) -> Self:
        if self.range[0] >= self.range[1]:
            raise ValueError("range must be [lowest, highest] with lowest below highest")
        if self.max_tokens is not None and self.sampling_params.max_completions_tokens is not None:
            raise ValueError("give max_tokens or sampling_params.max_completions_tokens, not both")
        return self

    def templates(self) -> dict[str, str]:
        return {
            f"input[{index}].content[{part}]": text
            for index, message in enumerate(self.input)
            for part, text in enumerate(message.pieces())
        }

    def evaluate(self, sample: Sample, item: Mapping[str, Any]) -> Graded:
        request = {"messages": list(self._messages(sample, item)), **self._sampling()}
        if not self.cache:
            return self._judge(request)
        full = json.dumps([self.endpoint, self.model, self.range, request], sort_keys=True)
        return _graded.get(hashlib.sha256(full.encode()).hexdigest(), lambda: self._judge(request))

    def _messages(self, sample: Sample, item: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
        room = MAX_MESSAGE_CHARACTERS
        for message in self.input:
            texts = [render(piece, sample, item) for piece in message.pieces()]
            room -= sum(map(len, texts))
            if room < 0:
                raise UnscorableError(
                    "other_error", f"more than {MAX_MESSAGE_CHARACTERS} characters to judge"
                )
            several = isinstance(message.content, tuple)
            parts = [{"type": "text", "text": text} for text in texts]
            yield {"role": message.role, "content": parts if several else texts[0]}

    def _sampling(self) -> dict[str, Any]:
        given = self.sampling_params.model_dump(exclude_none=True)
        if "max_completions_tokens" in given:
            given["max_completion_tokens"] = given.pop("max_completions_tokens")
        if self.max_tokens is not None:
            given["max_tokens"] = self.max_tokens
        return {**given, "response_format": answer_format(*self.range)}

    def _judge(self, request: Mapping[str, Any]) -> Graded:
        try:
            answer = self._paid_answer(request)
            if answer.refusal is not None:
                reason = f"the model refused: {answer.refusal[:MAX_REFUSAL_CHARACTERS]}"
                raise UnscorableError("model_grader_refusal_error", reason)
            graded = read_graded(answer.text)
            low, high = self.range
            if not low <= graded.reward <= high:
                raise ValueError(f"the score {graded.reward:g} is not between {low:g} and {high:g}")
            return graded
        except (ChatServerError, EndpointError) as error:
            raise UnscorableError("model_grader_server_error", str(error)) from None
        except (ChatParseError, ValueError) as error:
            raise UnscorableError("model_grader_parse_error", str(error)) from None
        except SpendLimitError as error:
            raise UnscorableError("other_error", f"{error}: no further calls") from None

    def _paid_answer(self, request: Mapping[str, Any]) -> ChatAnswer:
        client = ChatClient(self.endpoint, self.model, self.timeout_seconds)
        if self.max_cost_usd is not None and client.endpoint.cost_usd(0, 0) is None:
            raise EndpointError(f"max_cost_usd needs the prices of the endpoint {self.endpoint!r}")
        return _ledger.complete(
            client,
            request,
            account_key=self.model_dump_json(),
            max_tokens=self.max_tokens or self.sampling_params.max_completions_tokens or USUAL_ANSWER_TOKENS,
            max_calls=self.max_calls,
            max_cost_usd=self.max_cost_usd,
        )


def answer_format(low: float, high: float) -> dict[str, Any]:
    """OpenAI's structured output, with the reason before the score that follows from it."""
    schema = {
        "type": "object",
        "properties": {
            "feedback": {
                "type": "string",
                "description": "One or two sentences: what keeps it from the best score. Empty if nothing.",
            },
            "score": {"type": "number", "description": f"From {low:g} to {high:g}."},
        },
        "required": ["feedback", "score"],
        "additionalProperties": False,
    }
    return {"type": "json_schema", "json_schema": {"name": "grade", "strict": True, "schema": schema}}
