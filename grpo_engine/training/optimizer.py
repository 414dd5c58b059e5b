"""AdamW over the trainable parameters: schedule, gradient clip, refusal of non-finite steps, exact state.

The schedule is a function of the step, so Adam's moments are the only state. They are saved as tensors by
parameter name.
"""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor

from grpo_engine.config.job import Hyperparameters
from grpo_engine.contract.errors import NonFiniteError
from grpo_engine.parallel.shards import gathered


def learning_rate_at(step: int, total_steps: int, hyperparameters: Hyperparameters) -> float:
    """Learning rate of step 1, 2, …: linear warm-up, then constant, linear or cosine decay to 0."""
    peak, warmup = hyperparameters.learning_rate, hyperparameters.warmup_steps
    if step <= warmup:
        return peak * step / warmup
    done = (step - warmup - 1) / max(1, total_steps - warmup)
    if hyperparameters.lr_schedule == "linear":
        return peak * (1 - done)
    if hyperparameters.lr_schedule == "cosine":
        return peak * 0.5 * (1 + math.cos(math.pi * done))
    return peak


class Optimizer:
    def __init__(
        self, parameters: Mapping[str, torch.nn.Parameter], hyperparameters: Hyperparameters
    ) -> None:
        self.parameters = dict(parameters)
        self.hyperparameters = hyperparameters
        self.adamw = torch.optim.AdamW(
            self.parameters.values(),
            lr=hyperparameters.learning_rate,
            betas=(hyperparameters.adam_beta1, hyperparameters.adam_beta2),
            eps=hyperparameters.adam_epsilon,
            weight_decay=hyperparameters.weight_decay,
            # one kernel for all parameters; there it keeps the count of steps on the device
            fused=self.on_gpu,
        )

    @property
    def on_gpu(self) -> bool:
        return all(each.is_cuda for each in self.parameters.values())

    def step(self, learning_rate: float, loss: float, *, step: int, rows: Sequence[int] = ()) -> float:
        """Clip the gradients, update the parameters, drop the gradients. Returns the norm before clipping.

        Raises NonFiniteError, naming the dataset rows of the step, before any parameter changes.
        """
        parameters = [p for p in self.parameters.values() if p.grad is not None]
        norm = gathered(torch.nn.utils.get_total_norm([p.grad for p in parameters if p.grad is not None]))
        value = float(norm)
        if not (math.isfinite(value) and math.isfinite(loss)):
            raise self._non_finite(value, loss, step, rows)
        torch.nn.utils.clip_grads_with_norm_(parameters, self.hyperparameters.max_grad_norm, norm)
        for group in self.adamw.param_groups:
            group["lr"] = learning_rate
        self.adamw.step()
        self.clear()
        return value

    def clear(self) -> None:
        """Drop the accumulated gradients."""
        self.adamw.zero_grad(set_to_none=True)

    def _non_finite(self, norm: float, loss: float, step: int, rows: Sequence[int]) -> NonFiniteError:
        cause = "gradient" if math.isfinite(loss) else "loss"
        culprits = [
            f"gradient of {name}"
            for name, parameter in self.parameters.items()
            if parameter.grad is not None and not bool(parameter.grad.isfinite().all())
        ]
        return NonFiniteError(
            f"step {step}: the {cause} is not finite",
            evidence=(
                f"step={step}",
                f"loss={loss}",
                f"grad_norm={norm}",
                f"dataset rows (from 0): {', '.join(map(str, rows[:20]))}",
                *culprits[:5],
            ),
        )

    def state_tensors(self) -> dict[str, Tensor]:
        """`<moment>/<parameter>` → tensor, sharded as the parameter is."""
        return {
            f"{key}/{name}": torch.as_tensor(value)
            for name, parameter in self.parameters.items()
            for key, value in self.adamw.state.get(parameter, {}).items()
        }

    def new_state_tensors(self, dtypes: Mapping[str, torch.dtype]) -> dict[str, Tensor]:
        """Make state tensors of these names and number formats, for the caller to fill."""
        for full_name, dtype in dtypes.items():
            key, _, name = full_name.partition("/")
            parameter = self.parameters[name]
            if key == "step":
                made = torch.zeros((), dtype=dtype, device=parameter.device if self.on_gpu else "cpu")
            else:
                made = torch.zeros_like(parameter.detach(), dtype=dtype)
            self.adamw.state[parameter][key] = made
        return self.state_tensors()
