// All live trainers, and those that ended lately, which are asked for only when another one may have ended.

const ENDED_LATER = 5;
export const ALL_TRAINERS = "v1/trainers?limit=200";

export class TrainerList {
  #known = new Map();

  async refresh(api) {
    const isFirst = this.#known.size === 0;
    let { trainers } = await api.get(isFirst ? ALL_TRAINERS : `v1/trainers?limit=${ENDED_LATER}`);
    const present = new Set(trainers.map(({ id }) => id));
    const isMissing = ({ id, ended_at: ended }) => ended === null && !present.has(id);
    if (!isFirst && [...this.#known.values()].some(isMissing)) {
      ({ trainers } = await api.get(ALL_TRAINERS));
      this.#known.clear();
    }
    for (const trainer of trainers) this.#known.set(trainer.id, trainer);
    return [...this.#known.values()];
  }
}
