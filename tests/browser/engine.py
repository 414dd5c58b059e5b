"""The fake engine with a realistic run: rising rewards, groups with texts, an evaluation.

`GRPO_ENGINE_MODULE=tests.browser.engine`. Boundary: what `tests.support.fake_engine` does and no model; the
numbers depend on the step, the seed and the hyperparameters only, so that two runs are equal.
"""

import math
import random
import statistics
import sys
from collections.abc import Sequence
from typing import Any

from grpo_engine.config.job import Reinforcement, RunConfig
from grpo_engine.contract.events import Evaluated, RolloutsRecorded, StepFinished, Verdict, Warned
from grpo_engine.contract.records import (
    CompletionRecord,
    Explanation,
    FinishReason,
    GradeError,
    GroupRecord,
    PromptMessage,
)
from tests.support import fake_engine

PARTS = ("correct", "format")
NO_TAG = GradeError(code="invalid_variable_error", message="sample.output_json is not JSON")


class LearningEngine(fake_engine.FakeEngine):
    """Reports a run that learns: quickly at first, with noise and some groups without signal."""

    def _report(self) -> None:
        if isinstance(self.config.method, Reinforcement):
            groups = self._groups()
            self._emit(RolloutsRecorded(step=self.step, groups=groups))
            self._emit(StepFinished(step=self.step, metrics=self._metrics(groups)))
        else:
            self._emit(StepFinished(step=self.step, metrics=self._supervised_metrics()))
        if self.step == 12 and isinstance(self.config.method, Reinforcement):
            message = "9 of 16 groups had no signal: all their completions were scored alike"
            self._emit(Warned(code="low_signal", message=message, step=12))

    def _skill(self) -> float:
        """Probability of a correct answer, from 0.15 towards 0.9."""
        rate = getattr(self.hyperparameters, "learning_rate", None) or 1e-5
        return 0.15 + 0.75 * (1 - math.exp(-self.step * math.sqrt(rate / 1e-5) / 25))

    def _groups(self) -> tuple[GroupRecord, ...]:
        chance = random.Random(f"{self.config.seed} {self.step}")
        return tuple(self._group(chance, row) for row in range(4))

    def _group(self, chance: random.Random, row: int) -> GroupRecord:
        size = max(2, getattr(self.hyperparameters, "group_size", 2))
        drawn = [self._completion(chance, row) for _ in range(size)]
        rewards = [one.reward for one in drawn if one.reward is not None]
        spread = statistics.stdev(rewards) if len(rewards) > 1 else 0.0
        mean = statistics.fmean(rewards) if rewards else 0.0
        completions = [
            one.model_copy(update={"advantage": (one.reward - mean) / spread})
            if spread and one.reward is not None
            else one
            for one in drawn
        ]
        question = f"What is {row + 12} + {3 * row + 7}? Think first, then answer in <answer> tags."
        return GroupRecord(
            row=row,
            **_rendered(("system", "You are careful with numbers."), ("user", question)),
            reference={"answer": 4 * row + 19, "level": "easy", "tests": [{"call": "total", "args": [0, 0]}]},
            completions=tuple(completions),
            has_signal=len(set(rewards)) > 1,
        )

    def _completion(self, chance: random.Random, row: int) -> CompletionRecord:
        is_right = chance.random() < self._skill() - 0.05 * row
        is_formed = chance.random() < self._skill() + 0.2
        is_cut = chance.random() < 0.25 * math.exp(-self.step / 15)
        is_broken = chance.random() < 0.02
        answer = 4 * row + 19 + (0 if is_right else chance.randint(1, 9))
        tags = ("<answer>", "</answer>") if is_formed else ("", "")
        text = f"{row + 12} + {3 * row + 7}: add the tens, then the ones. <b>{tags[0]}{answer}{tags[1]}</b>"
        parts = {"correct": float(is_right), "format": None if is_broken else float(is_formed)}
        return CompletionRecord(
            text=text[: len(text) // 2] if is_cut else text,
            token_ids=tuple(range(chance.randint(18, 60))),
            reward=None if is_broken else 0.8 * is_right + 0.2 * is_formed,
            parts=parts,
            errors={"format": NO_TAG} if is_broken else {},
            explanations={"correct": _tests(row, answer, loops=is_cut)},
            advantage=0.0,
            finish_reason=FinishReason.LENGTH if is_cut else FinishReason.STOP,
            policy_version=self.step - 1,
        )

    def _metrics(self, groups: Sequence[GroupRecord]) -> dict[str, float]:
        chance = random.Random(f"{self.config.seed} {self.step} metrics")
        completions = [one for group in groups for one in group.completions]
        rewards = [one.reward for one in completions if one.reward is not None]
        lengths = [len(one.token_ids) for one in completions]
        seconds = {"sample": 1.4 + chance.random() / 3, "score": 0.2, "train": 0.9 + chance.random() / 5}
        metrics = {
            "reward": statistics.fmean(rewards),
            "reward_std": statistics.stdev(rewards),
            "frac_reward_zero_std": statistics.fmean(not group.has_signal for group in groups),
            "loss": 1e-3 * chance.gauss(0, 1),
            "kl": 0.002 * self.step**0.7 * (1 + 0.2 * chance.random()),
            "entropy": 1.9 * math.exp(-self.step / 80) + 0.05 * chance.random(),
            "completions/mean_length": statistics.fmean(lengths),
            "completions/min_length": float(min(lengths)),
            "completions/max_length": float(max(lengths)),
            "completions/clipped_ratio": statistics.fmean(
                one.finish_reason is FinishReason.LENGTH for one in completions
            ),
            "learning_rate": 1e-5,
            "perf/sampled_tokens_per_second": sum(lengths) / seconds["sample"],
            "perf/trained_tokens_per_second": sum(lengths) / seconds["train"],
            "step_time": sum(seconds.values()),
        }
        for part in PARTS:
            values = [value for one in completions if (value := one.parts.get(part)) is not None]
            metrics[f"rewards/{part}/mean"] = statistics.fmean(values)
            metrics[f"rewards/{part}/error_rate"] = statistics.fmean(
                part in one.errors for one in completions
            )
        return metrics | {f"timing/{phase}_seconds": value for phase, value in seconds.items()}

    def _supervised_metrics(self) -> dict[str, float]:
        loss = 0.4 + 1.6 * math.exp(-self.step / 12)
        return {"loss": loss, "grad_norm": 0.3 + loss / 4, "learning_rate": 1e-4, "step_time": 0.6}

    def _checkpoint_metrics(self) -> dict[str, float]:
        is_grpo = isinstance(self.config.method, Reinforcement)
        return super()._checkpoint_metrics() if is_grpo else self._supervised_metrics()

    def _evaluate(self) -> None:
        reward = 0.8 * self._skill() + 0.15
        difference = round(reward - 0.1, 3)
        low, high = round(difference - 0.08, 3), round(difference + 0.08, 3)
        verdict = Verdict(
            text=f"{difference:+.3f} (95% CI {low:.3f} to {high:.3f})",
            difference=difference,
            low=low,
            high=high,
            rows=8,
        )
        metrics = {"reward": reward, "reward_std": 0.3, "num_rows": 8.0}
        metrics |= {f"rewards/{part}/mean": reward for part in PARTS}
        is_final = self.step == self.total_steps
        self._emit(Evaluated(step=self.step, metrics=metrics, verdict=verdict, is_final=is_final))


def _rendered(*messages: tuple[str, str]) -> dict[str, Any]:
    """The prompt of a chat template, and where its messages are in it."""
    prompt, places = "", []
    for role, content in messages:
        prompt += f"<|im_start|>{role}\n"
        places.append(PromptMessage(role=role, start=len(prompt), end=len(prompt) + len(content)))
        prompt += f"{content}<|im_end|>\n"
    return {"prompt": f"{prompt}<|im_start|>assistant\n", "messages": tuple(places)}


def _tests(row: int, answer: int, *, loops: bool) -> tuple[Explanation, ...]:
    """What a test of the answer reports, and one that always passes."""
    label = f"test 2 of 2: total({row + 12}, {3 * row + 7})"
    right = 4 * row + 19
    outcome: dict[str, Any] = {"passed": answer == right and not loops}
    if loops:
        outcome |= {"expected": str(right), "detail": "no result within 5 s: the code may loop"}
    elif answer != right:
        outcome |= {"got": str(answer), "expected": str(right)}
    first = Explanation(label="test 1 of 2: total(0, 0)", passed=True)
    return (first, Explanation(label=label, **outcome))


if __name__ == "__main__":
    sys.exit(fake_engine.main(LearningEngine, RunConfig.model_validate_json))
