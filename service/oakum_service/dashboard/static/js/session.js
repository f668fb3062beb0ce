// Signing in: a token, pasted or handed over in the address's fragment, is exchanged for a cookie that scripts cannot
// read.

/** The token in the address, which is taken out of the address bar; null if there is none. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) history.replaceState(null, "", location.pathname + location.search);
  return given;
}

/** Begins a session with the token, or goes on with the one of the cookie. Returns the caller's name and role. */
export function enter(api, token) {
  return token ? api.send("POST", "v1/session", { token }) : api.get("v1/session");
}

export function leave(api) {
  return api.send("DELETE", "v1/session");
}
