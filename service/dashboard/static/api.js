// The public API, as the pages use it: the key, requests, pages of a list, uploads and downloads.
// Boundary: HTTP only, nothing of the document but the link that saves a download.
// The live stream is `stream.js`, and is exported here too.

export { follow } from "./stream.js";

const KEY = "grpo.key";
const BASE = new URL("./", document.baseURI);
const BUSY_TRIES = 3;

export const key = {
  get: () => localStorage.getItem(KEY),
  set: (value) => localStorage.setItem(KEY, value),
  forget: () => localStorage.removeItem(KEY),
};

// What went wrong, in OpenAI's shape. `status` 0: the service did not answer at all.
// `problems`: a list of {param, message} where an answer has several.
export class ApiError extends Error {
  constructor({ status, message, type, param, code, problems, requestId, retryAfter }) {
    super(message);
    this.name = "ApiError";
    Object.assign(this, { status, type, param, code, problems: problems ?? [], requestId, retryAfter });
  }
}

// Tells the frame, which shows the key form; thrown too, so that the page stops where it is.
export function refuseKey(error) {
  window.dispatchEvent(new CustomEvent("key-refused", { detail: error }));
  return error;
}

export function unanswered() {
  return new ApiError({ status: 0, code: "unanswered", message: "The service does not answer. Is it running?" });
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
  const said = body.error ?? {};
  return new ApiError({
    status: response.status,
    message: said.message ?? `The service answered ${response.status} ${response.statusText}.`,
    type: said.type,
    param: said.param,
    code: said.code,
    problems: said.problems ?? body.problems,
    requestId: response.headers.get("x-request-id"),
    retryAfter: Number(response.headers.get("retry-after")) || undefined,
  });
}

// The raw response, which is a good one. Throws ApiError, or AbortError when `signal` fires.
// options: {method, query, headers, body, signal}; a body that is a plain value is sent as JSON.
export async function request(path, options = {}) {
  const { method = "GET", query, headers = {}, body, signal } = options;
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
  if (response.ok) return response;
  const error = await errorOf(response);
  throw error.status === 401 ? refuseKey(error) : error;
}

// GET → JSON. A service that says "later" is asked again a few times, as it wishes.
export async function get(path, { query, signal } = {}) {
  for (let attempt = 1; ; attempt += 1) {
    try {
      return await (await request(path, { query, signal })).json();
    } catch (error) {
      if (error.status !== 429 || attempt === BUSY_TRIES) throw error;
      await pause(Math.min(error.retryAfter ?? attempt, 5), signal);
    }
  }
}

export async function post(path, body, { headers, signal } = {}) {
  return (await request(path, { method: "POST", body, headers, signal })).json();
}

export async function remove(path, { signal } = {}) {
  return (await request(path, { method: "DELETE", signal })).json();
}

// A list, page by page: `const pages = paged("/v1/…", {limit: 20})`, then `await pages.next()` gives the next
// rows as long as `pages.hasMore`.
export function paged(path, query = {}, { signal } = {}) {
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

// A dataset → its file object. `onProgress(fraction)` hears how much has left (fetch could not tell).
export function upload(file, { purpose = "fine-tune", onProgress, signal } = {}) {
  const form = new FormData();
  form.append("purpose", purpose);
  form.append("file", file, file.name);
  return new Promise((resolve, reject) => {
    const sent = new XMLHttpRequest();
    sent.open("POST", url("/v1/files"));
    sent.setRequestHeader("Authorization", `Bearer ${key.get() ?? ""}`);
    sent.upload.onprogress = (event) => event.lengthComputable && onProgress?.(event.loaded / event.total);
    sent.onload = () => resolve(new Response(sent.responseText, { status: sent.status }));
    sent.onerror = () => reject(unanswered());
    sent.onabort = () => reject(new DOMException("aborted", "AbortError"));
    signal?.addEventListener("abort", () => sent.abort(), { once: true });
    sent.send(form);
  }).then(async (response) => {
    if (response.ok) return response.json();
    const error = await errorOf(response);
    throw error.status === 401 ? refuseKey(error) : error;
  });
}

// Saves what the path answers as a file; a link could not send the key. `onProgress(fraction, bytes)`; the
// fraction is null where the service does not say how long it will be.
export async function download(path, { query, filename, onProgress, signal } = {}) {
  const response = await request(path, { query, signal });
  const total = Number(response.headers.get("content-length")) || null;
  const parts = [];
  let received = 0;
  const reader = response.body.getReader();
  for (let { done, value } = await reader.read(); !done; { done, value } = await reader.read()) {
    parts.push(value);
    received += value.length;
    onProgress?.(total && received / total, received);
  }
  save(new Blob(parts), filename ?? filenameOf(response) ?? path.split("/").at(-1));
}

export function save(blob, filename) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = filename;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60_000);
}

function filenameOf(response) {
  return /filename="([^"]+)"/.exec(response.headers.get("content-disposition") ?? "")?.[1];
}

// Waits, or ends with AbortError when the page is left.
export function pause(seconds, signal) {
  return new Promise((resolve, reject) => {
    const timer = setTimeout(resolve, seconds * 1000);
    signal?.addEventListener("abort", () => {
      clearTimeout(timer);
      reject(signal.reason);
    }, { once: true });
  });
}

export const JOBS = "/v1/fine_tuning/jobs";
export const jobPath = (id, rest = "") => `${JOBS}/${encodeURIComponent(id)}${rest}`;

// All metric rows of a job, evenly thinned to at most `points`; `names`: only these.
export async function metricsOf(id, { names, points = 1000, afterStep, signal } = {}) {
  const query = { names: names?.join(","), max_points: points, after_step: afterStep };
  return (await get(jobPath(id, "/metrics"), { query, signal })).data;
}
