"""The operator's endpoints: servers that jobs may name, with URLs, keys and prices that jobs never see.

GRPO_ENDPOINTS is the path of a JSON file, name → OperatorEndpoint:

    {"default": {"url": "https://llm.example/v1", "api_key": "…", "models": ["judge-large"],
                 "usd_per_million_input": 0.5, "usd_per_million_output": 2.0},
     "checker": {"url": "https://grade.example/run", "secret": "whsec_…"}}

The file is read again at each call. Keys are `SecretStr`: no message, log or record shows them.
"""

import os
from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, Field, SecretStr, TypeAdapter, ValidationError

from grpo_engine.contract.records import Record, first_problem
from grpo_engine.outbound.addresses import AllowedHosts, RefusedUrl
from grpo_engine.outbound.signing import secret_bytes

Price = Annotated[float, Field(ge=0)]


class EndpointError(Exception):
    """The operator's file is missing or invalid, or has no such endpoint."""


def _check_key(key: SecretStr) -> SecretStr:
    text = key.get_secret_value()
    if not (text.isascii() and text.isprintable()) or " " in text:
        raise ValueError("a key cannot contain spaces or non-ASCII characters")
    return key


def _check_secret(secret: SecretStr) -> SecretStr:
    secret_bytes(secret)
    return secret


class OperatorEndpoint(Record):
    """One server. The operator trusts its URL, so it may be plain http and private."""

    url: str = Field(max_length=2048)
    """A chat server's URL up to and including `/v1`, or a grader's whole URL."""
    api_key: Annotated[SecretStr, AfterValidator(_check_key)] | None = None
    """Sent as `Authorization: Bearer …`."""
    secret: Annotated[SecretStr, AfterValidator(_check_secret)] | None = None
    """Key for signing requests to a grader: base64, with or without the prefix `whsec_`."""
    models: tuple[str, ...] | None = None
    """Models that jobs may use; null: any."""
    usd_per_million_input: Price | None = None
    usd_per_million_output: Price | None = None

    @property
    def allowed_hosts(self) -> AllowedHosts:
        """This machine's policy plus the endpoint's own host. Raises RefusedUrl."""
        return AllowedHosts.from_environment().trusting(self.url)

    def cost_usd(self, input_tokens: int, output_tokens: int) -> float | None:
        """Price of these tokens; None if the operator set none."""
        if self.usd_per_million_input is None or self.usd_per_million_output is None:
            return None
        total = input_tokens * self.usd_per_million_input + output_tokens * self.usd_per_million_output
        return total / 1e6


_FILE: TypeAdapter[dict[str, OperatorEndpoint]] = TypeAdapter(dict[str, OperatorEndpoint])


def load_endpoints() -> dict[str, OperatorEndpoint]:
    """Name → endpoint, from the file in GRPO_ENDPOINTS; empty if it is unset. Raises EndpointError."""
    path = os.environ.get("GRPO_ENDPOINTS")
    if not path:
        return {}
    try:
        endpoints = _FILE.validate_json(Path(path).read_bytes())
        for endpoint in endpoints.values():
            _ = endpoint.allowed_hosts
    except OSError as error:
        raise EndpointError(f"GRPO_ENDPOINTS cannot be read: {error.strerror}") from None
    except RefusedUrl as error:
        raise EndpointError(f"GRPO_ENDPOINTS has an invalid url: {error}") from None
    except ValidationError as error:
        place, message = first_problem(error)
        raise EndpointError(f"GRPO_ENDPOINTS is invalid at {place or 'its start'}: {message}") from None
    return endpoints


def find_endpoint(name: str) -> OperatorEndpoint:
    """The endpoint of this name. Raises EndpointError."""
    endpoint = load_endpoints().get(name)
    if endpoint is None:
        raise EndpointError(f"there is no endpoint {name!r}: the operator lists them in GRPO_ENDPOINTS")
    return endpoint
