// The part of the page for runs of one kind, images or texts: cards, switches, comparison of bounds.
import { $, el, number } from "./dom.js";
import { runHue } from "./run_card.js";

// A subclass sets `source`, `samples` and `interpolation` and defines
// give(card): shows the current example on a card, if there is one;
// kindOf(run): the same for runs whose bounds can be compared;
// fromPrior(name): two examples from the prior of a run, if there are no test examples.
export class Section {
  // `prefix` begins the ids of the section's elements. `makeCard` gets a run, its index and callbacks.
  constructor(prefix, runs, makeCard) {
    const onStep = (step) => { for (const card of this.cards) card.setStep(step); };
    this.prefix = prefix;
    this.cards = runs.map((run, index) => makeCard(run, index, { onStep, onReady: () => this.compare() }));
    this.on = new Set(this.cards);
    $(`${prefix}cards`).append(...this.cards.map(({ box }) => box));
    $("switches").append(...this.cards.map((card) => el("li", {}, this.#switchOf(card))));
  }

  async begin() {
    await this.source.begin();
    const [a, b = a] = this.source.items.length ? this.source.items : await this.fromPrior(this.cards[0].run.name);
    this.interpolation.set("a", a);
    this.interpolation.set("b", b);
    await this.samples.draw();
  }

  // Compares each run with the first of its kind. Other bounds are not comparable.
  compare() {
    const ready = this.cards.filter((card) => this.on.has(card) && card.found && !card.box.ariaBusy);
    for (const card of ready) {
      const first = ready.find(({ run }) => this.kindOf(run) === this.kindOf(card.run));
      card.compare(first === card ? null : first);
    }
    if (ready.length < this.on.size) return;
    const bounds = ({ run, found }) => `${run.name}: ELBO ${number(found.bounds.elbo)}, IWAE ${number(found.bounds.iwae)}`;
    $(`${this.prefix}announcement`).textContent = ready.map(bounds).join("; ");
  }

  #switchOf(card) {
    const button = el("button", { type: "button", class: runHue(card.index), "aria-pressed": "true" }, el("span", { class: "dot", "aria-hidden": "true" }), card.run.name);
    button.addEventListener("click", () => {
      const on = !this.on.delete(card);
      button.setAttribute("aria-pressed", String(on));
      if (on) {
        this.on.add(card);
        this.give(card);
      } else {
        card.stop();
        this.compare();
      }
      this.arrange();
    });
    return button;
  }

  // Shows the cards and panels of the runs that are switched on.
  arrange() {
    this.cards.forEach((card, i) => {
      for (const { box } of [card, this.samples.panels[i], this.interpolation.panels[i]]) box.hidden = !this.on.has(card);
    });
    $(`${this.prefix}none-on`).hidden = this.on.size > 0;
    for (const id of ["cards", "samples", "interpolations"]) $(this.prefix + id).style.setProperty("--columns", Math.max(1, Math.min(this.on.size, 3)));
  }
}
