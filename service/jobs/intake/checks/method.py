"""Checks a method independently of the rows: response format, adapter targets, formulas without a value,
fields that need a missing file. The engine's configuration checks the ranges of single fields.
"""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from grpo_engine.config.hyperparameters import Lora
from grpo_engine.config.job import Method, Reinforcement, Supervised
from grpo_engine.config.tool_formats import HERMES, QUESTION, UnreadableFormat, find_format
from grpo_engine.config.tools import HttpTool, function_schemas
from grpo_engine.graders import Grader
from grpo_engine.graders import formula as formulas
from grpo_engine.graders.rules.json_schema import check_schema, check_shown_schema
from grpo_engine.graders.rules.multi import Multi
from service.jobs.intake.model_size import ModelShape
from service.jobs.intake.report import Report
from service.jobs.model.dataset import Problems
from service.jobs.model.methods import eval_grader_of, graders_of, lora_of, quantization_of, tools_of
from service.platform.token_counting import ModelText, RenderError

NOT_ENFORCED = (
    "response_format is not enforced while sampling: a completion that does not match it is graded "
    "unchanged, and templates read it as sample.output_json."
)


class _Format(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Text(_Format):
    type: Literal["text"]


class _JsonObject(_Format):
    type: Literal["json_object"]


class _NamedSchema(_Format):
    name: str = Field(pattern=r"^[A-Za-z0-9_-]{1,64}$")
    description: str | None = Field(None, max_length=4096)
    strict: bool | None = None
    json_schema: Annotated[dict[str, Any], AfterValidator(check_schema)] = Field(alias="schema")


class _JsonSchema(_Format):
    type: Literal["json_schema"]
    json_schema: _NamedSchema


_response_format: TypeAdapter[Any] = TypeAdapter(
    Annotated[_Text | _JsonObject | _JsonSchema, Field(discriminator="type")]
)


def check_method(report: Report, has_validation: bool) -> None:
    """Checks a method of any type."""
    method, problems = report.method, report.problems
    where, lora = f"method.{method.type}", lora_of(method)
    if isinstance(lora, Lora) and not (lora.target_modules and all(lora.target_modules)):
        reason = 'must name at least one module, or be "all-linear"'
        problems.add(f"{where}.hyperparameters.lora.target_modules", reason)
    _check_held_out(method, has_validation, problems)
    if isinstance(method, Reinforcement):
        _check_response_format(report, f"{where}.response_format", method.reinforcement.response_format)
    _check_tool_parameters(method, problems)
    for place, grader in graders_of(method):
        check_formula(place, grader, problems)


def check_lora_targets(report: Report, shape: ModelShape) -> None:
    """Adds a problem if a target names nothing in the model that LoRA can adapt."""
    lora = lora_of(report.method)
    if not isinstance(lora, Lora) or isinstance(lora.target_modules, str) or not all(lora.target_modules):
        return
    if shape.modules and (missing := shape.unmatched(lora.target_modules)):
        where = f"method.{report.method.type}.hyperparameters.lora.target_modules"
        there = f"its linear layers are {', '.join(shape.layer_names)}"
        report.problems.add(where, f"the model has no linear layer {', '.join(missing)}: {there}")


def check_quantization(report: Report, parent: Method | None) -> None:
    """Warns of weights that stay unquantised, and of an adapter that was trained on another base."""
    own = quantization_of(report.method)
    if own is not None and report.shape is not None and report.shape.has_experts:
        message = f"quantization {own} does not apply to the experts' weights: they stay in 16 or 32 bits."
        report.warn("experts_not_quantized", message)
    if isinstance(parent, Reinforcement | Supervised) and isinstance(lora_of(parent), Lora):
        before = quantization_of(parent)
        if before != own:
            message = (
                f"quantization is {own or 'null'}, but {before or 'null'} in the job that this one continues."
            )
            report.warn("quantization_differs", f"{message} The first evaluation shows what that changes.")


def _check_held_out(method: Method, has_validation: bool, problems: Problems) -> None:
    """Adds a problem for each field that needs held-out rows if there are none."""
    if has_validation:
        return
    where = f"method.{method.type}"
    if isinstance(method, Reinforcement) and method.reinforcement.hyperparameters.early_stopping is not None:
        reason = "needs a validation_file or validation_split: its reward decides when to stop"
        problems.add(f"{where}.hyperparameters.early_stopping", reason, code="missing_validation_file")
    if eval_grader_of(method) is not None:
        reason = "needs a validation_file or validation_split: it scores the held-out rows"
        problems.add(f"{where}.eval_grader", reason, code="missing_validation_file")


def _check_tool_parameters(method: Method, problems: Problems) -> None:
    """Adds a problem unless each tool's parameters are a JSON schema of an object, as models expect."""
    for index, tool in enumerate(tools_of(method)):
        if not isinstance(tool, HttpTool):
            continue
        place = f"method.{method.type}.tools[{index}].parameters"
        try:
            check_shown_schema(tool.parameters)
        except ValueError as error:
            problems.add(place, str(error))
            continue
        if tool.parameters.get("type") != "object":
            problems.add(place, 'must describe an object: set "type": "object"')


def check_tools(report: Report, text: ModelText) -> None:
    """Adds a problem if the model's tool calls cannot be read; warns if its chat template has no tools."""
    if not report.tools:
        return

    def render(messages: list[dict[str, Any]], shown: list[dict[str, Any]] | None = None) -> str | None:
        try:
            return text.render(messages, shown, for_completion=False)
        except RenderError:
            return None  # reported for the rows

    try:
        known = find_format(render)
    except UnreadableFormat as error:
        reason = f"{error}. Use another model, or remove the tools"
        report.problems.add(f"method.{report.method.type}.tools", reason, code="unsupported_tool_format")
        return
    plain, shown = render([QUESTION]), render([QUESTION], function_schemas(report.tools))
    if plain is not None and shown == plain:
        message = "The model's chat template does not show tools: the prompts must say how to call them."
        report.warn("tools_not_shown", message)
    elif known is None and shown is not None:
        message = f"The model's chat template writes no tool calls: they are read as {HERMES.example}."
        report.warn("tool_format_assumed", message)


def _check_response_format(report: Report, where: str, given: dict[str, Any] | None) -> None:
    if given is None:
        return
    try:
        found = _response_format.validate_python(given)
    except ValidationError as invalid:
        error = invalid.errors()[0]
        place = ".".join([where, *(str(part) for part in error["loc"][1:])])
        report.problems.add(place, error["msg"].removeprefix("Value error, "))
        return
    if not isinstance(found, _Text):
        report.warn("response_format_not_enforced", NOT_ENFORCED)


def check_formula(place: str, grader: Grader, problems: Problems) -> None:
    """Adds a problem if a multi grader can never give a reward."""
    reason = never_a_number(grader.calculate_output) if isinstance(grader, Multi) else None
    if reason is not None:
        where = f"{place}.calculate_output"
        problems.add(where, f"can never give a number: {reason}")


def never_a_number(text: str) -> str | None:
    """Why a formula never has a value, for any variables, as in `a + 1/0`; None if it may have one.

    Every part of a formula is always computed, so one constant part without a value is enough.
    """
    stack: list[float | None] = []
    """The value of a constant expression; None if it depends on a variable."""
    for step in formulas.parse(text).code:
        if not isinstance(step, formulas.Call):
            stack.append(None if isinstance(step, str) else step)
            continue
        operands = stack[-step.arity :]
        constants = [value for value in operands if value is not None]
        if step.name == "/" and operands[0] is None and operands[1] == 0:
            return "it divides by 0"
        value: float | None = None
        if len(constants) == len(operands):
            try:
                value = formulas.evaluate(formulas.Formula((*constants, step), frozenset()), {})
            except formulas.EvaluationError as error:
                return str(error)
        stack[-step.arity :] = [value]
    return None
