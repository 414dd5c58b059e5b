"""Removes secrets, and characters that no row can store, from text that a job's owner may read."""

import os
import re

from service.platform import logs
from service.platform.db import storable

SHORTEST_SECRET = 6
_SECRET_NAMES = re.compile(r"KEY|TOKEN|PASSWORD|SECRET", re.IGNORECASE)


def mask_secrets(text: str) -> str:
    """The text without keys and passwords that have known formats or are in this process's environment.

    It is `storable`: an engine may print anything, and PostgreSQL would refuse the reason of its end.
    """
    text = logs.mask(storable(text))
    secrets = {value for name, value in os.environ.items() if _SECRET_NAMES.search(name)}
    for secret in sorted(secrets, key=len, reverse=True):  # one may be the beginning of another
        if len(secret) >= SHORTEST_SECRET:
            text = text.replace(secret, "***")
    return text
