// Strokes of the ten digits as somebody might draw them, for who cannot draw here. Points [x, y] in 0 ... 1, y downwards.

/** Points on an ellipse around (x, y), from one angle to another in degrees, clockwise from the right. */
function arc(x, y, width, height, from, to) {
  const steps = Math.ceil(Math.abs(to - from) / 15);
  return Array.from({ length: steps + 1 }, (_, i) => {
    const angle = ((from + ((to - from) * i) / steps) * Math.PI) / 180;
    return [x + width * Math.cos(angle), y + height * Math.sin(angle)];
  });
}

export const EXAMPLES = [
  [arc(0.5, 0.5, 0.24, 0.38, -90, 270)],
  [[[0.36, 0.3], [0.52, 0.12], [0.52, 0.88]]],
  [[...arc(0.5, 0.32, 0.22, 0.2, -170, 40), [0.28, 0.88], [0.74, 0.88]]],
  [[...arc(0.47, 0.31, 0.21, 0.19, -150, 90), ...arc(0.47, 0.69, 0.24, 0.19, -90, 150)]],
  [[[0.52, 0.12], [0.26, 0.62], [0.76, 0.62]], [[0.6, 0.4], [0.6, 0.88]]],
  [[[0.7, 0.12], [0.34, 0.12], [0.32, 0.46], ...arc(0.48, 0.66, 0.23, 0.22, -130, 140)]],
  [[[0.5, 0.12], [0.38, 0.34], [0.32, 0.56], ...arc(0.5, 0.71, 0.19, 0.17, 180, -180)]],
  [[[0.26, 0.12], [0.74, 0.12], [0.44, 0.88]], [[0.38, 0.5], [0.7, 0.5]]],
  [[...arc(0.5, 0.31, 0.18, 0.19, 90, 450), ...arc(0.5, 0.69, 0.22, 0.19, -90, 270)]],
  [[...arc(0.48, 0.32, 0.2, 0.2, 0, -360), [0.68, 0.32], [0.66, 0.62], [0.52, 0.88]]],
];
