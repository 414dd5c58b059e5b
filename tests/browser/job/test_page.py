"""A job's page: its results, tabs, live updates, and actions."""

from collections.abc import Callable

import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.charts import drawn, figure, points
from tests.browser.conftest import PHONE, TOO_WIDE
from tests.browser.deployment import JOBS, Deployment
from tests.browser.job.opened import measured, open_job
from tests.service.job_samples import upload


def cell(page: Page, name: str) -> Locator:
    """The cell of the results with this label."""
    label = page.get_by_role("term").get_by_text(name, exact=True)
    return page.locator(".strip > div", has=label)


def test_the_results_show_the_held_out_change_with_its_interval(page: Page, deployment: Deployment) -> None:
    evaluation = open_job(page, deployment, "first")["eval"]
    verdict = evaluation["verdict"]
    shown = cell(page, "Held-out reward (greedy)")
    before, after = (evaluation[which]["reward"] for which in ("baseline", "last"))
    expect(shown.get_by_role("definition").first).to_have_text(f"{before:.3f}{after:.3f}")
    low, high, points = (f"{verdict[name]:.3f}" for name in ("low", "high", "difference"))
    expect(shown).to_contain_text(f"+{points} (95% CI {low} to {high}) · {verdict['rows']} rows")
    expect(shown.get_by_role("img", name="Difference")).to_have_accessible_name(
        f"Difference {verdict['difference']}, 95 percent interval {verdict['low']} to {verdict['high']}"
    )
    expect(page.locator(".next")).to_contain_text("Better on held-out rows.")
    expect(cell(page, "Step").get_by_role("definition").first).to_have_text("40 of 40")


@pytest.mark.parametrize(
    ("severity", "text"),
    [("warning", "Cause."), ("info", "Better on held-out rows. Try the model, or download it.")],
)
def test_a_rise_is_green_unless_a_finding_doubts_it(
    page: Page, deployment: Deployment, severity: str, text: str
) -> None:
    unset = {"evidence": [], "compared": [], "advice": "", "field": None, "patch": None, "count": None}
    finding = {"code": "some_code", "severity": severity, "cause": "Cause.", **unset}
    path = f"{JOBS}/{deployment.jobs['first']}/diagnosis"
    page.route(f"**{path}", lambda route: route.fulfill(json={"findings": [finding]}))
    page.goto(f"/#/jobs/{deployment.jobs['first']}")
    results = page.get_by_role("region", name="Results")
    expect(results.locator(".next strong")).to_have_text(text)
    for green in (results.locator(".change strong.good"), results.locator(".interval.good")):
        expect(green).to_have_count(1 if severity == "info" else 0)
    expect(results).not_to_contain_text("not significant")


def test_an_interval_around_zero_is_not_significant_and_a_greedy_evaluation_says_so(
    page: Page, deployment: Deployment
) -> None:
    job = deployment.job("faster")
    interval = {"difference": -0.012, "low": -0.05, "high": 0.026}
    job["eval"]["verdict"] = {"text": "not significant", **interval, "rows": 90}
    job["eval"]["last"]["temperature"] = 0
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{job['id']}")
    shown = cell(page, "Held-out reward (greedy)")
    expect(shown).to_contain_text("−0.012 (95% CI −0.050 to 0.026), not significant · 90 rows")
    expect(page.locator(".next")).to_contain_text("No significant change on held-out rows.")
    drawn(page, "Reward")
    expect(figure(page, "Reward").get_by_role("button", name="Held-out (greedy)")).to_be_visible()


def test_without_held_out_rows_the_training_reward_is_compared(page: Page, deployment: Deployment) -> None:
    job = deployment.job("guarded")
    job["eval"] = {"baseline": None, "best": None, "last": None}
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{job['id']}")
    rewards = [reward for _, reward in measured(deployment, "guarded", "reward")]
    first, last = sum(rewards[:5]) / 5, sum(rewards[-5:]) / 5
    expect(cell(page, "Training reward")).to_contain_text(f"{first:.3f}{last:.3f}")


def test_a_job_that_ended_before_its_start_by_the_clock_took_no_time(
    page: Page, deployment: Deployment
) -> None:
    job = deployment.job("first")
    job["finished_at"] = job["started_at"] - 3600
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.goto(f"/#/jobs/{job['id']}")
    expect(cell(page, "Duration").get_by_role("definition").first).to_have_text("0 s")


def test_a_tab_is_an_address_and_does_not_reload_the_page(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "first")
    drawn(page, "Reward")
    page.evaluate("document.querySelector('h1').dataset.kept = 'yes'")
    tabs = page.get_by_role("navigation", name="Pages of this job")
    tabs.get_by_role("link", name="Configuration").press("Enter")
    expect(page.get_by_role("heading", name="Hyperparameters")).to_be_visible()
    assert page.url.endswith(f"#/jobs/{deployment.jobs['first']}/configuration")
    expect(tabs.get_by_role("link", name="Configuration")).to_have_attribute("aria-current", "page")
    expect(tabs.get_by_role("link", name="Configuration")).to_be_focused()
    page.go_back()
    expect(figure(page, "Entropy")).to_be_visible()
    assert page.evaluate("document.querySelector('h1').dataset.kept") == "yes"
    page.goto(f"/#/jobs/{deployment.jobs['first']}/history")
    page.reload()
    expect(page.get_by_role("heading", name="History")).to_be_in_viewport()


def test_a_supervised_job_has_no_tab_for_rollouts(page: Page, deployment: Deployment) -> None:
    tabs = page.get_by_role("navigation", name="Pages of this job").get_by_role("link")
    open_job(page, deployment, "supervised")
    expect(tabs).to_have_text(["Metrics", "Checkpoints", "Configuration", "Logs", "System", "History"])
    open_job(page, deployment, "first")
    expect(tabs.nth(1)).to_have_text("Rollouts")


def test_a_link_to_a_tab_further_down_the_page_shows_it(page: Page, deployment: Deployment) -> None:
    job = deployment.job("first")
    job["eval"]["verdict"] |= {"difference": -0.2, "low": -0.3, "high": -0.1}
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    open_job(page, deployment, "first")
    drawn(page, "Reward")
    page.locator(".next").get_by_role("link", name="Checkpoints").click()
    expect(page.get_by_role("heading", name="Checkpoints")).to_be_in_viewport()


def test_an_unknown_tab_shows_an_error(page: Page, deployment: Deployment) -> None:
    page.goto(f"/#/jobs/{deployment.jobs['first']}/nothing")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()


def test_the_model_s_origin_is_a_chain_of_links(page: Page, deployment: Deployment) -> None:
    parent, child = deployment.job("supervised"), deployment.job("faster")
    child["model"] = parent["fine_tuned_model"]
    page.route(f"**{JOBS}/{child['id']}", lambda route: route.fulfill(json=child))
    page.goto(f"/#/jobs/{child['id']}")
    chain = page.locator(".lineage")
    expect(chain.get_by_role("link", name="warm-up")).to_have_attribute("href", f"#/jobs/{parent['id']}")
    expect(chain).to_have_text("tinywarm-up")


def test_a_supervised_job_has_a_loss_and_no_empty_charts(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "supervised", "checkpoints")
    assert points(drawn(page, "Loss")["Loss"]) == measured(deployment, "supervised", "loss")
    newest = deployment.get(f"{JOBS}/{deployment.jobs['supervised']}/checkpoints")["data"][0]
    listed = page.get_by_role("region", name="Checkpoints, newest first")
    expect(listed.get_by_role("columnheader", name="Training loss")).to_be_visible()
    expect(listed.locator("tbody td").first).to_have_text(f"{newest['metrics']['loss']:.3f}")
    page.get_by_role("link", name="Metrics", exact=True).click()
    drawn(page, "Gradient norm")
    titles = page.locator("figcaption > span:first-child").all_inner_texts()
    assert titles == ["Loss", "Gradient norm"]


def test_the_configuration_is_the_jobs(page: Page, deployment: Deployment) -> None:
    job = open_job(page, deployment, "faster", "configuration")
    given = job["method"]["reinforcement"]["hyperparameters"]
    settings = page.get_by_role("region", name="Hyperparameters")
    expect(settings).to_be_visible()
    terms = settings.locator("dt").all_inner_texts()
    shown = dict(zip(terms, settings.locator("dd").all_inner_texts(), strict=True))
    assert float(shown["Learning rate"]) == given["learning_rate"] == 4e-5
    panel = page.get_by_role("region", name="Job")
    filename = deployment.get(f"/v1/files/{job['training_file']}")["filename"]
    expect(panel.get_by_role("link", name=filename).first).to_have_attribute("title", job["training_file"])
    expect(panel.locator("dd").get_by_text("8", exact=True)).to_be_visible()  # the seed


def test_the_history_is_newest_first_with_steps_on_request(page: Page, deployment: Deployment) -> None:
    job = open_job(page, deployment, "first", "history")
    reported = deployment.get(f"{JOBS}/{job['id']}/events", limit=50)["data"]
    messages = page.locator(".events .text")
    expect(messages.first).to_have_text(reported[0]["message"])
    assert messages.count() == len([event for event in reported if event["type"] == "message"])
    page.get_by_label("Show every step").check()
    expect(messages).to_have_count(len(reported))


def test_a_running_job_grows_without_a_reload(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "running")
    before = drawn(page, "Entropy")["Entropy"]["x"][-1]
    plot = figure(page, "Entropy").locator(".plot").element_handle()
    page.wait_for_function("([plot, before]) => plot.data[0].x.at(-1) > before", arg=[plot, before])
    reported = dict(measured(deployment, "running", "entropy"))
    shown = points(drawn(page, "Entropy")["Entropy"])
    assert dict(shown) == {step: reported[step] for step, _ in shown}


def test_a_waiting_job_has_a_place_and_no_curves_yet(
    page: Page, deployment: Deployment, accessible: Callable[[Page], None]
) -> None:
    job = open_job(page, deployment, "queued")
    expect(page.get_by_text(job["queue"]["reason"])).to_be_visible()
    expect(page.get_by_role("heading", name="No metrics yet")).to_be_visible()
    with page.expect_response("**/metrics?*") as asked_again:
        pass
    assert asked_again.value.ok
    accessible(page)


def test_a_job_is_cancelled_only_after_confirmation(
    page: Page, deployment: Deployment, accessible: Callable[[Page], None]
) -> None:
    job_id = deployment.create(upload(deployment.client))
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("button", name="Cancel job").click()
    accessible(page)
    page.get_by_role("dialog").get_by_role("button", name="Keep running").click()
    assert deployment.get(f"{JOBS}/{job_id}")["status"] == "queued"
    page.get_by_role("button", name="Cancel job").click()
    page.get_by_role("dialog").get_by_role("button", name="Cancel job").click()
    expect(page.locator("main .badge")).to_have_text("cancelled")
    expect(page.get_by_role("button", name="Cancel job")).to_have_count(0)
    assert deployment.get(f"{JOBS}/{job_id}")["status"] == "cancelled"


def test_a_job_is_paused_and_resumed(page: Page, deployment: Deployment) -> None:
    job_id = deployment.create(upload(deployment.client))
    page.goto(f"/#/jobs/{job_id}")
    page.get_by_role("button", name="Pause", exact=True).click()
    page.get_by_role("dialog").get_by_role("button", name="Pause job").click()
    expect(page.locator("main .badge")).to_have_text("paused")
    page.get_by_role("button", name="Resume").click()
    expect(page.locator("main .badge")).to_have_text("queued")
    deployment.client.post(f"{JOBS}/{job_id}/cancel")


def test_a_missing_job_shows_an_error(
    page: Page, expected_errors: list[str], accessible: Callable[[Page], None]
) -> None:
    expected_errors.append("404")
    page.goto("/#/jobs/ftjob-gone")
    expect(page.get_by_role("heading", name="Not found")).to_be_visible()
    accessible(page)


def test_a_long_model_name_is_broken_on_a_phone(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("404")  # the job of that model
    job = {**deployment.job("faster"), "model": f"ft:tiny:default:{'x' * 60}:gone"}
    page.route(f"**{JOBS}/{job['id']}", lambda route: route.fulfill(json=job))
    page.set_viewport_size(PHONE)
    page.goto(f"/#/jobs/{job['id']}")
    expect(page.locator(".lineage")).to_have_text("x" * 60)
    assert page.evaluate(TOO_WIDE) <= 0


def test_the_verdict_precedes_the_numbers_on_a_phone(page: Page, deployment: Deployment) -> None:
    page.set_viewport_size(PHONE)
    open_job(page, deployment, "first")
    drawn(page, "Reward")
    # both at once, because an element that was just replaced has no place
    tops = page.evaluate("['.next', '.strip'].map((part) => document.querySelector(part).offsetTop)")
    assert tops == sorted(tops)


def test_the_jobs_page_looks_right(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    for name, last in {"faster": "Time by phase", "failed": "Time by phase", "supervised": "Loss"}.items():
        open_job(page, deployment, name)
        drawn(page, last)
        shots(page, f"job-{name}")


@pytest.mark.parametrize(
    ("tab", "title"),
    [("checkpoints", "Use the result"), ("configuration", "Hyperparameters"), ("history", "History")],
)
def test_a_tab_looks_right(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None], tab: str, title: str
) -> None:
    open_job(page, deployment, "faster", tab)
    expect(page.get_by_role("heading", name=title)).to_be_visible()
    drawn(page, "Reward")
    shots(page, f"job-{tab}")


def test_a_history_that_cannot_be_read_is_not_loading(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("500")
    page.route("**/events?*", lambda route: route.fulfill(status=500, json={"error": {"message": "broken"}}))
    page.goto(f"/#/jobs/{deployment.jobs['first']}/history")
    expect(page.get_by_role("alert")).to_contain_text("broken")
    expect(page.get_by_text("Loading events")).to_have_count(0)
    expect(page.get_by_role("button", name="Load older events")).to_be_hidden()
    page.unroute_all()
    page.get_by_role("button", name="Try again").click()
    expect(page.locator(".events li").first).to_be_visible()
