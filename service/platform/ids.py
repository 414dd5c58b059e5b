"""Random identifiers in OpenAI's form: a prefix, letters and digits."""

import secrets
import string

BASE62 = string.digits + string.ascii_letters


def random_text(length: int) -> str:
    """Letters and digits from the system's secure source, 5.95 bits each."""
    return "".join(secrets.choice(BASE62) for _ in range(length))


def new_id(prefix: str, separator: str = "-") -> str:
    """A new id such as `ftjob-` and 24 characters; `new_id("ftckpt", "_")` for OpenAI's underscores."""
    return f"{prefix}{separator}{random_text(24)}"
