"""Requests for jobs and their responses: OpenAI's `fine_tuning.job` and this service's additions.

The method is the engine's own configuration class, so a request that passes here runs there.
"""

from typing import Annotated, Any, Literal, Self

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    ModelWrapValidatorHandler,
    PrivateAttr,
    SerializerFunctionWrapHandler,
    StringConstraints,
    model_serializer,
    model_validator,
)

from grpo_engine.config.job import Method, ProbeSize, Reinforcement
from grpo_engine.config.recipes import problem_at
from grpo_engine.config.validation_split import ValidationSplit
from grpo_engine.contract.records import filled_in
from service.integrations import Integrations
from service.jobs.model.editing import MAX_TAGS, ONE_LINE, JobName, Notes, Tag
from service.jobs.model.openai_terms import from_older_form, from_openai_terms
from service.jobs.model.resources import Resources
from service.platform.tables.core import MODEL_CHARACTERS
from service.suites.models import ReasoningGymDataset
from service.web.validation import RequestBody

Label = Annotated[str, StringConstraints(max_length=512)]
LabelName = Annotated[str, StringConstraints(min_length=1, max_length=64)]
MAX_LABELS = 16
FileId = Annotated[str, StringConstraints(min_length=1, max_length=64)]
GENERATED_FILES = {"dataset": "training_file", "validation_dataset": "validation_file"}
"""Field with a dataset by name → the field that gets the file with its rows."""
TO_BE_GENERATED = "generated"
"""Stands for the training file of a `dataset` until the file exists."""


def _in_openais_older_form(schema: dict[str, Any]) -> None:
    """Allow the form without a method, or with null, and without a training file; `JobCreate` adds both."""
    filled_in("method", "training_file")(schema)
    schema["anyOf"] = [{"required": [name]} for name in ("training_file", "dataset")]
    schema["properties"]["method"] = {"anyOf": [schema["properties"]["method"], {"type": "null"}]}


class JobCreate(RequestBody):
    """Body of `POST /v1/fine_tuning/jobs`."""

    model_config = ConfigDict(json_schema_extra=_in_openais_older_form)

    model: str = Field(min_length=1, max_length=MODEL_CHARACTERS)
    """Name of a base model (`GET /v1/models`), or of a fine-tuned model (`ft:…`) to continue from."""
    training_file: FileId
    """Id of the uploaded training file; or give `dataset`."""
    dataset: ReasoningGymDataset | None = None
    """Instead of `training_file`: a task whose rows are generated and stored as a file. Without a grader, the
    job gets the suite's own."""
    validation_file: FileId | None = None
    """Id of the uploaded validation file; null: no held-out evaluation."""
    validation_split: ValidationSplit | None = None
    """Instead of `validation_file`: the share (0.1) or number (50) of the training file's rows to hold out.
    They are drawn with `seed`; rows with the same prompt stay together."""
    validation_dataset: ReasoningGymDataset | None = None
    """Instead of `validation_file`: a task, with another seed than that of `dataset`."""
    suffix: str | None = Field(None, min_length=1, max_length=64, pattern=ONE_LINE)
    """Part of the fine-tuned model's name; characters that a name cannot contain become dashes."""
    seed: int | None = Field(None, ge=0, lt=2**31)
    """Seed of sampling and shuffling; null: a random one, shown in the response."""
    metadata: dict[LabelName, Label] | None = Field(None, max_length=MAX_LABELS)
    """Up to 16 labels, to filter lists of jobs."""
    name: JobName | None = None
    """Name of the job in lists; may change at any time."""
    notes: Notes | None = None
    """Notes on the job; may change at any time."""
    tags: list[Tag] = Field([], max_length=MAX_TAGS)
    """Up to 16 tags, to filter lists of jobs; may change at any time."""
    resources: Resources = Resources()
    """Machine resources of the job."""
    method: Method
    """Training method and its options."""
    hyperparameters: dict[str, Any] | None = None
    """Deprecated by OpenAI: used as the supervised method's if no method is given, otherwise ignored."""
    integrations: Integrations | None = None
    """Other destinations of metrics: Weights & Biases, TensorBoard, MLflow."""
    _given: dict[str, Any] = PrivateAttr(default_factory=dict)

    @property
    def given(self) -> dict[str, Any]:
        """The body as it was sent, before recipes and aliases were expanded; a clone repeats it."""
        return self._given

    @property
    def has_held_out_rows(self) -> bool:
        return self.validation_file is not None or self.validation_split is not None

    @model_validator(mode="wrap")
    @classmethod
    def _remembering(cls, data: Any, handler: ModelWrapValidatorHandler[Self]) -> Self:
        job = handler(data)
        if isinstance(data, dict):
            job._given = dict(data)
            if data.get("method") is not None:
                job._given.pop("hyperparameters", None)  # unused and unchecked beside a method
        return job

    @model_validator(mode="after")
    def _held_out_once(self) -> Self:
        names = ("validation_file", "validation_dataset", "validation_split")
        given = [name for name in names if getattr(self, name) is not None]
        if len(given) > 1:
            raise problem_at(f"give either {given[0]} or {given[1]}", given[1])
        if self.dataset is not None and self.training_file != TO_BE_GENERATED:
            raise problem_at("give either training_file or dataset", "dataset")
        return self

    @model_validator(mode="before")
    @classmethod
    def _in_our_terms(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        if data.get("dataset") is not None:
            data = _with_own_grader({"training_file": TO_BE_GENERATED, **data})
        return from_openai_terms(from_older_form(data))


def _with_own_grader(body: dict[str, Any]) -> dict[str, Any]:
    """The body of a job whose dataset is named; if its method has no grader, with the suite's own grader."""
    method, dataset = body.get("method"), body["dataset"]
    if not isinstance(method, dict) or not isinstance(dataset, dict) or method.get("type") == "supervised":
        return body
    kind = method.get("type")
    settings = method.get(kind)
    if not isinstance(settings, dict) or settings.get("grader") is not None:
        return body
    return {**body, "method": {**method, kind: {**settings, "grader": {"type": dataset.get("type")}}}}


class ProbeCreate(JobCreate):
    """Body of `POST /v1/fine_tuning/probes`: a reinforcement job, and how much of it to try."""

    probe: ProbeSize = ProbeSize()
    """Size of the probe."""

    @model_validator(mode="after")
    def _samples(self) -> Self:
        if not isinstance(self.method, Reinforcement):
            message = "only a reinforcement job can be probed: the others do not sample groups from the model"
            raise problem_at(message, "method", "type")
        return self


class ErrorRead(BaseModel):
    code: str
    message: str
    param: str | None = None


class FailureRead(BaseModel):
    code: str
    message: str
    hint: str = ""
    evidence: list[Any] = []


class QueueRead(BaseModel):
    position: int | None = None
    """Place in the queue, from 1; null if the job is not queued or at least 1000 are ahead of it."""
    reason: str | None = None


class ProgressRead(BaseModel):
    step: int
    total_steps: int
    seconds_remaining: float | None = None
    """Estimated from the mean rate so far; null if it is unknown."""


class EvalRead(BaseModel):
    """Each evaluation as `{step, reward, rows, temperature, …}`, with temperature 0 for greedy decoding.

    `verdict` and `retention` are absent until they exist.
    """

    baseline: dict[str, Any] | None = None
    """The evaluation before step 1."""
    best: dict[str, Any] | None = None
    """The evaluation with the highest held-out reward; `checkpoint` is its checkpoint's id, if kept."""
    last: dict[str, Any] | None = None
    verdict: dict[str, Any] | None = None
    """The comparison of `last` with `baseline`, row by row: {text, difference, low, high, rows}."""
    retention: dict[str, dict[str, Any]] | None = None
    """Name of a retention set → its `baseline`, `last` and `verdict`."""

    @model_serializer(mode="wrap")
    def _without_absent(self, handler: SerializerFunctionWrapHandler) -> dict[str, Any]:
        always = {"baseline", "best", "last"}
        shown: dict[str, Any] = handler(self)
        return {name: value for name, value in shown.items() if value is not None or name in always}


class ArtifactRead(BaseModel):
    """A result file. `GET /v1/files/{id}/content` downloads it."""

    object: Literal["fine_tuning.job.artifact"] = "fine_tuning.job.artifact"
    id: str
    kind: str
    step: int
    bytes: int
    sha256: str
    filename: str


class JobRead(BaseModel):
    """OpenAI's `fine_tuning.job`; the fields after `method` are additions, which are always present."""

    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    id: str
    created_at: int
    finished_at: int | None
    estimated_finish: int | None
    model: str
    fine_tuned_model: str | None
    organization_id: str
    status: str
    training_file: str
    validation_file: str | None
    validation_split: ValidationSplit | None
    """Extension of OpenAI's API: share or number of the training file's rows that are held out."""
    dataset: dict[str, Any] | None
    """The task from which `training_file` was generated."""
    validation_dataset: dict[str, Any] | None
    result_files: list[str]
    trained_tokens: int | None
    """After success, counted as OpenAI does: all sampled tokens, or the rows' target tokens. `actual` has the
    number of tokens that gradients were computed for."""
    error: ErrorRead | None
    hyperparameters: dict[str, Any]
    seed: int
    suffix: str | None
    metadata: dict[str, str] | None
    integrations: list[Any] = []
    """Only the types that OpenAI's clients accept; `sinks` has all."""
    method: dict[str, Any]
    queue: QueueRead
    progress: ProgressRead
    phase: str
    attempt: int
    warnings: list[Any]
    eval: EvalRead
    artifacts: list[ArtifactRead]
    failure: FailureRead | None
    resources: dict[str, Any]
    sinks: list[dict[str, Any]]
    """All external destinations of metrics, in the format of `integrations`."""
    name: str | None
    notes: str | None
    tags: list[str]
    archived: bool
    reward: float | None
    """Mean training reward of its newest step; null if the method has none."""
    attention: str | None
    """Reason to check the result of a job that succeeded; null if there is none."""
    started_at: int | None
    estimate: dict[str, Any] | None
    """The estimate made when the job was created, as in `…/jobs/validate`."""
    actual: dict[str, Any] | None
    """The cost so far: `steps`, `sampled_tokens`, `trained_tokens`, `peak_memory_bytes`, `machine`,
    `computation` (how the model is computed: forward, decoder, head, slower_because) and, once the job has
    ended, the `seconds` since its first start."""


class EventRead(BaseModel):
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    id: str
    created_at: int
    level: str
    type: Literal["message", "metrics"]
    message: str
    data: dict[str, Any]


class CheckpointRead(BaseModel):
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    id: str
    created_at: int
    fine_tuning_job_id: str
    fine_tuned_model_checkpoint: str
    step_number: int
    is_best: bool
    """Whether no evaluated policy of the job was better."""
    metrics: dict[str, Any]
    bytes: int
    sha256: str
