"""The job's log, its environments and its use of the machine, as modules of the job's page."""

from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import APIResponse, Page, Route, expect

from service.jobs.progress import logs
from service.jobs.progress.logs import PrintedLines
from service.platform.db import connect
from tests.browser.charts import drawn
from tests.browser.deployment import JOBS, Deployment

SHOW = """async ([id, job]) => {
  const { Logs } = await import("/dashboard/pages/job/logs.js");
  const view = new Logs(id, new AbortController().signal);
  document.body.replaceChildren(view.root);
  await view.load(job);
  window.view = view;
}"""
DRAW = """async (rows) => {
  const { System } = await import("/dashboard/pages/job/system.js");
  const view = new System();
  document.body.replaceChildren(view.root);
  await view.load({ status: "succeeded", method: { type: "supervised" } }, rows);
}"""


def test_the_log_shows_its_newest_lines_as_text_and_filters_them(
    own_page: Page, deployment: Deployment, tmp_path: Path
) -> None:
    job_id = deployment.jobs["first"]
    database = connect(deployment.api.settings)
    with database.transaction() as session:
        last = logs.last_sequence(session, job_id)
        lines = [*(f"line {n}" for n in range(50_000)), "<b>bold</b>"]
        logs.append(session, job_id, 2, [PrintedLines(0, lines)], after=last)
    database.engine.dispose()
    own_page.goto("/")
    own_page.evaluate(SHOW, [job_id, deployment.get(f"{JOBS}/{job_id}")])
    box = own_page.get_by_role("log")
    shown = box.locator("p:not(.attempt)")
    assert shown.count() == 3000
    assert shown.last.inner_text() == "<b>bold</b>"
    assert box.locator("b").count() == 0
    assert box.evaluate("box => box.scrollHeight - box.scrollTop - box.clientHeight") < 2
    own_page.get_by_label("Filter lines").fill("LINE 4999")
    assert shown.all_inner_texts() == [f"line {n}" for n in range(49_990, 50_000)]
    with own_page.expect_download() as saved:
        own_page.get_by_role("button", name="Download").click()
    saved.value.save_as(tmp_path / "job.log")
    assert (tmp_path / "job.log").read_text().splitlines()[-50_001:] == lines


def test_the_last_lines_are_shown_if_the_job_ends_while_the_log_is_read(
    own_page: Page, deployment: Deployment
) -> None:
    job_id, held = deployment.jobs["supervised"], list[tuple[Route, APIResponse]]()
    job = deployment.get(f"{JOBS}/{job_id}")
    own_page.goto("/")
    own_page.evaluate(SHOW, [job_id, {**job, "status": "running"}])
    own_page.route("**/logs?after=*", lambda route: held.append((route, route.fetch())), times=1)
    while not held:
        own_page.wait_for_timeout(50)
    database = connect(deployment.api.settings)
    with database.transaction() as session:
        last = logs.last_sequence(session, job_id)
        logs.append(session, job_id, 1, [PrintedLines(0, ["the last line"])], after=last)
    database.engine.dispose()
    own_page.evaluate("job => void window.view.load(job)", job)
    (route, answer) = held[0]
    route.fulfill(response=answer)
    expect(own_page.get_by_role("log").locator("p").last).to_have_text("the last line")


def test_the_machine_s_use_is_drawn_with_its_peak(own_page: Page, deployment: Deployment) -> None:
    own_page.goto("/")
    rows = [{"step": n, "system/cpu_percent": 100 - n, "system/memory_gb": n / 2} for n in (1, 2, 3)]
    own_page.evaluate(DRAW, rows)
    assert own_page.locator(".system-now dd").all_inner_texts() == [
        "97 % last, 99 % peak",
        "1.5 GB last, 1.5 GB peak",
    ]
    assert own_page.locator(".system figcaption").all_inner_texts() == ["CPU\n97 %", "Memory\n1.5 GB"]


def test_environments_are_listed_with_their_newest_sessions(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    job = deployment.job("first")
    words = {"type": "openenv", "url": "https://words.example.com/env"}
    job["method"]["reinforcement"]["environments"] = {"words": words, "idle": words}
    answer = deployment.get(f"{JOBS}/{job['id']}/metrics")
    for row in answer["data"][:-1]:
        row |= {f"environments/words/{name}": 0.5 for name in ("reward", "turns_mean", "failure_rate")}
    answer["data"][-1]["environments/words/failure_rate"] = 1.0
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.route(f"**{JOBS}/{job['id']}/metrics*", lambda route: route.fulfill(json=answer))
    page.goto(f"/#/jobs/{job['id']}/system")
    rows = page.get_by_role("table", name="Sessions of each environment").locator("tbody tr")
    expect(rows).to_have_count(2)
    last = answer["data"][-2]["step"]
    assert [row.locator("th, td").all_inner_texts() for row in rows.all()] == [
        ["words", "55 %", f"step {last}", "0.5", "0.5", "openenv", "words.example.com"],
        ["idle", "–", "–", "–", "–", "openenv", "words.example.com"],
    ]
    drawn(page, "Reward")
    shots(page, "job-environments")


def test_a_tab_opened_during_an_outage_is_shown_when_the_service_is_back(
    own_page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("Failed to load resource")
    path = f"/#/jobs/{deployment.jobs['first']}"
    own_page.goto(path)
    own_page.get_by_role("link", name="Logs", exact=True).wait_for()
    for request in ("**/job/logs.js", f"**{JOBS}?limit=1"):
        own_page.route(request, lambda route: route.abort())
    own_page.get_by_role("link", name="Logs", exact=True).click()
    expect(own_page.get_by_role("alert").get_by_text("No connection to the service")).to_be_visible()
    own_page.unroute_all()
    expect(own_page.get_by_role("log", name="Engine's log")).to_be_visible()
    expect(own_page.locator("#banner")).to_be_hidden()
    assert own_page.url.endswith(f"{path}/logs")
