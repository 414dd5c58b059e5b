"""Fields of verl that have a meaning only together.

Boundary: rules for `verl.py`; each writes to a translation.
"""

from __future__ import annotations

import math

from service.importing.rules import Rule, Translation, whole
from service.importing.trl_groups import SHARE, total_steps

NEVER_CUT = "rows are never cut: one that does not fit is refused"
ACTOR, ALGORITHM = "actor_rollout_ref.actor", "algorithm"
WEIGHTS, OPTIM = "actor_rollout_ref.model", "actor_rollout_ref.actor.optim"
ADVANTAGES = {
    "grpo": "group_std",
    "rloo": "leave_one_out",
    "reinforce_plus_plus_baseline": "reinforce_plus_plus",
}
AGGREGATIONS = {"token-mean": "dapo", "seq-mean-token-mean": "grpo", "seq-mean-token-sum-norm": "dr_grpo"}
ESTIMATORS = {"low_var_kl": "k3", "k3": "k3", "kl": "k1", "k1": "k1", "mse": "k2", "k2": "k2"}


def _advantage(translation: Translation) -> None:
    names = (f"{ALGORITHM}.adv_estimator", f"{ALGORITHM}.norm_adv_by_std_in_grpo")
    kind, scaled = (translation[name] for name in names)
    if kind not in ADVANTAGES:
        translation.refuses(names[0], f"must be one of {', '.join(ADVANTAGES)}, not {kind}")
    else:
        value = ADVANTAGES[kind] if kind != "grpo" or scaled else "mean_only"
        translation.maps(names, "advantage", value)


def _batch(translation: Translation) -> None:
    """Prompts that an optimiser step is made of."""
    names = ("data.train_batch_size", f"{ACTOR}.ppo_mini_batch_size")
    sampled, trained = (whole(translation[name]) for name in names)
    later = f"verl samples {sampled} prompts and trains on {trained} at a time, the later ones off-policy"
    why = f"{later}; here every step samples its own" if trained < sampled else ""
    translation.maps(names, "prompts_per_step", min(trained, sampled), differs=why)
    translation.maps(f"{ACTOR}.ppo_epochs", "num_iterations", whole(translation[f"{ACTOR}.ppo_epochs"]))


def _length(translation: Translation) -> None:
    """verl's steps are sets of samples; those of more than one minibatch are as many steps here."""
    minibatches = math.ceil(
        translation["data.train_batch_size"] / translation[f"{ACTOR}.ppo_mini_batch_size"]
    )
    steps, epochs = translation["trainer.total_training_steps"], translation["trainer.total_epochs"]
    why = f"{minibatches} steps here for each of verl's" if minibatches > 1 else ""
    if steps and steps > 0:
        translation.maps("trainer.total_training_steps", "n_steps", steps * minibatches, differs=why)
        translation.leaves("trainer.total_epochs", "total_training_steps takes its place")
    else:
        translation.maps("trainer.total_epochs", "n_epochs", whole(epochs))
    names = (f"{OPTIM}.lr_warmup_steps", f"{OPTIM}.lr_warmup_steps_ratio")
    warmup, share = (translation[name] or 0 for name in names)
    if warmup > 0:
        translation.maps(names, "warmup_steps", whole(warmup))
    elif not share:
        translation.maps(names, "warmup_steps", 0)
    elif (total := total_steps(translation)) is not None:
        translation.maps(names, "warmup_steps", int(share * total))
    else:
        translation.refuses(names, SHARE)
    translation.leaves(f"{OPTIM}.total_training_steps", "verl sets it itself")


def _schedule(translation: Translation) -> None:
    older, name = f"{OPTIM}.warmup_style", f"{OPTIM}.lr_scheduler_type"
    given = older if translation[older] is not None else name
    if translation[given] in ("constant", "cosine"):
        translation.maps(given, "lr_schedule", translation[given])
    else:
        translation.refuses(given, f"must be constant or cosine, not {translation[given]}")
    least, cycles = f"{OPTIM}.min_lr_ratio", f"{OPTIM}.num_cycles"
    if translation[least] or translation[cycles] not in (0.5, None):
        translation.differs((least, cycles), "the cosine here is half a wave down to 0")


def _loss(translation: Translation) -> None:
    mode, aggregation = f"{ACTOR}.policy_loss.loss_mode", f"{ACTOR}.loss_agg_mode"
    if translation[mode] == "gspo":
        translation.maps((mode, aggregation), "loss_type", "gspo")
    elif translation[mode] != "vanilla":
        translation.refuses(mode, f"must be vanilla or gspo, not {translation[mode]}")
    elif translation[aggregation] in AGGREGATIONS:
        translation.maps((aggregation, mode), "loss_type", AGGREGATIONS[translation[aggregation]])
    else:
        translation.refuses(aggregation, f"must be one of {', '.join(AGGREGATIONS)}")
    both, low, high = (f"{ACTOR}.clip_ratio{end}" for end in ("", "_low", "_high"))
    for name, to in ((low, "epsilon_low"), (high, "epsilon_high")):
        value = translation[name] if translation.states(name) else translation[both]
        translation.maps(name if translation.states(name) else both, to, float(value))
    if translation[f"{ACTOR}.clip_ratio_c"]:
        translation.maps(f"{ACTOR}.clip_ratio_c", "delta", float(translation[f"{ACTOR}.clip_ratio_c"]))


def _divergence(translation: Translation) -> None:
    in_loss, in_reward = f"{ACTOR}.use_kl_loss", f"{ALGORITHM}.use_kl_in_reward"
    weight, kind = f"{ACTOR}.kl_loss_coef", f"{ACTOR}.kl_loss_type"
    fixed, coefficient, penalty = (
        f"{ALGORITHM}.{name}" for name in ("kl_ctrl.type", "kl_ctrl.kl_coef", "kl_penalty")
    )
    if translation[in_loss] and translation[in_reward]:
        translation.refuses((in_loss, in_reward), "the KL can be in the loss or in the reward, not in both")
    elif translation[in_loss]:
        _estimated(translation, in_loss, weight, kind, "loss")
    elif translation[in_reward]:
        _estimated(translation, in_reward, coefficient, penalty, "reward")
    else:
        translation.maps((in_loss, in_reward), "beta", 0.0)
        translation.leaves((weight, kind, coefficient, penalty), "there is no KL term")
    rest = (fixed, f"{ALGORITHM}.kl_ctrl.horizon", f"{ALGORITHM}.kl_ctrl.target_kl")
    if translation[in_reward] and translation[fixed] == "adaptive":
        translation.differs(
            rest, "kl_target counts nats a token, verl's target nats a completion: set it yourself"
        )
    else:
        translation.leaves(rest, "β is constant")


def _estimated(translation: Translation, switch: str, weight: str, kind: str, place: str) -> None:
    translation.leaves(switch, f"beta above 0, in the {place}")
    translation.maps(weight, "beta", float(translation[weight]))
    translation.maps(switch, "kl_placement", place)
    name = str(translation[kind]).removesuffix("+")
    if name in ESTIMATORS:
        translation.maps(kind, "kl_estimator", ESTIMATORS[name])
    else:
        translation.refuses(kind, f"must be one of {', '.join(ESTIMATORS)}, not {name}")


def _model(translation: Translation) -> None:
    path, chosen = translation[f"{WEIGHTS}.path"], translation.options.model
    if not chosen and (not path or str(path).startswith(("/", "~", ".", "$"))):
        why = "a job names an entry of the catalogue: `grpo models add NAME PATH`, then --model NAME"
        translation.refuses(f"{WEIGHTS}.path", why)
    else:
        translation.maps(
            f"{WEIGHTS}.path", "model", str(chosen or path), differs="by --model" if chosen else ""
        )
    shape = tuple(f"{WEIGHTS}.{name}" for name in ("lora_rank", "lora_alpha", "target_modules"))
    rank, alpha, targets = (translation[name] for name in shape)
    if not rank:
        translation.maps(shape[0], "lora", "full")
        translation.leaves(shape[1:], "lora_rank is 0: all weights are trained")
        return
    translation.maps(shape[0], "lora.rank", whole(rank))
    translation.maps(shape[1], "lora.alpha", float(alpha))
    translation.maps(shape[2], "lora.target_modules", targets)


def _data(translation: Translation) -> None:
    for name, given, to, option in (
        ("data.train_files", translation.options.data, "training_file", "--data"),
        ("data.val_files", translation.options.validation_data, "validation_file", "--validation-data"),
    ):
        if given is not None:
            translation.maps(name, to, given, differs=f"by {option}")
        elif to == "training_file":
            translation.refuses(name, f"give {option} rows.jsonl, or a Parquet, CSV or JSON file")
        else:
            translation.leaves(name, f"no held-out rows: {option} gives some")


def _evaluation(translation: Translation) -> None:
    every = translation["trainer.test_freq"]
    if every > 0:
        translation.maps("trainer.test_freq", "eval_interval", whole(every))
    else:
        translation.leaves("trainer.test_freq", "held-out rows are evaluated if the job has any")


def _saving(translation: Translation) -> None:
    every, most = translation["trainer.save_freq"], translation["trainer.max_actor_ckpt_to_keep"]
    if every > 0:
        translation.maps("trainer.save_freq", "checkpoint_interval", whole(every))
    else:
        translation.leaves("trainer.save_freq", "every 20 steps: a killed job continues from there")
    if most:
        translation.maps("trainer.max_actor_ckpt_to_keep", "max_checkpoints", min(100, whole(most)))


def _run_name(translation: Translation) -> None:
    name = translation["trainer.experiment_name"]
    if name and translation.states("trainer.experiment_name"):
        translation.maps("trainer.experiment_name", "metadata.run_name", str(name)[:512])


ADVANTAGE = Rule(
    {f"{ALGORITHM}.adv_estimator": "gae", f"{ALGORITHM}.norm_adv_by_std_in_grpo": True}, _advantage
)
BATCH = Rule(
    {"data.train_batch_size": 1024, f"{ACTOR}.ppo_mini_batch_size": 256, f"{ACTOR}.ppo_epochs": 1}, _batch
)
LENGTH = Rule(
    {
        "trainer.total_training_steps": None,
        "trainer.total_epochs": 30,
        f"{OPTIM}.lr_warmup_steps": -1,
        f"{OPTIM}.lr_warmup_steps_ratio": 0.0,
        f"{OPTIM}.total_training_steps": -1,
    },
    _length,
)
SCHEDULE = Rule(
    {
        f"{OPTIM}.lr_scheduler_type": "constant",
        f"{OPTIM}.warmup_style": None,
        f"{OPTIM}.min_lr_ratio": 0.0,
        f"{OPTIM}.num_cycles": 0.5,
    },
    _schedule,
)
LOSS = Rule(
    {
        f"{ACTOR}.policy_loss.loss_mode": "vanilla",
        f"{ACTOR}.loss_agg_mode": "token-mean",
        f"{ACTOR}.clip_ratio": 0.2,
        f"{ACTOR}.clip_ratio_low": 0.2,
        f"{ACTOR}.clip_ratio_high": 0.2,
        f"{ACTOR}.clip_ratio_c": 3.0,
    },
    _loss,
)
DIVERGENCE = Rule(
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
    },
    _divergence,
)
MODEL = Rule(
    {
        f"{WEIGHTS}.path": None,
        f"{WEIGHTS}.lora_rank": 0,
        f"{WEIGHTS}.lora_alpha": 16,
        f"{WEIGHTS}.target_modules": "all-linear",
    },
    _model,
)
DATA = Rule({"data.train_files": None, "data.val_files": None}, _data)
EVALUATION = Rule({"trainer.test_freq": -1}, _evaluation)
SAVING = Rule({"trainer.save_freq": -1, "trainer.max_actor_ckpt_to_keep": None}, _saving)
RUN_NAME = Rule({"trainer.experiment_name": None}, _run_name)
