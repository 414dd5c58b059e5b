"""Any id, header and parameter: an answer in the documented shape, never a 5xx, never another's file."""

import re
from collections.abc import Iterator
from email.message import Message
from typing import Any
from urllib.parse import quote

import httpx
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from service.jobs.model.states import JobState
from service.jobs.store import history
from service.jobs.store.history import HistoryEntry
from service.platform.db import connect
from tests.fuzz.serving import Api
from tests.service.job_samples import add_artifact, add_job

ENVIRONMENT: dict[str, str] = {}
JOBS = "/v1/fine_tuning/jobs"
CONTENT = bytes(range(256)) * 8
SIZE = len(CONTENT)
TEXTS = st.text(st.characters(exclude_categories=["Cs"]))
HEADER_VALUES = st.text(st.characters(min_codepoint=0x20, max_codepoint=0xFF, exclude_characters="\x7f")).map(
    lambda text: text.strip().encode("latin-1")
)
SEGMENTS = (
    st.text(min_size=1).map(lambda text: quote(text.encode("utf-8", "surrogatepass"), safe=""))
    | st.binary(min_size=1, max_size=20).map(quote)
    | st.sampled_from(
        ["..%2f..%2fetc%2fpasswd", "..", "%2e%2e", "%00", "%2500", "%252e%252e%252f", "%2Fetc%2Fpasswd"]
    )
    | st.sampled_from(
        ["a" * 20_000, "%", "%zz", "%c0%ae%c0%ae%c0%af", "..;", "file-1%0d%0aX: y", "{}", "*", "~"]
    )
)


@pytest.fixture(scope="module")
def client(api: Api) -> Iterator[httpx.Client]:
    with api.client() as client:
        yield client


@pytest.fixture(scope="module")
def job_id(api: Api) -> str:
    """An ended job with an adapter and two events."""
    database = connect(api.settings)
    found = add_job(database, JobState.SUCCEEDED, step=10)
    add_artifact(api.settings, database, found, "adapter", CONTENT)
    with database.transaction() as session:
        for message in ("one", "two"):
            history.append(session, found, HistoryEntry("message", message))
    database.engine.dispose()
    return found


def error_of(answer: httpx.Response) -> dict[str, Any]:
    """The error, in its documented shape."""
    assert 400 <= answer.status_code < 500, (answer.status_code, answer.text)
    assert re.fullmatch(r"[A-Za-z0-9._-]{1,64}", answer.headers["x-request-id"])
    assert answer.headers["x-content-type-options"] == "nosniff"
    error: dict[str, Any] = answer.json()["error"]
    assert set(error) - {"problems"} == {"message", "type", "param", "code"}
    return error


def get(client: httpx.Client, path: str, **headers: bytes) -> httpx.Response:
    """GET of a path exactly as written."""
    url = httpx.URL(client.base_url).copy_with(raw_path=path.encode())
    given_headers = [(name.replace("_", "-").encode(), value) for name, value in headers.items()]
    return client.send(client.build_request("GET", url, headers=given_headers))


@given(SEGMENTS)
@example("..%2f..%2f..%2f..%2fetc%2fpasswd")
@example("%00")
def test_an_invalid_id_is_a_404_or_400_in_every_path(client: httpx.Client, job_id: str, segment: str) -> None:
    paths = [f"/v1/files/{segment}", f"/v1/files/{segment}/content", f"{JOBS}/{segment}"]
    paths += [f"{JOBS}/{segment}/adapter", f"{JOBS}/{job_id}/checkpoints/{segment}/content"]
    for path in paths:
        error_of(get(client, path))


@given(SEGMENTS.filter(lambda segment: segment.strip("/.~*{}") != ""))
def test_an_unknown_model_is_a_404_or_400(client: httpx.Client, segment: str) -> None:
    error_of(get(client, f"/v1/models/{segment}"))


RANGES = HEADER_VALUES | st.builds(
    lambda unit, spans: f"{unit}={','.join(spans)}".encode(),
    st.sampled_from(["bytes", "bytes", "Bytes", "items", ""]),
    st.lists(
        st.builds(
            "{}{}-{}".format,
            st.sampled_from(["", " ", "-", "+"]),
            st.sampled_from(["", "0", "1", str(SIZE - 1), str(SIZE), "9" * 30, "１"]),
            st.sampled_from(["", "0", "1", str(SIZE - 1), str(SIZE), "9" * 30, "-1"]),
        ),
        max_size=40,
    ),
)


@given(RANGES)
@example(b"bytes=" + b"0-0," * 5000 + b"0-0")
@example(b"bytes=0-" + b"9" * 10_000)
def test_any_range_is_the_whole_a_part_or_a_416(
    client: httpx.Client, job_id: str, given_range: bytes
) -> None:
    answer = get(client, f"{JOBS}/{job_id}/adapter", range=given_range)
    if answer.status_code == 416:
        error_of(answer)
        assert answer.headers["content-range"] == f"bytes */{SIZE}"
    elif answer.status_code == 206:
        span = re.fullmatch(rf"bytes (\d+)-(\d+)/{SIZE}", answer.headers["content-range"])
        assert span is not None
        assert answer.content == CONTENT[int(span[1]) : int(span[2]) + 1] != b""
    else:
        assert (answer.status_code, answer.content) == (200, CONTENT)


@given(HEADER_VALUES, HEADER_VALUES)
def test_any_condition_is_answered(client: httpx.Client, job_id: str, tag: bytes, version: bytes) -> None:
    answer = get(client, f"{JOBS}/{job_id}/adapter", if_none_match=tag, if_range=version, range=b"bytes=0-9")
    assert answer.status_code in (200, 304)


@given(HEADER_VALUES | st.integers(-(2**80), 2**80).map(lambda number: str(number).encode()))
@example(b"9" * 10_000)
@example("٣".encode())
def test_any_last_event_id_is_a_place_or_refused(client: httpx.Client, job_id: str, given_id: bytes) -> None:
    answer = get(client, f"{JOBS}/{job_id}/stream", last_event_id=given_id)
    if answer.status_code not in (200, 204):
        assert error_of(answer)["param"] == "Last-Event-ID"


@given(TEXTS, TEXTS | st.integers(-(2**80), 2**80).map(str))
def test_any_cursor_and_limit_of_a_list_is_accepted_or_refused(
    client: httpx.Client, job_id: str, after: str, limit: str
) -> None:
    lists = [f"{JOBS}/{job_id}/{name}" for name in ("events", "checkpoints", "rollouts")]
    for path in ("/v1/files", JOBS, *lists):
        parameters = {"after": after, "limit": limit}
        assert error_of(client.get(path, params=parameters))["param"] in ("after", "limit", None)


@given(HEADER_VALUES | st.just(b"k" * 256), HEADER_VALUES)
@example(b"k", b"9" * 5000)
def test_any_idempotency_key_is_taken_or_refused(client: httpx.Client, key: bytes, count: bytes) -> None:
    body = {"model": "tiny", "training_file": "file-1", "metadata": {"a": "b"}}
    headers = [(b"idempotency-key", key), (b"x-stainless-retry-count", count)]
    answer = client.post(JOBS, json=body, headers=headers)
    assert answer.status_code == 400
    assert answer.json()["error"]["param"] in ("training_file", "Idempotency-Key")


@given(st.dictionaries(TEXTS, TEXTS | st.integers() | st.none(), max_size=3))
@example({"a" * 65: "b"})
@example({"": ""})
@example({"a": "b" * 513})
def test_any_metadata_is_taken_or_refused(client: httpx.Client, metadata: dict[str, Any]) -> None:
    answer = client.post(
        f"{JOBS}/validate", json={"model": "tiny", "training_file": "file-1", "metadata": metadata}
    )
    is_fine = all(isinstance(value, str) and 0 < len(key) <= 64 for key, value in metadata.items())
    if answer.status_code == 200:
        assert is_fine
    else:
        assert str(error_of(answer)["param"]).startswith("metadata")


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=40))
@example('a"; filename="b.exe')
@example("a\r\nSet-Cookie: x=y")
@example("‮gnp.exe")
@example("../../etc/passwd")
@example("x" * 255)
def test_a_downloads_header_is_an_attachment_whatever_its_name(client: httpx.Client, name: str) -> None:
    content = b'{"messages": []}\n'
    created = client.post("/v1/files", files={"file": (name, content)}, data={"purpose": "fine-tune"})
    if created.status_code != 200:
        error_of(created)
        return
    answer = client.get(f"/v1/files/{created.json()['id']}/content")
    client.delete(f"/v1/files/{created.json()['id']}")
    header = Message()
    header["content-disposition"] = answer.headers["content-disposition"]
    assert header.get_content_disposition() == "attachment"
    form = r"attachment; filename=\"([A-Za-z0-9._-]+)\"; filename\*=UTF-8''[A-Za-z0-9%._~-]+"
    plain = re.fullmatch(form, header["content-disposition"])
    assert plain is not None
    assert not plain[1].startswith(".")
    assert "set-cookie" not in answer.headers
    assert answer.headers["x-content-type-options"] == "nosniff"
    assert (answer.headers["content-type"], answer.content) == ("application/octet-stream", content)


@pytest.mark.parametrize("suffix", ["a\r\nX: y", "\t", "a\x7f", "", "x" * 65, "a\0"])
def test_a_suffix_of_no_text_too_much_or_control_characters_is_refused(
    client: httpx.Client, suffix: str
) -> None:
    body = {"model": "tiny", "training_file": "file-1", "suffix": suffix}
    assert error_of(client.post(JOBS, json=body))["param"] == "suffix"
