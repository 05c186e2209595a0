/* What the parts of the page share, and how it begins. page.html holds all parts in one scope. */

/* The steps of a line's opacity: a weight below the first has no line. Where those of all tokens
   are drawn, the many small ones would be a fog. */
const LEVELS = 200;
const LEAST_OF_ALL = 0.05;
const MANY_TOKENS = 40;
const SHOWN_WEIGHTS = 10;

const byId = (id) => document.getElementById(id);
const data = JSON.parse(byId("attention-data").textContent);
const size = data.tokens.length;
const layers = data.layers.map((entry) => ({ ...entry, weights: decode(entry.weights) }));
const allHeads = [...new Set(layers.flatMap((layer) => layer.heads))].sort((a, b) => a - b);
const cellHeads = new Map(); // button of the whole model to its layer and head
const dark = matchMedia("(prefers-color-scheme: dark)");

const state = {
  view: "heads",
  layer: 0, // place in `layers`
  off: new Set(), // numbers of heads that are switched off
  from: [], // places of the tokens on the left
  to: [], // and on the right
  pointed: null, // {side, token} under the mouse or the keyboard's focus
  kept: null, // {side, token} that was clicked
};

function decode(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  return new Uint16Array(bytes.buffer);
}

function element(name, attributes, ...content) {
  const made = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) made.setAttribute(key, value);
  made.append(...content);
  return made;
}

const weight = (layer, slot, from, to) =>
  layer.weights[(slot * size + from) * size + to] / data.unit;

/* By the golden angle: heads that stand side by side get colours that are far apart. */
const colour = (head, alpha = 1) =>
  `oklch(${dark.matches ? 0.77 : 0.55} 0.15 ${(25 + head * 137.508) % 360} / ${alpha})`;

const sentence = (token) => (data.segments[token] ? "B" : "A");
const named = (token) => `${data.tokens[token]} (${token})`;
const slotsOn = (layer) =>
  layer.heads.map((_, slot) => slot).filter((slot) => !state.off.has(layer.heads[slot]));

/* The place that a key leads to in a grid, or -1. */
function step(place, count, columns, key) {
  const moves = {
    ArrowUp: -columns, ArrowDown: columns, ArrowLeft: -1, ArrowRight: 1,
    Home: -place, End: count - 1 - place,
  };
  const next = place + (moves[key] ?? NaN);
  return next >= 0 && next < count ? next : -1;
}

/* One item of a group is reached by Tab, the others from there by the arrow keys. */
function focusOne(items, place) {
  items.forEach((item, index) => (item.tabIndex = index === place ? 0 : -1));
  items[place].focus();
}

function show(view) {
  state.view = view;
  for (const [name, section] of [["heads", "head-view"], ["model", "model-view"]]) {
    const is = name === view;
    byId(section).hidden = !is;
    byId(`tab-${name}`).setAttribute("aria-selected", String(is));
    byId(`tab-${name}`).tabIndex = is ? 0 : -1;
  }
  for (const part of document.querySelectorAll(".head-only")) part.hidden = view !== "heads";
  byId("cell-note").textContent =
    "Each square is a head: attention goes from the token of the row to that of the column. The " +
    "stronger the colour, the larger the weight (by its square root). Click one for its lines.";
  paint();
}

function paint() {
  if (state.view === "heads") paintHeads();
  else drawCells();
}

function start() {
  data.texts.forEach((text, place) => {
    const name = data.texts.length > 1 ? `Sentence ${"AB"[place]}` : "Text";
    byId("texts").append(
      element("div", {}, element("dt", {}, name), element("dd", {}, text)));
  });
  layers.forEach((layer, place) =>
    byId("layer").append(element("option", { value: place }, String(layer.layer))));
  byId("filter-label").hidden = data.texts.length < 2;
  byId("layer").addEventListener("change", (event) => chooseLayer(Number(event.target.value)));
  byId("filter").addEventListener("change", () => { fillTokens(); paint(); });
  byId("all-heads").addEventListener("click", () => { state.off.clear(); paintHeads(); });
  byId("no-heads").addEventListener("click", () => {
    state.off = new Set(allHeads);
    paintHeads();
  });
  byId("heads").addEventListener("keydown", headKeys);
  byId("cells").addEventListener("keydown", cellKeys);
  for (const side of ["from", "to"]) {
    byId(side).addEventListener("keydown", tokenKeys);
    byId(side).addEventListener("pointerleave", () => point(null));
  }
  for (const view of ["heads", "model"]) {
    byId(`tab-${view}`).addEventListener("click", () => show(view));
    byId(`tab-${view}`).addEventListener("keydown", (event) => {
      if (event.key !== "ArrowLeft" && event.key !== "ArrowRight") return;
      show(view === "heads" ? "model" : "heads");
      byId(`tab-${state.view}`).focus();
    });
  }
  byId("controls").addEventListener("submit", (event) => event.preventDefault());
  dark.addEventListener("change", paint);
  let width = 0;
  new ResizeObserver(() => {
    if (state.view === "heads" && byId("lines").clientWidth !== width) paintTokens();
    width = byId("lines").clientWidth;
  }).observe(byId("lines"));
  fillTokens();
  fillHeads();
  fillCells();
  show("heads");
}
