"""Training scripts in the style of TRL's examples → a job; nothing of them is run."""

import inspect
import json
import os
import re
from pathlib import Path

import pytest

from service.importing.dataset_formats import Unreadable
from service.importing.script.trainer import POSITIONAL
from service.jobs.model.schemas import JobCreate
from tests.service.embedded import call_grpo
from tests.service.importing.script_samples import (
    GSM8K,
    QUICK,
    SET_LATER,
    job_of,
    refused,
    script_of,
    script_with,
)
from tests.service.importing.test_rewards import run

ROOT = Path(__file__).parents[3]


def test_the_parameters_of_the_trainer_are_trl_s() -> None:
    from trl import GRPOTrainer  # two seconds of a core, in each process that collects the tests

    assert tuple(inspect.signature(GRPOTrainer.__init__).parameters)[1:] == POSITIONAL


def test_the_quick_start_becomes_a_job_with_its_reward_function(tmp_path: Path) -> None:
    script = script_of(tmp_path, QUICK)
    assert script.lines == []
    found = job_of(script)
    assert found.is_whole
    JobCreate.model_validate(found.job)
    grader = found.job["method"]["reinforcement"]["grader"]
    assert run(grader["source"], "a" * 18, {"messages": []}) == -2
    assert "load_dataset" not in grader["source"]


def test_a_dataset_of_the_hub_is_named_with_the_command_that_uploads_it(tmp_path: Path) -> None:
    why = refused(job_of(script_of(tmp_path, QUICK), data=None).lines)["dataset_name"]
    assert "`grpo files upload hf://trl-lib/tldr --split train[:10%]`" in why
    script = script_of(tmp_path, GSM8K)
    why = refused(job_of(script, data=None).lines)["dataset_name"]
    assert "`grpo files upload hf://openai/gsm8k/main --split train`" in why
    (line,) = (line for line in script.lines if line.fields == ("dataset_name",))
    assert line.verdict == "differs"
    assert line.why.startswith("line 32: .map(…), line 32: .shuffle(…): rows are uploaded unchanged")


def test_constants_f_strings_dataclasses_and_expanded_dicts_are_read(tmp_path: Path) -> None:
    script = script_of(tmp_path, GSM8K)
    expected = {
        "model_name_or_path": "Qwen/Qwen2.5-1.5B-Instruct",
        "temperature": 0.9,
        "num_generations": 8,
        "learning_rate": 1e-5,
        "gradient_accumulation_steps": 4,
        "max_completion_length": 768,
        "max_steps": 100,
        "beta": 0.04,
        "run_name": "Qwen/Qwen2.5-1.5B-Instruct-1e-05",
        "output_dir": "out/Qwen/Qwen2.5-1.5B-Instruct",
    }
    assert {name: script.fields.get(name) for name in expected} == expected
    assert refused(script.lines) == {}


def test_attributes_that_a_function_sets_on_the_module_s_objects_are_read(tmp_path: Path) -> None:
    script = script_of(tmp_path, SET_LATER)
    expected = {
        "epsilon": 0.3, "epsilon_high": 0.4, "beta": 0.1, "learning_rate": 1e-4, "lora_r": 32,
        "lora_alpha": 64,
    }  # fmt: skip
    assert {name: script.fields[name] for name in expected} == expected
    assert refused(script.lines) == {
        "max_steps": "line 19: max_steps is set in the function shorten",
    }


def test_attributes_that_are_set_on_the_trainer_s_arguments_are_read(tmp_path: Path) -> None:
    changes = "trainer.args.max_steps = 500\ntrainer.args.beta = float(input())\ntrainer.train()"
    script = script_of(tmp_path, QUICK.replace("trainer.train()", changes))
    line = script.text.splitlines().index("trainer.args.beta = float(input())") + 1
    assert script.fields["max_steps"] == 500
    assert refused(script.lines)["beta"].startswith(f"line {line}: ")


def test_a_reward_function_has_only_what_it_uses(tmp_path: Path) -> None:
    script = script_of(tmp_path, GSM8K)
    name, *others = script.fields["reward_funcs"]
    assert name == "train.py:27:correct"
    assert others == ["think_format_reward", "get_soft_overlong_punishment(768,128)"]
    assert script.sources[name].startswith("import re\n\nPATTERN = re.compile(")
    assert "torch" not in script.sources[name]
    assert "# the last answer" in script.sources[name]
    grader = job_of(script).job["method"]["reinforcement"]["grader"]
    formula = "correct + 0.5 * min(think_format_reward_tags, think_format_reward_start)"
    assert grader["calculate_output"] == f"{formula} + -0.1 * get_soft_overlong_punishment"
    limits = {"mode": "soft_overlong", "unit": "tokens", "maximum": 768, "buffer": 128}
    assert grader["graders"]["get_soft_overlong_punishment"] == {"type": "length", **limits}
    item = {"messages": [], "answer": "4"}
    assert run(grader["graders"]["correct"]["source"], "<answer>5</answer><answer> 4</answer>", item) == 2.0


def test_a_local_file_of_rows_is_the_training_file(tmp_path: Path) -> None:
    found = job_of(script_of(tmp_path, script_with()), data=None)
    assert found.job["training_file"] == "rows.jsonl"
    assert found.job["method"]["reinforcement"]["grader"]["type"] == "reward_model"
    for kind, file in (("csv", "rows.csv"), ("json", "rows.json"), ("parquet", "rows.parquet")):
        text = script_with(before=f'rows = load_dataset("{kind}", data_files="{file}")')
        assert job_of(script_of(tmp_path, text), data=None).job["training_file"] == file


@pytest.mark.parametrize(
    ("arguments", "before", "field", "why"),
    [
        ("beta=float(os.environ['B'])", "", "beta", "line 7: `os.environ` is neither a literal"),
        ("beta=x", "for x in (1, 2): pass", "beta", "`x` is set in a loop (line 6)"),
        ("beta=x", "if rows: x = 1", "beta", "`x` is set under a condition (line 6)"),
        ("beta=x", "x = 1; x += 1", "beta", "`x` is changed"),
        ("beta=x", "", "beta", "`x` has no value in the script"),
        ("beta=[1][4]", "", "beta", "line 7: `[1][4]`: list index out of range"),
        ("beta=x", "x = 'a' * 10**9", "beta", "is not computed here"),
        ("beta=10**999", "", "beta", "is not computed here"),
        ("**options", "options = dict(os.environ)", "GRPOConfig", "line 7: "),
        ("'out', 4", "", "GRPOConfig", "name its arguments"),
    ],
)
def test_a_value_that_is_not_constant_is_refused_with_its_line(
    tmp_path: Path, arguments: str, before: str, field: str, why: str
) -> None:
    found = refused(script_of(tmp_path, script_with(arguments, before)).lines)
    assert list(found) == [field]
    assert found[field].startswith("line ")
    assert why in found[field]


@pytest.mark.parametrize(
    ("before", "trainer", "field", "why"),
    [
        ("def f(): return len", {"reward_funcs": "f()"}, "reward_funcs", "`f()` is not a function"),
        ("", {"reward_funcs": "[lambda completions: [0.0]]"}, "reward_funcs", "is not a function of the"),
        ("rows = [{'prompt': 'a'}]", {}, "train_dataset", "write the rows to a file"),
        ("", {"peft_config": "get_peft_config(args)"}, "peft_config", "is not a LoraConfig"),
        ("", {"rollout_func": "len"}, "rollout_func", "sampled by the service"),
        ("", {"environment_factory": "Game"}, "environment_factory", "write-a-job/environments.md"),
        ("", {"model": "load(rows)"}, "model", "is not a model that the script names"),
        ("", {"reward": "len"}, "reward", "GRPOTrainer has no such argument"),
    ],
)  # fmt: skip
def test_trainer_arguments_that_the_service_lacks_are_refused(
    tmp_path: Path, before: str, trainer: dict[str, str], field: str, why: str
) -> None:
    script = script_of(tmp_path, script_with(before=before, **trainer))
    assert why in refused(script.lines)[field]


@pytest.mark.parametrize(
    ("passed", "added"), [({"callbacks": "[Stop()]"}, ""), ({}, "trainer.add_callback(Stop())\n")]
)
def test_callbacks_are_reported_as_a_difference(tmp_path: Path, passed: dict[str, str], added: str) -> None:
    text = script_with(**passed).replace("GRPOTrainer(model", "trainer = GRPOTrainer(model")
    script = script_of(tmp_path, text.replace(".train()\n", f"\n{added}trainer.train()\n"))
    (line,) = (line for line in script.lines if line.fields == ("callbacks",))
    assert line.verdict == "differs"
    assert "guards stop a job" in line.why


def test_a_form_feed_does_not_shift_the_source_of_a_reward_function(tmp_path: Path) -> None:
    script = script_of(tmp_path, QUICK.replace("def reward_len", "\f\ndef reward_len"))
    grader = job_of(script).job["method"]["reinforcement"]["grader"]
    assert run(grader["source"], "a" * 18, {"messages": []}) == -2


def test_a_reward_function_may_have_another_name_in_the_script(tmp_path: Path) -> None:
    before = "from trl.rewards import accuracy_reward as accuracy\nreward = accuracy"
    script = script_of(tmp_path, script_with(before=before, reward_funcs="reward"))
    assert script.fields["reward_funcs"] == ["accuracy_reward"]


def test_a_reward_function_that_needs_other_packages_is_refused_with_its_line(tmp_path: Path) -> None:
    before = "import math_verify\n\ndef good(completions):\n    return math_verify.verify(completions)"
    script = script_of(tmp_path, script_with(before=before, reward_funcs="good"))
    why = refused(job_of(script).lines)["reward_funcs"]
    assert why.startswith("train.py:8:good: it imports math_verify")
    constant = "limit = len(rows)\n\ndef good(completions):\n    return [limit for _ in completions]"
    script = script_of(tmp_path, script_with(before=constant, reward_funcs="good"))
    assert "`load_dataset`" not in script.sources["train.py:8:good"]
    assert "datasets" in refused(job_of(script).lines)["reward_funcs"]


def test_arguments_of_the_command_line_need_its_yaml(tmp_path: Path) -> None:
    text = """
from trl import GRPOConfig, GRPOTrainer, ScriptArguments, TrlParser
def main(script_args, training_args):
    GRPOTrainer("tiny", "m", training_args).train()
script_args, training_args = TrlParser((ScriptArguments, GRPOConfig)).parse_args_and_config()
main(script_args, training_args)
"""
    why = refused(script_of(tmp_path, text).lines)["args"]
    assert "`training_args` is a parameter of main (line 3)" in why
    assert "give the YAML file of its --config" in why


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("def f(:", "line 1 is not Python"),
        ("print('hello')", "no GRPOTrainer(…)"),
        ("GRPOTrainer('a')\nGRPOTrainer('b')", r"2 calls of GRPOTrainer (lines 1, 2): keep one"),
        ("x = " + "-" * 100_000 + "1", "is too deeply nested"),
        ("a = 1\0", "is not Python"),
    ],
)
def test_a_script_without_one_trainer_is_unreadable(tmp_path: Path, text: str, why: str) -> None:
    with pytest.raises(Unreadable) as found:
        script_of(tmp_path, text)
    assert why in str(found.value)


def test_a_changed_trainer_is_refused(tmp_path: Path) -> None:
    text = (
        script_with()
        .replace("GRPOTrainer(model", "Mine(model")
        .replace("rows =", "class Mine(GRPOTrainer): pass\nrows =")
    )
    assert "class Mine changes the trainer" in refused(script_of(tmp_path, text).lines)["GRPOTrainer"]


def test_a_function_that_returns_its_own_call_is_refused(tmp_path: Path) -> None:
    before = "def again(n):\n    return again(n - 1)\n"
    script = script_of(tmp_path, script_with(before=before, train_dataset="again(3)"))
    assert "is no load_dataset(…)" in refused(script.lines)["train_dataset"]


def test_the_script_is_never_run(tmp_path: Path) -> None:
    text = f"open({str(tmp_path / 'ran')!r}, 'w')\n" + script_with()
    script_of(tmp_path, text)
    assert not (tmp_path / "ran").exists()


def test_the_guide_s_script_becomes_a_job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    guide = (ROOT / "docs" / "write-a-job" / "from-trl.md").read_text()
    (script,) = re.findall(r"```python\n(.*?)```", guide, re.DOTALL)
    (command,) = re.findall(r"^grpo (import-trl train.py .*)$", guide, re.MULTILINE)
    (tmp_path / "train.py").write_text(script)
    (tmp_path / "train.jsonl").write_text('{"prompt": "2+2?", "answer": "4"}\n')
    monkeypatch.chdir(tmp_path)
    done = call_grpo(*command.split(), environment=dict(os.environ))
    assert done.returncode == 0, done.stdout
    job = json.loads((tmp_path / "job.json").read_text())
    JobCreate.model_validate(job)
    assert job["integrations"] == [{"type": "wandb", "wandb": {"project": "sums"}}]
    source = job["method"]["reinforcement"]["grader"]["source"]
    assert [run(source, text, {"answer": "4", "prompt": "2+2?"}) for text in ("it is 4", "5")] == [1.0, 0.0]
    (tmp_path / "train.py").write_text("print(1)\n")
    refused = call_grpo(*command.split(), environment=dict(os.environ))
    assert (refused.returncode, "train.py has no GRPOTrainer(…)" in refused.stderr) == (1, True)
