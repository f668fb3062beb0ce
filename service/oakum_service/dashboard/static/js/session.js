// The token: handed over in the address's fragment, which no server sees, and kept for this tab only.

const KEY = "oakum-token";

/** The token of this tab, taking it out of the address bar where it came that way. */
export function takeToken() {
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    keepToken(given);
    history.replaceState(null, "", location.pathname + location.search);
  }
  return sessionStorage.getItem(KEY);
}

export function keepToken(token) {
  sessionStorage.setItem(KEY, token.trim());
}

export function forgetToken() {
  sessionStorage.removeItem(KEY);
}
