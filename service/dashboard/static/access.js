// What the key may do, read when it is first used, so that pages offer nothing that the service would refuse.
// Boundary: hides controls; the service decides.

import { get, key } from "./http.js";
import { jobPlace } from "./paths.js";

let about = null;
let of = null;

// The key's {name, tenant, scopes, expires_at, job_id}; null until `loadAccess` has read it.
export const access = () => (of === key.get() ? about : null);

export async function loadAccess(signal) {
  const mine = key.get();
  if (of === mine) return;
  about = await get("/v1/keys/current", { signal });
  of = mine;
}

const has = (scope) => access()?.scopes.includes(scope) ?? false;

export const can = {
  get write() { return has("write"); },
  get admin() { return has("admin"); },
  // Pages and files besides those of one shared run.
  get browse() { return !key.isShared(); },
};

// The address of a job's page, or of the shared run that is open.
export const placeOf = (id, tab) => (key.isShared() ? `#/shared/${key.get()}` : jobPlace(id)) + (tab ? `/${tab}` : "");
