// Drawing with mouse, finger or pen, large; the model gets it averaged down to its own shape.
import { $ } from "./dom.js";
import { screen, show, taken } from "./picture.js";

const LONG = 320;

export class Pad {
  // `drawn` is told the image while it is drawn.
  constructor([channels, height, width], drawn) {
    Object.assign(this, { shape: [channels, height, width], drawn, last: null });
    const scale = Math.max(1, Math.round(LONG / Math.max(height, width)));
    this.canvas = $("pad");
    Object.assign(this.canvas, { width: width * scale, height: height * scale });
    this.context = this.canvas.getContext("2d", { willReadFrequently: true });
    this.pixel = scale;
    $("ink-row").hidden = channels === 1;
    this.#clear();
    $("clear").addEventListener("click", () => { this.#clear(); this.#tell(); });
    $("erase").addEventListener("click", () => {
      $("erase").setAttribute("aria-pressed", String($("erase").getAttribute("aria-pressed") !== "true"));
    });
    const size = () => { $("brush-words").textContent = `${$("brush").value} px`; };
    const thick = Math.max(1, Math.round(0.08 * Math.max(height, width) * 2) / 2);
    Object.assign($("brush"), { max: Math.max(4, 4 * thick), value: thick });
    $("brush").addEventListener("input", size);
    size();
    this.canvas.addEventListener("pointerdown", (event) => this.#begin(event));
    this.canvas.addEventListener("pointermove", (event) => this.#go(event));
    for (const end of ["pointerup", "pointercancel"]) this.canvas.addEventListener(end, () => { this.last = null; });
  }

  #clear() {
    this.context.fillStyle = "#000";
    this.context.fillRect(0, 0, this.canvas.width, this.canvas.height);
  }

  // Go on from an image.
  take(image) {
    const small = screen("");
    show(small, image);
    this.context.imageSmoothingEnabled = false;
    this.context.drawImage(small, 0, 0, this.canvas.width, this.canvas.height);
    this.#tell();
  }

  #spot(event) {
    const box = this.canvas.getBoundingClientRect();
    return [((event.clientX - box.left) / box.width) * this.canvas.width, ((event.clientY - box.top) / box.height) * this.canvas.height];
  }

  #begin(event) {
    if (event.button !== 0) return;
    event.preventDefault();
    this.canvas.setPointerCapture(event.pointerId);
    this.last = this.#spot(event);
    this.#stroke(event, this.last);
    this.#tell();
  }

  #go(event) {
    if (!this.last) return;
    const between = event.getCoalescedEvents?.() ?? [];
    for (const one of between.length ? between : [event]) this.#stroke(one, this.#spot(one));
    this.#tell();
  }

  #stroke(event, to) {
    const { context } = this;
    const pressed = event.pointerType === "pen" && event.pressure ? 0.4 + 1.2 * event.pressure : 1;
    const ink = $("ink-row").hidden ? "#fff" : $("ink").value;
    context.strokeStyle = $("erase").getAttribute("aria-pressed") === "true" ? "#000" : ink;
    context.lineWidth = Number($("brush").value) * this.pixel * pressed;
    context.lineCap = "round";
    context.lineJoin = "round";
    context.beginPath();
    context.moveTo(...this.last);
    context.lineTo(to[0], to[1] + 0.01); // a touch leaves a dot
    context.stroke();
    this.last = to;
  }

  // At most once per frame.
  #tell() {
    if (this.waits) return;
    this.waits = true;
    requestAnimationFrame(() => {
      this.waits = false;
      this.drawn(taken(this.canvas, this.shape));
    });
  }
}
