"""The main fields of verl's configuration: `algorithm`, `actor_rollout_ref`, `data`, `trainer`.

Boundary: a table over dotted names, nested or not; fields that belong together are in `verl_groups.py`.
"""

import re
from collections.abc import Mapping
from typing import Any

from service.importing import trl
from service.importing import verl_groups as groups
from service.importing.common_fields import run_name
from service.importing.rules import (
    Options,
    Rule,
    Translation,
    maps,
    only,
    together,
    translated,
    unlike,
    unneeded,
    whole,
)
from service.importing.trl_sinks import to_sinks

ACTOR, ROLLOUT, MODEL = "actor_rollout_ref.actor", "actor_rollout_ref.rollout", "actor_rollout_ref.model"
OPTIM = f"{ACTOR}.optim"
MACHINE = re.compile(
    r"(?:critic|global_profiler|ray_kwargs|ray_init|profiler)\..*"
    r"|.*(?:fsdp_config|megatron|profiler|checkpoint|engine_kwargs|trace|agent|kernel_options|custom_async_server)\..*"
    r"|.*\._target_|.*(?:micro_batch_size|max_token_len|dynamic_bsz).*|actor_rollout_ref\.ref\..*"
)
"""Sections for verl's distribution of work over machines, and for the critic, which GRPO does not have."""
TOOLS = "tools are named in the job: `tools`, with max_turns"
WHOLE_VOCABULARY = "answers to held-out rows are sampled from all tokens"
NEVER_CUT = "rows are never cut: one that does not fit is refused"
_REFERENCE = re.compile(r"\$\{(?:oc\.select:)?([\w.]+)(?:,\s*(.*))?\}")

UNNEEDED = {
    (NEVER_CUT, "data"): "max_prompt_length filter_overlong_prompts filter_overlong_prompts_workers",
    ("discounting belongs to a critic, which GRPO does not have", "algorithm"): "gamma lam",
    ("the job's rows have fixed names", "data"): "prompt_key reward_fn_key image_key video_key",
    (trl.LOADING, "data"): """
        tokenizer use_shm val_batch_size return_raw_input_ids return_raw_chat return_full_prompt
        dataloader_num_workers validation_shuffle return_multi_modal_inputs trust_remote_code
        custom_cls.name
    """,
    (trl.OPERATOR, "actor_rollout_ref"): """
        actor.strategy actor.use_torch_compile actor.ulysses_sequence_parallel_size
        actor.use_fused_kernels actor.use_remove_padding actor.shuffle actor.entropy_checkpointing
        actor.entropy_from_logits_with_chunking model.use_remove_padding
        model.enable_gradient_checkpointing model.enable_activation_offload model.use_liger
        model.use_fused_kernels model.use_shm model.external_lib hybrid_engine nccl_timeout
    """,
    (trl.OPERATOR, "trainer"): """
        nnodes n_gpus_per_node balance_batch device use_legacy_worker_impl
        ray_wait_register_center_timeout esi_redundant_time
    """,
    (trl.SAMPLER, ROLLOUT): """
        name mode dtype gpu_memory_utilization enforce_eager free_cache_engine
        tensor_model_parallel_size max_num_batched_tokens max_model_len max_num_seqs disable_log_stats
        enable_chunked_prefill load_format layered_summon calculate_log_probs do_sample prompt_length
        response_length val_kwargs.do_sample cudagraph_capture_sizes
    """,
    (trl.RECORDED, "trainer"): "log_val_generations rollout_data_dir validation_data_dir",
    (trl.CHECKPOINTS, "trainer"): """
        resume_mode resume_from_path default_local_dir default_hdfs_dir del_local_ckpt_after_load
        max_critic_ckpt_to_keep
    """,
    ("held-out rows are evaluated before the first step", "trainer"): "val_before_train",
    ("there is no critic", "trainer"): "critic_warmup",
}
"""Reason why the job needs no counterpart, and section → the fields."""


@together({"trainer.logger": None, "trainer.project_name": None})
def sinks(translation: Translation) -> None:
    wandb = {
        "project": translation["trainer.project_name"] or "verl_examples",
        "name": translation.given.get("trainer.experiment_name"),
    }
    to_sinks(translation, ("trainer.logger", "trainer.project_name"), translation["trainer.logger"], wandb)


RULES: tuple[Rule, ...] = (
    groups.advantage,
    groups.batch,
    groups.length,
    groups.loss,
    groups.divergence,
    groups.model,
    groups.data,
    groups.reward,
    groups.overlong,
    groups.group_filter,
    maps(f"{ROLLOUT}.n", 1, "group_size", whole),
    maps(f"{ROLLOUT}.temperature", 1.0, "temperature", float),
    only(f"{ROLLOUT}.top_p", 1, 1.0, None, why=trl.BIASED),
    only(f"{ROLLOUT}.top_k", -1, 0, None, why=trl.BIASED),
    maps("data.max_response_length", 512, "max_completion_tokens", whole),
    maps(f"{ACTOR}.entropy_coeff", 0, "entropy_coef", float),
    maps(f"{OPTIM}.lr", 1e-6, "learning_rate", float),
    maps(f"{OPTIM}.weight_decay", 0.01, "weight_decay", float),
    groups.schedule,
    maps(f"{ACTOR}.grad_clip", 1.0, "max_grad_norm", float),
    maps(f"{ROLLOUT}.val_kwargs.temperature", 0, "eval_temperature", float),
    unlike(f"{ROLLOUT}.val_kwargs.n", 1, "a held-out row is answered once"),
    unlike(f"{ROLLOUT}.val_kwargs.top_p", 1.0, WHOLE_VOCABULARY),
    unlike(f"{ROLLOUT}.val_kwargs.top_k", -1, WHOLE_VOCABULARY),
    groups.evaluation,
    groups.saving,
    only(f"{ROLLOUT}.multi_turn.enable", False, why=TOOLS),
    only(f"{ROLLOUT}.agent.default_agent_loop", "single_turn_agent", None, why=TOOLS),
    only(f"{ROLLOUT}.agent.agent_loop_config_path", None, why="agent loops in Python are not run here"),
    only(f"{ROLLOUT}.ignore_eos", False, why="a completion ends with its end-of-sequence token"),
    only(f"{MODEL}.trust_remote_code", False, why="code from model repositories is never run"),
    only(f"{MODEL}.custom_chat_template", None, why="the model's own chat template is used"),
    only(f"{MODEL}.exclude_modules", None, why="list the trained modules: lora.target_modules"),
    only(
        "data.apply_chat_template_kwargs", None, {}, why="the model's chat template is used with its defaults"
    ),
    only("data.shuffle", True, why=trl.SHUFFLED),
    only("data.custom_cls.path", None, why="write the rows of this class to a file, and give it with --data"),
    only("data.truncation", "error", "left", "right", "middle", why=NEVER_CUT),
    only("algorithm.use_pf_ppo", False, why="samples are not reweighted here"),
    run_name("trainer.experiment_name"),
    sinks,
    only("trainer.val_only", False, why="a job always trains, after a baseline evaluation"),
    *(unneeded(why, names, section) for (why, section), names in UNNEEDED.items()),
)


def reward_names(config: Mapping[str, Any]) -> list[str]:
    """Name of its reward function, as `file.py:function`."""
    given = flattened(config)
    path = given.get("custom_reward_function.path")
    name = given.get("custom_reward_function.name") or "compute_score"
    return [f"{path}:{name}"] if path else []


def flattened(config: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested → dotted; a `${…}` reference is replaced by the value of the field it names."""
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
    """Applies the rules, and one more for the fields that configure machines."""
    given = flattened(config)
    ruled = {name for rule in RULES for name in rule.defaults}
    machines = " ".join(name for name in given if name not in ruled and MACHINE.fullmatch(name))
    return translated((*RULES, unneeded(trl.OPERATOR, machines)), given, options)
