// A loop, cycle by cycle: which warp issues, and what the others wait for.
const CYCLE_FILLS = {i: ["#0072B2", 1], s: ["currentColor", 0.14], m: ["#E69F00", 0.75], t: ["#009E73", 0.45]};

function cycles(box, {kernels, waiting}) {
  const state = {kernel: 0, now: 0};
  const figure = el("div", {class: "nm-figure"}), body = el("tbody"), says = el("p", {role: "status"});
  const of = () => kernels[state.kernel], last = of().states.length - 1;
  const choice = el("select", {"aria-label": "kernel", change: () => { state.kernel = Number(choice.value); draw(); }},
    ...kernels.map(({name}, number) => el("option", {value: number}, name)));
  const move = (now) => { state.now = Math.max(0, Math.min(last, now)); place.set(state.now); draw(); };
  const place = slider("cycle", [...Array(last + 1).keys()], 0, (now) => { state.now = now; draw(); });
  place.querySelector("input").style.width = "min(26em, 60vw)";

  function told() {
    const {loop, at, states, served} = of(), {now} = state, chosen = states[now].indexOf("i");
    const who = (number) => `warp ${number}`, parts = [];
    parts.push(chosen < 0 ? "No warp can issue." : `Warp ${chosen} issues ${loop[at[now][chosen]].text}, instruction ${at[now][chosen] + 1}.`);
    for (const [cause, text] of [["t", "could, and wait for their turn"], ["m", "wait for memory"], ["s", "wait for a stall count"]]) {
      const some = [...states[now]].map((one, number) => one === cause ? number : -1).filter((number) => number >= 0);
      if (some.length) parts.push(`${some.length === 1 ? "Warp" : "Warps"} ${some.join(", ")} ${some.length === 1 ? text.replace("wait", "waits").replace("their", "its") : text}.`);
    }
    parts.push(served[now] === null ? "The memory unit is idle." : `The memory unit serves ${who(served[now])}.`);
    return `Cycle ${now}. ${parts.join(" ")}`;
  }

  function draw() {
    const {loop, at, states, served} = of(), {now} = state, warps = at[0].length;
    says.textContent = told();
    body.replaceChildren(...loop.map((op, number) => el("tr", {style: states[now].includes("i") && at[now][states[now].indexOf("i")] === number ? "background: color-mix(in srgb, currentColor 14%, transparent)" : null},
      el("td", {}, `${number + 1} ${op.text}`), el("td", {}, String(op.stall)), el("td", {}, op.waits.join(", ") || "–"),
      el("td", {}, op.sets === null ? "–" : String(op.sets)),
      el("td", {}, at[now].map((next, warp) => next === number ? warp : null).filter((warp) => warp !== null).join(" ")))));
    const svg = el("svg", {viewBox: `-7 -1.2 ${last + 8.5} ${warps + 2.6}`, width: 700, style: "min-width: 645px", role: "img",
      "aria-label": `Rows: the warps and the memory unit. Columns: cycles 0 to ${last}, shown up to ${now}.`});
    const write = (x, y, text, more) => svg.append(el("text", {x, y, "font-size": 1, ...more}, text));
    for (let cycle = 0; cycle <= last; cycle += 10) write(cycle + 0.5, -0.35, String(cycle), {"text-anchor": "middle"});
    for (let warp = 0; warp < warps; warp++) write(-0.5, warp + 0.8, `warp ${warp}`, {"text-anchor": "end"});
    write(-0.5, warps + 1.1, "memory unit", {"text-anchor": "end"});
    for (let cycle = 0; cycle <= now; cycle++) {
      for (let warp = 0; warp < warps; warp++) {
        const [fill, opacity] = CYCLE_FILLS[states[cycle][warp]];
        svg.append(el("rect", {x: cycle, y: warp, width: 1, height: 0.94, fill, "fill-opacity": opacity}));
        if (states[cycle][warp] === "i") write(cycle + 0.5, warp + 0.83, String(at[cycle][warp] + 1), {"text-anchor": "middle", style: "fill: white"});
      }
      if (served[cycle] !== null) {
        svg.append(el("rect", {x: cycle, y: warps + 0.3, width: 1, height: 0.94, fill: "#D55E00", "fill-opacity": 0.8}));
        write(cycle + 0.5, warps + 1.13, String(served[cycle]), {"text-anchor": "middle", style: "fill: white"});
      }
    }
    svg.append(el("rect", {x: now, y: -0.1, width: 1, height: warps + 1.5, fill: "none", stroke: "currentColor", "stroke-width": 0.12}),
      el("rect", {x: 0, y: -0.1, width: last + 1, height: warps + 1.5, fill: "none", stroke: "currentColor", "stroke-opacity": 0.3, "stroke-width": 0.06}));
    figure.replaceChildren(svg);
    figure.scrollLeft = figure.scrollWidth * (now + 7) / (last + 8.5) - figure.clientWidth / 2;  // the cycle is seen
  }
  const key = (color, opacity, text) => el("span", {style: "white-space: nowrap"}, el("span", {style: `display: inline-block; width: 1em; height: 1em; vertical-align: middle; background: ${color}; opacity: ${opacity}; margin-right: .35em`}), text);
  box.set = ({kernel = state.kernel, now = state.now}) => { state.kernel = kernel; choice.value = kernel; move(now); return [of().states[state.now], of().served[state.now]]; };
  box.append(el("div", {class: "nm-row"}, el("label", {}, "kernel", choice)),
    el("div", {class: "nm-row"}, el("button", {type: "button", "aria-label": "one cycle back", click: () => move(state.now - 1)}, "◀"),
      el("button", {type: "button", "aria-label": "one cycle on", click: () => move(state.now + 1)}, "▶"), place), says, figure,
    el("div", {class: "nm-row"}, ...Object.entries(waiting).map(([cause, text]) => key(...CYCLE_FILLS[cause], cause === "i" ? "issues (the number of its instruction)" : `waits for ${text}`)),
      key("#D55E00", 0.8, "the memory unit serves a warp")),
    el("table", {}, el("thead", {}, el("tr", {}, ...["instruction", "stall", "waits for", "sets", "next of warps"].map((text) => el("th", {}, text)))), body));
  draw();
}
start("cycles", cycles);
