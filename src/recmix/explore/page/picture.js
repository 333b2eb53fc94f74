// Images as nested lists (C, H, W) in [0, 1]: onto a canvas, from a canvas, to another shape.
import { el, svg } from "./dom.js";

export const shapeOf = (image) => [image.length, image[0].length, image[0][0].length];

// Means of a Gaussian likelihood may lie outside what an image can be.
export const clamped = (image) => image.map((plane) => plane.map((row) => row.map((value) => Math.max(0, Math.min(1, value)))));

export const inverted = (image) => image.map((plane) => plane.map((row) => row.map((value) => 1 - value)));

const byte = (value) => Math.max(0, Math.min(255, Math.round(255 * value)));

// A canvas that shows images at their own resolution; the style sheet makes it larger.
export const screen = (label, attributes = {}) => {
  const canvas = el("canvas", { role: "img", "aria-label": label, width: 1, height: 1, ...attributes });
  canvas.classList.add("picture");
  return canvas;
};

export const show = (canvas, image) => {
  const [channels, height, width] = shapeOf(image);
  if (canvas.width !== width || canvas.height !== height) Object.assign(canvas, { width, height });
  const pixels = new ImageData(width, height);
  for (let y = 0, at = 0; y < height; y++) {
    for (let x = 0; x < width; x++, at += 4) {
      for (let c = 0; c < 3; c++) pixels.data[at + c] = byte(image[channels === 1 ? 0 : c][y][x]);
      pixels.data[at + 3] = 255;
    }
  }
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  canvas.classList.add("shown");
};

// How much of each of `from` cells falls into each of `to`: their average keeps what is thin visible.
const shares = (from, to) => {
  const scale = from / to;
  return Array.from({ length: to }, (_, i) => {
    if (scale <= 1) return [[Math.min(from - 1, Math.floor((i + 0.5) * scale)), 1]];
    const [low, high] = [i * scale, (i + 1) * scale];
    const parts = [];
    for (let k = Math.floor(low); k < Math.min(from, Math.ceil(high - 1e-9)); k++) {
      parts.push([k, (Math.min(k + 1, high) - Math.max(k, low)) / scale]);
    }
    return parts;
  });
};

const coloured = (image, channels) => {
  if (image.length === channels) return image;
  if (image.length === 1) return Array.from({ length: channels }, () => image[0]);
  const [red, green, blue] = image;
  const grey = red.map((row, y) => row.map((r, x) => 0.299 * r + 0.587 * green[y][x] + 0.114 * blue[y][x]));
  return Array.from({ length: channels }, () => grey);
};

// The same image as a model of this shape takes it.
export const fitted = (image, shape) => {
  if (String(shapeOf(image)) === String(shape)) return image;
  const [, height, width] = shapeOf(image);
  const [rows, columns] = [shares(height, shape[1]), shares(width, shape[2])];
  const sum = (parts, value) => parts.reduce((total, [k, share]) => total + share * value(k), 0);
  return coloured(image, shape[0]).map((plane) => {
    const narrow = plane.map((row) => columns.map((parts) => sum(parts, (k) => row[k])));
    return rows.map((parts) => columns.map((_, x) => Math.min(1, sum(parts, (k) => narrow[k][x]))));
  });
};

// What a canvas shows, averaged down to a shape.
export const taken = (canvas, shape) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d", { willReadFrequently: true }).getImageData(0, 0, width, height);
  const planes = [0, 1, 2].map((c) =>
    Array.from({ length: height }, (_, y) =>
      Array.from({ length: width }, (_, x) => data[4 * (y * width + x) + c] / 255)));
  return fitted(planes, shape);
};

const LARGEST = 25 * 2 ** 20;
const PIXELS = 60e6;

// A file as an image of this shape: its middle, cut to the shape's proportions and scaled.
export const read = async (file, shape) => {
  if (file.size > LARGEST) {
    throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(0)} MiB; pictures have at most 25 MiB.`);
  }
  const address = URL.createObjectURL(file);
  try {
    const picture = new Image();
    picture.src = address;
    await new Promise((done, failed) => {
      picture.addEventListener("load", done);
      picture.addEventListener("error", failed);
    }).catch(() => {
      throw new Error(`${file.name} is not a picture that this browser reads: choose a PNG or JPEG file.`);
    });
    const [width, height] = [picture.naturalWidth, picture.naturalHeight];
    if (!width || !height) throw new Error(`${file.name} has no size of its own: choose a PNG or JPEG file.`);
    if (width * height > PIXELS) {
      throw new Error(`${file.name} has ${width} × ${height} pixels; at most 60 million are read. Make it smaller.`);
    }
    const [, rows, columns] = shape;
    const scale = Math.min(width / columns, height / rows);
    const canvas = el("canvas", { width: 4 * columns, height: 4 * rows });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#fff"; // behind what is transparent
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    const [w, h] = [columns * scale, rows * scale];
    context.drawImage(picture, (width - w) / 2, (height - h) / 2, w, h, 0, 0, canvas.width, canvas.height);
    return taken(canvas, shape);
  } finally {
    URL.revokeObjectURL(address);
  }
};

// A map of values in [0, 1] as an SVG picture of one colour; row 0 lies at the bottom.
export const tinted = (rows, [red, green, blue], place) => {
  const canvas = el("canvas", { width: rows[0].length, height: rows.length });
  const pixels = new ImageData(canvas.width, canvas.height);
  rows.forEach((row, j) => row.forEach((value, i) => {
    const at = 4 * ((rows.length - 1 - j) * canvas.width + i);
    pixels.data.set([red, green, blue, byte(value)], at);
  }));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return svg("image", { href: canvas.toDataURL(), preserveAspectRatio: "none", ...place });
};
