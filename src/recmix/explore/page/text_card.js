// The card of one run of texts: reconstruction, samples, components, bounds, refinement, neighbours.
import { el, number } from "./dom.js";
import { RunCard, signed } from "./run_card.js";
import { LatestOnly, post } from "./server.js";
import { TextView, drawAll } from "./text_view.js";

const STEPS = 3;
const SAMPLES = 50;
const DRAWN = 4; // samples that the server sends
const NEIGHBOURS = 5;

export class TextCard extends RunCard {
  // `how` has `onStep` and `onReady`, see RunCard, and `onProblems`, which gets what the server says about the
  // text, and `onText`, which gets a neighbour that the user chooses.
  constructor(run, index, { onProblems, onText, ...how }) {
    super(run, index, { id: `text-run-${index}`, steps: STEPS, ...how });
    Object.assign(this, { onProblems, onText, text: "" });
    this.searching = new LatestOnly();
    this.#build();
  }

  #build() {
    const { run } = this;
    const list = (views) => el("ol", { class: run.texts.drawn ? "texts drawn" : "texts" }, ...views.map(({ box }) => el("li", {}, box)));
    this.reconstruction = new TextView(run, "p", { class: `${run.texts.molecules ? "written smiles" : "written"} large` });
    this.samples = Array.from({ length: DRAWN }, () => new TextView(run));
    this.components = Array.from({ length: run.components }, (_, k) => this.#component(k));
    this.refined = new TextView(run);
    this.encoder = el("tr", {}, el("th", { scope: "row" }, "encoder"), el("td", {}, ""), el("td", {}, "…"), el("td", {}, "…"));
    this.table.tBodies[0].prepend(this.encoder);
    this.neighbours = el("ol", { class: run.texts.drawn ? "texts drawn" : "texts" });
    this.searched = el("p", { class: "note" });
    this.box = this.frame("card text-card",
      el("div", {},
        el("h4", {}, "Most likely text at the posterior mean"), this.reconstruction.box,
        el("h4", {}, "Samples of p(x | z) there"), list(this.samples),
        run.components > 1 ? el("h4", {}, "Components and their weights") : null,
        run.components > 1 ? el("ol", { class: run.texts.drawn ? "texts drawn" : "texts" }, ...this.components.map(({ item }) => item)) : null),
      el("dl", { class: "bounds" }, this.bound("ELBO", "elbo"), this.bound(`IWAE-${SAMPLES}`, "iwae")),
      el("fieldset", { class: "refinement" }, el("legend", {}, "Refinement"), this.stepper.row, this.refined.box, this.table),
      el("div", {}, el("h4", {}, "Test texts with the nearest posterior means"), this.neighbours, this.searched));
  }

  #component(k) {
    const view = new TextView(this.run);
    return { view, ...this.component(k, view.box) };
  }

  // Shows reconstructions and weights at once, and the rest when the text stops changing.
  setText(text) {
    this.text = text;
    this.explaining.cancel();
    this.box.setAttribute("aria-busy", "true");
    this.reconstructing.run(() => post("/reconstruct", { texts: [text], run: this.run.name }), (found) => this.#showReconstruction(found), (error) => this.fail(error));
    this.explainSoon();
  }

  #showReconstruction({ texts, weights, components, problems }) {
    this.problem.textContent = "";
    this.box.classList.remove("stale");
    this.onProblems(this, problems[0]);
    this.reconstruction.set(texts[0], this.text.trim());
    this.components.forEach(({ view, setWeight }, k) => {
      view.set(components[0][k], this.text.trim());
      setWeight(weights[0][k] ?? 0);
    });
    this.#draw([this.reconstruction, ...this.components.map(({ view }) => view)]);
  }

  explain() {
    if (this.box.hidden) return;
    const { run, text } = this;
    this.explaining.run((signal) => post("/explain", { text, run: run.name, steps: STEPS, samples: SAMPLES }, signal), (found) => this.#showExplanation(found), (error) => this.fail(error));
    this.searching.run((signal) => post("/neighbours", { text, run: run.name, count: NEIGHBOURS }, signal), (found) => this.#showNeighbours(found), (error) => this.#noNeighbours(error));
  }

  #showExplanation(found) {
    this.showNumbers(found);
    this.samples.forEach((view, i) => view.set(found.samples[i], this.text.trim()));
    const { elbo, iwae } = found.bounds;
    [elbo, iwae].forEach((value, i) => { this.encoder.cells[i + 2].textContent = number(value); });
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

  // Shows also the bounds after refinement.
  compare(other) {
    super.compare(other);
    for (const key of ["elbo", "iwae"]) {
      const refined = this.found.refinement.at(-1)[key];
      this.numbers[key].append(el("span", { class: "gain" }, `refined: ${number(refined)} (${signed(refined - this.found.bounds[key])})`));
    }
  }

  #draw(views) {
    drawAll(this.run, views).catch((error) => { this.problem.textContent = error.message; });
  }

  // A text that cannot be read is reported beside the text, and the card, which shows the text before it, is
  // dimmed. Other errors are shown on the card.
  fail(error) {
    this.box.removeAttribute("aria-busy");
    if (error.status !== 422) { super.fail(error); return; }
    this.box.classList.add("stale");
    this.onProblems(this, [error.message]);
  }

  setStep(step) {
    super.setStep(step);
    if (!this.found) return;
    this.refined.set(this.found.refinement[step].reconstruction, this.text.trim());
    this.#draw([this.refined]);
  }

  stop() {
    super.stop();
    this.searching.cancel();
  }
}
