// The form that asks for the API key, and says why where one was refused.

import { get, JOBS, key } from "./api.js";
import { announce, button, el, heading } from "./dom.js";

// `error`: the refusal that led here, if any; `done`: what to do with a good key.
export function askForKey(root, error, done) {
  const said = el("p", { class: "problem", role: "alert", id: "key-problem" }, error && error.message);
  const input = el("input", {
    id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true,
    "aria-describedby": "key-problem key-hint",
  });
  const submit = button("Continue", null, { kind: "primary", type: "submit" });
  const form = el("form", { class: "panel login", onsubmit: (event) => {
    event.preventDefault();
    check(input, said, submit, done);
  } },
  el("label", { for: "key" }, "API key"), input, said,
  el("p", { class: "hint", id: "key-hint" },
    "Stored in this browser until you sign out, and sent only to this service. ",
    el("code", {}, "grpo up"), " writes one to ", el("code", {}, "$GRPO_HOME/api_key"), " at its first start; ",
    el("code", {}, "grpo keys create"), " makes more."),
  submit);
  root.replaceChildren(el("div", { class: "narrow" }, heading("Your key"), form));
  input.focus();
}

async function check(input, said, submit, done) {
  const given = input.value.trim();
  if (!/^[!-~]+$/.test(given)) {
    said.textContent = "A key contains only letters, digits and punctuation, no spaces.";
    return;
  }
  key.set(given);
  submit.disabled = true;
  try {
    await get(JOBS, { query: { limit: 1 } });
    announce("Signed in.");
    done();
  } catch (error) {
    if (error.status === 401) return; // the frame shows this form again, with the reason
    key.forget();
    said.textContent = error.message;
  }
  submit.disabled = false;
}
