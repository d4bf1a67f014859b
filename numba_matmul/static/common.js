// What every widget uses: elements, controls, colors that suit a light and a dark page.
const NM_STYLE = `
.nm { --nm-1: #0072B2; --nm-2: #E69F00; --nm-3: #009E73; --nm-bad: #D55E00; color: inherit; line-height: 1.45;
  border: 1px solid color-mix(in srgb, currentColor 30%, transparent); border-radius: 6px; padding: .7em .8em;
  margin: .4em 0; font-size: .9rem; max-width: 100%; box-sizing: border-box; }
.nm * { box-sizing: border-box; }
.nm p { margin: .3em 0; }
.nm .nm-row { display: flex; flex-wrap: wrap; gap: .35em .8em; align-items: center; margin: .4em 0; }
.nm button, .nm select { font: inherit; color: inherit; background: color-mix(in srgb, currentColor 8%, transparent);
  border: 1px solid color-mix(in srgb, currentColor 45%, transparent); border-radius: 4px; padding: .15em .6em; min-height: 2em; }
.nm select { min-width: 0; max-width: 100%; }
.nm option { color: CanvasText; background: Canvas; }
.nm .nm-bad button { margin: 0 .3em; }
.nm button:disabled { opacity: .45; }
.nm button:not(:disabled) { cursor: pointer; }
.nm :focus-visible { outline: 2px solid currentColor; outline-offset: 1px; }
.nm input[type=text] { font: inherit; color: inherit; background: transparent; border: 1px solid currentColor; border-radius: 4px; padding: .15em .4em; min-height: 2em; }
.nm input[aria-invalid=true] { outline: 2px solid var(--nm-bad); }
.nm input[type=range] { accent-color: #777; vertical-align: middle; }
.nm label { display: inline-flex; align-items: center; gap: .4em; min-width: 0; max-width: 100%; }
.nm output { font-variant-numeric: tabular-nums; min-width: 2ch; }
.nm svg { display: block; max-width: 100%; height: auto; overflow: visible; color: inherit; }
.nm svg text { fill: currentColor; font-family: inherit; }
.nm .nm-figure { overflow-x: auto; padding: 2px; }
.nm .nm-bad { color: inherit; border-left: 4px solid var(--nm-bad); padding: .2em .6em; overflow-wrap: anywhere; }
.nm .nm-code { font: .85em/1.5 monospace; overflow: auto; margin: 0; padding: .3em 0; white-space: pre; background: none; border: 0; color: inherit; }
.nm .nm-code span { display: block; padding: 0 .5em; border-left: 3px solid transparent; }
.nm .nm-code .nm-now { background: color-mix(in srgb, currentColor 14%, transparent); border-color: currentColor; }
.nm .nm-code .nm-wrong { border-color: var(--nm-bad); text-decoration: underline wavy var(--nm-bad); }
.nm table { border-collapse: collapse; font-size: inherit; width: auto; display: table; margin: .3em 0; }
.nm th, .nm td { text-align: right; padding: .15em .6em; border-bottom: 1px solid color-mix(in srgb, currentColor 20%, transparent); background: none; color: inherit; }
.nm th:first-child, .nm td:first-child { text-align: left; font-weight: normal; }
`;

const NM_SVG = ["svg", "g", "path", "rect", "text", "line", "title"];

// An element with attributes (functions are listeners) and children.
function el(tag, attributes = {}, ...children) {
  const made = NM_SVG.includes(tag) ? document.createElementNS("http://www.w3.org/2000/svg", tag)
                                    : document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) {
    if (typeof value === "function") made.addEventListener(name, value);
    else if (value !== null && value !== undefined && value !== false) made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children);
  return made;
}

// A slider with a label and its value; `change` gets the number. `values`: the stops.
function slider(label, values, value, change) {
  const shown = el("output", {}, String(value));
  const input = el("input", {type: "range", min: 0, max: values.length - 1, "aria-label": label,
    value: Math.max(0, values.indexOf(value)), "aria-valuetext": String(value)});
  input.addEventListener("input", () => {
    const now = values[input.value];
    shown.textContent = now;
    input.setAttribute("aria-valuetext", now);
    change(now);
  });
  const made = el("label", {}, label, input, shown);
  made.set = (now) => { input.value = values.indexOf(now); shown.textContent = now; input.setAttribute("aria-valuetext", now); };
  return made;
}

function checkbox(label, value, change) {
  const input = el("input", {type: "checkbox", checked: value, change: () => change(input.checked)});
  const made = el("label", {}, input, label);
  made.set = (now) => { input.checked = now; };
  return made;
}

// Sectors of global memory that a request touches: first bytes of its lanes, bytes of each.
function sectorsOf(starts, size) {
  return new Set(starts.flatMap((start) => [Math.floor(start / 32), Math.floor((start + size - 1) / 32)])).size;
}

// The parts of a warp that shared memory serves one after another; see numba_matmul/microscope.py.
function partsOf(starts, size) {
  const lanes = {4: 32, 8: 16, 16: 8}[Math.max(size, 4)];
  let parts = [];
  for (let first = 0; first < 32; first += lanes)
    parts.push(new Map([...starts].filter(([lane]) => first <= lane && lane < first + lanes)));
  if (lanes < 32) {
    const joined = [];
    for (let i = 0; i < parts.length; i += 2) {
      const both = new Map([...parts[i], ...parts[i + 1]]);
      const shared = (step) => [...both].every(([lane, start]) => !both.has(lane ^ step) || both.get(lane ^ step) === start);
      joined.push(...(shared(1) || shared(2) ? [both] : [parts[i], parts[i + 1]]));
    }
    parts = joined;
  }
  return parts.filter((part) => part.size);
}

// Word → lanes that need it, for one part.
function wordsOf(part, size) {
  const words = new Map();
  for (const [lane, start] of part)
    for (let i = 0; i < Math.max(1, Math.floor(size / 4)); i++) {
      const word = Math.floor(start / 4) + i;
      words.set(word, [...(words.get(word) || []), lane]);
    }
  return words;
}

function depthOf(words) {
  const depth = new Array(32).fill(0);
  for (const word of words.keys()) depth[word % 32]++;
  return Math.max(...depth);
}

function wavefrontsOf(starts, size) {
  return partsOf(starts, size).reduce((sum, part) => sum + depthOf(wordsOf(part, size)), 0);
}

async function unpacked(text) {
  const bytes = Uint8Array.from(atob(text), (letter) => letter.charCodeAt(0));
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  return JSON.parse(await new Response(stream).text());
}

// Start a widget in each of its boxes that hasn't been started.
async function start(name, build) {
  if (!document.querySelector("style[data-nm]")) document.head.append(el("style", {"data-nm": true}, NM_STYLE));
  for (const box of document.querySelectorAll(`.nm[data-widget="${name}"]:not([data-on])`)) {
    box.dataset.on = "";
    const data = await unpacked(box.dataset.with);
    box.textContent = "";
    build(box, data);
    const reachable = new ResizeObserver((found) => {  // what scrolls can be reached with the keyboard
      for (const {target} of found) {
        if (target.scrollWidth > target.clientWidth + 1) target.tabIndex = 0;
        else target.removeAttribute("tabindex");
      }
    });
    for (const figure of box.querySelectorAll(".nm-figure, .nm-code")) reachable.observe(figure);
  }
}
