
"use strict";
(async () => {
  const root = document.documentElement;
  root.classList.add("js");
  const $ = (id) => document.getElementById(id);
  const minus = (text) => text.replace(/-/g, "−");

  // An element with attributes and children; text is always text, never markup.
  const make = (space) => (tag, attributes = {}, ...children) => {
    const made = space ? document.createElementNS(space, tag) : document.createElement(tag);
    for (const [name, value] of Object.entries(attributes)) {
      if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
    }
    made.append(...children.filter((child) => child !== null && child !== undefined));
    return made;
  };
  const el = make(null);
  const svg = make("http://www.w3.org/2000/svg");

  // Data that was compressed when the page was written.
  const unpack = async (id) => {
    const packed = Uint8Array.from(atob($(id).textContent.trim()), (letter) => letter.charCodeAt(0));
    const stream = new Blob([packed]).stream().pipeThrough(new DecompressionStream("gzip"));
    return JSON.parse(await new Response(stream).text());
  };

  // --- theme -----------------------------------------------------------------------------------
  const themes = ["auto", "light", "dark"];
  let theme = "auto";
  try { theme = localStorage.getItem("recmix-theme") || "auto"; } catch { /* no storage for files */ }
  const setTheme = (name) => {
    theme = themes.includes(name) ? name : "auto";
    if (theme === "auto") delete root.dataset.theme; else root.dataset.theme = theme;
    $("theme").textContent = `Theme: ${theme}`;
    $("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "as the system" : theme}. Change it`);
    try { localStorage.setItem("recmix-theme", theme); } catch { /* the same */ }
  };
  $("theme").addEventListener("click", () => setTheme(themes[(themes.indexOf(theme) + 1) % themes.length]));
  setTheme(theme);

  // --- sorting the result tables ---------------------------------------------------------------
  const markSorted = (head, at, direction) => {
    for (const th of head.querySelectorAll("[aria-sort]")) th.setAttribute("aria-sort", "none");
    at.setAttribute("aria-sort", direction);
  };
  for (const table of document.querySelectorAll("table.results")) {
    const body = table.tBodies[0];
    const original = [...body.rows];
    table.tHead.addEventListener("click", (event) => {
      const button = event.target.closest(".sort");
      if (!button) return;
      const th = button.parentElement;
      const byName = th.dataset.key === "name";
      const now = th.getAttribute("aria-sort");
      const first = byName || table.id === "table-time" ? "ascending" : "descending";
      const direction = now === "none" ? first : now === "ascending" ? "descending" : "ascending";
      const place = `td[data-col="${th.dataset.col}"]${th.dataset.key === "paper" ? ".paper" : ":not(.paper)"}`;
      const sign = direction === "ascending" ? 1 : -1;
      const key = (row) => {
        if (byName) return Number(row.dataset.row);
        const value = row.querySelector(place)?.dataset.v;
        return value === undefined ? null : Number(value);
      };
      const rows = original.map((row) => [key(row), row]);
      rows.sort(([a], [b]) => (a === null) - (b === null) || sign * (a - b));  // what is missing comes last
      body.append(...rows.map(([, row]) => row));
      table.classList.toggle("sorted", !(byName && direction === "ascending"));
      markSorted(table.tHead, th, direction);
    });
  }

  let index;
  try {
    index = await unpack("index");
  } catch (error) {
    for (const id of ["frontier", "curves", "runs"]) {
      $(id).append(el("p", { class: "note" }, `This browser could not unpack the data (${error}). The tables above are complete.`));
    }
    return;
  }
  const { rows, families, columns, statuses, runs, cells, curves } = index;
  const [FOLDER, ROW, COLUMN, SPLIT, RESTART, STATUS, VALIDATION, TEST, TIME, CHOSEN, STAGE] = runs[0] ? runs[0].keys() : [];

  // --- filters ---------------------------------------------------------------------------------
  let visible = columns.map((_, i) => i);
  const listeners = [];
  const filter = () => {
    const data = $("filter-data").value;
    const dim = $("filter-dim").value;
    visible = columns.map((_, i) => i).filter((i) =>
      (!data || columns[i].data === data) && (!dim || String(columns[i].dim) === dim));
    const shown = new Set(visible);
    for (const part of document.querySelectorAll("[data-col]")) part.hidden = !shown.has(Number(part.dataset.col));
    for (const group of document.querySelectorAll("[data-cols]")) {
      const kept = group.dataset.cols.split(" ").map(Number).filter((i) => shown.has(i));
      const cellsOf = group.closest("table").tBodies[0].rows[0]?.cells ?? [];
      const width = [...cellsOf].filter((cell) => cell.dataset.col && kept.includes(Number(cell.dataset.col))).length;
      group.hidden = !kept.length;
      if (width) group.colSpan = width;
    }
    $("filter-said").textContent = `${visible.length} of ${columns.length} columns`;
    for (const listener of listeners) listener();
  };
  $("filter-data").addEventListener("change", filter);
  $("filter-dim").addEventListener("change", filter);
  for (const form of document.querySelectorAll("form")) form.addEventListener("submit", (event) => event.preventDefault());

  // A table that is not wider than the page needs no scrolling of its own.
  const fit = () => {
    const bar = document.querySelector(".bar");
    root.style.setProperty("--bar", `${bar.offsetHeight}px`);
    for (const box of document.querySelectorAll(".scroll")) {
      box.classList.remove("fits");
      const fits = box.scrollWidth <= box.clientWidth;
      box.classList.toggle("fits", fits);
      if (fits) box.removeAttribute("tabindex"); else box.setAttribute("tabindex", "0");
    }
  };

  // A broad picture takes the whole width.
  for (const picture of document.querySelectorAll(".pictures img")) {
    const settle = () => picture.parentElement.classList.toggle("broad", picture.naturalWidth > 2.8 * picture.naturalHeight);
    if (picture.complete) settle(); else picture.addEventListener("load", settle);
  }

  // --- axes ------------------------------------------------------------------------------------
  const round = (value) => {  // figures as the tables show them
    if (value === null || value === undefined) return "–";
    return minus(Math.abs(value) < 200 ? value.toFixed(2) : value.toFixed(1));
  };
  const ticksOf = (low, high, about) => {
    const raw = (high - low) / about;
    const power = 10 ** Math.floor(Math.log10(raw));
    const step = [1, 2, 5, 10].find((factor) => factor * power >= raw) * power;
    const found = [];
    for (let value = Math.ceil(low / step) * step; value <= high + step * 1e-9; value += step) found.push(Number(value.toPrecision(12)));
    return found;
  };
  const logTicks = (low, high) => {
    const found = [];
    for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
      for (const factor of [1, 2, 5]) {
        const value = factor * 10 ** power;
        if (value >= low && value <= high) found.push(Number(value.toPrecision(6)));
      }
    }
    return found;
  };
  const frame = (width, height, x, y, names, xTicks, yTicks) => {
    const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height });
    for (const value of yTicks) {
      const at = y(value);
      chart.append(svg("line", { class: "grid", x1: x.from, x2: x.to, y1: at, y2: at }));
      chart.append(svg("text", { class: "tick", x: x.from - 6, y: at + 4, "text-anchor": "end" }, minus(String(value))));
    }
    for (const value of xTicks) {
      const at = x(value);
      chart.append(svg("line", { class: "grid", x1: at, x2: at, y1: y.to, y2: y.from }));
      chart.append(svg("text", { class: "tick", x: at, y: y.from + 16, "text-anchor": "middle" }, String(value)));
    }
    chart.append(svg("text", { class: "axis", x: (x.from + x.to) / 2, y: height - 4, "text-anchor": "middle" }, names[0]));
    chart.append(svg("text", { class: "axis", x: 4, y: 12 }, names[1]));
    return chart;
  };
  const scale = (low, high, from, to, map = (value) => value) => {
    const [a, b] = [map(low), map(high)];
    const place = (value) => from + ((map(value) - a) / (b - a || 1)) * (to - from);
    return Object.assign(place, { from, to });
  };

  // --- frontier --------------------------------------------------------------------------------
  // Labels take the cheapest free place around their point: near it, nearer to it than to any other
  // point, with a leader that crosses no label. No label covers another, or a point.
  const gapTo = (box, p) => Math.hypot(Math.max(box.x - p.x, 0, p.x - box.x - box.w), Math.max(box.y - p.y, 0, p.y - box.y - box.h));
  const overlap = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
  const crosses = (box, p, q) => {  // whether the way from p to q leads through a box
    for (let step = 1; step < 12; step++) {
      const [x, y] = [p.x + ((q.x - p.x) * step) / 12, p.y + ((q.y - p.y) * step) / 12];
      if (x > box.x && x < box.x + box.w && y > box.y && y < box.y + box.h) return true;
    }
    return false;
  };
  const placeLabels = (points, bounds) => {
    const marks = points.map((p) => ({ x: p.x - 5, y: p.y - 5, w: 10, h: 10 }));
    const boxes = [];
    const crowd = (p) => points.filter((q) => Math.hypot(p.x - q.x, p.y - q.y) < 45).length;
    for (const point of [...points].sort((a, b) => crowd(b) - crowd(a) || a.y - b.y)) {
      let cheapest = Infinity;
      for (const gap of [6, 9, 14, 20, 28, 38, 50, 64, 80, 100, 130]) {
        if (gap > cheapest) break;
        for (let turn = 0; turn < 24; turn++) {
          const angle = (turn * Math.PI) / 12;
          const [cx, cy] = [point.x + Math.cos(angle) * (gap + point.w / 2), point.y + Math.sin(angle) * (gap + point.h / 2)];
          const box = { x: cx - point.w / 2, y: cy - point.h / 2, w: point.w, h: point.h };
          if (box.x < bounds.x || box.y < bounds.y || box.x + box.w > bounds.x + bounds.w || box.y + box.h > bounds.y + bounds.h) continue;
          if (marks.some((mark) => overlap(box, mark)) || boxes.some((other) => overlap(box, other))) continue;
          const own = gapTo(box, point);
          const rivals = points.filter((other) => other !== point && gapTo(box, other) < own + 3).length;
          const crossed = boxes.filter((other) => crosses(other, point, { x: cx, y: cy })).length;
          const cost = gap + 9 * rivals + 40 * crossed + 2 * (1 - Math.cos(angle));
          if (cost < cheapest) { cheapest = cost; point.box = box; }
        }
      }
      if (point.box) boxes.push(point.box);
    }
    return points;
  };
  const pen = document.createElement("canvas").getContext("2d");
  pen.font = `550 11.5px ${getComputedStyle(document.body).fontFamily}`;
  const brief = (name) => (name.length > 22 ? `${name.slice(0, 20)}…` : name);
  const shapes = [
    "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-5,0L0,-5L5,0L0,5Z", "M-3.7,-3.7H3.7V3.7H-3.7Z", "M0,-5L4.6,3.6H-4.6Z",
    "M0,5L4.6,-3.6H-4.6Z", "M-4.5,-1.5H-1.5V-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5Z",
  ];
  const drawFrontier = (column, width) => {
    const found = cells.filter((cell) => cell[1] === column && cell[4] !== null && cell[4] > 0);
    const figure = el("figure", {}, el("figcaption", {}, columns[column].name));
    if (!found.length) {
      figure.append(el("p", { class: "empty" }, "No times of batches of 128 were measured here."));
      return figure;
    }
    const height = width < 420 ? 420 : Math.min(440, width * 0.74);
    const [times, means] = [found.map((cell) => cell[4]), found.map((cell) => cell[2])];
    const spread = Math.max(...means) - Math.min(...means) || 1;
    const [low, high] = [Math.min(...means) - 0.1 * spread, Math.max(...means) + 0.14 * spread];
    const [fast, slow] = [Math.min(...times) / 1.35, Math.max(...times) * 1.35];
    const x = scale(fast, slow, 52, width - 8, Math.log10);
    const y = scale(low, high, height - 40, 22);
    const chart = frame(width, height, x, y, ["milliseconds per batch of 128", "nats"], logTicks(fast, slow), ticksOf(low, high, 6));
    const sorted = [...found].sort((a, b) => a[4] - b[4] || b[2] - a[2]);
    let best = -Infinity;
    const front = sorted.filter((cell) => cell[2] > best && ((best = cell[2]), true));
    const steps = front.map((cell, i) => `${i ? `H${x(cell[4])}V${y(cell[2])}` : `M${x(cell[4])},${y(cell[2])}`}`).join("");
    chart.append(svg("path", { class: "best-line", d: steps + `H${x.to}` }));
    const points = placeLabels(found.map((cell) => ({
      x: x(cell[4]), y: y(cell[2]), w: pen.measureText(brief(rows[cell[0]])).width + 5, h: 15, cell, name: rows[cell[0]],
    })), { x: x.from, y: y.to - 6, w: x.to - x.from, h: y.from - y.to + 6 });
    for (const { x: px, y: py, cell } of points) {
      if (cell[3] === null) continue;
      chart.append(svg("line", { class: `bar-line f${families[cell[0]]}`, x1: px, x2: px, y1: y(cell[2] - cell[3]), y2: y(cell[2] + cell[3]) }));
    }
    for (const { x: px, y: py, box, cell, name } of points) {
      const group = svg("g", { class: `f${families[cell[0]]}` },
        svg("title", {}, `${name}: ${round(cell[2])} ± ${round(cell[3])} nats, ${cell[4].toPrecision(3)} ms, ${cell[5]} splits`));
      if (box) {
        const [bx, by] = [Math.max(box.x, Math.min(px, box.x + box.w)), Math.max(box.y, Math.min(py, box.y + box.h))];
        if (Math.hypot(bx - px, by - py) > 9) group.append(svg("line", { class: "lead", x1: px, y1: py, x2: bx, y2: by }));
        group.append(svg("text", { class: "name", x: box.x + box.w / 2, y: box.y + 11, "text-anchor": "middle" }, brief(name)));
      }
      group.append(svg("path", { class: "mark", d: shapes[families[cell[0]] % shapes.length], transform: `translate(${px},${py})` }));
      chart.append(group);
    }
    chart.setAttribute("role", "img");
    chart.setAttribute("aria-label", `Log-likelihood against time on ${columns[column].name}; not beaten in both: ${front.map((cell) => rows[cell[0]]).join(", ")}`);
    figure.append(chart);
    return figure;
  };
  const drawFrontiers = () => {
    const place = $("frontier-charts");
    place.replaceChildren(...visible.map(() => el("figure")));
    const width = Math.max(280, (place.firstElementChild?.clientWidth ?? 500) - 24);
    place.replaceChildren(...visible.map((column) => drawFrontier(column, width)));
  };
  listeners.push(drawFrontiers);

  // --- learning curves -------------------------------------------------------------------------
  const dashes = ["", "6 3", "2 3", "8 3 2 3"];
  const off = new Set();  // names of lines that are switched off
  const options = (select, values, words) => {
    const before = select.value;
    select.replaceChildren(...values.map((value, i) => el("option", { value }, words[i])));
    if (values.map(String).includes(before)) select.value = before;
  };
  const lineChart = (lines, width, height, label) => {
    const epochs = lines.flatMap((line) => line.epoch);
    const values = lines.flatMap((line) => line.value).filter((value) => value !== null);
    // The first fifth of a run may start far below: it is cut off rather than flattening the rest.
    const late = lines.flatMap((line) => line.value.slice(Math.floor(line.value.length / 5))).filter((value) => value !== null);
    const spread = Math.max(...late) - Math.min(...late) || 1;
    const [low, high] = [Math.max(Math.min(...values), Math.min(...late) - 0.3 * spread) - 0.04 * spread, Math.max(...values) + 0.06 * spread];
    const [first, last] = [Math.min(...epochs), Math.max(...epochs)];
    const x = scale(first, last === first ? first + 1 : last, 56, width - 12);
    const y = scale(low, high, height - 40, 22);
    const chart = frame(width, height, x, y, ["epoch", "nats per image"], ticksOf(first, Math.max(last, first + 1), Math.min(8, width / 80)).filter(Number.isInteger), ticksOf(low, high, 6));
    const clip = `clip-${label}`;
    chart.append(svg("clipPath", { id: clip }, svg("rect", { x: x.from, y: y.to, width: x.to - x.from, height: y.from - y.to })));
    const drawn = svg("g", { "clip-path": `url(#${clip})` });
    for (const line of lines) {
      let path = "";
      line.points = line.epoch.map((epoch, i) => [x(epoch), line.value[i] === null ? null : y(line.value[i])]);
      for (const [px, py] of line.points) path += py === null ? "" : `${path ? "L" : "M"}${px.toFixed(1)},${py.toFixed(1)}`;
      line.path = svg("path", { class: `line f${line.family}`, d: path, "stroke-dasharray": line.dash });
      drawn.append(line.path);
    }
    chart.append(drawn);
    return { chart, x, y };
  };
  const drawCurves = () => {
    const column = $("curve-column"), stage = $("curve-stage"), split = $("curve-split");
    options(column, visible, visible.map((i) => columns[i].name));
    const here = Object.keys(curves).map(Number).filter((i) => String(runs[i][COLUMN]) === column.value);
    const stages = [1, 0].filter((s) => here.some((i) => runs[i][STAGE] === s));
    for (const option of stage.options) option.disabled = !stages.includes(Number(option.value));
    if (stages.length && !stages.includes(Number(stage.value))) stage.value = String(stages[0]);
    const staged = here.filter((i) => String(runs[i][STAGE]) === stage.value);
    const splits = [...new Set(staged.map((i) => runs[i][SPLIT]))].sort((a, b) => a - b);
    options(split, splits, splits.map(String));
    const series = $("curve-series").value;
    const chosen = staged.filter((i) => String(runs[i][SPLIT]) === split.value && curves[i][series]);
    chosen.sort((a, b) => runs[a][ROW] - runs[b][ROW]);
    const counted = {};
    const all = chosen.map((i) => {
      const family = families[runs[i][ROW]];
      counted[family] = (counted[family] ?? -1) + 1;
      return { name: rows[runs[i][ROW]], run: i, family, dash: dashes[counted[family] % dashes.length], epoch: curves[i].epoch, value: curves[i][series] };
    });
    $("curve-legend").replaceChildren(...all.map((line) => {
      const swatch = svg("svg", { viewBox: "0 0 26 6", class: "swatch", "aria-hidden": "true" },
        svg("path", { class: `line f${line.family}`, d: "M0,3H26", "stroke-dasharray": line.dash }));
      const button = el("button", { type: "button", "aria-pressed": String(!off.has(line.name)) }, swatch, line.name);
      button.addEventListener("click", () => {
        if (!off.delete(line.name)) off.add(line.name);
        const place = [...$("curve-legend").children].indexOf(button.parentElement);
        drawCurves();
        $("curve-legend").children[place]?.firstElementChild.focus();
      });
      return el("li", {}, button);
    }));
    const lines = all.filter((line) => !off.has(line.name));
    const place = $("curve-chart");
    $("curve-said").textContent = "";
    if (!lines.length) {
      place.replaceChildren(el("p", { class: "empty" }, all.length ? "All lines are switched off." : "No selected run has this curve."));
      return;
    }
    const width = Math.max(280, place.clientWidth - 24);
    const height = Math.max(300, Math.min(460, width * 0.5));
    const { chart, x, y } = lineChart(lines, width, height, "curves");
    const cross = svg("line", { class: "cross", y1: y.to, y2: y.from, visibility: "hidden" });
    const spot = svg("circle", { class: "spot", r: 4.5, visibility: "hidden" });
    chart.append(cross, spot);
    chart.setAttribute("role", "img");
    chart.setAttribute("tabindex", "0");
    chart.setAttribute("aria-label", `Learning curves of ${lines.length} runs on ${columns[Number(column.value)].name}, split ${split.value}`);
    const tip = el("div", { class: "tip", hidden: true });
    place.replaceChildren(chart, tip);
    const show = (line, i) => {
      const [px, py] = line.points[i];
      for (const other of lines) {
        other.path.classList.toggle("dim", other !== line);
        other.path.classList.toggle("hot", other === line);
      }
      const top = Math.max(y.to, Math.min(py, y.from));
      for (const [name, value] of Object.entries({ x1: px, x2: px, visibility: "visible" })) cross.setAttribute(name, value);
      for (const [name, value] of Object.entries({ cx: px, cy: top, visibility: "visible", class: `spot f${line.family}` })) spot.setAttribute(name, value);
      const words = `${line.name} · epoch ${line.epoch[i]} · ${round(line.value[i])} nats`;
      tip.textContent = words;
      $("curve-said").textContent = words;
      tip.hidden = false;
      const ratio = chart.clientWidth / width;
      tip.style.left = `${Math.max(8, Math.min(12 + px * ratio - tip.offsetWidth / 2, place.clientWidth - tip.offsetWidth - 8))}px`;
      tip.style.top = `${Math.max(4, 12 + top * ratio - 38)}px`;
    };
    const hide = () => {
      for (const line of lines) line.path.classList.remove("dim", "hot");
      cross.setAttribute("visibility", "hidden");
      spot.setAttribute("visibility", "hidden");
      tip.hidden = true;
    };
    let at = [0, 0];
    chart.addEventListener("pointermove", (event) => {
      const box = chart.getBoundingClientRect();
      const [mx, my] = [((event.clientX - box.left) / box.width) * width, ((event.clientY - box.top) / box.height) * height];
      let nearest = null, distance = Infinity;
      lines.forEach((line, l) => line.points.forEach(([px, py], i) => {
        if (py === null) return;
        const far = Math.abs(px - mx) + 1.5 * Math.abs(py - my);
        if (far < distance) [nearest, distance] = [[l, i], far];
      }));
      if (nearest) { at = nearest; show(lines[at[0]], at[1]); }
    });
    chart.addEventListener("pointerleave", hide);
    chart.addEventListener("blur", hide);
    chart.addEventListener("keydown", (event) => {
      const moves = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
      const move = moves[event.key];
      if (!move) return;
      event.preventDefault();
      const l = (at[0] + move[0] + lines.length) % lines.length;
      const i = Math.max(0, Math.min(lines[l].points.length - 1, at[1] + move[1]));
      at = [l, i];
      if (lines[l].points[i][1] !== null) show(lines[l], i);
    });
  };
  for (const id of ["curve-column", "curve-stage", "curve-split", "curve-series"]) $(id).addEventListener("change", drawCurves);
  listeners.push(drawCurves);

  // --- runs ------------------------------------------------------------------------------------
  const PAGE = 50;
  let pageAt = 0, sortBy = null, sortSign = 1;
  const fields = [
    ["Method", (run) => run[ROW], (run) => rows[run[ROW]]],
    ["Data set and dim", (run) => run[COLUMN], (run) => columns[run[COLUMN]].name],
    ["Split", (run) => run[SPLIT], (run) => String(run[SPLIT]), "number"],
    ["Restart", (run) => run[RESTART], (run) => String(run[RESTART]), "number"],
    ["Status", (run) => statuses[run[STATUS]], (run) => statuses[run[STATUS]]],
    ["Validation", (run) => run[VALIDATION], (run) => round(run[VALIDATION]), "number"],
    [`Test IWAE-${index.samples}`, (run) => run[TEST], (run) => round(run[TEST]), "number"],
    ["ms", (run) => run[TIME], (run) => (run[TIME] === null ? "–" : run[TIME] < 1 ? run[TIME].toFixed(3) : run[TIME].toFixed(2)), "number"],
    ["Selected", (run) => -run[CHOSEN], (run) => (run[CHOSEN] ? "✓" : "")],
    ["Folder", (run) => run[FOLDER], (run) => run[FOLDER]],
  ];
  const head = $("run-table").tHead.rows[0];
  fields.forEach(([name, key, , kind], place) => {
    const button = el("button", { type: "button", class: "sort", title: `Sort by ${name.toLowerCase()}` }, name, el("span", { class: "arrow", "aria-hidden": "true" }));
    const th = el("th", { scope: "col", "aria-sort": "none", class: kind }, button);
    button.addEventListener("click", () => {
      sortSign = sortBy === place ? -sortSign : 1;
      sortBy = place;
      markSorted(head, th, sortSign > 0 ? "ascending" : "descending");
      pageAt = 0;
      listRuns();
    });
    head.append(th);
  });
  head.prepend(el("th", { scope: "col" }, "Details"));
  $("run-status").append(...statuses.map((status) => el("option", { value: status }, status)));
  const titleOf = (run) => `${rows[run[ROW]]} on ${columns[run[COLUMN]].name}, split ${run[SPLIT]}, restart ${run[RESTART]}`;
  const listRuns = () => {
    const words = $("run-search").value.toLowerCase().split(/\s+/).filter(Boolean);
    const status = $("run-status").value;
    const shown = new Set(visible);
    let found = runs.map((run, i) => [run, i]).filter(([run]) =>
      shown.has(run[COLUMN]) && (!status || statuses[run[STATUS]] === status) && (!$("run-chosen").checked || run[CHOSEN]));
    if (words.length) {
      found = found.filter(([run]) => {
        const text = `${rows[run[ROW]]} ${columns[run[COLUMN]].name} ${statuses[run[STATUS]]} ${run[FOLDER]}`.toLowerCase();
        return words.every((word) => text.includes(word));
      });
    }
    if (sortBy !== null) {
      const key = fields[sortBy][1];
      const compare = (a, b) => (typeof a === "string" ? a.localeCompare(b) : a - b);
      found.sort(([a], [b]) => (key(a) === null) - (key(b) === null) || sortSign * compare(key(a), key(b)));
    }
    const pages = Math.max(1, Math.ceil(found.length / PAGE));
    pageAt = Math.min(pageAt, pages - 1);
    const body = $("run-table").tBodies[0];
    body.replaceChildren(...found.slice(pageAt * PAGE, (pageAt + 1) * PAGE).map(([run, i]) => {
      const line = el("tr", {}, ...fields.map(([name, , text, kind]) => {
        const cell = el("td", { class: name === "Status" ? `status-${statuses[run[STATUS]] === "failed" ? "failed" : "other"}` : kind });
        cell.append(name === "Folder" ? el("code", {}, text(run)) : text(run));
        return cell;
      }));
      const button = el("button", { type: "button", class: "open", "aria-label": `Details of ${titleOf(run)}` }, "details");
      button.addEventListener("click", () => openRun(i));
      line.prepend(el("td", {}, button));
      return line;
    }));
    const from = found.length ? pageAt * PAGE + 1 : 0;
    $("run-said").textContent = `${from}–${Math.min(found.length, (pageAt + 1) * PAGE)} of ${found.length} runs`;
    $("run-back").disabled = pageAt === 0;
    $("run-next").disabled = pageAt >= pages - 1;
  };
  const relist = () => { pageAt = 0; listRuns(); };
  $("run-search").addEventListener("input", relist);
  $("run-status").addEventListener("change", relist);
  $("run-chosen").addEventListener("change", relist);
  $("run-back").addEventListener("click", () => { pageAt--; listRuns(); });
  $("run-next").addEventListener("click", () => { pageAt++; listRuns(); });
  listeners.push(relist);

  // --- one run ---------------------------------------------------------------------------------
  const folderAt = new Map(runs.map((run, i) => [run[FOLDER], i]));
  const packs = new Map();
  const detailsOf = async (i) => {
    const pack = Math.floor(i / index.chunk);
    if (!packs.has(pack)) packs.set(pack, unpack(`pack-${pack}`));
    return (await packs.get(pack))[i % index.chunk];
  };
  const fold = (title, text, open = false) => el("details", { open }, el("summary", {}, title), el("pre", { tabindex: "0" }, text));
  const logText = ([head, left, tail]) => [...head, ...(left ? [`… ${left} lines left out …`, ...tail] : tail)].join("\n");
  const pretty = (value) => JSON.stringify(value, null, 2);
  const openRun = async (i) => {
    const run = runs[i];
    const body = $("details-body");
    $("details-title").textContent = titleOf(run);
    body.replaceChildren(el("p", { class: "muted" }, "Unpacking …"));
    if (!$("details").open) $("details").showModal();
    const found = await detailsOf(i);
    const facts = el("dl", { class: "facts" });
    const fact = (name, ...value) => facts.append(el("dt", {}, name), el("dd", {}, ...value));
    fact("folder", run[FOLDER]);
    fact("status", statuses[run[STATUS]] + (found.reason ? `: ${found.reason}` : ""));
    fact("selected", run[CHOSEN] ? "yes: the best validation bound of its split" : "no");
    fact("validation", `${round(run[VALIDATION])} nats` + (found.best_epoch ? `, best at epoch ${found.best_epoch} of ${found.epochs}` : ""));
    fact(`test IWAE-${index.samples}`, `${round(run[TEST])} nats`);
    const from = found.job?.dependency;
    if (typeof from === "string" && folderAt.has(from)) {
      const button = el("button", { type: "button", class: "open" }, from);
      button.addEventListener("click", () => openRun(folderAt.get(from)));
      fact("started from", button);
    } else if (from) fact("started from", String(typeof from === "string" ? from : pretty(from)));
    const parts = [facts];
    if (found.curve?.val_iwae?.length > 1) {
      const width = Math.max(260, Math.min(880, $("details").clientWidth - 40));
      const line = { name: "", family: families[run[ROW]], dash: "", epoch: found.curve.epoch, value: found.curve.val_iwae };
      const { chart } = lineChart([line], width, 220, "details");
      chart.setAttribute("role", "img");
      chart.setAttribute("aria-label", "Validation bound over the epochs");
      parts.push(el("h3", {}, "Validation bound"), chart);
    }
    if (found.failure !== undefined) parts.push(fold("Failure", pretty(found.failure), true));
    parts.push(fold("Environment", found.environment ? pretty(found.environment.length === 1 ? found.environment[0] : found.environment) : "not recorded", true));
    parts.push(fold("Spec", found.spec ? pretty(found.spec) : "none: the run has not started"));
    if (found.job) parts.push(fold("Job", pretty(found.job)));
    if (found.scores) parts.push(fold("Scores", pretty(found.scores)));
    parts.push(fold("Log", found.log ? logText(found.log) : "empty"));
    if (found.text) parts.push(fold("What it printed", logText(found.text)));
    body.replaceChildren(...parts);
    body.parentElement.scrollTop = 0;
  };
  $("details-close").addEventListener("click", () => $("details").close());
  $("details").addEventListener("click", (event) => { if (event.target === $("details")) $("details").close(); });

  listeners.push(fit);
  filter();
  let seen = document.body.clientWidth;
  addEventListener("resize", () => {
    if (document.body.clientWidth === seen) return;
    seen = document.body.clientWidth;
    drawFrontiers();
    drawCurves();
    fit();
  });
})();
