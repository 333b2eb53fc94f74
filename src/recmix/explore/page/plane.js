// Plot of the latent space: contours of the true posterior, ellipses of the components, refinement, decoded point.
import { clamp, el, number, scale, svg, ticks } from "./dom.js";
import { heatmap } from "./picture.js";

const SIDE = 300;
const [LEFT, RIGHT, TOP, BOTTOM] = [46, SIDE - 6, 6, SIDE - 40]; // edges of the plot inside the drawing
// The mass of a two-dimensional Gaussian within 1, 2 and 3 standard deviations.
const MASS = [0.393, 0.865, 0.989];
const TINT = [79, 143, 208];
const HUES = [3, 2, 4, 5, 8, 6, 9, 10, 11, 7, 0, 1];
export const componentHue = (k) => `hue-${HUES[k % HUES.length]}`;

const fixed = (value) => value.toFixed(1);
const unscaled = (axis, at) => axis.low + ((at - axis.from) / (axis.to - axis.from)) * (axis.high - axis.low);

// exp(log density), divided by its maximum. The server sends null for minus infinity.
const densities = (rows) => {
  const highest = rows.flat().reduce((most, value) => Math.max(most, value ?? -Infinity), -Infinity);
  return rows.map((row) => row.map((value) => (value === null ? 0 : Math.exp(value - highest))));
};

// Density levels: the cells above the n-th level hold the n-th share of the mass.
const levels = (rows, shares) => {
  const cells = rows.flat().sort((a, b) => b - a);
  const total = cells.reduce((sum, value) => sum + value, 0);
  let [held, at] = [0, 0];
  return shares.map((share) => {
    while (at < cells.length - 1 && held + cells[at] < share * total) held += cells[at++];
    return cells[at];
  });
};

// The contour at one level as an SVG path (marching squares). `place` maps grid indices to the drawing.
const contour = (rows, level, place) => {
  const parts = [];
  const cross = (a, b, va, vb) => {
    const t = (level - va) / (vb - va);
    return [a[0] + t * (b[0] - a[0]), a[1] + t * (b[1] - a[1])];
  };
  for (let j = 0; j + 1 < rows.length; j++) {
    for (let i = 0; i + 1 < rows[j].length; i++) {
      const corners = [[i, j], [i + 1, j], [i + 1, j + 1], [i, j + 1]];
      const values = corners.map(([x, y]) => rows[y][x]);
      const crossings = [];
      for (let k = 0; k < 4; k++) {
        const next = (k + 1) % 4;
        if (values[k] >= level !== values[next] >= level) {
          crossings.push(cross(corners[k], corners[next], values[k], values[next]));
        }
      }
      for (let k = 0; k + 1 < crossings.length; k += 2) parts.push(`M${place(crossings[k])}L${place(crossings[k + 1])}`);
    }
  }
  return parts.join("");
};

export class Plane {
  #x = null;
  #y = null;

  // `onPoint` gets the coordinates where the user points.
  constructor(name, onPoint) {
    this.drawing = svg("svg", { viewBox: `0 0 ${SIDE} ${SIDE}`, role: "img", class: "plane", "aria-label": `Latent space of ${name}: not drawn yet` });
    Object.assign(this, { name, plane: null });
    const point = (event) => {
      if (!this.plane || (event.type === "pointermove" && !event.buttons)) return;
      const box = this.drawing.getBoundingClientRect();
      const [u, v] = [((event.clientX - box.left) / box.width) * SIDE, ((event.clientY - box.top) / box.height) * SIDE];
      onPoint(unscaled(this.#x, clamp(u, LEFT, RIGHT)), this.flat ? 0 : unscaled(this.#y, clamp(v, TOP, BOTTOM)));
    };
    this.drawing.addEventListener("pointerdown", (event) => {
      if (event.button !== 0) return;
      this.drawing.setPointerCapture(event.pointerId);
      point(event);
    });
    this.drawing.addEventListener("pointermove", point);
  }

  // Draws what does not move with a slider.
  draw({ plane, components }) {
    this.plane = plane;
    this.flat = plane.labels.length === 1; // one latent dimension: curves instead of contours
    this.#x = scale(plane.x[0], plane.x.at(-1), LEFT, RIGHT);
    const curves = this.flat ? this.#curves(plane) : null;
    const [low, high] = this.flat ? [0, 1.08 * Math.max(...curves.p, ...curves.q)] : [plane.y[0], plane.y.at(-1)];
    this.#y = scale(low, high, BOTTOM, TOP);
    this.moving = svg("g");
    const area = { x: LEFT, y: TOP, width: RIGHT - LEFT, height: BOTTOM - TOP };
    const clipped = svg("svg", { ...area, viewBox: `${LEFT} ${TOP} ${area.width} ${area.height}` },
      ...(this.flat ? this.#drawCurves(plane, curves, components) : this.#drawContours(plane, components)), this.moving);
    this.drawing.replaceChildren(svg("rect", { class: "ground", ...area }), clipped, ...this.#axes(plane));
    this.#describe(plane, components);
  }

  #curves(plane) {
    const q = plane.log_q[0].map((value) => (value === null ? 0 : Math.exp(value)));
    const p = plane.density ? plane.density[0].map((value) => value ?? 0) : densities(plane.log_joint)[0];
    return { p, q };
  }

  #drawCurves(plane, { p, q }, components) {
    const line = (values) => "M" + values.map((value, i) => `${fixed(this.#x(plane.x[i]))},${fixed(this.#y(value))}`).join("L");
    const means = components.map((part, k) => {
      const at = this.#x(part.plane[0]);
      return svg("line", { class: `component ${componentHue(k)}`, x1: at, x2: at, y1: BOTTOM, y2: BOTTOM - 14 });
    });
    return [svg("path", { class: "true", d: line(p) }), svg("path", { class: "approximate", d: line(q) }), ...means];
  }

  #drawContours(plane, components) {
    const rows = densities(plane.log_joint);
    const [dx, dy] = [(RIGHT - LEFT) / (plane.x.length - 1), (BOTTOM - TOP) / (plane.y.length - 1)];
    const map = heatmap(rows.map((row) => row.map((value) => 0.75 * value)), TINT, {
      x: LEFT - dx / 2, y: TOP - dy / 2, width: RIGHT - LEFT + dx, height: BOTTOM - TOP + dy });
    const place = ([i, j]) => `${fixed(LEFT + dx * i)},${fixed(BOTTOM - dy * j)}`;
    const contours = levels(rows, MASS).map((level, n) => svg("path", { class: `true true-${n}`, d: contour(rows, level, place) }));
    const heaviestLast = components.map((part, k) => [part, k]).sort((a, b) => a[0].weight - b[0].weight);
    return [map, ...contours, ...heaviestLast.map(([part, k]) => this.#component(part, k, components.length))];
  }

  #component(part, k, count) {
    const [x, y] = [this.#x(part.plane[0]), this.#y(part.plane[1])];
    return svg("g", { class: `component ${componentHue(k)}`, opacity: Math.min(1, 0.45 + part.weight) },
      svg("title", {}, `Component ${k + 1}`),
      ...[1, 2].map((deviations) => this.#outline(part.plane, part.covariance, deviations, `sigma-${deviations}`)),
      svg("circle", { cx: x, cy: y, r: 3 }),
      count > 1 ? svg("text", { x: x + 5, y: y - 4 }, String(k + 1)) : null);
  }

  // An ellipse: the Cholesky factor of the covariance maps a circle to it.
  #outline(mean, [[a, b], [, d]], deviations, name) {
    const first = Math.sqrt(Math.max(a, 1e-30));
    const second = Math.sqrt(Math.max(0, d - (b / first) ** 2));
    const points = Array.from({ length: 64 }, (_, i) => {
      const turn = (2 * Math.PI * i) / 64;
      const [u, v] = [deviations * Math.cos(turn), deviations * Math.sin(turn)];
      return `${fixed(this.#x(mean[0] + first * u))},${fixed(this.#y(mean[1] + (b / first) * u + second * v))}`;
    });
    return svg("polygon", { class: name, points: points.join(" ") });
  }

  #axes(plane) {
    const parts = ticks(plane.x[0], plane.x.at(-1)).flatMap(([value, label]) => {
      const x = this.#x(value);
      return [svg("line", { class: "tick-line", x1: x, x2: x, y1: BOTTOM, y2: BOTTOM + 4 }), svg("text", { class: "tick", x, y: BOTTOM + 15, "text-anchor": "middle" }, label)];
    });
    parts.push(...(this.flat ? [] : ticks(plane.y[0], plane.y.at(-1))).flatMap(([value, label]) => {
      const y = this.#y(value);
      return [svg("line", { class: "tick-line", x1: LEFT - 4, x2: LEFT, y1: y, y2: y }), svg("text", { class: "tick", x: LEFT - 6, y: y + 3.5, "text-anchor": "end" }, label)];
    }));
    parts.push(svg("text", { class: "axis", x: (LEFT + RIGHT) / 2, y: SIDE - 8, "text-anchor": "middle" }, plane.labels[0]));
    parts.push(svg("text", { class: "axis", transform: `translate(10 ${(TOP + BOTTOM) / 2}) rotate(-90)`, "text-anchor": "middle" }, this.flat ? "density" : plane.labels[1]));
    return parts;
  }

  // Draws the refinement steps, the Laplace ellipse of one of them, and the decoded point.
  move(refinement, step, decoded) {
    if (!this.plane) return;
    const place = ([a, b]) => [this.#x(a), this.flat ? BOTTOM : this.#y(b)];
    const path = refinement.map((at) => place(at.plane));
    const [x, y] = place(decoded);
    const [u, v] = [clamp(x, LEFT + 5, RIGHT - 5), clamp(y, TOP + 5, BOTTOM - 5)];
    this.moving.replaceChildren(
      svg("polyline", { class: "path", points: path.map((at) => at.map(fixed).join(",")).join(" ") }),
      ...path.map(([cx, cy]) => svg("circle", { class: "step", cx, cy, r: 1.8 })),
      ...(this.flat ? [] : [this.#outline(refinement[step].plane, refinement[step].covariance, 1, "laplace")]),
      svg("circle", { class: "current-step", cx: path[step][0], cy: path[step][1], r: 4.5 }),
      svg("path", { class: u === x && v === y ? "decoded" : "decoded outside", d: `M${u - 6},${v}h12M${u},${v - 6}v12` }));
  }

  #describe(plane, components) {
    const where = components.map((part, k) => `component ${k + 1} at ${part.plane.slice(0, plane.labels.length).map((v) => number(v, 2)).join(", ")}`);
    const kind = plane.kind === "latent" ? "Latent space" : "Slice of the latent space";
    this.drawing.setAttribute("aria-label", `${kind} of ${this.name}, axes ${plane.labels.join(" and ")}: ${where.join("; ")}`);
  }
}

// The meaning of the marks, once for all plots.
export const legend = () => {
  const entry = (text, ...marks) => el("li", {}, svg("svg", { viewBox: "0 0 26 14", class: "swatch", "aria-hidden": "true" }, ...marks), text);
  return el("ul", { class: "legend" },
    entry("true posterior: 39, 86, 99 % of its mass", svg("path", { class: "true true-0", d: "M2,7q6,-9 11,0t11,0" })),
    entry("component: 1 and 2 σ", svg("g", { class: `component ${componentHue(0)}` }, svg("ellipse", { class: "sigma-1", cx: 13, cy: 7, rx: 7, ry: 3.5 }), svg("ellipse", { class: "sigma-2", cx: 13, cy: 7, rx: 12, ry: 6 }))),
    entry("refinement: steps and Laplace 1 σ", svg("polyline", { class: "path", points: "3,11 13,7" }), svg("circle", { class: "current-step", cx: 15, cy: 6, r: 4 })),
    entry("decoded point", svg("path", { class: "decoded", d: "M7,7h12M13,1v12" })));
};
