// Coalescing explorer: which sectors do the three requests of a warp touch in a product of matrices?
const SECTOR_ROW = 32;  // elements in a row of the drawn matrices, four sectors

// Name → lane → [row, column] in the first step of the sum.
function productRequests({x, y, swapped}) {
  const found = {A: [], B: [], C: []};
  for (let lane = 0; lane < Math.min(32, x * y); lane++) {
    const tx = lane % x, ty = Math.floor(lane / x), [row, column] = swapped ? [tx, ty] : [ty, tx];
    found.A.push([row, 0]);
    found.B.push([0, column]);
    found.C.push([row, column]);
  }
  return found;
}

function sectorCounts(state) {
  return Object.fromEntries(Object.entries(productRequests(state)).map(([name, places]) =>
    [name, sectorsOf(places.map(([row, column]) => 4 * (row * SECTOR_ROW + column)), 4)]));
}

function coalescing(box, given) {
  const state = {...given}, figures = el("div", {style: "display: flex; flex-wrap: wrap; gap: .8em"});
  const says = el("p", {role: "status"}), body = el("tbody");
  const colors = {A: "var(--nm-1)", B: "var(--nm-2)", C: "var(--nm-3)"}, what = {A: "load of A", B: "load of B", C: "store to C"};
  const change = (name) => (value) => {
    state[name] = value;
    if (state.x * state.y > 1024) { state[name === "x" ? "y" : "x"] = 1024 / value; controls.x.set(state.x); controls.y.set(state.y); }
    draw();
  };
  const powers = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024];
  const controls = {x: slider("threads along x", powers, state.x, change("x")), y: slider("threads along y", powers, state.y, change("y")),
    swapped: checkbox("threadIdx.x is the row", state.swapped, change("swapped"))};

  function picture(name, places) {
    const touched = new Set(places.map(([row, column]) => `${row} ${Math.floor(column / 8)}`)), first = new Map();
    places.forEach(([row, column], lane) => { if (!first.has(`${row} ${column}`)) first.set(`${row} ${column}`, lane); });
    const svg = el("svg", {viewBox: "-0.3 -0.3 32.6 32.6", width: 228, role: "img", "aria-label": `${what[name]}: ${touched.size} sectors touched`});
    for (let row = 0; row < 32; row++) for (let sector = 0; sector < 4; sector++)
      svg.append(el("rect", {x: 8 * sector, y: row, width: 8, height: 1, fill: touched.has(`${row} ${sector}`) ? colors[name] : "currentColor",
        "fill-opacity": touched.has(`${row} ${sector}`) ? 0.3 : 0.03, stroke: "currentColor", "stroke-opacity": 0.3, "stroke-width": 0.08}));
    for (const place of first.keys()) {
      const [row, column] = place.split(" ").map(Number);
      svg.append(el("rect", {x: column, y: row, width: 1, height: 1, fill: colors[name]}));
    }
    return el("div", {}, el("div", {}, `${what[name]}: ${touched.size} sector${touched.size === 1 ? "" : "s"}`), svg);
  }

  function draw() {
    const requests = productRequests(state), counts = sectorCounts(state), lanes = Math.min(32, state.x * state.y);
    box.sectors = counts;
    figures.replaceChildren(...Object.entries(requests).map(([name, places]) => picture(name, places)));
    body.replaceChildren(...Object.keys(counts).map((name) => {
      const used = new Set(requests[name].map(String)).size * 4 / (32 * counts[name]);
      return el("tr", {}, el("td", {}, what[name]), el("td", {}, String(counts[name])), el("td", {}, `${Math.round(100 * used)}%`));
    }));
    says.textContent = `Block (${state.x}, ${state.y}): the first warp's ${lanes} threads have ${new Set(requests.A.map(String)).size} rows and `
      + `${new Set(requests.B.map(String)).size} columns of C. One step of the sum touches ${counts.A + counts.B} sectors.`;
  }
  box.set = (values) => { Object.assign(state, values); for (const [name, control] of Object.entries(controls)) control.set(state[name]); draw(); return box.sectors; };
  box.append(el("div", {class: "nm-row"}, controls.x, controls.y, controls.swapped), says,
    el("table", {}, el("thead", {}, el("tr", {}, el("th", {}, "request"), el("th", {}, "sectors"), el("th", {}, "used"))), body), figures,
    el("p", {style: "opacity: .75"}, "Full color: an element that a thread of the warp needs. Pale: the rest of a touched sector, which is moved as well. Each box is a sector of 8 floats."));
  draw();
}
start("sectors", coalescing);
