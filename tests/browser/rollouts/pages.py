"""Opens the rollouts page and reads what the API has for it."""

import re
from typing import Any

from playwright.sync_api import Page, expect

from tests.browser.deployment import JOBS, Deployment

HOSTILE = "<img src=x onerror=\"document.title='owned'\"><script>document.title='owned'</script>\u202e</p>"


def open_page(page: Page, job_id: str, query: str = "") -> None:
    page.goto(f"/#/jobs/{job_id}/rollouts{query}")
    expect(page.get_by_role("heading", name="Rollouts")).to_be_visible()


def groups_of(deployment: Deployment, job_id: str, **query: Any) -> list[dict[str, Any]]:
    return list(deployment.get(f"{JOBS}/{job_id}/rollouts", **query)["data"])


def shown_group(page: Page) -> str:
    """Id of the shown group, which is in the address."""
    page.wait_for_url(re.compile("group="))
    return page.url.split("group=")[1]


def signed(value: float) -> str:
    text = f"{abs(value):.2f}".rstrip("0").rstrip(".")
    return text if text == "0" else f"{'+' if value > 0 else '−'}{text}"
