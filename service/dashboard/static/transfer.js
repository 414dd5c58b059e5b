// Uploads of datasets and downloads of results, with progress. Boundary: HTTP and the link that saves a file.

import { errorOf, key, refuseKey, request, unanswered, url } from "./http.js";

// A dataset → its file object. `onProgress(fraction)` reports the sent part, which fetch cannot.
export function upload(file, { onProgress, signal }) {
  const form = new FormData();
  form.append("purpose", "fine-tune");
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

// Saves a response as a file; a plain link cannot send the key. `onProgress(fraction, bytes)`: the fraction is
// null if the response has no length.
export async function download(path, { query, filename, onProgress, signal }) {
  const response = await request(path, { query, signal });
  const total = Number(response.headers.get("content-length")) || null;
  const parts = [];
  let received = 0;
  const reader = response.body.getReader();
  const read = () => reader.read().catch((error) => {
    throw error.name === "AbortError" ? error : unanswered(); // the connection was lost
  });
  for (let { done, value } = await read(); !done; { done, value } = await read()) {
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
