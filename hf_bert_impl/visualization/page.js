"use strict";
(() => {
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

  /* ---- the heads of a layer ------------------------------------------------------------------ */

  function fillTokens() {
    const [first, second] = byId("filter").value;
    const places = data.tokens.map((_, token) => token);
    const keep = (name) => places.filter((token) => !name || sentence(token) === name);
    state.from = keep(first);
    state.to = keep(second);
    state.pointed = state.kept = null;
    const row = size > MANY_TOKENS ? 19 : 24;
    document.documentElement.style.setProperty("--row", `${row}px`);
    for (const side of ["from", "to"]) {
      byId(side).replaceChildren(...state[side].map((token, place) => {
        const item = element("li", {
          role: "option",
          "aria-selected": "false",
          "aria-label": data.tokens[token] +
            `, token ${token}` + (data.texts.length > 1 ? `, sentence ${sentence(token)}` : ""),
          title: data.tokens[token],
          tabindex: place ? -1 : 0,
        });
        const before = state[side][place - 1];
        if (place && sentence(before) !== sentence(token)) item.classList.add("sentence-start");
        item.append(
          element("span", { class: "token" }, data.tokens[token]),
          element("span", { class: "place" }, String(token)),
          element("span", { class: "bars" }),
        );
        item.addEventListener("pointerenter", () => point({ side, token }));
        item.addEventListener("focus", () => point({ side, token }));
        item.addEventListener("blur", () => point(null));
        item.addEventListener("click", () => keepToken(side, token));
        return item;
      }));
    }
  }

  function fillHeads() {
    const layer = layers[state.layer];
    byId("heads").replaceChildren(...layer.heads.map((head, place) => {
      const chip = element("button", { type: "button", tabindex: place ? -1 : 0 }, String(head));
      chip.setAttribute("aria-label", `head ${head}`);
      chip.addEventListener("click", (event) => {
        if (event.shiftKey) onlyHead(head);
        else if (!state.off.delete(head)) state.off.add(head);
        paintHeads();
      });
      return chip;
    }));
  }

  function onlyHead(head) {
    state.off = new Set(allHeads.filter((other) => other !== head));
  }

  function point(where) {
    state.pointed = where;
    paintTokens();
  }

  function keepToken(side, token) {
    const same = state.kept && state.kept.side === side && state.kept.token === token;
    state.kept = same ? null : { side, token };
    paintTokens();
  }

  const current = () => state.pointed ?? state.kept;

  function paintHeads() {
    const layer = layers[state.layer];
    byId("layer").value = String(state.layer);
    [...byId("heads").children].forEach((chip, slot) => {
      const head = layer.heads[slot];
      const on = !state.off.has(head);
      chip.setAttribute("aria-pressed", String(on));
      chip.style.borderColor = colour(head);
      chip.style.background = on ? colour(head) : "";
    });
    paintTokens();
  }

  function paintTokens() {
    const now = current();
    const layer = layers[state.layer];
    const slots = slotsOn(layer);
    for (const side of ["from", "to"]) {
      [...byId(side).children].forEach((item, place) => {
        const token = state[side][place];
        const is = (where) => Boolean(where) && where.side === side && where.token === token;
        item.classList.toggle("current", is(now));
        item.setAttribute("aria-selected", String(is(state.kept)));
        item.lastChild.style.background =
          now && now.side !== side ? bars(layer, slots, now, token) : "";
      });
    }
    drawLines(layer, slots, now);
    tellWeights(layer, slots, now);
  }

  /* The weight between the current token and another one, whichever side it is on. */
  const between = (layer, slot, now, token) =>
    now.side === "from" ? weight(layer, slot, now.token, token)
      : weight(layer, slot, token, now.token);

  /* A stripe a head, as opaque as its weight. */
  function bars(layer, slots, now, token) {
    if (!slots.length) return "";
    const share = 100 / slots.length;
    const stops = slots.map((slot, place) => {
      const tint = colour(layer.heads[slot], between(layer, slot, now, token).toFixed(3));
      return `${tint} ${place * share}% ${(place + 1) * share}%`;
    });
    return `linear-gradient(90deg, ${stops.join(", ")})`;
  }

  function drawLines(layer, slots, now) {
    const canvas = byId("lines");
    const row = parseFloat(getComputedStyle(document.documentElement).getPropertyValue("--row"));
    const width = canvas.clientWidth;
    const height = Math.max(state.from.length, state.to.length) * row;
    // Browsers refuse canvases that are higher than 32,767 pixels.
    const scale = Math.min(window.devicePixelRatio || 1, 32000 / height);
    canvas.style.height = `${height}px`;
    canvas.width = Math.round(width * scale);
    canvas.height = Math.round(height * scale);
    const shown = now ? `of ${data.tokens[now.token]}` : "between all tokens";
    canvas.setAttribute("aria-label", `layer ${layer.layer}: lines ${shown}, ${slots.length} heads`);
    const context = canvas.getContext("2d");
    context.scale(scale, scale);
    context.lineWidth = now ? 2 : 1.5;
    const least = now ? 1 : LEAST_OF_ALL * LEVELS;
    for (const slot of slots) {
      const paths = new Map(); // all lines of one opacity are drawn at once
      state.from.forEach((from, left) => {
        if (now && now.side === "from" && now.token !== from) return;
        state.to.forEach((to, right) => {
          if (now && now.side === "to" && now.token !== to) return;
          const level = Math.floor(weight(layer, slot, from, to) * LEVELS);
          if (level < least) return;
          if (!paths.has(level)) paths.set(level, new Path2D());
          paths.get(level).moveTo(0, (left + 0.5) * row);
          paths.get(level).lineTo(width, (right + 0.5) * row);
        });
      });
      context.strokeStyle = colour(layer.heads[slot]);
      for (const [level, path] of paths) {
        context.globalAlpha = level / LEVELS;
        context.stroke(path);
      }
    }
  }

  function tellWeights(layer, slots, now) {
    const place = byId("weights");
    if (!slots.length) return place.replaceChildren(element("p", {}, "No head is switched on."));
    const heads = slots.length === 1 ? `head ${layer.heads[slots[0]]}`
      : `mean of ${slots.length} heads`;
    if (!now) {
      const note = `Layer ${layer.layer}, ${heads}. Choose a token to read its weights.`;
      return place.replaceChildren(element("p", {}, note));
    }
    const others = state[now.side === "from" ? "to" : "from"].map((token) => {
      const sum = slots.reduce((total, slot) => total + between(layer, slot, now, token), 0);
      return { token, mean: sum / slots.length };
    });
    const total = others.reduce((sum, other) => sum + other.mean, 0);
    others.sort((one, other) => other.mean - one.mean);
    const rows = others.slice(0, SHOWN_WEIGHTS).map(({ token, mean }) =>
      element("tr", {}, element("td", {}, named(token)), element("td", {}, mean.toFixed(3))));
    const direction = now.side === "from" ? "From" : "To";
    place.replaceChildren(
      element("p", {}, element("strong", {}, `${direction} ${named(now.token)}`),
        `, layer ${layer.layer}, ${heads}; all shown: ${total.toFixed(3)}`),
      element("table", {}, ...rows),
    );
  }

  function chooseLayer(place) {
    if (place < 0 || place >= layers.length) return;
    state.layer = place;
    fillHeads();
    paintHeads();
  }

  function tokenKeys(event) {
    const side = event.currentTarget.id;
    const items = [...byId(side).children];
    const place = items.indexOf(event.target);
    const other = side === "from" ? "to" : "from";
    if (place < 0 || event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Enter" || event.key === " ") keepToken(side, state[side][place]);
    else if (event.key === "Escape") { state.kept = null; event.target.blur(); paintTokens(); }
    else if (event.key === "PageUp") chooseLayer(state.layer - 1);
    else if (event.key === "PageDown") chooseLayer(state.layer + 1);
    else if (event.key === "ArrowLeft" || event.key === "ArrowRight") {
      const there = [...byId(other).children];
      const wanted = event.key === "ArrowRight" ? "to" : "from";
      if (wanted === other) focusOne(there, Math.min(place, there.length - 1));
    } else {
      const next = step(place, items.length, 1, event.key);
      if (next < 0) return;
      focusOne(items, next);
    }
    event.preventDefault();
  }

  function headKeys(event) {
    const chips = [...byId("heads").children];
    const next = step(chips.indexOf(event.target), chips.length, 1, event.key);
    if (next < 0) return;
    focusOne(chips, next);
    event.preventDefault();
  }

  /* ---- the whole model ----------------------------------------------------------------------- */

  function fillCells() {
    const top = element("tr", {}, element("td", {}),
      ...allHeads.map((head) => element("th", { scope: "col" }, `head ${head}`)));
    const rows = layers.map((layer, place) =>
      element("tr", {}, element("th", { scope: "row" }, `layer ${layer.layer}`),
        ...allHeads.map((head) => cell(layer, place, head))));
    byId("cells").replaceChildren(element("thead", {}, top), element("tbody", {}, ...rows));
    const first = byId("cells").querySelector("button");
    first.tabIndex = 0;
  }

  function cell(layer, place, head) {
    const slot = layer.heads.indexOf(head);
    if (slot < 0) return element("td", { class: "gone" }, "–");
    const button = element("button", { type: "button", tabindex: -1 },
      element("canvas", { "aria-hidden": "true" }));
    button.setAttribute("aria-label", `layer ${layer.layer}, head ${head}`);
    cellHeads.set(button, { layer, slot, head });
    const tell = () => tellCell(layer, slot, head);
    button.addEventListener("pointerenter", tell);
    button.addEventListener("focus", tell);
    button.addEventListener("click", () => {
      onlyHead(head);
      chooseLayer(place);
      show("heads");
      byId("layer").focus();
    });
    return element("td", {}, button);
  }

  function drawCells() {
    const brush = document.createElement("canvas").getContext("2d");
    for (const button of byId("cells").querySelectorAll("button")) {
      const { layer, slot, head } = cellHeads.get(button);
      brush.clearRect(0, 0, 1, 1);
      brush.fillStyle = colour(head);
      brush.fillRect(0, 0, 1, 1);
      const tint = brush.getImageData(0, 0, 1, 1).data;
      const canvas = button.firstChild;
      canvas.width = state.to.length;
      canvas.height = state.from.length;
      canvas.classList.toggle("few", Math.max(canvas.width, canvas.height) <= 64);
      const context = canvas.getContext("2d");
      const image = context.createImageData(canvas.width, canvas.height);
      let at = 0;
      for (const from of state.from) {
        for (const to of state.to) {
          image.data.set(tint, at);
          image.data[at + 3] = Math.round(255 * Math.sqrt(weight(layer, slot, from, to)));
          at += 4;
        }
      }
      context.putImageData(image, 0, 0);
    }
  }

  function tellCell(layer, slot, head) {
    const means = state.to.map((to) => {
      const sum = state.from.reduce((total, from) => total + weight(layer, slot, from, to), 0);
      return { to, mean: sum / state.from.length };
    });
    means.sort((one, other) => other.mean - one.mean);
    const most = means.slice(0, 3).map(({ to, mean }) => `${named(to)} ${mean.toFixed(3)}`);
    byId("cell-note").textContent =
      `Layer ${layer.layer}, head ${head}: on average most goes to ${most.join(", ")}.`;
  }

  function cellKeys(event) {
    const cells = [...byId("cells").querySelectorAll("tbody td")];
    const place = cells.indexOf(event.target.parentElement);
    const next = step(place, cells.length, allHeads.length, event.key);
    const button = next < 0 ? null : cells[next].querySelector("button");
    if (place < 0 || next < 0) return;
    event.preventDefault();
    if (!button) return; // a head that was pruned
    event.target.tabIndex = -1;
    button.tabIndex = 0;
    button.focus();
  }

  /* ---- the whole page ------------------------------------------------------------------------ */

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

  start();
})();
