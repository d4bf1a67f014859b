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

// What scrolls can be reached with the keyboard.
function reachable() {
    for (const part of document.querySelectorAll(".bd-article :is(pre, table, .cell_output, .output, .text_html > div, .pst-scrollable-table-container)")) {
        if (part.closest(".nm")) continue;
        const scrolls = part.scrollWidth > part.clientWidth + 1 && getComputedStyle(part).overflowX !== "visible";
        if (scrolls) part.tabIndex = 0;
        else if (part.localName !== "pre") part.removeAttribute("tabindex");
    }
}
addEventListener("load", reachable);
addEventListener("resize", reachable);
document.addEventListener("toggle", reachable, true);
