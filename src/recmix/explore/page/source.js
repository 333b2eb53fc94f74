// Where the image comes from: a test image, a file, or a drawing.
import { $, el } from "./dom.js";
import { inverted, read, screen, show } from "./picture.js";
import { Pad } from "./pad.js";
import { Newest, get } from "./server.js";

const PAGE = 24;

export class Source {
  // `chosen` is told every image, and in words where it comes from.
  constructor(runs, chosen) {
    Object.assign(this, { runs, chosen, shape: runs[0].shape, start: 0, total: 0, images: [], at: 0 });
    this.loading = new Newest();
    this.pad = new Pad(this.shape, (image) => this.#give(image, "your drawing"));
    this.options = Array.from({ length: PAGE }, (_, i) => {
      const picture = screen("", { "aria-hidden": "true" });
      const option = el("button", { type: "button", role: "option", tabindex: -1, "aria-selected": "false", disabled: true }, picture);
      option.addEventListener("click", () => this.#pick(i));
      return { option, picture };
    });
    $("thumbs").append(...this.options.map(({ option }) => option));
    $("thumbs").addEventListener("keydown", (event) => this.#key(event));
    $("earlier").addEventListener("click", () => this.page(this.start - PAGE));
    $("later").addEventListener("click", () => this.page(this.start + PAGE));
    $("goto").addEventListener("change", () => this.#jump(Number($("goto").value)));
    $("file").addEventListener("change", () => this.#upload($("file").files[0]));
    $("invert").addEventListener("click", () => this.#give(inverted(this.image), `${this.words.replace(/, inverted$/, "")}${this.words.endsWith("inverted") ? "" : ", inverted"}`));
    $("redraw").addEventListener("click", () => this.pad.take(this.image));
    this.#tabs();
    this.#drop();
    this.#sets();
  }

  #give(image, words) {
    Object.assign(this, { image, words });
    show($("current"), image);
    $("current").setAttribute("aria-label", `The image: ${words}`);
    $("current-words").textContent = words;
    this.chosen(image, words);
  }

  // Three ways, one shown at a time.
  #tabs() {
    const tabs = [...document.querySelectorAll("[role=tab]")];
    this.open = (name) => {
      for (const tab of tabs) {
        const on = tab.id === `tab-${name}`;
        tab.setAttribute("aria-selected", String(on));
        tab.tabIndex = on ? 0 : -1;
        $(tab.getAttribute("aria-controls")).hidden = !on;
      }
    };
    tabs.forEach((tab, i) => {
      const go = (to) => { tabs[to].focus(); this.open(tabs[to].id.slice(4)); };
      tab.addEventListener("click", () => this.open(tab.id.slice(4)));
      tab.addEventListener("keydown", (event) => {
        const to = { ArrowRight: (i + 1) % tabs.length, ArrowLeft: (i + tabs.length - 1) % tabs.length, Home: 0, End: tabs.length - 1 }[event.key];
        if (to !== undefined) { event.preventDefault(); go(to); }
      });
    });
    this.open("test");
  }

  // Runs of unlike data: whose images are shown can be chosen.
  #sets() {
    this.from = this.runs[0].name;
    const seen = new Map();
    for (const run of this.runs) if (!seen.has(run.data.name)) seen.set(run.data.name, run.name);
    $("sets").hidden = seen.size < 2;
    $("set").replaceChildren(...[...seen].map(([data, run]) => el("option", { value: run }, data ?? run)));
    $("set").addEventListener("change", () => {
      this.from = $("set").value;
      this.total = 0;
      this.page(0);
    });
  }

  // The first test images there are, of whichever run.
  async begin() {
    for (const { value } of $("set").options) {
      $("set").value = value;
      this.from = value;
      await this.page(0);
      if (this.images.length) return;
    }
  }

  // A page of test images, of which one is chosen.
  page(start, at = 0, focus = false) {
    if (start < 0 || (this.total && start >= this.total)) return Promise.resolve();
    $("thumbs").setAttribute("aria-busy", "true");
    const turning = { start, at, focus };
    this.turning = turning;
    const path = `/runs/${encodeURIComponent(this.from)}/images?start=${start}&count=${PAGE}`;
    const end = (words) => {
      this.turning = null;
      $("thumbs").removeAttribute("aria-busy");
      $("source-problem").textContent = words;
    };
    return this.loading.run((signal) => get(path, signal), (found) => {
      end("");
      this.#turned(found);
      if (found.images.length) this.#pick(Math.min(turning.at, found.images.length - 1), turning.focus);
    }, (error) => {
      end(error.message);
      for (const id of ["earlier", "later", "goto"]) $(id).disabled = !this.total;
      if (!this.total) $("pages").textContent = "no test images";
    });
  }

  #turned({ start, total, images }) {
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
    $("earlier").disabled = start === 0;
    $("later").disabled = last >= total;
  }

  #pick(i, focus = false) {
    this.at = i;
    this.options.forEach(({ option }, k) => {
      option.setAttribute("aria-selected", String(k === i));
      option.tabIndex = k === i ? 0 : -1;
    });
    if (focus) this.options[i].option.focus();
    $("goto").value = this.start + i + 1;
    this.#give(this.images[i], `test image ${this.start + i + 1}`);
  }

  // To a test image by its place among all, on whichever page it is.
  #go(to, focus) {
    const at = to % PAGE;
    if (this.turning?.start === to - at) Object.assign(this.turning, { at, focus });
    else if (!this.turning && this.start === to - at) this.#pick(at, focus);
    else this.page(to - at, at, focus);
  }

  #jump(number) {
    const known = Number.isInteger(number) && number >= 1 && number <= this.total;
    $("source-problem").textContent = known ? "" : `Test images have numbers from 1 to ${this.total}.`;
    if (known) this.#go(number - 1, false);
  }

  #key(event) {
    const columns = getComputedStyle($("thumbs")).gridTemplateColumns.split(" ").length;
    const here = this.turning ?? this;
    const by = { ArrowLeft: -1, ArrowRight: 1, ArrowUp: -columns, ArrowDown: columns, PageUp: -PAGE, PageDown: PAGE }[event.key];
    const to = { Home: 0, End: this.total - 1 }[event.key] ?? here.start + here.at + by;
    if (Number.isNaN(to) || !this.total) return;
    event.preventDefault();
    this.#go(Math.max(0, Math.min(this.total - 1, to)), true);
  }

  async #upload(file) {
    if (!file) return;
    try {
      this.#give(await read(file, this.shape), file.name);
      $("upload-problem").textContent = "";
    } catch (error) {
      $("upload-problem").textContent = error.message;
    }
    $("file").value = ""; // the same file may be chosen again
  }

  // A file dropped anywhere on the page.
  #drop() {
    document.addEventListener("dragover", (event) => event.preventDefault());
    document.addEventListener("drop", (event) => {
      event.preventDefault();
      const [file] = event.dataTransfer?.files ?? [];
      if (!file) return;
      this.open("upload");
      this.#upload(file);
    });
  }

  // An image from elsewhere on the page.
  set(image, words) { this.#give(image, words); }
}
