"""Families that call tools: sampled ids are kept, whatever their chat templates do to earlier turns."""

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import ModelSource, SupervisedHyperparameters
from grpo_engine.config.tools import HttpTool
from grpo_engine.contract.errors import ConfigError
from grpo_engine.contract.records import FinishReason
from grpo_engine.models.loading import load_policy
from grpo_engine.models.policy import Policy
from grpo_engine.objective.metrics import tool_metrics
from grpo_engine.objective.packing import TrainingGroup, TrainingSequence, pack
from grpo_engine.objective.types import Completion
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.tools.rendering import AnswerRenderer, tool_format
from grpo_engine.rollout.tools.sampler import ToolSampler
from tests.engine.conftest import sum_rows
from tests.engine.rollout.tools.families import FAMILIES, WITH_TEMPLATES, make_family_model, template
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler
from tests.support.chat_server import ScriptedServer

AROUND = {
    "deepseek": "<｜tool▁outputs▁begin｜><｜tool▁output▁begin｜>7<｜tool▁output▁end｜><｜tool▁outputs▁end｜>",
    "gemma": 'response:add{value:<|"|>7<|"|>}<tool_response|>',
    "glm": "\n<tool_response>\n7\n</tool_response><|assistant|>",
    "harmony": (
        '<|start|>functions.add to=assistant<|channel|>commentary<|message|>"7"<|end|><|start|>assistant'
    ),
    "hermes": ("\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n"),
    "llama": (
        '<|start_header_id|>ipython<|end_header_id|>\n\n"7"<|eot_id|>'
        "<|start_header_id|>assistant<|end_header_id|>\n\n"
    ),
    "xml": (
        "\n<|im_start|>user\n<tool_response>\n7\n</tool_response><|im_end|>\n<|im_start|>assistant\n<think>\n"
    ),
}
"""What each template writes between the end of a call and the model's next turn."""
WRITTEN_AFTER = {"gemma": "<|tool_response>", "glm": "<|observation|>", "harmony": "<|call|>"}
"""The token that ends a turn with a call, if it is not the family's first."""


@pytest.fixture(scope="module")
def policy_of(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Policy]:
    made: dict[str, Policy] = {}

    def policy(name: str) -> Policy:
        if name not in made:
            folder = make_family_model(tmp_path_factory.mktemp(name), name)
            settings = SupervisedHyperparameters(lora=Lora(rank=2))  # type: ignore[call-arg]
            source = ModelSource(name=name, path=str(folder))
            made[name] = load_policy(source, settings, torch.device("cpu"), torch.float32, seed=5)
        return made[name]

    return policy


@pytest.fixture(scope="module")
def adder() -> Iterator[ScriptedServer]:
    with ScriptedServer(lambda request: "7") as server, pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        yield server


@dataclass
class Talk:
    """A completion whose turns a test wrote, and what the model's turns began from."""

    policy: Policy
    script: list[list[int]]
    url: str
    max_tokens: int = 3000

    def __post_init__(self) -> None:
        self.inner = ScriptedSampler(self.policy, lambda stream: self.script[stream[2]])
        tool = HttpTool(type="http", name="add", url=self.url, max_output_chars=40)
        sampler = ToolSampler(self.inner, self.policy, [tool], max_turns=len(self.script))
        (self.prompt,) = RowReader(self.policy.tokenizer).prompts(sum_rows(1))
        (group,) = sampler.generate([self.prompt], 1, Sampling(max_tokens=self.max_tokens, seed=3, step=2))
        self.completion: Completion = group.completions[0]


def turn(policy: Policy, name: str, *calls: str, end: str | None = None) -> list[int]:
    family = FAMILIES[name]
    end = WRITTEN_AFTER.get(name, family.stops[0]) if end is None else end
    text = "".join([family.wraps[0], *calls, family.wraps[1]]) if calls else "done"
    ids: list[int] = policy.tokenizer(text + end, add_special_tokens=False).input_ids
    last = policy.tokenizer.convert_tokens_to_ids(end) if end else None
    return ids[:-1] if ids[-2:] == [last, last] else ids  # a call of gpt-oss has its end already


@pytest.mark.parametrize("name", WITH_TEMPLATES)
def test_an_answer_is_written_as_the_familys_template_writes_it(
    name: str, policy_of: Callable[[str], Policy], adder: ScriptedServer
) -> None:
    policy = policy_of(name)
    first = turn(policy, name, FAMILIES[name].call("add", {"a": 3}))
    talk = Talk(policy, [first, turn(policy, name)], adder.url)
    masked = [i for i, own in zip(talk.completion.token_ids, talk.completion.sampled, strict=True) if not own]
    assert policy.tokenizer.decode(masked) == AROUND[name]
    assert talk.completion.token_ids[: len(first)] == tuple(first)
    assert [call["answer"] for call in talk.completion.tool_calls] == ["7"]
    assert talk.completion.answer == "done"


@pytest.mark.parametrize("name", WITH_TEMPLATES)
def test_a_malformed_call_is_answered_with_its_error_and_counted(
    name: str, policy_of: Callable[[str], Policy], adder: ScriptedServer
) -> None:
    policy = policy_of(name)
    (bad, error), *_ = FAMILIES[name].malformed.items()
    talk = Talk(policy, [turn(policy, name, bad), turn(policy, name)], adder.url)
    (call,) = talk.completion.tool_calls
    assert (call["error"], str(call["answer"]).startswith(f"Error: {error}"[:39])) == (True, True)
    assert tool_metrics([talk.completion])["tools/error_rate"] == 1.0


@pytest.mark.parametrize("name", WITH_TEMPLATES)
def test_a_call_that_the_token_limit_cuts_is_not_run(
    name: str, policy_of: Callable[[str], Policy], adder: ScriptedServer
) -> None:
    policy = policy_of(name)
    first = turn(policy, name, FAMILIES[name].call("add", {"a": 3}))
    before = len(adder.requests)
    talk = Talk(policy, [first, turn(policy, name)], adder.url, max_tokens=len(first) - 1)
    assert talk.completion.finish_reason is FinishReason.LENGTH
    assert talk.completion.token_ids == tuple(first[:-1])
    assert (talk.completion.tool_calls, len(adder.requests)) == ((), before)


Turn = tuple[list[float], list[str], str]
"""Noise as shares of the vocabulary, calls, and the token at the end."""


def turns_of(name: str) -> st.SearchStrategy[list[Turn]]:
    family = FAMILIES[name]
    text = st.text(max_size=8) | st.sampled_from([*family.stops, *family.special_tokens])
    good = st.builds(lambda value: family.call("add", {"text": value}), text)
    calls = st.lists(good | st.sampled_from(sorted(family.malformed)), min_size=1, max_size=2)
    noise = st.lists(st.floats(0, 1, exclude_max=True), max_size=20)
    return st.lists(st.tuples(noise, calls, st.sampled_from([*family.stops, ""])), min_size=2, max_size=4)


@pytest.mark.parametrize("name", WITH_TEMPLATES)
@settings(max_examples=12)
@given(data=st.data(), answers=st.lists(st.text(max_size=20), min_size=1, max_size=3))
def test_a_training_row_is_the_sampled_ids_in_order_with_masked_tokens_between(
    name: str,
    data: st.DataObject,
    answers: list[str],
    policy_of: Callable[[str], Policy],
    adder: ScriptedServer,
) -> None:
    turns = data.draw(turns_of(name))
    policy = policy_of(name)
    marks = FAMILIES[name].special_tokens
    given_answers = itertools.cycle([*answers, f"{marks[0]} {FAMILIES[name].stops[0]}"])
    spoken = [_spoken(policy, name, *each) for each in turns]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(adder, "answer", lambda request: next(given_answers))
        talk = Talk(policy, spoken, adder.url)
    completion, prompt = talk.completion, talk.prompt
    own = completion.sampled or (True,) * len(completion.token_ids)
    expected = [token for ids in spoken[: completion.turns] for token in ids]
    assert [token for token, sampled in zip(completion.token_ids, own, strict=True) if sampled] == expected
    assert len(list(itertools.groupby(own))) == 2 * completion.turns - 1

    starts = [0, *(at + 1 for at in range(len(own) - 1) if not own[at] and own[at + 1])]
    assert talk.inner.heard == {
        (0, 0, number): prompt.token_ids + completion.token_ids[:start] for number, start in enumerate(starts)
    }
    group = TrainingGroup(prompt.token_ids, (TrainingSequence.unweighted(completion, 0),))
    (batch,) = pack([group], 10_000, policy.device)
    assert batch.input_ids[0].tolist() == [*prompt.token_ids, *completion.token_ids]
    assert batch.targets_N.tolist() == expected


def _spoken(policy: Policy, name: str, noise: list[float], calls: list[str], end: str) -> list[int]:
    """A turn's ids up to its first stop token, as sampling ends there."""
    allowed = [token for token in range(len(policy.tokenizer)) if token not in policy.stop_set]
    said = turn(policy, name, *calls, end="")
    return [
        *(allowed[int(share * len(allowed))] for share in noise),
        *itertools.takewhile(lambda token: token not in policy.stop_set, said),
        *policy.tokenizer(end, add_special_tokens=False).input_ids,
    ]


def test_a_job_on_a_template_in_an_unknown_format_is_refused(
    policy_of: Callable[[str], Policy], monkeypatch: pytest.MonkeyPatch
) -> None:
    policy = policy_of("hermes")
    monkeypatch.setattr(policy.tokenizer, "chat_template", template("lfm2_2_5"))
    with pytest.raises(ConfigError, match="format that cannot be read"):
        ToolSampler(ScriptedSampler(policy, lambda stream: "done"), policy, [], max_turns=2)


def test_answers_inside_json_strings_are_escaped(policy_of: Callable[[str], Policy]) -> None:
    policy = policy_of("llama")
    renderer = AnswerRenderer(policy, tool_format(policy.tokenizer))
    ids = renderer.render(["add"], ['say "hi"\né'], last_token=1, room=1000)
    assert r'"say \"hi\"\né"' in policy.tokenizer.decode(list(ids or ()))
