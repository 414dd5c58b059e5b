// Requests to the service: the key, errors as objects, JSON in and out, pages of a list, and pauses.
// Boundary: HTTP only; `api.js` has the paths.

const KEY = "grpo.key";
const BASE = new URL("./", document.baseURI);
export const SERVICE = BASE.href.replace(/\/$/, "");
const BUSY_TRIES = 3;

const CLOCK_TOLERANCE_SECONDS = 30; // a slow connection delays the service's time

let aheadSeconds = 0; // the service's clock, compared with the browser's
let shared = null; // the secret of a shared link while its page is open; never stored

export const key = {
  get: () => shared ?? localStorage.getItem(KEY),
  set: (value) => localStorage.setItem(KEY, value),
  forget: () => localStorage.removeItem(KEY),
  share: (secret) => { shared = secret?.replace(/\W/g, "-") ?? null; },
  isShared: () => shared !== null,
};

// Unix seconds by the service's clock, because the browser's may be wrong.
export const now = () => Date.now() / 1000 + aheadSeconds;

function compareClocks(response) {
  const seconds = (Date.parse(response.headers.get("date")) - Date.now()) / 1000;
  aheadSeconds = Math.abs(seconds) > CLOCK_TOLERANCE_SECONDS ? seconds : 0;
}

// Errors in OpenAI's shape. `status` 0: the service did not respond.
// `problems`: a list of {param, message} if a response has several.
export class ApiError extends Error {
  constructor({ status, message, type, param, code, problems, requestId, retryAfter }) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, type, param, code, problems: problems ?? [], requestId, retryAfter });
  }
}

// Notifies the frame, which shows the key form; also thrown, so that the page stops.
export function refuseKey(error) {
  window.dispatchEvent(new CustomEvent("key-refused", { detail: error }));
  return error;
}

// Notifies the frame, which shows the banner until the service responds again; also thrown.
export function unanswered() {
  window.dispatchEvent(new Event("service-away"));
  return new ApiError({ status: 0, code: "unanswered", message: "The service does not respond. Is it running?" });
}

// For `import(…).catch(unloaded)`. Browsers remember a module that could not be loaded, so that only a reload of the
// page helps.
export function unloaded(error) {
  if (error instanceof TypeError && /module/i.test(error.message)) throw Object.assign(unanswered(), { isModule: true });
  throw error;
}

export function url(path, query = {}) {
  const target = new URL(path.replace(/^\//, ""), BASE);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") target.searchParams.set(name, value);
  }
  return target;
}

export async function errorOf(response) {
  const body = await response.json().catch(() => ({}));
  const { message, type, param, code, problems } = body.error ?? {};
  return new ApiError({
    status: response.status,
    message: message ?? `The service responded with ${response.status} ${response.statusText}.`,
    type,
    param,
    code,
    problems: problems ?? body.problems,
    requestId: response.headers.get("x-request-id"),
    retryAfter: Number(response.headers.get("retry-after")) || undefined,
  });
}

// The raw successful response. Throws ApiError, or AbortError when `signal` fires.
// A plain object as `body` is sent as JSON.
export async function request(path, { method = "GET", query, headers = {}, body, signal }) {
  const init = { method, signal, headers: { Authorization: `Bearer ${key.get() ?? ""}`, ...headers } };
  if (body !== undefined) {
    const isForm = body instanceof FormData;
    init.body = isForm ? body : JSON.stringify(body);
    if (!isForm) init.headers["Content-Type"] = "application/json";
  }
  let response;
  try {
    response = await fetch(url(path, query), init);
  } catch (error) {
    throw error.name === "AbortError" ? error : unanswered();
  }
  compareClocks(response);
  if (response.ok) return response;
  const error = await errorOf(response);
  signal?.throwIfAborted(); // its body was not read, so that the error would have no message
  if (isFromProxy(error)) throw unanswered();
  throw error.status === 401 ? refuseKey(error) : error;
}

// A gateway's own response in place of the service's, which has a code.
const isFromProxy = ({ status, code }) => [502, 503, 504].includes(status) && code === undefined;

// Resolves when the service responds again after `unanswered`; never after `signal` fires.
export function serviceBack(signal) {
  return new Promise((resolve) => window.addEventListener("service-back", resolve, { once: true, signal }));
}

// The response's JSON; a connection that is lost within the body is no response.
const jsonOf = (response) => response.json().catch((error) => {
  throw error.name === "AbortError" ? error : unanswered();
});

// GET → JSON. Retried a few times if the service is busy, after the delay that it requests.
export async function get(path, { query, signal }) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await jsonOf(await request(path, { query, signal }));
    } catch (error) {
      if (error.status !== 429 || attempt === BUSY_TRIES) throw error;
      await pause(Math.min(error.retryAfter ?? attempt, 5), signal);
    }
  }
}

export async function post(path, body, { headers, signal }) {
  return jsonOf(await request(path, { method: "POST", body, headers, signal }));
}

export async function patch(path, body, { signal } = {}) {
  return jsonOf(await request(path, { method: "PATCH", body, signal }));
}

export async function remove(path, { signal } = {}) {
  return jsonOf(await request(path, { method: "DELETE", signal }));
}

// A list, page by page: `const pages = paged("/v1/…", {limit: 20}, {signal})`, then `await pages.next()` returns the
// next rows while `pages.hasMore`.
export function paged(path, query, { signal }) {
  return {
    hasMore: true,
    after: undefined,
    async next() {
      const page = await get(path, { query: { ...query, after: this.after }, signal });
      this.hasMore = page.has_more;
      this.after = page.last_id ?? page.data.at(-1)?.id;
      return page.data;
    },
  };
}

// Waits, or throws AbortError when the page is left.
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}
