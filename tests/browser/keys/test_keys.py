"""Tenants and keys for an admin key."""

from collections.abc import Callable

import httpx
from playwright.sync_api import Page, expect

from tests.browser.conftest import log_in
from tests.browser.deployment import Deployment


def test_an_admin_key_creates_and_revokes_a_key(
    blank: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    log_in(blank, deployment.new_key("operators", "read", "write", "admin"))
    blank.goto("/#/jobs")
    blank.get_by_role("navigation", name="Pages", exact=True).get_by_role("link", name="Keys").click()
    expect(
        blank.get_by_role("table", name="Use of tenants").get_by_role("row").filter(has_text="acme")
    ).to_be_visible()
    blank.get_by_label("Tenant", exact=True).fill("maths")
    blank.get_by_label("Name", exact=True).fill("Anna")
    blank.get_by_label("Scopes").select_option("Read only")
    blank.get_by_label("Expires after").select_option("30 days")
    blank.get_by_role("button", name="Create key").click()
    key = blank.get_by_label("Key of maths", exact=True)
    expect(key).to_contain_text("grpo_")
    headers = {"authorization": f"Bearer {key.inner_text()}"}
    about = httpx.get(f"{deployment.url}/v1/keys/current", headers=headers, timeout=60).json()
    assert (about["tenant"], about["name"], about["scopes"]) == ("maths", "Anna", ["read"])
    row = (
        blank.get_by_role("table", name="Keys of all tenants").get_by_role("row").filter(has_text=about["id"])
    )
    expect(row).to_contain_text("until")
    shots(blank, "keys")
    row.get_by_role("button", name="Rotate Anna").click()
    blank.get_by_role("dialog").get_by_role("button", name="Rotate").click()
    expect(key).not_to_have_text(headers["authorization"].removeprefix("Bearer "))
    new = {"authorization": f"Bearer {key.inner_text()}"}
    after = httpx.get(f"{deployment.url}/v1/keys/current", headers=new, timeout=60).json()
    assert (after["tenant"], after["name"], after["scopes"]) == ("maths", "Anna", ["read"])
    assert httpx.get(f"{deployment.url}/v1/keys/current", headers=headers, timeout=60).status_code == 200
    expect(row.get_by_role("cell").nth(4)).not_to_have_text("–")
    row.get_by_role("button", name="Revoke Anna").click()
    blank.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row).to_contain_text("revoked")
    expect(row.get_by_role("button")).to_have_count(0)
    assert httpx.get(f"{deployment.url}/v1/keys/current", headers=headers, timeout=60).status_code == 401


def test_the_keyboard_keeps_its_place_in_a_long_list_of_keys(blank: Page, deployment: Deployment) -> None:
    for _ in range(52):
        deployment.new_key("many", "read")
    log_in(blank, deployment.new_key("operators", "read", "write", "admin"))
    blank.goto("/#/keys")
    blank.get_by_role("button", name="More keys").press("Enter")
    rows = blank.get_by_role("table", name="Keys of all tenants").locator("tbody tr")
    rotated, revoked = rows.nth(50), rows.nth(51)
    expect(rotated.get_by_role("rowheader")).to_be_focused()
    number = rows.count()
    revoked.get_by_role("button", name="Revoke").press("Enter")
    expect(blank.get_by_role("dialog")).to_be_visible()
    blank.keyboard.press("Tab")
    blank.keyboard.press("Enter")
    expect(revoked).to_contain_text("revoked")
    expect(revoked.get_by_role("rowheader")).to_be_focused()
    expect(rows).to_have_count(number)
    rotated.get_by_role("button", name="Rotate").press("Enter")
    expect(blank.get_by_role("dialog")).to_be_visible()
    blank.keyboard.press("Tab")
    blank.keyboard.press("Enter")
    expect(blank.get_by_role("button", name="Copy: Key of many")).to_be_focused()


def test_a_refused_key_is_reported_at_the_form(
    blank: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("400")
    log_in(blank, deployment.new_key("operators", "read", "admin"))
    blank.goto("/#/keys")
    blank.get_by_label("Tenant", exact=True).fill("no tenant")
    blank.get_by_role("button", name="Create key").click()
    expect(blank.get_by_role("alert")).to_contain_text("tenant")


def test_other_keys_are_not_led_to_the_page_of_keys(page: Page) -> None:
    page.goto("/#/keys")
    expect(page.get_by_role("heading", name="Not allowed with this key", level=1)).to_be_visible()
    expect(page.get_by_role("alert")).to_contain_text("grpo keys create --tenant NAME --admin")
    pages = page.get_by_role("navigation", name="Pages", exact=True)
    expect(pages.get_by_role("link", name="Jobs")).to_be_visible()
    expect(pages.get_by_role("link", name="Keys")).to_have_count(0)
