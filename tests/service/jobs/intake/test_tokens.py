"""Token lengths and chat templates without transformers."""

import json
import os
from itertools import product
from pathlib import Path

import pytest
from tokenizers import Tokenizer
from tokenizers.models import BPE
from tokenizers.processors import TemplateProcessing

from service.jobs.intake import lengths
from service.jobs.intake.lengths import LengthCheck
from service.jobs.model.dataset import Problems, Row
from service.platform import token_counting
from service.platform.token_counting import (
    DamagedModelTextError,
    ModelTextError,
    RenderError,
    load_model_text,
)
from tests.service.job_samples import CONTEXT_TOKENS, METHOD, make_model, reinforcement

MESSAGES = [{"role": "system", "content": "Be brief"}, {"role": "user", "content": "What is 2+2?"}]


def test_a_conversation_renders_with_the_assistants_opening(tmp_path: Path) -> None:
    text = load_model_text(make_model(tmp_path))
    rendered = text.render(MESSAGES, None, for_completion=True)
    assert rendered == "<system> Be brief <user> What is 2+2? <assistant> "
    assert text.render(MESSAGES, None, for_completion=False) == "<system> Be brief <user> What is 2+2? "
    assert text.lengths([rendered, "one two"], rendered=True) == [8, 2]


@pytest.mark.parametrize("name", ["config.json", "tokenizer_config.json"])
def test_a_file_that_is_nested_too_deeply_cannot_be_read(tmp_path: Path, name: str) -> None:
    folder = make_model(tmp_path)
    (folder / name).write_text("[" * 100_000)
    with pytest.raises(DamagedModelTextError, match=f"{name} cannot be read"):
        load_model_text(folder)


def test_a_template_that_is_not_text_cannot_be_read(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    (folder / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(DamagedModelTextError, match=r"chat_template\.jinja cannot be read"):
        load_model_text(folder)


def test_a_file_without_access_is_named_without_its_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = make_model(tmp_path)

    def refused(path: Path, _encoding: str) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    monkeypatch.setattr(Path, "read_text", refused)
    with pytest.raises(ModelTextError, match=r"^\w+\.json cannot be read: Permission denied$"):
        load_model_text(folder)


def test_a_template_without_an_end_refuses_the_conversation(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    endless = "{% macro again(x) %}{{ again(x) }}{% endmacro %}{{ again(1) }}"
    (folder / "chat_template.jinja").write_text(endless)
    with pytest.raises(RenderError):
        load_model_text(folder).render(MESSAGES, None, for_completion=True)


def test_a_target_ends_with_one_end_of_sequence(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["</s>"])
    tokenizer.save(str(folder / "tokenizer.json"))
    text = load_model_text(folder)
    assert text.target_lengths(["one two", "one two</s>", "one </s> \n more"]) == [3, 3, 2]


def test_an_end_of_sequence_that_the_tokenizer_appends_is_not_part_of_a_prompt(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    tokenizer.add_special_tokens(["<s>", "</s>"])
    marks = [(mark, tokenizer.token_to_id(mark)) for mark in ("<s>", "</s>")]
    tokenizer.post_processor = TemplateProcessing(single="<s> $A </s>", special_tokens=marks)
    tokenizer.save(str(folder / "tokenizer.json"))
    assert load_model_text(folder).lengths(["one two", "one two</s>"], rendered=False) == [1 + 2, 1 + 3]


def test_a_text_too_long_to_be_tokenized_at_once_is_counted_in_pieces(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A row of 8 MiB would take a gigabyte, and a file may have sixty of them."""
    monkeypatch.setattr(token_counting, "PIECE_CHARACTERS", 8)
    text = load_model_text(make_model(tmp_path))
    assert text.lengths(["one two ", "", "one two three four ", "four"], rendered=True) == [2, 0, 4 + 1, 1]
    assert text.lengths(["", "one two one two "], rendered=False) == [0, 4]
    assert text.target_lengths(["one two three four ", "", "one two "]) == [5 + 1, 1, 3]


def test_long_rows_do_not_wait_for_one_another(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lengths, "BATCH_CHARACTERS", 100)
    check = LengthCheck(
        load_model_text(make_model(tmp_path)),
        METHOD.validate_python(reinforcement()),
        CONTEXT_TOKENS,
        "training_file",
        Problems(),
    )
    rows = [Row(line, None, "one two " * 10, None, (), {}) for line in range(1, 8)]
    waiting = [len(check._waiting) for _ in check.watch(rows)]
    assert waiting == [1, 0, 1, 0, 1, 0, 1]
    assert (check.counted.rows, check.problems.found) == (7, [])


def test_text_parts_are_joined(tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "2"}, {"type": "text", "text": "+2"}]
    text = load_model_text(make_model(tmp_path))
    assert text.render([{"role": "user", "content": parts}], [], for_completion=False) == "<user> 2+2 "


def test_the_context_comes_from_the_config(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    assert load_model_text(folder).context_tokens == CONTEXT_TOKENS
    (folder / "config.json").write_text(json.dumps({"n_positions": 32}))
    os.utime(folder / "config.json", (1, 1))
    assert load_model_text(folder).context_tokens == 32
    (folder / "config.json").write_text(json.dumps({"text_config": {"max_position_embeddings": 16}}))
    os.utime(folder / "config.json", (2, 2))
    assert load_model_text(folder).context_tokens == 16


def test_a_template_file_goes_before_the_tokenizers_own(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    template = "{{ bos_token }}{% generation %}{{ messages[0].content }}{% endgeneration %}{{ eos_token }}"
    (folder / "chat_template.jinja").write_text(template)
    rendered = load_model_text(folder).render(MESSAGES, None, for_completion=True)
    assert rendered == "Be brief</s>"


def test_tools_render_as_plain_json(tmp_path: Path) -> None:
    text = load_model_text(make_model(tmp_path, template="{{ tools | tojson }}"))
    assert text.render(MESSAGES, [{"name": "<é>"}], for_completion=True) == '[{"name": "<é>"}]'


def test_a_template_may_refuse_a_conversation(tmp_path: Path) -> None:
    text = load_model_text(make_model(tmp_path, template="{{ raise_exception('no system role') }}"))
    with pytest.raises(RenderError, match="the model's chat template refuses it: no system role"):
        text.render(MESSAGES, None, for_completion=True)


def test_a_template_that_writes_half_a_character_refuses_the_conversation(tmp_path: Path) -> None:
    text = load_model_text(make_model(tmp_path, template=r"{{ '\ud83d' }}{{ messages[0].content }}"))
    with pytest.raises(RenderError, match=r"the model's chat template refuses it: .*surrogates not allowed"):
        text.render(MESSAGES, None, for_completion=True)


def test_a_template_cannot_reach_python(tmp_path: Path) -> None:
    text = load_model_text(make_model(tmp_path, template="{{ ''.__class__.__mro__ }}"))
    with pytest.raises(RenderError, match="unsafe"):
        text.render(MESSAGES, None, for_completion=True)


def test_a_model_without_template_cannot_render(tmp_path: Path) -> None:
    text = load_model_text(make_model(tmp_path, template=None))
    with pytest.raises(RenderError, match="no chat template"):
        text.render(MESSAGES, None, for_completion=True)


@pytest.mark.parametrize("template", ["{% if %}", "{{ messages", "{% unknown %}", "{{ " + "(" * 5_000])
def test_a_template_that_jinja_cannot_parse_refuses_every_conversation(tmp_path: Path, template: str) -> None:
    text = load_model_text(make_model(tmp_path, template=template))
    with pytest.raises(RenderError, match="the model's chat template cannot be read: "):
        text.render(MESSAGES, None, for_completion=True)
    assert text.lengths(["one two"], rendered=False) == [2]


def test_a_broken_tokenizer_is_reported(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    (folder / "tokenizer.json").write_text("{}")
    with pytest.raises(DamagedModelTextError, match=r"tokenizer\.json cannot be read"):
        load_model_text(folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(ModelTextError, match=r"has no tokenizer\.json"):
        load_model_text(folder)


def test_the_memory_of_models_that_are_no_longer_used_is_freed(tmp_path: Path) -> None:
    folder = make_model(tmp_path)
    letters = {chr(code): code - 97 for code in range(97, 123)}
    Tokenizer(BPE(letters, [])).save(str(folder / "tokenizer.json"))
    texts = [f"{left}{right}{end}" * 20 for left, right, end in product(letters, repeat=3)][:10_000]
    resident = []
    for number in range(40):
        os.utime(folder / "tokenizer.json", ns=(0, number))  # as another model
        assert load_model_text(folder).lengths(texts, rendered=True)[:2] == [60, 60]
        resident.append(resident_mib())
    assert resident[-1] - resident[10] < 300, resident  # 23 MiB for each load, if they stayed


def resident_mib() -> float:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 2**20
