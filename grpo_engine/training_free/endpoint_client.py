"""Answers with a model behind one of the operator's endpoints: bounded threads, ordered results, a budget.

The chat client retries temporary errors. Any other error fails only its own answer, unless `BREAK_AFTER`
answers fail in a row. Boundary: messages contain no key and no address.
"""

import threading
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any
from urllib.parse import urlsplit

from grpo_engine.config.training_free import EndpointModel, TrainingFreeHyperparameters
from grpo_engine.contract.errors import ConfigError, EndpointDownError, OverspentError
from grpo_engine.contract.records import FinishReason
from grpo_engine.graders.model_spending import Account, Ledger, SpendLimitError
from grpo_engine.objective.types import Completion
from grpo_engine.outbound import chat_client
from grpo_engine.outbound.operator_endpoints import EndpointError
from grpo_engine.rollout.sampler.base import Sampling
from grpo_engine.training_free.model_client import OnRow, Reply, failed_reply
from grpo_engine.training_free.prompts import Row

ACCOUNT = "job"
BREAK_AFTER = 6
"""Failed answers in a row after which the endpoint is considered down."""
HOPELESS = (401, 403, 404)
"""Statuses that a retry cannot change, because key, permission, address or model is wrong."""
SHOWN_FAILURES = 3


class EndpointBudget:
    """Limits on calls to endpoints and their cost, over all attempts of the job."""

    def __init__(self, settings: TrainingFreeHyperparameters) -> None:
        self.max_calls = settings.max_calls
        self.max_cost_usd = settings.max_cost_usd
        self.ledger = Ledger()
        self.restore(num_calls=0, cost_usd=0.0)

    def restore(self, num_calls: int, cost_usd: float) -> None:
        """Continue after an earlier attempt that has spent this much."""
        self.account = self.ledger.accounts[ACCOUNT] = Account(calls=num_calls, usd=cost_usd)


class EndpointModelClient:
    def __init__(
        self, model: EndpointModel, settings: TrainingFreeHyperparameters, budget: EndpointBudget
    ) -> None:
        """Raises ConfigError if the operator has no such endpoint, model or price."""
        self.model = model
        self.label = model.label
        self.budget = budget
        self.concurrent_calls = settings.concurrent_calls
        try:
            self.client = chat_client.ChatClient(
                model.endpoint, model.model, settings.request_timeout_seconds
            )
        except EndpointError as error:
            raise ConfigError(str(error)) from None
        if budget.max_cost_usd is not None and self.client.endpoint.cost_usd(0, 0) is None:
            raise ConfigError(f"max_cost_usd needs the prices of the endpoint {model.endpoint!r}")
        self._lock = threading.Lock()
        self._failures_in_a_row = 0

    def answer(
        self,
        rows: Sequence[Row],
        count: int,
        sampling: Sampling,
        *,
        version: int = 0,
        on_row: OnRow | None = None,
    ) -> list[tuple[Completion, ...]]:
        """Answers in the order of the rows. Raises EndpointDownError if there are several and more than half
        fail, and OverspentError if the budget is used up."""
        with ThreadPoolExecutor(self.concurrent_calls, thread_name_prefix="endpoint") as threads:
            futures = [
                [threads.submit(self._reply, row, sampling, version) for _ in range(count)] for row in rows
            ]
            answers: list[tuple[Completion, ...]] = []
            try:
                for place, each in enumerate(futures):
                    answers.append(tuple(future.result() for future in each))
                    if on_row is not None:
                        on_row(place, answers[-1])
            finally:
                threads.shutdown(cancel_futures=True)
        replies = [reply for group in answers for reply in group]
        failures = [failure for reply in replies if (failure := reply.failure) is not None]
        if len(replies) > 1 and 2 * len(failures) > len(replies):
            raise self._down(failures)
        return answers

    def fits(self, row: Row, max_tokens: int) -> bool:
        """Always True, because the server's limit is unknown; a row that exceeds it gets a failed answer."""
        return True

    def _reply(self, row: Row, sampling: Sampling, version: int) -> Reply:
        """One answer; a refusal counts as an answer."""
        messages = row["messages"] if "messages" in row else [{"role": "user", "content": row["prompt"]}]
        request = {
            "messages": messages,
            "temperature": sampling.temperature,
            self.model.length_field: sampling.max_tokens,
            "tools": row.get("tools") or None,
        }
        try:
            answer = self._paid(request, sampling.max_tokens)
        except chat_client.ChatServerError as error:
            self._note_failure(error)
            return failed_reply(self._public_message(error), version)
        except chat_client.ChatParseError as error:
            return failed_reply(str(error), version)
        with self._lock:
            self._failures_in_a_row = 0
        return Reply(
            answer.text or answer.refusal or "",
            (),
            (),
            FinishReason.LENGTH if answer.finish_reason == "length" else FinishReason.STOP,
            version,
            num_tokens=answer.usage.output_tokens,
            num_prompt_tokens=answer.usage.input_tokens,
        )

    def _paid(self, request: dict[str, Any], max_tokens: int) -> chat_client.ChatAnswer:
        """Send the request within the budget. Raises ChatServerError, ChatParseError, OverspentError."""
        try:
            return self.budget.ledger.complete(
                self.client,
                request,
                account_key=ACCOUNT,
                max_tokens=max_tokens,
                max_calls=self.budget.max_calls,
                max_cost_usd=self.budget.max_cost_usd,
            )
        except SpendLimitError as error:
            raise OverspentError(str(error)) from None

    def _note_failure(self, error: chat_client.ChatServerError) -> None:
        """Count a failure. Raises EndpointDownError if further requests are useless."""
        with self._lock:
            self._failures_in_a_row += 1
            is_down = self._failures_in_a_row >= BREAK_AFTER
        if is_down or error.status in HOPELESS:
            raise self._down([self._public_message(error)])

    def _public_message(self, error: chat_client.ChatServerError) -> str:
        """The error message with the endpoint's name in place of the operator's host."""
        return str(error).replace(urlsplit(self.client.endpoint.url).hostname or "\0", self.model.endpoint)

    def _down(self, failures: Sequence[str]) -> EndpointDownError:
        evidence = tuple(dict.fromkeys(failures))[:SHOWN_FAILURES]
        return EndpointDownError(f"{self.label} does not answer: {evidence[0]}", evidence=evidence)
