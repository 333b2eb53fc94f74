// The choice of the image: a test image, a drawing, or a file.
import { $, clamp, el } from "./dom.js";
import { imageCanvas, inverted, readFile, shaped, show } from "./picture.js";
import { Pad } from "./pad.js";
import { TestExamples } from "./test_examples.js";

const PAGE = 24;

export class Source extends TestExamples {
  // `onImage` gets every chosen image.
  constructor(runs, onImage) {
    super("", runs, { kind: "images", count: PAGE, list: "thumbs" });
    Object.assign(this, { onImage, shape: runs[0].image, at: 0 });
    this.pad = new Pad(this.shape, (image) => this.set(image, "your drawing"));
    this.options = Array.from({ length: PAGE }, (_, i) => {
      const picture = imageCanvas("", { "aria-hidden": "true" });
      const option = el("button", { type: "button", role: "option", tabindex: -1, "aria-selected": "false", disabled: true }, picture);
      option.addEventListener("click", () => this.choose({ at: i, focus: false }));
      return { option, picture };
    });
    $("thumbs").append(...this.options.map(({ option }) => option));
    $("thumbs").addEventListener("keydown", (event) => this.#key(event));
    $("goto").addEventListener("change", () => this.#goToNumber(Number($("goto").value)));
    $("file").addEventListener("change", () => this.#upload($("file").files[0]));
    $("invert").addEventListener("click", () => {
      const name = this.name.replace(/, inverted$/, "");
      this.set(inverted(this.image), name === this.name ? `${name}, inverted` : name);
    });
    $("redraw").addEventListener("click", () => this.pad.load(this.image));
    this.#setUpTabs();
    this.#setUpDrop();
  }

  // Makes this the current image. `name` says what it is.
  set(image, name) {
    Object.assign(this, { image, name });
    show($("current"), image);
    $("current").setAttribute("aria-label", `Current image: ${name}`);
    $("current-name").textContent = name;
    this.onImage(image);
  }

  #setUpTabs() {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    this.openTab = (name) => {
      for (const tab of tabs) {
        const on = tab.id === `tab-${name}`;
        tab.setAttribute("aria-selected", String(on));
        tab.tabIndex = on ? 0 : -1;
        $(tab.getAttribute("aria-controls")).hidden = !on;
      }
    };
    tabs.forEach((tab, i) => {
      const open = (to) => { tabs[to].focus(); this.openTab(tabs[to].id.slice(4)); };
      tab.addEventListener("click", () => open(i));
      tab.addEventListener("keydown", (event) => {
        const to = { ArrowRight: (i + 1) % tabs.length, ArrowLeft: (i + tabs.length - 1) % tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
        if (to !== undefined) { event.preventDefault(); open(to); }
      });
    });
    this.openTab("test");
  }

  read(example) {
    return shaped(example, this.runs.find((run) => run.name === this.from).image);
  }

  show(images) {
    this.options.forEach(({ option, picture }, i) => {
      option.disabled = !images[i];
      option.setAttribute("aria-label", `Test image ${this.start + i + 1}`);
      picture.classList.toggle("shown", Boolean(images[i]));
      if (images[i]) show(picture, images[i]);
    });
    Object.assign($("goto"), { max: this.total, disabled: !this.total });
  }

  choose({ at, focus }) {
    this.at = Math.min(at, this.items.length - 1);
    this.options.forEach(({ option }, k) => {
      option.setAttribute("aria-selected", String(k === this.at));
      option.tabIndex = k === this.at ? 0 : -1;
    });
    if (focus) this.options[this.at].option.focus();
    $("goto").value = this.start + this.at + 1;
    this.set(this.items[this.at], `test image ${this.start + this.at + 1}`);
  }

  // Goes to a test image by its index among all. A page that is still loading opens there.
  #goTo(index, focus) {
    const at = index % PAGE;
    if (this.loading?.start === index - at) Object.assign(this.loading, { at, focus });
    else if (!this.loading && this.start === index - at) this.choose({ at, focus });
    else this.load(index - at, at, focus);
  }

  #goToNumber(number) {
    const exists = Number.isInteger(number) && number >= 1 && number <= this.total;
    $("source-problem").textContent = exists ? "" : `Choose a number from 1 to ${this.total}.`;
    if (exists) this.#goTo(number - 1, false);
  }

  #key(event) {
    const columns = getComputedStyle($("thumbs")).gridTemplateColumns.split(" ").length;
    const here = this.loading ?? this;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -PAGE, PageDown: PAGE }[event.key];
    const to = { Home: 0, End: this.total - 1 }[event.key] ?? here.start + here.at + by;
    if (Number.isNaN(to) || !this.total) return;
    event.preventDefault();
    this.#goTo(clamp(to, 0, this.total - 1), true);
  }

  async #upload(file) {
    if (!file) return;
    try {
      this.set(await readFile(file, this.shape), file.name);
      $("upload-problem").textContent = "";
    } catch (error) {
      $("upload-problem").textContent = error.message;
    }
    $("file").value = ""; // so that the same file can be chosen again
  }

  // A file can be dropped anywhere on the page.
  #setUpDrop() {
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      const [file] = event.dataTransfer?.files ?? [];
      if (!file) return;
      this.openTab("upload");
      this.#upload(file);
    });
  }
}
