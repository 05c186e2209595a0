/* The whole model: a small heat map for each layer and head. */

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
