// The banner shown while the service does not respond, and the check for its return.
// Events of the window: `service-away` for each request without a response; `service-back` once it responds again.

import { key, pause, url } from "./http.js";
import { JOBS } from "./paths.js";

const LOOK_SECONDS = 1;

export function installBanner(banner) {
  let isAway = false;
  window.addEventListener("service-away", async () => {
    if (isAway) return;
    isAway = true;
    banner.hidden = false;
    banner.textContent = "No connection to the service. This page updates again when the service responds.";
    while (isAway) {
      await pause(LOOK_SECONDS);
      isAway = !(await responds());
    }
    banner.hidden = true;
    banner.textContent = "";
    window.dispatchEvent(new Event("service-back"));
  });
}

async function responds() {
  try {
    const answer = await fetch(url(JOBS, { limit: 1 }), { headers: { Authorization: `Bearer ${key.get() ?? ""}` } });
    return ![502, 503, 504].includes(answer.status);
  } catch {
    return false;
  }
}
