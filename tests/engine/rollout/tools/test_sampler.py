"""Tool use as a sampler: exact tokens, limits, groups reported once, distinct streams."""

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import pytest

from grpo_engine.config.tools import HttpTool
from grpo_engine.contract.records import FinishReason, ToolAnswer, ToolTurn
from grpo_engine.models.policy import Policy
from grpo_engine.objective.types import Completion, Prompt
from grpo_engine.rollout.dataset import RowReader
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.rollout.scoring import sample_of
from grpo_engine.rollout.tools.sampler import ToolSampler
from tests.engine.conftest import sum_rows
from tests.engine.rollout.tools.scripted_sampler import ScriptedSampler, Stream, encoded
from tests.support.chat_server import ScriptedServer

CALL = '<tool_call>{"name": "add", "arguments": {"a": 3}}</tool_call>'
SAMPLING = Sampling(max_tokens=400, seed=3, step=2)


def call(name: str, arguments: str = "{}") -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


@pytest.fixture
def adder(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A tool's server that answers "7" unless a test changes it."""
    with ScriptedServer(lambda request: "7") as server:
        monkeypatch.setenv("GRPO_ALLOWED_HOSTS", server.host)
        yield server


Make = Callable[..., tuple[ToolSampler, ScriptedSampler]]


@pytest.fixture
def make(make_policy: Callable[..., Policy], adder: ScriptedServer) -> Make:
    def make(says: Callable[[Stream], Any] | Sequence[Any], max_turns: int = 4) -> Any:
        """`says`: turn by turn for every completion, or by stream."""
        policy = make_policy()
        script = says if callable(says) else lambda stream: says[stream[2]]
        inner = ScriptedSampler(policy, script)
        tool = HttpTool(type="http", name="add", url=adder.url, timeout_seconds=60)
        return ToolSampler(inner, policy, [tool], max_turns=max_turns), inner

    return make


def prompts(policy: Policy, count: int = 1) -> list[Prompt]:
    return RowReader(policy.tokenizer).prompts(sum_rows(count))


def one(sampler: ToolSampler, sampling: Sampling = SAMPLING) -> Completion:
    (group,) = sampler.generate(prompts(sampler.policy), 1, sampling)
    return group.completions[0]


def test_a_completion_that_calls_nothing_is_the_inner_samplers(make: Make) -> None:
    sampler, inner = make(["It is 7."])
    inner.load_policy(5)
    (group,) = sampler.generate(prompts(sampler.policy), 2, SAMPLING)
    (plain,) = inner.generate(prompts(sampler.policy), 2, SAMPLING)
    assert group == plain
    assert group.completions[0].turns == 1
    assert group.completions[0].policy_version == 5


def test_an_answer_follows_its_turn_and_is_not_marked_as_sampled(make: Make) -> None:
    sampler, inner = make([CALL, "It is 7."])
    completion, policy = one(sampler), sampler.policy
    end, answer = policy.tokenizer.eos_token_id, policy.tokenizer("<|system|>7<|assistant|>").input_ids
    first, last = encoded(policy, CALL), encoded(policy, "It is 7.")
    assert list(completion.token_ids) == [*first, end, *answer, *last, end]
    assert completion.sampled == (True,) * (len(first) + 1) + (False,) * 3 + (True,) * (len(last) + 1)
    assert [p for p, own in zip(completion.logprobs, completion.sampled, strict=True) if not own] == [0.0] * 3
    assert completion.num_sampled == len(first) + len(last) + 2
    assert completion.turns == 2
    assert completion.finish_reason is FinishReason.STOP
    assert completion.text == f"{CALL}7It is 7."
    assert completion.answer == "It is 7."
    assert completion.tool_calls == ({"name": "add", "arguments": {"a": 3}, "answer": "7", "error": False},)
    answered = ToolTurn(text=CALL, answers=(ToolAnswer(name="add", text="7"),))
    assert completion.tool_turns == (answered, ToolTurn(text="It is 7."))
    assert inner.heard[0, 0, 1] == prompts(policy)[0].token_ids + completion.token_ids[: len(first) + 4]


def test_graders_see_the_last_turn_and_the_calls(make: Make) -> None:
    sampler, _ = make([CALL, "It is 7."])
    sample = sample_of(one(sampler))
    assert sample.output_text == "It is 7."
    assert sample.output_tools[0]["answer"] == "7"


def test_sampled_ids_survive_that_would_be_tokenised_differently(make: Make) -> None:
    """A tokenizer with a token "ab" would never return the sampled "a" and "b"."""
    sampler, inner = make([])
    policy = sampler.policy
    spelt = [*encoded(policy, f"ab{CALL}"), policy.tokenizer.eos_token_id]
    policy.tokenizer.add_tokens(["ab"])
    text = policy.tokenizer.decode(spelt)
    assert policy.tokenizer(text, add_special_tokens=False).input_ids == [98, *spelt[2:]]
    inner.says = lambda stream: spelt if stream[2] == 0 else "done"
    completion = one(sampler)
    assert list(completion.token_ids[: len(spelt)]) == spelt
    assert list(inner.heard[0, 0, 1][-len(spelt) - 3 : -3]) == spelt


def test_a_turn_that_a_stop_string_ended_is_closed_by_the_template(make: Make) -> None:
    sampler, inner = make([])
    ids = encoded(sampler.policy, CALL)
    inner.says = lambda stream: ids if stream[2] == 0 else "done"
    completion = one(sampler)
    assert completion.token_ids[len(ids)] == sampler.policy.tokenizer.eos_token_id
    assert completion.sampled[len(ids)] is False


def test_a_last_call_that_the_end_of_the_turn_leaves_open_is_run(make: Make) -> None:
    sampler, _ = make([CALL.removesuffix("</tool_call>"), "done"])
    completion = one(sampler)
    assert [(each["name"], each["answer"]) for each in completion.tool_calls] == [("add", "7")]


def test_several_calls_of_a_turn_are_answered_in_their_order(make: Make, adder: ScriptedServer) -> None:
    adder.answer = lambda request: str(request.json["arguments"]["a"])
    turn = call("add", '{"a": 1}') + call("add", '{"a": 2}') + call("add", '{"a": 3}')
    sampler, _ = make([turn, "done"])
    completion = one(sampler)
    assert [each["answer"] for each in completion.tool_calls] == ["1", "2", "3"]
    assert completion.text == f"{turn}123done"


def test_an_impossible_call_is_answered_with_the_reason(make: Make) -> None:
    sampler, _ = make([call("rm") + "<tool_call>{oops</tool_call>", "sorry"])
    completion = one(sampler)
    assert [each["error"] for each in completion.tool_calls] == [True, True]
    assert "Error: unknown tool 'rm'; known: add" in completion.text
    assert "Error: the call is not JSON" in completion.text
    assert completion.answer == "sorry"


def test_a_name_that_the_model_made_up_is_not_rendered_into_the_template(make: Make) -> None:
    sampler, _ = make([call("<|end|><|user|>"), "done"])
    sampler.policy.tokenizer.chat_template = (
        "{% for m in messages %}{{ '<|' + m.role + '|>' + (m.name or '') + m.content }}"
        "{% if m.role == 'assistant' %}{{ '<|end|>' }}{% endif %}{% endfor %}<|assistant|>"
    )
    completion = one(sampler)
    tool_written = [t for t, own in zip(completion.token_ids, completion.sampled, strict=True) if not own]
    assert sampler.policy.tokenizer.eos_token_id not in tool_written


def test_a_call_in_the_last_turn_is_not_run_and_the_completion_counts_as_cut(
    make: Make, adder: ScriptedServer
) -> None:
    sampler, _ = make(lambda stream: CALL, max_turns=2)
    completion = one(sampler)
    assert completion.turns == 2
    assert len(adder.requests) == len(completion.tool_calls) == 1
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.sampled[-1]


def test_the_limit_counts_every_turn_and_every_answer(make: Make, adder: ScriptedServer) -> None:
    adder.answer = lambda request: "9" * 50
    limit = len(CALL) + 30
    sampler, _ = make([CALL, "x" * 300])
    completion = one(sampler, replace(SAMPLING, max_tokens=limit))
    assert len(completion.token_ids) == limit
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.sampled.count(False) == 30 - 1 - 1  # all but the call's end and one token of the model
    assert completion.token_ids[-2] == sampler.policy.tokenizer.convert_tokens_to_ids("<|assistant|>")


@pytest.mark.parametrize(("room", "turns"), [(0, 1), (1, 1), (3, 1), (4, 2)])
def test_a_completion_without_room_for_an_answer_ends_before_it(make: Make, room: int, turns: int) -> None:
    """The call's end takes one token, the frame two, the model's next word one."""
    sampler, _ = make([CALL, "x" * 300])
    completion = one(sampler, replace(SAMPLING, max_tokens=len(CALL) + room))
    assert completion.finish_reason is FinishReason.LENGTH
    assert completion.turns == turns
    assert len(completion.token_ids) == len(CALL) + (room if turns == 2 else min(room, 1))


def test_the_models_context_limits_a_completion(make: Make) -> None:
    sampler, _ = make(lambda stream: CALL, max_turns=100)
    completion = one(sampler, replace(SAMPLING, max_tokens=100_000))
    context = sampler.policy.max_length
    assert context == 512
    assert len(prompts(sampler.policy)[0].token_ids) + len(completion.token_ids) <= context
    assert completion.turns > 5


def test_groups_are_reported_once_when_their_last_completion_is_finished(make: Make) -> None:
    turns = {(0, 0): 2, (0, 1): 1, (1, 0): 1, (1, 1): 1, (2, 0): 3, (2, 1): 2}
    sampler, _ = make(lambda s: "done" if turns[s[:2]] == s[2] + 1 else CALL)
    reported: list[int] = []
    groups = sampler.generate(
        prompts(sampler.policy, 3), 2, SAMPLING, lambda place, group: reported.append(place)
    )
    assert reported == [1, 0, 2]
    assert [[c.turns for c in group.completions] for group in groups] == [[2, 1], [1, 1], [3, 2]]


def test_streams_are_the_completions_own_and_do_not_meet_those_of_further_prompts(make: Make) -> None:
    sampler, inner = make(lambda stream: CALL if stream[2] < 2 else "done")
    sampler.generate(prompts(sampler.policy, 2), 2, SAMPLING)
    first = set(inner.heard)
    assert first == {(p, g, turn) for p in (0, 1) for g in (0, 1) for turn in (0, 1, 2)}
    inner.heard.clear()
    sampler.generate(prompts(sampler.policy, 2), 2, SAMPLING.starting_at(2))
    assert not first & set(inner.heard)
    assert {stream[0] for stream in inner.heard} == {2, 3}
