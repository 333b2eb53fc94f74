// Small pieces that every part of the page uses: elements, numbers in words, pauses.

export const $ = (id) => document.getElementById(id);

// An element with attributes and children; text is always text, never markup.
const make = (space) => (tag, attributes = {}, ...children) => {
  const made = space ? document.createElementNS(space, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.filter((child) => child !== null && child !== undefined));
  return made;
};
export const el = make(null);
export const svg = make("http://www.w3.org/2000/svg");

export const number = (value, digits = 1) =>
  value === null || !Number.isFinite(value) ? "not finite" : value.toFixed(digits).replace("-", "−");

export const signed = (value, digits = 1) => (value >= 0 ? "+" : "") + number(value, digits);

export const percent = (share) => {
  const text = (100 * share).toFixed(share > 0.995 || share < 0.0005 ? 0 : 1);
  return `${share > 0 && Number(text) === 0 ? "< 0.1" : text} %`;
};

// Calls `work` once, this long after the last call.
export const settled = (work, milliseconds) => {
  let timer = 0;
  return (...given) => {
    clearTimeout(timer);
    timer = setTimeout(work, milliseconds, ...given);
  };
};
