"""Schemathesis hooks: how a dataset looks, and what every response must have.

Loaded by schemathesis (`hooks` in schemathesis.toml), not by pytest.
"""

import json
import re
from typing import Any

import schemathesis
from hypothesis import strategies as st
from schemathesis import Case, CheckContext, HookContext, Response

REQUEST_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
WITH_ZEROS = re.compile(r"[+-]?\d+\.0+")

_texts = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\0"), min_size=1, max_size=20)
_rows = st.builds(
    lambda question, answer: {"messages": [{"role": "user", "content": question}], "answer": answer},
    _texts,
    _texts,
)
schemathesis.openapi.media_type(
    "application/jsonl",
    st.lists(_rows, min_size=1, max_size=5).map(
        lambda rows: b"".join(json.dumps(row).encode() + b"\n" for row in rows)
    ),
)


@schemathesis.hook
def filter_query(_context: HookContext, query: dict[str, Any] | None) -> bool:
    """Leave out integers with a fraction of zeros, which pydantic reads and schemathesis calls invalid."""
    return not any(WITH_ZEROS.fullmatch(str(value)) for value in (query or {}).values())


@schemathesis.hook
def filter_headers(_context: HookContext, headers: dict[str, Any] | None) -> bool:
    """As `filter_query`."""
    return not any(WITH_ZEROS.fullmatch(str(value)) for value in (headers or {}).values())


@schemathesis.check
def every_answer_has_an_id_and_every_error_one_shape(
    _context: CheckContext, response: Response, case: Case
) -> None:
    assert REQUEST_ID.fullmatch(_header(response, "x-request-id")), "no x-request-id"
    assert _header(response, "x-content-type-options") == "nosniff"
    if response.status_code < 400 or case.operation.path == "/readyz":
        return
    body: dict[str, Any] = json.loads(response.text)
    assert set(body) == {"error"}, body
    error = body["error"]
    assert set(error) - {"problems"} == {"message", "type", "param", "code"}, error
    assert all(isinstance(error[name], str) and error[name] for name in ("message", "type", "code")), error
    assert error["param"] is None or (isinstance(error["param"], str) and error["param"]), error


def _header(response: Response, name: str) -> str:
    return ",".join(response.headers.get(name, []))
