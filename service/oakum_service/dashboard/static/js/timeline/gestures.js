// Moving and zooming the window by wheel, drag, two fingers and keys.

const WHEEL_ZOOM = 1.0015;
const KEY_ZOOM = 1.5;
const KEY_PAN = 0.2;
const DRAG_FROM_PX = 4;

/**
 * Listens on the rows and on the axis. `on` has `zoom(factor, clientX)`, `pan(px)`, `panShare(share)`, `now()`,
 * `released()`, `clicked(event)`, and for keys `step(rows, bars)`, `open()` and `leave()`, which return false where
 * they have nothing to do.
 */
export class Gestures {
  #pointers = new Map();
  #dragging = false;

  constructor(rows, axis, on) {
    this.on = on;
    axis.addEventListener("wheel", (event) => this.#wheel(event, true), { passive: false });
    rows.addEventListener("wheel", (event) => this.#wheel(event, event.ctrlKey || event.metaKey), { passive: false });
    for (const element of [rows, axis]) {
      element.addEventListener("pointerdown", (event) => this.#down(event, element));
      element.addEventListener("pointermove", (event) => this.#move(event));
      for (const end of ["pointerup", "pointercancel"]) element.addEventListener(end, (event) => this.#up(event));
      element.addEventListener("dblclick", (event) => on.zoom(1 / (KEY_ZOOM * KEY_ZOOM), event.clientX));
    }
    rows.addEventListener("keydown", (event) => this.#key(event));
  }

  get isDragging() {
    return this.#dragging;
  }

  #wheel(event, zooms) {
    const sideways = Math.abs(event.deltaX) > Math.abs(event.deltaY) ? event.deltaX : event.shiftKey ? event.deltaY : 0;
    if (sideways) this.on.pan(sideways);
    else if (zooms) this.on.zoom(WHEEL_ZOOM ** event.deltaY, event.clientX);
    else return;
    event.preventDefault();
    this.on.released();
  }

  #down(event, element) {
    if (event.button !== 0) return;
    this.#pointers.set(event.pointerId, { x: event.clientX, y: event.clientY, element });
    this.begun = { x: event.clientX, y: event.clientY };
  }

  #move(event) {
    const known = this.#pointers.get(event.pointerId);
    if (!known) return;
    if (this.#pointers.size === 2) this.#pinch(event, known);
    else if (this.#dragging || Math.abs(event.clientX - this.begun.x) > DRAG_FROM_PX) {
      if (!this.#dragging) known.element.setPointerCapture(event.pointerId);
      this.#dragging = true;
      this.on.pan(known.x - event.clientX);
    } else return;
    known.x = event.clientX;
    known.y = event.clientY;
  }

  #pinch(event, moved) {
    const other = [...this.#pointers.values()].find((pointer) => pointer !== moved);
    const before = Math.hypot(moved.x - other.x, moved.y - other.y);
    const after = Math.hypot(event.clientX - other.x, event.clientY - other.y);
    this.#dragging = true;
    if (before > 10 && after > 10) this.on.zoom(before / after, (event.clientX + other.x) / 2);
  }

  #up(event) {
    if (!this.#pointers.delete(event.pointerId)) return;
    if (this.#pointers.size) return;
    const dragged = this.#dragging;
    this.#dragging = false;
    if (dragged) this.on.released();
    else if (event.type === "pointerup") this.on.clicked(event);
  }

  #key(event) {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const done = {
      "+": () => this.on.zoom(1 / KEY_ZOOM, null),
      "=": () => this.on.zoom(1 / KEY_ZOOM, null),
      "-": () => this.on.zoom(KEY_ZOOM, null),
      "Shift ArrowLeft": () => this.on.panShare(-KEY_PAN),
      "Shift ArrowRight": () => this.on.panShare(KEY_PAN),
      ArrowLeft: () => this.on.step(0, -1),
      ArrowRight: () => this.on.step(0, 1),
      ArrowUp: () => this.on.step(-1, 0),
      ArrowDown: () => this.on.step(1, 0),
      Enter: () => this.on.open(),
      Escape: () => this.on.leave(),
      n: () => this.on.now(),
    }[event.shiftKey && event.key.startsWith("Arrow") ? `Shift ${event.key}` : event.key];
    if (!done || done() === false) return;
    event.preventDefault();
    this.on.released();
  }
}
