// Addresses and their pages: `#/jobs/<id>/rollouts` is `pages/rollouts/page.js` with {id}. The first match wins.
// `nav`: the page's label in the bar at the top. `needs`: the scope without which it is not shown (`access.js`).

export const ROUTES = [
  { path: "/jobs", page: "jobs", nav: "Jobs" },
  { path: "/jobs/:id", page: "job" },
  { path: "/jobs/:id/rollouts", page: "rollouts" },
  { path: "/jobs/:id/:tab", page: "job" },
  { path: "/sweeps/:id", page: "sweeps" },
  { path: "/compare", page: "compare" },
  { path: "/files", page: "files", nav: "Files" },
  { path: "/files/:id", page: "files" },
  { path: "/new", page: "new", nav: "New job", needs: "write" },
  { path: "/grader", page: "grader", nav: "Grader" },
  { path: "/models", page: "models", nav: "Models" },
  { path: "/try", page: "try", nav: "Try" },
  { path: "/keys", page: "keys", nav: "Keys", needs: "admin" },
  { path: "/shared/:secret", page: "job" },
  { path: "/shared/:secret/rollouts", page: "rollouts" },
  { path: "/shared/:secret/:tab", page: "job" },
];

// A broken escape, as in a link that was cut off, stays unchanged: the service then finds nothing by that name.
const decoded = (text) => {
  try {
    return decodeURIComponent(text);
  } catch {
    return text;
  }
};

// `#/jobs/ftjob-1?a=b` → {page, params: {id, query: URLSearchParams}}; null if no page matches.
export function matched(hash) {
  const [path, query] = (hash.replace(/^#\/?$/, "") || "#/jobs").slice(1).split("?");
  const names = path.split("/");
  for (const route of ROUTES) {
    const parts = route.path.split("/");
    const fits = (part, at) => (part.startsWith(":") ? names[at] !== "" : part === names[at]);
    if (parts.length !== names.length || !parts.every(fits)) continue;
    const named = parts.flatMap((part, at) =>
      part.startsWith(":") ? [[part.slice(1), decoded(names[at])]] : []);
    return { ...route, params: { ...Object.fromEntries(named), query: new URLSearchParams(query) } };
  }
  return null;
}
