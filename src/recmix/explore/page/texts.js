// The part of the page for runs of texts: the text that all these runs get, samples, interpolation.
import { $, el } from "./dom.js";
import { Interpolation, Panel, PriorSamples } from "./samples.js";
import { Section } from "./section.js";
import { debounced, post } from "./server.js";
import { TestExamples } from "./test_examples.js";
import { TextCard } from "./text_card.js";
import { TextView, drawAll, textClass } from "./text_view.js";

const PAGE = 8;
const COUNT = 8;
const POINTS = 7;

export class TextExplorer extends Section {
  // `first` is the number of runs that are shown elsewhere; it only chooses colours.
  constructor(runs, first) {
    const onProblems = (card, problems) => { this.problems.set(card, problems); this.#showProblems(); };
    super("text-", runs, (run, index, how) => new TextCard(run, first + index, { ...how, onProblems, onText: (text) => this.set(text) }));
    this.problems = new Map();
    this.text = "";
    this.#setUpWriting(runs);
    this.source = new TestTexts(runs, (text) => this.set(text));
    this.samples = new PriorSamples("text-", textPanels(runs, first, COUNT), COUNT, showTexts);
    this.interpolation = new TextInterpolation("text-", textPanels(runs, first, POINTS), () => this.text);
    this.arrange();
  }

  #setUpWriting(runs) {
    const hint = runs.find((run) => run.texts.hint)?.texts.hint;
    const molecules = runs.every((run) => run.texts.molecules);
    const sentences = runs.every((run) => !run.texts.molecules);
    $("text-label").textContent = molecules ? "Write a molecule as a SMILES string" : sentences ? "Write a sentence" : "Write a sentence, or a molecule as a SMILES string";
    $("text-input").classList.toggle("smiles", molecules);
    $("text-note").textContent = [lengths(runs), hint ? `${hint}.` : null].filter(Boolean).join(" ");
    this.drawing = new TextView(runs.find((run) => run.texts.drawn) ?? runs[0], "p", { "aria-hidden": "true" });
    this.drawing.words.hidden = true;
    $("text-drawing").append(this.drawing.box);
    const changed = debounced(() => this.#changed(), 300);
    $("text-input").addEventListener("input", changed);
  }

  async fromPrior(name) {
    const { texts } = await post("/sample", { count: 8, seed: 0, run: name });
    const [a = "", b = a] = texts.filter(Boolean);
    this.set(a);
    return [a, b];
  }

  kindOf(run) {
    return `${run.shape} ${run.texts.kind} ${run.data.name}`;
  }

  give(card) {
    if (this.text.trim()) card.setText(this.text);
  }

  arrange() {
    super.arrange();
    this.#showProblems();
  }

  // Makes this the current text.
  set(text) {
    $("text-input").value = text;
    this.#changed();
  }

  #changed() {
    const text = $("text-input").value;
    this.text = text;
    this.source.mark(text);
    this.problems.clear();
    this.#showProblems();
    if (!text.trim()) {
      for (const card of this.cards) { card.stop(); card.box.removeAttribute("aria-busy"); }
      $("text-problem").textContent = "Write a text, or choose a test text.";
      return;
    }
    for (const card of this.on) card.setText(text);
    this.drawing.set(text.trim());
    drawAll(this.drawing.run, [this.drawing]).catch(() => { this.drawing.draw(null); });
  }

  // What the runs say about the text: once, if all say the same.
  #showProblems() {
    const all = [...this.problems].filter(([card, problems]) => this.on.has(card) && problems.length);
    const said = new Set(all.map(([, problems]) => problems.join("; ")));
    const same = said.size === 1 && all.length === this.on.size;
    $("text-problem").textContent = same ? [...said][0] : all.map(([card, problems]) => `${card.run.name}: ${problems.join("; ")}`).join(". ");
  }

}

// The list of test texts.
class TestTexts extends TestExamples {
  constructor(runs, onText) {
    super("text-", runs, { kind: "texts", count: PAGE, list: "test-texts" });
    this.onText = onText;
  }

  show(texts) {
    const run = this.runs.find(({ name }) => name === this.from);
    this.buttons = texts.map((text) => {
      const button = el("button", { type: "button", title: text, "aria-pressed": "false", class: textClass(run) }, text);
      button.addEventListener("click", () => this.onText(text));
      return button;
    });
    this.list.replaceChildren(...this.buttons.map((button) => el("li", {}, button)));
  }

  choose({ at }) {
    this.onText(this.items[at]);
  }

  // Marks the test text that is the current text.
  mark(text) {
    this.buttons?.forEach((button, i) => button.setAttribute("aria-pressed", String(this.items[i] === text)));
  }
}

// One panel of texts for each run.
const textPanels = (runs, first, count) => runs.map((run, index) => {
  const views = Array.from({ length: count }, () => new TextView(run));
  const list = el("ol", { class: run.texts.drawn ? "texts drawn" : "texts" }, ...views.map(({ box }) => el("li", {}, box)));
  return Object.assign(new Panel(run, first + index, list), { views });
});

const showTexts = (panel, { texts }) => {
  panel.views.forEach((view, i) => view.set(texts[i] ?? ""));
  drawAll(panel.run, panel.views).catch((error) => { panel.problem.textContent = error.message; });
};

class TextInterpolation extends Interpolation {
  set(end, text) {
    if (text.trim()) super.set(end, text);
  }

  showEnd(end, text) {
    $(`text-end-${end}`).textContent = text;
  }

  ask(a, b) {
    for (const panel of this.panels) panel.ask("/interpolate", { texts: [a, b], steps: POINTS }, (found) => {
      showTexts(panel, found);
      panel.problem.textContent = [...new Set(found.problems.flat())].join("; ");
    });
  }
}

// How long a text may be, in each of the runs.
function lengths(runs) {
  const limits = new Set(runs.filter((run) => run.texts.length).map((run) => `${run.texts.length} ${run.texts.molecules ? "tokens" : "words"}`));
  return limits.size ? `Up to ${[...limits].join(" or ")}${limits.size > 1 ? ", depending on the run" : ""}.` : null;
}
