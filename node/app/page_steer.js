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

function ask(method, path) {
  const headers = {"X-Gossamer": "1", "Authorization": "Bearer " + sessionStorage.getItem(TOKEN_KEY)};
  return fetch(path, {method, headers, signal: AbortSignal.timeout(ORDER_MS)});
}

function showSteering(result) {
  const steers = sessionStorage.getItem(TOKEN_KEY) !== null;
  $("controls").hidden = !steers;
  $("limit-controls").hidden = !steers;
  $("log-section").hidden = !steers;
  $("read-only").hidden = steers;
  setText($("order-result"), result);
}

function refuseToken() {
  sessionStorage.removeItem(TOKEN_KEY);
  showSteering("The node does not take this page's token, as after a restart of the node.");
}

async function order(path, taken, result = $("order-result")) {
  setText(result, "Asking the node.");
  try {
    const answer = await ask("POST", path);
    if (answer.status === 401) { refuseToken(); return; }
    const text = answer.ok ? taken : "The node refuses: " + (await answer.text()).trim();
    setText(result, text);
  } catch (error) {
    setText(result, "The node did not answer (" + error.message + "). Look at its state before you try again.");
    return;
  }
  update();
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
$("copy").addEventListener("click", copyLink);
$("log-box").addEventListener("toggle", showLog);
setInterval(showLog, LOG_MS);
addEventListener("hashchange", takeToken);
