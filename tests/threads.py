"""Calls that several threads make at the same time."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier
from typing import TypeVar

T = TypeVar("T")


def at_once(count: int, call: Callable[[int], T]) -> list[T]:
    """The results of `call(0)`, `call(1)`, …, which start together. Raises the first exception."""
    start = Barrier(count)

    def run(number: int) -> T:
        start.wait()
        return call(number)

    with ThreadPoolExecutor(count) as threads:
        return list(threads.map(run, range(count)))
