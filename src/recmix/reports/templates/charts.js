// Charts of the report. pages/dom.js comes before this file in the page's script, page.js after it.

// A number as the tables show it.
const rounded = (value) => (value === null || value === undefined ? "–" : number(value, Math.abs(value) < 200 ? 2 : 1));

const logTicks = (low, high) => {
  const found = [];
  for (let power = Math.floor(Math.log10(low)); power <= Math.ceil(Math.log10(high)); power++) {
    for (const factor of [1, 2, 5]) {
      const value = Number((factor * 10 ** power).toPrecision(6));
      if (value >= low && value <= high) found.push([value, String(value)]);
    }
  }
  return found;
};

// An empty chart with a grid, tick labels and the names of the axes.
const frame = (width, height, x, y, [xName, yName], xTicks, yTicks) => {
  const chart = svg("svg", { viewBox: `0 0 ${width} ${height}`, width, height, role: "img" });
  for (const [value, label] of yTicks) {
    chart.append(svg("line", { class: "grid", x1: x.from, x2: x.to, y1: y(value), y2: y(value) }),
      svg("text", { class: "tick", x: x.from - 6, y: y(value) + 4, "text-anchor": "end" }, label));
  }
  for (const [value, label] of xTicks) {
    chart.append(svg("line", { class: "grid", x1: x(value), x2: x(value), y1: y.to, y2: y.from }),
      svg("text", { class: "tick", x: x(value), y: y.from + 16, "text-anchor": "middle" }, label));
  }
  chart.append(svg("text", { class: "axis", x: (x.from + x.to) / 2, y: height - 4, "text-anchor": "middle" }, xName),
    svg("text", { class: "axis", x: 4, y: 12 }, yName));
  return chart;
};

// --- labels of points ----------------------------------------------------------------------------
const distance = (box, p) => Math.hypot(Math.max(box.x - p.x, 0, p.x - box.x - box.w), Math.max(box.y - p.y, 0, p.y - box.y - box.h));
const overlap = (a, b) => a.x < b.x + b.w && b.x < a.x + a.w && a.y < b.y + b.h && b.y < a.y + a.h;
const crosses = (box, p, q) => {  // whether the line from p to q crosses a box
  for (let step = 1; step < 12; step++) {
    const [x, y] = [p.x + ((q.x - p.x) * step) / 12, p.y + ((q.y - p.y) * step) / 12];
    if (x > box.x && x < box.x + box.w && y > box.y && y < box.y + box.h) return true;
  }
  return false;
};

// Gives each point the free label box of the lowest cost. A low cost means: close to its own point, not
// closer to another point, and a leader line that crosses no other label. Labels cover no label or point.
const placeLabels = (points, bounds) => {
  const marks = points.map((p) => ({ x: p.x - 5, y: p.y - 5, w: 10, h: 10 }));
  const boxes = [];
  const neighbours = (p) => points.filter((q) => Math.hypot(p.x - q.x, p.y - q.y) < 45).length;
  for (const point of [...points].sort((a, b) => neighbours(b) - neighbours(a) || a.y - b.y)) {
    let lowest = Infinity;
    for (const gap of [6, 9, 14, 20, 28, 38, 50, 64, 80, 100, 130]) {
      if (gap > lowest) break;
      for (let turn = 0; turn < 24; turn++) {
        const angle = (turn * Math.PI) / 12;
        const [cx, cy] = [point.x + Math.cos(angle) * (gap + point.w / 2), point.y + Math.sin(angle) * (gap + point.h / 2)];
        const box = { x: cx - point.w / 2, y: cy - point.h / 2, w: point.w, h: point.h };
        if (box.x < bounds.x || box.y < bounds.y || box.x + box.w > bounds.x + bounds.w || box.y + box.h > bounds.y + bounds.h) continue;
        if (marks.some((mark) => overlap(box, mark)) || boxes.some((other) => overlap(box, other))) continue;
        const own = distance(box, point);
        const rivals = points.filter((other) => other !== point && distance(box, other) < own + 3).length;
        const crossed = boxes.filter((other) => crosses(other, point, { x: cx, y: cy })).length;
        const cost = gap + 9 * rivals + 40 * crossed + 2 * (1 - Math.cos(angle));
        if (cost < lowest) { lowest = cost; point.box = box; }
      }
    }
    if (point.box) boxes.push(point.box);
  }
};

// --- log-likelihood against time -----------------------------------------------------------------
const pen = el("canvas").getContext("2d");
pen.font = `550 11.5px ${getComputedStyle(document.body).fontFamily}`;
const shortened = (name) => (name.length > 22 ? `${name.slice(0, 20)}…` : name);
const shapes = [
  "M-4,0a4,4 0 1,0 8,0a4,4 0 1,0 -8,0", "M-5,0L0,-5L5,0L0,5Z", "M-3.7,-3.7H3.7V3.7H-3.7Z", "M0,-5L4.6,3.6H-4.6Z",
  "M0,5L4.6,-3.6H-4.6Z", "M-4.5,-1.5H-1.5V-4.5H1.5V-1.5H4.5V1.5H1.5V4.5H-1.5V1.5H-4.5Z",
];

// `cells` have name, hue, mean, std, time and splits.
const frontierChart = (title, cells, width) => {
  const height = width < 420 ? 420 : Math.min(440, width * 0.74);
  const [times, means] = [cells.map((cell) => cell.time), cells.map((cell) => cell.mean)];
  const spread = Math.max(...means) - Math.min(...means) || 1;
  const [low, high] = [Math.min(...means) - 0.1 * spread, Math.max(...means) + 0.14 * spread];
  const [fast, slow] = [Math.min(...times) / 1.35, Math.max(...times) * 1.35];
  const x = scale(fast, slow, 52, width - 8, Math.log10);
  const y = scale(low, high, height - 40, 22);
  const chart = frame(width, height, x, y, ["milliseconds per batch of 128", "nats"], logTicks(fast, slow), ticks(low, high));
  let best = -Infinity;
  const front = [...cells].sort((a, b) => a.time - b.time || b.mean - a.mean).filter((cell) => cell.mean > best && ((best = cell.mean), true));
  const steps = front.map(({ time, mean }, i) => (i ? `H${x(time)}V${y(mean)}` : `M${x(time)},${y(mean)}`)).join("");
  chart.append(svg("path", { class: "frontier", d: `${steps}H${x.to}` }));
  const points = cells.map((cell) => ({ cell, x: x(cell.time), y: y(cell.mean), w: pen.measureText(shortened(cell.name)).width + 5, h: 18 }));
  placeLabels(points, { x: x.from, y: y.to - 6, w: x.to - x.from, h: y.from - y.to + 6 });
  for (const { x: px, cell } of points) {
    if (cell.std === null) continue;
    chart.append(svg("line", { class: `deviation hue-${cell.hue}`, x1: px, x2: px, y1: y(cell.mean - cell.std), y2: y(cell.mean + cell.std) }));
  }
  for (const { x: px, y: py, box, cell } of points) {
    const group = svg("g", { class: `hue-${cell.hue}` },
      svg("title", {}, `${cell.name}: ${rounded(cell.mean)} ± ${rounded(cell.std)} nats, ${cell.time.toPrecision(3)} ms, ${cell.splits} splits`));
    if (box) {
      const [bx, by] = [clamp(px, box.x, box.x + box.w), clamp(py, box.y, box.y + box.h)];
      if (Math.hypot(bx - px, by - py) > 9) group.append(svg("line", { class: "leader", x1: px, y1: py, x2: bx, y2: by }));
      group.append(svg("text", { class: "name", x: box.x + box.w / 2, y: box.y + 12.5, "text-anchor": "middle" }, shortened(cell.name)));
    }
    group.append(svg("path", { class: "mark", d: shapes[cell.hue % shapes.length], transform: `translate(${px},${py})` }));
    chart.append(group);
  }
  chart.setAttribute("aria-label", `Log-likelihood against time on ${title}. On the frontier: ${front.map((cell) => cell.name).join(", ")}`);
  return chart;
};

// --- learning curves -----------------------------------------------------------------------------
// `lines` have name, hue, dash, epoch and value; each gets its path and points. `id` makes the clip path unique.
const lineChart = (lines, width, height, id) => {
  const epochs = lines.flatMap((line) => line.epoch);
  const known = (values) => values.filter((value) => value !== null);
  const values = known(lines.flatMap((line) => line.value));
  // Early epochs can lie far below the rest. The first fifth does not decide the range of the axis.
  const late = known(lines.flatMap((line) => line.value.slice(Math.floor(line.value.length / 5))));
  const spread = Math.max(...late) - Math.min(...late) || 1;
  const low = Math.max(Math.min(...values), Math.min(...late) - 0.3 * spread) - 0.04 * spread;
  const high = Math.max(...values) + 0.06 * spread;
  const first = Math.min(...epochs);
  const last = Math.max(...epochs, first + 1);
  const x = scale(first, last, 56, width - 12);
  const y = scale(low, high, height - 40, 22);
  const whole = ticks(first, last, Math.min(8, width / 80)).filter(([epoch]) => Number.isInteger(epoch));
  const chart = frame(width, height, x, y, ["epoch", "nats per example"], whole, ticks(low, high));
  const clip = `clip-${id}`;
  chart.append(svg("clipPath", { id: clip }, svg("rect", { x: x.from, y: y.to, width: x.to - x.from, height: y.from - y.to })));
  const inside = svg("g", { "clip-path": `url(#${clip})` });
  for (const line of lines) {
    line.points = line.epoch.map((epoch, i) => [x(epoch), line.value[i] === null ? null : y(line.value[i])]);
    const drawn = line.points.filter(([, py]) => py !== null).map(([px, py]) => `${px.toFixed(1)},${py.toFixed(1)}`);
    line.path = svg("path", { class: `line hue-${line.hue}`, d: drawn.length ? `M${drawn.join("L")}` : "", "stroke-dasharray": line.dash });
    inside.append(line.path);
  }
  chart.append(inside);
  return { chart, y };
};

// The pointer or the arrow keys choose a point of a line. The tip shows its numbers, `announce` gets them as text.
const followPointer = (chart, lines, y, tip, announce) => {
  const width = Number(chart.getAttribute("width"));
  const cross = svg("line", { class: "cross", y1: y.to, y2: y.from, visibility: "hidden" });
  const spot = svg("circle", { class: "spot", r: 4.5, visibility: "hidden" });
  chart.append(cross, spot);
  const set = (element, attributes) => { for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value); };
  const show = (line, i) => {
    const [px, py] = line.points[i];
    for (const other of lines) {
      other.path.classList.toggle("dim", other !== line);
      other.path.classList.toggle("hot", other === line);
    }
    const top = clamp(py, y.to, y.from);
    set(cross, { x1: px, x2: px, visibility: "visible" });
    set(spot, { cx: px, cy: top, visibility: "visible", class: `spot hue-${line.hue}` });
    tip.textContent = `${line.name} · epoch ${line.epoch[i]} · ${rounded(line.value[i])} nats`;
    announce(tip.textContent);
    tip.hidden = false;
    const ratio = chart.clientWidth / width;
    tip.style.left = `${clamp(16 + px * ratio - tip.offsetWidth / 2, 8, tip.parentElement.clientWidth - tip.offsetWidth - 8)}px`;
    tip.style.top = `${Math.max(4, 12 + top * ratio - 38)}px`;
  };
  const hide = () => {
    for (const line of lines) line.path.classList.remove("dim", "hot");
    for (const mark of [cross, spot]) mark.setAttribute("visibility", "hidden");
    tip.hidden = true;
  };
  let at = [0, 0];  // line and point
  chart.addEventListener("pointermove", (event) => {
    const box = chart.getBoundingClientRect();
    const [mx, my] = [event.clientX - box.left, event.clientY - box.top].map((place) => (place * width) / box.width);
    let nearest = Infinity;
    lines.forEach((line, l) => line.points.forEach(([px, py], i) => {
      if (py === null) return;
      const far = Math.abs(px - mx) + 1.5 * Math.abs(py - my);
      if (far < nearest) [nearest, at] = [far, [l, i]];
    }));
    if (nearest < Infinity) show(lines[at[0]], at[1]);
  });
  chart.addEventListener("pointerleave", hide);
  chart.addEventListener("blur", hide);
  chart.addEventListener("keydown", (event) => {
    const move = { ArrowRight: [0, 1], ArrowLeft: [0, -1], ArrowUp: [-1, 0], ArrowDown: [1, 0] }[event.key];
    if (!move) return;
    event.preventDefault();
    const l = (at[0] + move[0] + lines.length) % lines.length;
    at = [l, clamp(at[1] + move[1], 0, lines[l].points.length - 1)];
    if (lines[l].points[at[1]][1] !== null) show(lines[l], at[1]);
  });
};
