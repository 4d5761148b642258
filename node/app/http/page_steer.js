// Orders to the node. They need the token that the link of `gossamer page` has behind its `#`, which
// a browser sends to nobody. This tab alone keeps it, until it is closed.
const TOKEN_KEY = "gossamer-token";
const ORDER_MS = 10000;
const LOG_MS = 5000;

function takeToken() {
  const given = /^#token=([0-9a-f]+)$/.exec(location.hash);
  if (!given) return;
  sessionStorage.setItem(TOKEN_KEY, given[1]);
  // Out of the address, the history and the next screenshot.
  history.replaceState(null, "", location.pathname);
  showSteering("");
}

function ask(method, path, ms = ORDER_MS) {
  const token = sessionStorage.getItem(TOKEN_KEY);
  const headers = {"X-Gossamer": "1", ...(token && {"Authorization": "Bearer " + token})};
  return fetch(path, {method, headers, signal: AbortSignal.timeout(ms)});
}

function showSteering(result) {
  const steers = sessionStorage.getItem(TOKEN_KEY) !== null;
  $("controls").hidden = !steers;
  $("limit-controls").hidden = !steers;
  $("schedule-form").hidden = !steers;
  $("log-section").hidden = !steers;
  $("read-only").hidden = steers;
  setText($("order-result"), result);
}

function refuseToken() {
  sessionStorage.removeItem(TOKEN_KEY);
  showSteering("The node does not take this page's token, as after a restart of the node.");
}

// Returns whether the node has taken the order.
async function order(path, taken, result = $("order-result")) {
  setText(result, "Asking the node.");
  try {
    const answer = await ask("POST", path);
    if (answer.status === 401) { refuseToken(); return false; }
    const problem = answer.ok ? (await answer.json()).problem : "";
    let text = taken;
    if (!answer.ok) text = "The node refuses: " + (await answer.text()).trim();
    else if (problem && path === "/api/finish") text = taken + " What its disk has not taken is lost here then, unless the disk takes it before: " + problem;
    else if (problem) text = "The node obeys, but a restart forgets this order unless the disk takes it before: " + problem;
    setText(result, text);
    update();
    return answer.ok;
  } catch (error) {
    setText(result, "The node did not answer (" + error.message + "). Look at its state before you try again.");
    return false;
  }
}

function orderPause() {
  const length = $("pause-length"), afterRound = $("after-round").checked;
  const options = new URLSearchParams();
  if (length.value) options.set("seconds", length.value);
  if (afterRound) options.set("after_round", "1");
  const time = length.value ? " It goes on after " + length.selectedOptions[0].textContent + "." : "";
  order("/api/pause?" + options, (afterRound ? "The node pauses when its present round ends." : "The node ends its step, hands over its round and pauses. Then the device is free.") + time);
}

function orderLimit() {
  const name = $("limit-name").value, value = $("limit-value").value.trim();
  if (!value) { setText($("limit-result"), "Write a new value first."); $("limit-value").focus(); return; }
  order("/api/limits?" + new URLSearchParams({[name]: value}), "The limit holds from now on, and after a restart.", $("limit-result"));
}

// When the machine works. A field follows the node until the owner writes something else into it.
const RULES = [
  ["work_hours", "Hours", (text) => text === "off" ? "always" : text],
  ["only_when_idle", "Idle", (text) => text === "off" ? "does not matter" : "for " + text],
  ["on_battery", "On battery", (text) => text === "on" ? "works" : "pauses"],
  ["on_metered", "On a metered line", (text) => text === "on" ? "works" : "pauses"],
  ["pause_for", "Pauses for", (text) => text === "off" ? "no program" : text],
];
const field = (name) => $("rule-" + name);
function showSchedule(s) {
  const held = new Map((s.schedule || []).map((rule) => [rule.name, rule]));
  $("schedule-section").hidden = !held.size;
  facts($("schedule"), RULES.filter(([name]) => held.has(name)).map(([name, title, say]) =>
    [title, say(held.get(name).text) + (held.get(name).source === "schedule set" ? " (set here)" : "")]));
  for (const [name, {text}] of held) {
    const input = field(name), before = input.dataset.held;
    if (before === undefined || input.value === before) input.value = text;
    input.dataset.held = text;
  }
}

async function orderSchedule(event) {
  event.preventDefault();
  const changes = RULES.map(([name]) => [name, field(name).value.trim() || "off"]).filter(([name, text]) => text !== field(name).dataset.held);
  if (!changes.length) { setText($("schedule-result"), "Change something first."); return; }
  const taken = "The schedule holds from now on, and after a restart.";
  if (await order("/api/limits?" + new URLSearchParams(changes), taken, $("schedule-result"))) followNode();
}

async function resetSchedule() {
  const changes = RULES.map(([name]) => [name, "default"]);
  const taken = "The node's settings hold again: flags, variables and file.";
  if (await order("/api/limits?" + new URLSearchParams(changes), taken, $("schedule-result"))) followNode();
}

// What is in the fields is what the node has been told: the next status may write it in its own way.
function followNode() {
  for (const [name] of RULES) delete field(name).dataset.held;
}

async function showLog() {
  if (!$("log-box").open || $("log-section").hidden || document.hidden) return;
  const box = $("log");
  try {
    const answer = await ask("GET", "/api/log");
    if (answer.status === 401) { refuseToken(); return; }
    if (!answer.ok) { setText(box, (await answer.text()).trim()); return; }
    const atEnd = box.scrollHeight - box.scrollTop - box.clientHeight < 20;
    setText(box, (await answer.json()).lines.join("\n"));
    if (atEnd) box.scrollTop = box.scrollHeight;
  } catch (error) {
    // What is there stays; the notice above says that the node does not answer.
  }
}

async function copyLink() {
  const text = $("join").textContent;
  try {
    await navigator.clipboard.writeText(text);
    setText($("copied"), "Copied.");
  } catch (error) {
    // Browsers give the clipboard only to pages of this machine: the owner copies what is selected.
    getSelection().selectAllChildren($("join"));
    setText($("copied"), "Selected: copy it with the keyboard.");
  }
}

$("pause").addEventListener("click", orderPause);
$("resume").addEventListener("click", () => order("/api/resume", "The node goes on, unless something else in its settings holds it."));
$("finish").addEventListener("click", () => order("/api/finish", "The node leaves and exits when its present round ends."));
$("set-limit").addEventListener("click", orderLimit);
$("limit-value").addEventListener("keydown", (event) => { if (event.key === "Enter") orderLimit(); });
$("schedule-form").addEventListener("submit", orderSchedule);
$("default-schedule").addEventListener("click", resetSchedule);
$("copy").addEventListener("click", copyLink);
$("log-box").addEventListener("toggle", showLog);
setInterval(showLog, LOG_MS);
addEventListener("hashchange", takeToken);
