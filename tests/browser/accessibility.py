"""What axe-core finds on a page: WCAG's rules and its own best practices."""

from functools import cache
from importlib.resources import files

from playwright.sync_api import Page

RUN = """async () => (await axe.run()).violations.flatMap(({ id, help, nodes }) =>
  nodes.map((node) => `${id}: ${help}: ${node.target.join(" ")} ${node.any[0]?.message ?? ""}`))"""


@cache
def axe() -> str:
    """axe-core's source text."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()


def violations(page: Page) -> list[str]:
    """A line for each element that breaks a rule."""
    if not page.evaluate("Boolean(window.axe)"):
        page.evaluate(axe())
    found: list[str] = page.evaluate(RUN)
    return found
