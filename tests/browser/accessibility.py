"""What axe-core finds on a page: WCAG's rules and its own best practices."""

from functools import cache
from importlib.resources import files
from typing import Any

from playwright.sync_api import Page

COLOURS = ["color-contrast", "link-in-text-block"]
"""The rules whose result depends on colours."""
ALL: dict[str, Any] = {}
BY_COLOUR: dict[str, Any] = {"runOnly": {"type": "rule", "values": COLOURS}}
BUT_COLOUR: dict[str, Any] = {"rules": {rule: {"enabled": False} for rule in COLOURS}}
RUN = """async (rules) => {
  const found = await axe.run(document, { resultTypes: ["violations"], preload: false, ...rules });
  return found.violations.flatMap(({ id, help, nodes }) =>
    nodes.map((node) => `${id}: ${help}: ${node.target.join(" ")} ${node.any[0]?.message ?? ""}`));
}"""
"""Reports of what is right and preloading, which only sound needs, would cost a third of the time."""


@cache
def axe() -> str:
    """axe-core's source text."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()


def violations(page: Page, rules: dict[str, Any] = ALL) -> list[str]:
    """A line for each element that breaks one of these rules."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(axe())
    found: list[str] = page.evaluate(RUN, rules)
    return found
