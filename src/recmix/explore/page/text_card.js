// The card of one run of texts: reconstruction, samples, components, bounds, refinement, neighbours.
import { el, number } from "./dom.js";
import { factsOf, percent, runHue, signed, slider } from "./card.js";
import { componentHue } from "./plane.js";
import { LatestOnly, OneAtATime, debounced, post } from "./server.js";
import { TextView, drawAll } from "./text_view.js";

const STEPS = 3;
const SAMPLES = 50;
const DRAWN = 4; // samples that the server sends
const NEIGHBOURS = 5;

export class TextCard {
  // `onStep` gets the refinement step chosen here, `onProblems` what the server says about the text,
  // `onReady` is called when the text is explained, `onText` gets a neighbour that the user chooses.
  constructor(run, index, { onStep, onProblems, onReady, onText }) {
    Object.assign(this, { run, index, onProblems, onReady, onText, found: null, step: 0, text: "" });
    this.reconstructing = new OneAtATime();
    this.explaining = new LatestOnly();
    this.searching = new LatestOnly();
    this.explainSoon = debounced(() => this.#explain(), 250);
    this.#build(onStep);
  }

  #build(onStep) {
    const { run, index } = this;
    const id = `text-run-${index}`;
    const list = (views) => el("ol", { class: run.texts.drawn ? "texts drawn" : "texts" }, ...views.map(({ box }) => el("li", {}, box)));
    this.problem = el("p", { class: "problem", role: "alert" });
    this.reconstruction = new TextView(run, "p", { class: `${run.texts.molecules ? "written smiles" : "written"} large` });
    this.samples = Array.from({ length: DRAWN }, () => new TextView(run));
    this.components = Array.from({ length: run.components }, (_, k) => this.#component(k));
    this.numbers = Object.fromEntries(["elbo", "iwae"].map((key) => [key, el("dd", {}, "…")]));
    const bound = (name, key) => el("div", {}, el("dt", {}, name), this.numbers[key]);
    this.stepper = slider(`${id}-step`, "Gauss-Newton steps", { min: 0, max: STEPS, step: 1, value: 0 });
    this.stepper.input.addEventListener("input", () => onStep(Number(this.stepper.input.value)));
    this.refined = new TextView(run);
    const cells = () => Array.from({ length: 3 }, () => el("td", {}, "…"));
    this.encoder = el("tr", {}, el("th", { scope: "row" }, "encoder"), el("td", {}, ""), el("td", {}, "…"), el("td", {}, "…"));
    this.rows = Array.from({ length: STEPS + 1 }, (_, step) => el("tr", {}, el("th", { scope: "row" }, String(step)), ...cells()));
    const head = ["step", "log p(x, z)", "ELBO", "IWAE"].map((name) => el("th", { scope: "col" }, name));
    this.neighbours = el("ol", { class: run.texts.drawn ? "texts drawn" : "texts" });
    this.searched = el("p", { class: "note" });
    this.box = el("article", { class: `card text-card ${runHue(index)}`, "aria-labelledby": id },
      el("div", { class: "busy-line", "aria-hidden": "true" }),
      el("header", {}, el("h3", { id }, run.name), el("p", { class: "facts" }, factsOf(run))),
      this.problem,
      el("div", {},
        el("h4", {}, "Most likely text at the posterior mean"), this.reconstruction.box,
        el("h4", {}, "Samples of p(x | z) there"), list(this.samples),
        run.components > 1 ? el("h4", {}, "Components and their weights") : null,
        run.components > 1 ? el("ol", { class: run.texts.drawn ? "texts drawn" : "texts" }, ...this.components.map(({ item }) => item)) : null),
      el("dl", { class: "bounds" }, bound("ELBO", "elbo"), bound(`IWAE-${SAMPLES}`, "iwae")),
      el("fieldset", { class: "refinement" }, el("legend", {}, "Refinement"), this.stepper.row, this.refined.box,
        el("table", { class: "steps" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, this.encoder, ...this.rows))),
      el("div", {}, el("h4", {}, "Test texts with the nearest posterior means"), this.neighbours, this.searched));
  }

  #component(k) {
    const view = new TextView(this.run);
    const share = el("span", { class: "share" }, "…");
    const bar = el("span");
    const item = el("li", { class: componentHue(k) }, view.box,
      el("span", { class: "weight-label" }, el("b", {}, String(k + 1)), share),
      el("span", { class: "weight", "aria-hidden": "true" }, bar));
    return { item, view, share, bar };
  }

  // Shows reconstructions and weights at once, and the rest when the text stops changing.
  setText(text) {
    this.text = text;
    this.explaining.cancel();
    this.box.setAttribute("aria-busy", "true");
    this.reconstructing.run(() => post("/reconstruct", { texts: [text], run: this.run.name }), (found) => this.#showReconstruction(found), (error) => this.#fail(error));
    this.explainSoon();
  }

  #showReconstruction({ texts, weights, components, problems }) {
    this.problem.textContent = "";
    this.onProblems(this, problems[0]);
    this.reconstruction.set(texts[0], this.text.trim());
    this.components.forEach(({ view, share, bar }, k) => {
      const weight = weights[0][k] ?? 0;
      view.set(components[0][k], this.text.trim());
      share.textContent = percent(weight);
      bar.style.setProperty("--share", `${100 * weight}%`);
    });
    this.#draw([this.reconstruction, ...this.components.map(({ view }) => view)]);
  }

  #explain() {
    if (this.box.hidden) return;
    const { run, text } = this;
    this.explaining.run((signal) => post("/explain", { text, run: run.name, steps: STEPS, samples: SAMPLES }, signal), (found) => this.#showExplanation(found), (error) => this.#fail(error));
    this.searching.run((signal) => post("/neighbours", { text, run: run.name, count: NEIGHBOURS }, signal), (found) => this.#showNeighbours(found), (error) => this.#noNeighbours(error));
  }

  #showExplanation(found) {
    this.box.removeAttribute("aria-busy");
    this.found = found;
    this.samples.forEach((view, i) => view.set(found.samples[i], this.text.trim()));
    const { elbo, iwae } = found.bounds;
    [elbo, iwae].forEach((value, i) => { this.encoder.cells[i + 2].textContent = number(value); });
    found.refinement.forEach((at, step) => {
      [at.log_joint, at.elbo, at.iwae].forEach((value, i) => { this.rows[step].cells[i + 1].textContent = number(value); });
    });
    this.#draw(this.samples);
    this.setStep(this.step);
    this.onReady(this);
  }

  #showNeighbours({ neighbours, searched }) {
    const views = neighbours.map(({ text }) => Object.assign(new TextView(this.run, "button", { type: "button", class: this.run.texts.molecules ? "smiles" : null })));
    views.forEach((view, i) => {
      view.set(neighbours[i].text);
      view.box.setAttribute("title", neighbours[i].text);
      view.box.addEventListener("click", () => this.onText(neighbours[i].text, `test text ${neighbours[i].index + 1}`));
    });
    this.neighbours.replaceChildren(...views.map(({ box }, i) => el("li", {}, box, el("span", { class: "distance" }, `distance ${number(neighbours[i].distance, 2)}`))));
    this.searched.textContent = `Among the first ${searched} test texts.`;
    this.#draw(views);
  }

  #noNeighbours(error) {
    this.neighbours.replaceChildren();
    this.searched.textContent = error.status === 422 ? "" : error.message;
  }

  // Shows the bounds, and the gain over another card if there is one.
  compare(other) {
    for (const key of ["elbo", "iwae"]) {
      const value = this.found.bounds[key];
      const gain = other ? [el("span", { class: "gain" }, `${signed(value - other.found.bounds[key])} over ${other.run.name}`)] : [];
      const refined = this.found.refinement.at(-1)[key];
      this.numbers[key].replaceChildren(number(value), ...gain, el("span", { class: "gain" }, `refined: ${number(refined)} (${signed(refined - value)})`));
    }
  }

  #draw(views) {
    drawAll(this.run, views).catch((error) => { this.problem.textContent = error.message; });
  }

  // A text that cannot be read is reported beside the text, other errors on the card.
  #fail(error) {
    this.box.removeAttribute("aria-busy");
    if (error.status === 422) this.onProblems(this, [error.message]);
    else this.problem.textContent = error.message;
  }

  setStep(step) {
    this.step = step;
    this.stepper.input.value = step;
    this.stepper.value.textContent = step;
    this.rows.forEach((row, at) => row.toggleAttribute("data-now", at === step));
    if (!this.found) return;
    this.refined.set(this.found.refinement[step].reconstruction, this.text.trim());
    this.#draw([this.refined]);
  }

  stop() {
    for (const requests of [this.explaining, this.searching, this.reconstructing]) requests.cancel();
  }
}
