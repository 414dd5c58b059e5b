"""Opens the page of a story's job, and reads its metrics."""

from typing import Any

from playwright.sync_api import Page

from tests.browser.deployment import JOBS, Deployment


def open_job(page: Page, deployment: Deployment, name: str, tab: str = "") -> dict[str, Any]:
    """The job; its page is shown with this tab."""
    page.goto(f"/#/jobs/{deployment.jobs[name]}{tab and '/'}{tab}")
    return deployment.job(name)


def measured(deployment: Deployment, name: str, metric: str) -> list[tuple[int, float]]:
    """(step, value) of a metric in every row that has it."""
    rows = deployment.get(f"{JOBS}/{deployment.jobs[name]}/metrics")["data"]
    return [(row["step"], row[metric]) for row in rows if metric in row]
