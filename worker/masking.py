"""Removes secrets from text that a job's owner may read."""

import os
import re

from service.platform import logs

SHORTEST_SECRET = 6
_SECRET_NAMES = re.compile(r"KEY|TOKEN|PASSWORD|SECRET", re.IGNORECASE)


def mask_secrets(text: str) -> str:
    """The text without keys and passwords that have known formats or are in this process's environment."""
    text = logs.mask(text)
    for name, value in os.environ.items():
        if _SECRET_NAMES.search(name) and len(value) >= SHORTEST_SECRET:
            text = text.replace(value, "***")
    return text
