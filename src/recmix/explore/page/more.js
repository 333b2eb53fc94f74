// Samples of the prior, and the way from one image to another: a row for each run.
import { $, el, settled } from "./dom.js";
import { fitted, screen, show } from "./picture.js";
import { Newest, post } from "./server.js";

const COUNT = 16;
const FRAMES = 9;

const panel = (run, index, content) => {
  const problem = el("p", { class: "problem", role: "alert" });
  const box = el("article", { class: `card r${index % 8}`, "aria-label": run.name }, el("div", { class: "busy-line", "aria-hidden": "true" }), el("h3", {}, run.name), problem, content);
  return { box, problem };
};

// The outcome of a request in a panel.
const inside = ({ box, problem }, latest, work, then) => {
  box.setAttribute("aria-busy", "true");
  const end = (words) => { box.removeAttribute("aria-busy"); problem.textContent = words; };
  return latest.run(work, (found) => { end(""); then(found); }, (error) => end(error.message));
};

export class Samples {
  constructor(runs) {
    this.rows = runs.map((run, index) => {
      const pictures = Array.from({ length: COUNT }, (_, i) => screen(`Sample ${i + 1} of the prior of ${run.name}`));
      return { run, pictures, latest: new Newest(), ...panel(run, index, el("div", { class: "samples" }, ...pictures)) };
    });
    $("samples").append(...this.rows.map((row) => row.box));
    $("resample").addEventListener("click", () => this.draw());
  }

  // The same noise for every run, so that runs of one latent size can be compared.
  draw() {
    const seed = Math.floor(Math.random() * 1e6);
    $("seed").textContent = `seed ${seed}`;
    return Promise.all(this.rows.map((row) =>
      inside(row, row.latest, (signal) => post("/sample", { count: COUNT, seed, run: row.run.name }, signal), ({ images }) => {
        row.pictures.forEach((picture, i) => show(picture, images[i]));
      })));
  }
}

export class Between {
  // `current` gives the image that is looked at.
  constructor(runs, current) {
    this.ends = { a: null, b: null };
    this.rows = runs.map((run, index) => {
      const frames = Array.from({ length: FRAMES }, () => screen(""));
      const large = screen(`Between A and B, by ${run.name}`, { class: "large" });
      const strip = el("div", { class: "film", "aria-hidden": "true" }, ...frames);
      return { run, frames, large, images: null, latest: new Newest(), ...panel(run, index, el("div", { class: "film-row" }, large, strip)) };
    });
    $("between").append(...this.rows.map((row) => row.box));
    for (const end of ["a", "b"]) $(`take-${end}`).addEventListener("click", () => this.set(end, current()));
    $("swap").addEventListener("click", () => {
      const { a, b } = this.ends;
      this.set("a", b);
      this.set("b", a);
    });
    $("share").addEventListener("input", () => this.#place());
    this.ask = settled(() => this.#ask(), 60);
  }

  set(end, image) {
    if (!image) return;
    this.ends[end] = image;
    show($(`end-${end}`), image);
    this.ask();
  }

  #ask() {
    const { a, b } = this.ends;
    if (!a || !b) return;
    for (const row of this.rows) {
      const images = [a, b].map((image) => fitted(image, row.run.shape));
      inside(row, row.latest, (signal) => post("/interpolate", { images, steps: FRAMES, run: row.run.name }, signal), (found) => {
        row.images = found.images;
        row.frames.forEach((frame, i) => show(frame, found.images[i]));
        this.#place();
      });
    }
  }

  #place() {
    const at = Number($("share").value);
    $("share-words").textContent = `${Math.round((100 * at) / (FRAMES - 1))} % of the way from A to B`;
    for (const row of this.rows) {
      if (row.images) show(row.large, row.images[at]);
      row.frames.forEach((frame, i) => frame.classList.toggle("now", i === at));
    }
  }
}
