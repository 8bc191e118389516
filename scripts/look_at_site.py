"""Open every page of the built site in Chromium, without the net, and print what looks wrong at each width in pixels.

python scripts/look_at_site.py docs/_build/html [1366 500]
"""

import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any
from urllib.parse import unquote, urlsplit

# Opens page after page in a frame, waits for its formulas, and hands over what it finds. "cut" is what cannot be seen.
WRAPPER = r"""<!doctype html><body style="margin:0"><script>
const name = e => `${e.tagName} .${e.classList[0]} ${e.src || e.textContent}`.replace(/\s+/g, ' ').slice(0, 90);
const PAGE = '.bd-main,.bd-content,.bd-article-container,.bd-article', MATH = 'mjx-container,.math';
const CODE = 'pre,.highlight', TABLE = '.pst-scrollable-table-container,table', SIDE = '[class*=bd-sidebar]';
const UNSEEN = 'dialog:not([open]),.visually-hidden,.sr-only,.skip-link,mjx-assistive-mml,.copybtn,.tooltip';
function look(w) {
  const d = w.document, width = w.innerWidth, all = s => [...d.body.querySelectorAll(s)];
  const over = d.documentElement.scrollWidth - width, overflow = e => w.getComputedStyle(e).overflowX;
  const past = e => e.getBoundingClientRect().right > width + 1;
  const boxed = e => e && e != d.body && (overflow(e) != 'visible' && !past(e) || boxed(e.parentElement));
  const shown = all('*').filter(e => e.getClientRects().length && w.getComputedStyle(e).visibility == 'visible');
  const every = shown.filter(e => !e.closest(UNSEEN));
  const wide = every.filter(e => overflow(e) != 'visible' && e.clientWidth && e.scrollWidth > e.clientWidth + 1);
  const which = (s, cut = false) => wide.filter(e => e.matches(s) && cut == (overflow(e) == 'hidden')).map(name);
  const plain = d.body.cloneNode(true); plain.querySelectorAll('pre,code,script,style,.math').forEach(e => e.remove());
  return {'sideways scroll': [...(over > 0 ? [over + ' px'] : []), ...which(PAGE)],
    'elements past the edge': every.filter(e => past(e) && !boxed(e)).map(name),
    'cut boxes': [...which('*', true), ...which(SIDE)],
    'code that scrolls': which(CODE), 'tables that scroll': which(TABLE), 'formulas that scroll': which(MATH),
    'other boxes that scroll': which(`:not(${[PAGE, MATH, CODE, TABLE, SIDE]})`),
    'formulas that failed': all('mjx-merror,[data-mjx-error],.math:not(:has(mjx-container))').map(name),
    'formulas left as text': plain.textContent.match(/\\[a-zA-Z]+[{_^]|\\[([]|\$\S[^$\n]*\$|\$\$/g) || [],
    'tags out of place': all('s,strike').concat(all('*').filter(e => e instanceof w.HTMLUnknownElement)).map(name),
    'broken images': all('img').filter(i => i.complete && !i.naturalWidth).map(name),
    'requests to other hosts': w.performance.getEntries().map(e => e.name).filter(
      n => /:/.test(n) && !n.startsWith('file:')),
    links: all('a[href]').map(a => a.href), ids: all('[id]').map(e => e.id)};
}
async function report() {
  const wait = ms => new Promise(done => setTimeout(done, ms));
  for (const [page, width] of TASKS) {
    const frame = Object.assign(document.createElement('iframe'), {src: 'site' + page, width, height: 900});
    document.body.replaceChildren(frame);
    await Promise.race([wait(20000), new Promise(done => { frame.onload = done; })]);
    const math = frame.contentWindow.MathJax;
    if (math) await Promise.race([wait(10000), math.startup.promise]);
    await wait(100);
    console.log('FOUND' + JSON.stringify({page, width, ...look(frame.contentWindow)}) + 'END');
  }
}
report().catch(e => console.log(e.stack)).then(() => console.log('DONE'));
</script>"""
BROWSER = """chromium --headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-sync
--disable-background-networking --disable-component-update --enable-logging=stderr --allow-file-access-from-files"""


def look(pages: list[str], site: Path, widths: list[int]) -> tuple[list[dict[str, Any]], set[str]]:
    """What each page shows at each width, and what the browser writes to its console."""
    tasks, found, console = [(page, width) for width in widths for page in pages], [], set()
    with TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        Path(folder, "site").symlink_to(site.resolve())
        Path(folder, "look.html").write_text(WRAPPER.replace("TASKS", json.dumps(tasks)))
        own = ["--host-resolver-rules=MAP * ~NOTFOUND", f"--user-data-dir={folder}/profile"]
        command = [*BROWSER.split(), *own, f"{folder}/look.html"]
        browser = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
        for line in browser.stderr or ():
            message = line.partition('] "')[2] if "CONSOLE" in line else ""
            if message.startswith("FOUND"):
                found.append(json.loads(message.removeprefix("FOUND").partition("END")[0]))
            elif message.startswith("DONE"):
                break
            elif message and "[PST]" not in message and "sphinx-theme" not in message:
                console.add(message)
        browser.terminate()
        browser.wait()
    assert len(found) == len(tasks), f"the browser ended after {len(found)} of {len(tasks)} looks: {console}"
    return found, console


def dead_links(site: Path, found: list[dict[str, Any]]) -> tuple[set[str], set[str]]:
    """Links to files and anchors that the site lacks, with their pages; and addresses of other sites."""
    anchors, dead, external = {one["page"]: one["ids"] for one in found}, set(), set()
    for page, link in {(one["page"], link) for one in found for link in one["links"]}:
        path, anchor = (unquote(part) for part in urlsplit(link)[2::2])
        path = path.partition("/site")[2]
        if urlsplit(link).hostname:
            external.add(link)
        elif not (site / path[1:]).is_file() or (anchor and anchor not in anchors.get(path, ())):
            dead.add(f"{page}: dead link: {path}#{anchor}")
    return dead, external


def main(site: Path, widths: list[int]) -> int:
    """Print how many pages have what, then each finding but boxes that scroll by themselves; 1 if there is one."""
    pages = [
        f"/{page.relative_to(site)}" for page in sorted(site.rglob("*.html")) if page.parent.name != "_static"
    ]
    found, console = look(pages, site, widths)
    faults, external = dead_links(site, found)
    print(f"{len(pages)} pages, of which have ..", *widths, sep="\t")
    for kind in list(found[0])[2:-2]:
        counts = [sum(bool(one[kind]) for one in found if one["width"] == width) for width in widths]
        print(f"{kind:28}", *counts, sep="\t")
        if "that scroll" not in kind:
            faults |= {f"{one['page']}, {one['width']}: {kind}: {x}" for one in found for x in one[kind]}
    faults |= {f"console: {line}" for line in console}
    print(*sorted(faults), f"{len(faults)} faults; addresses of other sites, not opened:", sep="\n")
    print(*sorted(external), sep="\n")
    return bool(faults)


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), [int(width) for width in sys.argv[2:]] or [1366, 500]))
