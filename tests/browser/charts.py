"""Reads a chart on the page: plotly's data and the table next to it."""

from typing import Any

from playwright.sync_api import Locator, Page

DRAWN = "plot => Boolean(plot.data && plot.querySelector('.main-svg'))"
DATA = "plot => plot.data.map(({name, x, y, type}) => ({name, x: [...x], y: [...y], type}))"


def figure(page: Page, title: str) -> Locator:
    """The chart with this title."""
    caption = page.locator("figcaption > span:first-child").get_by_text(title, exact=True)
    return page.locator("figure.chart", has=caption)


def drawn(page: Page, title: str) -> dict[str, dict[str, Any]]:
    """Name of a trace → its {x, y, type}, once it is drawn; the edges of a band have none or end with ±."""
    plot = figure(page, title).locator(".plot").element_handle()
    page.wait_for_function(DRAWN, arg=plot)
    traces = page.evaluate(DATA, plot)
    return {trace["name"]: trace for trace in traces if trace.get("name")}


def points(trace: dict[str, Any]) -> list[tuple[int, float]]:
    return list(zip(trace["x"], trace["y"], strict=True))


def table(page: Page, title: str) -> list[list[str]]:
    """The text of the rows of the chart's table."""
    shown = figure(page, title)
    shown.get_by_text("Show as table").click()
    rows = shown.locator("tbody tr")
    rows.first.wait_for()  # they are rendered after the click
    return [row.locator("th, td").all_inner_texts() for row in rows.all()]
