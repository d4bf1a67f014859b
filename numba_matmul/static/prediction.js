// A prediction on the website: type your numbers, and only then see the measured ones. In a notebook, `ask` does this.

// As numba_matmul/draw.py writes numbers: four digits, or whole if larger.
function numberText(value) {
  if (Math.abs(value) >= 1000) return Math.round(value).toLocaleString("en-US");
  const digits = Number(value.toPrecision(4));
  if (digits && Math.abs(digits) < 1e-4) {
    const [front, power] = digits.toExponential().split("e-");
    return `${front}e-${power.padStart(2, "0")}`;
  }
  return String(digits);
}

// How far a prediction is from the measured value; see numba_matmul/exercise.py.
function distanceText(said, found) {
  if (said === found) return "exactly";
  if (said && found && (said > 0) === (found > 0)) {
    const ratio = Math.max(said / found, found / said);
    if (ratio < 2 && Number.isInteger(said) && Number.isInteger(found))
      return `off by ${numberText(Math.abs(said - found))}`;
    return ratio < 1.005 ? "close" : `off by a factor of ${numberText(ratio)}`;
  }
  return `off by ${numberText(Math.abs(said - found))}`;
}

// What was typed: a number, null where nothing was, NaN where it isn't a number.
function typed(text) {
  const plain = text.trim().replace(/\s*%$/, "").replace("−", "-");
  if (!plain) return null;
  return Number(/^-?\d{1,3}(,\d{3})+(\.\d+)?$/.test(plain) ? plain.replaceAll(",", "") : plain);
}

function comparison(found, said) {
  const rows = found.map(([name, value]) => el("tr", {}, el("td", {}, name.replaceAll("_", " ")),
    ...[said[name] === null ? "–" : numberText(said[name]), numberText(value), said[name] === null ? "" : distanceText(said[name], value)]
      .map((text) => el("td", {}, text))));
  return el("table", {}, el("thead", {}, el("tr", {}, el("td"), ...["you said", "it is", ""].map((text) => text ? el("th", {scope: "col"}, text) : el("td")))),
    el("tbody", {}, ...rows));
}

function prediction(box, {question, found, place}) {
  const names = found.map(([name]) => name), inputs = {}, says = el("p", {role: "status"}), answer = el("div", {role: "status"});
  for (const name of names)
    inputs[name] = el("input", {type: "text", inputmode: "decimal", autocomplete: "off", size: 8, "aria-label": name ? null : question});
  const fields = names.map((name) => el("label", {}, ...(name ? [name.replaceAll("_", " ")] : []), inputs[name]));
  const check = el("button", {type: "submit"}, "Check my prediction");
  const show = el("button", {type: "button", click: () => reveal(Object.fromEntries(names.map((name) => [name, null])))}, "Just show the answer");
  const form = el("form", {class: "nm-row", submit: (event) => {
    event.preventDefault();
    const said = Object.fromEntries(names.map((name) => [name, typed(inputs[name].value)]));
    const wrong = names.find((name) => Number.isNaN(said[name])), empty = names.every((name) => said[name] === null);
    for (const name of names) inputs[name].setAttribute("aria-invalid", Number.isNaN(said[name]));
    if (wrong === undefined && !empty) return reveal(said);
    says.textContent = empty ? "Type a number first." : `“${inputs[wrong].value}” isn't a number. Write it like 4 or 0.25.`;
    inputs[wrong ?? names[0]].focus();
  }}, ...fields, check, show);

  function reveal(said) {
    says.textContent = "";
    for (const input of Object.values(inputs)) input.readOnly = true;
    check.remove();
    show.remove();
    answer.replaceChildren(comparison(found, said));
    for (const other of document.querySelectorAll(`[data-answer="${place}"]`)) other.replaceChildren(comparison(found, said));
  }
  box.append(el("p", {}, el("strong", {}, question)), form, says, answer);
}
start("prediction", prediction);
