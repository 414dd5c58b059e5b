"""TRL's `GRPOConfig`, `ModelConfig` and the arguments of its GRPO script (1.16): field by field.

Boundary: a table; fields that belong together are in `trl_groups.py`. The defaults are TRL's own, and the
job contains each of them.
"""

from collections.abc import Mapping
from typing import Any

from service.importing import trl_groups as groups
from service.importing.common_fields import run_name
from service.importing.rules import (
    Options,
    Refusal,
    Rule,
    Translation,
    maps,
    only,
    translated,
    unlike,
    unneeded,
    whole,
)
from service.importing.trl_rewards import rewards
from service.importing.trl_sinks import sinks

OPERATOR = "the operator configures the machine (GRPO_RUNTIME); results do not change"
RECORDED = "the service keeps and shows all metrics; the job's `integrations` send them to W&B and others"
LOADING = "the service reads and batches the rows itself"
CHECKPOINTS = "the worker stores checkpoints; the newest three and the best are kept"
SAMPLER = "the operator chooses the sampler; its canary proves that it serves the trained policy"
SHUFFLED = "each epoch here is a new permutation of the rows"
BIASED = "truncated sampling biases every ratio of the loss; lower the temperature instead"

SCHEDULES = {name: name for name in ("linear", "cosine", "constant")} | {"constant_with_warmup": "constant"}
ADAMW = ("adamw_torch_fused", "adamw_torch", "adamw", "adamw_hf", "adamw_apex_fused")


def _schedule(value: str) -> str:
    if value not in SCHEDULES:
        raise Refusal(f"must be linear, cosine or constant (each with warmup_steps), not {value}")
    return SCHEDULES[value]


UNNEEDED = {
    "the base model's dtype and kernels are the operator's choice (GRPO_RUNTIME)": """
        bf16 fp16 bf16_full_eval fp16_full_eval tf32 use_cpu use_liger_kernel liger_kernel_config
        dtype torch_dtype attn_implementation
    """,
    OPERATOR: """
        gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend
        torch_compile_mode use_cache torch_empty_cache_steps auto_find_batch_size accelerator_config
        parallelism_config fsdp fsdp_config deepspeed ddp_find_unused_parameters ddp_bucket_cap_mb
        ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout local_rank full_determinism
        average_tokens_across_devices ds3_gather_for_generation pad_to_multiple_of debug
        skip_memory_metrics
    """,
    LOADING: """
        dataloader_drop_last dataloader_num_workers dataloader_pin_memory
        dataloader_persistent_workers dataloader_prefetch_factor dataloader_multiprocessing_context
        dataloader_in_order remove_unused_columns label_names length_column_name
    """,
    RECORDED: """
        logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter
        include_num_input_tokens_seen log_level log_level_replica disable_tqdm
        trackio_space_id trackio_bucket_id trackio_static_space_id log_completions log_multimodal
        num_completions_to_print log_unique_prompts log_completions_hub_repo output_dir
        wandb_log_unique_prompts
    """,
    "held-out rows are evaluated before the first step, then every eval_interval steps, and at the end": """
        eval_delay eval_on_start per_device_eval_batch_size prediction_loss_only
        eval_do_concat_batches eval_use_gather_object eval_accumulation_steps include_for_metrics
        batch_eval_metrics do_train do_predict
    """,
    CHECKPOINTS: "save_only_model save_on_each_node enable_jit_checkpoint",
    "the best checkpoint by held-out reward is GET …/adapter?checkpoint=best": """
        load_best_model_at_end metric_for_best_model greater_is_better
    """,
    "use `grpo push JOB --repo ORG/NAME` afterwards": """
        push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
    """,
    "a job continues from its own checkpoints": """
        resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint
    """,
    "the operator sets environment variables": "env",
    SAMPLER: """
        vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host
        vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization
        vllm_max_model_length vllm_tensor_parallel_size cache_implementation
        use_transformers_continuous_batching transformers_continuous_batching_config
        use_transformers_paged vllm_device vllm_max_model_len vllm_dtype vllm_enable_prefix_caching
    """,
    "only used by use_adaptive_entropy": """
        entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target
    """,
    "only used by the loss vespo": "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg",
    "only used by sync_ref_model": "ref_model_mixup_alpha ref_model_sync_steps",
    "bitsandbytes stores the weights as bytes": "bnb_4bit_quant_storage",
    "the dataset is uploaded once, as a file": "dataset_streaming streaming test_split_size",
    "it works around a limit of distributed data parallel": "ignore_bias_buffers",
}
"""Reason why the job needs no counterpart → the fields, those of earlier releases included."""
RULES: tuple[Rule, ...] = (
    groups.model,
    only("model_init_kwargs", None, {}, "", why="the catalogue and the operator decide how to load a model"),
    only("trust_remote_code", False, why="code from model repositories is never run"),
    groups.adapter,
    only("lora_target_parameters", None, why="LoRA is put on modules here: lora_target_modules"),
    only("lora_modules_to_save", None, why="only the adapter is trained; use_peft: false trains all weights"),
    only("lora_task_type", "CAUSAL_LM", why="only language models are trained"),
    only("use_rslora", False, why="scale by lora_alpha: rsLoRA divides it by sqrt(r) instead of r"),
    only("use_dora", False, why="plain LoRA only"),
    groups.quantization,
    groups.data,
    groups.loss,
    groups.divergence,
    groups.gate,
    maps("mask_truncated_completions", False, "mask_truncated_completions"),
    maps("top_entropy_quantile", 1.0, "top_entropy_quantile", float),
    maps("entropy_coef", 0.0, "entropy_coef", float),
    only("use_adaptive_entropy", False, why="entropy_coef is constant here; a guard can watch the entropy"),
    only("sync_ref_model", False, why="the reference stays the starting model; `kl_target` adapts β"),
    rewards,
    maps("max_completion_length", 512, "max_completion_tokens", whole),
    maps("temperature", 1.0, "temperature", float),
    only("top_p", 1.0, 1, None, why=BIASED),
    only("top_k", 0, -1, None, why=BIASED),
    only("min_p", None, 0, 0.0, why=BIASED),
    only("repetition_penalty", 1.0, 1, None, why="a penalty samples another policy than the trained one"),
    only("generation_kwargs", None, {}, "", why="set temperature, max_completion_tokens and stop instead"),
    only("chat_template_kwargs", None, {}, "", why="the model's own chat template is used with its defaults"),
    only("vllm_structured_outputs_regex", None, why="outputs are not constrained; use a format grader"),
    unlike("max_tool_calling_iterations", None, "tools are named in the job: `tools`, with max_turns"),
    groups.correction,
    only("off_policy_mask_threshold", None, why="not supported; `importance_correction` bounds the ratio"),
    groups.batch,
    groups.length,
    maps("learning_rate", 1e-6, "learning_rate", float),
    maps("lr_scheduler_type", "linear", "lr_schedule", _schedule),
    maps("weight_decay", 0.0, "weight_decay", float),
    maps("adam_beta1", 0.9, "adam_beta1", float),
    maps("adam_beta2", 0.999, "adam_beta2", float),
    maps("adam_epsilon", 1e-8, "adam_epsilon", float),
    maps("max_grad_norm", 1.0, "max_grad_norm", float),
    maps("seed", 42, "seed", whole, differs="the same seed draws other random numbers here"),
    unlike("data_seed", None, "the job's one seed also decides the order of the rows"),
    only("optim", *ADAMW, why="the optimiser here is AdamW; remove optim"),
    only("optim_args", None, "", why="set adam_beta1, adam_beta2, adam_epsilon and weight_decay instead"),
    only("optim_target_modules", None, why="not supported; use lora_target_modules"),
    only("lr_scheduler_kwargs", None, {}, "", why="schedules have no further settings here"),
    only("shuffle_dataset", True, why=SHUFFLED),
    only("train_sampling_strategy", "random", why=SHUFFLED),
    only("neftune_noise_alpha", None, why="no noise is added to embeddings here"),
    only("label_smoothing_factor", 0.0, 0, why="a policy gradient has no labels to smooth"),
    only("router_aux_loss_coef", None, 0, 0.0, why="there is no expert-balancing loss here; set it to 0.0"),
    unlike("disable_dropout", False, "the base model's dropout is always off here"),
    unlike("cast_lm_head_to_fp32", False, "only log-probabilities are computed in float32"),
    run_name("run_name"),
    sinks,
    groups.evaluation,
    unlike("num_generations_eval", None, "a held-out row is answered once, greedily (`eval_temperature`)"),
    groups.saving,
    unlike("max_prompt_length", None, "prompts are never cut: a row that does not fit is refused"),
    *(unneeded(why, names) for why, names in UNNEEDED.items()),
)


def translation(config: Mapping[str, Any], options: Options) -> Translation:
    return translated(RULES, config, options)


def reward_names(config: Mapping[str, Any]) -> list[str]:
    """Names of its reward functions, as `package.module.function`."""
    given = config.get("reward_funcs")
    return [given] if isinstance(given, str) else [str(name) for name in given or []]
