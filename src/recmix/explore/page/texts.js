// The part of the page for runs of texts: the text that all these runs get, samples, interpolation.
import { $, el, number } from "./dom.js";
import { runHue } from "./card.js";
import { Panel } from "./samples.js";
import { LatestOnly, debounced, get, post } from "./server.js";
import { TextCard } from "./text_card.js";
import { TextView, drawAll, textClass } from "./text_view.js";

const PAGE = 8;
const COUNT = 8;
const POINTS = 7;

export class TextExplorer {
  // `first` is the number of runs that are shown elsewhere; it only chooses colours.
  constructor(runs, first) {
    const onStep = (step) => { for (const card of this.cards) card.setStep(step); };
    const how = { onStep, onProblems: (card, problems) => this.#problem(card, problems), onReady: () => this.#compare(), onText: (text, name) => this.set(text, name) };
    this.cards = runs.map((run, index) => new TextCard(run, first + index, how));
    this.on = new Set(this.cards);
    this.problems = new Map();
    this.text = "";
    $("text-cards").append(...this.cards.map(({ box }) => box));
    $("switches").append(...this.cards.map((card) => el("li", {}, this.#switchOf(card))));
    this.#setUpWriting(runs);
    this.source = new TestTexts(runs, (text, name) => this.set(text, name));
    this.samples = new TextSamples(runs, first);
    this.interpolation = new TextInterpolation(runs, first, () => this.text);
    this.#arrange();
  }

  #setUpWriting(runs) {
    const [{ texts }] = runs;
    const molecules = runs.every((run) => run.texts.molecules);
    $("text-label").textContent = molecules ? "Write a molecule as a SMILES string" : "Write a sentence";
    $("text-input").classList.toggle("smiles", molecules);
    $("text-note").textContent = [texts.length ? `Up to ${texts.length} ${molecules ? "tokens" : "words"}.` : null, texts.hint ? `${texts.hint}.` : null].filter(Boolean).join(" ");
    this.drawing = new TextView(runs[0], "p", { "aria-hidden": "true" });
    this.drawing.words.hidden = true;
    $("text-drawing").append(this.drawing.box);
    const changed = debounced(() => this.#changed(), 300);
    $("text-input").addEventListener("input", changed);
  }

  async begin() {
    await this.source.begin();
    let [a, b = a] = this.source.texts;
    if (!a) {
      // Without test texts the page starts with a sample of the first model's prior.
      const { name } = this.cards[0].run;
      const { texts } = await post("/sample", { count: 8, seed: 0, run: name });
      [a = "", b = a] = texts.filter(Boolean);
      this.set(a);
    }
    this.interpolation.set("a", a);
    this.interpolation.set("b", b);
    await this.samples.draw();
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
    drawAll(this.cards[0].run, [this.drawing]).catch(() => { this.drawing.draw(null); });
  }

  #problem(card, problems) {
    this.problems.set(card, problems);
    this.#showProblems();
  }

  // What the runs say about the text: once, if all say the same.
  #showProblems() {
    const all = [...this.problems].filter(([card, problems]) => this.on.has(card) && problems.length);
    const said = new Set(all.map(([, problems]) => problems.join("; ")));
    const same = said.size === 1 && all.length === this.on.size;
    $("text-problem").textContent = same ? [...said][0] : all.map(([card, problems]) => `${card.run.name}: ${problems.join("; ")}`).join(". ");
  }

  // Compares each run with the first of the same vocabulary length and likelihood.
  #compare() {
    const ready = this.cards.filter((card) => this.on.has(card) && card.found && !card.box.ariaBusy);
    const kind = ({ run }) => `${run.shape} ${run.texts.kind} ${run.data.name}`;
    for (const card of ready) {
      const first = ready.find((other) => kind(other) === kind(card));
      card.compare(first === card ? null : first);
    }
    if (ready.length < this.on.size) return;
    const bounds = ({ run, found }) => `${run.name}: ELBO ${number(found.bounds.elbo)}, IWAE ${number(found.bounds.iwae)}`;
    $("text-announcement").textContent = ready.map(bounds).join("; ");
  }

  #switchOf(card) {
    const button = el("button", { type: "button", class: runHue(card.index), "aria-pressed": "true" }, el("span", { class: "dot", "aria-hidden": "true" }), card.run.name);
    button.addEventListener("click", () => {
      const on = !this.on.delete(card);
      button.setAttribute("aria-pressed", String(on));
      if (on) {
        this.on.add(card);
        if (this.text.trim()) card.setText(this.text);
      } else {
        card.stop();
        this.#compare();
      }
      this.#showProblems();
      this.#arrange();
    });
    return button;
  }

  #arrange() {
    this.cards.forEach((card, i) => {
      for (const { box } of [card, this.samples.panels[i], this.interpolation.panels[i]]) box.hidden = !this.on.has(card);
    });
    $("text-none-on").hidden = this.on.size > 0;
    for (const id of ["text-cards", "text-samples", "text-interpolations"]) $(id).style.setProperty("--columns", Math.max(1, Math.min(this.on.size, 3)));
  }
}

// The list of test texts.
class TestTexts {
  constructor(runs, onText) {
    Object.assign(this, { runs, onText, texts: [], start: 0, total: 0, requests: new LatestOnly() });
    this.from = runs[0].name;
    const runOf = new Map();
    for (const run of runs) if (!runOf.has(run.data.name)) runOf.set(run.data.name, run.name);
    $("text-sets").hidden = runOf.size < 2;
    $("text-set").replaceChildren(...[...runOf].map(([data, run]) => el("option", { value: run }, data ?? run)));
    $("text-set").addEventListener("change", () => { this.from = $("text-set").value; this.total = 0; this.#load(0); });
    $("text-previous").addEventListener("click", () => this.#load(this.start - PAGE));
    $("text-next").addEventListener("click", () => this.#load(this.start + PAGE));
  }

  async begin() {
    for (const { value } of $("text-set").options) {
      $("text-set").value = value;
      this.from = value;
      await this.#load(0);
      if (this.texts.length) return;
    }
  }

  #load(start) {
    if (start < 0 || (this.total && start >= this.total)) return Promise.resolve();
    $("test-texts").setAttribute("aria-busy", "true");
    const end = (message) => { $("test-texts").removeAttribute("aria-busy"); $("text-source-problem").textContent = message; };
    const path = `/runs/${encodeURIComponent(this.from)}/texts?start=${start}&count=${PAGE}`;
    return this.requests.run((signal) => get(path, signal), (found) => { end(""); this.#show(found); }, (error) => {
      end(error.message);
      for (const id of ["text-previous", "text-next"]) $(id).disabled = true;
      $("text-pages").textContent = "no test texts";
    });
  }

  #show({ start, total, texts }) {
    Object.assign(this, { start, total, texts });
    const run = this.runs.find(({ name }) => name === this.from);
    this.buttons = texts.map((text) => {
      const button = el("button", { type: "button", title: text, "aria-pressed": "false", class: textClass(run) }, text);
      button.addEventListener("click", () => this.onText(text));
      return button;
    });
    $("test-texts").replaceChildren(...this.buttons.map((button) => el("li", {}, button)));
    const last = start + texts.length;
    $("text-pages").textContent = total ? `${start + 1} to ${last} of ${total}` : "no test texts";
    $("text-previous").disabled = start === 0;
    $("text-next").disabled = last >= total;
    if (texts.length) this.onText(texts[0]);
  }

  // Marks the test text that is the current text.
  mark(text) {
    this.buttons?.forEach((button, i) => button.setAttribute("aria-pressed", String(this.texts[i] === text)));
  }
}

// One panel of texts for each run.
const textPanels = (runs, first, count, id) => {
  const panels = runs.map((run, index) => {
    const views = Array.from({ length: count }, () => new TextView(run));
    const list = el("ol", { class: run.texts.drawn ? "texts drawn" : "texts" }, ...views.map(({ box }) => el("li", {}, box)));
    return Object.assign(new Panel(run, first + index, list), { views });
  });
  $(id).append(...panels.map(({ box }) => box));
  return panels;
};

const showTexts = (panel, texts) => {
  panel.views.forEach((view, i) => view.set(texts[i] ?? ""));
  drawAll(panel.run, panel.views).catch((error) => { panel.problem.textContent = error.message; });
};

class TextSamples {
  constructor(runs, first) {
    this.panels = textPanels(runs, first, COUNT, "text-samples");
    $("text-resample").addEventListener("click", () => this.draw());
  }

  // All runs get the same seed, so runs with equally many latent dimensions decode the same z.
  draw() {
    const seed = Math.floor(Math.random() * 1e6);
    $("text-seed").textContent = `seed ${seed}`;
    return Promise.all(this.panels.map((panel) => panel.ask("/sample", { count: COUNT, seed }, ({ texts }) => showTexts(panel, texts))));
  }
}

class TextInterpolation {
  // `current` returns the current text.
  constructor(runs, first, current) {
    this.ends = { a: "", b: "" };
    this.panels = textPanels(runs, first, POINTS, "text-interpolations");
    for (const end of ["a", "b"]) $(`text-take-${end}`).addEventListener("click", () => this.set(end, current()));
    $("text-swap").addEventListener("click", () => {
      const { a, b } = this.ends;
      this.set("a", b);
      this.set("b", a);
    });
    this.askSoon = debounced(() => this.#ask(), 60);
  }

  set(end, text) {
    if (!text.trim()) return;
    this.ends[end] = text;
    $(`text-end-${end}`).textContent = text;
    this.askSoon();
  }

  #ask() {
    const { a, b } = this.ends;
    if (!a || !b) return;
    for (const panel of this.panels) panel.ask("/interpolate", { texts: [a, b], steps: POINTS }, ({ texts }) => showTexts(panel, texts));
  }
}
