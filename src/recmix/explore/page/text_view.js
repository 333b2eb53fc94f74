// Texts on the page: as words, or as a molecule with its SMILES string.
import { el } from "./dom.js";
import { post } from "./server.js";

const MOST = 64; // texts in one request

// An SVG text as the address of an image. In an image no script can run.
const address = (drawing) => `data:image/svg+xml,${encodeURIComponent(drawing)}`;

export const textClass = (run) => (run.texts.molecules ? "written smiles" : "written");

// A text that can change. `other` is a text with which words are compared; those that differ are marked.
export class TextView {
  constructor(run, name = "p", attributes = {}) {
    this.run = run;
    this.text = "";
    this.words = el("span");
    this.picture = run.texts.drawn ? el("img", { class: "molecule", alt: "", hidden: true }) : null;
    this.box = el(name, { class: textClass(run), ...attributes }, this.picture, this.words);
  }

  set(text, other = null) {
    this.text = text;
    if (!text) this.words.replaceChildren(el("span", { class: "nothing" }, this.run.texts.molecules ? "no valid text" : "(empty text)"));
    else if (other === null || this.run.texts.molecules) this.words.replaceChildren(text);
    else this.words.replaceChildren(...marked(text.split(" "), other.split(" ")));
    if (this.picture) this.picture.hidden = true;
  }

  draw(drawing) {
    if (!this.picture) return;
    this.picture.hidden = !drawing;
    if (drawing) Object.assign(this.picture, { src: address(drawing), alt: `Molecule ${this.text}` });
  }
}

const marked = (words, others) =>
  words.flatMap((word, i) => [i ? " " : "", word === others[i] ? word : el("mark", {}, word)]);

const drawings = new Map(); // by SMILES string

// Draws the molecules of these views. Without RDKit on the server nothing is drawn.
export const drawAll = async (run, views) => {
  if (!run.texts.drawn) return;
  const wanted = [...new Set(views.map(({ text }) => text).filter((text) => text && !drawings.has(text)))];
  for (let i = 0; i < wanted.length; i += MOST) {
    const part = wanted.slice(i, i + MOST);
    const found = await post("/draw", { texts: part, run: run.name });
    part.forEach((text, k) => drawings.set(text, found.drawings[k]));
  }
  for (const view of views) view.draw(drawings.get(view.text) ?? null);
};
