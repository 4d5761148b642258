// The chart of losses: axes, and a point that mouse, finger or arrow keys choose.
const SVG = "http://www.w3.org/2000/svg";
const CHART_HEIGHT = 220;
const CHART_SPACE = {left: 46, right: 12, top: 10, bottom: 40};
const TICK_PIXELS_X = 90, TICK_PIXELS_Y = 45;
const chart = {points: [], chosen: null, width: 0, key: ""};

function ticks(low, high, most) {
  const rough = (high - low) / Math.max(1, most);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((x) => x * power).find((x) => x >= rough * 0.999);
  const found = [];
  for (let i = Math.ceil(low / step - 1e-9); i * step <= high + step * 1e-9; i += 1) found.push(i * step);
  return {found, digits: Math.max(0, -Math.floor(Math.log10(step) + 1e-9))};
}

function draw(tag, attributes, text) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, value);
  if (known(text)) element.textContent = text;
  return element;
}

function scales() {
  const values = chart.points.flatMap((p) => [p.loss, p.heldout_loss]).filter(known);
  let low = Math.min(...values), high = Math.max(...values);
  const space = Math.max(0.01, (high - low) / 20);
  low -= space; high += space;
  const first = chart.points[0].round, last = chart.points[chart.points.length - 1].round;
  const wide = chart.width - CHART_SPACE.left - CHART_SPACE.right;
  const tall = CHART_HEIGHT - CHART_SPACE.top - CHART_SPACE.bottom;
  return {low, high, first, last, wide, tall,
    x: (round) => CHART_SPACE.left + wide * (round - first) / Math.max(1, last - first),
    y: (value) => CHART_SPACE.top + tall * (high - value) / (high - low)};
}

function drawChart() {
  const svg = $("chart");
  chart.width = Math.round(svg.clientWidth) || chart.width || 320;
  svg.setAttribute("viewBox", `0 0 ${chart.width} ${CHART_HEIGHT}`);
  const s = scales();
  const left = CHART_SPACE.left, bottom = CHART_SPACE.top + s.tall;
  const parts = [];
  const y = ticks(s.low, s.high, s.tall / TICK_PIXELS_Y);
  for (const value of y.found) {
    parts.push(draw("line", {class: "grid", x1: left, x2: left + s.wide, y1: s.y(value), y2: s.y(value)}));
    parts.push(draw("text", {x: left - 8, y: s.y(value) + 4, "text-anchor": "end"}, value.toFixed(y.digits)));
  }
  const x = ticks(s.first, s.last, s.wide / TICK_PIXELS_X);
  for (const round of x.found.filter(Number.isInteger)) {
    parts.push(draw("line", {class: "axis", x1: s.x(round), x2: s.x(round), y1: bottom, y2: bottom + 4}));
    parts.push(draw("text", {x: s.x(round), y: bottom + 18, "text-anchor": "middle"}, round.toLocaleString("en")));
  }
  parts.push(draw("line", {class: "axis", x1: left, x2: left + s.wide, y1: bottom, y2: bottom}));
  parts.push(draw("line", {class: "axis", x1: left, x2: left, y1: CHART_SPACE.top, y2: bottom}));
  parts.push(draw("text", {x: left + s.wide / 2, y: CHART_HEIGHT - 4, "text-anchor": "middle"}, "round"));
  for (const [key, kind] of [["loss", "train"], ["heldout_loss", "heldout"]]) {
    const path = chart.points.filter((p) => known(p[key])).map((p, i) =>
      (i ? "L" : "M") + s.x(p.round).toFixed(1) + " " + s.y(p[key]).toFixed(1)).join("");
    parts.push(draw("path", {class: "curve " + kind, d: path}));
  }
  svg.replaceChildren(...parts, draw("g", {id: "chart-mark"}));
  drawMark();
}

function drawMark() {
  const svg = $("chart"), mark = $("chart-mark");
  const last = chart.points[chart.points.length - 1];
  const point = chart.points.find((p) => p.round === chart.chosen) || last;
  const text = `round ${point.round.toLocaleString("en")}: held-out ${loss(point.heldout_loss)}, training ${loss(point.loss)}`;
  setText($("chart-point"), point.round === chart.chosen ? text : "Point at the curve, or use the arrow keys, for the values of a round.");
  svg.setAttribute("aria-valuemin", chart.points[0].round);
  svg.setAttribute("aria-valuemax", last.round);
  svg.setAttribute("aria-valuenow", point.round);
  svg.setAttribute("aria-valuetext", text);
  if (!mark) return;
  if (point.round !== chart.chosen) { mark.replaceChildren(); return; }
  const s = scales();
  const dots = [["loss", "train"], ["heldout_loss", "heldout"]].filter(([key]) => known(point[key])).map(([key, kind]) =>
    draw("circle", {class: "dot " + kind, cx: s.x(point.round), cy: s.y(point[key]), r: 4}));
  mark.replaceChildren(draw("line", {class: "axis", x1: s.x(point.round), x2: s.x(point.round), y1: CHART_SPACE.top, y2: CHART_SPACE.top + s.tall}), ...dots);
}

function choosePoint(event) {
  if (!chart.points.length) return;
  const s = scales();
  const at = event.clientX - $("chart").getBoundingClientRect().left;
  const nearest = chart.points.reduce((best, p) => Math.abs(s.x(p.round) - at) < Math.abs(s.x(best.round) - at) ? p : best);
  chart.chosen = nearest.round;
  drawMark();
}

function movePoint(event) {
  const all = chart.points;
  if (!all.length) return;
  const found = all.findIndex((p) => p.round === chart.chosen);
  const place = found < 0 ? all.length - 1 : found;
  const page = Math.max(1, Math.round(all.length / 10));
  const moves = {ArrowLeft: -1, ArrowDown: -1, ArrowRight: 1, ArrowUp: 1, PageDown: -page, PageUp: page, Home: -all.length, End: all.length};
  if (event.key === "Escape") chart.chosen = null;
  else if (event.key in moves) chart.chosen = all[Math.max(0, Math.min(all.length - 1, place + moves[event.key]))].round;
  else return;
  event.preventDefault();
  drawMark();
}

// A figure of an evaluation, with its round where a newer state is there.
function heldOut(s, value) {
  const isOlder = known(value) && known(s.heldout_round) && s.heldout_round !== s.round;
  return loss(value) + (isOlder ? " (round " + s.heldout_round.toLocaleString("en") + ")" : "");
}

function showLoss(s) {
  setText($("heldout-now"), heldOut(s, s.heldout_loss));
  setText($("train-now"), loss(s.loss));
  const values = s.loss_history.flatMap((p) => [p.loss, p.heldout_loss]).filter(known);
  const enough = s.loss_history.length > 1 && values.length > 1;
  $("chart-box").hidden = !enough;
  $("no-chart").hidden = enough;
  const key = JSON.stringify(s.loss_history);
  if (!enough || key === chart.key) return;
  chart.key = key;
  chart.points = s.loss_history;
  drawChart();
  if ($("curve-box").open) showCurveTable();
}

function showCurveTable() {
  showParts($("curve-rows"), chart.points, (p) => {
    const row = document.createElement("tr");
    row.append(make("td", p.round.toLocaleString("en")), make("td", loss(p.heldout_loss)), make("td", loss(p.loss)));
    return row;
  });
}

$("chart").addEventListener("pointermove", choosePoint);
$("chart").addEventListener("pointerdown", choosePoint);
$("chart").addEventListener("pointerleave", () => { chart.chosen = null; if (chart.points.length) drawMark(); });
$("chart").addEventListener("keydown", movePoint);
$("curve-box").addEventListener("toggle", () => { if ($("curve-box").open && chart.points.length) showCurveTable(); });
new ResizeObserver(() => { if (chart.points.length > 1 && Math.round($("chart").clientWidth) !== chart.width) drawChart(); }).observe($("chart"));
