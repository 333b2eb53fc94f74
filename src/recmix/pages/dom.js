// Helpers that the report page and the explorer page share: elements, numbers as text, axes, theme button.
// The explorer imports this module; the report puts its text in front of its own script.

export const $ = (id) => document.getElementById(id);

// An element with attributes and children. Strings become text nodes, never markup.
const creator = (namespace) => (tag, attributes = {}, ...children) => {
  const element = namespace ? document.createElementNS(namespace, tag) : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.filter((child) => child !== null && child !== undefined));
  return element;
};
export const el = creator(null);
export const svg = creator("http://www.w3.org/2000/svg");

// Numbers with a real minus sign, which is as wide as a plus.
export const number = (value, digits = 1) =>
  value === null || !Number.isFinite(value) ? "not finite" : value.toFixed(digits).replace("-", "−");

export const clamp = (value, low, high) => Math.max(low, Math.min(high, value));

// Maps [low, high] to [from, to]. With `map` = Math.log10 the axis is logarithmic.
export const scale = (low, high, from, to, map = (value) => value) => {
  const [a, b] = [map(low), map(high)];
  const place = (value) => from + ((map(value) - a) / (b - a || 1)) * (to - from);
  return Object.assign(place, { low, high, from, to });
};

// Round numbers between two values, about `count` of them, each with its label.
export const ticks = (low, high, count = 6) => {
  const rough = (high - low) / count;
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = power * [1, 2, 5, 10].find((size) => size * power >= rough);
  const digits = Math.max(0, -Math.floor(Math.log10(step) + 1e-9));
  const [first, last] = [Math.ceil(low / step - 1e-9), Math.floor(high / step + 1e-9)];
  return Array.from({ length: last - first + 1 }, (_, i) => {
    const value = Number(((first + i) * step).toPrecision(12));
    return [value, number(value, digits)];
  });
};

// The theme button goes through auto, light and dark. The choice is kept in this browser.
export const setUpTheme = () => {
  const themes = ["auto", "light", "dark"];
  let theme;
  const set = (name) => {
    theme = themes.includes(name) ? name : "auto";
    if (theme === "auto") delete document.documentElement.dataset.theme;
    else document.documentElement.dataset.theme = theme;
    $("theme").textContent = `Theme: ${theme}`;
    $("theme").setAttribute("aria-label", `Theme: ${theme === "auto" ? "same as the system" : theme}. Change the theme`);
  };
  try { set(localStorage.getItem("recmix-theme")); } catch { set("auto"); /* the browser forbids storage */ }
  $("theme").addEventListener("click", () => {
    set(themes[(themes.indexOf(theme) + 1) % themes.length]);
    try { localStorage.setItem("recmix-theme", theme); } catch { /* not kept */ }
  });
};
