// A button that saves a file of the API and shows the progress.

import { download, exported } from "./api.js";
import { announce, button, bytes, el, percent } from "./dom.js";

// Saves the log of a probe or export at this path.
export const logButton = (path, signal) => downloadButton("Download log", `${path}/logs`, signal, { query: { format: "text" } });

// `title`: its name for screen readers; `isExport`: an export is created first unless it exists.
export function downloadButton(label, path, signal, { query, title, isExport = false } = {}) {
  const problem = el("span", { class: "problem small", role: "alert" });
  const pressed = button(label, async () => {
    pressed.disabled = true;
    problem.replaceChildren();
    try {
      const onPhase = (phase) => { pressed.textContent = `${label}: ${phase}`; };
      const place = isExport ? await exported(path, { signal, onPhase }) : path;
      await download(place, { query, signal, onProgress: (fraction, received) => {
        pressed.textContent = fraction === null ? bytes(received) : percent(fraction);
      } });
      announce(`${label}: done`);
    } catch (error) {
      if (!signal.aborted) problem.replaceChildren(error.message, error.log ? logButton(error.log, signal) : "");
    }
    pressed.textContent = label;
    pressed.disabled = false;
  }, { kind: "small", "aria-label": title });
  return el("span", { class: "row" }, pressed, problem);
}
