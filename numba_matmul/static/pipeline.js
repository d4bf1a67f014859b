// Pipeline stepper: k tiles are copied into a ring of stages and multiplied. Who waits, and what if nobody did?
const PIPELINE_CASES = {
  "one stage, as in lesson 10": {stages: 1, copy: 6, multiply: 3, landed: true, empty: true},
  "double buffering, lesson 11": {stages: 2, copy: 3, multiply: 3, landed: true, empty: true},
  "slower copies": {stages: 2, copy: 7, multiply: 2, landed: true, empty: true},
  "a ring of four, lessons 12 to 17": {stages: 4, copy: 6, multiply: 2, landed: true, empty: true},
  "nobody waits for copies": {stages: 2, copy: 6, multiply: 3, landed: false, empty: true},
  "nobody waits for empty stages": {stages: 2, copy: 3, multiply: 3, landed: true, empty: false},
};

// When each k tile's copy starts and lands, and when its multiplication begins and ends. Lesson 17 draws the same.
// A producer that doesn't wait starts one copy per unit of time.
function ringTimes({stages, copy, multiply, tiles, landed = true, empty = true}) {
  const rows = [];
  let free = 0;
  for (let tile = 0; tile < tiles; tile++) {
    const start = !empty ? tile : tile < stages ? 0 : rows[tile - stages][3];
    const begin = landed ? Math.max(start + copy, free) : free;
    free = begin + multiply;
    rows.push([start, start + copy, begin, free]);
  }
  return rows;
}

// Where a stage is written while it's read, or before, or read before its tile is there: [time, text].
function ringRaces(rows, stages) {
  const found = [];
  rows.forEach(([start, land, begin, end], tile) => {
    if (begin < land) found.push([begin, `the consumers read k tile ${tile} from stage ${tile % stages} at time ${begin}, but its copy `
      + (begin < start ? `only starts at ${start}` : `lands at ${land}`)]);
    const before = tile - stages;
    if (before >= 0 && start < rows[before][3]) found.push([start, `the copy of k tile ${tile} overwrites stage ${before % stages} from time ${start} on, `
      + `but the consumers need k tile ${before} there until ${rows[before][3]}`]);
  });
  return found.sort((a, b) => a[0] - b[0]);
}

function pipeline(box, given) {
  const state = {tiles: 8, time: 0, ...given}, figure = el("div", {class: "nm-figure"}), says = el("p", {role: "status"});
  const sum = el("p"), wrong = el("div"), controls = {};
  const change = (name) => (value) => { state[name] = value; if (name !== "time") cases.value = ""; draw(); };
  const stops = (first, last) => Array.from({length: last - first + 1}, (_, i) => first + i);
  controls.stages = slider("stages", stops(1, 6), state.stages, change("stages"));
  controls.copy = slider("time of a copy", stops(1, 12), state.copy, change("copy"));
  controls.multiply = slider("time to multiply", stops(1, 6), state.multiply, change("multiply"));
  controls.landed = checkbox("consumers wait until a tile has landed", state.landed, change("landed"));
  controls.empty = checkbox("the producer waits until a stage is empty", state.empty, change("empty"));
  const at = el("input", {type: "range", min: 0, max: 1, value: 0, "aria-label": "time", style: "flex: 1; min-width: 8em",
    input: () => change("time")(Number(at.value))});
  const step = (by) => () => { state.time = Math.min(Math.max(0, state.time + by), Number(at.max)); draw(); };
  const cases = el("select", {"aria-label": "example", change: () => { state.time = 0; box.set(PIPELINE_CASES[cases.value]); }},
    el("option", {value: "", hidden: true}, "your own"), ...Object.keys(PIPELINE_CASES).map((name) => el("option", {value: name}, name)));
  cases.value = Object.keys(PIPELINE_CASES).find((name) => Object.entries(PIPELINE_CASES[name]).every(([key, value]) => state[key] === value)) || "";

  // What everybody does from `now` on.
  function told(rows, now) {
    const next = rows.findIndex(([start]) => start > now), reading = rows.findIndex(([, , begin, end]) => begin <= now && now < end);
    const flying = rows.map((row, tile) => [row, tile]).filter(([[start, land]]) => start <= now && now < land).map(([, tile]) => tile);
    const waiting = rows.findIndex(([, , begin]) => begin > now), end = rows[rows.length - 1][3];
    return [
      flying.length ? `In flight: k tile${flying.length > 1 ? "s" : ""} ${flying.join(", ")}.` : "No copy is in flight.",
      next < 0 ? "All copies have started." : state.empty ? `The producer waits until stage ${next % state.stages} is empty.` : "The producer waits for nothing.",
      reading >= 0 ? `The consumers multiply k tile ${reading}.` : waiting >= 0 && now < end ? `The consumers wait for k tile ${waiting}, which lands at ${rows[waiting][1]}.` : "The consumers are done.",
    ].join(" ");
  }

  function draw() {
    const rows = ringTimes(state), races = ringRaces(rows, state.stages), end = rows[rows.length - 1][3];
    const last = Math.max(end, ...rows.map(([, land]) => land)), busy = state.tiles * state.multiply;
    at.max = last;
    state.time = Math.min(state.time, last);
    at.value = state.time;
    at.setAttribute("aria-valuetext", `time ${state.time} of ${last}`);
    box.rows = rows;
    box.races = races;
    sum.textContent = `${state.tiles} k tiles take ${end} units of time. The consumers wait for ${end - busy} of them.`
      + (races.length ? "" : end === busy + state.copy ? " They wait only for the first copy." : "");
    says.textContent = `Time ${state.time}. ${told(rows, state.time)}`;
    wrong.className = races.length ? "nm-bad" : "";
    wrong.replaceChildren(...(races.length ? [`${races.length} race${races.length > 1 ? "s" : ""}. The first: ${races[0][1]}.`,
      el("button", {type: "button", click: () => { state.time = races[0][0]; draw(); }}, "go there")] : []));
    const scale = Math.max(18, Math.min(30, 620 / last)), top = 18, height = 34, left = 70, width = left + last * scale + 10;
    const svg = el("svg", {viewBox: `0 0 ${width} ${top + (state.stages + 1) * height + 20}`, width, style: `min-width: ${Math.min(width, 480)}px; max-width: none`,
      role: "img", "aria-label": `Time from left to right, one row per stage: copies, and below them multiplications. ${sum.textContent}`});
    const x = (time) => left + time * scale, text = (x0, y, content, more = {}) => svg.append(el("text", {x: x0, y, "font-size": 12, "dominant-baseline": "central", ...more}, content));
    for (let stage = 0; stage < state.stages; stage++) {
      text(0, top + stage * height + height / 2 - 2, `stage ${stage}`);
      svg.append(el("line", {x1: left, x2: x(last), y1: top + (stage + 1) * height - 2, y2: top + (stage + 1) * height - 2, stroke: "currentColor", opacity: 0.2}));
    }
    text(0, top + state.stages * height + 12, "consumers");
    rows.forEach(([start, land, begin, done], tile) => {
      const y = top + (tile % state.stages) * height, early = begin < land, over = tile >= state.stages && start < rows[tile - state.stages][3];
      const bar = (from, to, y0, fill, bad, color) => {
        svg.append(el("rect", {x: x(from) + 0.5, y: y0, width: (to - from) * scale - 1, height: 13, fill, stroke: bad ? "var(--nm-bad)" : "currentColor",
          "stroke-width": bad ? 3 : 0.5, "stroke-opacity": bad ? 1 : 0.5}, el("title", {}, `k tile ${tile}: ${from} to ${to}`)));
        text((x(from) + x(to)) / 2, y0 + 7, String(tile), {"text-anchor": "middle", "font-size": 10, style: `fill: ${color}`});
      };
      bar(start, land, y, "#CC79A7", over, "black");
      bar(begin, done, y + 15, "#555555", early, "white");
      bar(begin, done, top + state.stages * height + 5, "#555555", early, "white");
    });
    for (let time = 0; time <= last; time += last > 30 ? 10 : 5) text(x(time), 7, String(time), {"text-anchor": "middle", "font-size": 10});
    svg.append(el("line", {x1: x(state.time), x2: x(state.time), y1: 14, y2: top + (state.stages + 1) * height, stroke: "var(--nm-bad)", "stroke-width": 2}));
    figure.replaceChildren(svg);
    figure.scrollLeft = x(state.time) - figure.clientWidth / 2;
  }
  box.set = (values) => { Object.assign(state, values); for (const [name, control] of Object.entries(controls)) control.set(state[name]); draw(); return {rows: box.rows, races: box.races}; };
  box.append(el("div", {class: "nm-row"}, el("label", {}, "example", cases)),
    el("div", {class: "nm-row"}, controls.stages, controls.copy, controls.multiply), el("div", {class: "nm-row"}, controls.landed, controls.empty),
    sum, wrong, figure,
    el("div", {class: "nm-row"}, el("button", {type: "button", click: step(-1)}, "step back"), at, el("button", {type: "button", click: step(1)}, "step")),
    says, el("p", {style: "opacity: .75"}, "Pink: a copy into a stage. Dark: the consumers multiply what's in it. Numbers: which k tile. The units of time are made up, and a copy takes as long as you say, however many are in flight."));
  draw();
}
start("pipeline", pipeline);
