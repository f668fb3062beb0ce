// Tokens: whose they are, until when they are valid, and making, replacing and revoking them.

import { ask, button } from "./controls.js";
import { focusInstead, h, setText } from "./dom.js";
import { count, duration, moment } from "./format.js";
import { Listing } from "./listing.js";
import { serviceNow } from "./time.js";

const DAY_S = 86400;
const isOver = (at) => at !== null && at <= serviceNow();
const labelOf = ({ label, is_own: isOwn, is_session: isSession }) => (isOwn ? `${label}${label && ", "}this ${isSession ? "session" : "token"}` : label || null);
const whole = (at) => (at === null ? "–" : moment(at, false));

export class TokensView {
  title = "Tokens";

  constructor({ api, me, parts, query, refresh }) {
    this.api = api;
    this.me = me;
    this.done = refresh;
    this.list = new Listing({
      name: "Tokens",
      columns: this.#columns(),
      idOf: ({ id }) => id,
      sort: "name",
      empty: "There is no token.",
      unit: (number) => (number === 1 ? "1 token" : `${count(number)} tokens`),
      searchHint: "name, role or label",
      parts,
      query,
    });
    this.made = h("div", { class: "panel part made", id: "made", role: "status", hidden: "" });
    const tools = me.role === "admin" ? [h("div", { class: "buttons" }, button("Make a token", () => this.#make(), { class: "button primary" }))] : [];
    const whose = me.role === "admin" ? "Everybody's tokens." : "Your tokens.";
    this.element = h(
      "section",
      { class: "view" },
      h("div", { class: "view-head" }, h("h2", { tabindex: -1 }, "Tokens"), ...tools),
      h("p", {}, `${whose} A token’s text is shown once, when it is made. The time of the last use is known to five minutes. A session is a browser that was signed in, with the token whose id its label names.`),
      this.made,
      this.list.element,
    );
  }

  visit(query) {
    this.list.visit(query);
  }

  async refresh() {
    const { tokens } = await this.api.get("v1/tokens");
    this.list.show(tokens);
  }

  #columns() {
    return [
      { key: "name", title: "Holder", kind: "", of: ({ name }) => name },
      { key: "role", title: "Role", kind: "", of: ({ role }) => role },
      { key: "id", title: "Id", kind: "", of: ({ id }) => id },
      { key: "label", title: "Label", kind: "", of: labelOf },
      { key: "created", title: "Made", kind: "", of: ({ created_at: at }) => at, shown: ({ created_at: at }) => whole(at) },
      { key: "expires", title: "Valid", kind: "", of: ({ expires_at: at }) => at, shown: ({ expires_at: at }) => (at === null ? "until it is revoked" : isOver(at) ? `expired ${whole(at)}` : `until ${whole(at)}`) },
      { key: "used", title: "Last use", kind: "", of: ({ used_at: at }) => at, shown: ({ used_at: at }) => (at === null ? "never" : whole(at)) },
      { key: "acts", title: "", kind: "", of: () => null, shown: (row) => this.#acts(row) },
    ];
  }

  /** A token that has expired opens nothing, and no other takes its place. */
  #acts(row) {
    const over = isOver(row.expires_at);
    const buttons = () => [over || row.is_session ? null : button("Replace", () => this.#rotate(row)), button(over ? "Remove" : "Revoke", () => this.#revoke(row), { class: "button danger" })];
    return { key: [row.id, row.expires_at, over], make: () => h("div", { class: "buttons" }, ...buttons()) };
  }

  #make() {
    const fields = [
      { name: "name", label: "Holder", maxlength: 63, required: "", hint: "The user's name, by which trainers are owned." },
      { name: "role", label: "Role", choices: ["user", "viewer", "admin", "hook"], value: "user" },
      { name: "label", label: "Label", maxlength: 63, hint: "What it is for." },
      { name: "days", sends: "expires_in_s", label: "Valid for days", type: "number", min: 0.01, max: 36500, step: "any", hint: "Empty: until it is revoked." },
    ];
    ask({ title: "Make a token", fields, action: "Make it" }, async ({ days, ...given }) => {
      const expiry = days === undefined ? {} : { expires_in_s: days * DAY_S };
      this.#show(await this.api.send("POST", "v1/tokens", { ...given, ...expiry }));
    });
  }

  #rotate(row) {
    const fields = [{ name: "hours", sends: "overlap_s", label: "The old one stays valid for hours", type: "number", required: "", min: 0, max: 720, step: "any", value: 1, hint: "0: it is refused from now on." }];
    ask({ title: `Replace ${row.name}'s token?`, text: "A new one with the same role is made.", fields, action: "Replace" }, async ({ hours }) => {
      this.#show(await this.api.send("POST", `v1/tokens/${encodeURIComponent(row.id)}/rotate`, { overlap_s: hours * 3600 }));
    });
  }

  #revoke(row) {
    const used = row.used_at === null ? "It was never used." : `It was last used about ${duration(Math.max(0, Math.round(serviceNow() - row.used_at)))} ago.`;
    ask({ title: `Revoke ${row.name}'s token?`, text: `${used} ${row.is_own ? "This page uses it: you are signed out." : "Whoever uses it is refused from now on."}`, action: "Revoke", danger: true }, async () => {
      await this.api.send("DELETE", `v1/tokens/${encodeURIComponent(row.id)}`);
      await this.done();
    });
  }

  /** Shows the text of a new token until it is put away: it cannot be asked for again. */
  #show({ name, role, token }) {
    const text = h("code", { class: "token-text", tabindex: 0 }, token);
    const said = h("span", { role: "status" });
    const copy = button("Copy", async () => {
      try {
        await navigator.clipboard.writeText(token);
        setText(said, "Copied.");
      } catch {
        getSelection().selectAllChildren(text);
        setText(said, "Selected: copy it with Ctrl+C.");
      }
    });
    const shown = h("div", {}, h("h3", {}, `The token of ${name}, ${role}: it is shown this once`), h("p", {}, text));
    const away = button("I have it", () => {
      shown.remove();
      this.made.hidden = this.made.children.length === 0;
      focusInstead(away, this.made);
    });
    shown.append(h("div", { class: "buttons" }, copy, away, said));
    this.made.prepend(shown);
    this.made.hidden = false;
    this.done();
  }
}
