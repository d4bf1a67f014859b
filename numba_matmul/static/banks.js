// Bank-conflict explorer: which banks does a warp's request use, and how many wavefronts does it take?
const BANK_CASES = {
  "32 words of a row": {width: 32, padding: 0, first: "row", group: 32, step: 1, rows: 1, bits: 32, swizzle: false},
  "a column of a 32×32 tile": {width: 32, padding: 0, first: "row", group: 1, step: 1, rows: 1, bits: 32, swizzle: false},
  "kernel 6 stores A": {width: 128, padding: 0, first: "column", group: 2, step: 1, rows: 4, bits: 32, swizzle: false},
  "kernel 6 loads B": {width: 128, padding: 0, first: "row", group: 16, step: 8, rows: 0, bits: 128, swizzle: false},
  "16-byte pieces of a column": {width: 32, padding: 0, first: "row", group: 1, step: 4, rows: 1, bits: 128, swizzle: false},
};

// Lane → first byte.
function bankStarts({width, padding, first, group, step, rows, swizzle}) {
  const starts = new Map();
  for (let lane = 0; lane < 32; lane++) {
    const inside = lane % group, outside = Math.floor(lane / group);
    const row = rows * (first === "row" ? outside : inside);
    let column = step * (first === "row" ? inside : outside);
    if (swizzle && width % 32 === 0) column = ((column >> 2) ^ (row % 8)) * 4 + column % 4;
    starts.set(lane, 4 * (row * (width + padding) + column));
  }
  return starts;
}

function banks(box, given) {
  const state = {...BANK_CASES["a column of a 32×32 tile"], ...given};
  const figure = el("div", {class: "nm-figure"}), count = el("p", {role: "status", style: "font-size: 1.1em"}), note = el("p");
  const stops = {width: [4, 8, 16, 32, 64, 128], padding: [0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16], group: [1, 2, 4, 8, 16, 32],
    step: [1, 2, 3, 4, 5, 6, 7, 8, 16, 32], rows: [0, 1, 2, 3, 4, 8], bits: [32, 64, 128]};
  const names = {width: "words in a row", padding: "padding", group: "lanes in a group", step: "words per step across",
    rows: "rows per step down", bits: "bits per lane"};
  const controls = {};
  const change = (name) => (value) => { state[name] = value; cases.value = ""; draw(); };
  for (const name of Object.keys(stops)) controls[name] = slider(names[name], stops[name], state[name], change(name));
  controls.swizzle = checkbox("swizzle", state.swizzle, change("swizzle"));
  const first = el("select", {"aria-label": "a group's lanes go", change: () => change("first")(first.value)},
    el("option", {value: "row"}, "along a row"), el("option", {value: "column"}, "down a column"));
  controls.first = el("label", {}, "a group's lanes go", first);
  controls.first.set = (value) => { first.value = value; };
  controls.first.set(state.first);
  const cases = el("select", {"aria-label": "example", change: () => {
    Object.assign(state, BANK_CASES[cases.value]);
    for (const [name, control] of Object.entries(controls)) control.set(state[name]);
    draw();
  }}, el("option", {value: "", hidden: true}, "your own"), ...Object.keys(BANK_CASES).map((name) => el("option", {value: name}, name)));
  cases.value = Object.keys(BANK_CASES).find((name) => Object.entries(BANK_CASES[name]).every(([key, value]) => state[key] === value)) || "";

  function draw() {
    const {bits, rows, step, width, padding, group, swizzle} = state, size = bits / 8, starts = bankStarts(state);
    controls.swizzle.querySelector("input").disabled = width % 32 !== 0;
    figure.textContent = "";
    if ([...starts.values()].some((start) => start % size)) {
      count.textContent = `Not allowed: ${bits} bits must start at a multiple of ${size} bytes, and lane `
        + `${[...starts].find(([, start]) => start % size)[0]} doesn't.`;
      note.textContent = "";
      box.wavefronts = null;
      return;
    }
    const parts = partsOf(starts, size), total = wavefrontsOf(starts, size);
    box.wavefronts = total;
    count.textContent = `${total} wavefront${total === 1 ? "" : "s"} for one request of the warp`;
    const least = parts.reduce((sum, part) => sum + Math.ceil(wordsOf(part, size).size / 32), 0);
    note.textContent = `Lane 0 starts at word ${starts.get(0) / 4}, lane 1 at word ${starts.get(1) / 4}, lane 2 at word ${starts.get(2) / 4}, lane 31 at word ${starts.get(31) / 4}. `
      + (parts.length > 1 ? `The warp is served in ${parts.length} parts, because ${bits} bits per lane are too many at once. ` : "")
      + (total > least ? `Without conflicts it would take ${least}.` : "There are no conflicts.");
    const svg = el("svg", {viewBox: `-1.2 -1.3 33.4 ${total + 1.6}`, width: 690, role: "img", style: "min-width: 683px",
      "aria-label": `${total} rows, one per wavefront, over the 32 banks. Each cell bears the lane that gets its word.`});
    for (let bank = 0; bank < 32; bank += 4)
      svg.append(el("text", {x: bank + 0.5, y: -0.35, "font-size": 0.62, "text-anchor": "middle"}, String(bank)));
    svg.append(el("text", {x: 31.9, y: -0.35, "font-size": 0.62, "text-anchor": "end"}, "banks"));
    let top = 0;
    for (const part of parts) {
      const depth = new Array(32).fill(0), wanted = wordsOf(part, size);
      for (const [word, lanes] of wanted) {
        const bank = word % 32, y = top + depth[bank]++;
        svg.append(el("rect", {x: bank, y, width: 1, height: 1, fill: "#56B4E9", "fill-opacity": y === top ? 1 : 0.3, stroke: "currentColor", "stroke-width": 0.04}),
          el("text", {x: bank + 0.5, y: y + 0.54, "font-size": lanes.length > 1 ? 0.44 : 0.56, "text-anchor": "middle", "dominant-baseline": "central",
            style: y === top ? "fill: black" : ""}, lanes.length > 1 ? `${lanes[0]}…` : String(lanes[0])));
      }
      const deep = depthOf(wanted);
      for (let y = 0; y < deep; y++)
        svg.append(el("rect", {x: 0, y: top + y, width: 32, height: 1, fill: "none", stroke: "currentColor", opacity: 0.35, "stroke-width": 0.03}));
      top += deep;
      svg.append(el("line", {x1: 0, x2: 32, y1: top, y2: top, stroke: "currentColor", "stroke-width": 0.1}));
    }
    figure.append(svg);
  }
  box.set = (values) => { Object.assign(state, values); for (const [name, control] of Object.entries(controls)) control.set(state[name]); draw(); return box.wavefronts; };
  box.append(el("div", {class: "nm-row"}, el("label", {}, "example", cases)),
    el("div", {class: "nm-row"}, controls.width, controls.padding, controls.bits, controls.swizzle),
    el("div", {class: "nm-row"}, controls.group, controls.first, controls.step, controls.rows), count, figure, note,
    el("p", {style: "opacity: .75"}, "Each row is a wavefront, and each cell a word with the first lane that needs it. Pale: it waits, because its bank is busy with another word. A thick line ends a part."));
  draw();
}
start("banks", banks);
