"""Standard streams on which every text can be written, whatever the caller's encoding is."""

import codecs
import io
import os
import sys

_ESCAPES = "grpo.escapes"


def prepare_streams() -> None:
    """Opens streams that the caller has closed, and escapes characters that the encoding does not have."""
    for name in ("stdin", "stdout", "stderr"):
        if getattr(sys, name) is None:
            # the lowest free number is this stream's; another file there would receive the output of children
            descriptor = os.open(os.devnull, os.O_RDWR)
            os.set_inheritable(descriptor, True)
            mode = "r" if name == "stdin" else "w"
            setattr(sys, name, os.fdopen(descriptor, mode, encoding="utf-8"))
    codecs.register_error(_ESCAPES, _escaped)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors=_ESCAPES)


def _escaped(error: UnicodeError) -> tuple[str, int]:
    """The characters as `\\uXXXX`, which is also valid in JSON."""
    assert isinstance(error, UnicodeEncodeError)
    units = error.object[error.start : error.end].encode("utf-16-be", "surrogatepass").hex()
    return "".join(f"\\u{units[start : start + 4]}" for start in range(0, len(units), 4)), error.end
