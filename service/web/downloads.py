"""Downloads of stored objects: entity tags, ranges, digests, safe file names.

Boundary: storage and HTTP, no tables. Callers check the owner first, and hold no database session while bytes
are sent.
"""

import re
from collections.abc import Iterator
from urllib.parse import quote

from fastapi import Request, Response
from fastapi.responses import StreamingResponse

from service.platform.errors import NotFound, RangeNotSatisfiable
from service.platform.storage import ObjectMissing, Storage

_RANGE = re.compile(r"bytes=(\d{0,18})-(\d{0,18})")
_UNSAFE = re.compile(r"[^A-Za-z0-9._-]+")


def file_response(
    request: Request,
    storage: Storage,
    key: str,
    *,
    size: int,
    sha256: str,
    filename: str,
    media_type: str = "application/octet-stream",
) -> Response:
    """The object under `key` (`size` bytes): 200, 206 for one range, or 304 if the client has it.

    Raises RangeNotSatisfiable for a range outside of the object and NotFound if storage lost it.
    A header with several ranges, or with an `If-Range` of another version, gets the whole object.
    """
    etag = f'"{sha256}"'
    headers = {"ETag": etag, "Accept-Ranges": "bytes", "Cache-Control": "private, no-cache"}
    if _matches(request.headers.get("if-none-match"), etag):
        return Response(status_code=304, headers=headers)
    headers["x-checksum-sha256"] = sha256
    headers["Content-Disposition"] = content_disposition(filename)
    span = _requested_range(request, etag, size)
    start, end = span or (0, size)
    headers["Content-Length"] = str(end - start)
    if span:
        headers["Content-Range"] = f"bytes {start}-{end - 1}/{size}"
    body = _opened(storage, key, start, end) if end > start else iter(())
    return StreamingResponse(body, 206 if span else 200, headers, media_type)


def content_disposition(filename: str) -> str:
    """`attachment` with an ASCII fallback; the name can neither break out of the header nor name a folder."""
    base = filename.replace("\\", "/").rsplit("/", 1)[-1]
    plain = _UNSAFE.sub("_", base).lstrip(".") or "download"
    return f"attachment; filename=\"{plain}\"; filename*=UTF-8''{quote(base or plain, safe='')}"


def _matches(header: str | None, etag: str) -> bool:
    if header is None:
        return False
    tags = [tag.strip().removeprefix("W/") for tag in header.split(",")]
    return etag in tags or "*" in tags


def _requested_range(request: Request, etag: str, size: int) -> tuple[int, int] | None:
    """Half-open byte range, or None for the whole object."""
    match = _RANGE.fullmatch(request.headers.get("range", "").replace(" ", ""))
    if match is None or match[1] == match[2] == "":
        return None
    if request.headers.get("if-range", etag) != etag:
        return None
    first, last = match[1], match[2]
    if first == "":
        start, end = max(0, size - int(last)), size
    else:
        start, end = int(first), min(size, int(last) + 1) if last else size
        if last and int(last) < start:
            return None
    if start >= end:
        raise RangeNotSatisfiable(
            f"The range is outside the object's {size} bytes.", headers={"Content-Range": f"bytes */{size}"}
        )
    return start, end


def _opened(storage: Storage, key: str, start: int, end: int) -> Iterator[bytes]:
    """Open the stream before the response starts, so that a lost object is an error response."""
    try:
        return storage.stream(key, start, end)
    except ObjectMissing as error:
        raise content_missing() from error


def content_missing() -> NotFound:
    """The error for a row whose object the storage has lost."""
    return NotFound("The content is no longer stored.", code="content_missing")
