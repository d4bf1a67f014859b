// Tile explorer: what the sizes of a tile cost. Python gives what kernel 5 takes with each; see numba_matmul/explore.py.
const TILE_CASES = {
  "lesson 3: 32×32, one result per thread": {bm: 32, bn: 32, bk: 32, tm: 1, tn: 1},
  "lesson 4: 64×64, a column of eight": {bm: 64, bn: 64, bk: 8, tm: 8, tn: 1},
  "lesson 5: 128×128, eight by eight": {bm: 128, bn: 128, bk: 8, tm: 8, tn: 8},
  "64×64, four by four": {bm: 64, bn: 64, bk: 16, tm: 4, tn: 4},
  "256×128, sixteen by eight": {bm: 256, bn: 128, bk: 8, tm: 16, tn: 8},
};

// Values that a multiply-add needs: read from shared memory, and copied from global memory.
function sharedReads({tm, tn}) { return 1 / tm + 1 / tn; }
function globalReads({bm, bn}) { return 1 / bm + 1 / bn; }

// Rounds of blocks for a square product, if `blocks` fit on each multiprocessor.
function wavesOf({bm, bn}, size, blocks, multiprocessors) {
  return Math.ceil(size / bm) * Math.ceil(size / bn) / (blocks * multiprocessors);
}

function tilePicture({bm, bn, bk, tm, tn}) {
  const gap = 8, left = bk + gap, top = bk + gap, lanes = Math.min(32, bm * bn / (tm * tn)), across = bn / tn;
  const svg = el("svg", {viewBox: `-1 -1 ${left + bn + 2} ${top + bm + 2}`, width: Math.round(1.3 * (left + bn)), role: "img",
    "aria-label": `The tiles of a block: A ${bm}×${bk}, B ${bk}×${bn}, C ${bm}×${bn}; a thread computes ${tm}×${tn} of C`});
  const box = (x, y, width, height, color, opacity) => svg.append(el("rect", {x, y, width, height, fill: color, "fill-opacity": opacity,
    stroke: "currentColor", "stroke-width": opacity < 0.5 ? 0.6 : 0}));
  box(0, top, bk, bm, "var(--nm-1)", 0.25);
  box(left, 0, bn, bk, "var(--nm-2)", 0.25);
  box(left, top, bn, bm, "var(--nm-3)", 0.12);
  for (let lane = lanes - 1; lane >= 0; lane--)
    box(left + (lane % across) * tn, top + Math.floor(lane / across) * tm, tn, tm, "var(--nm-3)", lane ? 0.35 : 1);
  box(0, top, bk, tm, "var(--nm-1)", 1);
  box(left, 0, tn, bk, "var(--nm-2)", 1);
  for (const [x, y, name] of [[bk / 2, top + bm / 2, "A"], [left + bn / 2, bk / 2, "B"], [left + bn / 2, top + bm / 2, "C"]])
    svg.append(el("text", {x, y, "text-anchor": "middle", "dominant-baseline": "central", "font-size": 14}, name));
  return svg;
}

function tileExplorer(box, {given, sizes, found, reasons, limits, gpu, multiprocessors, warps}) {
  const state = {size: 4096, ...given}, names = Object.keys(sizes);
  const says = el("p", {role: "status"}), figure = el("div", {class: "nm-figure", style: "min-width: 9em"}), body = el("tbody");
  const what = {bm: "BM, rows of C", bn: "BN, columns of C", bk: "BK, along k", tm: "TM, rows per thread", tn: "TN, columns per thread"};
  const controls = {};
  const change = (name) => (value) => { state[name] = value; cases.value = nameOf(); draw(); };
  for (const name of names) controls[name] = slider(what[name], sizes[name], state[name], change(name));
  controls.size = slider("m = n", [512, 1024, 2048, 4096, 4097, 8192], state.size, change("size"));
  const nameOf = () => Object.keys(TILE_CASES).find((name) => names.every((size) => TILE_CASES[name][size] === state[size])) || "";
  const cases = el("select", {"aria-label": "example", change: () => box.set(TILE_CASES[cases.value])},
    el("option", {value: "", hidden: true}, "your own"), ...Object.keys(TILE_CASES).map((name) => el("option", {value: name}, name)));
  cases.value = nameOf();

  function draw() {
    const entry = found[names.reduce((at, name) => at * sizes[name].length + sizes[name].indexOf(state[name]), 0)];
    const text = `${state.bm}×${state.bn}×${state.bk}, ${state.tm}×${state.tn} results per thread`;
    figure.replaceChildren();
    body.replaceChildren();
    if (typeof entry === "number") {
      says.textContent = `${text}: kernel 5 can't use it, because ${reasons[entry]}.`;
      box.counts = {refused: reasons[entry]};
      return;
    }
    const [threads, shared, registers, spills, blocks, limiter] = entry, total = Math.ceil(state.size / state.bm) * Math.ceil(state.size / state.bn);
    const waves = wavesOf(state, state.size, blocks, multiprocessors), last = waves % 1 || 1, held = blocks * Math.ceil(threads / 32);
    box.counts = {threads, shared, registers, blocks, limiter: limits[limiter], shared_reads: sharedReads(state), global_reads: globalReads(state), waves};
    says.textContent = `${text}: ${+sharedReads(state).toFixed(4)} values from shared memory per multiply-add, ${held} warps, ${+waves.toFixed(2)} waves.`;
    const number = (value) => value.toLocaleString("en-US", {maximumFractionDigits: 4});
    body.replaceChildren(...[
      ["threads in a block", number(threads)],
      ["results of a thread", number(state.tm * state.tn)],
      ["values read from shared memory, per multiply-add", number(sharedReads(state))],
      ["values copied from global memory, per multiply-add", number(globalReads(state))],
      ["shared memory of a block", `${number(shared / 1024)} KB`],
      ["registers of a thread", `${registers}${spills ? ", and some values spill" : ""}`],
      ["blocks on a multiprocessor", `${blocks}, limited by ${limits[limiter]}`],
      ["warps on a multiprocessor", `${held} of ${warps}`],
      [`blocks for ${state.size}×${state.size}`, number(total)],
      [`waves on ${multiprocessors} multiprocessors`, `${number(+waves.toFixed(2))}; the last is ${Math.round(100 * last)}% full`],
    ].map(([name, value]) => el("tr", {}, el("th", {scope: "row"}, name), el("td", {}, value))));
    figure.append(tilePicture(state));
  }
  box.set = (values) => { Object.assign(state, values); for (const [name, control] of Object.entries(controls)) control.set(state[name]); cases.value = nameOf(); draw(); return box.counts; };
  box.append(el("div", {class: "nm-row"}, el("label", {}, "example", cases)),
    el("div", {class: "nm-row"}, ...names.map((name) => controls[name]), controls.size), says,
    el("div", {class: "nm-row", style: "align-items: flex-start"}, el("table", {}, body), figure),
    el("p", {style: "opacity: .75"}, `Registers: what the compiler gives kernel 5 with this tile. Full color: the results of thread 0, and what it reads. Pale green: the other results of its warp. Multiprocessors: one ${gpu}.`));
  draw();
}
start("tiles", tileExplorer);
