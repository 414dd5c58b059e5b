"""Several jobs on one chart: the API's values, any metric, and where the jobs differ."""

from collections.abc import Callable

from playwright.sync_api import Page, expect

from tests.browser.charts import drawn, figure, points
from tests.browser.deployment import JOBS, Deployment, questions, reinforcement
from tests.browser.job.opened import measured
from tests.service.job_samples import upload as upload_file

REDRAWN_AFTER_A_FAILURE = """async () => {
  const { ChartGroup } = await import("/dashboard/chart_group.js");
  const group = new ChartGroup();
  const outcomes = [() => { throw new Error("the library is not loaded"); }, () => "drawn"];
  const results = [];
  group.add({ draw: async () => results.push(outcomes.shift()()), showAt: () => {} });
  await group.redraw().catch(() => {});
  await group.redraw();
  return results;
}"""


def open_comparison(page: Page, deployment: Deployment, *names: str, more: str = "") -> None:
    page.goto(f"/#/compare?jobs={','.join(deployment.jobs[name] for name in names)}{more}")


def test_each_job_is_a_line_with_the_apis_values(page: Page, deployment: Deployment) -> None:
    open_comparison(page, deployment, "first", "faster")
    lines = drawn(page, "Reward")
    assert list(lines) == ["first-try", "higher-rate"]
    assert points(lines["first-try"]) == measured(deployment, "first", "reward")
    assert points(lines["higher-rate"]) == measured(deployment, "faster", "reward")


def test_several_metrics_are_drawn_and_kept_in_the_address(page: Page, deployment: Deployment) -> None:
    open_comparison(page, deployment, "first", "faster")
    page.get_by_text("of at most 6").click()
    page.get_by_label("Entropy", exact=True).check()
    for title, metric in (("Entropy", "entropy"), ("KL divergence to the reference", "kl")):
        assert points(drawn(page, title)["higher-rate"]) == measured(deployment, "faster", metric)
    page.get_by_label("KL divergence to the reference", exact=True).uncheck()
    expect(figure(page, "KL divergence to the reference")).to_have_count(0)
    page.reload()
    assert points(drawn(page, "Entropy")["first-try"]) == measured(deployment, "first", "entropy")
    expect(figure(page, "KL divergence to the reference")).to_have_count(0)


def test_a_held_out_curve_begins_before_training(page: Page, deployment: Deployment) -> None:
    open_comparison(page, deployment, "first", "faster", more="&metrics=eval/reward")
    lines = drawn(page, "Held-out reward")
    for name, title in (("first", "first-try"), ("faster", "higher-rate")):
        before = (0, deployment.job(name)["eval"]["baseline"]["reward"])
        assert points(lines[title]) == [before, *measured(deployment, name, "eval/reward")]


def test_at_most_six_metrics_are_drawn(page: Page, deployment: Deployment) -> None:
    open_comparison(page, deployment, "first", "faster", more="&metrics=reward,kl,loss,learning_rate,entropy")
    drawn(page, "Reward")
    page.get_by_text("5 of at most 6").click()
    page.get_by_label("Seconds per step", exact=True).check()
    expect(page.get_by_label("Reward standard deviation", exact=True)).to_be_disabled()
    expect(page.get_by_label("Reward", exact=True)).to_be_enabled()


def test_the_held_out_column_has_the_change_with_its_interval(page: Page, deployment: Deployment) -> None:
    open_comparison(page, deployment, "first", "faster")
    verdict = deployment.job("first")["eval"]["verdict"]
    shown = page.get_by_role("region", name="Results").get_by_role("row").filter(has_text="first-try")
    change, low, high = (f"{verdict[name]:.3f}".replace("-", "−") for name in ("difference", "low", "high"))
    expect(shown).to_contain_text(change)
    expect(shown).to_contain_text(f"({low} to {high})")


def test_only_the_settings_that_differ_are_listed(page: Page, deployment: Deployment) -> None:
    open_comparison(page, deployment, "first", "faster")
    rows = page.get_by_role("region", name="Differences").last.locator("tbody tr")
    expect(rows).not_to_have_count(0)
    shown = {cells[0]: cells[1:] for row in rows.all() if (cells := row.locator("th, td").all_inner_texts())}
    assert shown == {
        "Completions per prompt": ["8", "4"],
        "Learning rate": ["0.00001", "0.00004"],
        "Seed": ["7", "8"],
    }


def test_an_outage_of_the_service_does_not_end_the_refreshes(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("ERR_CONNECTION_REFUSED")
    open_comparison(page, deployment, "first", "running")
    drawn(page, "Reward")
    page.route("**/v1/**", lambda route: route.abort("connectionrefused"))
    expect(page.locator("#banner")).to_contain_text("No connection to the service.")
    expect(page.get_by_role("region", name="Results").get_by_role("row")).to_have_count(3)
    page.unroute("**/v1/**")
    with page.expect_response(f"**{JOBS}/{deployment.jobs['running']}", timeout=60_000):
        expect(page.locator("#banner")).to_be_hidden()


def test_charts_are_drawn_again_after_a_failure(page: Page) -> None:
    page.goto("/")
    assert page.evaluate(REDRAWN_AFTER_A_FAILURE) == ["drawn"]


def test_a_rule_that_openai_lacks_has_its_own_name(page: Page, deployment: Deployment) -> None:
    """The API returns it as `python` with a `source` and a `rule`."""
    method = reinforcement()
    method["reinforcement"]["grader"] = {"type": "numeric", "reference": "{{item.answer}}"}
    job_id = deployment.create(upload_file(deployment.client, questions()), method=method)
    deployment.client.post(f"{JOBS}/{job_id}/cancel")
    open_comparison(page, deployment, "first", more=f",{job_id}")
    rows = page.get_by_role("region", name="Differences").locator("tbody tr")
    expect(rows.filter(has_text="Grader › type")).to_have_text("Grader › typemultinumeric")
    expect(rows.filter(has_text="Grader › rule")).to_have_count(0)
    expect(rows.filter(has_text="Grader › source")).to_have_count(0)


def test_the_code_of_a_grader_keeps_its_lines(page: Page, deployment: Deployment) -> None:
    method = reinforcement()
    source = "def grade(sample, item) -> float:\n    return 1.0 if item else 0.0\n"
    method["reinforcement"]["grader"] = {"type": "python", "name": "own", "source": source}
    job_id = deployment.create(upload_file(deployment.client, questions()), method=method)
    deployment.client.post(f"{JOBS}/{job_id}/cancel")
    open_comparison(page, deployment, "first", more=f",{job_id}")
    code = page.get_by_role("row").filter(has_text="Grader › source").locator("pre")
    expect(code).to_have_text(source, use_inner_text=True)


def test_a_missing_job_is_reported_and_the_others_are_drawn(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("404")
    open_comparison(page, deployment, "first", more=",ftjob-gone")
    expect(page.get_by_role("alert")).to_contain_text("ftjob-gone")
    assert points(drawn(page, "Reward")["first-try"]) == measured(deployment, "first", "reward")


def test_without_jobs_it_explains_how_to_choose_some(page: Page) -> None:
    page.goto("/#/compare")
    expect(page.get_by_role("heading", name="No jobs chosen")).to_be_visible()


def test_a_long_name_leaves_room_for_the_other_jobs(page: Page, deployment: Deployment) -> None:
    open_comparison(page, deployment, "first", "faster")
    drawn(page, "Reward")
    table = page.get_by_role("region", name="Differences")
    head = table.get_by_role("columnheader", name="first-try")
    head.evaluate("cell => { cell.textContent = 'sums of two numbers, '.repeat(20) }")
    assert table.evaluate("region => region.scrollWidth <= region.clientWidth")


def test_a_job_can_be_removed(page: Page, deployment: Deployment) -> None:
    open_comparison(page, deployment, "first", "faster")
    page.get_by_role("button", name="Remove first-try").click()
    expect(page.get_by_role("button", name="Remove first-try")).to_have_count(0)
    assert list(drawn(page, "Reward")) == ["higher-rate"]


def test_the_comparison_looks_right(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    open_comparison(page, deployment, "first", "faster", "guarded")
    drawn(page, "Reward")
    shots(page, "compare")
