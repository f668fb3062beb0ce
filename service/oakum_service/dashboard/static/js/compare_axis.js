// Points of several trainers over one of several quantities. Pure.

export const AXES = [
  ["step", "Steps"],
  ["samples", "Samples"],
  ["node_hours", "Node-hours"],
  ["time", "Hours since its start"],
];

/** The loss of a point, or the mean loss of all points that it stands for. */
export function lossOf({ loss, loss_mean: mean }) {
  return mean ?? loss;
}

/** Node-hours that the trainer had used at each of its points; unknown stretches count nothing. */
export function nodeHours(points) {
  let used = 0;
  return points.map((point, i) => {
    const before = points[i - 1];
    if (before?.nodes) used += (before.nodes * (point.at - before.at)) / 3600;
    return used;
  });
}

/** The trainer's lines: `{ x, y }` with null where there was nothing, over the axis, of a metric or of an evaluation. */
export function lineOf({ view, points, evaluations }, axis, metric) {
  const hours = nodeHours(points);
  const perStep = view.step > 0 ? view.samples / view.step : (view.global_batch ?? view.spec.global_batch);
  const begin = points[0]?.at ?? view.started_at ?? 0;
  const place = (point, i) => ({ step: point.step, samples: point.step * perStep, node_hours: hours[i], time: (point.at - begin) / 3600 })[axis];
  if (metric === "loss" || metric === "samples_per_s" || metric === "nodes") {
    return { x: points.map(place), y: points.map((point) => (metric === "loss" ? lossOf(point) : point[metric])) };
  }
  const known = evaluations.filter(({ metrics }) => metric in metrics);
  const x = known.map((evaluation) => {
    const after = points.findIndex(({ at }) => at >= evaluation.at);
    const i = after < 0 ? points.length - 1 : after;
    if (axis === "step" || axis === "samples" || i < 0) return place(evaluation, i);
    return axis === "time" ? (evaluation.at - begin) / 3600 : hours[i];
  });
  return { x, y: known.map(({ metrics }) => metrics[metric]) };
}

const LESS_IS_BETTER = /loss|err|mse|mae|perplex|\bppl|distance|fid\b/i;
const MORE_IS_BETTER = /acc|precision|recall|f1|auc|score|bleu|rouge|r2|iou|rate/i;

/** The best of a metric, as its name tells: the least of losses and errors, the greatest of accuracies and the like. */
export function bestOf(name, values) {
  const known = values.filter((value) => Number.isFinite(value));
  if (!known.length) return null;
  return !LESS_IS_BETTER.test(name) && MORE_IS_BETTER.test(name) ? Math.max(...known) : Math.min(...known);
}
