// The report page. pages/dom.js and charts.js come before this file in the same script.

document.documentElement.classList.add("js");
setUpTheme();

// Decompresses data that the program put into the page.
const unpack = async (id) => {
  const bytes = Uint8Array.from(atob($(id).textContent.trim()), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
};

// --- sorting the result tables -------------------------------------------------------------------
const markSorted = (head, th, direction) => {
  for (const other of head.querySelectorAll("[aria-sort]")) other.setAttribute("aria-sort", "none");
  th.setAttribute("aria-sort", direction);
};
const missingLast = (a, b, compared) => (a === null) - (b === null) || compared;
for (const table of document.querySelectorAll("table.results")) {
  const body = table.tBodies[0];
  const original = [...body.rows];
  table.tHead.addEventListener("click", (event) => {
    const th = event.target.closest(".sort")?.parentElement;
    if (!th) return;
    const byName = th.dataset.key === "name";
    const now = th.getAttribute("aria-sort");
    const first = byName || table.id === "table-time" ? "ascending" : "descending";
    const direction = now === "none" ? first : now === "ascending" ? "descending" : "ascending";
    const cell = `td[data-col="${th.dataset.col}"]${th.dataset.key === "paper" ? ".paper" : ":not(.paper)"}`;
    const sign = direction === "ascending" ? 1 : -1;
    const key = (row) => {
      if (byName) return Number(row.dataset.row);
      const value = row.querySelector(cell)?.dataset.v;
      return value === undefined ? null : Number(value);
    };
    const sorted = original.map((row) => [key(row), row]).sort(([a], [b]) => missingLast(a, b, sign * (a - b)));
    body.append(...sorted.map(([, row]) => row));
    table.classList.toggle("sorted", !(byName && direction === "ascending"));
    markSorted(table.tHead, th, direction);
  });
}

const index = await unpack("index").catch((error) => {
  for (const id of ["frontier", "curves", "runs"]) {
    $(id).append(el("p", { class: "muted" }, `This browser could not read the data of the page (${error}). The tables above are complete.`));
  }
  throw error;
});
const { rows, hues, columns, curves } = index;
const cells = index.cells.map(([row, column, splits, mean, std, time]) => ({ name: rows[row], hue: hues[row], column, mean, std, time, splits }));
const runs = index.runs.map(([folder, row, column, split, restart, status, validation, test, time, selected, continued], i) =>
  ({ i, folder, row, column, split, restart, status, validation, test, time, selected, continued }));
const statuses = [...new Set(runs.map((run) => run.status))].sort();

// --- filters -------------------------------------------------------------------------------------
let visible = columns.map((_, i) => i);
const filter = () => {
  const data = $("filter-data").value;
  const dim = $("filter-dim").value;
  visible = columns.map((_, i) => i).filter((i) =>
    (!data || columns[i].data === data) && (!dim || String(columns[i].dim) === dim));
  for (const part of document.querySelectorAll("[data-col]")) part.hidden = !visible.includes(Number(part.dataset.col));
  for (const group of document.querySelectorAll("[data-cols]")) {
    const kept = group.dataset.cols.split(" ").filter((i) => visible.includes(Number(i)));
    const first = group.closest("table").tBodies[0].rows[0]?.cells ?? [];
    const width = [...first].filter((cell) => kept.includes(cell.dataset.col)).length;
    group.hidden = !kept.length;
    if (width) group.colSpan = width;
  }
  $("filter-count").textContent = `${visible.length} of ${columns.length} columns`;
  listFromStart();
  draw();
};
for (const id of ["filter-data", "filter-dim"]) $(id).addEventListener("change", filter);
for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());

// A table that fits into the page needs no scroll bar of its own.
const fitTables = () => {
  document.documentElement.style.setProperty("--bar", `${document.querySelector(".bar").offsetHeight}px`);
  for (const box of document.querySelectorAll(".scroll")) {
    box.classList.remove("fits");
    const fits = box.scrollWidth <= box.clientWidth;
    box.classList.toggle("fits", fits);
    if (fits) box.removeAttribute("tabindex"); else box.setAttribute("tabindex", "0");
  }
};

// A broad figure takes the whole width.
for (const image of document.querySelectorAll(".pictures img")) {
  const arrange = () => image.parentElement.classList.toggle("broad", image.naturalWidth > 2.8 * image.naturalHeight);
  if (image.complete) arrange(); else image.addEventListener("load", arrange);
}

// --- log-likelihood against time -----------------------------------------------------------------
const drawFrontiers = () => {
  const figures = visible.map((column) => el("figure", { class: "card" }, el("figcaption", {}, columns[column].name)));
  $("frontier-charts").replaceChildren(...figures);
  const width = Math.max(280, (figures[0]?.clientWidth ?? 530) - 32);
  visible.forEach((column, i) => {
    const timed = cells.filter((cell) => cell.column === column && cell.time > 0);
    figures[i].append(timed.length ? frontierChart(columns[column].name, timed, width)
      : el("p", { class: "empty" }, "There is no time for a batch of 128 here."));
  });
};

// --- learning curves -----------------------------------------------------------------------------
const dashes = ["", "6 3", "2 3", "8 3 2 3"];
const hidden = new Set();  // names of lines that the reader switched off
const setOptions = (select, values, labels) => {
  const before = select.value;
  select.replaceChildren(...values.map((value, i) => el("option", { value }, labels[i])));
  if (values.map(String).includes(before)) select.value = before;
};

// The curves of the chosen column, stage, split and bound. The menus offer only what exists.
const chosenCurves = () => {
  const [column, stage, split] = ["curve-column", "curve-stage", "curve-split"].map($);
  setOptions(column, visible, visible.map((i) => columns[i].name));
  const here = runs.filter((run) => curves[run.i] && String(run.column) === column.value);
  const stages = [1, 0].filter((value) => here.some((run) => run.continued === value));
  for (const option of stage.options) option.disabled = !stages.includes(Number(option.value));
  if (stages.length && !stages.includes(Number(stage.value))) stage.value = String(stages[0]);
  const staged = here.filter((run) => String(run.continued) === stage.value);
  const splits = [...new Set(staged.map((run) => run.split))].sort((a, b) => a - b);
  setOptions(split, splits, splits.map(String));
  const series = $("curve-series").value;
  const count = {};
  return staged.filter((run) => String(run.split) === split.value && curves[run.i][series]).sort((a, b) => a.row - b.row).map((run) => {
    const hue = hues[run.row];
    count[hue] = (count[hue] ?? -1) + 1;
    return { name: rows[run.row], hue, dash: dashes[count[hue] % dashes.length], epoch: curves[run.i].epoch, value: curves[run.i][series] };
  });
};

const curveSwitch = (line) => {
  const swatch = svg("svg", { viewBox: "0 0 26 6", class: "swatch", "aria-hidden": "true" },
    svg("path", { class: "line", d: "M0,3H26", "stroke-dasharray": line.dash }));
  const button = el("button", { type: "button", class: `hue-${line.hue}`, "aria-pressed": String(!hidden.has(line.name)) }, swatch, line.name);
  button.addEventListener("click", () => {
    if (!hidden.delete(line.name)) hidden.add(line.name);
    const place = [...$("curve-legend").children].indexOf(button.parentElement);
    drawCurves();
    $("curve-legend").children[place]?.firstElementChild.focus();
  });
  return el("li", {}, button);
};

const drawCurves = () => {
  const all = chosenCurves();
  const lines = all.filter((line) => !hidden.has(line.name));
  const box = $("curve-chart");
  $("curve-legend").replaceChildren(...all.map(curveSwitch));
  $("curve-point").textContent = "";
  if (!lines.length) {
    box.replaceChildren(el("p", { class: "empty" }, all.length ? "All lines are switched off." : "No selected run has this curve."));
    return;
  }
  const width = Math.max(280, box.clientWidth - 32);
  const { chart, y } = lineChart(lines, width, clamp(width * 0.5, 300, 460), "curves");
  const column = columns[Number($("curve-column").value)].name;
  chart.setAttribute("tabindex", "0");
  chart.setAttribute("aria-label", `Learning curves of ${lines.length} runs on ${column}, split ${$("curve-split").value}`);
  const tip = el("div", { class: "tip", hidden: true });
  box.replaceChildren(chart, tip);
  followPointer(chart, lines, y, tip, (text) => { $("curve-point").textContent = text; });
};

for (const id of ["curve-column", "curve-stage", "curve-split", "curve-series"]) $(id).addEventListener("change", drawCurves);

// --- runs ----------------------------------------------------------------------------------------
const PAGE = 50;
let page = 0, sortBy = null, sortSign = 1;
const milliseconds = (time) => (time === null ? "–" : number(time, time < 1 ? 3 : 2));
// Columns of the list: name, value to sort by, text, class.
const fields = [
  ["Method", (run) => run.row, (run) => rows[run.row]],
  ["Data set and dim", (run) => run.column, (run) => columns[run.column].name],
  ["Split", (run) => run.split, (run) => String(run.split), "number"],
  ["Restart", (run) => run.restart, (run) => String(run.restart), "number"],
  ["Status", (run) => run.status, (run) => run.status],
  ["Validation", (run) => run.validation, (run) => rounded(run.validation), "number"],
  [`Test IWAE-${index.samples}`, (run) => run.test, (run) => rounded(run.test), "number"],
  ["ms", (run) => run.time, (run) => milliseconds(run.time), "number"],
  ["Selected", (run) => -run.selected, (run) => (run.selected ? "✓" : "")],
  ["Folder", (run) => run.folder, (run) => el("code", {}, run.folder)],
];
const head = $("run-table").tHead.rows[0];
head.append(el("th", { scope: "col" }, "Details"));
fields.forEach(([name, , , kind], place) => {
  const button = el("button", { type: "button", class: "sort", title: `Sort by ${name.toLowerCase()}` }, name, el("span", { class: "arrow", "aria-hidden": "true" }));
  const th = el("th", { scope: "col", "aria-sort": "none", class: kind }, button);
  button.addEventListener("click", () => {
    sortSign = sortBy === place ? -sortSign : 1;
    sortBy = place;
    markSorted(head, th, sortSign > 0 ? "ascending" : "descending");
    listFromStart();
  });
  head.append(th);
});
$("run-status").append(...statuses.map((status) => el("option", { value: status }, status)));
const titleOf = (run) => `${rows[run.row]} on ${columns[run.column].name}, split ${run.split}, restart ${run.restart}`;

const foundRuns = () => {
  const words = $("run-search").value.toLowerCase().split(/\s+/).filter(Boolean);
  const status = $("run-status").value;
  const matches = (run) => {
    if (!visible.includes(run.column) || (status && run.status !== status) || ($("run-selected").checked && !run.selected)) return false;
    const text = `${rows[run.row]} ${columns[run.column].name} ${run.status} ${run.folder}`.toLowerCase();
    return words.every((word) => text.includes(word));
  };
  const found = runs.filter(matches);
  if (sortBy === null) return found;
  const key = fields[sortBy][1];
  const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
  return found.sort((a, b) => missingLast(key(a), key(b), sortSign * compare(key(a), key(b))));
};

const listRuns = () => {
  const found = foundRuns();
  const pages = Math.max(1, Math.ceil(found.length / PAGE));
  page = Math.min(page, pages - 1);
  const [from, to] = [page * PAGE, Math.min(found.length, (page + 1) * PAGE)];
  $("run-table").tBodies[0].replaceChildren(...found.slice(from, to).map((run) => {
    const button = el("button", { type: "button", class: "small", "aria-label": `Details of ${titleOf(run)}` }, "details");
    button.addEventListener("click", () => openRun(run));
    return el("tr", {}, el("td", {}, button), ...fields.map(([name, , text, kind]) =>
      el("td", { class: name === "Status" && run.status === "failed" ? "status-failed" : kind }, text(run))));
  }));
  $("run-count").textContent = `${found.length ? from + 1 : 0}–${to} of ${found.length} runs`;
  $("run-previous").disabled = page === 0;
  $("run-next").disabled = page >= pages - 1;
};
const listFromStart = () => { page = 0; listRuns(); };
$("run-search").addEventListener("input", listFromStart);
for (const id of ["run-status", "run-selected"]) $(id).addEventListener("change", listFromStart);
$("run-previous").addEventListener("click", () => { page--; listRuns(); });
$("run-next").addEventListener("click", () => { page++; listRuns(); });

// --- one run -------------------------------------------------------------------------------------
const runIn = new Map(runs.map((run) => [run.folder, run]));
const packs = new Map();
const detailsOf = async ({ i }) => {
  const pack = Math.floor(i / index.chunk);
  if (!packs.has(pack)) packs.set(pack, unpack(`pack-${pack}`));
  return (await packs.get(pack))[i % index.chunk];
};
const fold = (title, text, open = false) => el("details", { open }, el("summary", {}, title), el("pre", { tabindex: "0" }, text));
const json = (value) => JSON.stringify(value, null, 2);

const factsOf = (run, found) => {
  const facts = el("dl", { class: "facts" });
  const add = (name, value) => facts.append(el("dt", {}, name), el("dd", {}, value));
  add("folder", run.folder);
  add("status", run.status + (found.reason ? `: ${found.reason}` : ""));
  add("selected", run.selected ? "yes: highest validation bound of its split" : "no");
  add("validation", `${rounded(run.validation)} nats` + (found.best_epoch ? `, best at epoch ${found.best_epoch} of ${found.epochs}` : ""));
  add(`test IWAE-${index.samples}`, `${rounded(run.test)} nats`);
  if (found.inference) add("inference", found.inference);
  const from = found.job?.dependency;
  if (runIn.has(from)) {
    const button = el("button", { type: "button", class: "small" }, from);
    button.addEventListener("click", () => openRun(runIn.get(from)));
    add("started from", button);
  } else if (from) add("started from", typeof from === "string" ? from : json(from));
  return facts;
};

const validationChart = (run, curve) => {
  const width = clamp($("details").clientWidth - 40, 260, 880);
  const line = { hue: hues[run.row], dash: "", epoch: curve.epoch, value: curve.val_iwae };
  const { chart } = lineChart([line], width, 220, "details");
  chart.setAttribute("aria-label", "Validation bound over the epochs");
  return [el("h3", {}, "Validation bound"), chart];
};

const openRun = async (run) => {
  const body = $("details-body");
  $("details-title").textContent = titleOf(run);
  body.replaceChildren(el("p", { class: "muted" }, "Loading …"));
  if (!$("details").open) $("details").showModal();
  const found = await detailsOf(run);
  const { environment } = found;
  body.replaceChildren(
    factsOf(run, found),
    ...(found.curve?.val_iwae?.length > 1 ? validationChart(run, found.curve) : []),
    ...(found.failure === undefined ? [] : [fold("Failure", json(found.failure), true)]),
    fold("Environment", environment ? json(environment.length === 1 ? environment[0] : environment) : "not recorded", true),
    fold("Spec", found.spec ? json(found.spec) : "none: the run has not started"),
    ...(found.job ? [fold("Job", json(found.job))] : []),
    ...(found.scores ? [fold("Scores", json(found.scores))] : []),
    fold("Log", found.log?.join("\n") ?? "empty"),
    ...(found.text ? [fold("Printed output", found.text.join("\n"))] : []));
  body.parentElement.scrollTop = 0;
};
$("details-close").addEventListener("click", () => $("details").close());
$("details").addEventListener("click", (event) => { if (event.target === $("details")) $("details").close(); });

// Draws everything that depends on the width of the page.
const draw = () => {
  drawFrontiers();
  drawCurves();
  fitTables();
};
filter();
let widthBefore = document.body.clientWidth;
addEventListener("resize", () => {
  if (document.body.clientWidth !== widthBefore) draw();
  widthBefore = document.body.clientWidth;
});
