// The page at "/": asks for stats once a second, and hears of changes of the top vertices by server-sent events.

const SECONDS_SHOWN = 120;
const TOP = 10;
const TOP_AGAIN_MS = 5000;  // vertices that were not among the first may be by now
const RETRY_MS = 2000;

const $ = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");
const rate = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

let token = sessionStorage.getItem("graphtide-token");
let before = null;  // the last stats, and when they came
let following = null;  // ends the present subscription
const history = { "updates-line": [], "epochs-line": [], "lag-line": [], "lag-seconds-line": [] };

class Refused extends Error {
  constructor(status, answer) {
    super(answer.message ?? `status ${status}`);
    this.status = status;
  }
}

async function ask(method, params, signal) {
  const headers = { "Content-Type": "application/json" };
  if (token !== null) headers.Authorization = `Bearer ${token}`;
  const answer = await fetch(`/v1/${method}`, { method: "POST", headers, body: JSON.stringify(params), signal });
  if (!answer.ok) throw new Refused(answer.status, await answer.json().catch(() => ({})));
  return answer;
}

const later = (ms) => new Promise((done) => setTimeout(done, ms));

// -- what is shown --------------------------------------------------------------------------------------------

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at ? n.toPrecision(3) : n} ${units[at]}`;
}

function number(value) {
  if (value === null || value === undefined) return "–";
  if (typeof value !== "number") return String(value);
  return Number.isInteger(value) ? whole.format(value) : value.toPrecision(6);
}

function element(name, text, attributes = {}) {
  const made = document.createElement(name);
  if (text !== null) made.textContent = text;
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  return made;
}

function rows(table, lines) {
  $(table).tBodies[0].replaceChildren(...lines.map((cells) => {
    const row = element("tr", null);
    row.append(...cells);
    return row;
  }));
}

function line(id, value) {
  const values = history[id];
  values.push(value);
  if (values.length > SECONDS_SHOWN) values.shift();
  const most = Math.max(...values, 1e-9);
  const start = SECONDS_SHOWN - values.length;
  const points = values.map((one, at) => `${start + at + 1},${(29 - 28 * one / most).toFixed(1)}`);
  $(id).firstElementChild.setAttribute("points", points.join(" "));
}

function total(amounts) {
  const values = Object.values(amounts).flatMap((one) => typeof one === "object" ? Object.values(one) : [one]);
  return values.reduce((sum, one) => sum + Number(one), 0);
}

function state(name, text) {
  const shown = $("state");
  if (shown.textContent !== text) shown.textContent = text;
  shown.dataset.state = name;
}

function show(stats, programs, now) {
  state(stats.stage, stats.stage);
  $("epoch").textContent = `epoch ${stats.epoch.join(".")}`;
  const lag = total(stats.lag.amount);
  if (before !== null && now > before.now && stats.epoch[0] === before.stats.epoch[0]) {
    const seconds = (now - before.now) / 1000;
    const updates = Math.max(stats.updates_applied - before.stats.updates_applied, 0) / seconds;
    const epochs = (stats.epoch[1] - before.stats.epoch[1]) / seconds;
    $("updates-rate").textContent = rate.format(updates);
    $("epochs-rate").textContent = rate.format(epochs);
    line("updates-line", updates);
    line("epochs-line", epochs);
  }
  before = { stats, now };
  $("lag-name").textContent = `Lag (${stats.lag.unit})`;
  $("lag").textContent = whole.format(lag);
  $("lag-seconds").textContent = rate.format(stats.lag.seconds ?? 0);
  line("lag-line", lag);
  line("lag-seconds-line", Number(stats.lag.seconds ?? 0));
  $("waiting").hidden = !stats.waiting;
  $("waiting").textContent = stats.waiting ? `Reading waits: ${stats.waiting}` : "";
  $("vertices").textContent = number(stats.vertices);
  $("edges").textContent = number(stats.edges);
  $("memory").textContent = bytes(stats.memory.used);
  $("bad-records").textContent = whole.format(total(stats.dead_letters));
  rows("programs", Object.entries(programs).map(([id, one]) => [
    element("th", id, { scope: "row" }),
    element("td", one.kind ?? ""),
    element("td", one.reason ? `${one.state}: ${one.reason}` : one.state, { "data-state": one.state }),
    element("td", number(one.error_bound), { class: "number" }),
    element("td", one.memory_bytes === undefined ? "–" : bytes(one.memory_bytes), { class: "number" }),
  ]));
  const { sides, vertices, bytes: sizes, device } = stats.placement;
  rows("placement", sides.map((side, at) => [
    element("th", side, { scope: "row" }),
    element("td", number(vertices[at]), { class: "number" }),
    element("td", bytes(sizes[at]), { class: "number" }),
  ]));
  $("device").textContent = device === null ? "No device." : device.lost
    ? `${device.name} was given up: ${device.lost}` : `${device.name} runs ${device.programs.join(", ") || "no program"}.`;
  const kept = stats.checkpoint;
  const shown = {
    "Connections": number(stats.server.connections),
    "Subscriptions": number(stats.server.subscriptions),
    "Requests that wait": number(stats.server.waiting),
    "Restarts": number(stats.server.restarts),
    "Newest checkpoint": kept === null ? "none yet" : `epoch ${kept.epoch.join(".")}`,
  };
  $("server").replaceChildren(...Object.entries(shown).flatMap(([name, text]) => [element("dt", name), element("dd", text)]));
  choices(programs);
}

function choices(programs) {
  const list = $("program");
  const there = Object.keys(programs);
  if (there.join("\n") === [...list.options].map((one) => one.value).join("\n")) return;
  const chosen = list.value;
  list.replaceChildren(...there.map((id) => element("option", id, { value: id })));
  list.value = there.includes(chosen) ? chosen : there.includes("pagerank") ? "pagerank" : there[0] ?? "";
  follow();
}

// -- top vertices ---------------------------------------------------------------------------------------------

function showTop(values, order) {
  const sign = order === "asc" ? 1 : -1;
  const sorted = [...values].sort(([, a], [, b]) => sign * (Number(a) - Number(b)));
  const largest = Math.max(...[...values.values()].map((value) => Math.abs(Number(value)) || 0), 0);
  rows("top", sorted.map(([id, value]) => {
    const bar = element("td", null);
    bar.append(element("progress", null, { max: "1", value: largest ? Math.abs(Number(value)) / largest : 0, "aria-hidden": "true" }));
    return [element("th", String(id), { scope: "row" }), element("td", number(value), { class: "number" }), bar];
  }));
}

async function* events(answer) {
  const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
  let text = "";
  while (true) {
    const { done, value } = await reader.read();
    if (done) return;
    text += value;
    const blocks = text.split("\n\n");
    text = blocks.pop();
    for (const block of blocks) {
      const fields = Object.fromEntries(block.split("\n").map((one) => one.split(/: (.*)/s, 2)));
      if (fields.data) yield { name: fields.event, data: JSON.parse(fields.data) };
    }
  }
}

// The first vertices, then their values as they change, until others may be the first.
async function topOnce(program, order, signal) {
  const first = await (await ask("top", { program, k: TOP, order }, signal)).json();
  const values = new Map(first.ids.map((id, at) => [id, first.values[at]]));
  showTop(values, order);
  $("told").textContent = `epoch ${first.epoch.join(".")}`;
  if (!values.size) { await later(TOP_AGAIN_MS); return; }
  const ended = AbortSignal.any([signal, AbortSignal.timeout(TOP_AGAIN_MS)]);
  const told = await ask("subscribe", { program, vertices: [...values.keys()], since: first.epoch }, ended);
  for await (const { name, data } of events(told)) {
    if (name !== "changed") continue;
    data.removed.forEach((id) => values.delete(id));
    data.ids.forEach((id, at) => values.set(id, data.values[at]));
    showTop(values, order);
    $("told").textContent = `epoch ${data.epoch.join(".")}`;
  }
}

async function follow() {
  following?.abort();
  const own = following = new AbortController();
  const program = $("program").value;
  const order = $("order").value;
  while (program && !own.signal.aborted) {
    try {
      await topOnce(program, order, own.signal);
    } catch (error) {
      if (own.signal.aborted || error.status === 401) return;
      if (error.name === "TimeoutError" || error.name === "AbortError") continue;
      showTop(new Map(), order);
      $("told").textContent = error.message;
      await later(RETRY_MS);
    }
  }
}

// -- stats ----------------------------------------------------------------------------------------------------

async function watch() {
  while (true) {
    try {
      const stats = await (await ask("stats", {})).json();
      const { programs } = await (await ask("programs", {})).json();
      $("door").hidden = true;
      $("shown").hidden = false;
      if (following?.signal.aborted) follow();
      show(stats, programs, performance.now());
    } catch (error) {
      if (error.status === 401) {
        following?.abort();
        state("waiting", token === null ? "a token is asked for" : "the token is wrong");
        $("shown").hidden = true;
        $("door").hidden = false;
        $("token").focus();
        return;
      }
      state("lost", error instanceof Refused ? error.message : "no answer");
    }
    await later(1000);
  }
}

$("door").addEventListener("submit", (event) => {
  event.preventDefault();
  token = $("token").value;
  sessionStorage.setItem("graphtide-token", token);
  $("token").value = "";
  watch();
});
$("program").addEventListener("change", follow);
$("order").addEventListener("change", follow);
watch();
