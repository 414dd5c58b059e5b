"""The frame: the key form, navigation, themes, and what the static files are served with."""

from __future__ import annotations

import httpx
from playwright.sync_api import Page, expect

from tests.browser.deployment import Deployment


def test_a_visitor_without_a_key_is_asked_for_it_and_then_sees_the_jobs(
    blank: Page, deployment: Deployment
) -> None:
    blank.goto("/")
    expect(blank.get_by_role("heading", name="Your key")).to_be_visible()
    blank.get_by_label("API key").fill(deployment.key)
    blank.get_by_role("button", name="Continue").click()
    expect(blank.get_by_role("heading", name="Jobs")).to_be_visible()
    blank.reload()
    expect(blank.get_by_role("heading", name="Jobs")).to_be_visible()


def test_the_page_is_served_without_a_key_under_a_strict_policy(deployment: Deployment) -> None:
    answer = httpx.get(f"{deployment.url}/")
    assert answer.status_code == 200
    assert "script-src 'self';" in answer.headers["content-security-policy"]
    assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
    assert answer.headers["referrer-policy"] == "no-referrer"
    assert answer.headers["x-content-type-options"] == "nosniff"
