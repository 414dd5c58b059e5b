"""Rows as tokens: refusals name the row, the date is the job's."""

from collections.abc import Callable
from pathlib import Path

import pytest
from tokenizers.normalizers import Prepend
from tokenizers.processors import TemplateProcessing

from grpo_engine.contract.errors import DatasetError
from grpo_engine.models.policy import Policy
from grpo_engine.rollout.dataset import RowReader, read_rows
from grpo_engine.training.self_distillation import distillation_terms
from tests.engine.conftest import add_token_without_embedding, sum_rows
from tests.engine.training.test_self_distillation import scored, settings


def test_a_template_that_refuses_a_row_names_it(make_policy: Callable[..., Policy]) -> None:
    tokenizer = make_policy().tokenizer
    tokenizer.chat_template = "{{ raise_exception('no such role') }}"
    with pytest.raises(DatasetError, match="row 1: the model's chat template refuses it: no such role"):
        RowReader(tokenizer).prompts(sum_rows(1))


@pytest.mark.parametrize("fault", ["{{ 1 // 0 }}", "{{ '%(x)s' % {} }}"])
def test_a_template_that_fails_on_a_row_names_it(make_policy: Callable[..., Policy], fault: str) -> None:
    tokenizer = make_policy().tokenizer
    tokenizer.chat_template = fault
    with pytest.raises(DatasetError, match="row 1: the model's chat template refuses it"):
        RowReader(tokenizer).prompts(sum_rows(1))


def test_a_model_without_a_template_refuses_conversations(make_policy: Callable[..., Policy]) -> None:
    tokenizer = make_policy().tokenizer
    tokenizer.chat_template = None
    with pytest.raises(DatasetError, match="row 1"):
        RowReader(tokenizer).prompts(sum_rows(1))


def test_a_tokenizer_that_ends_every_text_leaves_prompts_open(make_policy: Callable[..., Policy]) -> None:
    tokenizer = make_policy().tokenizer
    end = ("<|end|>", tokenizer.eos_token_id)
    tokenizer._tokenizer.post_processor = TemplateProcessing(single="$A <|end|>", special_tokens=[end])
    reader = RowReader(tokenizer)
    (row,) = reader.demonstrations([{"prompt": "1+1=", "completion": "2"}], 100)
    assert tokenizer.decode(list(row.token_ids)) == "1+1="
    assert tokenizer.decode(list(row.target_ids)) == "2<|end|>"
    assert tokenizer.decode(list(reader.rewritten(row, lambda text: f"{text}?"))) == "1+1=?"
    (own,) = reader.prompts([{"prompt": "1<|end|>"}])
    assert tokenizer.decode(list(own.token_ids)) == "1<|end|>"


def test_a_tokenizer_that_opens_every_text_with_a_space_puts_none_before_an_answer(
    make_policy: Callable[..., Policy],
) -> None:
    tokenizer = make_policy().tokenizer
    tokenizer._tokenizer.normalizer = Prepend(" ")
    tokenizer.chat_template = "{% for message in messages %}{{ message.content }}{% endfor %}"
    turns = [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]
    rows = [{"messages": turns}, {"prompt": "1+1=", "completion": "2"}]
    for row in RowReader(tokenizer).demonstrations(rows, 100):
        assert tokenizer.decode([*row.token_ids, *row.target_ids]) == " 1+1=2<|end|>"


def test_a_demonstration_without_a_prompt_is_refused(make_policy: Callable[..., Policy]) -> None:
    tokenizer = make_policy().tokenizer
    tokenizer.chat_template = "{% if messages | length > 1 %}{{ messages[1].content }}{% endif %}"
    row = {"messages": [{"role": "user", "content": "1+1="}, {"role": "assistant", "content": "2"}]}
    with pytest.raises(DatasetError, match="row 1 has an empty prompt"):
        RowReader(tokenizer).demonstrations([row], 100)


def test_a_template_that_prints_the_date_prints_the_jobs(make_policy: Callable[..., Policy]) -> None:
    tokenizer = make_policy().tokenizer
    tokenizer.chat_template = "{{ strftime_now('%Y-%m-%d') }}"
    (prompt,) = RowReader(tokenizer, created_at=86_400.0).prompts(sum_rows(1))
    assert prompt.text == "1970-01-02"


def test_text_parts_are_joined_and_an_empty_list_of_tools_is_left_out(
    make_policy: Callable[..., Policy],
) -> None:
    tokenizer = make_policy().tokenizer
    parts = [{"type": "text", "text": "1+"}, {"type": "text", "text": "1="}]
    row = {"messages": [{"role": "user", "content": parts}], "tools": []}
    (prompt,) = RowReader(tokenizer).prompts([row])
    assert prompt.text == "<|user|>1+1=<|assistant|>"


def test_a_line_that_is_not_json_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_text('{"a": 1}\nnot json\n')
    with pytest.raises(DatasetError, match=r"rows.jsonl line 2 is not JSON"):
        read_rows(tmp_path / "rows.jsonl")


def test_a_carriage_return_inside_a_row_ends_no_line(tmp_path: Path) -> None:
    (tmp_path / "rows.jsonl").write_bytes(b'{"a": 1,\r "b": 2}\r\n\r\n{"a": 3}\n')
    assert read_rows(tmp_path / "rows.jsonl") == [{"a": 1, "b": 2}, {"a": 3}]


def test_a_token_that_the_model_lacks_is_left_out_of_feedback(make_policy: Callable[..., Policy]) -> None:
    policy = make_policy()
    texts = f"try {add_token_without_embedding(policy)}8", "try 8"
    rewrite, prompts = RowReader(policy.tokenizer).rewritten, []
    for text in texts:
        (term,) = distillation_terms(policy, settings(), [scored(policy, [0.0], feedback=text)], rewrite)
        prompts += [each.prompt_ids for each in term.batch.teacher.values()]
    assert prompts[0] == prompts[1]
