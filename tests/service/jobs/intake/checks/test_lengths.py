"""Rows as a model reads them: what its chat template leaves out is a problem of the row, or a warning."""

from pathlib import Path
from typing import Any

import pytest
from fastapi.testclient import TestClient

from service.jobs.intake.lengths import LengthCheck
from service.jobs.model.dataset import Problems, Row
from service.platform.token_counting import load_model_text
from service.settings import Settings
from tests.conftest import on_sqlite
from tests.service.job_samples import (
    CONTEXT_TOKENS,
    METHOD,
    chat,
    jsonl,
    make_model,
    reinforcement,
    request,
    upload,
)


def test_a_row_without_a_prompt_is_a_problem_of_that_row(tmp_path: Path) -> None:
    """The first token of a completion is predicted from the prompt's last one."""
    template = "{% if messages | length > 1 %}{{ messages[0].content }}{% endif %}"
    check = LengthCheck(
        load_model_text(make_model(tmp_path, template=template)),
        METHOD.validate_python({"type": "supervised"}),
        CONTEXT_TOKENS,
        "training_file",
        Problems(),
    )
    rows = [Row(line, chat()["messages"], None, None, (), {}) for line in (1, 2)]
    assert len(list(check.watch(rows))) == 2
    assert [each.message for each in check.problems.found] == [
        "training_file[1].messages: has no tokens before the completion",
        "training_file[2].messages: has no tokens before the completion",
    ]


def test_tool_calls_that_the_template_would_leave_out_of_a_demonstration_are_refused(tmp_path: Path) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": {}}}
    answers = [{"role": "assistant", "content": text, "tool_calls": [call]} for text in ("one two", "", None)]
    rows = [Row(3, ({"role": "user", "content": "four"}, each), None, None, (), {}) for each in answers]
    content = "{% for message in messages %}{{ message.content or '' }} {% endfor %}"
    calls = "{% for call in messages[-1].tool_calls or [] %}{{ call.function.name }}{% endfor %}"
    found = []
    for name, template in (("without", content), ("with", content + calls)):
        problems, supervised = Problems(), METHOD.validate_python({"type": "supervised"})
        text = load_model_text(make_model(tmp_path / name, template=template))
        list(LengthCheck(text, supervised, CONTEXT_TOKENS, "training_file", problems).watch(rows))
        found.append([each.message for each in problems.found])
    reason = "training_file[3].messages: the model's chat template leaves out the last message's tool_calls"
    assert found == [[f"{reason}. Write it in its content, or remove it"] * 3, []]


def test_thoughts_that_the_template_would_leave_out_of_a_demonstration_are_refused(tmp_path: Path) -> None:
    question, answer = {"role": "user", "content": "four"}, {"role": "assistant", "content": "one"}
    thoughts: list[dict[str, Any]] = [
        {"thinking": "two"},
        {"reasoning_content": "two"},
        {"reasoning": "two", "thinking": "two"},
        {"thinking": "two", "tool_calls": [{"function": {"name": "add", "arguments": {}}}]},
    ]
    rows = [Row(line, (question, answer | own), None, None, (), {}) for line, own in enumerate(thoughts, 1)]
    turn = "{% if message.role == 'assistant' %}<think>{{ message.thinking }}</think>{% endif %}"
    said = f"{{% for message in messages %}}{turn}{{{{ message.content }}}} <end>{{% endfor %}}"
    thoughtless = said + "{% if add_generation_prompt %}<think></think>{% endif %}"
    found = []
    for name, template in (("thoughtful", said), ("thoughtless", thoughtless)):
        problems, supervised = Problems(), METHOD.validate_python({"type": "supervised"})
        text = load_model_text(make_model(tmp_path / name, template=template))
        list(LengthCheck(text, supervised, CONTEXT_TOKENS, "training_file", problems).watch(rows))
        found.append([each.message for each in problems.found])
    reason = "messages: the model's chat template leaves out the last message's"
    refused = [
        f"training_file[{line}].{reason} {name}. Write it in its content, or remove it"
        for line, name in ((1, "thinking"), (2, "reasoning_content"), (3, "reasoning"), (4, "thinking"))
    ]
    assert found == [[refused[1], refused[3].replace("thinking", "tool_calls")], refused]


def test_an_end_of_sequence_inside_a_learned_text_is_refused(tmp_path: Path) -> None:
    """The model stops there, so the engine learns no further."""
    problems, supervised = Problems(), METHOD.validate_python({"type": "supervised"})
    text = load_model_text(make_model(tmp_path))
    end = text.special_tokens["eos_token"]
    question = {"role": "user", "content": f"four {end} two"}
    texts = (f"one {end}\n", f"one {end} two")
    turns = [(question, {"role": "assistant", "content": each}) for each in texts]
    rows = [Row(line, messages, None, None, (), {}) for line, messages in enumerate(turns, 1)]
    rows += [Row(line, None, "four", each, (), {}) for line, each in enumerate(texts, 3)]
    list(LengthCheck(text, supervised, CONTEXT_TOKENS, "training_file", problems).watch(rows))
    reason = f"has the model's end of sequence, {end}, inside the text that is learned"
    assert [each.message for each in problems.found] == [
        f"{place}: {reason}, and the rest would not be learned: remove it"
        for place in ("training_file[2].messages", "training_file[4].completion")
    ]


@on_sqlite
@pytest.mark.parametrize("method", [{"type": "supervised"}, reinforcement()])
def test_tools_of_rows_that_the_template_leaves_out_cause_a_warning(
    client: TestClient, settings: Settings, method: dict[str, Any]
) -> None:
    messages = chat("four", "one")["messages"][: 2 if method["type"] == "supervised" else 1]
    rows = [{"messages": messages, "answer": "4", "tools": tools} for tools in ([], [{"name": "add"}])]
    said = "{% for message in messages %}{{ message.content }} {% endfor %}"
    found = []
    for name, template in (("tiny", said), ("showing", said + "{{ tools }}")):
        make_model(settings.home, name, template=template)
        body = request(upload(client, jsonl(*rows)), method=method, model=name)
        warnings = client.post("/v1/fine_tuning/jobs/validate", json=body).json()["warnings"]
        found.append([each["message"] for each in warnings if each["code"] == "tools_not_shown"])
    reason = "training_file[2].messages: the model's chat template leaves out the row's tools."
    assert found == [[f"{reason} Describe them in the row's messages."], []]


@on_sqlite
@pytest.mark.parametrize("method", [{"type": "supervised"}, reinforcement()])
def test_earlier_tool_calls_that_the_template_leaves_out_cause_a_warning(
    client: TestClient, settings: Settings, method: dict[str, Any]
) -> None:
    call = {"id": "a", "type": "function", "function": {"name": "add", "arguments": "{}"}}
    calling = {"role": "assistant", "content": "", "tool_calls": [call]}
    answer = {"role": "tool", "tool_call_id": "a", "content": "4"}
    question, turn = {"role": "user", "content": "four"}, {"role": "assistant", "content": "one"}
    last = turn if method["type"] == "supervised" else question
    said = [[question, turn, question, last], *([question, calling, answer, last],) * 2]
    rows = jsonl(*({"messages": [*messages], "answer": "4"} for messages in said))
    content = "{% for message in messages %}{{ message.content }} {% endfor %}"
    calls = "{% for message in messages if message.tool_calls %}{{ message.tool_calls | length }}{% endfor %}"
    found = []
    for name, template in (("tiny", content), ("showing", content + calls)):
        make_model(settings.home, name, template=template)
        body = request(upload(client, rows), method=method, model=name)
        report = client.post("/v1/fine_tuning/jobs/validate", json=body).json()
        assert report["valid"] is True
        warnings = [each for each in report["warnings"] if each["code"] == "tool_calls_not_shown"]
        found.append([each["message"] for each in warnings])
    reason = (
        "training_file[2].messages: the model's chat template leaves out the tool_calls of earlier turns "
        "(and 1 more like it). Write them in the content of those turns."
    )
    assert found == [[reason], []]
