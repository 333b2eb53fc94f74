// The choice of the image: a test image, a drawing, or a file.
import { $, clamp, el } from "./dom.js";
import { imageCanvas, inverted, readFile, show } from "./picture.js";
import { Pad } from "./pad.js";
import { LatestOnly, get } from "./server.js";

const PAGE = 24;

export class Source {
  // `onImage` gets every chosen image.
  constructor(runs, onImage) {
    Object.assign(this, { runs, onImage, shape: runs[0].shape, start: 0, total: 0, images: [], at: 0 });
    this.requests = new LatestOnly();
    this.pad = new Pad(this.shape, (image) => this.set(image, "your drawing"));
    this.options = Array.from({ length: PAGE }, (_, i) => {
      const picture = imageCanvas("", { "aria-hidden": "true" });
      const option = el("button", { type: "button", role: "option", tabindex: -1, "aria-selected": "false", disabled: true }, picture);
      option.addEventListener("click", () => this.#choose(i));
      return { option, picture };
    });
    $("thumbs").append(...this.options.map(({ option }) => option));
    $("thumbs").addEventListener("keydown", (event) => this.#key(event));
    $("previous").addEventListener("click", () => this.#load(this.start - PAGE));
    $("next").addEventListener("click", () => this.#load(this.start + PAGE));
    $("goto").addEventListener("change", () => this.#goToNumber(Number($("goto").value)));
    $("file").addEventListener("change", () => this.#upload($("file").files[0]));
    $("invert").addEventListener("click", () => {
      const name = this.name.replace(/, inverted$/, "");
      this.set(inverted(this.image), name === this.name ? `${name}, inverted` : name);
    });
    $("redraw").addEventListener("click", () => this.pad.load(this.image));
    this.#setUpTabs();
    this.#setUpDrop();
    this.#setUpDataSets();
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

  // If the runs have different data sets, a menu chooses whose test images are shown.
  #setUpDataSets() {
    this.from = this.runs[0].name;
    const runOf = new Map();
    for (const run of this.runs) if (!runOf.has(run.data.name)) runOf.set(run.data.name, run.name);
    $("sets").hidden = runOf.size < 2;
    $("set").replaceChildren(...[...runOf].map(([data, run]) => el("option", { value: run }, data ?? run)));
    $("set").addEventListener("change", () => {
      this.from = $("set").value;
      this.total = 0;
      this.#load(0);
    });
  }

  // Shows the test images of the first run that has some.
  async begin() {
    for (const { value } of $("set").options) {
      $("set").value = value;
      this.from = value;
      await this.#load(0);
      if (this.images.length) return;
    }
  }

  // Loads the page of test images that begins at `start`, and chooses the one at place `at` of it.
  #load(start, at = 0, focus = false) {
    if (start < 0 || (this.total && start >= this.total)) return Promise.resolve();
    $("thumbs").setAttribute("aria-busy", "true");
    const loading = { start, at, focus };
    this.loading = loading;
    const path = `/runs/${encodeURIComponent(this.from)}/images?start=${start}&count=${PAGE}`;
    const end = (message) => {
      this.loading = null;
      $("thumbs").removeAttribute("aria-busy");
      $("source-problem").textContent = message;
    };
    return this.requests.run((signal) => get(path, signal), (found) => {
      end("");
      this.#showPage(found);
      if (found.images.length) this.#choose(Math.min(loading.at, found.images.length - 1), loading.focus);
    }, (error) => {
      end(error.message);
      for (const id of ["previous", "next", "goto"]) $(id).disabled = !this.total;
      if (!this.total) $("pages").textContent = "no test images";
    });
  }

  #showPage({ start, total, images }) {
    Object.assign(this, { start, total, images });
    this.options.forEach(({ option, picture }, i) => {
      option.disabled = !images[i];
      option.setAttribute("aria-label", `Test image ${start + i + 1}`);
      picture.classList.toggle("shown", Boolean(images[i]));
      if (images[i]) show(picture, images[i]);
    });
    const last = start + images.length;
    $("pages").textContent = total ? `${start + 1} to ${last} of ${total}` : "no test images";
    Object.assign($("goto"), { max: total, disabled: !total });
    $("previous").disabled = start === 0;
    $("next").disabled = last >= total;
  }

  #choose(i, focus = false) {
    this.at = i;
    this.options.forEach(({ option }, k) => {
      option.setAttribute("aria-selected", String(k === i));
      option.tabIndex = k === i ? 0 : -1;
    });
    if (focus) this.options[i].option.focus();
    $("goto").value = this.start + i + 1;
    this.set(this.images[i], `test image ${this.start + i + 1}`);
  }

  // Goes to a test image by its index among all. A page that is still loading opens there.
  #goTo(index, focus) {
    const at = index % PAGE;
    if (this.loading?.start === index - at) Object.assign(this.loading, { at, focus });
    else if (!this.loading && this.start === index - at) this.#choose(at, focus);
    else this.#load(index - at, at, focus);
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
