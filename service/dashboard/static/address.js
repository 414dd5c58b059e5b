// The address's query and the pages' style sheets.

// Changes the query of the current page without rendering it again; null or "" removes a name.
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

// Loads a page's own style sheet, `pages/<name>/page.css`, once, and disables the other pages'. → a promise, for code
// that measures elements; if the sheet cannot be loaded, the page is shown without it.
export function styled(name) {
  const id = `style-${name}`;
  for (const sheet of document.querySelectorAll("link[id^=style-]")) sheet.media = sheet.id === id ? "all" : "not all";
  if (document.getElementById(id)) return Promise.resolve();
  return new Promise((resolve) => {
    const href = new URL(`./pages/${name}/page.css`, import.meta.url).href;
    const link = Object.assign(document.createElement("link"), { id, rel: "stylesheet", href, onload: resolve });
    link.onerror = () => {
      link.remove(); // loaded again by the next visit
      resolve();
    };
    document.head.append(link);
  });
}
