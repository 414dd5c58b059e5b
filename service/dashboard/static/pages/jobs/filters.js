// Filters and order of the list: controls, address and query are one state.

import { get } from "../../api.js";
import { button, el } from "../../dom.js";
import { modelName, namesIn } from "../../job_names.js";

const STATUSES = ["running", "queued", "paused", "succeeded", "failed", "cancelled"];
const NAMES = ["q", "status", "model", "tag", "archived", "sort"];
const TYPING_MS = 250;
export const NEWEST = "-created";

export class Filters {
  // `changed()` is called after each change.
  constructor(query, changed, signal) {
    this.values = Object.fromEntries(NAMES.map((name) => [name, query.get(name) ?? ""]));
    this.labels = query.getAll("metadata");
    this.changed = changed;
    this.names = new Map(); // job id → name
    this.seen = { model: new Set(), tag: new Set() };
    this.selects = { model: this.select("model", "Model"), tag: this.select("tag", "Tag") };
    this.chips = el("div", { class: "row chips" });
    this.root = this.draw();
    this.offer();
    this.catalogue(signal);
    signal.addEventListener("abort", () => clearTimeout(this.typing)); // the address is now another page's
  }

  get isNarrow() {
    return this.labels.length > 0 || ["q", "status", "model", "tag", "archived"].some((name) => this.values[name]);
  }

  get sort() {
    return this.values.sort || NEWEST;
  }

  // As parameters of `GET /v1/fine_tuning/jobs`; without archived jobs unless they are requested.
  query() {
    return { ...this.values, archived: this.values.archived || "false", ...Object.fromEntries(this.labels.map(asParameter)) };
  }

  set(changes) {
    Object.assign(this.values, changes);
    if (this.values.sort === NEWEST) this.values.sort = "";
    this.remember();
    this.changed();
  }

  narrow(labels) {
    this.labels = [...new Set(labels)];
    this.set({});
  }

  clear() {
    location.hash = location.hash === "#/jobs" ? "#/jobs?" : "#/jobs";
  }

  // Models and tags of the jobs that were loaded can be chosen.
  see(jobs) {
    const before = this.seen.model.size + this.seen.tag.size;
    for (const job of jobs) {
      this.seen.model.add(job.model);
      for (const [id, name] of namesIn([job])) this.names.set(id, name);
      for (const tag of job.tags) this.seen.tag.add(tag);
    }
    if (this.seen.model.size + this.seen.tag.size > before) this.offer();
  }

  // ---- inside

  async catalogue(signal) {
    const models = await get("/v1/models", { signal }).catch(() => ({ data: [] }));
    for (const model of models.data) if (model.owned_by === "catalogue") this.seen.model.add(model.id);
    this.offer();
  }

  draw() {
    const search = el("input", {
      id: "search", type: "search", placeholder: "Name, id or model", value: this.values.q, oninput: (event) => {
        clearTimeout(this.typing);
        this.typing = setTimeout(() => this.set({ q: event.target.value.trim() }), TYPING_MS);
      },
    });
    const status = this.select("status", "Status");
    fill(status.input, STATUSES, this.values.status);
    const archived = el("input", { id: "archived", type: "checkbox", checked: this.values.archived === "true",
      onchange: (event) => this.set({ archived: event.target.checked ? "true" : "" }) });
    return el("div", { class: "filters" },
      el("div", { class: "row" },
        el("div", { class: "search" }, el("label", { class: "unseen", for: "search" }, "Search"), search),
        status.root, this.selects.model.root, this.selects.tag.root,
        el("span", { class: "row check" }, archived, el("label", { for: "archived" }, "Archived")), this.metadata()),
      this.chips);
  }

  select(name, label) {
    const input = el("select", { id: name, onchange: (event) => this.set({ [name]: event.target.value }) });
    return { input, root: el("span", { class: "row" }, el("label", { for: name }, label), input) };
  }

  metadata() {
    const input = el("input", { id: "metadata", placeholder: "key=value", size: 14, pattern: ".+=.*", title: "key=value", required: true });
    const add = (event) => {
      event.preventDefault();
      this.narrow([...this.labels, input.value.trim()]);
      input.value = "";
    };
    return el("form", { class: "row", onsubmit: add },
      el("label", { for: "metadata" }, "Metadata"), input, button("Add", null, { type: "submit" }));
  }

  offer() {
    for (const name of ["model", "tag"]) {
      const { input, root } = this.selects[name];
      const chosen = this.values[name];
      fill(input, [...new Set([...this.seen[name], ...(chosen ? [chosen] : [])])].sort(), chosen, (value) => this.shown(value));
      root.hidden = input.options.length < (name === "tag" ? 2 : 3);
    }
    this.chips.replaceChildren(...this.labels.map((label) => button(`${label} ×`, () =>
      this.narrow(this.labels.filter((other) => other !== label)), { kind: "chip", "aria-label": `Remove ${label}` })));
  }

  // "sums · ft:tiny:…": several models may have the same name.
  shown(model) {
    const name = modelName(model, this.names);
    return name === model ? model : `${name} · ${model}`;
  }

  remember() {
    this.offer();
    const params = new URLSearchParams(Object.entries(this.values).filter(([, value]) => value));
    for (const label of this.labels) params.append("metadata", label);
    const text = params.toString();
    history.replaceState(null, "", text ? `#/jobs?${text}` : "#/jobs");
  }
}

function fill(select, names, chosen, shown = (name) => name) {
  select.replaceChildren(el("option", { value: "" }, "All"),
    ...names.map((name) => el("option", { value: name, selected: name === chosen }, shown(name))));
}

function asParameter(label) {
  const at = label.indexOf("=");
  return [`metadata[${label.slice(0, at)}]`, label.slice(at + 1)];
}
