"""Axolotl's GRPO configuration: other names and defaults of what it hands to TRL.

Boundary: a table from Axolotl's names to TRL's; `trl.py` says what those mean here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from service.importing import trl
from service.importing.rules import Options, Rule, Translation, only, together, translated, unneeded

NAMES = {
    "base_model": "model_name_or_path",
    "revision_of_model": "model_revision",
    "micro_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "num_epochs": "num_train_epochs",
    "lr_scheduler": "lr_scheduler_type",
    "optimizer": "optim",
    "wandb_name": "run_name",
    "mlflow_run_name": "run_name",
    "peft_use_dora": "use_dora",
    "peft_use_rslora": "use_rslora",
}
"""At the top level; a name that is TRL's own stays, and those under `trl:` are TRL's own."""
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "num_train_epochs": 1.0,
    "lr_scheduler_type": "cosine",
    "lora_dropout": 0.0,
}
"""Where Axolotl's are others than TRL's."""
REROLL = "`curriculum: rest` retries prompts without signal later"


def _adapter_kind(translation: Translation) -> None:
    kind = translation["adapter"]
    if kind == "qlora":
        translation.differs("adapter", trl.WHOLE)
    elif kind in (None, "lora"):
        translation.leaves("adapter", "an adapter is trained if it says so, otherwise all weights")
    else:
        translation.refuses("adapter", f"must be lora or qlora, not {kind}")
    translation.leaves("lora_target_linear", "it says lora_target_modules: all-linear")


OWN: tuple[Rule, ...] = (
    together(_adapter_kind, adapter=None, lora_target_linear=None),
    unneeded("the same here", "rl"),
    unneeded(
        "the model's own tokenizer and chat template are used",
        "model_type tokenizer_type tokenizer_config chat_template special_tokens is_llama_derived_model",
    ),
    unneeded(
        "rows are never cut or packed with others: one that does not fit is refused",
        """
        sequence_len sample_packing pad_to_sequence_len eval_sample_packing train_on_inputs
        group_by_length dataset_prepared_path skip_prepare_dataset shuffle_merged_datasets
        dataset_processes dataset_num_proc
        """,
    ),
    unneeded(
        "held-out rows are a separate file: --validation-data", "val_set_size test_datasets evals_per_epoch"
    ),
    unneeded(trl.CHECKPOINTS, "saves_per_epoch save_safetensors auto_resume_from_checkpoints"),
    unneeded(
        trl.OPERATOR,
        """
        flash_attention xformers_attention sdp_attention flex_attention eager_attention s2_attention
        bfloat16 float16 unfrozen_parameters plugins low_cpu_mem_usage strict lora_mlp_kernel
        lora_qkv_kernel lora_o_kernel activation_offloading context_parallel_size tensor_parallel_size
        dp_shard_size
        """,
    ),
    unneeded(
        trl.RECORDED,
        """
        wandb_project wandb_entity wandb_watch wandb_log_model wandb_run_id use_wandb use_mlflow
        use_tensorboard use_comet mlflow_tracking_uri mlflow_experiment_name include_tokens_per_second
        """,
    ),
    unneeded(
        trl.SAMPLER,
        """
        vllm vllm_device vllm_dtype vllm_max_model_len vllm_enable_prefix_caching vllm_sync_interval
        vllm_lora_sync reward_num_workers streaming_partial_batch use_data_producer
        """,
    ),
    unneeded("groups without signal are left out of a step in any case", "skip_zero_advantage_batches"),
    only("async_prefetch", False, why="max_staleness: 1 samples the next step while this one trains"),
    only("prefetch_depth", 1, why="at most one step ahead: max_staleness"),
    only("rollout_func", None, why="custom rollout functions are not run; give the model `tools`"),
    only("replay_buffer_size", 0, None, why="no rollout is used twice; see dynamic_sampling"),
    only("replay_recompute_logps", True, why="no rollout is used twice"),
    only("reroll_start_fraction", 1.0, None, why=REROLL),
    only("reroll_max_groups", 1, None, why=REROLL),
    only("lora_fan_in_fan_out", None, False, True, why="the engine sees it by the layer's kind"),
    only("lora_model_dir", None, why='name the earlier job as the model: "ft:…"'),
    only("cosine_min_lr_ratio", None, 0, 0.0, why="the schedules here end at 0"),
    only("cosine_constant_lr_ratio", None, 0, 0.0, why="the schedules here end at 0"),
    only("loraplus_lr_ratio", None, why="all of an adapter has one learning rate"),
    only("embedding_lr", None, why="all weights have one learning rate"),
    only("lr_groups", None, why="all weights have one learning rate"),
    only("early_stopping_patience", None, why="set early_stopping in the job; it needs held-out rows"),
)
RULES = (*trl.RULES, *OWN)


def in_trl_terms(config: Mapping[str, Any]) -> dict[str, Any]:
    """Flat, under TRL's names; what is null is not stated, as in Axolotl."""
    nested = config.get("trl") if isinstance(config.get("trl"), Mapping) else {}
    flat = {name: value for name, value in config.items() if name != "trl"} | dict(nested or {})
    found = {NAMES.get(name, name): value for name, value in flat.items() if value is not None}
    if "warmup_ratio" in found:
        found.setdefault("warmup_steps", found.pop("warmup_ratio"))
    return found


def _adapter(given: Mapping[str, Any]) -> dict[str, Any]:
    """How Axolotl says whether an adapter is trained, and on what."""
    kind = given.get("adapter")
    if kind not in ("lora", "qlora"):
        return {}
    linear = {"lora_target_modules": "all-linear"} if given.get("lora_target_linear") else {}
    return {"use_peft": True, **linear}


def translation(config: Mapping[str, Any], options: Options) -> Translation:
    """TRL's rules over it, reported under Axolotl's names."""
    given = in_trl_terms(config)
    implied = _adapter(given)
    if given.get("rl") == "gdpo":
        implied["multi_objective_aggregation"] = "normalize_then_sum"
    stated = {**implied, **given}
    missing = {name: value for name, value in DEFAULTS.items() if name not in stated}
    found = translated(RULES, {**missing, **stated}, options)
    if stated.get("rl", "grpo") not in ("grpo", "gdpo"):
        found.refuses("rl", "only GRPO and GDPO are trained here, and supervised jobs")
    own = _own_names(config)
    silent = set(missing) | (implied.keys() - given.keys())
    lines = [
        replace(
            line,
            fields=tuple(own.get(name, name) for name in line.fields),
            stated=line.stated and not silent.issuperset(line.fields),
        )
        for line in found.lines
    ]
    found.lines = [line for line in lines if line.stated or line.to or line.verdict == "refused"]
    return found


def _own_names(config: Mapping[str, Any]) -> dict[str, str]:
    """TRL's name → Axolotl's, as this configuration has it."""
    nested = config.get("trl") if isinstance(config.get("trl"), Mapping) else {}
    own = {theirs: name for name, theirs in NAMES.items() if name in config}
    if "warmup_ratio" in config:
        own["warmup_steps"] = "warmup_ratio"
    return own | {name: f"trl.{name}" for name in nested or {}}
