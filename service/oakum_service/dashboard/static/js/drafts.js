// What is half typed. This tab keeps it while the page is loaded anew and while one signs in again, for the same user,
// until it is submitted, given up or signed out of. Passwords, and what looks like a secret, are not kept.

const KEY = "oakum-drafts";
const SECRET = /(?:^|[^a-z])(?:token|password|passwd|secret|api_?key|credentials?|webhook)(?![a-z])/i;

/** From now on drafts are this user's; another's are dropped. */
export function beginDrafts(user) {
  if (kept().user !== user) write({ user, drafts: {} });
}

/** Keeps what has been typed into the form, under a name for the form. */
export function keepDraft(name, form) {
  const typed = [...form.elements].filter((control) => control.name && control.type !== "password" && control.value !== initial(control) && !SECRET.test(control.value));
  change(name, typed.length ? Object.fromEntries(typed.map((control) => [control.name, control.value])) : undefined);
}

/** Fills the form with what had been typed into it; returns whether there was anything. */
export function restoreDraft(name, form) {
  const typed = Object.entries(kept().drafts[name] ?? {}).filter(([field]) => form.elements[field]);
  for (const [field, value] of typed) form.elements[field].value = value;
  return typed.length > 0;
}

export function forgetDraft(name) {
  change(name, undefined);
}

export function forgetDrafts() {
  write({ user: "", drafts: {} });
}

function initial(control) {
  if (control.options === undefined) return control.defaultValue;
  const options = [...control.options];
  return (options.find(({ defaultSelected }) => defaultSelected) ?? options[0])?.value;
}

function change(name, typed) {
  const { user, drafts } = kept();
  if (typed !== undefined || name in drafts) write({ user, drafts: { ...drafts, [name]: typed } });
}

/** A browser may have no storage for the page: drafts then last as long as it is open. */
let memory = { user: "", drafts: {} };

function kept() {
  try {
    memory = JSON.parse(sessionStorage.getItem(KEY)) ?? memory;
  } catch {
    // As it was.
  }
  return memory;
}

function write({ user, drafts }) {
  memory = { user, drafts: Object.fromEntries(Object.entries(drafts).filter(([, typed]) => typed !== undefined)) };
  try {
    if (Object.keys(memory.drafts).length) sessionStorage.setItem(KEY, JSON.stringify(memory));
    else sessionStorage.removeItem(KEY);
  } catch {
    // As long as the page is open.
  }
}
