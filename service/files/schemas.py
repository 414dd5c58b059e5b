"""The upload form, and OpenAI's `file` object with `sha256` added."""

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from grpo_engine.contract.described import Described
from service.platform.errors import InvalidRequest
from service.web.validation import RequestBody, UnixSeconds, invalid_request

MAX_FILENAME_LENGTH = 255
_BRACKETED = re.compile(r"(\w+)\[(\w+)\]")
_CONTROL = re.compile("[\x00-\x1f\x7f]")
_QUOTE = "%22"
"""A quotation mark of a file name in a form, as browsers, curl and httpx send it; they do not escape "%"."""


class ExpiresAfter(Described):
    model_config = ConfigDict(extra="forbid", frozen=True)
    anchor: Literal["created_at"]
    """Time from which the file's lifetime counts."""
    seconds: int = Field(ge=3600, le=30 * 24 * 3600)
    """Seconds until the file is deleted; by default it is kept."""


class UploadFields(Described):
    """The form's fields besides the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    purpose: Literal["fine-tune"]
    """What the file is for."""
    expires_after: ExpiresAfter | None = None


def _form_schema() -> dict[str, Any]:
    """OpenAPI's schema of the multipart form, with the fields' names as OpenAI's client sends them."""
    file = {"type": "string", "format": "binary", "description": "The dataset: JSONL."}
    expiry = {
        f"expires_after[{name}]": schema
        for name, schema in ExpiresAfter.model_json_schema()["properties"].items()
    }
    return {
        "type": "object",
        "required": ["file", "purpose"],
        "additionalProperties": False,
        "dependentRequired": {name: sorted(expiry.keys() - {name}) for name in expiry},
        "properties": {
            "file": file,
            "purpose": UploadFields.model_json_schema()["properties"]["purpose"],
            **expiry,
        },
    }


UPLOAD_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": _form_schema(),
                "encoding": {"file": {"contentType": "application/jsonl"}},
            }
        },
    }
}


class FileRead(BaseModel):
    """OpenAI's `file`."""

    model_config = ConfigDict(from_attributes=True)
    object: Literal["file"] = "file"
    id: str
    bytes: int = Field(validation_alias="num_bytes")
    created_at: UnixSeconds
    expires_at: UnixSeconds | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None
    sha256: str
    num_rows: int | None
    """Rows of a dataset; null: a result of a job, or a file of an earlier version."""


class FileUpdate(RequestBody):
    """Body of `PATCH /v1/files/{id}`."""

    filename: str = Field(min_length=1, max_length=MAX_FILENAME_LENGTH, pattern=r"^[^\x00-\x1f\x7f]*$")
    """The new name; the content stays the same."""


class TokenLengths(BaseModel):
    """Tokens of rows as the model reads them: prompts, with the answer of rows for supervised training."""

    rows: int
    """Number of rows counted: those that the model can read, of at most 2000 spread evenly over the file."""
    min: int
    median: int
    p95: int
    max: int


class FilePreview(BaseModel):
    """The first rows of a dataset."""

    object: Literal["file.preview"] = "file.preview"
    rows: list[dict[str, Any]]
    """Fewer than requested if they are long."""
    num_rows: int
    """Rows of the whole file."""
    columns: list[str]
    """Fields of the shown rows."""
    tokens: TokenLengths | None
    """Null without `model`, or if it can read no row."""


class FileDeleted(BaseModel):
    object: Literal["file"] = "file"
    id: str
    deleted: Literal[True] = True


def parse_form(form: FormData) -> tuple[UploadFile, str, UploadFields]:
    """The uploaded file, its name and the other fields. Raises InvalidRequest naming the field."""
    upload = form.get("file")
    if not isinstance(upload, UploadFile):
        raise InvalidRequest("file: Field required, with a file name.", param="file", code="missing_field")
    given = _nested({name: value for name, value in form.items() if name != "file"})
    try:
        fields = UploadFields.model_validate(given)
    except ValidationError as error:
        raise invalid_request(error.errors(), given, UploadFields) from error
    return upload, _checked_name((upload.filename or "upload").replace(_QUOTE, '"')), fields


def _nested(fields: Mapping[str, Any]) -> dict[str, Any]:
    """`expires_after[seconds]`, as OpenAI's client sends it → a field of `expires_after`."""
    nested: dict[str, Any] = {}
    for name, value in fields.items():
        if match := _BRACKETED.fullmatch(name):
            inner = nested.setdefault(match[1], {})
            if isinstance(inner, dict):
                inner[match[2]] = value
        else:
            nested[name] = value
    return nested


def _checked_name(name: str) -> str:
    if len(name) > MAX_FILENAME_LENGTH or _CONTROL.search(name):
        reason = f"its name has more than {MAX_FILENAME_LENGTH} characters, or control characters"
        raise InvalidRequest(f"file: {reason}.", param="file")
    return name
