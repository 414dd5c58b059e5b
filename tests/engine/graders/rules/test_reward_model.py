import json
import math
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForSequenceClassification, AutoTokenizer

from examples.tiny_model import CHAT_TEMPLATE, make_config, make_tokenizer
from grpo_engine.contract.records import Score
from grpo_engine.graders import make_sample
from grpo_engine.graders.errors import UnscorableError
from grpo_engine.graders.pool.pool import Grading
from grpo_engine.graders.rules import reward_model
from grpo_engine.graders.rules.reward_model import RewardModel, sigmoid
from grpo_engine.models.reward import models as reward_models

PROMPT, COMPLETION = "3+4=", "The answer is 7."
QUESTION = {"question": PROMPT}


def make_reward_model(folder: Path, *, family: Any = "qwen3", labels: int = 1, template: bool = True) -> Path:
    """A random reward model, far enough from 0 that a wrong token shows."""
    tokenizer = make_tokenizer()
    tokenizer.chat_template = CHAT_TEMPLATE if template else None
    config = make_config(family, vocab_size=len(tokenizer), hidden=64, layers=2)
    config.num_labels = labels
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(5)
        model = AutoModelForSequenceClassification.from_config(config)
        torch.nn.init.normal_(model.score.weight, std=0.5)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(autouse=True)
def _models_of_this_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reward_model, "models", reward_models)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_reward_model(tmp_path_factory.mktemp("reward"))


def score(path: Path | str | None, text: str = COMPLETION, **fields: Any) -> Score:
    data = {"type": "reward_model", "model": "helpful", "path": None if path is None else str(path), **fields}
    return RewardModel.model_validate(data).grade(make_sample(text), QUESTION)


def error(found: Score) -> tuple[str, str]:
    assert found.reward is None
    return found.errors["reward_model"].code, found.errors["reward_model"].message


def direct(folder: Path, text: str, *pair: str) -> float:
    """The model called without this package."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    model = AutoModelForSequenceClassification.from_pretrained(folder, dtype=torch.float32).eval()
    special = not text.startswith("<|")
    with torch.no_grad():
        return float(model(**tokenizer(text, *pair, return_tensors="pt", add_special_tokens=special)).logits)


@pytest.mark.parametrize("family", ["qwen3", "llama"])
def test_the_score_is_the_models_own_by_its_chat_template(tmp_path: Path, family: str) -> None:
    folder = make_reward_model(tmp_path, family=family)
    expected = direct(folder, f"<|user|>{PROMPT}<|assistant|>{COMPLETION}<|end|>")
    found = score(folder, prompt="{{item.question}}")
    assert found.reward == pytest.approx(expected, abs=1e-6)
    assert abs(expected) > 0.01
    assert score(folder, "Another answer.", prompt="{{item.question}}").reward != found.reward


def test_without_a_chat_template_the_texts_are_a_pair(tmp_path: Path) -> None:
    folder = make_reward_model(tmp_path, template=False)
    expected = direct(folder, PROMPT, COMPLETION)
    assert score(folder, prompt="{{item.question}}").reward == pytest.approx(expected, abs=1e-6)


def test_without_a_prompt_only_the_completion_is_scored(folder: Path) -> None:
    assert score(folder).reward == pytest.approx(direct(folder, COMPLETION), abs=1e-6)
    assert score(folder, input="{{item.question}}").reward == pytest.approx(direct(folder, PROMPT), abs=1e-6)


def test_the_sigmoid_is_between_0_and_1(folder: Path) -> None:
    logit = score(folder).reward
    assert logit is not None
    assert score(folder, normalize="sigmoid").reward == pytest.approx(1 / (1 + math.exp(-logit)), abs=1e-12)
    assert (sigmoid(0.0), sigmoid(1e4), sigmoid(-1e4)) == (0.5, 1.0, 0.0)


def test_the_model_is_loaded_once_per_process(folder: Path) -> None:
    assert reward_models.load(str(folder)) is reward_models.load(str(folder))
    assert not reward_models.load(str(folder)).model.training


@pytest.mark.slow
def test_a_grading_process_gives_the_same_scores(folder: Path) -> None:
    data = {"type": "reward_model", "model": "helpful", "path": str(folder), "prompt": "{{item.question}}"}
    texts = [f"The answer is {number}." for number in range(8)]
    with Grading(RewardModel.model_validate(data), processes=1) as grading:
        found = [grading.submit(make_sample(text), QUESTION) for text in texts]
        rewards = [future.result().reward for future in found]
    assert rewards == [score(folder, text, prompt="{{item.question}}").reward for text in texts]


@pytest.mark.parametrize("labels", [2, 3])
def test_a_model_without_exactly_one_label_is_refused(tmp_path: Path, labels: int) -> None:
    folder = make_reward_model(tmp_path, labels=labels)
    assert error(score(folder)) == (
        "other_error",
        f"a reward model has one label; this model has {labels} labels",
    )
    grader = RewardModel.model_validate({"type": "reward_model", "model": "two", "path": str(folder)})
    with pytest.raises(UnscorableError, match=f"has {labels} labels"):
        grader.prepare()


def test_a_language_model_without_a_trained_head_is_refused(tmp_path: Path) -> None:
    from examples.tiny_model import make_model

    folder = make_model(tmp_path, hidden=64, layers=2)
    config = json.loads((folder / "config.json").read_text())
    (folder / "config.json").write_text(json.dumps(config | {"id2label": {"0": "REWARD"}}))
    assert "no weights for score.weight" in error(score(folder))[1]


def test_weights_other_than_safetensors_are_refused(folder: Path, tmp_path: Path) -> None:
    pickled = tmp_path / "pickled"
    shutil.copytree(folder, pickled)
    weights = AutoModelForSequenceClassification.from_pretrained(folder).state_dict()
    (pickled / "model.safetensors").unlink()
    torch.save(weights, pickled / "pytorch_model.bin")
    assert "the reward model cannot be loaded" in error(score(pickled))[1]


def test_broken_weights_are_refused(folder: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken"
    shutil.copytree(folder, broken)
    (broken / "model.safetensors").write_bytes(b"\x00" * 100)
    assert "the reward model cannot be loaded" in error(score(broken))[1]


def test_remote_code_is_not_run(folder: Path, tmp_path: Path) -> None:
    hostile = tmp_path / "hostile"
    shutil.copytree(folder, hostile)
    mark = tmp_path / "ran"
    (hostile / "evil.py").write_text(f"open({str(mark)!r}, 'w')\nclass Config: ...\nclass Model: ...\n")
    config = json.loads((hostile / "config.json").read_text())
    code = {"AutoConfig": "evil.Config", "AutoModelForSequenceClassification": "evil.Model"}
    (hostile / "config.json").write_text(json.dumps(config | {"auto_map": code, "model_type": "evil"}))
    assert "the reward model cannot be loaded" in error(score(hostile))[1]
    assert not mark.exists()


def test_a_model_without_a_path_is_an_error() -> None:
    assert error(score(None)) == ("other_error", "the reward model 'helpful' has no path")
    assert "cannot be loaded" in error(score("/nowhere/at/all"))[1]


def test_longer_texts_than_the_model_reads_are_unscorable_and_not_cut(folder: Path) -> None:
    assert score(folder, "x" * 512).reward is not None
    assert error(score(folder, "x" * 513)) == (
        "truncated_observation_error",
        "513 tokens for the reward model, which reads at most 512",
    )
    assert error(score(folder, "x" * 9, max_length=8))[0] == "truncated_observation_error"
    assert score(folder, "x" * 8, max_length=8).reward is not None


def test_an_empty_completion_is_scored_if_the_template_adds_tokens(folder: Path) -> None:
    expected = direct(folder, f"<|user|>{PROMPT}<|assistant|><|end|>")
    assert score(folder, "", prompt="{{item.question}}").reward == pytest.approx(expected, abs=1e-6)
    assert error(score(folder, ""))[1] == "the text is empty: the tokenizer returns no tokens"


@pytest.mark.parametrize(
    ("template", "reason"),
    [("{{ raise_exception('only systems') }}", "only systems"), ("{{ 1 // 0 }}", "zero")],
)
def test_a_chat_template_that_refuses_is_an_error(
    folder: Path, tmp_path: Path, template: str, reason: str
) -> None:
    strict = tmp_path / "strict"
    shutil.copytree(folder, strict)
    (strict / "chat_template.jinja").write_text(template)
    code, message = error(score(strict, prompt="{{item.question}}"))
    assert code == "other_error"
    assert message.startswith("the chat template refuses the texts: ")
    assert reason in message


def test_a_dumped_grader_reads_back_equal_and_runs_in_a_process() -> None:
    data = {"type": "reward_model", "model": "m", "prompt": "{{item.question}}", "max_length": 100}
    grader = RewardModel.model_validate(data)
    assert RewardModel.model_validate_json(grader.model_dump_json()) == grader
    assert grader.execution == "process"
    assert grader.problems({}) == ["{{item.question}} does not resolve"]
