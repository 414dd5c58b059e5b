// The dialog that makes, lists and revokes links to one run.

import { SERVICE, get, jobPath, post, remove } from "../../api.js";
import { commands } from "../../copying.js";
import { announce, button, el, failed, loading, moment, number, openDialog } from "../../dom.js";

const DAY_SECONDS = 24 * 3600;
const DAYS = [1, 7, 30, 90];
const DEFAULT_DAYS = 7;
const WARNING = "Anyone with the link can read this run until it expires: its settings, curves and rollouts, which contain text of the "
  + "dataset. It opens nothing else, and changes nothing.";

export function shareJob(job, signal) {
  const path = jobPath(job.id, "/shares");
  const days = el("select", { id: "share-days" }, DAYS.map((count) =>
    el("option", { value: count, selected: count === DEFAULT_DAYS }, count === 1 ? "1 day" : `${number(count)} days`)));
  const made = el("div");
  const list = el("div", { class: "pile" });
  const problem = el("p", { class: "problem", role: "alert" });
  const attempt = async (change) => {
    problem.textContent = "";
    try {
      await change();
      await fill();
    } catch (error) {
      if (!signal.aborted) problem.textContent = error.message;
    }
  };
  const create = () => attempt(async () => {
    const share = await post(path, { expires_in_seconds: days.value * DAY_SECONDS }, { signal });
    made.replaceChildren(commands("Link", SERVICE + "/" + new URL(share.url).hash),
      el("p", { class: "hint" }, "Copy it now: it is not shown again."));
    announce("Link created");
  });
  const revoke = (share) => attempt(async () => {
    await remove(`${path}/${share.id}`, { signal });
    made.replaceChildren();
    announce("Link revoked");
  });
  const fill = async () => list.replaceChildren(...active((await get(path, { signal })).data, revoke));
  const dialog = openDialog("Share this run", [
    el("p", {}, WARNING),
    el("div", { class: "row" }, el("label", { for: "share-days" }, "Expires after"), days, button("Create link", create, { kind: "primary" })),
    made, problem, list,
    el("div", { class: "actions" }, button("Close", () => dialog.close())),
  ]);
  signal.addEventListener("abort", () => dialog.close());
  loading(list, "Loading links");
  fill().catch((error) => signal.aborted || failed(list, error));
}

function active(shares, revoke) {
  if (!shares.length) return [el("p", { class: "hint" }, "No active link.")];
  const rows = shares.map((share) => el("li", { class: "row" },
    el("code", {}, share.id), el("span", { class: "small" }, `until ${moment(share.expires_at)}`),
    button("Revoke", () => revoke(share), { kind: "small danger", "aria-label": `Revoke the link ${share.id}` })));
  return [el("h3", {}, "Active links"), el("ul", { class: "links" }, rows)];
}
