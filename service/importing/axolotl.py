"""Axolotl's GRPO configuration: its own names and defaults for what it passes to TRL.

Boundary: a table from Axolotl's names to TRL's; `trl.py` has the rules for those.
"""

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
"""Axolotl's name at the top level → TRL's; all others, and those under `trl:`, are TRL's own."""
DEFAULTS: dict[str, Any] = {
    "per_device_train_batch_size": 1,
    "num_train_epochs": 1.0,
    "lr_scheduler_type": "cosine",
    "lora_dropout": 0.0,
    "use_bnb_nested_quant": True,
}
"""Axolotl's defaults that differ from TRL's."""
TRACKERS = {
    "wandb": ("use_wandb", "wandb_project"),
    "mlflow": ("use_mlflow", "mlflow_experiment_name"),
    "tensorboard": ("use_tensorboard",),
    "comet_ml": ("use_comet",),
}
"""Name in `report_to` → the fields, any of which turns it on."""
REROLL = "`curriculum: rest` retries prompts without signal later"


@together({"adapter": None, "lora_target_linear": None})
def adapter_kind(translation: Translation) -> None:
    kind = translation["adapter"]
    if kind == "qlora" and not translation["load_in_4bit"]:
        translation.refuses("adapter", "qlora needs load_in_4bit: true")
    elif kind in (None, "lora", "qlora"):
        translation.leaves("adapter", "lora trains an adapter, otherwise all weights are trained")
    else:
        translation.refuses("adapter", f"must be lora or qlora, not {kind}")
    translation.leaves("lora_target_linear", "it sets lora_target_modules: all-linear")


@together({"val_set_size": 0.0})
def held_out_part(translation: Translation) -> None:
    size = translation["val_set_size"]
    if translation.options.validation_data:
        translation.leaves("val_set_size", "the held-out rows are those of --validation-data")
    elif size:
        translation.maps("val_set_size", "validation_split", size, differs="other rows, grouped by prompt")
    else:
        translation.leaves("val_set_size", "no row is held out")


UNNEEDED = {
    "the same here": "rl",
    "the model's own tokenizer and chat template are used": """
        model_type tokenizer_type tokenizer_config chat_template special_tokens is_llama_derived_model
    """,
    "rows are never cut or packed with others: one that does not fit is refused": """
        sequence_len sample_packing pad_to_sequence_len eval_sample_packing train_on_inputs
        group_by_length dataset_prepared_path skip_prepare_dataset shuffle_merged_datasets
        dataset_processes dataset_num_proc
    """,
    "held-out rows are a separate file: --validation-data": "test_datasets evals_per_epoch",
    trl.CHECKPOINTS: "saves_per_epoch save_safetensors auto_resume_from_checkpoints",
    trl.OPERATOR: """
        flash_attention xformers_attention sdp_attention flex_attention eager_attention s2_attention
        bfloat16 float16 unfrozen_parameters plugins low_cpu_mem_usage strict lora_mlp_kernel
        lora_qkv_kernel lora_o_kernel activation_offloading context_parallel_size tensor_parallel_size
        dp_shard_size
    """,
    trl.RECORDED: """
        wandb_project wandb_entity wandb_watch wandb_log_model wandb_run_id use_wandb use_mlflow
        use_tensorboard use_comet mlflow_tracking_uri mlflow_experiment_name include_tokens_per_second
    """,
    trl.SAMPLER: """
        vllm vllm_device vllm_dtype vllm_max_model_len vllm_enable_prefix_caching vllm_sync_interval
        vllm_lora_sync reward_num_workers streaming_partial_batch use_data_producer
    """,
    "groups without signal are always left out of a step": "skip_zero_advantage_batches",
}
"""Reason why the job needs no counterpart → the fields."""
OWN: tuple[Rule, ...] = (
    adapter_kind,
    held_out_part,
    only("async_prefetch", False, why="max_staleness: 1 samples the next step while this one trains"),
    only("prefetch_depth", 1, why="at most one step ahead: max_staleness"),
    only("rollout_func", None, why="custom rollout functions are not run; give the model `tools`"),
    only("replay_buffer_size", 0, None, why="no rollout is used twice; see dynamic_sampling"),
    only("replay_recompute_logps", True, why="no rollout is used twice"),
    only("reroll_start_fraction", 1.0, None, why=REROLL),
    only("reroll_max_groups", 1, None, why=REROLL),
    only("lora_fan_in_fan_out", None, False, True, why="the engine detects it by the layer's type"),
    only("lora_model_dir", None, why='name the earlier job as the model: "ft:…"'),
    only("cosine_min_lr_ratio", None, 0, 0.0, why="the schedules here end at 0"),
    only("cosine_constant_lr_ratio", None, 0, 0.0, why="the schedules here end at 0"),
    only("loraplus_lr_ratio", None, why="an adapter has a single learning rate"),
    only("embedding_lr", None, why="all weights have a single learning rate"),
    only("lr_groups", None, why="all weights have a single learning rate"),
    only("early_stopping_patience", None, why="set early_stopping in the job; it needs held-out rows"),
    *(unneeded(why, names) for why, names in UNNEEDED.items()),
)
RULES = (*trl.RULES, *OWN)


def _in_trl_terms(config: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, str]]:
    """The fields that are not null, under TRL's names, and TRL's name → Axolotl's."""
    top = {name: value for name, value in config.items() if name != "trl"}
    nested = config.get("trl")
    given: dict[str, Any] = {}
    own: dict[str, str] = {}
    for prefix, section in (("", top), ("trl.", nested if isinstance(nested, Mapping) else {})):
        for name, value in section.items():
            theirs = NAMES.get(name, name)
            own[theirs] = f"{prefix}{name}"
            given |= {} if value is None else {theirs: value}
    return given, own


def _implied(given: Mapping[str, Any]) -> dict[str, Any]:
    """TRL's fields and values for Axolotl's own fields."""
    implied: dict[str, Any] = {}
    if given.get("adapter") in ("lora", "qlora"):
        implied["use_peft"] = True
        if given.get("lora_target_linear"):
            implied["lora_target_modules"] = "all-linear"
    if given.get("rl") == "gdpo":
        implied["multi_objective_aggregation"] = "normalize_then_sum"
    if names := [name for name, fields in TRACKERS.items() if any(map(given.get, fields))]:
        implied["report_to"] = names
    return implied


def translation(config: Mapping[str, Any], options: Options) -> Translation:
    """Applies TRL's rules and reports under Axolotl's names."""
    given, own = _in_trl_terms(config)
    assumed = {name: value for name, value in (DEFAULTS | _implied(given)).items() if name not in given}
    found = translated(RULES, assumed | given, options)
    if given.get("rl", "grpo") not in ("grpo", "gdpo"):
        found.refuses("rl", "must be grpo or gdpo; supervised jobs are not imported")
    lines = [
        replace(
            line,
            fields=tuple(own.get(name, name) for name in line.fields),
            stated=line.stated and not assumed.keys() >= set(line.fields),
        )
        for line in found.lines
    ]
    found.lines = [line for line in lines if line.stated or line.to or line.verdict == "refused"]
    return found


def reward_names(config: Mapping[str, Any]) -> list[str]:
    """Names of its reward functions, as `package.module.function`."""
    return trl.reward_names(_in_trl_terms(config)[0])
