"""The curves of a job's page: the API's numbers, smoothing, scale, and what the charts share."""

import json
import math
from collections.abc import Iterator

import pytest
from playwright.sync_api import BrowserContext, Page, Route, expect

from tests.browser.charts import drawn, figure, points, table
from tests.browser.conftest import log_in, watched
from tests.browser.deployment import JOBS, Deployment
from tests.browser.job.opened import measured, open_job


@pytest.fixture(scope="module")
def finished(context: BrowserContext, deployment: Deployment) -> Iterator[Page]:
    """The page of the job `first`, opened once for all tests that only read it."""
    with watched(context, []) as page:
        open_job(page, deployment, "first")
        drawn(page, "Time by phase")
        yield page


def test_the_reward_curve_is_the_apis_with_its_spread_and_the_held_out_rewards(
    finished: Page, deployment: Deployment
) -> None:
    job = deployment.job("first")
    traces = drawn(finished, "Reward")
    rewards = measured(deployment, "first", "reward")
    spread = dict(measured(deployment, "first", "reward_std"))
    assert points(traces["Training"]) == rewards
    edges = points(traces["Training ±"])
    num_completions = 4 * 8
    for (step, edge), (_, reward) in zip(edges, rewards, strict=True):
        error = spread[step] / math.sqrt(num_completions)
        assert edge == pytest.approx(min(1, reward + error))  # clipped to the rewards' range
    before = [(0, job["eval"]["baseline"]["reward"])]
    assert points(traces["Held-out (greedy)"]) == before + measured(deployment, "first", "eval/reward")


AXES = "plot => [plot._fullLayout.xaxis.range, plot._fullLayout.yaxis.range]"


def test_a_single_point_has_axes_around_it(page: Page, deployment: Deployment) -> None:
    path = f"{JOBS}/{deployment.jobs['first']}/metrics"
    row = {"object": "row", "step": 1, "reward": 0.4, "kl": 2e-6}
    page.route(f"**{path}?*", lambda route: route.fulfill(json={"data": [row], "has_more": False}))
    open_job(page, deployment, "first")
    drawn(page, "KL divergence to the reference")
    steps, values = figure(page, "KL divergence to the reference").locator(".plot").evaluate(AXES)
    assert steps == [0.5, 1.5]
    assert values == [0, pytest.approx(2.5e-6)]


def test_each_graders_part_is_a_line(finished: Page, deployment: Deployment) -> None:
    traces = drawn(finished, "Reward by grader")
    for part in ("correct", "format"):
        assert points(traces[part]) == measured(deployment, "first", f"rewards/{part}/mean")
        held_out = measured(deployment, "first", f"eval/rewards/{part}/mean")
        assert held_out
        assert points(traces[f"{part}, held-out"]) == held_out


def test_the_time_by_phase_is_stacked_bars(finished: Page, deployment: Deployment) -> None:
    traces = drawn(finished, "Time by phase")
    assert {trace["type"] for trace in traces.values()} == {"bar"}
    for phase in ("sample", "score", "train"):
        assert points(traces[phase]) == measured(deployment, "first", f"timing/{phase}_seconds")


def test_single_metrics_have_the_apis_values(finished: Page, deployment: Deployment) -> None:
    charts = {
        "KL divergence to the reference": "kl",
        "Entropy": "entropy",
        "Truncated completions": "completions/clipped_ratio",
        "Groups without signal": "frac_reward_zero_std",
        "Completion length": "completions/mean_length",
    }
    for title, metric in charts.items():
        traces = drawn(finished, title)
        (line,) = (trace for name, trace in traces.items() if not name.endswith("±"))
        assert points(line) == measured(deployment, "first", metric), title


def test_a_chart_has_a_table_and_a_sentence(finished: Page, deployment: Deployment) -> None:
    drawn(finished, "Entropy")
    entropies = measured(deployment, "first", "entropy")
    rows = table(finished, "Entropy")
    assert [int(step) for step, _ in rows] == [step for step, _ in entropies]
    assert [text for _, text in rows] == [f"{value:.4g}" for _, value in entropies]
    sentence = figure(finished, "Entropy").locator(".plot").get_attribute("aria-label")
    assert sentence.startswith(f"Entropy. Entropy: {len(entropies)} values, first {entropies[0][1]:.4g}")


def test_the_lines_are_shown_before_the_library_of_charts_is_there(
    own_page: Page, deployment: Deployment
) -> None:
    held: list[Route] = []
    own_page.route("**/plotly.min.js", lambda route: held.append(route))
    with own_page.expect_request("**/plotly.min.js"):
        own_page.goto(f"/#/jobs/{deployment.jobs['first']}")
    lines = own_page.locator(".main-chart .preview polyline")
    expect(lines).to_have_count(2)
    held[0].continue_()
    drawn(own_page, "Reward")
    expect(lines).to_have_count(0)


def test_any_other_metric_can_be_drawn(finished: Page, deployment: Deployment) -> None:
    finished.get_by_label("Another metric").select_option("completions/max_length")
    line = drawn(finished, "Completions: max length")["Completions: max length"]
    assert points(line) == measured(deployment, "first", "completions/max_length")


CURSOR = ".cursor:visible"


def test_the_step_under_the_pointer_is_marked_in_every_chart_with_its_values(
    finished: Page, deployment: Deployment
) -> None:
    drawn(finished, "Entropy")
    figure(finished, "Entropy").locator(".plot").hover()
    marks = finished.locator(CURSOR)
    expect(marks).to_have_count(finished.locator("figure.chart").count())
    (said,) = set(marks.all_text_contents())
    step = int(said.removeprefix("step "))
    assert 1 < step < 40
    shown = figure(finished, "KL divergence to the reference").locator(".newest")
    value = dict(measured(deployment, "first", "kl"))[step]
    expect(shown).to_have_text(f"{value:.4g}")
    finished.mouse.move(5, 5)
    expect(finished.locator(CURSOR)).to_have_count(0)
    expect(shown).to_have_text(f"{measured(deployment, 'first', 'kl')[-1][1]:.4g}")


RANGES = """() => [...document.querySelectorAll(".js-plotly-plot")]
    .map((plot) => plot._fullLayout.xaxis.range.map(Math.round).join())"""


def test_a_zoom_into_a_chart_of_many_steps_draws_all_of_its_steps(page: Page, deployment: Deployment) -> None:
    def every_fourth(route: Route) -> None:
        if "before_step" in route.request.url:
            return route.continue_()
        answer = route.fetch().json()
        return route.fulfill(json={**answer, "data": answer["data"][::4]})

    page.route(f"**{JOBS}/{deployment.jobs['first']}/metrics?*", every_fourth)
    open_job(page, deployment, "first")
    drawn(page, "Time by phase")
    zoom(page)
    steps = (
        "() => document.querySelector('.js-plotly-plot').data[0].x.filter((x) => x >= 12 && x <= 18).join()"
    )
    page.wait_for_function(f"() => ({steps})() === '12,13,14,15,16,17,18'")


def zoom(page: Page) -> None:
    """Zoom into about the steps 10 to 20 of 40."""
    box = figure(page, "Reward").locator(".nsewdrag").bounding_box()
    assert box
    page.mouse.move(box["x"] + box["width"] / 4, box["y"] + 50)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] / 2, box["y"] + 60, steps=5)
    page.mouse.up()


def test_a_zoom_into_one_chart_zooms_all_until_it_is_reset(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "first")
    drawn(page, "Time by phase")
    zoom(page)
    page.wait_for_function(f"() => new Set(({RANGES})()).size === 1")
    first, last = map(int, page.evaluate(RANGES)[0].split(","))
    assert (first, last) == (pytest.approx(10, abs=2), pytest.approx(20, abs=2))
    page.get_by_role("button", name="Reset zoom").click()
    page.wait_for_function(f"() => ({RANGES})()[0].startsWith('-') || ({RANGES})()[0].startsWith('0')")
    expect(page.get_by_role("button", name="Reset zoom")).to_be_hidden()


def test_smoothing_is_the_moving_average_beside_the_raw_line_and_is_kept(
    blank: Page, deployment: Deployment
) -> None:
    log_in(blank, deployment.key)
    open_job(blank, deployment, "first")
    drawn(blank, "Entropy")
    blank.get_by_label("Smoothing").fill("0.5")
    plot = figure(blank, "Entropy").locator(".plot").element_handle()
    blank.wait_for_function("(plot) => plot.data.length === 2", arg=plot)
    entropies = measured(deployment, "first", "entropy")
    traces = drawn(blank, "Entropy")
    assert points(traces["Entropy (raw)"]) == entropies
    total, average = 0.0, []
    for count, (_, value) in enumerate(entropies, start=1):
        total = 0.5 * total + 0.5 * value
        average.append(total / (1 - 0.5**count))
    assert traces["Entropy"]["y"] == pytest.approx(average)
    blank.reload()
    drawn(blank, "Entropy")
    expect(blank.get_by_label("Smoothing")).to_have_value("0.5")
    assert drawn(blank, "Entropy")["Entropy"]["y"] == pytest.approx(average)


SCALE = "(plot) => plot._fullLayout.yaxis.type"


def test_the_log_scale_applies_to_charts_with_positive_values_only(
    blank: Page, deployment: Deployment
) -> None:
    log_in(blank, deployment.key)
    open_job(blank, deployment, "first")
    drawn(blank, "Time by phase")
    blank.get_by_label("Log scale").check()
    entropy, loss = (figure(blank, title).locator(".plot").element_handle() for title in ("Entropy", "Loss"))
    blank.wait_for_function(f"(plot) => ({SCALE})(plot) === 'log'", arg=entropy)
    assert min(value for _, value in measured(deployment, "first", "loss")) < 0
    assert blank.evaluate(SCALE, loss) == "linear"


def test_a_series_is_hidden_by_its_name_in_the_legend(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "first")
    drawn(page, "Reward")
    page.get_by_role("button", name="Held-out (greedy)").click()
    plot = figure(page, "Reward").locator(".plot").element_handle()
    page.wait_for_function("(plot) => !plot.data.some(({ name }) => name === 'Held-out (greedy)')", arg=plot)
    assert points(drawn(page, "Reward")["Training"]) == measured(deployment, "first", "reward")


def test_a_single_grader_has_no_chart_beside_its_reward(page: Page, deployment: Deployment) -> None:
    job_id = deployment.jobs["first"]
    answer = deployment.get(f"{JOBS}/{job_id}/metrics")
    text = json.dumps(answer).replace("rewards/format/", "other/format/")
    page.route(f"**{JOBS}/{job_id}/metrics?*", lambda route: route.fulfill(body=text))
    page.goto(f"/#/jobs/{job_id}")
    drawn(page, "Time by phase")
    expect(page.locator("figcaption").get_by_text("Reward by grader")).to_have_count(0)


def test_a_chart_drawn_again_with_the_same_values_keeps_its_axis(page: Page, deployment: Deployment) -> None:
    open_job(page, deployment, "first")
    drawn(page, "Reward")
    first, second = page.evaluate(
        """async () => {
          const base = document.querySelector("script[type=module]").src;
          const { lineChart } = await import(new URL("charts.js", base));
          const chart = lineChart({ title: "Twice" });
          document.querySelector("main").append(chart.root);
          const ranges = [];
          for (let draw = 0; draw < 2; draw += 1) {
            await chart.update([{ name: "reward", x: [1, 2, 3], y: [0.01, 0.02, 0.03] }]);
            ranges.push([...chart.plot._fullLayout.yaxis.range]);
          }
          return ranges;
        }"""
    )
    assert first == second
    low, high = first
    assert 0 <= low < 0.01
    assert 0.03 < high < 0.04
