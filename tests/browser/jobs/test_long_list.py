"""Lists of more rows than one request returns, and of jobs with long texts."""

import re
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from playwright.sync_api import Page, Route, expect

from tests.browser.deployment import JOBS, Deployment

PROBES = "/v1/fine_tuning/probes"
NAMES = "tbody .name > a"
FILE = {"filename": "rows.jsonl", "bytes": 1, "num_rows": 1}
EVENT = {"level": "info", "type": "message", "message": "Something happened."}
PROBE = {"model": "tiny", "prompts": 1, "status": "cancelled"}
ROW = {"created_at": 1, **FILE, **EVENT, **PROBE}
"""A file, an event or a probe, without its id."""


class ManyJobs:
    """The service's list, made up of copies of one job: `page.route(…, jobs.answer)`."""

    def __init__(self, template: dict[str, Any], number: int) -> None:
        self.listed = [
            {**template, "id": f"ftjob-{index:03}", "suffix": f"job-{index:03}"} for index in range(number)
        ]

    @property
    def names(self) -> list[str]:
        return [job["suffix"] for job in self.listed]

    def answer(self, route: Route) -> None:
        answer(route, self.listed)


def answer(route: Route, listed: list[dict[str, Any]]) -> None:
    """The page of the list that the request is for."""
    query = parse_qs(urlsplit(route.request.url).query)
    ids = [one["id"] for one in listed]
    start = ids.index(query["after"][0]) + 1 if "after" in query else 0
    end = start + int(query["limit"][0])
    found = listed[start:end]
    last_id = found[-1]["id"] if found else None
    route.fulfill(json={"data": found, "has_more": end < len(ids), "last_id": last_id})


def test_deleted_jobs_leave_a_list_of_more_than_a_hundred(page: Page, deployment: Deployment) -> None:
    jobs = ManyJobs(deployment.job("failed"), 145)
    page.route(f"**{JOBS}?*", jobs.answer)
    page.route("**/ftjob-*/*", lambda route: route.fulfill(json={"data": [], "findings": []}))
    page.goto("/#/jobs")
    more = page.get_by_role("button", name="Load more")
    for shown in (40, 60, 80, 100, 120):
        more.click()
        expect(page.locator(NAMES)).to_have_count(shown)
    del jobs.listed[119], jobs.listed[109]
    expect(page.locator(NAMES)).to_have_text(jobs.names[:120])
    more.click()
    expect(page.locator(NAMES)).to_have_text(jobs.names[:140])
    more.click()
    expect(page.locator(NAMES)).to_have_text(jobs.names)
    expect(more).to_be_hidden()


def test_the_first_job_that_the_keyboard_loaded_gets_the_focus(page: Page, deployment: Deployment) -> None:
    jobs = ManyJobs(deployment.job("failed"), 25)
    page.route(f"**{JOBS}?*", jobs.answer)
    page.route("**/ftjob-*/*", lambda route: route.fulfill(json={"data": [], "findings": []}))
    page.goto("/#/jobs")
    page.get_by_role("button", name="Load more").press("Enter")
    expect(page.locator(NAMES)).to_have_text(jobs.names)
    expect(page.locator(NAMES).nth(20)).to_be_focused()


@pytest.mark.parametrize(
    ("address", "path", "more", "rows", "shown"),
    [
        ("/#/files", "/v1/files", "More files", "tbody th a", 50),
        ("/#/jobs/{job}/history", "/events", "Load older events", ".events li", 50),
        ("/#/new", PROBES, "Load older probes", ".past li button", 5),
    ],
    ids=["files", "events", "probes"],
)
def test_the_first_row_that_the_keyboard_loaded_gets_the_focus(
    page: Page, deployment: Deployment, address: str, path: str, more: str, rows: str, shown: int
) -> None:
    listed = [{**ROW, "id": f"one-{number}"} for number in range(shown + 2)]
    page.route(f"**{path}?*", lambda route: answer(route, listed))
    page.goto(address.format(job=deployment.jobs["first"]))
    if path == PROBES:
        page.get_by_text("Previous probes").click()
        expect(page.locator(rows).first).to_have_text("tiny, 1 prompt")
    page.get_by_role("button", name=more).press("Enter")
    expect(page.locator(rows)).to_have_count(shown + 2)
    expect(page.locator(rows).nth(shown)).to_be_focused()


@pytest.mark.parametrize("width", [1280, 1024])
def test_long_names_tags_and_metadata_leave_every_column_in_view(
    page: Page, deployment: Deployment, width: int
) -> None:
    jobs = ManyJobs(deployment.job("failed"), 2)
    jobs.listed[0] |= {"tags": ["x" * 40], "metadata": {"k" * 60: "v" * 500}}
    jobs.listed[1] |= {"name": "W" * 128}
    page.route(f"**{JOBS}?*", jobs.answer)
    page.route("**/ftjob-*/*", lambda route: route.fulfill(json={"data": [], "findings": []}))
    page.set_viewport_size({"width": width, "height": 800})
    page.goto("/#/jobs")
    expect(page.locator(NAMES)).to_have_count(2)
    for edit in page.get_by_role("button", name=re.compile("^Edit ")).all():
        expect(edit).to_be_in_viewport(ratio=1)
