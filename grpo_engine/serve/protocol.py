"""Messages between a worker and its serving engine (`serving.py`).

The worker writes one line, a `ServedModel`. The engine reports `Loaded` or `Unloadable`, then `Working`, one
line each. Requests and answers travel over HTTP (`chat/http_app.py`).
Boundary: plain data.
"""

from typing import Literal

from pydantic import Field, TypeAdapter

from grpo_engine.chat.protocol import Refusal
from grpo_engine.config.hyperparameters import Quantization
from grpo_engine.config.job import ModelSource, Runtime
from grpo_engine.contract.records import Record

DIED = Refusal(code="sampler_died", message="The model's process ended while it was answering; try again.")


class ServedModel(Record):
    """The model's weights, and how it uses the machine."""

    model: ModelSource
    runtime: Runtime = Field(default_factory=Runtime)
    context_tokens: int | None = Field(None, ge=1)
    """The operator's limit of prompt and completion together, in tokens; None: the model's limit."""
    quantization: Quantization | None = None
    """How the base was quantised when its adapter was trained; it is loaded in the same way."""
    host: str = "127.0.0.1"
    """Name or address of this machine at which the engine listens."""
    secret: str = Field(min_length=1, repr=False)
    """Bearer secret that each request must have."""


class Loaded(Record):
    """The model is loaded, and the engine listens."""

    type: Literal["loaded"] = "loaded"
    url: str


class Working(Record):
    """Sent when the number of open requests changes, and about once a second while they are answered."""

    type: Literal["working"] = "working"
    num_open: int


class Unloadable(Record):
    """The model cannot be loaded; the engine ends."""

    type: Literal["unloadable"] = "unloadable"
    code: str
    message: str


Report = TypeAdapter[Loaded | Working | Unloadable](Loaded | Working | Unloadable)
