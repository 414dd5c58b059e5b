"""Cost limits and usage of model calls, and a cache of their results. Thread-safe.

Kept in this process's memory: a restarted engine counts from 0 again.
"""

import json
import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from grpo_engine.contract.records import Record
from grpo_engine.outbound.chat_client import ChatAnswer, ChatClient

CHARACTERS_PER_TOKEN = 4
Value = TypeVar("Value")


class ModelUsage(Record):
    """Usage of one model so far."""

    calls: int = 0
    """Answered calls, without those from the cache."""
    input_tokens: int = 0
    output_tokens: int = 0
    usd: float = 0.0
    """Cost at the operator's prices; 0 if there are none."""


class SpendLimitError(Exception):
    """The limit of calls or cost is reached."""


@dataclass
class Account:
    """Spending of one grader."""

    calls: int = 0
    """Started calls, failed ones included."""
    usd: float = 0.0
    expected_usd: float = 0.0
    """Likely cost of the calls in progress."""


@dataclass
class Ledger:
    """Accounts by grader, usage by model."""

    accounts: dict[str, Account] = field(default_factory=dict)
    models: dict[str, ModelUsage] = field(default_factory=dict)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def complete(
        self,
        client: ChatClient,
        request: Mapping[str, Any],
        *,
        account_key: str,
        max_tokens: int,
        max_calls: int | None,
        max_cost_usd: float | None,
    ) -> ChatAnswer:
        """Request a completion if the limits allow. Raises SpendLimitError, ChatServerError, ChatParseError.

        A call in progress counts with the cost of an answer of `max_tokens` tokens, so a limit is exceeded by
        at most one call and the error of the estimates.
        """
        num_input_tokens = len(json.dumps(request)) // CHARACTERS_PER_TOKEN
        expected_usd = client.endpoint.cost_usd(num_input_tokens, max_tokens) or 0.0
        with self.lock:
            account = self.accounts.setdefault(account_key, Account())
            _refuse_overspending(account, max_calls, max_cost_usd)
            account.calls += 1
            account.expected_usd += expected_usd
        usage = ModelUsage()
        try:
            answer = client.complete(**request)
            tokens = answer.usage.model_dump()
            # a server that reports no tokens still costs money
            usage = ModelUsage(calls=1, usd=client.endpoint.cost_usd(**tokens) or expected_usd, **tokens)
            return answer
        finally:
            with self.lock:
                account.expected_usd -= expected_usd
                account.usd += usage.usd
                self.models[client.model] = _sum(self.models.get(client.model, ModelUsage()), usage)

    def usage(self) -> dict[str, ModelUsage]:
        """Model → usage, a copy."""
        with self.lock:
            return dict(self.models)


def _refuse_overspending(account: Account, max_calls: int | None, max_cost_usd: float | None) -> None:
    if max_calls is not None and account.calls >= max_calls:
        raise SpendLimitError(f"the limit of {max_calls} calls is reached")
    if max_cost_usd is not None and account.usd + account.expected_usd >= max_cost_usd:
        raise SpendLimitError(f"the limit of {max_cost_usd:g} USD is reached")


def _sum(one: ModelUsage, other: ModelUsage) -> ModelUsage:
    return ModelUsage(**{name: value + getattr(other, name) for name, value in one})


class SharedCalls(Generic[Value]):
    """A cache by key in which concurrent callers with equal keys share one call.

    A failed call is not kept: callers that wait for it fail too, and the next caller tries again.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._lock = threading.Lock()
        self._futures: OrderedDict[str, Future[Value]] = OrderedDict()

    def get(self, key: str, call: Callable[[], Value]) -> Value:
        """The result of `call`, or of an earlier call with this key. Raises what that call raised."""
        with self._lock:
            future = self._futures.get(key)
            mine = future is None
            if future is None:
                future = self._futures[key] = Future()
            self._futures.move_to_end(key)
            if len(self._futures) > self.size:
                self._futures.popitem(last=False)
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
