"""Tool calls in texts, format by format: whatever a model writes is a call, a call with an error, or text."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from grpo_engine.config.job import Reinforcement
from grpo_engine.config.tool_formats import FORMATS, QUESTION, UnreadableFormat, calling_turns, find_format
from grpo_engine.contract.records import FinishReason, Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.rules.python_code import as_openai
from grpo_engine.models.chat_template import rendered
from grpo_engine.objective.types import Completion, GradedGroup, Group, Prompt
from grpo_engine.rollout.collector import StepGroups
from grpo_engine.rollout.overlap.rollout_state import groups_to_json
from grpo_engine.rollout.tools.calls import CallReader, ToolCall
from grpo_engine.rollout.tools.rendering import tool_format
from service.jobs.intake.checks.method import check_tools
from service.jobs.intake.report import Report
from service.platform.token_counting import load_model_text
from tests.engine.conftest import DIGITS
from tests.engine.rollout.tools.families import EVERY_TEMPLATE, FAMILIES, HERMES, template, tokenizer_of

TYPES = {
    "a": "integer",
    "code": "string",
    "nested": "object",
    "list": "array",
    "on": "boolean",
    "text": "string",
    "number": "string",
}
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "parameters": {
                "type": "object",
                "properties": {key: {"type": kind} for key, kind in TYPES.items()},
            },
        },
    }
    for name in ("add", "look_up")
]
HARD: dict[str, Any] = {
    "a": -12,
    "code": 'def f(x):\n    return {"a": [x, "\\n"]}\n\nprint(f(1) < 2)',
    "nested": {"deep": {"list": [1, 2.5, True], "quote": 'say "hi"'}, "empty": {}},
    "list": ["x", {"y": "z"}],
    "on": True,
    "text": "Zürich, 東京 🙂, it's {fine}",
    "number": "75001",
}
NAMES = sorted(FAMILIES)


def reader(name: str = "hermes") -> CallReader:
    (known,) = [each for each in FORMATS if each.name == FAMILIES[name].format]
    return CallReader(known, TOOLS)


def turn(name: str, *calls: tuple[str, Mapping[str, Any]]) -> str:
    family = FAMILIES[name]
    return "".join([family.wraps[0], "\n".join(family.call(*call) for call in calls), family.wraps[1]])


@pytest.mark.parametrize("name", NAMES)
def test_one_call_is_read_with_or_without_the_turns_end_token(name: str) -> None:
    text = turn(name, ("add", {"a": 3}))
    for end in ("", FAMILIES[name].stops[0]):
        assert reader(name).read(text + end) == [ToolCall("add", {"a": 3})]


@pytest.mark.parametrize("name", NAMES)
def test_two_calls_of_a_turn_are_read_in_their_order(name: str) -> None:
    text = turn(name, ("add", {"a": 1}), ("look_up", {"text": "b", "on": False}))
    expected = [ToolCall("add", {"a": 1}), ToolCall("look_up", {"text": "b", "on": False})]
    assert reader(name).read(text) == expected


@pytest.mark.parametrize("name", NAMES)
def test_nesting_quotes_newlines_and_any_script_arrive_unchanged(name: str) -> None:
    assert reader(name).read(turn(name, ("add", HARD))) == [ToolCall("add", HARD)]


@pytest.mark.parametrize("name", NAMES)
def test_a_call_without_arguments_has_none(name: str) -> None:
    assert reader(name).read(turn(name, ("add", {}))) == [ToolCall("add", {})]


@pytest.mark.parametrize("name", NAMES)
def test_text_around_a_call_is_not_part_of_it(name: str) -> None:
    text = turn(name, ("add", {"a": 3}))
    after = "" if name in ("harmony", "mistral") else "\nThat is it."  # there the turn ends with the call
    before = (
        "<|channel|>final<|message|>Let me see.<|end|><|start|>assistant" if name == "harmony" else "See: "
    )
    assert reader(name).read(f"{before}{text}{after}") == [ToolCall("add", {"a": 3})]


@pytest.mark.parametrize("name", NAMES)
def test_a_text_without_calls_has_none(name: str) -> None:
    assert reader(name).read("The sum is 7. {'name': 'add'} functions.add <tool>") == []


@pytest.mark.parametrize("name", NAMES)
def test_a_call_inside_the_thoughts_is_ignored(name: str) -> None:
    thoughts = FAMILIES[name].thoughts
    draft = "functions.add" if name == "harmony" else turn(name, ("add", {"a": 1}))
    assert reader(name).read(thoughts.format(f"I could {draft}")) == []
    read = reader(name).read(thoughts.format(f"I could {draft}") + turn(name, ("add", {"a": 2})))
    assert read == [ToolCall("add", {"a": 2})]


@pytest.mark.parametrize(
    ("name", "text"), [(name, text) for name in NAMES for text in FAMILIES[name].malformed]
)
def test_a_malformed_call_carries_the_reason_and_the_call_before_it_is_read(name: str, text: str) -> None:
    good = turn(name, ("add", {"a": 3}))
    (first, bad) = reader(name).read(f"{good}\n{text}")
    assert first == ToolCall("add", {"a": 3})
    assert bad.error.startswith(FAMILIES[name].malformed[text])


@pytest.mark.parametrize("name", NAMES)
def test_no_prefix_of_a_turn_raises(name: str) -> None:
    text = turn(name, ("add", HARD), ("look_up", HARD))
    for end in range(len(text)):
        for call in reader(name).read(text[:end]):
            assert call.error or any(known.startswith(call.name) for known in ("add", "look_up"))


@pytest.mark.parametrize("name", NAMES)
def test_long_texts_that_never_become_a_call_are_read_in_time(name: str) -> None:
    """A pattern with quadratic backtracking would take minutes."""
    start = turn(name, ("add", {"a": 3}))
    for end in range(1, len(start), 9):
        for text in (*(start[:end] + each * 50_000 for each in " \na<"), start[:end] * (50_000 // end)):
            assert all(call.error or call.name for call in reader(name).read(text))


@pytest.mark.parametrize(("name", "file"), EVERY_TEMPLATE)
def test_what_a_familys_own_template_writes_is_read_back(name: str, file: str) -> None:
    tokenizer = tokenizer_of(name, file)
    known = tool_format(tokenizer)
    assert known.name == FAMILIES[name].format
    text = _written(tokenizer, HARD)
    assert CallReader(known, TOOLS).read(text)[-1:] == [ToolCall("add", HARD)]


def _written(tokenizer: Any, arguments: Mapping[str, Any]) -> str:
    """The model's turn as its template writes it."""
    for turn in calling_turns(["add"], arguments):
        text = rendered(tokenizer, [QUESTION, turn]) or ""
        if "Zürich" in text:
            return text.rpartition("question")[2]
    raise AssertionError("the template refuses the call")


@pytest.mark.parametrize(("file", "written"), [("lfm2_2_5", "probe_function("), ("muse_glimmer", "<atem:")])
def test_a_template_in_an_unknown_format_is_refused_with_what_it_writes(file: str, written: str) -> None:
    tokenizer = tokenizer_of("hermes", file)
    with pytest.raises(UnreadableFormat, match=r"Readable formats: xml .*; hermes ") as refused:
        find_format(lambda messages: rendered(tokenizer, messages))
    assert written in str(refused.value)


PREFLIGHT = {
    "deepseekv3": "tools_not_shown",
    "deepseek_r1_distill": "tools_not_shown",
    "gemma3": "tools_not_shown",
    "lfm2": "tool_format_assumed",
    "lfm2_2_5": "unsupported_tool_format",
}
"""Problem or warning of templates that are not ready for tools."""


@pytest.mark.parametrize("file", sorted({*(file for _, file in EVERY_TEMPLATE), *PREFLIGHT}))
def test_preflight_decides_the_same_without_transformers(file: str, tmp_path: Path) -> None:
    tokenizer_of("hermes", file).save_pretrained(tmp_path)
    method = Reinforcement.model_validate(
        {"type": "reinforcement", "reinforcement": {"grader": DIGITS, "tools": [{"type": "python"}]}}
    )
    report = Report(method, tools=method.reinforcement.tools)
    check_tools(report, load_model_text(tmp_path))
    codes = [each["code"] for each in report.warnings] + [problem.code for problem in report.problems.found]
    assert codes == ([PREFLIGHT[file]] if file in PREFLIGHT else [])


@pytest.mark.parametrize("file", ["gemma3", "llama3", "phi3"])
def test_a_template_that_writes_no_calls_has_no_format(file: str) -> None:
    tokenizer = tokenizer_of("hermes", file)
    assert find_format(lambda messages: rendered(tokenizer, messages)) is None
    assert tool_format(tokenizer).name == "hermes"


def test_a_last_call_without_its_end_tag_counts() -> None:
    assert reader().read('<tool_call>{"name": "add", "arguments": {"a": 2}}') == [ToolCall("add", {"a": 2})]


def test_arguments_may_be_json_in_a_string_and_may_be_left_out() -> None:
    (call,) = reader().read(r'<tool_call>{"name": "add", "arguments": "{\"a\": 3}"}</tool_call>')
    assert call == ToolCall("add", {"a": 3})
    (call,) = reader().read('<tool_call>{"name": "now"}</tool_call>')
    assert call == ToolCall("now", {})


@pytest.mark.parametrize(
    ("text", "error"),
    [
        ('{"name": "add", "arguments": {"a": NaN}}', "the call is not JSON"),
        ("[" * 100_000, "the call is not JSON"),
        ("[1]", 'a call is {"name"'),
        ('{"name": 3}', 'a call is {"name"'),
        ('{"name": "add", "arguments": [1]}', "arguments must be a JSON object"),
        ('{"name": "add", "arguments": "one"}', "arguments must be a JSON object"),
        (f'{{"name": "add", "arguments": {{"a": {"[" * 200}{"]" * 200}}}}}', "arguments have more than 200"),
    ],
)
def test_an_unreadable_call_carries_the_reason(text: str, error: str) -> None:
    (call,) = reader().read(f"<tool_call>{text}</tool_call>")
    assert call.error.startswith(error)


def test_the_deepest_arguments_of_a_call_survive_a_checkpoint_and_reach_graders() -> None:
    nested = "[" * 199 + "]" * 199
    (call,) = reader().read(f'<tool_call>{{"name": "add", "arguments": {{"a": {nested}}}}}</tool_call>')
    recorded = {"name": call.name, "arguments": call.arguments, "answer": "", "error": False}
    completion = Completion("", (1,), (0.0,), FinishReason.STOP, 1, tool_calls=(recorded,))
    group = GradedGroup(Group(Prompt(0, "", (1,), {}), (completion,)), (Score(reward=1.0),))
    assert call.arguments
    assert groups_to_json(StepGroups([group], []))
    assert as_openai(make_sample("", tools=[recorded]))


def test_unpaired_surrogates_that_no_record_can_store_become_question_marks() -> None:
    (call,) = reader().read(r'<tool_call>{"name": "a\ud800", "arguments": {"\ud801": "\ud802"}}</tool_call>')
    assert call == ToolCall("a?", {"?": "?"})


def test_arguments_between_tags_get_the_types_of_the_tools_schema() -> None:
    text = turn("xml", ("add", {"a": 5, "number": 5, "on": True, "unknown": 5}), ("other", {"a": 5}))
    assert reader("xml").read(text) == [
        ToolCall("add", {"a": 5, "number": "5", "on": True, "unknown": "5"}),
        ToolCall("other", {"a": "5"}),
    ]


def test_indentation_of_code_between_tags_stays() -> None:
    code = "    x = 1\n\n    y = 2  "
    assert reader("xml").read(turn("xml", ("add", {"code": code})))[0].arguments == {"code": code}


@pytest.mark.parametrize(
    ("written", "call"),
    [
        ('{"name": "add", "parameters": {"a": 3}}', ToolCall("add", {"a": 3})),
        ('{"type": "function", "name": "add", "parameters": {"a": 3}}', ToolCall("add", {"a": 3})),
        ('look_up.call(text="b", a=3)', ToolCall("look_up", {"text": "b", "a": 3})),
        ("print(2 * 3)\nx.call(4)", ToolCall("python", {"code": "print(2 * 3)\nx.call(4)"})),
    ],
)
def test_llamas_python_tag_comes_before_json_a_named_call_or_code(written: str, call: ToolCall) -> None:
    assert reader("llama").read(f"<|python_tag|>{written}<|eom_id|>") == [call]


@pytest.mark.parametrize(
    ("broken", "calls"), [('{"name": <name>}', 0), ('{"name": "add" "arguments": {}}', 1)]
)
def test_a_call_after_json_that_cannot_be_read_is_read(broken: str, calls: int) -> None:
    *bad, good = reader("llama").read(f"{broken}; {turn('llama', ('add', {'a': 3}))}")
    assert [each.error[:20] for each in bad] == ["the call is not JSON"] * calls
    assert good == ToolCall("add", {"a": 3})


def test_json_that_is_not_a_call_is_text() -> None:
    text = '{"name": "Ada", "age": 36} and {"person": {"name": "Bob"}}'
    assert reader("llama").read(text) == []
    nested = {"person": {"name": "Bob", "parameters": {}}}
    assert reader("llama").read(turn("llama", ("add", nested))) == [ToolCall("add", nested)]


def test_deepseek_v31_and_older_mistral_are_read() -> None:
    v31 = '<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>add<｜tool▁sep｜>{"a": 3}<｜tool▁call▁end｜>'
    assert reader("deepseek").read(v31) == [ToolCall("add", {"a": 3})]
    listed = '[TOOL_CALLS] [{"name": "add", "arguments": {"a": 3}, "id": "call00000"}]</s>'
    assert reader("llama").read(listed) == [ToolCall("add", {"a": 3})]


def test_every_format_has_a_family_here() -> None:
    assert {each.name for each in FORMATS} == {each.format for each in FAMILIES.values()}
    assert HERMES.templates
    assert "tool_calls" in template("qwen3")
