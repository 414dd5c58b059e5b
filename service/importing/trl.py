"""TRL's `GRPOConfig`, `ModelConfig` and the arguments of its GRPO script (1.16): field by field.

Boundary: a table; fields that belong together are in `trl_groups.py`. The defaults are TRL's own, and the
job states each of them.
"""

from __future__ import annotations

from service.importing import trl_groups as groups
from service.importing.rules import Refusal, Rule, maps, only, together, unlike, unneeded, whole
from service.importing.trl_rewards import rewards

OPERATOR = "the operator configures the machine (GRPO_RUNTIME); results do not change"
RECORDED = "the service keeps and shows all metrics; a job's `integrations` send them to W&B and others"
LOADING = "the service reads and batches the rows itself"
CHECKPOINTS = "checkpoints are stored by the worker, the newest three and the best are kept"
SAMPLER = "the operator chooses the sampler; the canary there proves that it serves the trained policy"
LATER = "afterwards, by `grpo push JOB --repo ORG/NAME`"
BIASED = "truncated sampling biases every ratio of the loss; lower the temperature instead"

SCHEDULES = {name: name for name in ("linear", "cosine", "constant")} | {"constant_with_warmup": "constant"}
WHOLE = "the base is loaded unquantised: more memory, no quantisation error"
ADAMW = ("adamw_torch_fused", "adamw_torch", "adamw", "adamw_hf", "adamw_apex_fused")


def _schedule(value: str) -> str:
    if value not in SCHEDULES:
        raise Refusal(f"must be linear, cosine or constant (each with warmup_steps), not {value}")
    return SCHEDULES[value]


TRAINING: tuple[Rule, ...] = (
    together(
        groups.batch,
        per_device_train_batch_size=8,
        gradient_accumulation_steps=1,
        generation_batch_size=None,
        steps_per_generation=None,
        num_generations=8,
    ),
    together(
        groups.length,
        max_steps=-1,
        num_train_epochs=3.0,
        num_iterations=1,
        warmup_steps=0,
        warmup_ratio=None,  # of releases before 1: the share that warmup_steps says as a fraction now
    ),
    maps("learning_rate", 1e-6, "learning_rate", float),
    maps("lr_scheduler_type", "linear", "lr_schedule", _schedule),
    maps("weight_decay", 0.0, "weight_decay", float),
    maps("adam_beta1", 0.9, "adam_beta1", float),
    maps("adam_beta2", 0.999, "adam_beta2", float),
    maps("adam_epsilon", 1e-8, "adam_epsilon", float),
    maps("max_grad_norm", 1.0, "max_grad_norm", float),
    maps("seed", 42, "seed", whole, differs="the same seed draws other random numbers here"),
    unlike("data_seed", None, "the job's one seed decides the order of the rows too"),
    only("optim", *ADAMW, why="the optimiser here is AdamW; remove optim"),
    only("optim_args", None, "", why="set adam_beta1, adam_beta2, adam_epsilon and weight_decay instead"),
    only("optim_target_modules", None, why="no such optimiser here; use lora_target_modules"),
    only("lr_scheduler_kwargs", None, {}, "", why="the schedules here have no further settings"),
    only("shuffle_dataset", True, why="each epoch here is a new permutation of the rows"),
    only("train_sampling_strategy", "random", why="each epoch here is a new permutation of the rows"),
    only("neftune_noise_alpha", None, why="no noise is added to embeddings here"),
    only("label_smoothing_factor", 0.0, 0, why="a policy gradient has no labels to smooth"),
    only("router_aux_loss_coef", None, 0, 0.0, why="there is no expert-balancing loss here; set it to 0.0"),
    unlike("disable_dropout", False, "the base model's dropout is off here in any case"),
    unlike("cast_lm_head_to_fp32", False, "only log-probabilities are computed in float32"),
    unneeded(
        "the base model's dtype and kernels are the operator's choice (GRPO_RUNTIME)",
        "bf16 fp16 bf16_full_eval fp16_full_eval tf32 use_cpu use_liger_kernel liger_kernel_config",
    ),
    unneeded(
        OPERATOR,
        """
        gradient_checkpointing gradient_checkpointing_kwargs torch_compile torch_compile_backend
        torch_compile_mode use_cache torch_empty_cache_steps auto_find_batch_size accelerator_config
        parallelism_config fsdp fsdp_config deepspeed ddp_find_unused_parameters ddp_bucket_cap_mb
        ddp_broadcast_buffers ddp_static_graph ddp_backend ddp_timeout local_rank full_determinism
        average_tokens_across_devices ds3_gather_for_generation pad_to_multiple_of debug
        skip_memory_metrics
        """,
    ),
    unneeded(
        LOADING,
        """
        dataloader_drop_last dataloader_num_workers dataloader_pin_memory dataloader_persistent_workers
        dataloader_prefetch_factor dataloader_multiprocessing_context dataloader_in_order
        remove_unused_columns label_names length_column_name
        """,
    ),
)

RECORDING: tuple[Rule, ...] = (
    unneeded(
        RECORDED,
        """
        logging_strategy logging_steps logging_first_step log_on_each_node logging_nan_inf_filter
        include_num_input_tokens_seen log_level log_level_replica disable_tqdm report_to project
        trackio_space_id trackio_bucket_id trackio_static_space_id log_completions log_multimodal
        num_completions_to_print log_unique_prompts log_completions_hub_repo output_dir
        """,
    ),
    together(groups.run_name, run_name=None),
    together(groups.evaluation, eval_strategy="no", eval_steps=None, do_eval=False),
    unlike("num_generations_eval", None, "a held-out row is answered once, greedily (`eval_temperature`)"),
    unneeded(
        "held-out rows are evaluated before the first step, then every eval_interval steps, and at the end",
        """
        eval_delay eval_on_start per_device_eval_batch_size prediction_loss_only eval_do_concat_batches
        eval_use_gather_object eval_accumulation_steps include_for_metrics batch_eval_metrics do_train
        do_predict
        """,
    ),
    together(groups.saving, save_strategy="steps", save_steps=500, save_total_limit=None),
    unneeded(CHECKPOINTS, "save_only_model save_on_each_node enable_jit_checkpoint"),
    unneeded(
        "the best checkpoint by held-out reward is GET …/adapter?checkpoint=best",
        "load_best_model_at_end metric_for_best_model greater_is_better",
    ),
    unneeded(
        LATER,
        """
        push_to_hub hub_token hub_private_repo hub_model_id hub_strategy hub_always_push hub_revision
        """,
    ),
    unneeded(
        "a job continues from its own checkpoints",
        "resume_from_checkpoint ignore_data_skip restore_callback_states_from_checkpoint",
    ),
    unneeded("environment variables are the operator's", "env"),
)

SAMPLING: tuple[Rule, ...] = (
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
    together(
        groups.correction,
        use_vllm=False,
        vllm_importance_sampling_correction=True,
        vllm_importance_sampling_mode="sequence_mask",
        vllm_importance_sampling_clip_max=3.0,
        vllm_importance_sampling_clip_min=None,
        vllm_importance_sampling_cap=None,
    ),
    only("off_policy_mask_threshold", None, why="not supported; `importance_correction` bounds the ratio"),
    unneeded(
        SAMPLER,
        """
        vllm_mode vllm_model_impl vllm_enable_sleep_mode vllm_server_base_url vllm_server_host
        vllm_server_port vllm_server_timeout vllm_group_port vllm_gpu_memory_utilization
        vllm_max_model_length vllm_tensor_parallel_size cache_implementation
        use_transformers_continuous_batching transformers_continuous_batching_config
        use_transformers_paged
        """,
    ),
)

OBJECTIVE: tuple[Rule, ...] = (
    together(
        groups.loss,
        loss_type="dapo",
        importance_sampling_level="token",
        epsilon=0.2,
        epsilon_high=None,
        delta=None,
    ),
    together(groups.divergence, beta=0.0, use_bias_correction_kl=True),
    together(groups.gate, sapo_temperature_pos=1.0, sapo_temperature_neg=1.05),
    maps("mask_truncated_completions", False, "mask_truncated_completions"),
    maps("top_entropy_quantile", 1.0, "top_entropy_quantile", float),
    maps("entropy_coef", 0.0, "entropy_coef", float),
    only("use_adaptive_entropy", False, why="entropy_coef is constant here; a guard can watch the entropy"),
    unneeded(
        "only used by use_adaptive_entropy",
        "entropy_coef_min entropy_coef_max entropy_coef_delta entropy_target",
    ),
    unneeded("only used by the loss vespo", "vespo_k_pos vespo_lambda_pos vespo_k_neg vespo_lambda_neg"),
    only("sync_ref_model", False, why="the reference stays the starting model; `kl_target` adapts β"),
    unneeded("only used by sync_ref_model", "ref_model_mixup_alpha ref_model_sync_steps"),
    together(
        rewards,
        reward_funcs=None,
        reward_model_name_or_path=None,
        reward_weights=None,
        multi_objective_aggregation="sum_then_normalize",
        scale_rewards="group",
    ),
)

MODEL: tuple[Rule, ...] = (
    together(groups.model, model_name_or_path=None, model_revision="main"),
    only(
        "model_init_kwargs", None, {}, "", why="the catalogue and the operator decide how a model is loaded"
    ),
    only("trust_remote_code", False, why="models' own code is never run here"),
    unneeded(
        "the base model's dtype and kernels are the operator's choice (GRPO_RUNTIME)",
        "dtype attn_implementation",
    ),
    together(
        groups.adapter,
        use_peft=False,
        lora_r=16,
        lora_alpha=32,
        lora_dropout=0.05,
        lora_target_modules=None,
    ),
    only("lora_target_parameters", None, why="LoRA is put on modules here: lora_target_modules"),
    only("lora_modules_to_save", None, why="only the adapter is trained; use_peft: false trains all weights"),
    only("lora_task_type", "CAUSAL_LM", why="only language models are trained"),
    only("use_rslora", False, why="scale by lora_alpha: rsLoRA is alpha / sqrt(r) in its place"),
    only("use_dora", False, why="plain LoRA only"),
    unlike("load_in_8bit", False, WHOLE),
    unlike("load_in_4bit", False, WHOLE),
    unneeded("the base is not quantised", "bnb_4bit_quant_type use_bnb_nested_quant bnb_4bit_quant_storage"),
)

DATA: tuple[Rule, ...] = (
    together(
        groups.data,
        dataset_name=None,
        dataset_config=None,
        dataset_train_split="train",
        dataset_test_split="test",
        datasets=None,
    ),
    unneeded("the dataset is uploaded once, as a file", "dataset_streaming streaming test_split_size"),
    unneeded("it works around a limit of distributed data parallel", "ignore_bias_buffers"),
)

OLDER: tuple[Rule, ...] = (
    unlike("max_prompt_length", None, "prompts are never cut: a row that does not fit is refused"),
    unneeded(SAMPLER, "vllm_device vllm_max_model_len vllm_dtype vllm_enable_prefix_caching"),
    unneeded(RECORDED, "wandb_log_unique_prompts"),
    unneeded("the base model's dtype is the operator's choice (GRPO_RUNTIME)", "torch_dtype"),
)
"""Of earlier releases; TRL 1.16 no longer has them."""

RULES = (*MODEL, *DATA, *OBJECTIVE, *SAMPLING, *TRAINING, *RECORDING, *OLDER)
