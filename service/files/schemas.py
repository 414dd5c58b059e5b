"""What an upload says and what a file looks like (OpenAI's `file` object; `sha256` is added)."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError
from starlette.datastructures import FormData, UploadFile

from service.platform.errors import InvalidRequest
from service.web.validation import invalid_request

MAX_FILENAME_LENGTH = 255
_BRACKETED = re.compile(r"(\w+)\[(\w+)\]")
_CONTROL = re.compile("[\x00-\x1f\x7f]")

UPLOAD_FORM: dict[str, Any] = {
    "requestBody": {
        "required": True,
        "content": {
            "multipart/form-data": {
                "schema": {
                    "type": "object",
                    "required": ["file", "purpose"],
                    "additionalProperties": False,
                    "dependentRequired": {
                        "expires_after[anchor]": ["expires_after[seconds]"],
                        "expires_after[seconds]": ["expires_after[anchor]"],
                    },
                    "properties": {
                        "file": {
                            "type": "string",
                            "format": "binary",
                            "description": "The dataset: JSONL or Parquet.",
                        },
                        "purpose": {
                            "type": "string",
                            "enum": ["fine-tune"],
                            "description": "What the file is for.",
                        },
                        "expires_after[anchor]": {
                            "type": "string",
                            "enum": ["created_at"],
                            "description": "Time from which the file's lifetime counts.",
                        },
                        "expires_after[seconds]": {
                            "type": "integer",
                            "minimum": 3600,
                            "maximum": 2592000,
                            "description": "Seconds until the file is deleted; by default it is kept.",
                        },
                    },
                },
                "encoding": {"file": {"contentType": "application/jsonl"}},
            }
        },
    }
}


class ExpiresAfter(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)
    anchor: Literal["created_at"]
    seconds: int = Field(ge=3600, le=30 * 24 * 3600)


class UploadFields(BaseModel):
    """The form's fields beside the file."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    purpose: Literal["fine-tune"]
    expires_after: ExpiresAfter | None = None


class FileRead(BaseModel):
    """OpenAI's `file`."""

    object: Literal["file"] = "file"
    id: str
    bytes: int
    created_at: int
    expires_at: int | None
    filename: str
    purpose: str
    status: Literal["processed"] = "processed"
    status_details: None = None
    sha256: str


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
        raise invalid_request(error.errors(), given) from error
    return upload, _checked_name(upload.filename or "upload"), fields


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
