"""Rules for fields of verl that have a meaning only together.

Boundary: `rewards.py` translates Python functions.
"""

import math
from fractions import Fraction
from typing import Any

from service.importing import common_fields
from service.importing.rewards import wrapped_verl
from service.importing.rules import Refusal, Translation, together, whole
from service.importing.trl_groups import IF_ANY, SHARE, total_steps

ACTOR, ALGORITHM = "actor_rollout_ref.actor", "algorithm"
WEIGHTS, OPTIM = "actor_rollout_ref.model", "actor_rollout_ref.actor.optim"
ADVANTAGES = {
    "grpo": "group_std",
    "rloo": "leave_one_out",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus",
}
AGGREGATIONS = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo"}
ESTIMATORS = {"low_var_kl": "k3", "k3": "k3", "kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2"}


@together({f"{ALGORITHM}.adv_estimator": "gae", f"{ALGORITHM}.norm_adv_by_std_in_grpo": True})
def advantage(translation: Translation) -> None:
    names = tuple(advantage.defaults)
    kind, scaled = (translation[name] for name in names)
    if kind not in ADVANTAGES:
        translation.refuses(names[0], f"must be one of {', '.join(ADVANTAGES)}, not {kind}")
    else:
        value = ADVANTAGES[kind] if kind != "grpo" or scaled else "mean_only"
        translation.maps(names, "advantage", value)


@together({"data.train_batch_size": 1024, f"{ACTOR}.ppo_mini_batch_size": 256, f"{ACTOR}.ppo_epochs": 1})
def batch(translation: Translation) -> None:
    """Prompts of an optimiser step."""
    names = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
    sampled, trained = (whole(translation[name]) for name in names)
    later = f"verl samples {sampled} prompts and trains on {trained} at a time, the later ones off-policy"
    why = f"{later}; here every step samples its own" if trained < sampled else ""
    translation.maps(names, "prompts_per_step", min(trained, sampled), differs=why)
    translation.maps(f"{ACTOR}.ppo_epochs", "num_iterations", whole(translation[f"{ACTOR}.ppo_epochs"]))


@together(
    {
        "trainer.total_training_steps": None,
        "trainer.total_epochs": 30,
        f"{OPTIM}.lr_warmup_steps": -1,
        f"{OPTIM}.lr_warmup_steps_ratio": 0.0,
        f"{OPTIM}.total_training_steps": -1,
    }
)
def length(translation: Translation) -> None:
    """Steps and epochs. A step of verl may have several minibatches; here each of them is a step."""
    minibatches, why = _minibatches(translation)
    steps, epochs = translation["trainer.total_training_steps"], translation["trainer.total_epochs"]
    if steps and steps > 0:
        translation.maps("trainer.total_training_steps", "n_steps", steps * minibatches, differs=why)
        translation.leaves("trainer.total_epochs", "total_training_steps takes its place")
    else:
        translation.maps("trainer.total_epochs", "n_epochs", whole(epochs))
    names = (f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps_ratio")
    warmup, share = (translation[name] or 0 for name in names)
    if warmup > 0:
        translation.maps(names, "warmup_steps", whole(warmup) * minibatches, differs=why)
    elif not share:
        translation.maps(names, "warmup_steps", 0)
    elif (total := total_steps(translation)) is not None:
        translation.maps(names, "warmup_steps", int(share * total))
    else:
        translation.refuses(names, SHARE)
    translation.leaves(f"{OPTIM}.total_training_steps", "verl sets it itself")


def _minibatches(translation: Translation) -> tuple[int, str]:
    """The job's steps for each step that verl counts, and the difference in words if they are several."""
    sampled, trained = translation["data.train_batch_size"], translation[f"{ACTOR}.ppo_mini_batch_size"]
    count = math.ceil(sampled / trained)
    return count, f"{count} steps here for each of verl's" if count > 1 else ""


@together(
    {
        f"{OPTIM}.lr_scheduler_type": "constant",
        f"{OPTIM}.warmup_style": None,
        f"{OPTIM}.min_lr_ratio": 0.0,
        f"{OPTIM}.num_cycles": 0.5,
    }
)
def schedule(translation: Translation) -> None:
    name, older, least, cycles = schedule.defaults
    given = older if translation[older] is not None else name
    if translation[given] in ("constant", "cosine"):
        translation.maps(given, "lr_schedule", translation[given])
    else:
        translation.refuses(given, f"must be constant or cosine, not {translation[given]}")
    if translation[least] or translation[cycles] not in (0.5, None):
        translation.differs((least, cycles), "the cosine here is half a wave down to 0")


@together(
    {
        f"{ACTOR}.policy_loss.loss_mode": "vanilla",
        f"{ACTOR}.loss_agg_mode": "token-mean",
        f"{ACTOR}.clip_ratio": 0.2,
        f"{ACTOR}.clip_ratio_low": 0.2,
        f"{ACTOR}.clip_ratio_high": 0.2,
        f"{ACTOR}.clip_ratio_c": 3.0,
    }
)
def loss(translation: Translation) -> None:
    mode, aggregation, both, low, high, dual = loss.defaults
    if translation[mode] == "gspo":
        translation.maps((mode, aggregation), "loss_type", "gspo")
    elif translation[mode] != "vanilla":
        translation.refuses(mode, f"must be vanilla or gspo, not {translation[mode]}")
    elif translation[aggregation] in AGGREGATIONS:
        translation.maps((aggregation, mode), "loss_type", AGGREGATIONS[translation[aggregation]])
    else:
        translation.refuses(aggregation, f"must be one of {', '.join(AGGREGATIONS)}")
    for end, to in ((low, "epsilon_low"), (high, "epsilon_high")):
        name = end if translation.states(end) else both
        translation.maps(name, to, float(translation[name]))
    if translation[dual]:
        translation.maps(dual, "delta", float(translation[dual]))


@together(
    {
        f"{ACTOR}.use_kl_loss": False,
        f"{ACTOR}.kl_loss_coef": 0.001,
        f"{ACTOR}.kl_loss_type": "low_var_kl",
        f"{ALGORITHM}.use_kl_in_reward": False,
        f"{ALGORITHM}.kl_penalty": "kl",
        f"{ALGORITHM}.kl_ctrl.type": "fixed",
        f"{ALGORITHM}.kl_ctrl.kl_coef": 0.001,
        f"{ALGORITHM}.kl_ctrl.horizon": 10000,
        f"{ALGORITHM}.kl_ctrl.target_kl": 0.1,
    }
)
def divergence(translation: Translation) -> None:
    in_loss, weight, kind, in_reward, penalty, control, coefficient, *adaptive = divergence.defaults
    if translation[in_loss] and translation[in_reward]:
        translation.refuses((in_loss, in_reward), "the KL can be in the loss or in the reward, not in both")
    elif translation[in_loss]:
        _estimated(translation, in_loss, weight, kind, "loss")
    elif translation[in_reward]:
        _estimated(translation, in_reward, coefficient, penalty, "reward")
    else:
        translation.maps((in_loss, in_reward), "beta", 0.0)
        translation.leaves((weight, kind, coefficient, penalty), "there is no KL term")
    if translation[in_reward] and translation[control] == "adaptive":
        why = "kl_target counts nats per token, verl's target nats per completion: set it yourself"
        translation.differs((control, *adaptive), why)
    else:
        translation.leaves((control, *adaptive), "β is constant")


def _estimated(translation: Translation, switch: str, weight: str, kind: str, place: str) -> None:
    translation.leaves(switch, f"beta above 0, in the {place}")
    translation.maps(weight, "beta", float(translation[weight]))
    translation.maps(switch, "kl_placement", place)
    name = str(translation[kind]).removesuffix("+")
    if name in ESTIMATORS:
        translation.maps(kind, "kl_estimator", ESTIMATORS[name])
    else:
        translation.refuses(kind, f"must be one of {', '.join(ESTIMATORS)}, not {name}")


@together(
    {
        f"{WEIGHTS}.path": None,
        f"{WEIGHTS}.lora_rank": 0,
        f"{WEIGHTS}.lora_alpha": 16,
        f"{WEIGHTS}.target_modules": "all-linear",
    }
)
def model(translation: Translation) -> None:
    path, rank, alpha, targets = model.defaults
    common_fields.model(translation, path)
    if translation[rank]:
        translation.maps(rank, "lora.rank", whole(translation[rank]))
        translation.maps(alpha, "lora.alpha", float(translation[alpha]))
        translation.maps(targets, "lora.target_modules", translation[targets])
    else:
        translation.maps(rank, "lora", "full")
        translation.leaves((alpha, targets), "lora_rank is 0: all weights are trained")


@together({"data.train_files": None, "data.val_files": None})
def data(translation: Translation) -> None:
    common_fields.datasets(translation, "data.train_files", "data.val_files")


@together({"trainer.test_freq": -1})
def evaluation(translation: Translation) -> None:
    every = translation["trainer.test_freq"]
    if every > 0:
        minibatches, why = _minibatches(translation)
        translation.maps("trainer.test_freq", "eval_interval", whole(every) * minibatches, differs=why)
    else:
        translation.leaves("trainer.test_freq", IF_ANY)


@together({"trainer.save_freq": -1, "trainer.max_actor_ckpt_to_keep": None})
def saving(translation: Translation) -> None:
    minibatches, why = _minibatches(translation)
    names = ("trainer.save_freq", "trainer.max_actor_ckpt_to_keep")
    common_fields.checkpoints(translation, *names, steps=Fraction(minibatches), differs=why)


@together({"custom_reward_function.path": None, "custom_reward_function.name": "compute_score"})
def reward(translation: Translation) -> None:
    path, name = reward.defaults
    names = list(translation.options.rewards)
    if translation[path]:
        names.insert(0, f"{translation[path]}:{translation[name]}")
    if len(names) != 1:
        why = "verl chooses its own rewards by data_source: give one with --reward file.py:compute_score"
        translation.refuses(path, why)
        return
    try:
        source, note = wrapped_verl(translation.options.sources.get(names[0]), names[0])
    except Refusal as refusal:
        translation.refuses((path, name), f"{names[0]}: {refusal}")
        return
    grader: dict[str, Any] = {"type": "python", "name": names[0].rpartition(":")[2], "source": source}
    translation.maps((path, name), "grader", grader, differs=note)


@together(
    {
        "reward_model.overlong_buffer.enable": False,
        "reward_model.overlong_buffer.len": 0,
        "reward_model.overlong_buffer.penalty_factor": 1.0,
        "reward_model.enable": False,
        "reward_model.reward_manager": "naive",
    }
)
def overlong(translation: Translation) -> None:
    enable, buffer, factor, has_model, manager = overlong.defaults
    if translation[enable]:
        translation.maps((enable, buffer), "overlong_buffer_tokens", whole(translation[buffer]))
        translation.maps(factor, "overlong_penalty", float(translation[factor]))
    else:
        translation.leaves((enable, buffer, factor), "no penalty for long completions")
    if translation[has_model]:
        why = "a reward model is a grader, not a function: add a `reward_model` grader to the job"
        translation.refuses(has_model, why)
    else:
        translation.leaves((has_model, manager), "rewards come from the grader")


@together(
    {
        f"{ALGORITHM}.filter_groups.enable": False,
        f"{ALGORITHM}.filter_groups.max_num_gen_batches": 0,
        f"{ALGORITHM}.filter_groups.metric": None,
    }
)
def group_filter(translation: Translation) -> None:
    enable, most, metric = group_filter.defaults
    if translation[enable]:
        rounds = min(20, whole(translation[most] or 0) or 20)
        translation.maps((enable, most), "dynamic_sampling", rounds)
        translation.leaves(metric, "groups of equal rewards are replaced")
    else:
        translation.leaves((enable, most, metric), "groups without signal are left out, not replaced")
