// Samples of the prior, and interpolation between two images: one panel for each run.
import { $, el } from "./dom.js";
import { runHue } from "./run_card.js";
import { imageCanvas, resized, shaped, show } from "./picture.js";
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

// Samples of the prior on one panel for each run. `show` shows an answer on a panel.
export class PriorSamples {
  constructor(prefix, panels, count, show) {
    Object.assign(this, { prefix, panels, count, show });
    $(`${prefix}samples`).append(...panels.map(({ box }) => box));
    $(`${prefix}resample`).addEventListener("click", () => this.draw());
  }

  // All runs get the same seed, so runs with equally many latent dimensions decode the same z.
  draw() {
    const seed = Math.floor(Math.random() * 1e6);
    $(`${this.prefix}seed`).textContent = `seed ${seed}`;
    return Promise.all(this.panels.map((panel) => panel.ask("/sample", { count: this.count, seed }, (found) => this.show(panel, found))));
  }
}

export const imageSamples = (runs) => {
  const panels = runs.map((run, index) => {
    const pictures = Array.from({ length: COUNT }, (_, i) => imageCanvas(`Sample ${i + 1} of the prior of ${run.name}`));
    return Object.assign(new Panel(run, index, el("div", { class: "samples" }, ...pictures)), { pictures });
  });
  return new PriorSamples("", panels, COUNT, ({ run, pictures }, { images }) => { pictures.forEach((picture, i) => show(picture, shaped(images[i], run.image))); });
};

// Interpolation between two examples. A subclass defines showEnd(end, example) and ask(a, b).
export class Interpolation {
  // `current` returns the current example.
  constructor(prefix, panels, current) {
    Object.assign(this, { panels, ends: { a: null, b: null } });
    $(`${prefix}interpolations`).append(...panels.map(({ box }) => box));
    for (const end of ["a", "b"]) $(`${prefix}take-${end}`).addEventListener("click", () => this.set(end, current()));
    $(`${prefix}swap`).addEventListener("click", () => {
      const { a, b } = this.ends;
      this.set("a", b);
      this.set("b", a);
    });
    this.askSoon = debounced(() => { if (this.ends.a && this.ends.b) this.ask(this.ends.a, this.ends.b); }, 60);
  }

  set(end, example) {
    if (!example) return;
    this.ends[end] = example;
    this.showEnd(end, example);
    this.askSoon();
  }
}

export class ImageInterpolation extends Interpolation {
  constructor(runs, current) {
    const panels = runs.map((run, index) => {
      const frames = Array.from({ length: FRAMES }, () => imageCanvas(""));
      const large = imageCanvas(`Interpolated image of ${run.name}`, { class: "large" });
      const content = el("div", { class: "interpolation" }, large, el("div", { class: "frames", "aria-hidden": "true" }, ...frames));
      return Object.assign(new Panel(run, index, content), { frames, large, images: null });
    });
    super("", panels, current);
    $("position").addEventListener("input", () => this.#showPosition());
  }

  showEnd(end, image) {
    show($(`end-${end}`), image);
  }

  ask(a, b) {
    for (const panel of this.panels) {
      const images = [a, b].map((image) => resized(image, panel.run.image));
      panel.ask("/interpolate", { images, steps: FRAMES }, (found) => {
        panel.images = found.images.map((image) => shaped(image, panel.run.image));
        panel.frames.forEach((frame, i) => show(frame, panel.images[i]));
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
