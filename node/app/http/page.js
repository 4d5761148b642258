const REFRESH_MS = 2000;
const CREDIT_MS = 15000;

function pill(element, phase) {
  const kinds = {training: "good", averaging: "good", finished: "good", syncing: "warn", joining: "warn", failed: "bad", "put out": "bad"};
  element.className = "pill " + (kinds[phase] || "");
  setText(element, phase);
}

// A node that the members put out goes on with its rounds, but nothing that it does counts.
const isOut = (s) => Boolean(s.put_out) && s.phase !== "failed";
const shownPhase = (s) => isOut(s) ? "put out" : s.phase;

function doing(s) {
  const next = s.round + 1;
  const ends = (s.pauses || []).some(each => each.after_round);
  if (ends && (s.phase === "training" || s.phase === "averaging")) return ["Finishing round " + next, "This node pauses when the round ends."];
  if (s.leaves_after_round) return ["Finishing round " + next, "This node leaves when the round ends."];
  if (isOut(s)) return ["Put out of the run", s.put_out];
  if (s.waits_for) return ["Waiting for others", s.waits_for + "."];
  switch (s.phase) {
    case "joining": return ["Looking for the swarm", "Dialling peers and checking the run's manifest."];
    case "syncing": return ["Fetching the model", s.rounds_behind ? plural(s.rounds_behind, "round", "rounds") + " behind the swarm." : "Blocks come from several peers at once and are checked one by one."];
    case "training": return ["Training for round " + next + (s.final_round ? " of " + s.final_round : ""), s.inner_steps ? "Step " + s.inner_step + " of " + s.inner_steps + stepsLeft(s) : "On this node's own share of the data."];
    case "averaging": return ["Averaging round " + next, "Exchanging updates with the ring, without a server."];
    case "paused": return ["Paused", paused(s)];
    case "leaving": return ["Leaving", "Handing over this round's work."];
    case "finished": return ["Finished", "This node has the model after the last round, and serves it to others. Write it with: gossamer export FOLDER"];
    case "failed": return ["Failed", s.problem || "The log says why."];
    default: return [s.phase, ""];
  }
}

// What is the matter, where it does not stand beside the phase already.
function problem(s) {
  const isSaid = s.phase === "failed" || s.problem === s.put_out || (s.phase === "paused" && paused(s).includes(s.problem));
  return s.problem && !isSaid ? s.problem : "";
}

// All causes, where one line does not say it.
function causes(s) {
  const all = s.pauses || [];
  if (!all.length || (s.phase === "paused" && all.length === 1)) return [];
  const text = all.map((each) => each.reason + (each.text ? ": " + each.text : "") + (each.after_round ? ", from the end of this round" : "")
    + (each.resumes_at ? ", until " + moment(each.resumes_at) : ""));
  return [["What keeps it from training", text.join("; "), "whole"]];
}

function paused(s) {
  const cause = (s.pauses || []).find(each => each.reason === s.paused_reason);
  if (s.resumes_at) return s.paused_reason + ", resumes at " + moment(s.resumes_at);
  if (s.paused_reason && s.paused_reason !== "user") return s.paused_reason + (cause && cause.text ? ": " + cause.text : "");
  return "By its owner's order.";
}

// The pace is what this page has seen itself: of steps in this round, and of rounds.
const pace = {round: null, step: 0, stepAt: 0, firstRound: null, roundAt: 0, fetched: false, roundSeconds: null};
function notePace(s) {
  const now = performance.now() / 1000;
  if (pace.round !== s.round || s.phase !== "training" || s.inner_step < pace.step) Object.assign(pace, {round: s.round, step: s.inner_step, stepAt: now});
  // Rounds that were fetched say nothing of the pace, nor does the step from them to its own ones.
  const fetches = ["joining", "syncing", "paused"].includes(s.phase);
  if (pace.firstRound === null || s.round < pace.firstRound || fetches || pace.fetched) Object.assign(pace, {firstRound: s.round, roundAt: now});
  pace.fetched = fetches;
  if (s.round > pace.firstRound) pace.roundSeconds = (now - pace.roundAt) / (s.round - pace.firstRound);
  else if (known(s.last_round)) pace.roundSeconds = s.last_round.duration_seconds;
}
function stepsLeft(s) {
  const done = s.inner_step - pace.step, took = performance.now() / 1000 - pace.stepAt;
  return done > 0 && s.inner_step < s.inner_steps ? ", about " + seconds(Math.max(1, Math.round((s.inner_steps - s.inner_step) * took / done))) + " left" : "";
}
function runLeft(s) {
  const rounds = Math.max(0, s.final_round - s.round);
  if (!rounds) return "none: the last round is committed";
  return plural(rounds, "round", "rounds") + (known(pace.roundSeconds) ? ", about " + seconds(rounds * pace.roundSeconds) : "");
}
function tokensLeft(s, tokensPerSecond) {
  const left = Math.max(0, s.final_tokens - s.swarm_tokens_total);
  if (!left) return "none: the last token is trained";
  return count(left) + " tokens" + (tokensPerSecond ? ", about " + seconds(left / tokensPerSecond) + " at this speed" : "");
}
function showBar(bar, done, all) {
  bar.hidden = !all;
  if (!all) return;
  const share = Math.min(100, 100 * done / all);
  bar.firstElementChild.style.width = share + "%";
  bar.setAttribute("aria-valuenow", Math.round(share));
  bar.setAttribute("aria-valuetext", done + " of " + all);
}

// What a screen reader is told: what has changed for the owner, and not each round.
function heard(s) {
  return [heardOfPhase(s), problem(s)].filter(Boolean).join(" ");
}
function heardOfPhase(s) {
  if (isOut(s)) return s.put_out;
  if (s.waits_for) return "The node waits for others.";
  switch (s.phase) {
    case "training": case "averaging": return "The node takes part in rounds.";
    case "paused": return "The node is paused: " + paused(s);
    case "failed": return "The node has failed. " + (s.problem || "");
    default: return "The node is " + s.phase + ".";
  }
}
function work(w) {
  if (!known(w)) return "–";
  const fates = [count(w.committed_on_time) + " on time", count(w.committed_late) + " late", count(w.carried) + " carried"];
  if (w.dropped) fates.push(count(w.dropped) + " dropped");
  if (w.lost) fates.push(count(w.lost) + " lost");
  return count(w.trained) + " tokens: " + fates.join(", ");
}
function growth(d) {
  if (d.cutting) return "; " + d.cutting;
  if (!(d.expected_tokens > d.num_tokens)) return "";
  return "; " + (100 * d.num_tokens / d.expected_tokens).toFixed(0) + " % of the corpus is there";
}
function data(d) {
  if (!known(d)) return "–";
  const own = d.own ? "this machine's own text, " : "";
  return own + "epoch " + (d.epoch + 1) + ", " + (100 * d.tokens_consumed / d.num_tokens).toFixed(1) + " %: "
    + d.shards_consumed.toLocaleString("en") + " of " + plural(d.num_shards, "shard", "shards") + growth(d);
}

function stepTimes(t) {
  const parts = [["forward", t.forward], ["backward", t.backward], ["optimiser", t.optimizer], ["data", t.data], ["hand-over", t.handover]];
  const all = parts.reduce((sum, [, part]) => sum + part, 0);
  return all ? parts.map(([name, part]) => name + " " + (100 * part / all).toFixed(0) + " %").join(", ") : "–";
}

function showNode(s) {
  pill($("phase"), shownPhase(s));
  const [what, more] = doing(s);
  setText($("doing"), what);
  setText($("doing-more"), more);
  const trouble = problem(s);
  setText($("problem"), trouble);
  $("problem").hidden = !trouble;
  setText($("heard"), heard(s));
  showBar($("progress"), s.inner_step, s.phase === "training" ? s.inner_steps : 0);
  const c = s.capacity;
  facts($("node-facts"), [
    ...causes(s),
    [isAtWork(s) ? "Speed" : "Speed in training", known(s.tokens_per_second) ? count(s.tokens_per_second) + " tokens/s" : "–"],
    ["Contributed", count(s.tokens_total) + " tokens"],
    ["Training loss", loss(s.loss)],
    ...(known(s.bits_per_byte) ? [["Training bits per byte", loss(s.bits_per_byte)]] : []),
    ...(known(s.mfu) ? [["Utilisation (MFU)", (100 * s.mfu).toFixed(1) + " %"]] : []),
    ["Up", seconds(s.uptime_seconds)],
    ["Sent", bytes(s.bytes_sent_total)],
    ["Received", bytes(s.bytes_received_total)],
    ["On disk", bytes(s.disk_used_bytes)],
    ["Carried for others", bytes(s.relayed_bytes_total)],
    ["Bandwidth", c && known(c.bandwidth_bytes_per_second) ? bytes(c.bandwidth_bytes_per_second) + "/s" : "–"],
    ["Reach", s.reach_text || "–", "whole"],
    ["Trained", work(s.work), "whole"],
    ...(known(s.step_times) ? [["A step's time", stepTimes(s.step_times), "whole"]] : []),
    ["Device", c ? c.device + " · " + bytes(c.device_memory_bytes) : "–", "whole"],
    ["Confinement", s.confinement || "–", "whole"],
    ...(known(s.rolled_back_to) ? [["Rolled back", "by the founder or the keepers: the run went on after round " + s.rolled_back_to.toLocaleString("en"), "whole"]] : []),
    ...(s.rollback_proposal ? [["Proposal", s.rollback_proposal, "whole"]] : []),
    ...(s.rollback_withdrawn ? [["Rollback given up", s.rollback_withdrawn, "whole"]] : []),
  ]);
}
function isAtWork(p) {
  return p.phase === "training" || p.phase === "averaging";
}
function showSwarm(s) {
  const connected = s.peers.filter((p) => p.connected).length;
  const others = s.peers.filter((p) => p.peer_id !== s.peer_id);
  // Those that are paused or have the final state say how fast they were.
  const speeds = [s, ...others].filter(isAtWork).map((p) => p.tokens_per_second).filter(known);
  const speed = speeds.reduce((a, b) => a + b, 0);
  showBar($("run-progress"), s.final_tokens ? s.swarm_tokens_total : s.round, s.final_tokens || s.final_round || 0);
  $("swarm").textContent = !s.run_id ? "Not known yet" : s.round === 0 ? "At the first state" : plural(s.round, "round", "rounds") + " committed";
  $("swarm-more").textContent = !s.run_id ? "The first peer that answers tells which run it is." : others.length ? "by " + plural(others.length + 1, "peer", "peers") + " at present" : "This node is alone at present.";
  facts($("swarm-facts"), [
    ["Speed", speeds.length ? count(speed) + " tokens/s" : "–"],
    ["Trained on", count(s.swarm_tokens_total) + (s.final_tokens ? " of " + count(s.final_tokens) : "") + " tokens"],
    ["Held-out loss", heldOut(s, s.heldout_loss)],
    ...(known(s.heldout_bits_per_byte) ? [["Held-out bits per byte", heldOut(s, s.heldout_bits_per_byte)]] : []),
    ["Model", known(s.num_parameters) ? count(s.num_parameters) + " parameters" : "–"],
    ["Connected here", plural(connected, "peer", "peers")],
    ["Head", s.head ? s.head.slice(0, 10) : "–"],
    ...(s.final_round ? [["Time left", runLeft(s), "whole"]] : []),
    ...(s.final_tokens ? [["Time left", tokensLeft(s, speed), "whole"]] : []),
    ["Data", data(s.data), "whole"],
  ]);
}

// The owner's limits beside the use of each, from a node that has them.
function showLimits(s) {
  const limits = s.limits || [];
  $("limits-section").hidden = !limits.length;
  showParts($("limit-name"), limits.map((each) => each.name), (name) => {
    const option = make("option", name.replaceAll("_", " "));
    option.value = name;
    return option;
  });
  const number = (x) => known(x) ? Number(x.toFixed(1)).toLocaleString("en") : "–";
  const unitOf = (each, x) => each.unit === "threads" && x === 1 ? " thread" : " " + each.unit.replace("degrees C", "°C");
  const amount = (each, x) => each.unit === "bytes" ? bytes(x) : number(x) + (known(x) ? unitOf(each, x) : "");
  // The unit stands once: "0.2 of 1 thread", but "910 MB of 2 GB".
  const used = (each) => each.unit !== "bytes" && known(each.limit) ? number(each.used) : amount(each, each.used);
  facts($("limits"), limits.map((each) => [
    each.name.replaceAll("_", " "),
    used(each) + (known(each.limit) ? " of " + amount(each, each.limit) : each.text ? " of " + each.text : ", no limit") + (each.note ? " (" + each.note + ")" : ""),
  ]));
}

function showLast(s) {
  const r = s.last_round;
  $("no-last").hidden = known(r);
  $("last-facts").hidden = !known(r);
  $("last-members").hidden = !known(r);
  if (!known(r)) return;
  facts($("last-facts"), [
    ["Round", r.round.toLocaleString("en")],
    ["Outcome", r.outcome],
    ["Took", seconds(r.duration_seconds)],
    ["Sent", bytes(r.bytes_sent)],
    ["Received", bytes(r.bytes_received)],
    ["Contributed", r.contributors.length + " of " + r.members.length],
    ...(known(s.outer_step) ? [["Outer momentum", s.outer_step.momentum.toFixed(2)], ["Outer rate", s.outer_step.learning_rate.toFixed(2)]] : []),
  ]);
  const inside = new Set(r.contributors);
  showParts($("last-members"), r.members.map((id) => [id, inside.has(id)]), ([id, isInside]) => {
    const chip = make("li", id === s.peer_id ? "you" : short(id), isInside ? "mono" : "mono left-out");
    chip.title = id;
    if (!isInside) chip.append(make("span", ", not in the result", "only-heard"));
    return chip;
  });
}

let credit = {members: []};
async function countCredit() {
  try {
    const answer = document.hidden ? null : await ask("GET", "/api/credit", 30000);
    if (answer && answer.ok) credit = await answer.json();
    showMembers();
  } catch (error) {
    // The numbers before stay; the notice says if the node does not answer.
  }
  setTimeout(countCredit, CREDIT_MS);
}
const MEMBERS_SHOWN = 100;
function showMembers() {
  $("members-box").hidden = !credit.members.length;
  showParts($("members"), credit.members.slice(0, MEMBERS_SHOWN), (each) => {
    const tr = document.createElement("tr"), id = make("th", short(each.peer_id), "mono");
    id.scope = "row";
    id.title = each.peer_id;
    if (called(each)) id.append(make("span", " " + called(each), "name"));
    tr.append(make("td", each.rank, "number"), id, make("td", count(each.tokens), "number"), make("td", (100 * each.share).toFixed(1) + " %", "number"));
    return tr;
  });
}
function given(id) {
  const mine = credit.members.find((each) => each.peer_id === id);
  return mine ? count(mine.tokens) + " (" + (100 * mine.share).toFixed(mine.share < 0.1 ? 1 : 0) + " %)" : "–";
}

// What the model writes for the owner's prompts; asked for when there is something new.
let sampledRound = null;
function sampleTexts(round) {
  return round.samples.map(({prompt, text}) => {
    const box = make("p", "", "sample");
    box.append(make("b", prompt), text);
    return box;
  });
}
async function showSamples(s) {
  $("samples-section").hidden = !known(s.sampled_round);
  if (!known(s.sampled_round) || s.sampled_round === sampledRound) return;
  sampledRound = s.sampled_round;
  try {
    const answer = await ask("GET", "/api/samples");
    const rounds = await answer.json(), newest = rounds.pop();
    setText($("samples-round"), "After round " + newest.round.toLocaleString("en"));
    $("samples").replaceChildren(...sampleTexts(newest));
    $("samples-box").hidden = !rounds.length;
    $("samples-before").replaceChildren(...rounds.reverse().flatMap((each) =>
      [make("h3", "After round " + each.round.toLocaleString("en")), ...sampleTexts(each)]));
  } catch (error) {
    sampledRound = null;  // the next status asks again
  }
}

const COLUMNS = ["Peer", "Phase", "Round", "Tokens given", "Tokens/s", "Path", "Device", "Memory"];
const called = (p) => [p.name, p.team ? "(" + p.team + ")" : ""].filter(Boolean).join(" ");
function cells(p, own) {
  const path = p.path === "relayed" ? "through " + short(p.relay || "") : p.path || "none";
  return [[p.peer_id, called(p)], p.phase, p.round.toLocaleString("en"), given(p.peer_id), count(p.tokens_per_second),
    own ? "this node" : path, p.device || "–", p.device_memory_bytes ? bytes(p.device_memory_bytes) : "–"];
}
function row([[id, name], ...texts], place) {
  const tr = document.createElement("tr");
  tr.setAttribute("role", "row");
  [short(id), ...texts].forEach((text, column) => {
    const cell = make(column ? "td" : "th", column === 1 ? "" : text, column > 1 && column < 5 || column === 7 ? "number" : "");
    cell.setAttribute("role", column ? "cell" : "rowheader");
    cell.dataset.label = COLUMNS[column];
    if (!column) {
      cell.scope = "row";
      cell.title = id;
      cell.className = "mono";
      if (name) cell.append(make("span", " " + name, "name"));
      if (!place) cell.append(make("span", " you", "you"));
    }
    if (column === 1) {
      const mark = document.createElement("span");
      pill(mark, text);
      cell.append(mark);
    }
    tr.append(cell);
  });
  return tr;
}
function showPeers(s) {
  const c = s.capacity || {};
  const me = {peer_id: s.peer_id, name: s.name, team: s.team, phase: shownPhase(s), round: s.round, tokens_per_second: s.tokens_per_second,
    device: c.device, device_memory_bytes: c.device_memory_bytes};
  const others = s.peers.filter((p) => p.peer_id !== s.peer_id);
  showParts($("peers"), [cells(me, true), ...others.map((p) => cells(p, false))], row);
}

function show(s) {
  document.title = shownPhase(s) + " · round " + s.round + " · Gossamer";
  $("run").textContent = s.run_name || (s.run_id ? "run " + s.run_id.slice(0, 10) : "");
  notePace(s);
  showNode(s); showSwarm(s); showLimits(s); showSchedule(s); showLoss(s); showSamples(s); showLast(s); showPeers(s);
  const outside = s.addresses.filter((a) => !a.includes("/127.") && !a.includes("/::1/"));
  const [first, ...more] = (outside.length ? outside : s.addresses).slice(0, 3);
  const head = s.settled_head ? "@" + s.settled_head : "";
  const isByInvitation = s.admission === "invite";
  const link = first && s.run_id ? first + "#" + s.run_id + head : "";
  $("join-section").hidden = !link;
  setText($("join"), isByInvitation ? "gossamer invite" : ["gossamer join", link, ...more].join(" "));
  $("join-code").hidden = isByInvitation;
  if (link && !isByInvitation && $("join-code").dataset.link !== link) {
    $("join-code").dataset.link = link;
    $("join-code").src = "/join.svg?" + encodeURIComponent(first);
  }
  $("version").textContent = "Gossamer " + s.version;
  $("digest").textContent = s.state_digest ? s.state_digest.slice(0, 16) : "–";
}

async function update() {
  if (document.hidden) return;
  try {
    const answer = await ask("GET", "/api/status");
    if (!answer.ok) throw new Error("status " + answer.status);
    show(await answer.json());
    $("notice").hidden = true;
    $("main").classList.remove("stale");
  } catch (error) {
    setText($("notice"), "The node does not answer (" + error.message + "). What you see is the last that it said.");
    $("notice").hidden = false;
    $("main").classList.add("stale");
    pill($("phase"), "failed");
    setText($("phase"), "no answer");
  }
}
async function refresh() {
  await update();
  setTimeout(refresh, REFRESH_MS);
}
showSteering("");
takeToken();
refresh();
countCredit();
