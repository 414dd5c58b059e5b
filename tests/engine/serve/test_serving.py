"""Serving a model: the sampler that trains, read while it writes; and the process around it."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import openai
import pytest
import torch
from openai import OpenAI

from grpo_engine.chat.protocol import Answer, Generate, Refused
from grpo_engine.config.job import ModelSource
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.serve.answering import Answering, CallingCompletion
from grpo_engine.serve.protocol import Loaded, Report, ServedModel, Working
from grpo_engine.serve.streaming import Growth, StreamingSampler
from tests.engine.conftest import FAMILIES
from tests.engine.rollout.tools.scripted_sampler import encoded
from tests.service.embedded import ROOT
from tests.support.forking.client import engine_python

SECRET = "the engine's own"
HELLO = ({"role": "user", "content": "12+3="},)


def served(source: ModelSource, **given: Any) -> ServedModel:
    return ServedModel(model=source, secret=SECRET, **given)


@pytest.fixture
def answering(model_folder: Callable[[str], Path]) -> Answering:
    return Answering.load(served(ModelSource(name="tiny", path=str(model_folder("qwen3")))))


def answers(model: Answering, **given: Any) -> list[Answer]:
    asked = Generate(**({"messages": HELLO} if "prompt" not in given else {}) | given)
    with model.ready():
        return list(model.answer(asked))


def texts(found: list[Answer], num_completions: int = 1) -> list[str]:
    made = [""] * num_completions
    for piece in (piece for answer in found for piece in answer.pieces):
        made[piece.index] += piece.text
    return made


@pytest.mark.parametrize(
    ("said", "text", "arguments"),
    [
        ('Wait. <tool_call>{"name": "add", "arguments": {"a": 1}}</tool_call>', "Wait.", ['{"a": 1}']),
        ("<tool_call>{oops</tool_call>", "<tool_call>{oops</tool_call>", []),
        ("It is 1.", "It is 1.", []),
    ],
)
def test_the_calls_of_a_request_with_tools_are_told_apart_from_its_text(
    make_policy: Callable[..., Policy], said: str, text: str, arguments: list[str]
) -> None:
    policy = make_policy()
    tool = {"type": "function", "function": {"name": "add", "parameters": {"type": "object"}}}
    completion = CallingCompletion(policy, Generate(messages=HELLO, tools=(tool,)))
    ids = encoded(policy, said)
    parts = [(ids[:7], None), ([*ids[7:], policy.tokenizer.eos_token_id], FinishReason.STOP)]
    shown = [completion.grow(Growth(0, tuple(part), (0.0,) * len(part), end)) for part, end in parts]
    assert shown[0] is None, "calls can only be read at the end of a turn"
    assert shown[1] is not None
    assert shown[1].text == text
    assert [call.arguments for call in shown[1].calls] == arguments


@pytest.mark.parametrize("family", FAMILIES)
def test_streamed_tokens_are_those_that_training_would_draw(
    make_policy: Callable[..., Policy], family: str
) -> None:
    policy = make_policy(family)
    prompt = Prompt(0, "", (7, 9, 11), {})
    sampling = Sampling(max_tokens=20, seed=4)
    (group,) = TorchSampler(policy, 4).generate([prompt], 3, sampling)
    grown: list[list[int]] = [[], [], []]
    reasons: dict[int, FinishReason] = {}
    with torch.no_grad(), policy.sampling():
        for growths in StreamingSampler(policy).grow(prompt.token_ids, 3, sampling):
            for growth in growths:
                grown[growth.index] += growth.token_ids
                if growth.finish_reason is not None:
                    reasons[growth.index] = growth.finish_reason
    assert [tuple(ids) for ids in grown] == [made.token_ids for made in group.completions]
    assert [reasons[n] for n in range(3)] == [made.finish_reason for made in group.completions]


@pytest.mark.parametrize("kind", [None, "nf4"])
def test_an_adapter_answers_as_the_policy_that_it_was_trained_in(
    make_policy: Callable[..., Policy], model_folder: Callable[[str], Path], tmp_path: Path, kind: Any
) -> None:
    policy = make_policy(quantization=kind)
    assert policy.peft_model is not None
    policy.peft_model.save_pretrained(tmp_path)
    path = str(model_folder("qwen3"))
    source = ModelSource(name="tiny", path=path, adapter=str(tmp_path))
    model = Answering.load(served(source, quantization=kind))
    base = Answering.load(served(ModelSource(name="b", path=path)))
    (prompt,) = RowReader(policy.tokenizer).prompts([{"messages": list(HELLO)}])
    sampling = Sampling(max_tokens=24, temperature=0)
    (group,) = TorchSampler(policy, 1).generate([prompt], 1, sampling)
    assert texts(answers(model, temperature=0, max_tokens=24)) == [group.completions[0].text]
    assert texts(answers(base, temperature=0, max_tokens=24)) != [group.completions[0].text]


def test_usage_counts_every_sampled_token_of_every_completion(answering: Answering) -> None:
    found = answers(answering, n=3, max_tokens=9, seed=1, logprobs=True)
    usage = found[-1].usage
    assert usage is not None
    sampled = [token for answer in found for piece in answer.pieces for token in piece.tokens]
    assert usage.completion_tokens == len(sampled)
    assert usage.prompt_tokens == 7  # <|user|>, five characters, <|assistant|>
    assert all(token.logprob < 0 for token in sampled)


def test_a_stop_string_ends_the_completion_and_is_not_shown(answering: Answering) -> None:
    (whole,) = texts(answers(answering, seed=2, max_tokens=12))
    stop = whole[4:6]
    found = answers(answering, seed=2, max_tokens=12, stop=(stop,))
    assert texts(found) == [whole[: whole.index(stop)]]
    assert [piece.finish_reason for piece in found[-1].pieces] == [FinishReason.STOP]
    usage = found[-1].usage
    assert usage is not None
    assert usage.completion_tokens == whole.index(stop) + 2


def test_a_temperature_too_small_for_the_number_format_is_greedy(
    answering: Answering, both_ways: None
) -> None:
    greedy, tiny = (answers(answering, temperature=each, max_tokens=8, logprobs=True) for each in (0, 1e-300))
    assert tiny == greedy
    tokens = [token for answer in tiny for piece in answer.pieces for token in piece.tokens]
    assert len(tokens) == 8


def test_without_a_limit_an_answer_may_fill_the_context_and_no_more(answering: Answering) -> None:
    found = answers(answering, prompt="1" * 500, seed=3)
    usage = found[-1].usage
    assert usage is not None
    assert usage.completion_tokens <= 12
    with pytest.raises(Refused) as refused:
        answers(answering, prompt="1" * 500, max_tokens=13)
    assert refused.value.refusal.code == "context_length_exceeded"
    assert refused.value.refusal.message == (
        "The model's context is 512 tokens: a prompt of 500 leaves no room for 13 more. "
        "Shorten the prompt or lower max_tokens."
    )


def test_the_operator_s_limit_is_lower(model_folder: Callable[[str], Path]) -> None:
    source = ModelSource(name="tiny", path=str(model_folder("qwen3")))
    limited = Answering.load(served(source, context_tokens=16))
    with pytest.raises(Refused, match="context is 16 tokens"):
        answers(limited, max_tokens=10)


def test_a_conversation_that_the_template_refuses_is_refused(answering: Answering) -> None:
    answering.policy.tokenizer.chat_template = "{{ raise_exception('only users may speak') }}"
    with pytest.raises(Refused) as refused:
        answers(answering)
    assert (refused.value.refusal.code, refused.value.refusal.param) == ("invalid_messages", "messages")
    assert "only users may speak" in refused.value.refusal.message


def test_a_prompt_with_a_token_that_the_model_lacks_is_refused(answering: Answering) -> None:
    known = answering.policy.model.get_input_embeddings().num_embeddings
    added = [f"added{place}" for place in range(known)]
    answering.policy.tokenizer.add_tokens(added)
    with pytest.raises(
        Refused, match=rf"^the token 'added\d+' \(\d+\) has no embedding: the model has {known}$"
    ):
        answers(answering, prompt=f"say {added[-1]}")


class Served:
    """`python -m grpo_engine.serve.serving`, forked, with its pipes and its address."""

    def __init__(self, folder: Path) -> None:
        reading, writing = os.pipe()
        self.process = subprocess.Popen(
            [engine_python(), "-m", "grpo_engine.serve.serving", "--reports-to", str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        os.close(writing)
        self.reports = os.fdopen(reading)
        assert self.process.stdin is not None
        line = served(ModelSource(name="tiny", path=str(folder))).model_dump_json()
        self.process.stdin.write(line.encode() + b"\n")
        self.process.stdin.flush()
        loaded = self.report()
        assert isinstance(loaded, Loaded)
        self.url = loaded.url

    def report(self) -> Any:
        return Report.validate_json(self.reports.readline())

    def wait_for(self, num_open: int) -> None:
        """Read reports until this number of requests is open."""
        while self.report() != Working(num_open=num_open):
            pass

    def close(self) -> tuple[int, str]:
        """Exit status and output."""
        printed, _ = self.process.communicate(timeout=30)
        self.reports.close()
        return self.process.returncode, printed.decode()


@pytest.fixture
def process(model_folder: Callable[[str], Path]) -> Iterator[Served]:
    started = Served(model_folder("qwen3"))
    yield started
    started.process.kill()
    if not started.reports.closed:
        started.close()


def test_the_process_takes_turns_drops_requests_of_clients_that_left_and_survives_failed_ones(
    process: Served,
) -> None:
    client = httpx.Client(
        base_url=f"{process.url}/v1", headers={"authorization": f"Bearer {SECRET}"}, timeout=60
    )
    with client as http:
        long = {"model": "m", "prompt": "1", "max_tokens": 500, "seed": 1, "n": 4, "stream": True}
        with http.stream("POST", "/completions", json=long) as streamed:
            next(streamed.iter_lines())
            wrong = {"model": "m", "messages": [{"role": "tool", "tool_calls": [{"un": "heard"}]}]}
            refused = http.post("/chat/completions", json=wrong).json()["error"]
            assert refused["code"] in ("engine_error", "invalid_messages")
            short = {"model": "m", "prompt": "secret", "max_tokens": 3, "temperature": 0}
            answered = http.post("/completions", json=short).json()
            assert answered["usage"]["completion_tokens"] == 3, "answered beside the long one"
        process.wait_for(num_open=0)
        whole = http.post("/completions", json={**long, "stream": False, "max_tokens": 1}).json()
        assert [len(choice["text"]) for choice in whole["choices"]] == [1] * 4
    status, printed = process.close()
    assert status == 0
    assert "secret" not in printed
    assert "heard" not in printed


def test_openai_s_client_needs_only_the_address_and_the_secret(process: Served) -> None:
    given: Any = {"model": "m", "messages": [{"role": "user", "content": "12+3="}], "seed": 3}
    with OpenAI(base_url=f"{process.url}/v1", api_key=SECRET, max_retries=0) as client:
        whole = client.chat.completions.create(**given, max_tokens=9, logprobs=True)
        stream = client.chat.completions.create(**given, max_tokens=9, stream=True)
        streamed = [chunk.choices[0].delta.content or "" for chunk in stream]
        assert "".join(streamed) == whole.choices[0].message.content
        assert whole.choices[0].logprobs is not None
        assert whole.usage is not None
        assert len(whole.choices[0].logprobs.content or []) == whole.usage.completion_tokens
    wrong = OpenAI(base_url=f"{process.url}/v1", api_key="another", max_retries=0)
    with wrong, pytest.raises(openai.AuthenticationError):
        wrong.chat.completions.create(**given)
