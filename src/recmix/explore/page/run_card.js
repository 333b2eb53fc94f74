// What the cards of runs of images and of runs of texts share: bounds, components, refinement steps.
import { el, number } from "./dom.js";
import { componentHue } from "./plane.js";
import { LatestOnly, OneAtATime, debounced } from "./server.js";

const HUES = [9, 2, 4, 5, 6, 8, 10, 11];
export const runHue = (index) => `hue-${HUES[index % HUES.length]}`;

export const signed = (value, digits = 1) => (value >= 0 ? "+" : "") + number(value, digits);

export const percent = (share) => {
  const text = (100 * share).toFixed(share > 0.995 || share < 0.0005 ? 0 : 1);
  return `${share > 0 && Number(text) === 0 ? "< 0.1" : text} %`;
};

const plural = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

export const slider = (id, label, attributes) => {
  const input = el("input", { type: "range", id, step: "any", ...attributes });
  const value = el("output", { for: id });
  return { input, value, row: el("div", { class: "slider" }, el("label", { for: id }, label), value, input) };
};

// What a card says about its run, in one line.
const factsOf = (run) => {
  const { refine, scale, slope } = run.inference;
  return [run.title.charAt(0).toUpperCase() + run.title.slice(1), run.components > 1 ? plural(run.components, "component") : null,
    plural(run.latent, "latent dimension"), `${run.likelihood} likelihood`, run.epochs ? plural(run.epochs, "epoch") : null,
    refine ? `refined by ${plural(refine, "Gauss-Newton step")}` : null, scale !== 1 || slope !== 0 ? "calibrated" : null].filter(Boolean).join(" · ");
};

// A subclass sets `box` and defines explain(), which asks for everything that is not shown at once.
export class RunCard {
  // `onStep` gets the refinement step chosen here. `onReady` is called when the example is explained.
  constructor(run, index, { id, steps, onStep, onReady }) {
    Object.assign(this, { run, index, id, onReady, found: null, step: 0 });
    this.reconstructing = new OneAtATime();
    this.explaining = new LatestOnly();
    this.explainSoon = debounced(() => this.explain(), 250);
    this.problem = el("p", { class: "problem", role: "alert" });
    this.numbers = Object.fromEntries(["elbo", "iwae", "evidence"].map((key) => [key, el("dd", {}, "…")]));
    this.stepper = slider(`${id}-step`, "Gauss-Newton steps", { min: 0, max: steps, step: 1, value: 0 });
    this.stepper.input.addEventListener("input", () => onStep(Number(this.stepper.input.value)));
    this.rows = Array.from({ length: steps + 1 }, (_, step) =>
      el("tr", {}, el("th", { scope: "row" }, String(step)), el("td", {}, "…"), el("td", {}, "…"), el("td", {}, "…")));
    const head = ["step", "log p(x, z)", "ELBO", "IWAE"].map((name) => el("th", { scope: "col" }, name));
    this.table = el("table", { class: "steps" }, el("thead", {}, el("tr", {}, ...head)), el("tbody", {}, ...this.rows));
  }

  // The element of the card, with the run's name above its content.
  frame(name, ...content) {
    return el("article", { class: `${name} ${runHue(this.index)}`, "aria-labelledby": this.id },
      el("div", { class: "busy-line", "aria-hidden": "true" }),
      el("header", {}, el("h3", { id: this.id }, this.run.name), el("p", { class: "facts" }, factsOf(this.run))),
      this.problem, ...content);
  }

  bound(name, key) {
    return el("div", {}, el("dt", {}, name), this.numbers[key]);
  }

  // An item of the list of components: what it shows, and its weight.
  component(k, shown) {
    const share = el("span", { class: "share" }, "…");
    const bar = el("span");
    const item = el("li", { class: componentHue(k) }, shown,
      el("span", { class: "weight-label" }, el("b", {}, String(k + 1)), share),
      el("span", { class: "weight", "aria-hidden": "true" }, bar));
    const setWeight = (weight) => {
      share.textContent = percent(weight);
      bar.style.setProperty("--share", `${100 * weight}%`);
    };
    return { item, setWeight };
  }

  // Shows the explanation's numbers.
  showNumbers(found) {
    this.box.removeAttribute("aria-busy");
    this.found = found;
    found.refinement.forEach((at, step) => {
      [at.log_joint, at.elbo, at.iwae].forEach((value, i) => { this.rows[step].cells[i + 1].textContent = number(value); });
    });
  }

  // Shows the bounds, and the gain over another card if there is one.
  compare(other) {
    for (const key of ["elbo", "iwae"]) {
      const value = this.found.bounds[key];
      const gain = other ? [el("span", { class: "gain" }, `${signed(value - other.found.bounds[key])} over ${other.run.name}`)] : [];
      this.numbers[key].replaceChildren(number(value), ...gain);
    }
  }

  fail(error) {
    this.box.removeAttribute("aria-busy");
    this.problem.textContent = error.message;
  }

  setStep(step) {
    this.step = step;
    this.stepper.input.value = step;
    this.stepper.value.textContent = step;
    this.rows.forEach((row, at) => row.toggleAttribute("data-now", at === step));
  }

  stop() {
    for (const requests of [this.reconstructing, this.explaining]) requests.cancel();
  }
}
