// Libraries of installed Python packages, each loaded when it is first used.

import { unanswered } from "./http.js";

const loaded = new Map();

// Runs `vendor/<name>` as a classic script, once; a failed load is tried again by the next call.
export function vendored(name) {
  if (!loaded.has(name)) loaded.set(name, load(name));
  return loaded.get(name);
}

function load(name) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = new URL(`./vendor/${name}`, import.meta.url).href;
    script.onload = resolve;
    script.onerror = () => {
      loaded.delete(name);
      reject(unanswered());
    };
    document.head.append(script);
  });
}
