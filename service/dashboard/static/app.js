/* The frame: key form, navigation, and which page is shown.

How a page is made
------------------
1.  `pages/<name>/page.js` exports `async function show(root, params, signal, onMove)`.
    root    the empty <main>; everything the page shows goes into it.
    params  the parts of the address: `#/jobs/<id>?step=3` → {id, query: URLSearchParams}.
    signal  fires when the page is left: hand it to every request, stream, pause and listener.
    onMove  `onMove((params) => …)`: called in place of `show` when the address changes within the page;
            returns whether it has shown the new place, such as another tab.
2.  Its address is in `routes.js` already; give it `nav: "…"` there if the bar should lead to it.
3.  First `root.append(heading("Title"))`, before any await if possible; the frame focuses that
    h1. Then a box per part, each with its state: `loading(box)`, then content, `empty(box, …)` or
    `failed(box, error, retry)`, which also retries when the service is back. What `show` throws is shown as a
    failure of the whole page, with a button that shows the page again; a part that may fail alone catches and
    calls `failed` itself.
4.  Data: `get`, `post`, `paged`, `metricsOf`, `upload`, `download`, `follow` of `api.js`. They throw ApiError
    {status, message, param, code, problems}. A 401 needs nothing: the frame shows the key form, and
    afterwards the page again.
5.  Elements: `el(tag, props, ...children)` of `dom.js`; strings become text nodes. Never innerHTML: prompts,
    completions, names and messages are other people's text.
6.  Charts: `lineChart`, `barChart` of `charts.js`; `figure.update(series)` draws again. Each has a table. Those
    of one `ChartGroup` share smoothing, scale, zoom and the step under the pointer; `group.root` has the controls.
7.  Looks: `style.css` has the tokens (`--ink`, `--faint`, `--line`, `--accent`, `--good`, `--warn`, `--bad`,
    `--series-1…8`, `--space-1…6`) and the frame; `parts.css` what pages share (.panel, .grid, .strip, .facts,
    .badge, .tabs, table.list, .bar, .field). A page that needs more has `pages/<name>/page.css` and calls `styled("<name>")`.
    Look at it light, dark and at 360 px.
8.  Keyboard: real <button>, <a href="#/…">, <label>; `announce("…")` informs screen readers of changes.
9.  Change the address with `location.hash = "#/…"`; `replaceQuery({step: 4})` keeps the page.
10. Test in `tests/browser/`: the fixture `page` is logged in, `deployment` has finished and running jobs; a
    console error fails the test; `shots("name")` checks accessibility and keeps light, dark and phone screenshots.
*/

import { access, can, loadAccess } from "./access.js";
import { key, unloaded } from "./api.js";
import { installBanner } from "./connection.js";
import { el, failed, heading, loading, moment } from "./dom.js";
import { loginForm } from "./login.js";
import { ROUTES, matched } from "./routes.js";
import { installTheme } from "./theme_button.js";

const root = document.getElementById("main");
const forget = document.getElementById("forget");
const nav = document.getElementById("nav");
const note = document.getElementById("access");
const brand = document.querySelector(".brand");
let current = new AbortController();
let isFirst = true;
let here = {}; // {page, id, moved} of the page that is shown

async function moved() {
  const found = matched(location.hash);
  key.share(found?.params.secret ?? null);
  const isSame = key.get() && found?.page === here.page && idIn(found) === here.id;
  if (!isSame || !here.moved?.(found.params)) await show();
}

async function show() {
  current.abort(new DOMException("the page was left", "AbortError"));
  const mine = (current = new AbortController());
  const found = matched(location.hash);
  const place = (here = { page: found?.page, id: idIn(found) });
  key.share(found?.params.secret ?? null);
  for (const dialog of document.querySelectorAll("dialog")) dialog.close(); // the ones of the page that was left
  root.replaceChildren();
  if (!key.get()) return showLogin();
  frame(found);
  try {
    if (!access()) loading(root);
    await loadAccess(mine.signal);
    if (mine.signal.aborted) return;
    frame(found);
    if (found?.needs && !can[found.needs]) return notAllowed(found.needs);
    if (key.isShared()) found.params.id = access().job_id;
    const page = await moduleOf(found);
    if (mine.signal.aborted) return;
    root.replaceChildren();
    whenTitled(mine.signal);
    await page.show(root, found.params, mine.signal, (handler) => (place.moved = handler));
  } catch (error) {
    if (mine.signal.aborted) return;
    if (error.status === undefined) console.error(error);
    if (error.status === 404) nothingThere(error);
    else failed(root, error, error.isModule ? () => location.reload() : show, "h1");
  }
}

const idIn = (found) => found?.params.secret ?? found?.params.id;

// Of what the key may do, before it is known only what every key may.
function frame(found) {
  nav.hidden = forget.hidden = key.isShared();
  const routes = ROUTES.filter((route) => route.nav && (!route.needs || can[route.needs]));
  const links = routes.map((route) => el("a", { href: `#${route.path}` }, route.nav));
  if (nav.textContent !== routes.map((route) => route.nav).join("")) nav.replaceChildren(...links);
  mark(found);
  brand.toggleAttribute("href", !key.isShared());
  if (!key.isShared()) brand.href = "#/jobs";
  note.textContent = !access() || can.write ? "" : key.isShared() ? `Shared run, read-only until ${moment(access().expires_at)}` : "Read-only key";
}

function notAllowed(scope) {
  const why = el("p", { role: "alert" }, `This key lacks the scope ${scope}.`,
    scope === "admin" && [" The operator creates one with ", el("code", {}, "grpo keys create --tenant NAME --admin"), "."]);
  root.replaceChildren(heading("Not allowed with this key", { below: why }), el("a", { class: "button", href: "#/jobs" }, "All jobs"));
}

function nothingThere(error) {
  const why = el("p", { role: "alert" }, error.message);
  const back = can.browse ? [el("a", { class: "button", href: "#/jobs" }, "All jobs")] : [];
  root.replaceChildren(heading("Not found", { below: why }), ...back);
}

function showEnded({ code }) {
  current.abort(new DOMException("the link has ended", "AbortError"));
  note.textContent = "";
  const isExpired = code === "expired_api_key";
  const why = isExpired ? "This shared link has expired." : "This shared link is not valid: it was revoked, or its run was deleted.";
  root.replaceChildren(heading(isExpired ? "Link expired" : "Link not valid",
    { below: el("p", { role: "alert" }, why, " Request a new one from the person who sent it.") }));
}

async function moduleOf(found) {
  if (!found) throw Object.assign(new Error("No page at this address."), { status: 404 });
  loading(root);
  return import(`./pages/${found.page}/page.js`).catch(unloaded);
}

// Focuses the title as soon as the page has one, except on the first page, where focus starts at the top.
function whenTitled(signal) {
  const look = () => {
    const title = root.querySelector("h1");
    if (!title) return;
    seen.disconnect();
    if (!isFirst) title.focus({ preventScroll: true });
    if (!isFirst) window.scrollTo(0, 0);
    isFirst = false;
  };
  const seen = new MutationObserver(look);
  seen.observe(root, { childList: true, subtree: true });
  signal.addEventListener("abort", () => seen.disconnect());
}

function showLogin(error) {
  if (key.isShared()) return showEnded(error);
  current.abort(new DOMException("the key is gone", "AbortError"));
  key.forget();
  forget.hidden = nav.hidden = true;
  note.textContent = "";
  loginForm(root, error, show);
}

function mark(found) {
  for (const link of nav.children) {
    const isHere = found && link.getAttribute("href") === `#${found.path}`;
    const isAbove = found && location.hash.startsWith(`${link.getAttribute("href")}/`);
    if (isHere) link.setAttribute("aria-current", "page");
    else if (isAbove) link.setAttribute("aria-current", "true");
    else link.removeAttribute("aria-current");
    if (isHere || isAbove) nav.scrollLeft = link.offsetLeft - nav.offsetLeft; // on a phone the bar is wider than the window
  }
}

function start() {
  document.querySelector(".skip").addEventListener("click", (event) => {
    event.preventDefault(); // its address would be read as a page's
    root.focus();
  });
  forget.addEventListener("click", () => showLogin());
  window.addEventListener("key-refused", (event) => showLogin(event.detail));
  window.addEventListener("hashchange", moved);
  installBanner(document.getElementById("banner"));
  installTheme(document.getElementById("theme"));
  show();
}

start();
