"""Open every page of the built website in a headless Chromium: `make site-check`.

Each page is looked at light and dark, 1400 and 400 pixels wide. A problem is a line: an error in the console, a file
that does not come, a picture without pixels or without contrast, a link that leads nowhere, a page wider than a phone.
`--pictures FOLDER` keeps screenshots."""
import argparse
import base64
import functools
import http.server
import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from urllib.parse import unquote, urljoin, urlparse
from urllib.request import urlopen

import websocket
from build import OUT

FLAGS = ("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking",
         "--disable-component-update", "--disable-sync", "--disable-quic", "--hide-scrollbars",
         "--remote-debugging-port=0", "--remote-allow-origins=*")
NAMES = "chromium", "chromium-browser", "google-chrome", "google-chrome-stable"
WIDTHS, MODES = (1400, 400), ("light", "dark")

LOADED = """(async () => {
    const images = [...document.images];
    for (const image of images) image.loading = 'eager';
    await Promise.all(images.map(image => image.decode().catch(() => 0)));
    return {ids: [...document.querySelectorAll('[id]')].map(x => x.id),
            links: [...document.querySelectorAll('a[href]')].map(x => x.href),
            empty: images.filter(x => !x.naturalWidth).map(x => x.src)};
})()"""

# The range of lightness of each figure on the ground that the page gives it, and what is wider than the page.
LOOKED_AT = """(() => {
    const flat = [...document.querySelectorAll('.bd-article img')].filter(image => {
        const canvas = document.createElement('canvas'), pen = canvas.getContext('2d');
        canvas.width = canvas.height = 200;
        let ground = image;
        while (ground && getComputedStyle(ground).backgroundColor === 'rgba(0, 0, 0, 0)') ground = ground.parentElement;
        pen.fillStyle = ground ? getComputedStyle(ground).backgroundColor : 'white';
        pen.fillRect(0, 0, 200, 200);
        pen.drawImage(image, 0, 0, 200, 200);
        const data = pen.getImageData(0, 0, 200, 200).data;
        let low = 255, high = 0;
        for (let i = 0; i < data.length; i += 4) {
            const light = 0.3 * data[i] + 0.59 * data[i + 1] + 0.11 * data[i + 2];
            low = Math.min(low, light); high = Math.max(high, light);
        }
        return high - low < 128;
    });
    const root = document.documentElement;
    return {flat: flat.map(image => image.src), excess: root.scrollWidth - innerWidth,
            height: root.scrollHeight};
})()"""


class Browser:
    "A headless Chromium, spoken to in its DevTools protocol."
    def __init__(self, folder):
        program = next(filter(None, map(shutil.which, NAMES)), None)
        if not program: sys.exit(f"make site-check needs Chromium; none of these is here: {', '.join(NAMES)}")
        self.process = subprocess.Popen([program, *FLAGS, f"--user-data-dir={folder}", "about:blank"],
                                        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        port = Path(folder)/"DevToolsActivePort"
        for _ in range(300):
            if port.exists() and port.read_text().count("\n"): break
            time.sleep(0.1)
        address = f"http://127.0.0.1:{port.read_text().split()[0]}/json"
        target = next(x for x in json.load(urlopen(address)) if x["type"] == "page")
        self.socket = websocket.create_connection(target["webSocketDebuggerUrl"], timeout=60)
        self.number, self.events = 0, []
        for domain in "Page", "Runtime", "Log", "Network": self.call(f"{domain}.enable")

    def receive(self):
        message = json.loads(self.socket.recv())
        if "method" in message: self.events.append(message)
        return message

    def call(self, method, **params):
        "The result of a command."
        self.number += 1
        self.socket.send(json.dumps(dict(id=self.number, method=method, params=params)))
        while (message := self.receive()).get("id") != self.number: pass
        if "error" in message: raise RuntimeError(f"{method}: {message['error']}")
        return message["result"]

    def value(self, script):
        return self.call("Runtime.evaluate", expression=script, awaitPromise=True, returnByValue=True)["result"]["value"]

    def open(self, url):
        self.events = []
        self.call("Page.navigate", url=url)
        while not any(event["method"] == "Page.loadEventFired" for event in self.events): self.receive()

    def size(self, width, height=900):
        self.call("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=1, mobile=width < 600)

    def errors(self):
        "What went wrong while the page was loaded."
        for event in self.events:
            method, params = event["method"], event["params"]
            if method == "Runtime.exceptionThrown": yield params["exceptionDetails"]["text"]
            if method == "Log.entryAdded" and params["entry"]["level"] == "error": yield params["entry"]["text"]
            if method == "Runtime.consoleAPICalled" and params["type"] == "error":
                yield " ".join(str(x.get("value", x.get("description"))) for x in params["args"])
            if method == "Network.loadingFailed" and not params.get("canceled"): yield params["errorText"]


def look(browser, base, page, pictures):
    "Problems of one page; its anchors, and what it links to."
    browser.size(WIDTHS[0])
    browser.open(base + page)
    found = browser.value(LOADED)
    problems = [*browser.errors(), *(f"no picture: {src}" for src in found["empty"])]
    for width in WIDTHS:
        for mode in MODES:
            browser.size(width)
            browser.value(f"document.documentElement.dataset.theme = document.documentElement.dataset.mode = '{mode}'")
            seen = browser.value(LOOKED_AT)
            problems += [f"{mode}: no contrast in {src}" for src in seen["flat"]]
            if seen["excess"] > 0: problems.append(f"{seen['excess']} pixels wider than {width}")
            if pictures:
                clip = dict(x=0, y=0, width=width, height=min(seen["height"], 16000), scale=1)
                shot = browser.call("Page.captureScreenshot", clip=clip, captureBeyondViewport=True)["data"]
                (pictures/f"{page.replace('/', '-')}.{width}.{mode}.png").write_bytes(base64.b64decode(shot))
    return problems, set(found["ids"]), found["links"]


def main(names, pictures):
    pages = sorted(path.relative_to(OUT).as_posix() for path in OUT.rglob("*.html") if "_static" not in path.parts)
    if not pages: sys.exit("there is no website yet: make site")
    for name in names:
        if not name or not any(name in page for page in pages): sys.exit(f"no page has {name!r} in its name")
    chosen = [page for page in pages if not names or any(name in page for name in names)]
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=OUT)
    handler.func.log_message = lambda *args: None
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    base, start = f"http://127.0.0.1:{server.server_port}/", time.time()
    problems, ids, links = [], {}, {}
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        browser = Browser(folder)
        try:
            for page in chosen:
                found, ids[page], links[page] = look(browser, base, page, pictures)
                problems += [f"{page}: {problem}" for problem in found]
        finally: browser.process.kill(); browser.process.wait()
    for page, targets in links.items():
        for target in {urlparse(urljoin(base + page, link)) for link in targets}:
            if f"{target.scheme}://{target.netloc}/" != base: continue
            path = unquote(target.path).lstrip("/")
            file = path if path and not path.endswith("/") else path + "index.html"
            anchor = unquote(target.fragment)
            if not (OUT/file).exists(): problems.append(f"{page}: {path} is not there")
            elif anchor and file in ids and anchor not in ids[file]: problems.append(f"{page}: no #{anchor} in {file}")
    print("\n".join(problems) or f"{len(ids)} pages are as they should be ({time.time() - start:.0f} s)")
    return bool(problems)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of pages' names; all pages if none")
    parser.add_argument("--pictures", type=Path, help="a folder for screenshots")
    args = parser.parse_args()
    if args.pictures:
        try: args.pictures.mkdir(parents=True, exist_ok=True)
        except OSError as e: parser.error(f"--pictures {str(args.pictures)!r}: {e.strerror}")
    sys.exit(main(args.names, args.pictures))
