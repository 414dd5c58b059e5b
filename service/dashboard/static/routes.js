// Which address is which page: `#/jobs/<id>/rollouts` is `pages/rollouts.js` with {id}. First match wins.
// A page that is built has its name here, and `nav` where the bar at the top leads to it.

export const ROUTES = [
  { path: "/jobs", page: "jobs", nav: "Jobs" },
  { path: "/jobs/:id", page: "job" },
  { path: "/jobs/:id/rollouts", page: "rollouts" },
  { path: "/compare", page: "compare" },
  { path: "/new", page: "new", nav: "New job" },
  { path: "/grader", page: "grader", nav: "Grader" },
  { path: "/try", page: "try", nav: "Try" },
];

// `#/jobs/ftjob-1?a=b` → {page, params: {id, query: URLSearchParams}}; null for an address of no page.
export function matched(hash) {
  const [path, query] = (hash.replace(/^#/, "") || "/jobs").split("?");
  const asked = path.split("/");
  for (const route of ROUTES) {
    const parts = route.path.split("/");
    const fits = (part, at) => (part.startsWith(":") ? asked[at] !== "" : part === asked[at]);
    if (parts.length !== asked.length || !parts.every(fits)) continue;
    const named = parts.flatMap((part, at) =>
      part.startsWith(":") ? [[part.slice(1), decodeURIComponent(asked[at])]] : []);
    return { ...route, params: { ...Object.fromEntries(named), query: new URLSearchParams(query) } };
  }
  return null;
}
