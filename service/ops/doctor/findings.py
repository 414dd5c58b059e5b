"""Findings: one line each, with advice."""

from enum import StrEnum
from typing import NamedTuple


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    """Something does not work or will soon stop working, but jobs run."""
    FAILURE = "failure"


class Finding(NamedTuple):
    level: Level
    check: str
    found: str
    advice: str = ""
    """Action that fixes the problem; empty if ok."""


def ok(check: str, found: str) -> Finding:
    return Finding(Level.OK, check, found)


def warning(check: str, found: str, advice: str) -> Finding:
    return Finding(Level.WARNING, check, found, advice)


def failure(check: str, found: str, advice: str) -> Finding:
    return Finding(Level.FAILURE, check, found, advice)
