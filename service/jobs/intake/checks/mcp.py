"""Lists the tools of a job's MCP servers, which the model will be shown."""

from grpo_engine.config.mcp_tools import is_installed, with_listed_tools
from grpo_engine.config.tools import McpTool
from service.jobs.intake.report import Report
from service.platform.token_counting import ModelText


def list_mcp_tools(report: Report, text: ModelText | None) -> None:
    """Set the report's tools. Adds a problem for each server that cannot be reached or whose tools cannot
    be shown to a model."""
    if not any(isinstance(tool, McpTool) for tool in report.tools):
        return
    if not is_installed():
        message = "The tools of MCP servers were not checked: the service's machine lacks the package mcp."
        report.warn("mcp_unchecked", message)
        return
    special = text.special_texts if text else ()
    report.tools, problems = with_listed_tools(report.tools, special)
    for problem in problems:
        code = "mcp_server_failed" if problem.unreachable else "invalid_value"
        report.problems.add(f"method.{report.method.type}.{problem.place}", problem.reason, code=code)
