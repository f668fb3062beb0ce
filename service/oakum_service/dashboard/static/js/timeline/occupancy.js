// Shares of the nodes' time by use, as the service tells them: a digit of base 36 for each column.

/** Uses, of which each has the colour `--USE`, and what they are called. */
export const USE_NAMES = { foreground: "foreground jobs", training: "training, all trainers", idle: "idle, or warming up" };
export const USES = Object.keys(USE_NAMES);

export async function occupancyOf(api, { from, to }, columns, bands) {
  const asked = { from_at: from.toFixed(0), to_at: to.toFixed(0), columns, bands };
  const answer = await api.get(`v1/timeline/occupancy?${new URLSearchParams(asked)}`);
  return { from: answer.from_at, to: answer.to_at, keptFrom: answer.kept_from, columns: answer.columns, bands: answer.bands };
}

/** The share, from 0 to 1, of a band's use in a column. */
export function shareOf(band, use, column) {
  return parseInt(band[use][column], 36) / 35;
}
