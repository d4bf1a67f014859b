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
