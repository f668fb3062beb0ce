// One colour for each trainer, the same on every page and in every tab of this browser, also after it was closed.

const NUM_TONES = 8;
const KEPT = "oakum-tones";
const MOST_KEPT = 2000;
const tones = new Map(kept());
/** Trainer's name -> class: pictures ask thousands of times for each frame. */
const classes = new Map();
/** Whether tones that were given just now are about to be kept. */
let isKeeping = false;

/** Gives colours in order of submission, so that neighbours in time differ. */
export function assignTones(trainers) {
  for (const trainer of [...trainers].sort((a, b) => a.submitted_at - b.submitted_at)) tone(trainer.name);
}

export function tone(name) {
  if (!classes.has(name)) classes.set(name, `tone-${numberOf(name)}`);
  return classes.get(name);
}

function numberOf(name) {
  const key = hashOf(name);
  if (!tones.has(key)) {
    if (!isKeeping) readOthers();
    if (!tones.has(key)) remember(key);
  }
  return tones.get(key);
}

/** Takes the tones that other tabs have given meanwhile. */
function readOthers() {
  for (const [other, number] of kept()) tones.set(other, number);
  classes.clear();
}

/** A number in place of the name: what stays in the browser tells nobody what was trained. */
function hashOf(name) {
  let hash = 0x811c9dc5;
  for (const character of name) hash = Math.imul(hash ^ character.codePointAt(0), 0x01000193) >>> 0;
  return hash;
}

function remember(key) {
  const newest = [...tones.values()].at(-1) ?? -1;
  tones.set(key, (newest + 1) % NUM_TONES);
  if (!isKeeping) queueMicrotask(keep);
  isKeeping = true;
}

function keep() {
  isKeeping = false;
  try {
    localStorage.setItem(KEPT, JSON.stringify([...tones].slice(-MOST_KEPT)));
  } catch {
    // Without storage, colours hold for as long as the page is open.
  }
}

function kept() {
  try {
    return JSON.parse(localStorage.getItem(KEPT) ?? "[]").filter(([key, number]) => Number.isInteger(key) && [0, 1, 2, 3, 4, 5, 6, 7].includes(number));
  } catch {
    return [];
  }
}
