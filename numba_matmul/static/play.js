// A recorded block of a kernel, step by step. The data come from numba_matmul/play.py.
function player(box, told) {
  const {steps, arrays, dims} = told, last = Math.max(0, steps.length - 1);
  const warps = Math.ceil(told.threads / 32), wrong = told.mistake;
  let now = 0, warp = -1, timer = null, showValues = false, pointed = null;

  // Data of a step: threads, elements and values, unpacked when needed.
  const ready = [];
  const step = (i) => ready[i] ||= (() => {
    const [phase, line, array, op, count, ranges, deltas, values, costs] = steps[i], threads = [];
    for (let j = 0; j < ranges.length; j += 2)
      for (let n = 0; n < ranges[j + 1]; n++) threads.push(ranges[j] + n);
    let element = 0;
    const elements = deltas.map((delta) => (element += delta));
    return {phase, line, array, op, count, threads, elements, values, costs,
            warps: [...new Set(threads.map((thread) => thread >> 5))]};
  })();
  // Array → element → its stores: [step, value, thread].
  let stores = null;
  const storesOf = (array, element) => {
    if (!stores) {
      stores = arrays.map(() => new Map());
      steps.forEach((_, i) => {
        const {op, array: to, count, threads, elements, values} = step(i);
        if (op !== "store" && op !== "copy") return;
        elements.forEach((first, j) => {
          for (let n = 0; n < count; n++) {
            const list = stores[to].get(first + n) || [];
            list.push([i, count > 1 ? values[j][n] : values[j], threads[j]]);
            stores[to].set(first + n, list);
          }
        });
      });
    }
    return (stores[array].get(element) || []).filter(([i]) => i <= now).pop();
  };
  const initial = (a, element) => {
    const {values, across, top, left, rows, cols} = arrays[a];
    const row = Math.floor(element / across) - top, col = element % across - left;
    return values && row >= 0 && row < rows && col >= 0 && col < cols ? values[row * cols + col] : null;
  };
  const valueOf = (a, element) => { const stored = storesOf(a, element); return stored ? stored[1] : initial(a, element); };

  // Words
  const threadName = (thread) => {
    const place = [thread % dims[0], Math.floor(thread / dims[0]) % dims[1], Math.floor(thread / dims[0] / dims[1])];
    while (place.length > 1 && dims[place.length - 1] === 1) place.pop();
    return `(${place.join(", ")})`;
  };
  const threadsText = (threads) => threads.length === 1 ? `thread ${threadName(threads[0])}`
    : `${threads.length} threads, ${threadName(threads[0])} to ${threadName(threads.at(-1))}`;
  const indexText = (a, element) => {
    const place = [];
    for (const n of [...arrays[a].shape].reverse()) { place.unshift(element % n); element = Math.floor(element / n); }
    return `${arrays[a].name}[${place.join(", ")}]`;
  };
  const many = (number, word) => `${number} ${word}${number === 1 ? "" : "s"}`;
  const verbs = {load: "load", store: "store", copy: "start of an asynchronous copy", fails: "it fails here"};
  const told_ = (i) => {
    const {phase, line, array, op, threads, costs, warps: taking, count} = step(i);
    const where = `Step ${i + 1} of ${steps.length}, ${phase ? `after barrier ${phase}` : "before any barrier"}: line ${line}`;
    if (op === "fails") return `${where}, ${threadsText(threads)} stopped by a mistake.`;
    const {name, space} = arrays[array];
    const chosen = warp < 0 ? costs : costs.filter((_, j) => taking[j] === warp);
    if (!chosen.length) return `${where}. Warp ${warp} isn't part of it.`;
    const low = Math.min(...chosen), high = Math.max(...chosen);
    const unit = space === "global" ? "sector" : "wavefront";
    const cost = high === 0 ? "" : low === high ? `, ${many(high, unit)} ${warp < 0 && warps > 1 ? "per warp" : ""}`.trimEnd()
      : `, ${low} to ${high} ${unit}s per warp`;
    return `${where}, ${space} ${verbs[op]} of ${name}${count > 1 ? `, ${count} elements per thread` : ""}: `
      + `${threadsText(warp < 0 ? threads : threads.filter((t) => t >> 5 === warp))}${cost}.`;
  };

  // Controls
  const go = (to) => { now = Math.max(0, Math.min(last, to)); draw(); };
  const stop = () => { clearInterval(timer); timer = null; draw(); };
  const run = () => {
    if (timer) return stop();
    if (now === last) now = 0;
    timer = setInterval(() => (now === last ? stop() : go(now + 1)), 450);
    draw();
  };
  const nextPhase = () => {
    const from = step(now).phase, to = steps.findIndex(([phase]) => phase > from);
    go(to < 0 ? last : to);
  };
  const previousPhase = () => {
    const from = steps.findIndex(([phase]) => phase === step(now).phase);
    go(from < now ? from : steps.findIndex(([phase]) => phase === step(Math.max(0, from - 1)).phase));
  };
  const button = (text, label, act) => el("button", {type: "button", "aria-label": label, title: label, click: act}, text);
  const playing = button("▶ play", "play", run);
  const range = el("input", {type: "range", min: 0, max: last, value: 0, "aria-label": "step", style: "width: 100%",
    input: () => go(+range.value)});
  const marks = el("svg", {viewBox: "0 0 1000 12", preserveAspectRatio: "none", "aria-hidden": true,
    style: "width: 100%; height: 10px; padding: 0 8px"});
  const at = (i) => 1000 * i / Math.max(1, last);
  steps.forEach(([phase], i) => {
    if (i && phase > steps[i - 1][0])
      marks.append(el("rect", {x: at(i - 0.5) - 1.5, y: 0, width: 3, height: 12, fill: "currentColor", opacity: 0.55}));
  });
  for (const i of wrong ? wrong.steps : [])
    marks.append(el("rect", {x: at(i) - 5, y: 0, width: 10, height: 12, fill: "var(--nm-bad)"}));
  const chooser = el("select", {"aria-label": "warp", change: () => { warp = +chooser.value; draw(); }},
    el("option", {value: -1}, "all warps"), ...Array.from({length: warps}, (_, w) => el("option", {value: w}, `warp ${w}`)));
  const status = el("p", {role: "status"}), readout = el("p", {role: "status", style: "min-height: 2.9em; opacity: .85"});
  const printed = el("pre", {class: "nm-code", style: "max-height: 8em", role: "group", "aria-label": "printed", tabindex: 0});

  // Source
  const lines = told.lines.map((text, i) => el("span", {}, `${String(told.first + i).padStart(3)}  ${text}`));
  if (wrong) for (const i of wrong.steps) lines[step(i).line - told.first]?.classList.add("nm-wrong");
  const source = el("pre", {class: "nm-code", tabindex: 0, role: "group", "aria-label": "source", style: "max-height: 15em; position: relative"}, ...lines);

  // Arrays. Cells are drawn as paths: one for what was touched since the barrier, one for other warps, one for now.
  const path = (cells) => cells.map(([x, y, w = 1]) => `M${x} ${y}h${w}v1h${-w}z`).join("");
  const views = arrays.map((array, a) => {
    const {rows, cols, top, left, across, color} = array;
    const size = Math.max(1.5, Math.min(cols <= 20 && arrays.length > 3 ? 17 : 26, rows <= 8 ? 560 / cols : cols <= 20 ? 300 / cols : 230 / cols, 300 / rows));
    const layer = (more) => el("path", {fill: color, ...more});
    const before = layer({opacity: 0.22}), others = layer({opacity: 0.5}), chosen = layer({});
    const outline = el("path", {fill: "none", stroke: "var(--nm-bad)", "stroke-width": 3 / size});
    const cursor = el("path", {fill: "none", stroke: "currentColor", "stroke-width": 2.5 / size});
    const grid = [];
    if (size >= 6) {
      for (let x = 0; x <= cols; x++) grid.push(`M${x} 0v${rows}`);
      for (let y = 0; y <= rows; y++) grid.push(`M0 ${y}h${cols}`);
    }
    const texts = el("g", {"aria-hidden": true});
    const svg = el("svg", {viewBox: `-0.1 -0.1 ${cols + 0.2} ${rows + 0.2}`, width: cols * size, height: rows * size, tabindex: 0,
      role: "application", style: "touch-action: manipulation; cursor: crosshair"},
      el("rect", {width: cols, height: rows, fill: "currentColor", opacity: 0.05}),
      before, others, chosen, texts,
      el("path", {d: grid.join(""), stroke: "currentColor", opacity: 0.25, "stroke-width": 0.7 / size}),
      el("rect", {width: cols, height: rows, fill: "none", stroke: "currentColor", opacity: 0.6, "stroke-width": 1 / size}),
      outline, cursor);
    const whereOf = (element) => [element % across - left, Math.floor(element / across) - top];
    const point = (x, y) => {
      pointed = [a, Math.max(0, Math.min(cols - 1, x)), Math.max(0, Math.min(rows - 1, y))];
      draw();
    };
    const pointer = (event) => {
      const box = svg.getBoundingClientRect();
      point(Math.floor((event.clientX - box.left) / box.width * (cols + 0.2) - 0.1),
            Math.floor((event.clientY - box.top) / box.height * (rows + 0.2) - 0.1));
    };
    svg.addEventListener("pointermove", pointer);
    svg.addEventListener("click", pointer);
    svg.addEventListener("focus", () => { if (!pointed || pointed[0] !== a) point(0, 0); });
    svg.addEventListener("keydown", (event) => {
      const move = {ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1]}[event.key];
      if (!move) return;
      event.preventDefault();
      event.stopPropagation();
      const [, x, y] = pointed && pointed[0] === a ? pointed : [a, 0, 0];
      point(x + move[0], y + move[1]);
    });
    const crop = rows * cols < array.shape.reduce((p, n) => p * n, 1)
      ? `, rows ${top} to ${top + rows - 1}, columns ${left} to ${left + cols - 1}` : "";
    const caption = `${array.name} (${array.space}), ${array.shape.join("×")}${crop}`;
    const figure = el("div", {style: "min-width: 0; max-width: 100%"}, el("div", {}, caption), el("div", {class: "nm-figure"}, svg));
    return {svg, figure, before, others, chosen, outline, cursor, texts, size, whereOf, caption};
  });

  function drawArray(a) {
    const {svg, before, others, chosen, outline, cursor, texts, size, whereOf, caption} = views[a], {rows, cols, top, left, across} = arrays[a];
    const {phase, array, op, elements, threads, count} = step(now);
    const cells = new Map(), rest = [], mine = [];
    let touched = "";
    if (array === a) elements.forEach((element, i) => {
      const [x, y] = whereOf(element), here = warp < 0 || threads[i] >> 5 === warp;
      (here ? mine : rest).push([x, y, count]);
      if (here) for (let n = 0; n < count; n++) if (!cells.has(element + n)) cells.set(element + n, threads[i]);
    });
    const seen = new Set();
    for (let i = now - 1; i >= 0 && steps[i][0] === phase; i--) {
      if (steps[i][2] !== a) continue;
      const one = step(i);
      one.elements.forEach((element, j) => {
        if (warp >= 0 && one.threads[j] >> 5 !== warp) return;
        for (let n = 0; n < one.count; n++) seen.add(element + n);
      });
    }
    touched = path([...seen].map(whereOf));
    before.setAttribute("d", touched);
    others.setAttribute("d", path(rest));
    chosen.setAttribute("d", path(mine));
    const bad = wrong && wrong.at && wrong.at[0] === a ? [whereOf(wrong.at[1])] : [];
    outline.setAttribute("d", path(bad));
    cursor.setAttribute("d", pointed && pointed[0] === a ? path([[pointed[1], pointed[2]]]) : "");
    texts.replaceChildren();
    let longest = 1;
    const write = (x, y, text, ink) => {
      const letters = Math.min(0.55, 1.45 / longest);
      if (letters * size >= 7.5) texts.append(el("text", {x: x + 0.5, y: y + 0.5, "font-size": letters, "text-anchor": "middle",
        "dominant-baseline": "central", style: ink}, text));
    };
    const ink = ["#0072B2", "#009E73"].includes(arrays[a].color) ? "fill: white" : "fill: black";
    if (showValues) {
      longest = 5;
      for (let y = 0; y < rows && rows * cols <= 1600; y++) for (let x = 0; x < cols; x++) {
        const element = (y + top) * across + x + left, value = valueOf(a, element);
        if (value !== null) write(x, y, typeof value === "number" ? String(+value.toPrecision(2)) : value, cells.has(element) ? ink : "");
      }
    } else if (cells.size <= 600) {
      longest = String(Math.max(...cells.values())).length;
      for (const [element, thread] of cells) write(...whereOf(element), String(thread), ink);
    }
    svg.setAttribute("aria-label", `${caption}. ${cells.size ? `${many(cells.size, "element")} touched now. ` : ""}Arrow keys move over its elements.`);
  }

  function describePointed() {
    if (!pointed) return "Point at an element, or go to an array with the Tab key: its value appears here.";
    const [a, x, y] = pointed, {across, top, left} = arrays[a], element = (y + top) * across + x + left;
    const {array, op, elements, threads, count} = step(now);
    const touching = array === a ? threads.filter((_, i) => elements[i] <= element && element < elements[i] + count) : [];
    const stored = storesOf(a, element), value = valueOf(a, element);
    const from = stored ? `, from ${threadsText([stored[2]])} in step ${stored[0] + 1}`
      : value === null ? "" : ", from before the launch";
    return `${indexText(a, element)} = ${value === null ? "not written yet" : value}${from}`
      + (touching.length ? `; ${verbs[op]} now by ${threadsText(touching)}` : "") + ".";
  }

  function draw() {
    const {line} = step(now);
    range.value = now;
    range.setAttribute("aria-valuetext", `step ${now + 1}`);
    playing.textContent = timer ? "❚❚ pause" : "▶ play";
    playing.setAttribute("aria-label", timer ? "pause" : "play");
    playing.title = timer ? "pause" : "play";
    status.setAttribute("aria-live", timer ? "off" : "polite");
    status.textContent = told_(now) + (wrong && wrong.steps.includes(now) ? " ✗ Here is the mistake." : "");
    readout.textContent = describePointed();
    lines.forEach((span, i) => {
      const on = told.first + i === line;
      if (on !== span.classList.contains("nm-now")) {
        span.classList.toggle("nm-now", on);
        if (on) source.scrollTop = Math.max(0, span.offsetTop - source.clientHeight / 2);
      }
    });
    arrays.forEach((_, a) => drawArray(a));
    printed.textContent = told.printed.filter(([i, thread]) => i <= now && (warp < 0 || thread >> 5 === warp))
      .map(([, thread, text]) => `thread ${threadName(thread)}: ${text}`).slice(-200).join("\n");
    printed.scrollTop = printed.scrollHeight;
  }

  box.addEventListener("keydown", (event) => {
    if (event.target === chooser || event.ctrlKey || event.metaKey || event.altKey) return;
    const act = {ArrowRight: () => go(now + 1), ArrowLeft: () => go(now - 1), Home: () => go(0), End: () => go(last), n: nextPhase,
      " ": event.target.localName === "button" || event.target.type === "checkbox" ? null : run}[event.key];
    if (!act) return;
    event.preventDefault();
    event.stopPropagation();
    act();
  });
  const values = checkbox("values", false, (on) => { showValues = on; draw(); });
  const title = el("p", {}, el("b", {}, `${told.name}[${told.grid}, ${told.block}]`),
    `, block ${told.index}: ${many(told.threads, "thread")}, ${many(warps, "warp")}`,
    told.cut ? ". This is the beginning: the block does more." : "");
  box.append(title);
  if (wrong) box.append(el("p", {class: "nm-bad"}, `✗ ${wrong.text} `,
    ...wrong.steps.map((i) => button(`step ${i + 1}`, `go to step ${i + 1}`, () => go(i)))));
  box.append(el("div", {class: "nm-row"}, playing, button("‹ step", "one step back", () => go(now - 1)),
    button("step ›", "one step on", () => go(now + 1)), button("« barrier", "back to the last barrier", previousPhase),
    button("barrier »", "on to the next barrier", nextPhase), chooser, values),
    el("div", {}, marks, range), status,
    source, el("div", {style: "display: flex; flex-wrap: wrap; gap: .8em 1.2em; align-items: flex-start"}, ...views.map((view) => view.figure)),
    readout, el("p", {style: "opacity: .75"}, "Full color: touched in this step, by the thread whose number it bears. Pale: touched since the last barrier. "
      + "Keys: ← and → for a step, n for the next barrier, space to play."));
  if (told.printed.length) box.append(el("p", {}, "Printed so far:"), printed);
  if (wrong && wrong.steps.length) now = Math.max(0, wrong.steps[0] - 1);
  if (steps.length) draw();
  box.player = {go, nextPhase, get now() { return now; }};
}
start("play", player);
