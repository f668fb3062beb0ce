// On which nodes a text is found, by what ran there in the time that is shown: the service looks, since the page knows
// only who is there now and the bars in view.

export const LONGEST_TEXT = 255;
/** Share of the window by which it may have moved since the answer, and the least and the most seconds of that. */
const MOVED = 1 / 50;
const MOVED_S = [2, 60];

export class Finder {
  #asked = null;
  #nodes = null;
  #isComplete = true;

  /** The names of the nodes; null where no answer for this text has come. */
  of(text) {
    return this.#asked?.text === plain(text) ? this.#nodes : null;
  }

  /** Whether all that ran in the time was looked through. */
  get isComplete() {
    return this.#asked === null || this.#isComplete;
  }

  async load(api, text, { from, to }) {
    const wanted = plain(text);
    if (!wanted) {
      this.#asked = null;
      return;
    }
    const moved = Math.min(Math.max((to - from) * MOVED, MOVED_S[0]), MOVED_S[1]);
    const last = this.#asked;
    if (last?.text === wanted && Math.abs(last.from - from) < moved && Math.abs(last.to - to) < moved) return;
    const asked = new URLSearchParams({ from_at: from.toFixed(1), to_at: to.toFixed(1), find: wanted });
    const answer = await api.get(`v1/timeline/nodes?${asked}`);
    this.#asked = { text: wanted, from, to };
    this.#nodes = new Set(answer.nodes);
    this.#isComplete = answer.is_complete;
  }
}

/** The text as it can be asked for. */
function plain(text) {
  return text.replaceAll("\0", "").trim().slice(0, LONGEST_TEXT);
}
