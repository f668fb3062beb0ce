// The pad that is drawn on, with mouse, pen or finger. Strokes are lists of points in 0 ... 1, y downwards.

/** Width of the ink on the screen, as a share of the pad's side. The networks see a pen of their own. */
const PEN = 0.055;

export class Pad {
  constructor(canvas, onChange) {
    this.canvas = canvas;
    this.onChange = onChange;
    this.strokes = [];
    this.isExample = false;
    this.pointer = null;
    canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    canvas.addEventListener("pointermove", (event) => this.#goOn(event));
    for (const end of ["pointerup", "pointercancel"]) canvas.addEventListener(end, (event) => this.#end(event));
    new ResizeObserver(() => this.draw()).observe(canvas);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.draw());
  }

  show(strokes) {
    this.strokes = strokes;
    this.isExample = strokes.length > 0;
    this.pointer = null;
    this.#changed();
  }

  clear() {
    this.show([]);
  }

  #begin(event) {
    if (this.pointer !== null || event.button !== 0) return;
    event.preventDefault();
    this.pointer = event.pointerId;
    this.canvas.setPointerCapture(event.pointerId);
    if (this.isExample) this.strokes = [];
    this.isExample = false;
    this.strokes.push([this.#place(event)]);
    this.#changed();
  }

  #goOn(event) {
    if (event.pointerId !== this.pointer) return;
    const stroke = this.strokes.at(-1);
    const from = stroke.length - 1;
    const passed = event.getCoalescedEvents();
    for (const each of passed.length ? passed : [event]) stroke.push(this.#place(each));
    this.#line(stroke, from);
    this.onChange(this.strokes);
  }

  #end(event) {
    if (event.pointerId === this.pointer) this.pointer = null;
  }

  #place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [(event.clientX - box.left) / box.width, (event.clientY - box.top) / box.height];
  }

  #changed() {
    const number = this.strokes.length;
    const what = number === 0 ? "empty" : this.isExample ? "an example" : number === 1 ? "1 stroke" : `${number} strokes`;
    this.canvas.setAttribute("aria-label", `Drawing: ${what}`);
    this.draw();
    this.onChange(this.strokes);
  }

  draw() {
    const side = Math.round(this.canvas.clientWidth * devicePixelRatio);
    this.canvas.width = side;
    this.canvas.height = side;
    Object.assign(this.canvas.getContext("2d"), { lineWidth: PEN * side, lineCap: "round", lineJoin: "round", strokeStyle: getComputedStyle(this.canvas).color });
    for (const stroke of this.strokes) this.#line(stroke, 0);
  }

  /** Draws a stroke from its point number `from` on: what is drawn already is not drawn again as it grows. */
  #line(stroke, from) {
    const { width: side } = this.canvas;
    const context = this.canvas.getContext("2d");
    context.beginPath();
    context.moveTo(stroke[from][0] * side, stroke[from][1] * side);
    for (let i = from; i < stroke.length; i++) context.lineTo(stroke[i][0] * side, stroke[i][1] * side);
    context.stroke();
  }
}
