// A button on every cell of code copies it.
for (const cell of document.querySelectorAll(".bd-article .cell_input pre, .bd-article .highlight-default pre, "
                                             + ".bd-article .highlight-python pre")) {
    const button = document.createElement("button"), box = cell.parentElement;
    button.type = "button";
    button.className = "copy";
    button.textContent = "Copy";
    button.addEventListener("click", async () => {
        await navigator.clipboard.writeText(cell.textContent);
        button.textContent = "Copied";
        setTimeout(() => button.textContent = "Copy", 1500);
    });
    box.classList.add("copied");
    box.append(button);
}

// What scrolls can be reached with the keyboard, and fades where there is more: a phone shows no scroll bar.
const SCROLLERS = "pre, table, .cell_output, .output, .text_html > div, .pst-scrollable-table-container, .nm-figure";
function scrolled(part) {
    const rest = part.scrollWidth - part.clientWidth;
    const scrolls = rest > 1 && getComputedStyle(part).overflowX !== "visible";
    part.classList.toggle("more-left", scrolls && part.scrollLeft > 1);
    part.classList.toggle("more-right", scrolls && part.scrollLeft < rest - 1);
    return scrolls;
}
function reachable() {
    for (const part of document.querySelectorAll(`.bd-article :is(${SCROLLERS})`)) {
        const scrolls = scrolled(part);
        if (part.closest(".nm")) continue;  // it does this by itself
        if (scrolls) part.tabIndex = 0;
        else if (part.localName !== "pre") part.removeAttribute("tabindex");
    }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
document.addEventListener("toggle", reachable, true);
document.addEventListener("scroll", ({target}) => {
    if (target.matches?.(SCROLLERS)) scrolled(target);
}, true);
