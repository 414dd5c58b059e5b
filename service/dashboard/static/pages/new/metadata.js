// The job's metadata: a row for each key and value, and an empty one for the next.

import { el } from "../../dom.js";

const MOST = 16;

export function metadataPart(draft) {
  const list = el("div", { class: "pairs" });
  const read = () => Object.fromEntries([...list.children].map((row) => [...row.children].map((input) => input.value.trim())).filter(([key]) => key));
  const change = () => {
    const found = read();
    draft.set("metadata", Object.keys(found).length ? found : undefined);
    if (list.lastElementChild.firstElementChild.value && list.children.length < MOST) list.append(row("", ""));
  };
  const row = (key, value) => {
    const at = list.children.length + 1;
    const input = (label, props) => el("input", { "aria-label": `Metadata ${label} ${at}`, autocomplete: "off", spellcheck: "false", oninput: change, ...props });
    return el("div", { class: "pair" }, input("key", { value: key, maxlength: 64, placeholder: "key" }), input("value", { value, maxlength: 512, placeholder: "value" }));
  };
  const write = () => {
    const given = draft.body.metadata ?? {};
    if (list.hasChildNodes() && JSON.stringify(given) === JSON.stringify(read())) return;
    list.replaceChildren();
    for (const pair of [...Object.entries(given), ["", ""]].slice(0, MOST)) list.append(row(...pair));
  };
  draft.listen(write);
  write();
  return el("fieldset", { "data-param": "metadata" }, el("legend", {}, "Metadata"), list,
    el("p", { class: "hint" }, "Shown with the job, for example team and maths. Clear a key to remove it."),
    el("p", { class: "problem small", id: "new-metadata-problem" }));
}
