// The page at "/": hears of each epoch's top vertices by server-sent events, and asks for stats once a second, while
// it can be seen.

const SECONDS_SHOWN = 120;
const WINDOW_MS = 10000;  // times are those of so long
const TOP = 10;
const WAITS = ["poll", "queue"];  // stages that are more waiting than work
const RETRY_MS = 2000;

const $ = (id) => document.getElementById(id);
const whole = new Intl.NumberFormat("en");
const rate = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });
const percent = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });

let token = sessionStorage.getItem("graphtide-token");
let before = [];  // the stats of the last WINDOW_MS, and when they came, the newest last
let watching = null;  // ends the present loop of questions
let following = null;  // ends the present subscription
const history = {};  // of each line

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

function whatWaits(stats) {
  if (stats.waiting) return `Reading waits: ${stats.waiting}`;
  if (stats.order.trouble) return `Epochs wait: ${stats.order.trouble}`;
  return stats.memory.waits_for ? `Updates wait for memory (${stats.memory.waits_for})` : "";
}

function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (n >= 1024 && at < units.length - 1) { n /= 1024; at += 1; }
  return `${at ? n.toPrecision(3) : n} ${units[at]}`;
}

function duration(seconds) {
  if (seconds < 0.001) return `${rate.format(seconds * 1e6)} µs`;
  return seconds < 1 ? `${rate.format(seconds * 1e3)} ms` : `${rate.format(seconds)} s`;
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
  const values = history[id] ??= [];
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

// Of what is counted since the start, by name, what came between two stats: {count, seconds} each.
function between(key, from, to) {
  return Object.entries(to[key]).map(([name, now]) => {
    const then = from[key][name] ?? { count: 0, seconds: 0 };
    return [name, { count: now.count - then.count, seconds: now.seconds - then.seconds }];
  });
}

// Within how many seconds this share of the updates between two stats was visible, or a little less: the upper end of a
// bucket. Infinity: later than all ends. null: there were no updates.
function freshness(share, from, to) {
  const counts = to.freshness.updates.map((n, at) => n - from.freshness.updates[at]);
  const wanted = share * counts.reduce((sum, n) => sum + n, 0);
  if (!wanted) return null;
  let sum = 0;
  return to.freshness.bounds_seconds.find((_, at) => (sum += counts[at]) >= wanted) ?? Infinity;
}

function bar(value) {
  const cell = element("td", null);
  cell.append(element("progress", null, { max: "1", value: Math.min(value, 1), "aria-hidden": "true" }));
  return cell;
}

function state(name, text) {
  const shown = $("state");
  if (shown.textContent !== text) shown.textContent = text;
  shown.dataset.state = name;
}

function showFreshness(id, share, from, to) {
  const seconds = freshness(share, from, to);
  const last = to.freshness.bounds_seconds.at(-1);
  $(id).textContent = seconds === null ? "–" : seconds === Infinity ? `over ${duration(last)}` : duration(seconds);
  line(`${id}-line`, Math.min(seconds ?? 0, last));
}

function showTimes(from, to, seconds) {
  showFreshness("fresh-half", 0.5, from, to);
  showFreshness("fresh-most", 0.99, from, to);
  rows("stages", between("stages", from, to).map(([stage, ran]) => {
    const share = ran.seconds / seconds;
    const isWait = WAITS.includes(stage);
    return [
      element("th", stage, { scope: "row" }),
      element("td", ran.count ? duration(ran.seconds / ran.count) : "–", { class: "number" }),
      element("td", isWait ? "–" : percent.format(share), { class: "number" }),
      isWait ? element("td", null) : bar(share),
    ];
  }));
}

function show(stats, programs, now) {
  state(stats.stage, stats.stage);
  $("epoch").textContent = `epoch ${stats.epoch.join(".")}`;
  const lag = total(stats.lag.amount);
  if (stats.epoch[0] !== before.at(-1)?.stats.epoch[0]) before = [];  // it has started since
  const last = before.at(-1);
  while (before.length > 1 && now - before[0].now > WINDOW_MS) before.shift();
  if (last !== undefined && now > last.now) {
    const seconds = (now - last.now) / 1000;
    const updates = Math.max(stats.updates_applied - last.stats.updates_applied, 0) / seconds;
    const epochs = (stats.epoch[1] - last.stats.epoch[1]) / seconds;
    $("updates-rate").textContent = rate.format(updates);
    $("epochs-rate").textContent = rate.format(epochs);
    line("updates-line", updates);
    line("epochs-line", epochs);
  }
  const from = before[0]?.stats ?? stats;
  const seconds = (now - (before[0]?.now ?? -Infinity)) / 1000;
  showTimes(from, stats, seconds);
  const runs = Object.fromEntries(between("runs", from, stats));
  before.push({ stats, now });
  $("lag-name").textContent = `Lag (${stats.lag.unit})`;
  $("lag").textContent = whole.format(lag);
  $("lag-seconds").textContent = rate.format(stats.lag.seconds ?? 0);
  line("lag-line", lag);
  line("lag-seconds-line", Number(stats.lag.seconds ?? 0));
  const waits = whatWaits(stats);
  $("waiting").hidden = !waits;
  $("waiting").textContent = waits;
  $("vertices").textContent = number(stats.vertices);
  $("edges").textContent = number(stats.edges);
  $("memory").textContent = bytes(stats.memory.used);
  $("bad-records").textContent = whole.format(total(stats.dead_letters));
  rows("programs", Object.entries(programs).map(([id, one]) => [
    element("th", id, { scope: "row" }),
    element("td", one.kind ?? ""),
    element("td", one.reason ? `${one.state}: ${one.reason}` : one.state, { "data-state": one.state }),
    element("td", percent.format((runs[id]?.seconds ?? 0) / seconds), { class: "number" }),
    element("td", one.error_bound ? one.error_bound.toPrecision(3) : "–", { class: "number" }),
    element("td", one.memory_bytes === undefined ? "–" : bytes(one.memory_bytes), { class: "number" }),
  ]));
  const { sides, vertices, edges, bytes: sizes, device } = stats.placement;
  rows("placement", sides.map((side, at) => [
    element("th", side, { scope: "row" }),
    element("td", number(vertices[at]), { class: "number" }),
    element("td", number(edges[at]), { class: "number" }),
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
  const finite = [...values.values()].map((value) => Math.abs(Number(value))).filter(Number.isFinite);
  const largest = Math.max(...finite, Number.MIN_VALUE);  // an infinite one has a full bar
  rows("top", sorted.map(([id, value]) => [
    element("th", String(id), { scope: "row" }),
    element("td", number(value), { class: "number" }),
    bar(Math.abs(Number(value)) / largest),
  ]));
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

// The first vertices of each epoch, until the server ends it.
async function followOnce(program, order, signal) {
  const values = new Map();
  const told = await ask("subscribe", { program, top: TOP, order }, signal);
  for await (const { name, data } of events(told)) {
    if (name === "ended") throw new Error(data.error.message);
    if (name !== "changed") continue;
    if (data.since === null) values.clear();
    data.removed.forEach((id) => values.delete(id));
    data.ids.forEach((id, at) => values.set(id, data.values[at]));
    if (data.more) continue;
    showTop(values, order);
    const stale = data.stale ? `${data.stale.state}: ${data.stale.reason}; ` : "";
    $("told").textContent = `${stale}epoch ${data.epoch.join(".")}`;
    $("epoch").textContent = `epoch ${data.epoch.join(".")}`;
  }
}

async function follow() {
  following?.abort();
  const own = following = new AbortController();
  const program = $("program").value;
  const order = $("order").value;
  while (program && !own.signal.aborted) {
    try {
      await followOnce(program, order, own.signal);
    } catch (error) {
      if (own.signal.aborted || error.status === 401) return;
      showTop(new Map(), order);
      $("told").textContent = error.message;
      if (error.status === 400) return;  // these values have no order
    }
    await later(RETRY_MS);
  }
}

// -- stats ----------------------------------------------------------------------------------------------------

function seen() {
  if (!document.hidden) return null;
  return new Promise((done) => document.addEventListener("visibilitychange", done, { once: true }));
}

// One loop at a time, however often a token is entered: the one before ends.
async function watch() {
  watching?.abort();
  const own = watching = new AbortController();
  while (!own.signal.aborted) {
    try {
      const asked = ["stats", "programs"].map((method) => ask(method, {}, own.signal).then((answer) => answer.json()));
      const [stats, { programs }] = await Promise.all(asked);
      $("door").hidden = true;
      $("shown").hidden = false;
      if (following?.signal.aborted) follow();
      show(stats, programs, performance.now());
    } catch (error) {
      if (own.signal.aborted) return;
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
    await seen();
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
