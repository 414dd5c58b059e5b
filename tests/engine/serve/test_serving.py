"""Serving a model: the sampler that trains, read while it writes; and the process around it."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from grpo_engine.config.job import ModelSource
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Prompt
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.sampler.torch_sampler import TorchSampler
from grpo_engine.serve.answering import Answering, Refused
from grpo_engine.serve.protocol import Answer, Generate, Output, ServedModel
from grpo_engine.serve.streaming import StreamingSampler
from tests.engine.conftest import FAMILIES
from tests.service.embedded import ROOT

HELLO = ({"role": "user", "content": "12+3="},)


@pytest.fixture
def answering(model_folder: Callable[[str], Path]) -> Answering:
    return Answering.load(ServedModel(model=ModelSource(name="tiny", path=str(model_folder("qwen3")))))


def answers(model: Answering, **given: Any) -> list[Answer]:
    asked = Generate(id="a", **({"messages": HELLO} if "prompt" not in given else {}) | given)
    with torch.no_grad(), model.policy.sampling():
        return list(model.answer(asked))


def texts(found: list[Answer], num_completions: int = 1) -> list[str]:
    made = [""] * num_completions
    for piece in (piece for answer in found for piece in answer.pieces):
        made[piece.index] += piece.text
    return made


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
    served = ServedModel(model=source, quantization=kind)
    model, base = Answering.load(served), Answering.load(ServedModel(model=ModelSource(name="b", path=path)))
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


def test_without_a_limit_an_answer_may_fill_the_context_and_no_more(answering: Answering) -> None:
    found = answers(answering, prompt="1" * 500, seed=3)
    usage = found[-1].usage
    assert usage is not None
    assert usage.completion_tokens <= 12
    with pytest.raises(Refused) as refused:
        answers(answering, prompt="1" * 500, max_tokens=13)
    assert refused.value.refusal.code == "context_length_exceeded"
    assert refused.value.refusal.message == (
        "The model's context is 512 tokens; the prompt has 500, and the request asks for 13 more. "
        "Shorten the prompt or lower max_tokens."
    )


def test_the_operator_s_limit_is_lower(model_folder: Callable[[str], Path]) -> None:
    source = ModelSource(name="tiny", path=str(model_folder("qwen3")))
    limited = Answering.load(ServedModel(model=source, context_tokens=16))
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
    """`python -m grpo_engine.serve.serving` with its two pipes."""

    def __init__(self, folder: Path) -> None:
        reading, writing = os.pipe()
        self.process = subprocess.Popen(
            [sys.executable, "-m", "grpo_engine.serve.serving", "--answers-to", str(writing)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            pass_fds=[writing],
            env=os.environ | {"PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
        )
        os.close(writing)
        self.answers = os.fdopen(reading)
        self.send({"model": {"name": "tiny", "path": str(folder)}})

    def send(self, record: dict[str, Any]) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(json.dumps(record).encode() + b"\n")
        self.process.stdin.flush()

    def receive(self) -> Any:
        return Output.validate_json(self.answers.readline())

    def close(self) -> tuple[int, str]:
        """Exit status and output."""
        printed, _ = self.process.communicate(timeout=30)
        self.answers.close()
        return self.process.returncode, printed.decode()


@pytest.fixture
def serve() -> Iterator[Callable[[Path], Served]]:
    started: list[Served] = []

    def serve(folder: Path) -> Served:
        started.append(Served(folder))
        return started[-1]

    yield serve
    for each in started:
        each.process.kill()
        each.process.wait()


def test_the_process_takes_turns_drops_cancelled_requests_and_survives_failed_ones(
    serve: Callable[[Path], Served], model_folder: Callable[[str], Path]
) -> None:
    served = serve(model_folder("qwen3"))
    assert served.receive().type == "loaded"
    served.send({"type": "generate", "id": "long", "prompt": "1", "max_tokens": 500, "seed": 1, "n": 4})
    served.receive()
    served.send(
        {"type": "generate", "id": "wrong", "messages": [{"role": "user", "content": {"un": "heard"}}]}
    )
    served.send({"type": "generate", "id": "short", "prompt": "secret", "max_tokens": 3, "temperature": 0})
    last: dict[str, Answer] = {}
    while not {"wrong", "short"} <= last.keys():
        answer = served.receive()
        if answer.is_last:
            last[answer.id] = answer
    assert "long" not in last, "the short one was answered beside the long one"
    assert last["wrong"].refusal is not None
    assert last["wrong"].refusal.code in ("engine_error", "invalid_messages")
    served.send({"type": "cancel", "id": "long"})
    served.send({"type": "generate", "id": "next", "prompt": "1", "max_tokens": 1})
    while served.receive().id != "next":
        pass
    status, printed = served.close()
    assert status == 0
    assert "secret" not in printed
    assert "heard" not in printed
