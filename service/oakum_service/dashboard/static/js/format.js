// Formats quantities for readers. The space before a unit is a narrow no-break space.

const NARROW = "\u202f";
const NONE = "–";
const UNIT = /(\d) (%|ms|s|min|h|d)(?![\w-])/g;
/** Within a word: those of quotations have no letter on one side. */
const APOSTROPHE = /(?<=\p{L})'(?=\p{L})/gu;
const PER_SECOND = / \/ s(?!\w)/g;
const MONTHS = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

export function count(number) {
  return Math.round(number).toLocaleString("en-US");
}

export function decimal(number, digits = 4) {
  if (number === null || number === undefined || !Number.isFinite(number)) return NONE;
  const size = Math.abs(number);
  if (size !== 0 && (size < 1e-4 || size >= 1e6)) return number.toExponential(digits - 2);
  return size >= 1000 ? count(number) : String(Number(number.toPrecision(digits)));
}

/** The numbers of one column, all with as many decimals as give the greatest its digits; each by itself where that hides one. */
export function decimals(numbers, digits = 4) {
  const sizes = numbers.filter((number) => Number.isFinite(number) && number !== 0).map(Math.abs);
  const places = Math.max(0, digits - 1 - Math.floor(Math.log10(Math.max(...sizes, 1e-9))));
  const isPlain = sizes.every((size) => size < 1e6 && size >= 10 ** (1 - places)) && places <= 2 * digits;
  return numbers.map((number) => (isPlain && Number.isFinite(number) && Math.abs(number) < 1000 ? number.toFixed(places) : decimal(number, digits)));
}

export function rate(samplesPerS) {
  if (samplesPerS === null || samplesPerS === undefined) return NONE;
  return samplesPerS >= 100 ? count(samplesPerS) : decimal(samplesPerS, 3);
}

export function percent(fraction, digits = 0) {
  return fraction === null || !Number.isFinite(fraction) ? NONE : `${(100 * fraction).toFixed(digits)}${NARROW}%`;
}

/** Formats a metric of an evaluation; shares, such as an accuracy, as percentages. */
export function metric(name, value) {
  return isShare(name, value) ? percent(value, 1) : decimal(value);
}

/** A column of one metric's values, null where it has none. */
export function metricColumn(name, values) {
  const isOfShares = values.every((value) => value === null || isShare(name, value));
  return isOfShares ? values.map((value) => percent(value, 1)) : decimals(values);
}

/** A metric's name in words, such as "Reconstruction MSE". */
export function metricName(name) {
  const words = name.replaceAll("_", " ").replaceAll(/\b(mse|rmse|mae|bleu|auc|f1)\b/gi, (short) => short.toUpperCase());
  return words.charAt(0).toUpperCase() + words.slice(1);
}

const isShare = (name, value) => /acc|precision|recall|f1|auc/i.test(name) && value >= 0 && value <= 1;

export function duration(seconds) {
  if (seconds === null || seconds === undefined) return NONE;
  if (seconds > 0 && seconds < 1e-3) return `< 1${NARROW}ms`;
  if (seconds > 0 && seconds < 0.1) return `${Number((1000 * seconds).toPrecision(2))}${NARROW}ms`;
  if (seconds < 9.995) return `${Number.isInteger(seconds) ? Math.max(seconds, 0) : seconds.toFixed(2)}${NARROW}s`;
  const whole = Math.round(seconds);
  if (whole < 60) return `${whole}${NARROW}s`;
  if (whole < 3600) return inTwo(Math.floor(whole / 60), "min", whole % 60, "s");
  if (whole < 86400) return inTwo(Math.floor(whole / 3600), "h", Math.floor((whole % 3600) / 60), "min");
  return inTwo(Math.floor(whole / 86400), "d", Math.floor((whole % 86400) / 3600), "h");
}

/** The smaller unit is left out where there is none of it. */
function inTwo(large, unit, small, smallUnit) {
  const rest = small ? ` ${unit === "d" ? small : pad(small)}${NARROW}${smallUnit}` : "";
  return `${large}${NARROW}${unit}${rest}`;
}

/** Node-time, in node-hours or, below two, node-minutes: [number, unit]. */
export function nodeTime(nodeSeconds, unit = nodeSeconds >= 7200 ? "node-hours" : "node-minutes") {
  const number = nodeSeconds / (unit === "node-hours" ? 3600 : 60);
  return [number < 100 ? number.toFixed(1) : count(number), unit];
}

const sum = (numbers) => numbers.reduce((all, number) => all + number, 0);

/** Parts of a whole in one unit of node-time; the largest is so rounded that they add up to the whole as it is written. */
export function nodeTimes(parts, unit) {
  const perUnit = unit === "node-hours" ? 3600 : 60;
  const scale = sum(parts) / perUnit < 100 ? 10 : 1;
  const rounded = parts.map((part) => Math.round((scale * part) / perUnit));
  const largest = parts.indexOf(Math.max(...parts));
  rounded[largest] = Math.max(0, rounded[largest] + Math.round((scale * sum(parts)) / perUnit) - sum(rounded));
  return rounded.map((part) => (scale === 1 ? count(part) : (part / scale).toFixed(1)));
}

/** An amount of memory. */
export function bytes(number) {
  const [unit, size] = number >= 2 ** 30 ? ["GiB", 2 ** 30] : ["MiB", 2 ** 20];
  return `${decimal(number / size, 3)}${NARROW}${unit}`;
}

/** A sentence with commands in it, without marks that only terminals read, and with each number beside its unit. */
export function prose(text) {
  return text.replaceAll(/`([^`]*)`/g, "“$1”").replaceAll(UNIT, `$1${NARROW}$2`).replaceAll(APOSTROPHE, "’").replaceAll(PER_SECOND, `${NARROW}/${NARROW}s`);
}

/** The time of day in UTC, as in all that the service says and the command line prints. */
export function clock(at, withSeconds = true) {
  return new Date(at * 1000).toISOString().slice(11, withSeconds ? 19 : 16);
}

/** The day in UTC, such as `28 Nov`. */
export function day(at) {
  const date = new Date(at * 1000);
  return `${date.getUTCDate()} ${MONTHS[date.getUTCMonth()]}`;
}

/** Day and time of day in UTC. */
export function moment(at, withSeconds = true) {
  return `${day(at)} ${clock(at, withSeconds)}`;
}

/** The time of day in UTC, with the day where it is another one than `now`'s or may be taken for it. */
export function lately(at, now) {
  return Math.abs(now - at) < 72_000 ? clock(at) : moment(at, false);
}

export function nodes(number) {
  return number === 1 ? "1 node" : `${count(number)} nodes`;
}

function pad(number) {
  return String(number).padStart(2, "0");
}
