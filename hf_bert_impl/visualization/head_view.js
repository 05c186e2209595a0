/* The heads of one layer: tokens on both sides, and lines between them. */

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
    element("p", {},
      element("strong", {}, `${direction} “${data.tokens[now.token]}” (${now.token})`),
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
