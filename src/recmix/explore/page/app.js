// The explorer page: the runs that are switched on, and the image or the text that they all get.
import { $, setUpTheme } from "./dom.js";
import { Card } from "./card.js";
import { clamped, shaped } from "./picture.js";
import { legend } from "./plane.js";
import { ImageInterpolation, imageSamples } from "./samples.js";
import { get, post } from "./server.js";
import { Section } from "./section.js";
import { Source } from "./source.js";
import { TextExplorer } from "./texts.js";

class ImageExplorer extends Section {
  constructor(runs) {
    super("", runs, (run, index, how) => new Card(run, index, how));
    this.image = null;
    $("legend").append(legend());
    this.samples = imageSamples(runs);
    this.source = new Source(runs, (image) => this.#setImage(image));
    this.interpolation = new ImageInterpolation(runs, () => this.image);
    this.arrange();
  }

  async fromPrior(name) {
    const { images } = await post("/sample", { count: 2, seed: 0, run: name });
    const found = images.map((image) => clamped(shaped(image, this.cards[0].run.image)));
    this.source.set(found[0], `a prior sample of ${name}`);
    return found;
  }

  kindOf(run) {
    return `${run.shape} ${run.likelihood}`;
  }

  give(card) {
    if (this.image) card.setImage(this.image);
  }

  #setImage(image) {
    this.image = image;
    for (const card of this.on) this.give(card);
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
  const explorers = [images.length ? new ImageExplorer(images) : null, texts.length ? new TextExplorer(texts, images.length) : null];
  await Promise.all(explorers.filter(Boolean).map((explorer) => explorer.begin()));
} catch (error) {
  $("problem").textContent = error.message;
  throw error;
}
