// The page: runs that are on, the image they look at, and what each makes of it.
import { $, el, number } from "./dom.js";
import { Card } from "./card.js";
import { legend } from "./plane.js";
import { Between, Samples } from "./more.js";
import { clamped } from "./picture.js";
import { get, post } from "./server.js";
import { Source } from "./source.js";

const setUpTheme = () => {
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  try { theme = localStorage.getItem("recmix-theme") || "auto"; } catch { /* storage is forbidden here */ }
  const set = (name) => {
    theme = themes.includes(name) ? name : "auto";
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    $("theme").textContent = `Theme: ${theme}`;
    $("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "as the system" : theme}. Change it`);
    try { localStorage.setItem("recmix-theme", theme); } catch { /* the same */ }
  };
  $("theme").addEventListener("click", () => set(themes[(themes.indexOf(theme) + 1) % themes.length]));
  set(theme);
};

class Explorer {
  constructor(runs) {
    const step = (at) => { for (const card of this.cards) card.setStep(at); };
    this.cards = runs.map((run, index) => new Card(run, index, { stepped: step, explained: () => this.#compare() }));
    this.samples = new Samples(runs);
    this.on = new Set(this.cards);
    this.image = null;
    $("cards").append(...this.cards.map((card) => card.box));
    $("legend").append(legend());
    this.source = new Source(runs, (image) => this.#look(image));
    this.between = new Between(runs, () => this.image);
    this.#switches();
  }

  async begin() {
    await this.source.begin();
    const [first, second] = this.source.images;
    if (first) {
      this.between.set("a", first);
      this.between.set("b", second ?? first);
    } else await this.#dream();
    await this.samples.draw();
  }

  // Without test images there is still something to look at: a sample of the model's own prior.
  async #dream() {
    const { name } = this.cards[0].run;
    const [a, b] = (await post("/sample", { count: 2, seed: 0, run: name })).images.map(clamped);
    this.source.set(a, `a sample of ${name}`);
    this.between.set("a", a);
    this.between.set("b", b);
  }

  #look(image) {
    this.image = image;
    for (const card of this.on) card.look(image);
  }

  // Bounds of different data cannot be compared: only runs of one image shape and likelihood are.
  #compare() {
    const known = this.cards.filter((card) => this.on.has(card) && card.found && !card.box.ariaBusy);
    const kind = ({ run }) => `${run.shape} ${run.likelihood}`;
    for (const card of known) card.compare(known.find((other) => kind(other) === kind(card)));
    if (known.length < this.on.size) return;
    const bounds = ({ run, found }) => `${run.name}: ELBO ${number(found.bounds.elbo)}, IWAE ${number(found.bounds.iwae)}`;
    $("said").textContent = known.map(bounds).join("; ");
  }

  #switches() {
    $("switches").append(...this.cards.map((card) => {
      const button = el("button", { type: "button", class: `r${card.index % 8}`, "aria-pressed": "true" }, el("span", { class: "dot", "aria-hidden": "true" }), card.run.name);
      button.addEventListener("click", () => this.#switch(card, button));
      return el("li", {}, button);
    }));
    this.#arrange();
  }

  #switch(card, button) {
    const on = !this.on.has(card);
    button.setAttribute("aria-pressed", String(on));
    if (on) {
      this.on.add(card);
      if (this.image) card.look(this.image);
    } else {
      this.on.delete(card);
      card.stop();
      this.#compare();
    }
    this.#arrange();
  }

  #arrange() {
    this.cards.forEach((card, i) => {
      const off = !this.on.has(card);
      for (const box of [card.box, this.samples.rows[i].box, this.between.rows[i].box]) box.hidden = off;
    });
    $("none-on").hidden = this.on.size > 0;
    for (const id of ["cards", "samples", "between"]) $(id).style.setProperty("--columns", Math.max(1, Math.min(this.on.size, 3)));
  }
}

const start = async () => {
  setUpTheme();
  try {
    const { runs } = await get("/runs");
    const data = [...new Set(runs.map((run) => run.data.name).filter(Boolean))];
    $("title").textContent = data.length ? data.join(", ") : runs.map((run) => run.name).join(", ");
    document.title = `${$("title").textContent}: recmix explorer`;
    await new Explorer(runs).begin();
  } catch (error) {
    $("problem").textContent = error.message;
    throw error;
  }
};

start();
