// The explorer page: the runs that are switched on, and the image or the text that they all get.
import { $, el, number, setUpTheme } from "./dom.js";
import { Card, runHue } from "./card.js";
import { clamped } from "./picture.js";
import { legend } from "./plane.js";
import { Interpolation, PriorSamples } from "./samples.js";
import { get, post } from "./server.js";
import { Source } from "./source.js";
import { TextExplorer } from "./texts.js";

class Explorer {
  constructor(runs) {
    const onStep = (step) => { for (const card of this.cards) card.setStep(step); };
    this.cards = runs.map((run, index) => new Card(run, index, { onStep, onReady: () => this.#compare() }));
    this.on = new Set(this.cards);
    this.image = null;
    $("cards").append(...this.cards.map((card) => card.box));
    $("legend").append(legend());
    this.samples = new PriorSamples(runs);
    this.source = new Source(runs, (image) => this.#setImage(image));
    this.interpolation = new Interpolation(runs, () => this.image);
    $("switches").append(...this.cards.map((card) => el("li", {}, this.#switchOf(card))));
    this.#arrange();
  }

  async begin() {
    await this.source.begin();
    let [a, b = a] = this.source.images;
    if (!a) {
      // Without test images the page starts with samples of the first model's prior.
      const { name } = this.cards[0].run;
      [a, b] = (await post("/sample", { count: 2, seed: 0, run: name })).images.map(clamped);
      this.source.set(a, `a prior sample of ${name}`);
    }
    this.interpolation.set("a", a);
    this.interpolation.set("b", b);
    await this.samples.draw();
  }

  #setImage(image) {
    this.image = image;
    for (const card of this.on) card.setImage(image);
  }

  // Compares each run with the first of the same image shape and likelihood. Other bounds are not comparable.
  #compare() {
    const ready = this.cards.filter((card) => this.on.has(card) && card.found && !card.box.ariaBusy);
    const kind = ({ run }) => `${run.shape} ${run.likelihood}`;
    for (const card of ready) {
      const first = ready.find((other) => kind(other) === kind(card));
      card.compare(first === card ? null : first);
    }
    if (ready.length < this.on.size) return;
    const bounds = ({ run, found }) => `${run.name}: ELBO ${number(found.bounds.elbo)}, IWAE ${number(found.bounds.iwae)}`;
    $("announcement").textContent = ready.map(bounds).join("; ");
  }

  #switchOf(card) {
    const button = el("button", { type: "button", class: runHue(card.index), "aria-pressed": "true" }, el("span", { class: "dot", "aria-hidden": "true" }), card.run.name);
    button.addEventListener("click", () => {
      const on = !this.on.delete(card);
      button.setAttribute("aria-pressed", String(on));
      if (on) {
        this.on.add(card);
        if (this.image) card.setImage(this.image);
      } else {
        card.stop();
        this.#compare();
      }
      this.#arrange();
    });
    return button;
  }

  #arrange() {
    this.cards.forEach((card, i) => {
      for (const { box } of [card, this.samples.panels[i], this.interpolation.panels[i]]) box.hidden = !this.on.has(card);
    });
    $("none-on").hidden = this.on.size > 0;
    for (const id of ["cards", "samples", "interpolations"]) $(id).style.setProperty("--columns", Math.max(1, Math.min(this.on.size, 3)));
  }
}

// Hides the sections and links of a kind of runs, "images" or "texts", if there are none.
const showKind = (kind, on) => {
  for (const part of document.querySelectorAll(`[data-kind="${kind}"]`)) part.hidden = !on;
};

setUpTheme();
try {
  const { runs: all } = await get("/runs");
  const runs = all.filter((run) => !run.not_shown);
  const leftOut = all.filter((run) => run.not_shown).map((run) => `${run.not_shown}.`).join(" ");
  if (!runs.length) throw new Error(leftOut);
  $("problem").textContent = leftOut;
  const data = [...new Set(runs.map((run) => run.data.name).filter(Boolean))];
  $("title").textContent = (data.length ? data : runs.map((run) => run.name)).join(", ");
  document.title = `${$("title").textContent}: recmix explorer`;
  const [images, texts] = [runs.filter((run) => !run.texts), runs.filter((run) => run.texts)];
  showKind("images", images.length);
  showKind("texts", texts.length);
  const explorers = [images.length ? new Explorer(images) : null, texts.length ? new TextExplorer(texts, images.length) : null];
  await Promise.all(explorers.filter(Boolean).map((explorer) => explorer.begin()));
} catch (error) {
  $("problem").textContent = error.message;
  throw error;
}
