// One run: what its posterior makes of the image, step by step, and a walk through its latent space.
import { el, number, percent, settled, signed } from "./dom.js";
import { Plane } from "./plane.js";
import { fitted, screen, show } from "./picture.js";
import { Newest, Steady, post } from "./server.js";

const STEPS = 4;
const SAMPLES = 100;
const FAR = 3; // prior standard deviations that a walk reaches at least
const named = (run) => run.title.charAt(0).toUpperCase() + run.title.slice(1);

const figure = (canvas, caption) => el("figure", {}, canvas, el("figcaption", {}, caption));

const slider = (id, words, attributes) => {
  const input = el("input", { type: "range", id, step: "any", ...attributes });
  const value = el("output", { for: id });
  return { input, value, row: el("div", { class: "slider" }, el("label", { for: id }, words), value, input) };
};

export class Card {
  // `stepped` is told the step of refinement that was chosen here, `explained` when all is known.
  constructor(run, index, { stepped, explained }) {
    Object.assign(this, { run, index, explained, found: null, step: 0, offsets: new Map() });
    this.quick = new Steady();
    this.close = new Newest();
    this.walking = new Steady();
    this.explain = settled(() => this.#explain(), 250);
    this.#build(stepped);
  }

  #build(stepped) {
    const { run, index } = this;
    const id = `run-${index}`;
    const dims = run.latent === 1 ? "1 latent dimension" : `${run.latent} latent dimensions`;
    const facts = [named(run), run.components > 1 ? `${run.components} components` : null, dims, `${run.likelihood} likelihood`,
      run.epochs ? `${run.epochs} epochs` : null, run.refine ? `refines itself by ${run.refine} steps` : null];
    this.said = el("p", { class: "problem", role: "alert" });
    this.note = el("p", { class: "note" });
    this.original = screen("The image");
    this.rebuilt = screen(`Reconstruction by ${run.name}`);
    this.parts = Array.from({ length: run.components }, (_, k) => this.#component(k));
    this.numbers = Object.fromEntries(["elbo", "iwae", "evidence"].map((key) => [key, el("dd", {}, "…")]));
    const evidence = run.latent <= 2 ? el("div", {}, el("dt", {}, "log p(x), quadrature"), this.numbers.evidence) : null;
    this.plane = new Plane(run.name, (a, b) => this.#walkTo(a, b));
    this.box = el("article", { class: `card run r${index % 8}`, "aria-labelledby": id },
      el("div", { class: "busy-line", "aria-hidden": "true" }),
      el("header", {}, el("h3", { id }, run.name), el("p", { class: "facts" }, facts.filter(Boolean).join(" · "))),
      this.said,
      el("div", { class: "holds" }, el("div", { class: "seen" },
        el("div", { class: "pictures" }, figure(this.original, "image"), figure(this.rebuilt, "posterior mean")),
        el("div", {},
          el("h4", {}, run.components > 1 ? "Components, mixing weights α(x)" : "One component: its weight α(x) is 1"),
          el("ol", { class: "parts" }, ...this.parts.map((part) => part.item))))),
      el("dl", { class: "bounds" },
        el("div", {}, el("dt", {}, "ELBO"), this.numbers.elbo),
        el("div", {}, el("dt", {}, `IWAE-${SAMPLES}`), this.numbers.iwae),
        evidence),
      el("div", { class: "holds" }, el("div", { class: "look" },
        el("div", { class: "plot" }, this.plane.drawing, this.note),
        el("div", { class: "hands" }, this.#refinement(id, stepped), this.#walk(id)))));
  }

  #component(k) {
    const picture = screen(`Reconstruction by component ${k + 1}`);
    const share = el("span", { class: "share" }, "…");
    const bar = el("span", { class: "bar-fill" });
    const item = el("li", { class: `k${k % 12}` }, picture,
      el("span", { class: "words" }, el("b", {}, String(k + 1)), share),
      el("span", { class: "weight", "aria-hidden": "true" }, bar));
    return { item, picture, share, bar };
  }

  #refinement(id, stepped) {
    this.stepper = slider(`${id}-step`, "Gauss-Newton steps", { min: 0, max: STEPS, step: 1, value: 0 });
    this.stepper.input.addEventListener("input", () => stepped(Number(this.stepper.input.value)));
    this.refined = screen("Reconstruction after refinement");
    this.rows = Array.from({ length: STEPS + 1 }, (_, step) =>
      el("tr", {}, el("th", { scope: "row" }, String(step)), el("td", {}, "…"), el("td", {}, "…"), el("td", {}, "…")));
    const head = ["step", "log p(x, z)", "ELBO", "IWAE"].map((words) => el("th", { scope: "col" }, words));
    return el("fieldset", {}, el("legend", {}, "Refine"), this.stepper.row,
      el("div", { class: "beside" }, this.refined,
        el("table", { class: "steps" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...this.rows))));
  }

  #walk(id) {
    const { run } = this;
    this.walked = screen("Image at this place of the latent space");
    this.sides = [0, 1].slice(0, Math.min(2, run.latent)).map((axis) => {
      const made = slider(`${id}-axis-${axis}`, run.latent <= 2 ? `z${axis + 1}` : ["widest direction", "second widest"][axis], { min: -FAR, max: FAR, value: 0 });
      made.input.addEventListener("input", () => this.#decode());
      return made;
    });
    const rows = this.sides.map((side) => side.row);
    if (run.latent > 2) {
      this.choice = el("select", { id: `${id}-dimension` }, ...Array.from({ length: run.latent }, (_, d) => el("option", { value: d }, `z${d + 1}`)));
      this.single = slider(`${id}-single`, "moved by", { min: -FAR, max: FAR, value: 0 });
      this.choice.addEventListener("change", () => {
        this.single.input.value = this.offsets.get(Number(this.choice.value)) ?? 0;
        this.#decode();
      });
      this.single.input.addEventListener("input", () => {
        this.offsets.set(Number(this.choice.value), Number(this.single.input.value));
        this.#decode();
      });
      rows.push(el("div", { class: "choice" }, el("label", { for: `${id}-dimension` }, "single dimension"), this.choice), this.single.row);
    }
    this.back = el("button", { type: "button", class: "small" }, "Back to the mean");
    this.back.addEventListener("click", () => { this.#home(); this.#decode(); });
    return el("fieldset", {}, el("legend", {}, "Walk"),
      el("div", { class: "beside" }, this.walked, el("div", { class: "rows" }, ...rows, this.back)));
  }

  // Another image: pictures and weights at once, the rest when it stands still.
  look(image) {
    this.image = fitted(image, this.run.shape);
    show(this.original, this.image);
    this.close.cancel();
    this.box.setAttribute("aria-busy", "true");
    const asked = this.image;
    this.quick.run(() => post("/reconstruct", { images: [asked], run: this.run.name }), (found) => this.#show(found), (error) => this.#fail(error));
    this.explain();
  }

  #show(found) {
    show(this.rebuilt, found.images[0]);
    for (const [k, part] of this.parts.entries()) {
      const weight = found.weights[0][k] ?? 0;
      show(part.picture, found.components[0][k]);
      part.share.textContent = percent(weight);
      part.bar.style.setProperty("--share", `${100 * weight}%`);
      part.picture.setAttribute("aria-label", `Reconstruction by component ${k + 1}, weight ${percent(weight)}`);
    }
  }

  #explain() {
    if (this.box.hidden) return;
    const grid = this.run.latent <= 2 ? 80 : 40;
    const content = { image: this.image, run: this.run.name, steps: STEPS, samples: SAMPLES, grid };
    this.close.run((signal) => post("/explain", content, signal), (found) => this.#know(found), (error) => this.#fail(error));
  }

  #know(found) {
    this.box.removeAttribute("aria-busy");
    this.said.textContent = "";
    this.found = found;
    this.plane.draw(found);
    const { plane, components } = found;
    const together = components.length > 1 && components.every((part) => part.mean.every((v, d) => Math.abs(v - components[0].mean[d]) < 1e-6));
    this.note.textContent = [
      plane.kind === "slice" ? "A slice through the posterior mean: contours are of the slice, points and ellipses are projected onto it." : null,
      together ? "All components have the same mean here." : null,
      found.exact ? null : "Spreads are estimated from samples."].filter(Boolean).join(" ");
    this.numbers.evidence.replaceChildren(plane.log_evidence === null ? "…" : number(plane.log_evidence));
    found.refinement.forEach((at, step) => {
      [at.log_joint, at.elbo, at.iwae].forEach((value, i) => { this.rows[step].cells[i + 1].textContent = number(value); });
    });
    this.#home();
    show(this.walked, found.reconstruction);
    this.setStep(this.step);
    this.explained(this);
  }

  // Bounds, and how they compare with those of the first run that is on.
  compare(first) {
    const { bounds } = this.found;
    for (const key of ["elbo", "iwae"]) {
      const apart = first && first !== this ? el("span", { class: "gain" }, `${signed(bounds[key] - first.found.bounds[key])} over ${first.run.name}`) : null;
      this.numbers[key].replaceChildren(number(bounds[key]), ...(apart ? [apart] : []));
    }
  }

  #fail(error) {
    this.box.removeAttribute("aria-busy");
    this.said.textContent = error.message;
  }

  setStep(step) {
    this.step = step;
    this.stepper.input.value = step;
    this.stepper.value.textContent = step;
    this.rows.forEach((row, at) => row.toggleAttribute("data-now", at === step));
    if (!this.found) return;
    show(this.refined, this.found.refinement[step].reconstruction);
    this.plane.move(this.found.refinement, step, this.#place());
  }

  // --- the walk: z = origin + a · first axis + b · second axis + what single dimensions are moved by ---
  #place() {
    const [a, b] = this.sides.map((side) => Number(side.input.value));
    return [a, b ?? 0];
  }

  #home() {
    const { plane, mean } = this.found;
    this.offsets.clear();
    if (this.single) this.single.input.value = 0;
    this.sides.forEach(({ input }, axis) => {
      const window = axis === 0 ? plane.x : plane.y;
      input.min = Math.min(window[0], -FAR);
      input.max = Math.max(window.at(-1), FAR);
      input.value = plane.kind === "latent" ? mean[axis] : 0;
    });
    this.#label();
  }

  #label() {
    for (const side of this.sides) side.value.textContent = number(Number(side.input.value), 2);
    if (this.single) this.single.value.textContent = signed(Number(this.single.input.value), 2);
  }

  #walkTo(a, b) {
    [a, b].slice(0, this.sides.length).forEach((value, axis) => { this.sides[axis].input.value = value; });
    this.#decode();
  }

  #decode() {
    this.#label();
    if (!this.found) return;
    const { plane, refinement } = this.found;
    const [a, b] = this.#place();
    this.plane.move(refinement, this.step, [a, b]);
    const z = plane.origin.map((at, d) => at + a * plane.axes[0][d] + b * plane.axes[1][d] + (this.offsets.get(d) ?? 0));
    this.walking.run(() => post("/decode", { z: [z], run: this.run.name }), (found) => show(this.walked, found.images[0]), (error) => this.#fail(error));
  }

  stop() {
    this.close.cancel();
    this.quick.cancel();
    this.walking.cancel();
  }
}
