// Tenants and API keys of the deployment, for an admin key: create, rotate and revoke keys.

import { styled } from "../../address.js";
import { get, paged, post, remove } from "../../api.js";
import { commands } from "../../copying.js";
import { addRows, ago, announce, button, bytes, confirmed, el, failed, field, heading, loading, moment, moreButton, number, optionsOf, section, table } from "../../dom.js";
import { now } from "../../http.js";

const KEYS = "/v1/keys";
const PAGE = 50;
const DAY_SECONDS = 24 * 3600;
const EXPIRY = [["", "Never"], [7, "7 days"], [30, "30 days"], [90, "90 days"], [365, "1 year"]];
const SCOPES = [["read,write", "Read and write"], ["read", "Read only"]];
const HINT = "Tenants cannot see each other's data. A new name is a new tenant. Limits are the deployment's settings.";

export async function show(root, params, signal) {
  const page = new KeysPage(signal);
  root.append(heading("Keys", { below: el("p", { class: "hint" }, HINT) }),
    page.form(), section("Tenants", page.tenants), section("API keys", page.problem, page.keys, page.more));
  await styled("keys");
  await page.load();
}

class KeysPage {
  constructor(signal) {
    this.signal = signal;
    this.tenants = el("div");
    this.keys = el("div");
    this.problem = el("div");
    this.made = el("div");
    this.names = el("datalist", { id: "key-tenants" });
    this.more = moreButton("More keys", () => this.grow(), { hidden: true });
  }

  async load() {
    if (!this.keys.hasChildNodes()) loading(this.keys, "Loading keys");
    const pages = paged(KEYS, { limit: PAGE }, { signal: this.signal });
    try {
      const [tenants, keys] = await Promise.all([get("/v1/tenants", { signal: this.signal }), pages.next()]);
      this.names.replaceChildren(...tenants.data.map((one) => el("option", { value: one.id })));
      this.showTenants(tenants);
      const listed = table("Keys of all tenants", ["Key", "Tenant", "Name", "Scopes", "Created", "Last used", "State", "Actions"], keys.map((one) => this.row(one)), "cards");
      this.keys.replaceChildren(listed);
      this.pages = pages;
      this.more.hidden = !pages.hasMore;
    } catch (error) {
      if (!this.signal.aborted) failed(this.keys, error, () => this.load());
    }
  }

  async grow() {
    let rows = [];
    try {
      rows = (await this.pages.next()).map((one) => this.row(one));
      addRows(this.keys, rows);
    } catch (error) {
      if (!this.signal.aborted) failed(this.problem, error);
    }
    this.more.hidden = !this.pages.hasMore;
    return rows[0]?.firstChild;
  }

  showTenants({ data }) {
    this.tenants.replaceChildren(table("Use of tenants", ["Tenant", "Keys", "Unfinished jobs", "Stored"], data.map(tenantRow), "cards"));
  }

  row(one) {
    const isUsable = !one.revoked_at && !(one.expires_at && one.expires_at <= now());
    const name = one.name || one.id;
    const row = el("tr", {},
      el("th", { scope: "row", tabindex: -1 }, el("code", {}, one.id)), el("td", {}, one.tenant), el("td", { class: "name" }, one.name || "–"),
      el("td", {}, one.scopes.join(", ") || "none"), el("td", {}, ago(one.created_at)),
      el("td", {}, ago(one.last_used_at)), el("td", {}, stateOf(one)),
      el("td", {}, el("div", { class: "actions" },
        isUsable && !one.scopes.includes("admin") && button("Rotate", () => this.rotate(one), { kind: "small", "aria-label": `Rotate ${name}` }),
        isUsable && button("Revoke", () => this.revoke(one, row), { kind: "small danger", "aria-label": `Revoke ${name}` }))));
    return row;
  }

  async rotate(one) {
    const detail = `A new key of ${one.tenant} gets the same name, scopes and expiry. ${one.id} works for 24 more hours; revoke it earlier if it leaked.`;
    if (!(await confirmed(`Rotate ${one.name || one.id}?`, { detail, yes: "Rotate", no: "Keep", kind: "primary" }))) return;
    this.problem.replaceChildren();
    try {
      this.reveal(await post(`${KEYS}/${one.id}/rotate`, {}, { signal: this.signal }), "Key rotated");
      this.made.scrollIntoView({ block: "center" });
      this.made.querySelector("button").focus({ preventScroll: true });
      await this.load();
    } catch (error) {
      if (!this.signal.aborted) failed(this.problem, error);
    }
  }

  reveal(made, news) {
    this.made.replaceChildren(commands(`Key of ${made.tenant}`, made.key), el("p", { class: "hint" }, "Copy it now: it is not shown again."));
    announce(news);
  }

  async revoke(one, row) {
    const detail = `Requests with the key ${one.id} of ${one.tenant} are refused from then on. This cannot be undone.`;
    if (!(await confirmed(`Revoke ${one.name || one.id}?`, { detail, yes: "Revoke", no: "Keep" }))) return;
    this.problem.replaceChildren();
    try {
      const revoked = this.row(await remove(`${KEYS}/${one.id}`, { signal: this.signal }));
      announce("Key revoked");
      addRows(this.keys, [revoked]);
      row.replaceWith(revoked); // only this row, so that the others and the focus keep their places
      revoked.firstChild.focus();
      this.showTenants(await get("/v1/tenants", { signal: this.signal }));
    } catch (error) {
      if (!this.signal.aborted) failed(this.problem, error);
    }
  }

  form() {
    const tenant = el("input", { id: "key-tenant", list: "key-tenants", required: true, maxlength: 64, autocomplete: "off" });
    const name = el("input", { id: "key-name", maxlength: 128, autocomplete: "off" });
    const scopes = el("select", { id: "key-scopes" }, optionsOf(SCOPES));
    const days = el("select", { id: "key-days" }, optionsOf(EXPIRY));
    const refusal = el("p", { class: "problem", role: "alert" });
    const create = async (event) => {
      event.preventDefault();
      refusal.textContent = "";
      const body = { tenant: tenant.value.trim(), name: name.value.trim(), scopes: scopes.value.split(",") };
      if (days.value) body.expires_in_seconds = days.value * DAY_SECONDS;
      try {
        this.reveal(await post(KEYS, body, { signal: this.signal }), "Key created");
        await this.load();
      } catch (error) {
        if (!this.signal.aborted) refusal.textContent = error.message;
      }
    };
    return section("New key", el("form", { class: "panel", onsubmit: create },
      el("div", { class: "fields" }, field("Tenant", tenant), field("Name", name), field("Scopes", scopes), field("Expires after", days)),
      this.names, refusal, button("Create key", null, { kind: "primary", type: "submit" }), this.made));
  }
}
const limited = (used, limit, show) => (limit === null ? show(used) : `${show(used)} of ${show(limit)}`);

function tenantRow(one) {
  return el("tr", {}, el("th", { scope: "row" }, one.id), el("td", {}, number(one.num_keys)),
    el("td", {}, limited(one.unfinished_jobs, one.limits.unfinished_jobs, number)),
    el("td", {}, limited(one.stored_bytes, one.limits.stored_bytes, bytes)));
}

function stateOf(one) {
  if (one.revoked_at) return ["revoked ", ago(one.revoked_at)];
  if (!one.expires_at) return "active";
  return one.expires_at <= now() ? ["expired ", ago(one.expires_at)] : `until ${moment(one.expires_at)}`;
}
