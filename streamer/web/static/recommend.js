"use strict";
// Asks every second and shows what comes.

const COUNT = 10;
let asked = null; // {user} or {recent: [...]}
let status = null;
let shown = []; // items of the last answer
let titles = {}; // of items, as far as they have any
let timer = null;

const titled = (item) => (titles[item] ? titles[item] + " (" + item + ")" : item);

async function ask(path, options = {}) {
  const token = sessionStorage.getItem("token");
  const headers = { ...(options.body ? { "Content-Type": "application/json" } : {}), ...(token ? { Authorization: "Bearer " + token } : {}) };
  const answer = await fetch(path, { ...options, headers, signal: AbortSignal.timeout(ANSWER_WITHIN_MS) });
  at("token-form").hidden = answer.status !== 401;
  const body = await answer.json();
  if (!answer.ok) throw new Error(typeof body.detail === "string" ? body.detail : "the server refused: " + answer.status);
  return body;
}

// what is shown -------------------------------------------------------------------------------------------------------

function showStatus() {
  const fresh = (kind) => status.freshness[kind];
  const wait = (title, kind) => tile(title, duration(fresh(kind).p50), "99%: " + duration(fresh(kind).p99));
  at("tiles").replaceChildren(
    tile("Age of the model", duration(status.age_s), "generation " + count(status.generation) + ", step " + count(status.step)),
    tile("Items", count(status.items), count(status.users) + " users"),
    wait("Event to recent items", "recent_items_s"),
    wait("New item to recommended", "new_item_s"),
    wait("Event to vectors", "vectors_s"),
    tile("Events not learned yet", count(status.events_not_learned), count(status.hidden_items) + " items hidden"),
  );
  at("health").dataset.state = status.ready && !status.reason ? "good" : "waiting";
  at("health-text").textContent = status.ready ? "ready" : "not ready";
  say("reason", status.reason);
  at("reason").hidden = !status.reason;
  showExamples();
}

function showExamples() {
  const users = status.example_users || [];
  at("examples").hidden = !users.length;
  if (at("examples").dataset.users === JSON.stringify(users)) return;
  at("examples").dataset.users = JSON.stringify(users);
  const buttons = users.map((user) => {
    const made = element("button", user, "plain");
    made.type = "button";
    made.addEventListener("click", () => { at("user").value = user; begin({ user }); });
    return made;
  });
  at("examples").replaceChildren(element("span", "for example "), ...buttons);
}

function parts(reasons) {
  const found = Object.entries(reasons.parts).filter(([, part]) => Math.abs(part) >= 0.005);
  found.sort((a, b) => b[1] - a[1]);
  return found.map(([kind, part]) => kind + " " + (part > 0 ? "+" : "") + part.toFixed(2)).join(", ");
}

function row(found) {
  const made = element("tr", undefined, shown.length && !shown.includes(found.item) ? "new" : "");
  const near = found.reasons.recent.slice(0, 3).map((each) => titled(each.item)).join(", ");
  const actions = element("td");
  if (status.writes_events && asked.user !== undefined) {
    const click = element("button", "Click");
    click.addEventListener("click", () => act(() => ask("events", { method: "POST", body: JSON.stringify({ user: asked.user, item: found.item }) })));
    actions.append(click);
  }
  const hide = element("button", "Hide", "plain");
  hide.addEventListener("click", () => act(() => ask("hidden/" + encodeURIComponent(found.item), { method: "PUT" })));
  actions.append(hide);
  made.append(element("td", titled(found.item)), element("td", found.score.toFixed(3), "number"), element("td", parts(found.reasons)), element("td", near), actions);
  return named(made, at("found"));
}

function showAnswer(answer) {
  const who = known(answer.user) ? "user " + answer.user : "a session";
  at("about").textContent = "For " + who + ", from step " + count(answer.step) + ", " + duration(answer.age_s) + " old. " + (answer.note || "");
  titles = answer.titles;
  at("recent").textContent = answer.recent.length ? "Had last: " + answer.recent.slice(0, COUNT).map(titled).join(", ") : "";
  const items = answer.items.map((found) => found.item);
  const same = items.length === shown.length && items.every((item, k) => item === shown[k]);
  if (!same || !at("found").tBodies[0].rows.length) at("found").tBodies[0].replaceChildren(...answer.items.map(row));
  shown = items;
}

// what is asked -------------------------------------------------------------------------------------------------------

async function refresh() {
  clearTimeout(timer);
  try {
    status = await ask("status");
    showStatus();
    if (asked) {
      const body = JSON.stringify({ ...asked, k: COUNT, explain: true, exclude_seen: !at("seen").checked });
      showAnswer(await ask("recommendations", { method: "POST", body }));
    }
    at("lost").hidden = true;
  } catch (error) {
    at("lost").textContent = error.message;
    at("lost").hidden = false;
    at("health").dataset.state = "bad";
    at("health-text").textContent = "no answer";
  }
  timer = setTimeout(refresh, EVERY_MS);
}

async function act(doing) {
  try {
    await doing();
  } catch (error) {
    at("lost").textContent = error.message;
    at("lost").hidden = false;
    return;
  }
  refresh();
}

function begin(question) {
  asked = question;
  shown = [];
  at("found").tBodies[0].replaceChildren();
  refresh();
}

async function showInterface() {
  const described = await ask("openapi.json");
  const rows = Object.entries(described.paths).flatMap(([path, methods]) =>
    Object.entries(methods).map(([method, about]) => {
      const made = element("tr");
      const names = (about.parameters || []).map((parameter) => parameter.name);
      const body = about.requestBody ? ["JSON body"] : [];
      made.append(element("td", method.toUpperCase() + " " + path.replace(":path", "")), element("td", [...names, ...body].join(", ")), element("td", about.description || about.summary));
      return named(made, at("api"));
    }),
  );
  at("api").tBodies[0].replaceChildren(...rows);
}

at("user-form").addEventListener("submit", (event) => {
  event.preventDefault();
  if (at("user").value) begin({ user: at("user").value });
});
at("items-form").addEventListener("submit", (event) => {
  event.preventDefault();
  const recent = at("items").value.split("\n").map((line) => line.trim()).filter(Boolean);
  if (recent.length) begin({ recent });
});
at("token-form").addEventListener("submit", (event) => {
  event.preventDefault();
  sessionStorage.setItem("token", at("token").value);
  refresh();
  showInterface().catch(() => {});
});
at("seen").addEventListener("change", () => asked && begin(asked));
refresh();
showInterface().catch(() => {});
