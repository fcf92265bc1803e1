"use strict";
// Asks for the data every second and shows it.

const dark = window.matchMedia("(prefers-color-scheme: dark)");
let data = null;
let timer = null;
let answeredAt = null;

// the document --------------------------------------------------------------------------------------------------------

function fill(id, rows, none) {
  const body = at(id).tBodies[0];
  const made = rows.map((cells) => {
    const row = element("tr");
    row.append(...cells.map(([text, kind]) => element("td", text, kind)));
    return named(row, at(id));
  });
  if (!made.length) {
    const row = element("tr");
    const cell = element("td", none, "none");
    cell.colSpan = at(id).tHead.rows[0].cells.length;
    row.append(cell);
    made.push(row);
  }
  body.replaceChildren(...made);
}

const AGAINST = { above: "; above the baselines", below: "; below a baseline", equal: "; like the best baseline", null: "" };
const worth = (f) => "± " + fixed(f.hit_rate_standard_error) + " of " + count(f.hit_rate_events) + " events";

function showTiles() {
  const f = data.figures || {};
  const saved = data.checkpoint || {};
  at("tiles").replaceChildren(
    tile("Events a second", count(f.events_per_second), count(f.consumed) + " in all"),
    tile("Lag", count(f.lag), count(f.queued_events) + " queued"),
    tile("HR@10", fixed(f.hit_rate_at_10), known(f.hit_rate_at_10) ? worth(f) + AGAINST[f.against_baseline] : "ranked before training"),
    tile("Loss", fixed(f.loss), count(f.steps) + " steps"),
    tile("Items", count(f.items), count(f.users) + " users" + (f.evicted ? ", " + count(f.evicted) + " forgotten" : "")),
    tile("Checkpoint", duration(saved.age_s), known(saved.age_s) ? count(saved.unsaved_events) + " events since" : "none yet"),
    tile("Dead letters", count(f.dead_lettered), count(f.filtered) + " filtered"),
    tile("Running", duration(data.now - data.started), "since " + clock(data.started)),
  );
}

function showHealth() {
  const good = data.ready.ok;
  const state = good ? "good" : data.alive.ok ? "waiting" : "bad";
  at("health").dataset.state = state;
  say("health-text", (good ? "Healthy: " : data.alive.ok ? "Not ready: " : "Unhealthy: ") + data.ready.reason);
}

function showTables() {
  const cache = data.cache || { top: [] };
  fill("top", cache.top.map((t) => [[t.item, "text"], [count(t.slots), "number"], [percent(t.share), "number"], [count(t.popularity_rank), "number"]]),
    "The cache is empty.");
  fill("partitions", data.partitions.map((p) => [[p.topic + " [" + p.partition + "]", "text"], [count(p.position), "number"], [count(p.lag), "number"]]),
    "No partition is assigned yet.");
  const letters = data.dead_letters;
  const reasons = Object.entries(letters.reasons).sort((a, b) => b[1] - a[1]);
  const stops = letters.backpressure_reason ? "Paused reading: " + letters.backpressure_reason + " · " : "";
  say("reasons", stops + (reasons.length ? reasons.map(([reason, n]) => reason.replaceAll("_", " ") + ": " + count(n)).join(" · ") : "None so far."));
  at("letters-region").hidden = !letters.recent.length;
  fill("letters", letters.recent.map((x) => [[clock(x.time), "when"], [x.topic + " [" + x.partition + "] " + x.offset, "where"],
    [x.reason.replaceAll("_", " "), "when"], [x.detail, "text"],
    [letters.shows_values ? x.value : "hidden: see --metrics-show-values", "code"]]), "None since the start.");
}

const PARTS = { head: "Head: most popular", torso: "Torso: in between", tail: "Tail: rare and new" };

function showShop() {
  const shop = data.shop || { lists: 0, bands: [], top: [] }, rows = [];
  const add = (name, text) => rows.push(element("dt", name), element("dd", text));
  fill("parts", shop.bands.map((b) => [[PARTS[b[0]], "text"], [fixed(b[2]), "number"], [fixed(b[3]), "number"], [count(b[1]), "number"]]),
    "Nothing ranked yet.");
  fill("recommended", shop.top.map((t) => [[t[0], "text"], [percent(t[1]), "number"], [count(t[2]), "number"]]), "Nothing recommended yet.");
  add("Coverage: items in any list", percent(shop.coverage));
  add("New items (under 10 events)", percent(shop.new_share));
  add("Lists looked at", count(shop.lists));
  at("shop").replaceChildren(...rows);
}

function showWarnings() {
  const warnings = (data.figures || {}).warnings || [];
  say("warnings", warnings.join(" · "));
  at("warnings").hidden = !warnings.length;
}

function showRanking() {
  const ranking = data.ranking || { influence: {} };
  const kinds = ["co-occurrence", "popularity", "own history", "towers"];
  // in the order of the table: objects put whole numbers first
  const histories = Object.keys(ranking.influence).sort((a, b) => parseInt(a) - parseInt(b));
  fill("influence", histories.map((h) => [[h, "text"], ...kinds.map((kind) => [percent(ranking.influence[h][kind]), "number"])]),
    "Nothing ranked yet.");
  say("towers", ranking.towers || "What the towers add is shown after 1,000 ranked events.");
}

function showState() {
  const saved = data.checkpoint || {}, store = data.store || {}, rows = [];
  const add = (name, text, bad) => rows.push(element("dt", name), element("dd", text, bad ? "bad" : ""));
  add("Checkpoint", known(saved.age_s) ? duration(saved.age_s) + " old" : "none yet");
  add("Not in it", count(saved.unsaved_events) + " events");
  add("Size, time to write", bytes(saved.size_bytes) + ", " + duration(saved.seconds));
  if (saved.failed) add("Failed checkpoints", count(saved.failed), true);
  const running = Math.max(data.now - data.started, 1);
  data.members.forEach((r, k) => add("Trainer " + k, (r.partitions.length ? "partitions " + r.partitions.join(", ") : "no partition")
    + " · waits " + percent(r.waiting_ms / 1000 / running) + " · sends " + bytes(r.sent_bytes / running) + "/s"));
  add("Shared with", store.kind === "none" ? "nobody" : store.kind || "–");
  if (store.kind !== "none") {
    add("Store", store.problem || (store.live ? "responds" : "does not respond"), store.problem || !store.live);
    add("Round trip", duration(store.round_trip_s));
    add("Staleness", duration(store.staleness_s));
    add("Backlog", count(store.backlog_events) + " events");
    const errors = Object.values(store.errors).reduce((sum, n) => sum + n, 0);
    add("Errors", count(errors), errors > 0);
  }
  const published = data.publishing;
  if (published) add("Published", published.problem || duration(published.age_s) + " ago, generation " + count(published.generation), Boolean(published.problem));
  if (data.cache && data.cache.slots) {
    add("Cache slots, distinct", count(data.cache.slots) + ", " + count(data.cache.distinct));
    add("Turnover per refresh", percent(data.cache.turnover));
    add("Overlap with the batch", percent(data.cache.overlap));
    add("Age of its entries", duration(data.cache.age_s));
  }
  at("state").replaceChildren(...rows);
}

// charts --------------------------------------------------------------------------------------------------------------

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

function axis(more) {
  return {
    gridcolor: colour("grid"), linecolor: colour("line"), zeroline: false, fixedrange: true, automargin: true,
    tickfont: { size: 11.5 }, nticks: 5, ...more,
  };
}

function timeAxis(more) {
  const rows = data.timeline.rows, spanS = rows.length ? rows[rows.length - 1][0] - rows[0][0] : 0;
  const tickformat = spanS < 1800 ? "%H:%M:%S" : spanS < 172800 ? "%H:%M" : "%b %d, %H:%M";
  return axis({ type: "date", showgrid: false, nticks: window.innerWidth < 560 ? 4 : 6, tickangle: 0, tickformat, ...more });
}

function layout(more) {
  return {
    paper_bgcolor: "rgba(0,0,0,0)", plot_bgcolor: "rgba(0,0,0,0)", margin: { l: 46, r: 10, t: 26, b: 30 },
    font: { family: "system-ui, sans-serif", size: 12, color: colour("quiet") }, dragmode: false, hovermode: "x unified",
    hoverlabel: { bgcolor: colour("card"), bordercolor: colour("line"), font: { color: colour("text") } },
    legend: { orientation: "h", x: 0, y: 1.02, yanchor: "bottom", font: { size: 12, color: colour("text") } },
    xaxis: timeAxis(), yaxis: axis({ rangemode: "tozero" }), ...more,
  };
}

// A chart without a value has no axes: theirs would be made up.
function nothingYet() {
  const note = { text: "nothing yet", showarrow: false, xref: "paper", yref: "paper", x: 0.5, y: 0.5, font: { size: 14 } };
  return layout({ xaxis: { visible: false }, yaxis: { visible: false }, annotations: [note] });
}

function draw(id, traces, wanted) {
  if (!traces.some((trace) => trace.y.some(known))) {
    traces = [];
    wanted = nothingYet();
  }
  Plotly.react(at(id), traces, wanted, { displayModeBar: false, responsive: true });
}

function column(name) {
  const k = data.timeline.columns.indexOf(name);
  return data.timeline.rows.map((row) => (k < 0 ? null : row[k]));
}

function line(name, y, series, more) {
  return { type: "scatter", mode: "lines", name, x: times(), y, line: { color: colour(series), width: 2 }, ...more };
}

const times = () => data.timeline.rows.map((row) => new Date(1000 * row[0]));
const last = (values) => values.findLast(known);

function drawFlow() {
  const rate = column("events_per_second"), lag = column("lag");
  draw("flow", [
    line("events a second", rate, "series-1", { fill: "tozeroy", fillcolor: colour("series-1") + "22" }),
    line("lag, records", lag, "series-2", { yaxis: "y2" }),
  ], layout({
    xaxis: timeAxis({ anchor: "y2" }),
    yaxis: axis({ rangemode: "tozero", domain: [0.46, 1], nticks: 4 }), yaxis2: axis({ rangemode: "tozero", domain: [0, 0.34], nticks: 3 }),
  }));
  say("flow-text", "Now " + count(last(rate)) + " events a second, " + count(last(lag)) + " records behind.");
}

const NAMES = { model: "model", "model-without-towers": "model without towers", "most-popular": "most popular", "recently-popular": "recently popular", "last-items": "last items", "co-visitation": "co-visitation", counting: "counting", "counting-no-time": "counting without time" };

function drawHits() {
  const prefix = "hit_rate ", names = data.timeline.columns.filter((c) => c.startsWith(prefix)).map((c) => c.slice(prefix.length));
  draw("hits", names.map((name, k) => line(NAMES[name] || name, column(prefix + name), "series-" + Math.min(k + 1, 5),
    name === "model" ? { line: { color: colour("series-1"), width: 2.5 } } : { line: { color: colour("series-" + Math.min(k + 1, 5)), width: 2, dash: k === 1 ? "dash" : "dot" } })),
  layout({ yaxis: axis({ rangemode: "tozero", tickformat: ".2f" }) }));
  const model = last(column(prefix + "model")), f = data.figures || {}, best = f.best_baseline_hit_rate_at_10;
  if (!known(model)) return say("hits-text", "Events are ranked before they are trained; none was yet.");
  const compared = { above: ".", below: ": learning does not pay yet.", equal: ": no difference beyond the noise.", null: "." };
  const beside = known(best) ? ", best baseline (" + NAMES[f.best_baseline] + ") " + fixed(best) + compared[f.against_baseline] : ".";
  say("hits-text", "HR@10 of the latest ranked events: model " + fixed(f.hit_rate_at_10) + " " + worth(f) + beside);
}

function drawBands() {
  const bands = [["head", "series-1"], ["torso", "series-2"], ["tail", "series-3"]];
  draw("bands", bands.map(([band, series]) => line(band, column(band), series,
    { stackgroup: "cache", line: { color: colour(series), width: 0.5 }, fillcolor: colour(series) + "b0" })),
  layout({ yaxis: axis({ range: [0, 1], tickformat: ".0%" }) }));
  const now = bands.map(([band]) => [band, last(column(band))]).filter(([, share]) => known(share));
  say("bands-text", now.length ? "Share of the slots by popularity band, now " + now.map(([band, share]) => band + " " + percent(share)).join(", ") + "." : "The cache is empty.");
}

function drawCurve() {
  const points = (data.cache || { curve: [] }).curve, ranks = points.map((p) => p[0]);
  const some = (k) => points.map((p) => (p[k] > 0 ? p[k] : null));
  const log = { type: "log", dtick: 1, nticks: undefined };
  draw("curve", [
    { ...line("popularity", some(1), "series-5"), x: ranks, line: { color: colour("series-5"), width: 2, dash: "dash" } },
    { ...line("occurrence", some(2), "series-3"), x: ranks, mode: "lines+markers", marker: { size: 4, color: colour("series-3") } },
  ], layout({ xaxis: axis({ ...log, tickformat: "~s", title: { text: "popularity rank", font: { size: 12 }, standoff: 4 } }), yaxis: axis({ ...log, tickformat: "~%", title: { text: "share per item", font: { size: 12 }, standoff: 4 } }), margin: { l: 56, r: 10, t: 26, b: 42 } }));
  say("curve-text", points.length ? "How much of everything resampled falls on items of each rank, beside their share of the events." : "Nothing was resampled yet.");
}

function drawLoss() {
  const loss = column("loss");
  draw("loss", [line("loss", loss, "series-4")], layout({ yaxis: axis({ rangemode: "normal" }), margin: { l: 46, r: 10, t: 10, b: 30 } }));
  say("loss-text", "Latest step: " + fixed(last(loss)) + ".");
}

function show() {
  if (!data) return;
  say("source", "Learning from " + data.source);
  const b = data.build;
  say("build", b.version ? "Streamer " + b.version + " · " + b.method + " on " + b.device + " · torch " + b.torch + " · Python " + b.python : "Streamer");
  document.title = data.figures ? count(data.figures.events_per_second) + "/s · Streamer" : "Streamer";
  showHealth(); showWarnings(); showTiles(); showTables(); showShop(); showRanking(); showState();
  drawFlow(); drawHits(); drawBands(); drawCurve(); drawLoss();
  document.body.dataset.shown = data.now;
}

// asking --------------------------------------------------------------------------------------------------------------

const span = () => document.querySelector("input[name=span]:checked").value;

async function ask() {
  try {
    const answer = await fetch("data.json?span=" + span(), { signal: AbortSignal.timeout(ANSWER_WITHIN_MS), cache: "no-store" });
    if (!answer.ok) throw new Error("status " + answer.status);
    data = await answer.json();
    answeredAt = new Date();
    at("lost").hidden = true;
  } catch {
    lost();
    return;
  }
  show();
}

function lost() {
  const since = answeredAt ? " since " + answeredAt.toLocaleTimeString([], { hour12: false }) + "; the last values stay" : "";
  say("lost", "The trainer has not responded" + since + ". It has ended, or cannot be reached.");
  at("lost").hidden = false;
  at("health").dataset.state = "bad";
  say("health-text", "No answer");
}

async function round() {
  clearTimeout(timer);
  await ask();
  if (!document.hidden) timer = setTimeout(round, EVERY_MS);
}

const resized = new ResizeObserver((entries) => {
  for (const entry of entries) if (entry.target.classList.contains("js-plotly-plot")) Plotly.Plots.resize(entry.target);
});
for (const plot of document.querySelectorAll(".plot")) resized.observe(plot);
document.addEventListener("visibilitychange", () => (document.hidden ? clearTimeout(timer) : round()));
dark.addEventListener("change", show);
for (const input of document.querySelectorAll("input[name=span]")) input.addEventListener("change", round);
round();
