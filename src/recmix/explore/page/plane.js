// The plane of the latent space: contours of the true posterior, ellipses of the components, moving points.
import { el, number, svg } from "./dom.js";
import { tinted } from "./picture.js";

const SIDE = 300;
const EDGE = { left: 46, right: 6, top: 6, bottom: 40 };
// The mass that a Gaussian of two dimensions has within 1, 2 and 3 standard deviations.
const MASS = [0.393, 0.865, 0.989];
const TINT = [79, 143, 208];

const highest = (rows) => rows.reduce((most, row) => row.reduce((m, v) => Math.max(m, v ?? -Infinity), most), -Infinity);

// exp(log density), scaled to at most 1.
const scaled = (rows) => {
  const most = highest(rows);
  return rows.map((row) => row.map((value) => (value === null ? 0 : Math.exp(value - most))));
};

// Heights above which the densest cells hold these shares of the mass.
export const levels = (rows, shares) => {
  const cells = rows.flat().sort((a, b) => b - a);
  const total = cells.reduce((sum, value) => sum + value, 0);
  let [held, at] = [0, 0];
  return shares.map((share) => {
    while (at < cells.length - 1 && held + cells[at] < share * total) held += cells[at++];
    return cells[at];
  });
};

// Line segments where the map passes a height, as a path; `place` turns grid indices into the drawing's.
export const contour = (rows, height, place) => {
  const parts = [];
  const cross = (a, b, va, vb) => {
    const t = (height - va) / (vb - va);
    return [a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])];
  };
  for (let j = 0; j + 1 < rows.length; j++) {
    for (let i = 0; i + 1 < rows[j].length; i++) {
      const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
      const values = corners.map(([x, y]) => rows[y][x]);
      const met = [];
      for (let k = 0; k < 4; k++) {
        const next = (k + 1) % 4;
        if (values[k] >= height !== values[next] >= height) {
          met.push(cross(corners[k], corners[next], values[k], values[next]));
        }
      }
      for (let k = 0; k + 1 < met.length; k += 2) parts.push(`M${place(met[k])}L${place(met[k + 1])}`);
    }
  }
  return parts.join("");
};

// Half axes and angle of the ellipse of a covariance (2, 2).
export const ellipse = ([[a, b], [, d]]) => {
  const [middle, apart] = [(a + d) / 2, Math.hypot((a - d) / 2, b)];
  return { long: Math.sqrt(Math.max(0, middle + apart)), short: Math.sqrt(Math.max(0, middle - apart)),
    angle: 0.5 * Math.atan2(2 * b, a - d) };
};

const ticks = (low, high, wanted = 6) => {
  const rough = (high - low) / wanted;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((size) => size * power >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + 1e-9 * step; at += step) {
    found.push([at, number(Math.abs(at) < step / 2 ? 0 : at, digits)]);
  }
  return found;
};

export class Plane {
  // `picked` is told where on the plane was pointed.
  constructor(name, picked) {
    this.drawing = svg("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", class: "plane", "aria-label": `Latent space of ${name}: not drawn yet` });
    this.name = name;
    this.plane = null;
    const point = (event) => {
      if (!this.plane || (event.type === "pointermove" && !event.buttons)) return;
      const box = this.drawing.getBoundingClientRect();
      const [u, v] = [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
      const inside = (at, low, high) => Math.max(low, Math.min(high, at));
      picked(this.#across.back(inside(u, EDGE.left, SIDE - EDGE.right)), this.flat ? 0 : this.#up.back(inside(v, EDGE.top, SIDE - EDGE.bottom)));
    };
    this.drawing.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.drawing.setPointerCapture(event.pointerId);
      point(event);
    });
    this.drawing.addEventListener("pointermove", point);
  }

  #across = null;
  #up = null;

  // Everything that does not move with a slider.
  draw(found) {
    const { plane, components } = found;
    this.plane = plane;
    this.flat = plane.labels.length === 1;
    const scale = (from, [low, high]) => {
      const [first, last] = [from[0], from.at(-1)];
      const to = (value) => low + ((value - first) / (last - first)) * (high - low);
      to.back = (at) => first + ((at - low) / (high - low)) * (last - first);
      return to;
    };
    const across = scale(plane.x, [EDGE.left, SIDE - EDGE.right]);
    const joint = scaled(plane.log_joint);
    const rows = this.flat ? null : joint;
    const curves = this.flat ? this.#curves(plane) : null;
    const up = scale(this.flat ? [0, curves.most * 1.08] : plane.y, [SIDE - EDGE.bottom, EDGE.top]);
    [this.#across, this.#up] = [across, up];
    const content = [];
    const body = svg("g", { class: "body" });
    if (this.flat) {
      const line = (values) => "M" + values.map((value, i) => `${across(plane.x[i]).toFixed(1)},${up(value).toFixed(1)}`).join("L");
      body.append(svg("path", { class: "true", d: line(curves.p) }), svg("path", { class: "approximate", d: line(curves.q) }));
      for (const [k, part] of components.entries()) {
        const at = across(part.plane[0]);
        body.append(svg("line", { class: `component k${k % 12}`, x1: at, x2: at, y1: up(0), y2: up(0) - 14 }));
      }
    } else {
      const [left, right, top, bottom] = [EDGE.left, SIDE - EDGE.right, EDGE.top, SIDE - EDGE.bottom];
      const [halfX, halfY] = [(right - left) / (plane.x.length - 1) / 2, (bottom - top) / (plane.y.length - 1) / 2];
      body.append(tinted(rows.map((row) => row.map((v) => 0.75 * v)), TINT, {
        x: left - halfX, y: top - halfY, width: right - left + 2 * halfX, height: bottom - top + 2 * halfY }));
      const place = ([i, j]) => `${(left + 2 * halfX * i).toFixed(1)},${(bottom - 2 * halfY * j).toFixed(1)}`;
      levels(rows, MASS).forEach((height, n) => body.append(svg("path", { class: `true true-${n}`, d: contour(rows, height, place) })));
      const order = components.map((part, k) => [part, k]).sort((a, b) => a[0].weight - b[0].weight);
      for (const [part, k] of order) body.append(this.#component(part, k, components.length));
    }
    this.moving = svg("g", { class: "moving" });
    body.append(this.moving);
    const window = { x: EDGE.left, y: EDGE.top, width: SIDE - EDGE.left - EDGE.right, height: SIDE - EDGE.top - EDGE.bottom };
    const clip = svg("svg", { ...window, viewBox: `${window.x} ${window.y} ${window.width} ${window.height}` }, body);
    content.push(svg("rect", { class: "ground", ...window }), clip, ...this.#axes(plane));
    this.drawing.replaceChildren(...content);
    this.#say(found);
  }

  #curves(plane) {
    const q = plane.log_q[0].map((value) => (value === null ? 0 : Math.exp(value)));
    const p = plane.density ? plane.density[0].map((value) => value ?? 0) : scaled(plane.log_joint)[0];
    return { p, q, most: Math.max(...p, ...q) };
  }

  #component(part, k, count) {
    const group = svg("g", { class: `component k${k % 12}`, opacity: Math.min(1, 0.45 + part.weight) });
    group.append(svg("title", {}, `Component ${k + 1}`));
    for (const deviations of [1, 2]) group.append(this.#outline(part.plane, part.covariance, deviations, `sigma-${deviations}`));
    const [x, y] = [this.#across(part.plane[0]), this.#up(part.plane[1])];
    group.append(svg("circle", { cx: x, cy: y, r: 3 }));
    if (count > 1) group.append(svg("text", { x: x + 5, y: y - 4 }, String(k + 1)));
    return group;
  }

  #outline(middle, covariance, deviations, name) {
    const { long, short, angle } = ellipse(covariance);
    const [cos, sin] = [Math.cos(angle), Math.sin(angle)];
    const points = Array.from({ length: 64 }, (_, i) => {
      const turn = (2 * Math.PI * i) / 64;
      const [u, v] = [deviations * long * Math.cos(turn), deviations * short * Math.sin(turn)];
      return `${this.#across(middle[0] + u * cos - v * sin).toFixed(1)},${this.#up(middle[1] + u * sin + v * cos).toFixed(1)}`;
    });
    return svg("polygon", { class: name, points: points.join(" ") });
  }

  #axes(plane) {
    const made = [];
    const [bottom, left] = [SIDE - EDGE.bottom, EDGE.left];
    for (const [at, words] of ticks(plane.x[0], plane.x.at(-1))) {
      const x = this.#across(at);
      made.push(svg("line", { class: "tick-line", x1: x, x2: x, y1: bottom, y2: bottom + 4 }), svg("text", { class: "tick", x, y: bottom + 15, "text-anchor": "middle" }, words));
    }
    if (!this.flat) {
      for (const [at, words] of ticks(plane.y[0], plane.y.at(-1))) {
        const y = this.#up(at);
        made.push(svg("line", { class: "tick-line", x1: left - 4, x2: left, y1: y, y2: y }), svg("text", { class: "tick", x: left - 6, y: y + 3.5, "text-anchor": "end" }, words));
      }
    }
    const middle = (EDGE.top + bottom) / 2;
    made.push(svg("text", { class: "axis", x: (left + SIDE - EDGE.right) / 2, y: SIDE - 8, "text-anchor": "middle" }, plane.labels[0]));
    made.push(svg("text", { class: "axis", transform: `translate(10 ${middle}) rotate(-90)`, "text-anchor": "middle" }, this.flat ? "density" : plane.labels[1]));
    return made;
  }

  // The path of refinement up to a step, and where the walk is.
  move(refinement, step, walk) {
    if (!this.plane) return;
    const spot = ([a, b]) => [this.#across(a), this.flat ? this.#up(0) : this.#up(b)];
    const path = refinement.map((at) => spot(at.plane));
    const made = [];
    if (path.length && refinement[step]) {
      const here = path[step];
      made.push(svg("polyline", { class: "path", points: path.map((p) => p.map((v) => v.toFixed(1)).join(",")).join(" ") }));
      for (const [x, y] of path) made.push(svg("circle", { class: "stop", cx: x, cy: y, r: 1.8 }));
      if (!this.flat) made.push(this.#outline(refinement[step].plane, refinement[step].covariance, 1, "laplace"));
      made.push(svg("circle", { class: "here", cx: here[0], cy: here[1], r: 4.5 }));
    }
    if (walk) {
      const [x, y] = spot(walk);
      const [u, v] = [Math.max(EDGE.left + 5, Math.min(SIDE - EDGE.right - 5, x)), Math.max(EDGE.top + 5, Math.min(SIDE - EDGE.bottom - 5, y))];
      made.push(svg("path", { class: u === x && v === y ? "walk" : "walk away", d: `M${u - 6},${v}h12M${u},${v - 6}v12` }));
    }
    this.moving.replaceChildren(...made);
  }

  #say({ plane, components }) {
    const where = components.map((part, k) => `component ${k + 1} at ${part.plane.slice(0, plane.labels.length).map((v) => number(v, 2)).join(", ")}`);
    const kind = plane.kind === "latent" ? "Latent space" : "A plane of the latent space";
    this.drawing.setAttribute("aria-label", `${kind} of ${this.name}, axes ${plane.labels.join(" and ")}: ${where.join("; ")}`);
  }
}

// What the marks mean, once for every plot.
export const legend = () => {
  const mark = (name, words, ...drawn) => el("li", {}, svg("svg", { viewBox: "0 0 26 14", class: `swatch ${name}`, "aria-hidden": "true" }, ...drawn), words);
  return el("ul", { class: "legend" },
    mark("", "true posterior: densest 39, 86, 99 %", svg("path", { class: "true true-0", d: "M2,7q6,-9 11,0t11,0" })),
    mark("", "component, 1 and 2 σ", svg("g", { class: "component k0" }, svg("ellipse", { class: "sigma-1", cx: 13, cy: 7, rx: 7, ry: 3.5 }), svg("ellipse", { class: "sigma-2", cx: 13, cy: 7, rx: 12, ry: 6 }))),
    mark("", "refinement, with Laplace’s 1 σ", svg("polyline", { class: "path", points: "3,11 13,7" }), svg("circle", { class: "here", cx: 15, cy: 6, r: 4 })),
    mark("", "your walk", svg("path", { class: "walk", d: "M7,7h12M13,1v12" })));
};
