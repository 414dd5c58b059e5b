"""What judges cost this process, and the answers that need not be paid for twice. Safe between threads.

Boundary: memory of this process only; a restarted engine counts from 0 again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from grpo_engine.contract.records import Record

Value = TypeVar("Value")


class ModelUsage(Record):
    """What one model was asked so far."""

    calls: int = 0
    """Answered calls; those from the cache are none."""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    """By the operator's prices; 0 where there are none."""


class SpendLimitError(Exception):
    """A grader has spent what it may."""


@dataclass
class Account:
    """What one grader has spent and, for calls on their way, is likely to."""

    calls: int = 0
    """Started calls, whatever came of them."""
    usd: float = 0.0
    expected_usd: float = 0.0


@dataclass
class Receipt:
    """Filled in by the caller once the answer is there."""

    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    answered: bool = False


@dataclass
class Ledger:
    """Accounts by grader, usage by model."""

    accounts: dict[str, Account] = field(default_factory=dict)
    models: dict[str, ModelUsage] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    @contextmanager
    def call(
        self,
        account_key: str,
        model: str,
        *,
        max_calls: int | None,
        max_cost_usd: float | None,
        expected_usd: float,
    ) -> Iterator[Receipt]:
        """One paid call. Raises SpendLimitError where the account is empty.

        Calls on their way count with `expected_usd`, so a limit is exceeded by at most one call and by what
        was expected too low.
        """
        receipt = Receipt()
        with self.lock:
            account = self.accounts.setdefault(account_key, Account())
            _refuse_overspending(account, max_calls, max_cost_usd)
            account.calls += 1
            account.expected_usd += expected_usd
        try:
            yield receipt
        finally:
            with self.lock:
                account.expected_usd -= expected_usd
                account.usd += receipt.usd
                self.models[model] = _added(self.models.get(model, ModelUsage()), receipt)

    def usage(self) -> dict[str, ModelUsage]:
        """Model → usage, a copy."""
        with self.lock:
            return dict(self.models)


def _refuse_overspending(account: Account, max_calls: int | None, max_cost_usd: float | None) -> None:
    if max_calls is not None and account.calls >= max_calls:
        raise SpendLimitError(f"the limit of {max_calls} calls is reached")
    if max_cost_usd is not None and account.usd + account.expected_usd >= max_cost_usd:
        raise SpendLimitError(f"the limit of {max_cost_usd:g} USD is reached")


def _added(before: ModelUsage, receipt: Receipt) -> ModelUsage:
    return ModelUsage(
        calls=before.calls + receipt.answered,
        input_tokens=before.input_tokens + receipt.input_tokens,
        output_tokens=before.output_tokens + receipt.output_tokens,
        usd=before.usd + receipt.usd,
    )


class SharedCalls(Generic[Value]):
    """Remembers results by key; callers that ask for the same at the same time share one call.

    A call that fails is remembered by nobody: those who wait for it fail with it, the next one tries again.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._futures: OrderedDict[str, Future[Value]] = OrderedDict()

    def get(self, key: str, call: Callable[[], Value]) -> Value:
        """The result of `call` or of an earlier one. Raises what it raised."""
        with self._lock:
            future = self._futures.get(key)
            mine = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
            self._forget_oldest()
        if mine:
            self._fulfil(key, future, call)
        return future.result()

    def _fulfil(self, key: str, future: Future[Value], call: Callable[[], Value]) -> None:
        try:
            future.set_result(call())
        except BaseException as error:  # noqa: BLE001 - raised again, in every thread that waits
            with self._lock:
                if self._futures.get(key) is future:
                    del self._futures[key]
            future.set_exception(error)

    def _forget_oldest(self) -> None:
        while len(self._futures) > self.size:
            self._futures.popitem(last=False)
