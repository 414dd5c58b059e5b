// The tabs inside a job's page: links, of which the address names one. A tab is loaded when it is first shown.

import { unloaded } from "../../api.js";
import { el, failed } from "../../dom.js";

const BESIDE_PX = 60; // of the tab before the current one

// A view whose module, `pages/job/<name>.js`, is loaded when its tab is first shown.
export function lazily(name, make) {
  const view = { root: el("div") };
  view.load = async (job) => {
    if (!view.shown) {
      view.shown = make(await import(`./${name}.js`).catch(unloaded));
      view.root.replaceChildren(view.shown.root);
    }
    await view.shown.load(job);
  };
  return view;
}

export class Tabs {
  // nav: the links, each with `data-tab`; views: name → {root, load(job)}, which is called again for a changed job.
  constructor(nav, views, signal) {
    this.nav = nav;
    this.views = views;
    this.signal = signal;
    this.trouble = el("div");
    this.box = el("div");
    this.root = el("div", { class: "tab" }, this.trouble, this.box);
  }

  async show(name, job) {
    this.name = name;
    for (const link of this.nav.children) {
      link.toggleAttribute("aria-current", link.dataset.tab === name);
      if (link.dataset.tab !== name) continue;
      link.setAttribute("aria-current", "page");
      this.nav.scrollLeft = link.offsetLeft - this.nav.offsetLeft - BESIDE_PX; // on a phone the bar is wider than the window
    }
    this.trouble.replaceChildren();
    this.box.replaceChildren(this.views[name].root);
    await this.refresh(job);
  }

  async refresh(job) {
    const { name } = this;
    try {
      await this.views[name].load(job);
    } catch (error) {
      if (this.signal.aborted) return;
      if (error.status === undefined) console.error(error);
      if (name === this.name) failed(this.trouble, error, error.isModule ? () => location.reload() : () => this.show(name, job));
    }
  }
}
