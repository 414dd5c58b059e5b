"""The shape of a job's adapter, which it inherits from the job that it continues.

A job on a catalogue model, or on another job's whole weights, starts a new adapter. A training-free job
cannot be continued: it has lessons and no weights.
"""

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import Method, TrainingFree, hyperparameters_of
from service.jobs.model.dataset import Problems
from service.jobs.model.methods import lora_of, with_settings

NO_WEIGHTS = (
    "is the result of a training-free job, which has no weights to continue from: use the model that the "
    "job started with"
)


def with_adapter_shape(method: Method, parent: Method | None, problems: Problems) -> Method:
    """The method with its adapter's full shape; a given field that differs from the parent's is a problem.

    A continued adapter keeps its shape, so a different shape in the request would have no effect.
    `parent`: the method of the job that made the adapter, or None.
    """
    if isinstance(parent, TrainingFree):
        problems.add("model", NO_WEIGHTS, code="model_without_weights")
        return method
    if isinstance(method, TrainingFree):
        return method
    given = hyperparameters_of(method).lora
    inherited = None if parent is None else lora_of(parent)
    if given == "full" or inherited is None or inherited == "full":
        return _with_lora(method, given or Lora())
    for name in () if given is None else sorted(given.model_fields_set):
        requested, trained = getattr(given, name), getattr(inherited, name)
        if requested != trained:
            reason = f"is {requested}, but the model's adapter has {name} {trained}: remove lora"
            problems.add(f"method.{method.type}.hyperparameters.lora.{name}", reason)
    return _with_lora(method, inherited)


def _with_lora(method: Method, lora: object) -> Method:
    hyperparameters = hyperparameters_of(method).model_copy(update={"lora": lora})
    return with_settings(method, hyperparameters=hyperparameters)
