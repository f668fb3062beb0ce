// One colour for each trainer, the same everywhere on the page for as long as the page is open.

export const NUM_TONES = 8;
const byName = new Map();

/** Gives colours in order of submission, so that neighbours in time differ. */
export function assignTones(trainers) {
  for (const trainer of [...trainers].sort((a, b) => a.submitted_at - b.submitted_at)) tone(trainer.name);
}

export function tone(name) {
  if (!byName.has(name)) byName.set(name, byName.size % NUM_TONES);
  return `tone-${byName.get(name)}`;
}
