// Signing in: a token, pasted or handed over in the address's fragment, is exchanged for a session. One half of it is in
// a cookie that scripts cannot read, the other in this page's storage, which other ports of the host cannot read.

import { NO_KEY, Unauthorised } from "./api.js";

const KEY = "oakum-session";

/** The token in the address, which is taken out of the address bar; null if there is none. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) history.replaceState(null, "", location.pathname + location.search);
  return given;
}

/** Begins a session with the token, or goes on with the one that the browser has. Returns the caller's name and role. */
export async function enter(api, token) {
  if (!token) {
    api.key = localStorage.getItem(KEY) ?? NO_KEY;
    return api.get("v1/session");
  }
  api.key = NO_KEY;
  const me = await api.send("POST", "v1/session", { token });
  api.key = me.key;
  localStorage.setItem(KEY, me.key);
  return me;
}

/** Whom the token of an address would sign in, in place of somebody else who is signed in; null if nobody else is. */
export async function replacement(api, token) {
  const key = localStorage.getItem(KEY);
  const before = key && (await known(api, { key }));
  const after = before && (await known(api, { token }));
  return after && after.name !== before.name ? { before, after } : null;
}

export function leave(api) {
  localStorage.removeItem(KEY);
  return api.send("DELETE", "v1/session");
}

async function known(api, credentials) {
  try {
    return await api.whoIs(credentials);
  } catch (error) {
    if (error instanceof Unauthorised) return null;
    throw error;
  }
}
