// Numbers in 0 ... 1 as a picture: a pixel for each, from the canvas's background (0) to its text colour (1).

/** Shows `values`, row by row, in a canvas of one pixel each; null shows an empty picture. */
export function showPixels(canvas, values, label) {
  const { width, height } = canvas;
  const style = getComputedStyle(canvas);
  const [paper, ink] = [rgb(style.backgroundColor), rgb(style.color)];
  const image = new ImageData(width, height);
  for (let at = 0; at < width * height; at++) {
    const share = values?.[at] ?? 0;
    for (let part = 0; part < 3; part++) image.data[4 * at + part] = Math.round(paper[part] + share * (ink[part] - paper[part]));
    image.data[4 * at + 3] = 255;
  }
  canvas.getContext("2d").putImageData(image, 0, 0);
  canvas.setAttribute("aria-label", label);
}

function rgb(colour) {
  return colour.match(/[\d.]+/g).slice(0, 3).map(Number);
}
