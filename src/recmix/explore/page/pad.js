// Drawing area for mouse, finger or pen. The model gets the drawing, averaged down to its own shape.
import { $ } from "./dom.js";
import { fromCanvas, imageCanvas, show } from "./picture.js";

const LONG_SIDE = 320;

export class Pad {
  // `onDraw` gets the image during drawing.
  constructor([channels, height, width], onDraw) {
    Object.assign(this, { shape: [channels, height, width], onDraw, last: null });
    this.scale = Math.max(1, Math.round(LONG_SIDE / Math.max(height, width)));
    this.canvas = $("pad");
    Object.assign(this.canvas, { width: width * this.scale, height: height * this.scale });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    $("ink-row").hidden = channels === 1;
    this.#clear();
    $("clear").addEventListener("click", () => { this.#clear(); this.#report(); });
    $("erase").addEventListener("click", () => $("erase").setAttribute("aria-pressed", String(!this.#erases())));
    const showSize = () => { $("brush-size").textContent = `${$("brush").value} px`; };
    const usual = Math.max(1, Math.round(0.08 * Math.max(height, width) * 2) / 2);
    Object.assign($("brush"), { max: Math.max(4, 4 * usual), value: usual });
    $("brush").addEventListener("input", showSize);
    showSize();
    this.canvas.addEventListener("pointerdown", (event) => this.#start(event));
    this.canvas.addEventListener("pointermove", (event) => this.#move(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => { this.last = null; });
  }

  #erases() { return $("erase").getAttribute("aria-pressed") === "true"; }

  #clear() {
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
  }

  // Puts an image on the pad to draw on it.
  load(image) {
    const small = imageCanvas("");
    show(small, image);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(small, 0, 0, this.canvas.width, this.canvas.height);
    this.#report();
  }

  #point(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.canvas.width, ((event.clientY - box.top) / box.height) * this.canvas.height];
  }

  #start(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.#point(event);
    this.#stroke(event);
    this.#report();
  }

  #move(event) {
    if (!this.last) return;
    const events = event.getCoalescedEvents?.() ?? [];
    for (const one of events.length ? events : [event]) this.#stroke(one);
    this.#report();
  }

  #stroke(event) {
    const { context } = this;
    const [x, y] = this.#point(event);
    const pressure = event.pointerType === "pen" && event.pressure ? 0.4 + 1.2 * event.pressure : 1;
    const ink = $("ink-row").hidden ? "#fff" : $("ink").value;
    context.strokeStyle = this.#erases() ? "#000" : ink;
    context.lineWidth = Number($("brush").value) * this.scale * pressure;
    context.lineCap = "round";
    context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...this.last);
    context.lineTo(x, y + 0.01); // a click draws a dot
    context.stroke();
    this.last = [x, y];
  }

  // At most once per animation frame.
  #report() {
    if (this.waiting) return;
    this.waiting = true;
    requestAnimationFrame(() => {
      this.waiting = false;
      this.onDraw(fromCanvas(this.canvas, this.shape));
    });
  }
}
