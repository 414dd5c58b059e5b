// What pages do with the address and the style sheets.

// Changes the query of the page that is shown, without showing it again; null or "" leaves a name out.
export function replaceQuery(changes) {
  const [path, query] = location.hash.split("?");
  const params = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null || value === undefined || value === "") params.delete(name);
    else params.set(name, value);
  }
  const text = params.toString();
  history.replaceState(null, "", text ? `${path}?${text}` : path);
}

// A page's own style sheet, `pages/<name>.css`, loaded once, in the place of other pages'. → a promise, for who
// must measure; a sheet that cannot be loaded leaves the page plain and not waiting.
export function styled(name) {
  const id = `style-${name}`;
  for (const sheet of document.querySelectorAll("link[id^=style-]")) sheet.media = sheet.id === id ? "all" : "not all";
  if (document.getElementById(id)) return Promise.resolve();
  return new Promise((resolve) => {
    const href = new URL(`./pages/${name}.css`, import.meta.url).href;
    const done = { onload: resolve, onerror: resolve };
    const link = Object.assign(document.createElement("link"), { id, rel: "stylesheet", href, ...done });
    document.head.append(link);
  });
}
