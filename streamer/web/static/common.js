"use strict";
// What both pages need. Everything from events is set as text, never as markup.

const EVERY_MS = 1000;
const ANSWER_WITHIN_MS = 5000;

// numbers -------------------------------------------------------------------------------------------------------------

const whole = new Intl.NumberFormat("en-US", { maximumFractionDigits: 0 });
const short = new Intl.NumberFormat("en-US", { notation: "compact", maximumFractionDigits: 1 });
const known = (x) => x !== null && x !== undefined;
const count = (x) => (known(x) ? (Math.abs(x) < 1e6 ? whole.format(x) : short.format(x)) : "–");
const fixed = (x, digits = 3) => (known(x) ? x.toFixed(digits) : "–");
const percent = (x) => (known(x) ? (100 * x).toFixed(x < 0.1 ? 1 : 0) + "%" : "–");
const clock = (s) => new Date(1000 * s).toLocaleTimeString([], { hour12: false });

function duration(s) {
  if (!known(s)) return "–";
  if (s < 0.001) return (1e6 * s).toFixed(0) + " µs";
  if (s < 1) return (1e3 * s).toFixed(s < 0.01 ? 1 : 0) + " ms";
  if (s < 120) return s.toFixed(s < 10 ? 1 : 0) + " s";
  if (s < 7200) return (s / 60).toFixed(0) + " min";
  return s < 172800 ? (s / 3600).toFixed(1) + " h" : whole.format(s / 86400) + " days";
}

function bytes(x) {
  if (!known(x)) return "–";
  const units = ["B", "kB", "MB", "GB", "TB"];
  let k = 0;
  while (x >= 1000 && k < units.length - 1) { x /= 1000; k += 1; }
  return x.toFixed(k && x < 100 ? 1 : 0) + " " + units[k];
}

// the document --------------------------------------------------------------------------------------------------------

const at = (id) => document.getElementById(id);

function element(name, text, kind) {
  const made = document.createElement(name);
  if (text !== undefined) made.textContent = text;
  if (kind) made.className = kind;
  return made;
}

function say(id, text) {
  const node = at(id);
  if (node.textContent !== text) node.textContent = text;
}

// On a phone each cell of a table that is stacked says its column.
function named(row, table) {
  const names = [...table.tHead.rows[0].cells].map((cell) => cell.textContent.trim());
  [...row.cells].forEach((cell, k) => { cell.dataset.name = names[k]; });
  return row;
}

function tile(name, value, note) {
  const made = element("div");
  made.append(element("dt", name), element("dd", value, "value"), element("dd", note || "", "note"));
  return made;
}
