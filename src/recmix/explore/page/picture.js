// Images as nested lists (C, H, W) with values in [0, 1]: drawn on a canvas, read from a canvas, resized.
import { clamp, el, svg } from "./dom.js";

const shapeOf = (image) => [image.length, image[0].length, image[0][0].length];

// The values of an example as an image of the shape (C, H, W). The example can be (H, W) or a flat vector.
export const shaped = (example, [channels, height, width]) => {
  const values = example.flat(2);
  const row = (c, y) => values.slice((c * height + y) * width, (c * height + y + 1) * width);
  return Array.from({ length: channels }, (_, c) => Array.from({ length: height }, (_, y) => row(c, y)));
};

const mapPixels = (image, change) => image.map((channel) => channel.map((row) => row.map(change)));

// The mean of a Gaussian likelihood can lie outside [0, 1].
export const clamped = (image) => mapPixels(image, (value) => clamp(value, 0, 1));

export const inverted = (image) => mapPixels(image, (value) => 1 - value);

const byte = (value) => clamp(Math.round(255 * value), 0, 255);

// A canvas that holds one image at its own resolution. The style sheet enlarges it.
export const imageCanvas = (label, attributes = {}) => {
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

// For each of `to` cells: which of `from` cells it covers, and with what share. Averages keep thin lines visible.
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

const withChannels = (image, channels) => {
  if (image.length === channels) return image;
  if (image.length === 1) return Array.from({ length: channels }, () => image[0]);
  const [red, green, blue] = image;
  const grey = red.map((row, y) => row.map((r, x) => 0.299 * r + 0.587 * green[y][x] + 0.114 * blue[y][x]));
  return Array.from({ length: channels }, () => grey);
};

// The same image with the shape (C, H, W) that a model takes.
export const resized = (image, shape) => {
  if (String(shapeOf(image)) === String(shape)) return image;
  const [, height, width] = shapeOf(image);
  const [rows, columns] = [shares(height, shape[1]), shares(width, shape[2])];
  const sum = (parts, value) => parts.reduce((total, [k, share]) => total + share * value(k), 0);
  return withChannels(image, shape[0]).map((channel) => {
    const narrow = channel.map((row) => columns.map((parts) => sum(parts, (k) => row[k])));
    return rows.map((parts) => columns.map((_, x) => Math.min(1, sum(parts, (k) => narrow[k][x]))));
  });
};

// What a canvas shows, as an image of this shape.
export const fromCanvas = (canvas, shape) => {
  const { width, height } = canvas;
  const { data } = canvas.getContext("2d", { willReadFrequently: true }).getImageData(0, 0, width, height);
  const channels = [0, 1, 2].map((c) =>
    Array.from({ length: height }, (_, y) =>
      Array.from({ length: width }, (_, x) => data[4 * (y * width + x) + c] / 255)));
  return resized(channels, shape);
};

const MAX_BYTES = 25 * 2 ** 20;
const MAX_PIXELS = 60e6;

// A file as an image of this shape: its centre, cropped to the shape's proportions and scaled.
export const readFile = async (file, shape) => {
  if (file.size > MAX_BYTES) {
    throw new Error(`${file.name} has ${(file.size / 2 ** 20).toFixed(0)} MiB. Choose a file of at most 25 MiB.`);
  }
  const address = URL.createObjectURL(file);
  try {
    const picture = new Image();
    await new Promise((onload, onerror) => { Object.assign(picture, { onload, onerror, src: address }); }).catch(() => {
      throw new Error(`${file.name} is not an image that this browser can read. Choose a PNG or JPEG file.`);
    });
    const [width, height] = [picture.naturalWidth, picture.naturalHeight];
    if (!width || !height) throw new Error(`${file.name} has no size in pixels. Choose a PNG or JPEG file.`);
    if (width * height > MAX_PIXELS) {
      throw new Error(`${file.name} has ${width} × ${height} pixels. Choose an image of at most 60 million pixels.`);
    }
    const [, rows, columns] = shape;
    const scale = Math.min(width / columns, height / rows);
    const canvas = el("canvas", { width: 4 * columns, height: 4 * rows });
    const context = canvas.getContext("2d", { willReadFrequently: true });
    context.fillStyle = "#fff"; // behind transparent pixels
    context.fillRect(0, 0, canvas.width, canvas.height);
    context.imageSmoothingQuality = "high";
    const [w, h] = [columns * scale, rows * scale];
    context.drawImage(picture, (width - w) / 2, (height - h) / 2, w, h, 0, 0, canvas.width, canvas.height);
    return fromCanvas(canvas, shape);
  } finally {
    URL.revokeObjectURL(address);
  }
};

// Values in [0, 1] as an SVG image: one colour, opacity by value. Row 0 is at the bottom.
export const heatmap = (rows, [red, green, blue], place) => {
  const canvas = el("canvas", { width: rows[0].length, height: rows.length });
  const pixels = new ImageData(canvas.width, canvas.height);
  rows.forEach((row, j) => row.forEach((value, i) => {
    const at = 4 * ((rows.length - 1 - j) * canvas.width + i);
    pixels.data.set([red, green, blue, byte(value)], at);
  }));
  canvas.getContext("2d").putImageData(pixels, 0, 0);
  return svg("image", { href: canvas.toDataURL(), preserveAspectRatio: "none", ...place });
};
