"""The fields of a job that users may change at any time, and the response to its deletion."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field, StringConstraints

from service.web.validation import RequestBody

ONE_LINE = r"^[^\x00-\x1f\x7f]*$"
JobName = Annotated[
    str, StringConstraints(strip_whitespace=True, min_length=1, max_length=128, pattern=ONE_LINE)
]
Notes = Annotated[str, StringConstraints(max_length=4096, pattern=r"^[^\x00]*$")]
Tag = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=64, pattern=ONE_LINE)]
MAX_TAGS = 16


class JobEdit(RequestBody):
    """Body of `PATCH /v1/fine_tuning/jobs/{id}`; absent fields do not change."""

    name: JobName | None = None
    """Name of the job in lists; null removes it."""
    notes: Notes | None = None
    """Notes on the job; null removes them."""
    tags: list[Tag] = Field([], max_length=MAX_TAGS)
    """All tags of the job; an empty list removes them."""
    archived: bool = False
    """Whether lists with `archived=false` leave it out."""


class JobDeleted(BaseModel):
    object: Literal["fine_tuning.job.deleted"] = "fine_tuning.job.deleted"
    id: str
    deleted: Literal[True] = True
