// How numbers, times and ids are written.
const $ = (id) => document.getElementById(id);
const known = (x) => x !== null && x !== undefined;

function count(x) {
  if (!known(x)) return "–";
  const steps = [[1e12, " T"], [1e9, " B"], [1e6, " M"], [1e4, " k"]];
  for (const [size, unit] of steps) {
    if (x >= size) return (x / (unit === " k" ? 1e3 : size)).toPrecision(3).replace(/\.0+$/, "") + unit;
  }
  return Math.round(x).toLocaleString("en");
}
function bytes(x) {
  if (!known(x)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB", "PB"];
  let unit = 0;
  while (x >= 1000 && unit < units.length - 1) { x /= 1000; unit += 1; }
  return (unit && x < 100 ? x.toFixed(1) : Math.round(x)) + " " + units[unit];
}
function seconds(x) {
  if (!known(x)) return "–";
  if (x < 10) return x.toFixed(1) + " s";
  if (x < 120) return Math.round(x) + " s";
  if (x < 7200) return Math.round(x / 60) + " min";
  if (x < 172800) return Math.round(x / 3600) + " h";
  return Math.round(x / 86400) + " days";
}
const loss = (x) => known(x) ? x.toFixed(3) : "–";
const short = (id) => "…" + id.slice(-6);
const plural = (n, one, many) => n === 1 ? "1 " + one : n.toLocaleString("en") + " " + many;
const moment = (iso) => new Date(iso).toLocaleString("en", {weekday: "short", hour: "2-digit", minute: "2-digit", hour12: false});

function make(tag, text, kind) {
  const element = document.createElement(tag);
  element.textContent = text;
  if (kind) element.className = kind;
  return element;
}

// Elements are replaced only where something has changed, so that a screen reader or a selection
// keeps its place.
const shown = new Map();
function showParts(list, parts, build) {
  const key = JSON.stringify(parts);
  if (shown.get(list.id) === key) return;
  shown.set(list.id, key);
  list.replaceChildren(...parts.map(build));
}
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}
function facts(list, pairs) {
  showParts(list, pairs, ([name, value, kind]) => {
    const box = make("div", "", kind);
    box.append(make("dt", name), make("dd", value));
    return box;
  });
}
