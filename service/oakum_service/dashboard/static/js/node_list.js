// The nodes' present states, kept current by what has changed since the last answer.

export class NodeList {
  #version = null;
  #nodes = new Map();

  /** The nodes in the scheduler's order. */
  get nodes() {
    return [...this.#nodes.values()];
  }

  get(name) {
    return this.#nodes.get(name);
  }

  /** When they last changed, in Unix seconds; null before the first answer. */
  takenAt = null;

  async refresh(api) {
    const since = this.#version;
    const answer = await api.get(since === null ? "v1/nodes" : `v1/nodes?since=${encodeURIComponent(since)}`);
    this.takenAt = answer.taken_at;
    this.#version = answer.version || null;
    // Where a new node stands is known from the whole list alone.
    if (answer.is_difference && answer.nodes.some(({ name }) => !this.#nodes.has(name))) {
      this.#version = null;
      await this.refresh(api);
      return;
    }
    if (!answer.is_difference) this.#nodes.clear();
    for (const name of answer.gone ?? []) this.#nodes.delete(name);
    for (const node of answer.nodes) this.#nodes.set(node.name, node);
  }
}
