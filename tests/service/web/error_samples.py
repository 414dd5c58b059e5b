"""What tests of errors need."""

from typing import Any

JOBS = "/v1/fine_tuning/jobs"


def error_of(answer: Any, status: int = 400) -> dict[str, Any]:
    assert answer.status_code == status, answer.text
    assert answer.headers["x-request-id"]
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) - {"problems"} == {"message", "type", "param", "code"}
    return error
