"""Axolotl's and verl's configurations, and the command over files of all three."""

import json
import os
import re
import subprocess
from pathlib import Path
from typing import Any

import pyarrow
import pyarrow.parquet
import pytest

from service.importing.convert import Imported, imported, source_of
from service.importing.reading import Unreadable, as_rows, num_rows
from service.importing.rules import Options
from service.jobs.model.schemas import JobCreate
from tests.service.embedded import GRPO, ROOT, call_grpo

REWARD = "def score(completions, **kwargs):\n    return [float(len(c)) for c in completions]\n"
AXOLOTL: dict[str, Any] = {
    "base_model": "tiny",
    "rl": "grpo",
    "trl": {
        "num_generations": 4,
        "beta": 0.01,
        "max_completion_length": 64,
        "reward_funcs": ["rewards.score"],
    },
    "adapter": "lora",
    "lora_r": 8,
    "lora_alpha": 16,
    "lora_target_linear": True,
    "micro_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "learning_rate": "2e-5",
    "warmup_ratio": 0.1,
    "flash_attention": True,
    "sequence_len": None,
}
VERL: dict[str, Any] = {
    "algorithm": {"adv_estimator": "grpo", "norm_adv_by_std_in_grpo": False},
    "data": {"train_batch_size": 32, "max_response_length": 64},
    "actor_rollout_ref": {
        "model": {"path": "tiny", "lora_rank": 8},
        "actor": {
            "ppo_mini_batch_size": 16,
            "use_kl_loss": True,
            "clip_ratio_high": 0.28,
            "loss_agg_mode": "seq-mean-token-mean",
            "ppo_micro_batch_size_per_gpu": 2,
            "fsdp_config": {"param_offload": True},
        },
        "rollout": {"n": 5, "name": "vllm"},
    },
    "custom_reward_function": {"path": "rewards.py"},
    "trainer": {"total_training_steps": 10},
}
VERL_REWARD = (
    "def compute_score(solution_str, ground_truth):\n    return float(solution_str == ground_truth)\n"
)


def hyperparameters(found: Imported) -> dict[str, Any]:
    assert found.is_whole, [line for line in found.lines if line.verdict in ("refused", "unknown")]
    JobCreate.model_validate(found.job)
    return dict(found.job["method"]["reinforcement"]["hyperparameters"])


def axolotl(**more: Any) -> Imported:
    options = Options(data="rows.jsonl", num_rows=40, sources={"rewards.score": REWARD})
    return imported({**AXOLOTL, **more}, options)


def verl(**dotted: Any) -> Imported:
    options = Options(data="rows.jsonl", sources={"rewards.py:compute_score": VERL_REWARD})
    return imported({**VERL, **dotted}, options)


def test_axolotl_s_names_and_defaults_are_used() -> None:
    found = hyperparameters(axolotl())
    expected = {
        "group_size": 4, "prompts_per_step": 2, "beta": 0.01, "max_completion_tokens": 64, "n_epochs": 1,
        "learning_rate": 2e-5, "lr_schedule": "cosine", "warmup_steps": 2, "loss_type": "dapo",
        "lora": {"rank": 8, "alpha": 16.0, "dropout": 0.0, "target_modules": "all-linear"},
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_axolotl_s_held_out_share_becomes_a_split_unless_a_file_is_given() -> None:
    assert axolotl(val_set_size=0.05).job["validation_split"] == 0.05
    for size in (0.0, None):
        assert "validation_split" not in axolotl(val_set_size=size).job


def test_axolotl_s_report_uses_axolotl_s_names() -> None:
    found = axolotl()
    reported = {name for line in found.lines if line.stated for name in line.fields}
    stated = {name for name, value in AXOLOTL.items() if value is not None and name != "trl"}
    assert reported == stated | {f"trl.{name}" for name in AXOLOTL["trl"]}


def test_axolotl_s_own_fields_are_refused_under_their_names() -> None:
    found = axolotl(trl={**AXOLOTL["trl"], "replay_buffer_size": 100}, rl="dpo", lora_typo=1)
    verdicts = {line.fields[0]: line.verdict for line in found.lines}
    assert verdicts["trl.replay_buffer_size"] == "refused"
    assert verdicts["lora_typo"] == "unknown"
    assert not found.is_whole
    assert "refused" in {line.verdict for line in found.lines if line.fields == ("rl",)}


def test_axolotl_without_an_adapter_trains_all_weights() -> None:
    assert hyperparameters(axolotl(adapter=None))["lora"] == "full"


@pytest.mark.parametrize("kind", ["qlora", "llama-adapter"])
def test_axolotl_s_adapter_without_its_settings_or_of_another_kind_is_refused(kind: str) -> None:
    assert [line.verdict for line in axolotl(adapter=kind).lines if line.fields == ("adapter",)] == [
        "refused"
    ]


def test_axolotl_s_qlora_becomes_a_quantised_base() -> None:
    found = axolotl(adapter="qlora", load_in_4bit=True)
    assert hyperparameters(found)["quantization"] == "nf4"
    (line,) = [line for line in found.lines if "load_in_4bit" in line.fields]
    assert line.verdict == "maps"


def test_axolotl_without_a_reward_and_a_dataset_is_refused() -> None:
    found = imported({**AXOLOTL, "trl": {"num_generations": 4}}, Options())
    refused = {name for line in found.lines if line.verdict == "refused" for name in line.fields}
    assert {"reward_funcs", "dataset_name"} <= refused
    assert not found.is_whole


def test_verl_s_main_fields_become_a_job() -> None:
    found = hyperparameters(verl())
    expected = {
        "group_size": 5, "prompts_per_step": 16, "n_steps": 20, "advantage": "mean_only", "loss_type": "grpo",
        "beta": 0.001, "kl_estimator": "k3", "kl_placement": "loss", "epsilon_low": 0.2, "epsilon_high": 0.28,
        "delta": 3.0, "max_completion_tokens": 64, "learning_rate": 1e-6, "weight_decay": 0.01,
        "lora": {"rank": 8, "alpha": 16.0, "target_modules": "all-linear"},
    }  # fmt: skip
    assert {name: found[name] for name in expected} == expected


def test_every_stated_field_of_verl_is_in_the_report() -> None:
    found = verl(**{"trainer.test_freq": 5, "trainer.made_up": 1})
    reported = {name: line.verdict for line in found.lines for name in line.fields}
    assert reported["actor_rollout_ref.actor.fsdp_config.param_offload"] == "not needed"
    assert reported["data.train_batch_size"] == "differs"
    assert reported["trainer.made_up"] == "unknown"
    assert reported["trainer.test_freq"] == "differs"


def test_all_counts_of_verl_s_steps_become_counts_of_minibatches() -> None:
    optim = "actor_rollout_ref.actor.optim"
    counts = {"trainer.test_freq": 5, "trainer.save_freq": 4, f"{optim}.lr_warmup_steps": 3}
    found = hyperparameters(verl(**counts))
    names = ("n_steps", "eval_interval", "checkpoint_interval", "warmup_steps")
    assert [found[name] for name in names] == [20, 10, 8, 6]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("algorithm.adv_estimator", "gae"),
        ("actor_rollout_ref.actor.loss_agg_mode", "seq-mean-token-sum"),
        ("actor_rollout_ref.rollout.top_p", 0.9),
        ("actor_rollout_ref.actor.policy_loss.loss_mode", "clip-cov"),
        ("algorithm.use_kl_in_reward", True),
        ("actor_rollout_ref.rollout.agent.default_agent_loop", "tool_agent"),
        ("actor_rollout_ref.rollout.agent.agent_loop_config_path", "loops.yaml"),
        ("data.custom_cls.path", "dataset.py"),
        ("data.shuffle", False),
    ],
)
def test_unsupported_options_of_verl_are_refused(field: str, value: object) -> None:
    found = verl(**{field: value})
    assert field in {name for line in found.lines if line.verdict == "refused" for name in line.fields}


@pytest.mark.parametrize(("name", "same", "other"), [("n", 1, 32), ("top_p", 1.0, 0.7), ("top_k", -1, 20)])
def test_other_sampling_of_verl_s_held_out_rows_is_reported_as_a_difference(
    name: str, same: float, other: float
) -> None:
    field = f"actor_rollout_ref.rollout.val_kwargs.{name}"
    verdicts = [
        line.verdict
        for value in (same, other)
        for line in verl(**{field: value}).lines
        if line.fields == (field,)
    ]
    assert verdicts == ["not needed", "differs"]


def test_the_source_is_recognised_by_its_fields() -> None:
    assert [source_of(each) for each in (AXOLOTL, VERL, {"algorithm.gamma": 1}, {"beta": 0.1})] == [
        "axolotl", "verl", "verl", "trl",
    ]  # fmt: skip


@pytest.mark.parametrize("name", ["2024-05-01", "2024-13-45"])
def test_a_name_that_looks_like_a_date_stays_text(tmp_path: Path, name: str) -> None:
    config = tmp_path / "grpo.yaml"
    config.write_text(f"model_name_or_path: tiny\nrun_name: {name}\n")
    words = ("import-trl", config, "--force", "--json", "-o", tmp_path / "job.json")
    done = call_grpo(*words, environment=dict(os.environ))
    assert done.returncode == 0, done.stderr
    fields = [line["fields"] for line in json.loads(done.stdout)["report"]]
    assert {"run_name": name} in fields


@pytest.mark.parametrize("name", ["prompt", "messages"])
def test_rows_with_a_conversation_keep_it_for_reward_functions(tmp_path: Path, name: str) -> None:
    prompt = [{"role": "user", "content": "2+2?"}]
    rows = [{name: prompt, "answer": "4"}, {name: prompt, "answer": "5"}]
    for path in (tmp_path / "rows.jsonl", tmp_path / "rows.parquet"):
        if path.suffix == ".jsonl":
            path.write_text("\n".join(json.dumps(row) for row in rows))
        else:
            pyarrow.parquet.write_table(pyarrow.Table.from_pylist(rows), path)
        used = as_rows(str(path), tmp_path / "used.jsonl")
        first = json.loads(used.read_text().splitlines()[0])
        assert first == {"messages": prompt, "answer": "4", "prompt_messages": prompt}
        assert num_rows(used) == 2
        assert as_rows(str(used), tmp_path / "again.jsonl") == used


def test_rows_that_need_no_change_are_used_in_place(tmp_path: Path) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text('{"prompt": "2+2?", "answer": "4"}\n')
    assert as_rows(str(path), tmp_path / "used.jsonl") == path
    path.write_text("no JSON\n")
    with pytest.raises(Unreadable, match="line 1"):
        as_rows(str(path), tmp_path / "used.jsonl")


def test_the_guide_s_example_becomes_a_job(tmp_path: Path) -> None:
    guide = (ROOT / "docs" / "write-a-job" / "from-trl.md").read_text()
    (config,) = re.findall(r"```yaml\n(.*?)```", guide, re.DOTALL)
    command = re.findall(r"```sh\n(.*?)\n", guide)[0]
    (tmp_path / "grpo.yaml").write_text(config)
    (tmp_path / "rewards.py").write_text(
        "def short(completions, **kwargs):\n    return [0.0 for _ in completions]\n"
    )
    row = {"prompt": [{"role": "user", "content": "2+2?"}], "solution": "4"}
    (tmp_path / "train.jsonl").write_text(json.dumps(row) + "\n")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    words = [*GRPO, *command.split()[1:]]
    done = subprocess.run(words, env=environment, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    JobCreate.model_validate(json.loads((tmp_path / "job.json").read_text()))
    assert (tmp_path / "job.rows.jsonl").exists()


def test_the_command_writes_only_a_complete_job(tmp_path: Path) -> None:
    (tmp_path / "rewards.py").write_text(REWARD)
    (tmp_path / "rows.jsonl").write_text('{"prompt": "2+2?", "answer": "4"}\n')
    config, out = tmp_path / "grpo.yaml", tmp_path / "job.json"
    config.write_text("model_name_or_path: tiny\nlearning_rate: 1e-5\nhub_token: hf_secret\n")
    given = ("import-trl", config, "--data", tmp_path / "rows.jsonl", "-o", out)
    refused = call_grpo(*given, environment=dict(os.environ))
    assert (refused.returncode, out.exists()) == (1, False)
    assert "no reward: give the training script's own with --reward file.py:function" in refused.stdout
    assert "--force" in refused.stderr
    done = call_grpo(*given, "--reward", "rewards.py:score", environment=dict(os.environ))
    assert done.returncode == 0, done.stderr
    assert "hf_secret" not in done.stdout + done.stderr
    job = json.loads(out.read_text())
    assert job["training_file"] == "rows.jsonl"
    JobCreate.model_validate(job)
