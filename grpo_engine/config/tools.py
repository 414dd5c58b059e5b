"""Tools that a job gives its model."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from grpo_engine.contract.records import Input
from grpo_engine.outbound.addresses import check_url

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]


class PythonTool(Input):
    """A Python interpreter in the sandbox; each call starts a fresh one."""

    type: Literal["python"]
    name: ToolName = "python"
    """Name of the function that the model calls."""
    description: str = Field("Run Python code and read what it prints.", max_length=4096)
    """The tool's description for the model."""
    timeout_seconds: float = Field(5.0, gt=0, le=120)
    """Time limit of one call."""
    max_output_chars: int = Field(2000, ge=1, le=100_000)
    """Maximum characters of the output that the model sees."""


class HttpTool(Input):
    """`POST {"name", "arguments", "item", "trace_id"}` to a URL; the answer is shown to the model."""

    type: Literal["http"]
    name: ToolName
    """Name of the function that the model calls."""
    description: str = Field("", max_length=4096)
    """The tool's description for the model."""
    parameters: dict[str, Any] = {"type": "object", "properties": {}}
    """JSON schema of the arguments."""
    url: Annotated[str, Field(max_length=2048), AfterValidator(check_url)]
    """https URL with a public host name on port 443 or 8443, or a host that the operator allows."""
    timeout_seconds: float = Field(10.0, gt=0, le=120)
    """Time limit of one call."""
    max_output_chars: int = Field(2000, ge=1, le=100_000)
    """Maximum characters of the response that the model sees."""


Tool = Annotated[PythonTool | HttpTool, Field(discriminator="type")]

PYTHON_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code to run."}},
    "required": ["code"],
}


def function_schemas(tools: Sequence[PythonTool | HttpTool]) -> list[dict[str, Any]]:
    """The tools in the form of chat templates and OpenAI's API."""
    return [{"type": "function", "function": _function(tool)} for tool in tools]


def _function(tool: PythonTool | HttpTool) -> dict[str, Any]:
    parameters = tool.parameters if isinstance(tool, HttpTool) else PYTHON_PARAMETERS
    return {"name": tool.name, "description": tool.description, "parameters": parameters}
