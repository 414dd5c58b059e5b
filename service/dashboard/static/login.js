// The form for the API key, with the reason if a key was refused.

import { loadAccess } from "./access.js";
import { key } from "./api.js";
import { announce, button, el, heading } from "./dom.js";

// `error`: the refusal that led here, if any; `done`: called with a valid key.
export function loginForm(root, error, done) {
  const refusal = el("p", { class: "problem", role: "alert", id: "key-problem" }, error && error.message);
  const input = el("input", {
    id: "key", type: "password", autocomplete: "off", spellcheck: "false", required: true,
    "aria-describedby": "key-problem key-hint",
  });
  const submit = button("Continue", null, { kind: "primary", type: "submit" });
  const form = el("form", { class: "panel login", onsubmit: (event) => {
    event.preventDefault();
    check(input, refusal, submit, done);
  } },
  el("label", { for: "key" }, "API key"), input, refusal,
  el("p", { class: "hint", id: "key-hint" },
    "Stored in this browser until you sign out, and sent only to this service. ",
    el("code", {}, "grpo up"), " writes one to ", el("code", {}, "$GRPO_HOME/api_key"), " at its first start; ",
    el("code", {}, "grpo keys create"), " makes more."),
  submit);
  root.replaceChildren(el("div", { class: "narrow" }, heading("Your key"), form));
  input.focus();
}

async function check(input, refusal, submit, done) {
  const given = input.value.trim();
  if (!/^[!-~]+$/.test(given)) {
    refusal.textContent = "A key contains only letters, digits and punctuation, no spaces.";
    return;
  }
  key.set(given);
  submit.disabled = true;
  try {
    await loadAccess();
    announce("Signed in.");
    done();
  } catch (error) {
    if (error.status === 401) return; // the frame shows this form again, with the reason
    key.forget();
    refusal.textContent = error.message;
  }
  submit.disabled = false;
}
