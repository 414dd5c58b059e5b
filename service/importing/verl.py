"""verl's trainer configuration (`algorithm`, `actor_rollout_ref`, `data`, `trainer`): its main fields.

Boundary: a table over dotted names, nested or not; fields that belong together are in `verl_groups.py`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from service.importing import trl, verl_rewards
from service.importing import verl_groups as groups
from service.importing.rules import Options, Rule, Translation, maps, only, translated, unneeded, whole

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OPTIM = f"{ACTOR}.optim"
MACHINE = re.compile(
    r"(?:critic|global_profiler|ray_kwargs|ray_init|profiler)\..*"
    r"|.*(?:fsdp_config|megatron|profiler|checkpoint|engine_kwargs|trace|agent|kernel_options|custom_async_server)\..*"
    r"|.*\._target_|.*(?:micro_batch_size|max_token_len|dynamic_bsz).*|actor_rollout_ref\.ref\..*"
)
"""How verl spreads the work over its machines, and the critic that GRPO has not."""
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*(.*))?\}")


RULES: tuple[Rule, ...] = (
    groups.ADVANTAGE,
    groups.BATCH,
    groups.LENGTH,
    groups.LOSS,
    groups.DIVERGENCE,
    groups.MODEL,
    groups.DATA,
    verl_rewards.REWARD,
    verl_rewards.OVERLONG,
    verl_rewards.FILTER,
    maps(f"{ROLLOUT}.n", 1, "group_size", whole),
    maps(f"{ROLLOUT}.temperature", 1.0, "temperature", float),
    only(f"{ROLLOUT}.top_p", 1, 1.0, None, why=trl.BIASED),
    only(f"{ROLLOUT}.top_k", -1, 0, None, why=trl.BIASED),
    maps("data.max_response_length", 512, "max_completion_tokens", whole),
    maps(f"{ACTOR}.entropy_coeff", 0, "entropy_coef", float),
    maps(f"{OPTIM}.lr", 1e-6, "learning_rate", float),
    maps(f"{OPTIM}.weight_decay", 0.01, "weight_decay", float),
    groups.SCHEDULE,
    maps(f"{ACTOR}.grad_clip", 1.0, "max_grad_norm", float),
    maps(f"{ROLLOUT}.val_kwargs.temperature", 0, "eval_temperature", float),
    groups.EVALUATION,
    groups.SAVING,
    only(f"{ROLLOUT}.multi_turn.enable", False, why="tools are named in the job: `tools`, with max_turns"),
    only(f"{ROLLOUT}.ignore_eos", False, why="a completion ends with its end-of-sequence token"),
    only(f"{MODEL}.trust_remote_code", False, why="models' own code is never run here"),
    only(f"{MODEL}.custom_chat_template", None, why="the model's own chat template is used"),
    only(f"{MODEL}.exclude_modules", None, why="name what is trained: lora.target_modules"),
    only(
        "data.apply_chat_template_kwargs", None, {}, why="the model's chat template is used with its defaults"
    ),
    only("data.truncation", "error", "left", "right", "middle", why=groups.NEVER_CUT),
    only("algorithm.use_pf_ppo", False, why="no feedback reweighting of samples here"),
    unneeded(
        groups.NEVER_CUT,
        "data.max_prompt_length data.filter_overlong_prompts data.filter_overlong_prompts_workers",
    ),
    unneeded("discounting belongs to a critic, which GRPO has not", "algorithm.gamma algorithm.lam"),
    unneeded(
        "the job's rows say what they are", "data.prompt_key data.reward_fn_key data.image_key data.video_key"
    ),
    unneeded(
        trl.LOADING,
        """
        data.tokenizer data.use_shm data.val_batch_size data.return_raw_input_ids data.return_raw_chat
        data.return_full_prompt data.dataloader_num_workers data.validation_shuffle
        data.return_multi_modal_inputs data.trust_remote_code data.shuffle data.custom_cls.path
        data.custom_cls.name
        """,
    ),
    unneeded(
        trl.OPERATOR,
        f"""
        {ACTOR}.strategy {ACTOR}.use_torch_compile {ACTOR}.ulysses_sequence_parallel_size
        {ACTOR}.use_fused_kernels {ACTOR}.use_remove_padding {ACTOR}.shuffle {ACTOR}.entropy_checkpointing
        {ACTOR}.entropy_from_logits_with_chunking {MODEL}.use_remove_padding
        {MODEL}.enable_gradient_checkpointing {MODEL}.enable_activation_offload {MODEL}.use_liger
        {MODEL}.use_fused_kernels {MODEL}.use_shm {MODEL}.external_lib actor_rollout_ref.hybrid_engine
        actor_rollout_ref.nccl_timeout trainer.nnodes trainer.n_gpus_per_node trainer.balance_batch
        trainer.device trainer.use_legacy_worker_impl trainer.ray_wait_register_center_timeout
        trainer.esi_redundant_time
        """,
    ),
    unneeded(
        trl.SAMPLER,
        f"""
        {ROLLOUT}.name {ROLLOUT}.mode {ROLLOUT}.dtype {ROLLOUT}.gpu_memory_utilization
        {ROLLOUT}.enforce_eager {ROLLOUT}.free_cache_engine {ROLLOUT}.tensor_model_parallel_size
        {ROLLOUT}.max_num_batched_tokens {ROLLOUT}.max_model_len {ROLLOUT}.max_num_seqs
        {ROLLOUT}.disable_log_stats {ROLLOUT}.enable_chunked_prefill {ROLLOUT}.load_format
        {ROLLOUT}.layered_summon {ROLLOUT}.calculate_log_probs {ROLLOUT}.do_sample {ROLLOUT}.prompt_length
        {ROLLOUT}.response_length {ROLLOUT}.val_kwargs.n {ROLLOUT}.val_kwargs.do_sample
        {ROLLOUT}.val_kwargs.top_p {ROLLOUT}.val_kwargs.top_k {ROLLOUT}.cudagraph_capture_sizes
        """,
    ),
    unneeded(
        trl.RECORDED,
        """
        trainer.logger trainer.project_name trainer.log_val_generations trainer.rollout_data_dir
        trainer.validation_data_dir
        """,
    ),
    groups.RUN_NAME,
    unneeded(
        trl.CHECKPOINTS,
        """
        trainer.resume_mode trainer.resume_from_path trainer.default_local_dir trainer.default_hdfs_dir
        trainer.del_local_ckpt_after_load trainer.max_critic_ckpt_to_keep
        """,
    ),
    unneeded("held-out rows are evaluated before the first step", "trainer.val_before_train"),
    only("trainer.val_only", False, why="a job trains; its baseline evaluation is the first thing it does"),
    unneeded("there is no critic", "trainer.critic_warmup"),
)


def reward_names(config: Mapping[str, Any]) -> list[str]:
    """Its own reward function, as `file.py:function`."""
    given = flattened(config)
    path = given.get("custom_reward_function.path")
    name = given.get("custom_reward_function.name") or "compute_score"
    return [f"{path}:{name}"] if path else []


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested → dotted; `${…}` that names another field is its value."""
    found: dict[str, Any] = {}
    for name, value in config.items():
        path = f"{prefix}{name}"
        if isinstance(value, Mapping) and value:
            found |= flattened(value, f"{path}.")
        else:
            found[path.lstrip("+")] = value
    return found if prefix else {name: _resolved(value, found) for name, value in found.items()}


def _resolved(value: Any, given: Mapping[str, Any], depth: int = 8) -> Any:
    match = _REFERENCE.fullmatch(value) if isinstance(value, str) else None
    if match is None or not depth:
        return value
    default = None if match[2] in (None, "null") else match[2]
    return _resolved(given.get(match[1], default), given, depth - 1)


def translation(config: Mapping[str, Any], options: Options) -> Translation:
    """The rules over it, with one more for what is only about its machines."""
    given = flattened(config)
    known = {name for rule in RULES for name in rule.defaults}
    machines = " ".join(name for name in given if name not in known and MACHINE.fullmatch(name))
    return translated((*RULES, unneeded(trl.OPERATOR, machines)), given, options)
