"""A sweep's page: its runs with what was varied, and parallel coordinates of the same numbers."""

import json
from collections.abc import Callable, Iterator

import pytest
from playwright.sync_api import Page, expect
from sqlalchemy import update

from service.jobs.model.states import JobState
from service.platform.db import connect
from service.platform.tables.core import Job, Metric
from tests.browser.deployment import JOBS, Deployment
from tests.service.job_samples import add_job

NAME = "rates & sizes"
RUNS = [("1e-5", "4", 0.021, 0.4), ("1e-5", "8", 0.083, 0.55), ("4e-5", "4", -0.052, 0.3)]
"""Learning rate, group size, held-out difference, final reward."""


@pytest.fixture(scope="module")
def sweep(deployment: Deployment) -> Iterator[list[str]]:
    """Ids of finished runs, as a worker would have left them."""
    database = connect(deployment.api.settings)
    ids = []
    for rate, size, difference, reward in RUNS:
        labels = {"sweep": NAME, "sweep_run": json.dumps({"group_size": size, "learning_rate": rate})}
        verdict = {"difference": difference, "low": difference - 0.03, "high": difference + 0.03, "text": "–"}
        about = {"name": f"{NAME}: learning_rate={rate}, group_size={size}", "labels": labels}
        more = {"evaluation": {"verdict": verdict}, "step": 10, "tenant": "acme", **about}
        ids.append(add_job(database, JobState.SUCCEEDED, **more))
        with database.transaction() as session:
            session.add(Metric(job_id=ids[-1], step=10, values={"reward": reward}))
    yield ids
    for job_id in ids:
        assert deployment.client.delete(f"{JOBS}/{job_id}").status_code == 200
    database.engine.dispose()


def test_each_run_has_its_settings_and_status(page: Page, sweep: list[str]) -> None:
    page.goto("/#/sweeps/rates%20%26%20sizes")
    expect(page.get_by_role("heading", name=f"Sweep {NAME}")).to_be_visible()
    rows = page.locator("table tbody tr")
    expect(rows).to_have_count(3)
    shown = [row.locator("td").all_inner_texts() for row in rows.all()]
    assert [[cell.split()[0] for cell in row] for row in shown] == [
        ["8", "1e-5", "+0.083", "0.55", "succeeded"],
        ["4", "1e-5", "+0.021", "0.4", "succeeded"],
        ["4", "4e-5", "−0.052", "0.3", "succeeded"],
    ]
    expect(rows.nth(1)).to_contain_text("not significant")


def test_the_coordinates_have_a_line_a_run_and_a_text(page: Page, sweep: list[str]) -> None:
    page.goto("/#/sweeps/rates%20%26%20sizes")
    labels = ["Completions per prompt", "Learning rate", "Final reward", "Held-out change"]
    text = f"3 runs over {', '.join(labels)}. Best: Completions per prompt 8"
    drawing = page.get_by_role("img", name=text)
    expect(drawing.locator("polyline")).to_have_count(3)
    expect(drawing.locator("polyline.best")).to_have_count(1)
    expect(drawing.locator("text.label")).to_have_text(labels)


def test_the_next_step_names_the_best_run_and_opens_its_values(page: Page, sweep: list[str]) -> None:
    page.goto("/#/sweeps/rates%20%26%20sizes")
    region = page.get_by_role("region", name="Next step")
    expect(region).to_contain_text("group_size=8, +0.083 (95% CI 0.053 to 0.113).")
    expect(region).to_contain_text(
        "apart from that of the second run (+0.021, −0.009 to 0.051): it is better."
    )
    expect(region).to_contain_text("Completions per prompt 8 is the highest value tried: try higher ones.")
    form = region.get_by_role("link", name="Open its values in the form")
    expect(form).to_have_attribute("href", f"#/new?from={sweep[1]}")


def test_the_list_of_jobs_leads_to_the_sweep(page: Page, sweep: list[str]) -> None:
    page.goto("/#/jobs")
    page.get_by_role("link", name=f"Sweep {NAME}").first.click()
    expect(page.get_by_role("heading", name=f"Sweep {NAME}")).to_be_visible()
    page.get_by_role("link", name="Compare all").click()
    expect(page.get_by_role("heading", name="Compare jobs")).to_be_visible()
    for job_id in sweep:
        assert job_id in page.url


def test_a_run_keeps_the_focus_while_the_sweep_is_updated(page: Page, deployment: Deployment) -> None:
    database = connect(deployment.api.settings)
    about = {"labels": {"sweep": "focus"}, "tenant": "acme"}
    ids = [add_job(database, JobState.PAUSED, name=name, **about) for name in ("first", "second")]

    def change(**values: object) -> None:
        with database.transaction() as session:
            session.execute(update(Job).where(Job.id.in_(ids)).values(values))

    page.goto("/#/sweeps/focus")
    link = page.get_by_role("table").locator(f'a[href="#/jobs/{ids[0]}"]')
    link.focus()
    change(name="renamed")
    expect(link).to_have_text("renamed")
    expect(link).to_be_focused()
    change(state=JobState.CANCELLED.value)
    for job_id in ids:
        assert deployment.client.delete(f"{JOBS}/{job_id}").status_code == 200
    database.engine.dispose()


def test_an_unknown_sweep_explains_how_to_create_it(page: Page) -> None:
    page.goto("/#/sweeps/missing")
    expect(page.get_by_role("heading", name="No jobs in this sweep")).to_be_visible()


def test_the_sweep_looks_right(page: Page, sweep: list[str], shots: Callable[[Page, str], None]) -> None:
    page.goto("/#/sweeps/rates%20%26%20sizes")
    expect(page.locator(".wide polyline")).to_have_count(3)
    shots(page, "sweep")
