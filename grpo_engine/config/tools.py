"""Tools that a job gives its model."""

from collections.abc import Sequence
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field

from grpo_engine.contract.records import Input, Listed
from grpo_engine.outbound.addresses import check_url
from grpo_engine.outbound.web import check_headers

ToolName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]{0,63}$")]
Headers = Annotated[dict[str, str], Field(max_length=16), AfterValidator(check_headers)]


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
    headers: Headers = {}
    """Sent with each request, such as an Authorization header."""
    timeout_seconds: float = Field(10.0, gt=0, le=120)
    """Time limit of one call."""
    max_output_chars: int = Field(2000, ge=1, le=100_000)
    """Maximum characters of the response that the model sees."""


class McpTool(Input):
    """The tools of an MCP server (streamable HTTP). A completion that calls them has a session of its own."""

    type: Literal["mcp"]
    server_url: Annotated[str, Field(max_length=2048), AfterValidator(check_url)]
    """https URL with a public host name on port 443 or 8443, or a host that the operator allows."""
    server_label: str = Field("", pattern=r"^[A-Za-z0-9_-]{0,64}$")
    """A name for people, as in OpenAI's API; it has no effect."""
    headers: Headers = {}
    """Sent with each request, such as an Authorization header."""
    allowed_tools: Listed[ToolName] | None = Field(None, max_length=128)
    """Names of the server's tools that the model may call; null: all of them."""
    require_approval: Literal["never"] = "never"
    """As in OpenAI's API; the calls of a training job cannot wait for an approval."""
    timeout_seconds: float = Field(10.0, gt=0, le=120)
    """Time limit of one call, and of opening its session."""
    max_output_chars: int = Field(2000, ge=1, le=100_000)
    """Maximum characters of the answer that the model sees."""


class ListedTool(McpTool):
    """One of a server's tools, as the server described it when the job started."""

    name: ToolName
    description: str
    parameters: dict[str, Any]


Tool = Annotated[PythonTool | HttpTool | McpTool, Field(discriminator="type")]
NamedTool = PythonTool | HttpTool | ListedTool

PYTHON_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {"code": {"type": "string", "description": "Python code to run."}},
    "required": ["code"],
}


def named(tools: Sequence[PythonTool | HttpTool | McpTool]) -> list[NamedTool]:
    """The tools that a model can call: all but the servers whose tools are not listed yet."""
    return [tool for tool in tools if isinstance(tool, NamedTool)]


def function_schemas(tools: Sequence[PythonTool | HttpTool | McpTool]) -> list[dict[str, Any]]:
    """The named tools in the form of chat templates and OpenAI's API."""
    return [{"type": "function", "function": _function(tool)} for tool in named(tools)]


def _function(tool: NamedTool) -> dict[str, Any]:
    parameters = PYTHON_PARAMETERS if isinstance(tool, PythonTool) else tool.parameters
    return {"name": tool.name, "description": tool.description, "parameters": parameters}
