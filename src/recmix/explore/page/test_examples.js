// The test examples of the runs, one page at a time. If the runs have different data sets, a menu chooses one.
import { $, el } from "./dom.js";
import { LatestOnly, get } from "./server.js";

// A subclass defines show(items), which shows a page, and choose({ at, focus }), which chooses one of it.
export class TestExamples {
  // `kind` is "images" or "texts", `count` the number on a page, `list` the id of the element that shows them.
  constructor(prefix, runs, { kind, count, list }) {
    Object.assign(this, { runs, kind, count, prefix, items: [], start: 0, total: 0, loading: null, requests: new LatestOnly() });
    this.list = $(list);
    this.from = runs[0].name;
    const runOf = new Map();
    for (const run of runs) if (!runOf.has(run.data.name)) runOf.set(run.data.name, run.name);
    this.part("sets").hidden = runOf.size < 2;
    this.part("set").replaceChildren(...[...runOf].map(([data, run]) => el("option", { value: run }, data ?? run)));
    this.part("set").addEventListener("change", () => {
      this.from = this.part("set").value;
      this.total = 0;
      this.load(0);
    });
    this.part("previous").addEventListener("click", () => this.load(this.start - count));
    this.part("next").addEventListener("click", () => this.load(this.start + count));
  }

  part(id) {
    return $(this.prefix + id);
  }

  // Shows the test examples of the first run that has some.
  async begin() {
    for (const { value } of this.part("set").options) {
      this.part("set").value = value;
      this.from = value;
      await this.load(0);
      if (this.items.length) return;
    }
  }

  // Turns an item of the server's answer into what the page shows.
  read(item) {
    return item;
  }

  // Loads the page that begins at `start`, and chooses the example at place `at` of it.
  load(start, at = 0, focus = false) {
    if (start < 0 || (this.total && start >= this.total)) return Promise.resolve();
    this.list.setAttribute("aria-busy", "true");
    const loading = { start, at, focus };
    this.loading = loading;
    const end = (message) => {
      this.loading = null;
      this.list.removeAttribute("aria-busy");
      this.part("source-problem").textContent = message;
    };
    const path = `/runs/${encodeURIComponent(this.from)}/${this.kind}?start=${start}&count=${this.count}`;
    return this.requests.run((signal) => get(path, signal), (found) => {
      end("");
      this.#showPage(found.start, found.total, found[this.kind].map((item) => this.read(item)));
      if (this.items.length) this.choose(loading);
    }, (error) => {
      end(error.message);
      for (const id of ["previous", "next", "goto"]) if (this.part(id)) this.part(id).disabled = !this.total;
      if (!this.total) this.part("pages").textContent = `no test ${this.kind}`;
    });
  }

  #showPage(start, total, items) {
    Object.assign(this, { start, total, items });
    this.show(items);
    const last = start + items.length;
    this.part("pages").textContent = total ? `${start + 1} to ${last} of ${total}` : `no test ${this.kind}`;
    this.part("previous").disabled = start === 0;
    this.part("next").disabled = last >= total;
  }
}
