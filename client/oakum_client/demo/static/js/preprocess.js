// Strokes as the digits of scikit-learn's set were made from handwriting: a bitmap of 32 x 32 pixels that the digit
// fills from top to bottom, and of each of its 8 x 8 blocks of 4 x 4 pixels how many are inked, 0 ... 16.
// E. Alpaydin, C. Kaynak: Optical Recognition of Handwritten Digits, UCI Machine Learning Repository (1998).

export const SIDE = 8;
const BLOCK = 4;
const BITMAP = SIDE * BLOCK;
/** No digit of the set is wider: its outermost columns are empty. */
const WIDEST = 26;
/** The share of pixels that is inked in the set, on average. */
const INKED = 0.304;
/** Half the width of the pen, in pixels of the bitmap: between these, as the share of ink asks for. */
const THINNEST = 1.8;
const THICKEST = 3.4;
const HALVINGS = 7;
/** Points nearer to the last one than this, in pixels of the bitmap, add nothing. */
const NEAR = 0.1;

/** Below it, as a share of the pad, a drawing is a dot. */
const SMALLEST = 0.05;
/** Every digit is at least so high as a share of its width: what is flatter is a line that lies. */
const FLATTEST = 0.35;

/** Whether strokes on the pad can be a digit at all: neither a dot nor a line that lies. */
export function maybeDigit(strokes) {
  const { width, height } = boundingBox(strokes);
  return Math.max(width, height) >= SMALLEST && height >= FLATTEST * width;
}

/** 64 numbers in 0 ... 1, row by row, of strokes: lists of points [x, y] in any unit, y downwards. Null without a point. */
export function seen(strokes) {
  if (!strokes.some(({ length }) => length > 0)) return null;
  const box = boundingBox(strokes);
  let [thin, thick] = [THINNEST, THICKEST];
  for (let i = 0; i < HALVINGS; i++) {
    const radius = (thin + thick) / 2;
    if (share(bitmap(strokes, box, radius)) < INKED) thin = radius;
    else thick = radius;
  }
  return blockCounts(bitmap(strokes, box, (thin + thick) / 2)).map((count) => count / BLOCK ** 2);
}

function boundingBox(strokes) {
  let [left, right, top, bottom] = [Infinity, -Infinity, Infinity, -Infinity];
  for (const stroke of strokes) {
    for (const [x, y] of stroke) {
      [left, right] = [Math.min(left, x), Math.max(right, x)];
      [top, bottom] = [Math.min(top, y), Math.max(bottom, y)];
    }
  }
  return { x: (left + right) / 2, y: (top + bottom) / 2, width: right - left, height: bottom - top };
}

/** The pixels, 1 where inked, of the strokes drawn with a round pen so that they fill the bitmap's height. */
function bitmap(strokes, box, radius) {
  const room = BITMAP - 2 * radius;
  const wide = WIDEST - 2 * radius;
  const longer = Math.max(box.width, box.height);
  const scale = longer > 0 ? room / longer : 0;
  const across = box.width * scale > wide ? wide / box.width : scale;
  const place = ([x, y]) => [(x - box.x) * across + BITMAP / 2, (y - box.y) * scale + BITMAP / 2];
  const pixels = new Uint8Array(BITMAP ** 2);
  for (const stroke of strokes) {
    let last = null;
    for (const point of stroke) {
      const here = place(point);
      // A pen reports hundreds of points within a pixel.
      if (last !== null && point !== stroke.at(-1) && Math.hypot(here[0] - last[0], here[1] - last[1]) < NEAR) continue;
      ink(pixels, last ?? here, here, radius);
      last = here;
    }
  }
  return pixels;
}

/** Inks the pixels whose centres are within `radius` of the line from `a` to `b`. */
function ink(pixels, a, b, radius) {
  const [dx, dy] = [b[0] - a[0], b[1] - a[1]];
  const length2 = dx * dx + dy * dy;
  const [left, right] = range(a[0], b[0], radius);
  const [top, bottom] = range(a[1], b[1], radius);
  for (let row = top; row <= bottom; row++) {
    for (let column = left; column <= right; column++) {
      const [px, py] = [column + 0.5 - a[0], row + 0.5 - a[1]];
      const along = length2 > 0 ? Math.min(Math.max((px * dx + py * dy) / length2, 0), 1) : 0;
      if ((px - along * dx) ** 2 + (py - along * dy) ** 2 <= radius * radius) pixels.fill(1, row * BITMAP + column, row * BITMAP + column + 1);
    }
  }
}

function range(from, to, radius) {
  const first = Math.floor(Math.min(from, to) - radius);
  const last = Math.ceil(Math.max(from, to) + radius);
  return [Math.max(first, 0), Math.min(last, BITMAP - 1)];
}

function share(pixels) {
  return pixels.reduce((sum, pixel) => sum + pixel, 0) / pixels.length;
}

function blockCounts(pixels) {
  const counts = Array.from({ length: SIDE * SIDE }, () => 0);
  for (const [at, pixel] of pixels.entries()) {
    const [row, column] = [Math.floor(at / BITMAP), at % BITMAP];
    counts[Math.floor(row / BLOCK) * SIDE + Math.floor(column / BLOCK)] += pixel;
  }
  return counts;
}
