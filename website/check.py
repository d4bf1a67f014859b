"""Open every page of the built website in a headless Chromium: `make site-check`.

Each page is viewed in light and dark mode, 1400 and 400 pixels wide. Each problem is one line: an error in
the console, a file that isn't served, an empty picture or one without contrast, a broken link, a page wider
than its window. What is folded is opened first. Without names, each kind of widget is played with, too.
`--pictures FOLDER` keeps screenshots; `--axe FILE` asks a copy of axe-core, axe.min.js, too."""
import argparse
import functools
import http.server
import shutil
import sys
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse

import widgets
from build import OUT
from playwright.sync_api import sync_playwright

FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking"]
NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
WIDTHS, HEIGHT, MODES = (1400, 400), 900, ("light", "dark")

LOADED = """(async () => {
    const images = [...document.images];
    for (const folded of document.querySelectorAll('details')) folded.open = true;
    for (const image of images) image.loading = 'eager';
    await Promise.all(images.map(image => image.decode().catch(() => 0)));
    return {ids: [...document.querySelectorAll('[id]')].map(x => x.id),
            links: [...document.querySelectorAll('a[href]')].map(x => x.href),
            empty: images.filter(x => !x.naturalWidth).map(x => x.src)};
})()"""

# The lightness range of each figure on its page background, which must fit the mode, and anything wider than
# the page.
LOOKED_AT = """(async set => {
    const figures = document.querySelectorAll('.bd-article img, .cell_output svg:not(.nm svg)');
    const seen = [...figures].map(async figure => {
        let image = figure;
        if (figure.localName === 'svg') {
            const copy = figure.cloneNode(true);
            const style = getComputedStyle(figure);
            copy.style.color = style.color;
            for (const name of ['--paper', '--box', '--grid'])
                copy.style.setProperty(name, style.getPropertyValue(name));
            image = new Image();
            const text = new XMLSerializer().serializeToString(copy);
            image.src = 'data:image/svg+xml,' + encodeURIComponent(text);
            await image.decode().catch(() => 0);
        }
        const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
        canvas.width = canvas.height = 200;
        let ground = figure;
        const clear = () => getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)';
        while (ground && clear()) ground = ground.parentElement;
        pen.fillStyle = ground ? getComputedStyle(ground).backgroundColor : 'white';
        pen.fillRect(0, 0, 200, 200);
        pen.drawImage(image, 0, 0, 200, 200);
        const data = pen.getImageData(0, 0, 200, 200).data;
        let low = 255, high = 0;
        for (let i = 0; i < data.length; i += 4) {
            const light = 0.3 * data[i] + 0.59 * data[i + 1] + 0.11 * data[i + 2];
            low = Math.min(low, light); high = Math.max(high, light);
        }
        const dark = document.documentElement.dataset.theme === 'dark';
        const [red, green, blue] = pen.fillStyle.match(/\w\w/g).map(x => parseInt(x, 16));
        const wrong = dark !== 0.3 * red + 0.59 * green + 0.11 * blue < 128;  // a light box on a dark page
        const bad = high - low < 128 || wrong && figure.localName === 'svg';
        return bad ? [figure.src || figure.ariaLabel] : [];
    });
    const flat = (await Promise.all(seen)).flat();
    // A phone's window grows with what doesn't fit: compare with the width that was set.
    const wide = [...document.querySelectorAll('.bd-article *, .bd-header-article *')].filter(part => {
        const {right, width} = part.getBoundingClientRect();
        if (!width || right <= set + 1 || part.closest('svg') && part.localName !== 'svg') return false;
        for (let box = part.parentElement; box; box = box.parentElement)
            if (getComputedStyle(box).overflowX !== 'visible' && box.getBoundingClientRect().right <= set + 1)
                return false;
        return true;
    });
    const widest = wide[0] && `${wide[0].localName}.${wide[0].className}`;
    return {flat, widest, width: document.scrollingElement.scrollWidth};
})"""


def program():
    "The path of the system's Chromium."
    found = next(filter(None, map(shutil.which, NAMES)), None)
    return found or sys.exit(f"make site-check needs Chromium; none of these was found: {', '.join(NAMES)}")


def note_errors(tab, found):
    "Make a tab append problems in its pages to a list."
    tab.on("pageerror", lambda error: found.append(str(error)))
    tab.on("console", lambda message: found.append(message.text) if message.type == "error" else None)
    tab.on("requestfailed", lambda request: found.append(f"{request.url}: {request.failure}"))


AXE = """axe.run(document, {resultTypes: ['violations']}).then(({violations}) => violations.map(
    ({id, nodes}) => `axe: ${id}, ${nodes.length} times: ${nodes[0].html.slice(0, 150)}`))"""


def look(tab, address, picture, axe):
    """A page's problems, its anchors, and its links. `picture`: how names of screenshots start, if any are
    kept; `axe`: a script that looks as well, or none."""
    tab.set_viewport_size(dict(width=WIDTHS[0], height=HEIGHT))
    tab.goto(address)
    found = tab.evaluate(LOADED)
    problems = [f"no picture: {src}" for src in found["empty"]]
    if axe: tab.evaluate(axe)
    for width in WIDTHS:
        tab.set_viewport_size(dict(width=width, height=HEIGHT))
        for mode in MODES:
            tab.evaluate("mode => Object.assign(document.documentElement.dataset, {theme: mode, mode})", mode)
            seen = tab.evaluate(LOOKED_AT, width)
            problems += [f"{mode}: no contrast in {src}" for src in seen["flat"]]
            if seen["width"] > width or seen.get("widest"):
                problems.append(f"{mode}: {seen['width']} pixels wide at {width}: {seen.get('widest')}")
            if axe:
                tab.wait_for_timeout(400)  # colors fade
                problems += [f"{mode}: {text}" for text in tab.evaluate(AXE)]
            if picture: tab.screenshot(path=f"{picture}.{width}.{mode}.png", full_page=True)
    return problems, set(found["ids"]), found["links"]


def main(names, pictures, axe):
    files = [path.relative_to(OUT) for path in OUT.rglob("*.html")]
    pages = sorted(path.as_posix() for path in files if "_static" not in path.parts)
    if not pages: sys.exit("there is no website yet: run make site")
    for name in names:
        if not name or not any(name in page for page in pages):
            sys.exit(f"no page's name contains {name!r}")
    chosen = [page for page in pages if not names or any(name in page for name in names)]
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=OUT)
    handler.func.log_message = lambda *args: None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base, start = f"http://127.0.0.1:{server.server_port}/", time.time()
    problems, ids, links = [], {}, {}
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program(), args=FLAGS)
        if not names: problems += widgets.problems(browser)
        tab, errors = browser.new_page(), []
        note_errors(tab, errors)
        for page in chosen:
            found, ids[page], links[page] = look(tab, base + page,
                                                 pictures and pictures/page.replace("/", "-"), axe)
            problems += [f"{page}: {problem}" for problem in (*errors, *found)]
            errors.clear()
    for page, targets in links.items():
        for target in {urlparse(urljoin(base + page, link)) for link in targets}:
            if f"{target.scheme}://{target.netloc}/" != base: continue
            path = unquote(target.path).lstrip("/")
            file = path if path and not path.endswith("/") else path + "index.html"
            anchor = unquote(target.fragment)
            if not (OUT/file).exists(): problems.append(f"{page}: {path} doesn't exist")
            elif anchor and anchor not in ids.get(file, [anchor]):
                problems.append(f"{page}: no #{anchor} in {file}")
    print("\n".join(problems) or f"{len(ids)} pages are fine ({time.time() - start:.0f} s)")
    return bool(problems)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of pages' names; all pages if none")
    parser.add_argument("--pictures", type=Path, help="a folder for screenshots")
    parser.add_argument("--axe", type=Path, help="a copy of axe.min.js")
    args = parser.parse_args()
    if args.pictures:
        try: args.pictures.mkdir(parents=True, exist_ok=True)
        except OSError as e: parser.error(f"--pictures {str(args.pictures)!r}: {e.strerror}")
    sys.exit(main(args.names, args.pictures, args.axe and args.axe.read_text(encoding="utf-8")))
