// Samples of the prior, and interpolation between two images: one panel for each run.
import { $, el } from "./dom.js";
import { runHue } from "./card.js";
import { imageCanvas, resized, show } from "./picture.js";
import { LatestOnly, debounced, post } from "./server.js";

const COUNT = 16;
const FRAMES = 9;

export class Panel {
  constructor(run, index, content) {
    Object.assign(this, { run, requests: new LatestOnly(), problem: el("p", { class: "problem", role: "alert" }) });
    this.box = el("article", { class: `card ${runHue(index)}`, "aria-label": run.name },
      el("div", { class: "busy-line", "aria-hidden": "true" }), el("h3", {}, run.name), this.problem, content);
  }

  // Posts a request for this run. The panel shows that it waits, and errors.
  ask(path, content, then) {
    this.box.setAttribute("aria-busy", "true");
    const end = (message) => { this.box.removeAttribute("aria-busy"); this.problem.textContent = message; };
    return this.requests.run((signal) => post(path, { ...content, run: this.run.name }, signal),
      (found) => { end(""); then(found); }, (error) => end(error.message));
  }
}

export class PriorSamples {
  constructor(runs) {
    this.panels = runs.map((run, index) => {
      const pictures = Array.from({ length: COUNT }, (_, i) => imageCanvas(`Sample ${i + 1} of the prior of ${run.name}`));
      return Object.assign(new Panel(run, index, el("div", { class: "samples" }, ...pictures)), { pictures });
    });
    $("samples").append(...this.panels.map(({ box }) => box));
    $("resample").addEventListener("click", () => this.draw());
  }

  // All runs get the same seed, so runs with equally many latent dimensions decode the same z.
  draw() {
    const seed = Math.floor(Math.random() * 1e6);
    $("seed").textContent = `seed ${seed}`;
    return Promise.all(this.panels.map((panel) => panel.ask("/sample", { count: COUNT, seed }, ({ images }) => {
      panel.pictures.forEach((picture, i) => show(picture, images[i]));
    })));
  }
}

export class Interpolation {
  // `current` returns the current image.
  constructor(runs, current) {
    this.ends = { a: null, b: null };
    this.panels = runs.map((run, index) => {
      const frames = Array.from({ length: FRAMES }, () => imageCanvas(""));
      const large = imageCanvas(`Interpolated image of ${run.name}`, { class: "large" });
      const content = el("div", { class: "interpolation" }, large, el("div", { class: "frames", "aria-hidden": "true" }, ...frames));
      return Object.assign(new Panel(run, index, content), { frames, large, images: null });
    });
    $("interpolations").append(...this.panels.map(({ box }) => box));
    for (const end of ["a", "b"]) $(`take-${end}`).addEventListener("click", () => this.set(end, current()));
    $("swap").addEventListener("click", () => {
      const { a, b } = this.ends;
      this.set("a", b);
      this.set("b", a);
    });
    $("position").addEventListener("input", () => this.#showPosition());
    this.askSoon = debounced(() => this.#ask(), 60);
  }

  set(end, image) {
    if (!image) return;
    this.ends[end] = image;
    show($(`end-${end}`), image);
    this.askSoon();
  }

  #ask() {
    const { a, b } = this.ends;
    if (!a || !b) return;
    for (const panel of this.panels) {
      const images = [a, b].map((image) => resized(image, panel.run.shape));
      panel.ask("/interpolate", { images, steps: FRAMES }, (found) => {
        panel.images = found.images;
        panel.frames.forEach((frame, i) => show(frame, found.images[i]));
        this.#showPosition();
      });
    }
  }

  #showPosition() {
    const at = Number($("position").value);
    $("position-text").textContent = `${Math.round((100 * at) / (FRAMES - 1))} % from A to B`;
    for (const { images, large, frames } of this.panels) {
      if (images) show(large, images[at]);
      frames.forEach((frame, i) => frame.classList.toggle("now", i === at));
    }
  }
}
