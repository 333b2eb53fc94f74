// The card of one run: reconstruction, components, bounds, latent space, refinement, decoded point.
import { el, number } from "./dom.js";
import { Plane } from "./plane.js";
import { imageCanvas, resized, shaped, show } from "./picture.js";
import { RunCard, percent, signed, slider } from "./run_card.js";
import { OneAtATime, post } from "./server.js";

const STEPS = 4;
const SAMPLES = 100;
const REACH = 3; // sliders go at least this many prior standard deviations from 0

const figure = (canvas, caption) => el("figure", {}, canvas, el("figcaption", {}, caption));

export class Card extends RunCard {
  // `how` has `onStep` and `onReady`, see RunCard.
  constructor(run, index, how) {
    super(run, index, { id: `run-${index}`, steps: STEPS, ...how });
    this.offsets = new Map();
    this.decoding = new OneAtATime();
    this.#build();
  }

  #build() {
    const { run } = this;
    this.note = el("p", { class: "note" });
    this.original = imageCanvas("The image");
    this.reconstruction = imageCanvas(`Reconstruction by ${run.name}`);
    this.components = Array.from({ length: run.components }, (_, k) => this.#component(k));
    this.plane = new Plane(run.name, (a, b) => this.#decodeAt(a, b));
    this.box = this.frame("card",
      el("div", { class: "container" }, el("div", { class: "reconstruction" },
        el("div", { class: "pictures" }, figure(this.original, "image"), figure(this.reconstruction, "reconstruction")),
        el("div", {},
          el("h4", {}, run.components > 1 ? "Components and their weights" : "One component of weight 1"),
          el("ol", { class: "components" }, ...this.components.map(({ item }) => item))))),
      el("dl", { class: "bounds" }, this.bound("ELBO", "elbo"), this.bound(`IWAE-${SAMPLES}`, "iwae"),
        run.latent <= 2 ? this.bound("log p(x), quadrature", "evidence") : null),
      el("div", { class: "container" }, el("div", { class: "latent" },
        el("div", {}, this.plane.drawing, this.note),
        el("div", {}, this.#refinement(), this.#decoder(this.id)))));
  }

  #component(k) {
    const picture = imageCanvas(`Reconstruction by component ${k + 1}`);
    return { picture, ...this.component(k, picture) };
  }

  #refinement() {
    this.refined = imageCanvas("Reconstruction after refinement");
    return el("fieldset", { class: "refinement" }, el("legend", {}, "Refinement"), this.stepper.row,
      el("div", { class: "with-image" }, this.refined, this.table));
  }

  #decoder(id) {
    const { run } = this;
    this.decoded = imageCanvas("Image decoded at the chosen point of the latent space");
    const names = run.latent <= 2 ? ["z1", "z2"] : ["widest direction", "second widest direction"];
    this.axes = names.slice(0, run.latent).map((name, axis) => slider(`${id}-axis-${axis}`, name, { min: -REACH, max: REACH, value: 0 }));
    for (const { input } of this.axes) input.addEventListener("input", () => this.#decode());
    const rows = this.axes.map(({ row }) => row);
    if (run.latent > 2) {
      this.dimension = el("select", { id: `${id}-dimension` }, ...Array.from({ length: run.latent }, (_, d) => el("option", { value: d }, `z${d + 1}`)));
      this.offset = slider(`${id}-offset`, "offset", { min: -REACH, max: REACH, value: 0 });
      this.dimension.addEventListener("change", () => {
        this.offset.input.value = this.offsets.get(Number(this.dimension.value)) ?? 0;
        this.#decode();
      });
      this.offset.input.addEventListener("input", () => {
        this.offsets.set(Number(this.dimension.value), Number(this.offset.input.value));
        this.#decode();
      });
      rows.push(el("div", { class: "choice" }, el("label", { for: `${id}-dimension` }, "single dimension"), this.dimension), this.offset.row);
    }
    const reset = el("button", { type: "button", class: "small" }, "Reset to the mean");
    reset.addEventListener("click", () => { this.#reset(); this.#decode(); });
    return el("fieldset", { class: "decoder" }, el("legend", {}, "Decode a point"),
      el("div", { class: "with-image" }, this.decoded, el("div", { class: "sliders" }, ...rows, reset)));
  }

  // Shows reconstructions and weights at once, and the rest when the image stops changing.
  setImage(image) {
    const x = resized(image, this.run.image);
    this.image = x;
    show(this.original, x);
    this.explaining.cancel();
    this.box.setAttribute("aria-busy", "true");
    this.reconstructing.run(() => post("/reconstruct", { images: [x], run: this.run.name }), (found) => this.#showReconstruction(found), (error) => this.fail(error));
    this.explainSoon();
  }

  #show(canvas, example) {
    show(canvas, shaped(example, this.run.image));
  }

  #showReconstruction({ images, weights, components }) {
    this.#show(this.reconstruction, images[0]);
    for (const [k, { picture, setWeight }] of this.components.entries()) {
      const weight = weights[0][k] ?? 0;
      this.#show(picture, components[0][k]);
      setWeight(weight);
      picture.setAttribute("aria-label", `Reconstruction by component ${k + 1}, weight ${percent(weight)}`);
    }
  }

  explain() {
    if (this.box.hidden) return;
    const grid = this.run.latent <= 2 ? 80 : 40;
    const content = { image: this.image, run: this.run.name, steps: STEPS, samples: SAMPLES, grid };
    this.explaining.run((signal) => post("/explain", content, signal), (found) => this.#showExplanation(found), (error) => this.fail(error));
  }

  #showExplanation(found) {
    this.showNumbers(found);
    this.problem.textContent = "";
    this.plane.draw(found);
    const { plane, components } = found;
    const sameMean = components.length > 1 && components.every((part) => part.mean.every((v, d) => Math.abs(v - components[0].mean[d]) < 1e-6));
    this.note.textContent = [
      plane.kind === "slice" ? "A slice through the posterior mean. Points and ellipses are projected onto it." : null,
      sameMean ? "All components have the same mean here." : null,
      found.exact ? null : "Standard deviations are estimated from samples."].filter(Boolean).join(" ");
    this.numbers.evidence.replaceChildren(plane.log_evidence === null ? "…" : number(plane.log_evidence));
    this.#reset();
    this.#show(this.decoded, found.reconstruction);
    this.setStep(this.step);
    this.onReady(this);
  }

  setStep(step) {
    super.setStep(step);
    if (!this.found) return;
    this.#show(this.refined, this.found.refinement[step].reconstruction);
    this.plane.move(this.found.refinement, step, this.#position());
  }

  // The decoded point is z = origin + a · first axis + b · second axis + offsets of single dimensions.
  #position() {
    const [a, b = 0] = this.axes.map(({ input }) => Number(input.value));
    return [a, b];
  }

  #reset() {
    const { plane, mean } = this.found;
    this.offsets.clear();
    if (this.offset) this.offset.input.value = 0;
    this.axes.forEach(({ input }, axis) => {
      const range = axis === 0 ? plane.x : plane.y;
      input.min = Math.min(range[0], -REACH);
      input.max = Math.max(range.at(-1), REACH);
      input.value = plane.kind === "latent" ? mean[axis] : 0;
    });
    this.#label();
  }

  #label() {
    for (const { input, value } of this.axes) value.textContent = number(Number(input.value), 2);
    if (this.offset) this.offset.value.textContent = signed(Number(this.offset.input.value), 2);
  }

  #decodeAt(...point) {
    this.axes.forEach(({ input }, axis) => { input.value = point[axis]; });
    this.#decode();
  }

  #decode() {
    this.#label();
    if (!this.found) return;
    const { plane, refinement } = this.found;
    const [a, b] = this.#position();
    this.plane.move(refinement, this.step, [a, b]);
    const z = plane.origin.map((at, d) => at + a * plane.axes[0][d] + b * plane.axes[1][d] + (this.offsets.get(d) ?? 0));
    this.decoding.run(() => post("/decode", { z: [z], run: this.run.name }), (found) => this.#show(this.decoded, found.images[0]), (error) => this.fail(error));
  }

  stop() {
    super.stop();
    this.decoding.cancel();
  }
}
