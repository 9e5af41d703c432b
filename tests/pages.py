"""pages.py DIR -- DIR/plot.html, eval.html, lengths.html and memory.html as a reader meets them: nothing is cut or overlaps
at 360, 1280 and 3840 pixels, in light and dark; no complaints in the console; no requests; what must be said is there."""
import os
import sys
from browser import Browser

work = sys.argv[1]
failed = 0


def check(what, good):
    global failed
    if not good:
        failed += 1
        print("FAILED: %s" % (what,))


WORDS = {
    "plot": ["nats per token", "best validation loss 3.2500 (step 200)", "Learning rate", "Gradient norm", "tokens per second", "seed 7", "smoothing"],
    "eval": ["McNemar", "chance", "arc_easy", "25.00", "± 1 standard error", "a<b>long-name-of-a-model-3", "(40k)", "Of another size than the paper's models",
             "340M parameters", "46.13", "documents"],
    "lengths": ["7.8e7", "67,738", "niah_single_1", "HOLA, paper, 340M", "Of another size than the paper's models: B x/y (2.0M)", "10 prompts a length"],
    "memory": ["<s>", "layer 0, head 0", "surprise m / mean of the head", "L1 H1", "(40.3k parameters)"],
}
# texts of a drawing that run into each other, and texts outside of their drawing
CLASHES = """() => [...document.querySelectorAll('figure svg')].flatMap(s => {
    const box = s.getBoundingClientRect(), all = [...s.querySelectorAll('text')].map(t => [t.textContent, t.getBoundingClientRect()]), bad = [];
    all.forEach(([a, p], i) => {
        if (p.left < box.left - 1 || p.right > box.right + 1 || p.bottom > box.bottom + 1) bad.push(a + ' is outside');
        for (const [b, q] of all.slice(i + 1)) if (p.left < q.right - 1 && q.left < p.right - 1 && p.top < q.bottom - 3 && q.top < p.bottom - 3) bad.push(a + ' over ' + b);
    });
    return bad; })"""
CUT = """() => [...document.querySelectorAll('table, figure, p, h1, h2, .bar > *')].filter(e => { const r = e.getBoundingClientRect();
    return r.width > 0 && (r.right > innerWidth + 1 || r.left < -1); }).map(e => e.tagName + '.' + e.className + ' ' + e.textContent.slice(0, 30))"""
SCROLLS = "() => [...document.querySelectorAll('.wide')].filter(e => e.scrollWidth > e.clientWidth + 1).map(e => e.textContent.slice(0, 30))"

b = Browser()
try:
    for page, words in WORDS.items():
        url = "file://" + os.path.join(work, page + ".html")
        for width, height in ((360, 740), (1280, 800), (3840, 2160)):
            for scheme in ("light", "dark"):
                at = "%s at %d, %s: " % (page, width, scheme)
                b.look(width, height, scheme)
                b.go(url)
                check(at + "draws", b.until("() => document.readyState === 'complete' && !!document.querySelector('figure svg path, #text span')"))
                check(at + "scheme", b.js("() => document.documentElement.dataset.scheme") == scheme)
                check(at + "page wider than the screen: %s" % b.js("() => document.documentElement.scrollWidth"),
                      b.js("() => document.documentElement.scrollWidth <= innerWidth"))
                for name, code in (("cut", CUT), ("a table to be scrolled", SCROLLS), ("texts", CLASHES)):
                    found = b.js(code)
                    check(at + "%s: %s" % (name, found[:4]), not found)
        text = b.js("() => document.body.innerText + [...document.querySelectorAll('svg text')].map(t => t.textContent).join(' ')")
        for word in words:
            check("%s: no '%s'" % (page, word), word in text)
        asked = [u for u in b.requested() if not u.startswith(("file://" + work, "data:"))]
        check("%s asks for %s" % (page, asked), not asked)
        said = b.complaints()
        check("%s: console: %s" % (page, said), not said)

    # the switch of colours; axes, smoothing, zoom and values under the pointer
    b.look(1280, 800, "light")
    b.go("file://" + os.path.join(work, "plot.html"))
    b.until("() => !!document.querySelector('figure svg path')")
    b.js("() => document.getElementById('scheme').click()")
    check("switch of colours", b.js("() => document.documentElement.dataset.scheme") == "dark")
    axis = "() => [...document.querySelector('figure svg').querySelectorAll('text.ink')].map(t => t.textContent).join()"
    check("axis in steps", b.js(axis) == "step")
    ticks = "() => [...document.querySelectorAll('figure svg')][0].querySelectorAll('text').length + ' ' + [...document.querySelector('figure svg').querySelectorAll('text')].map(t => t.textContent).join()"
    for name, title, word in (("tokens", "tokens", "1M"), ("time", "training time", "min")):
        b.js("name => [...document.querySelectorAll('.choice button')].find(x => x.textContent === name).click()", name)
        check("axis in %s: %s" % (name, b.js(ticks)), b.js(axis) == title and word in b.js(ticks))
    b.js("() => [...document.querySelectorAll('.choice button')][0].click()")
    path = "() => document.querySelectorAll('figure svg g path')[2].getAttribute('d')"
    before = b.js(path)
    b.js("() => { const s = document.getElementById('smooth'); s.value = 0.5; s.dispatchEvent(new Event('input')); }")
    check("smoothing", b.js(path) != before)
    labels = "ticks => { const f = axisFormat(ticks); return ticks.map(v => f(v)).join(' '); }" # as many decimals as the step has, one unit an axis
    for axis_ticks, want in (([0, 5e-4, 1e-3, 1.5e-3], "0 0.5e-3 1.0e-3 1.5e-3"), ([0, 2e5, 1e6, 1.2e6], "0 200k 1,000k 1,200k"), ([3, 3.5, 4], "3.0 3.5 4.0"), ([0, 1000, 2000], "0 1,000 2,000"), ([0, 5e9], "0 5B")):
        check("%s as labels: %s" % (axis_ticks, b.js(labels, axis_ticks)), b.js(labels, axis_ticks) == want)
    line = b.js("() => smoothed([5, 4, null, 2, 1], .75)") # a straight line stays where it is, at its ends too
    check("smoothing of a line: %s" % line, line[2] is None and all(abs(line[i] - 5 + i) < 1e-9 for i in (0, 1, 3, 4)))
    mouse = """(kind, part) => { const s = document.querySelector('figure svg'), r = s.getBoundingClientRect(); s.setPointerCapture = () => {};
        s.dispatchEvent(new PointerEvent(kind, {clientX: r.left + part * r.width, clientY: r.top + r.height / 2, button: 0, bubbles: true, pointerType: 'mouse', pointerId: 1})); }"""
    b.js(mouse, "pointermove", 0.5)
    tip = b.js("() => document.getElementById('tip').innerText")
    check("values under the pointer: %s" % tip, "step: " in tip and "validation: 3." in tip and b.js("() => document.getElementById('tip').style.display") == "block")
    whole = b.js(ticks)
    for kind, part in (("pointerdown", 0.3), ("pointermove", 0.5), ("pointerup", 0.5)):
        b.js(mouse, kind, part)
    check("zoom", b.js(ticks) != whole)
    b.js("() => document.querySelector('figure svg').dispatchEvent(new MouseEvent('dblclick'))")
    check("and back", b.js(ticks) == whole)
    b.look(360, 740, "light")
    b.go("file://" + os.path.join(work, "memory.html"))
    check("tables of tokens fit a phone", b.until("() => !!document.querySelector('#read tr')") and not b.js("() => !!document.querySelector('table.cards')"))
    b.go("file://" + os.path.join(work, "eval.html")) # short facts share a line of a card; a figure is never broken from its error
    b.until("() => !!document.querySelector('table.cards')")
    cards = """() => { const one = s => { const r = document.createRange(); r.selectNodeContents(s); const tops = [...r.getClientRects()].map(q => q.bottom); return Math.max(...tops) - Math.min(...tops) < 10; };
        return [...document.querySelectorAll('table.results tbody tr')].map(r => { const m = [...r.querySelectorAll('td.m:not(:empty)')].map(c => c.getBoundingClientRect().top);
        return m.length > 1 && Math.abs(m[0] - m[1]) < 3 && [...r.querySelectorAll('td > span')].every(one); }); }"""
    check("cards: %s" % b.js(cards), len(b.js(cards)) > 2 and all(b.js(cards)))
    b.look(1280, 800, "light")
    # the memory page: a click on the last row, the mean of all
    b.go("file://" + os.path.join(work, "memory.html"))
    b.js("""() => { const m = document.getElementById('map'), r = m.getBoundingClientRect();
        m.dispatchEvent(new MouseEvent('click', {clientX: r.left + 5, clientY: r.bottom - 1, bubbles: true})); }""")
    said = "() => ['layer', 'head'].map(i => document.getElementById(i).value).join() + ' ' + document.getElementById('query').textContent + document.getElementById('share').textContent"
    check("a click: " + b.js(said), b.js(said).startswith("1,1 layer 1, head 1") and b.js(said).count("layer 1, head 1") == 2)
    b.js("() => { const s = document.getElementById('layer'); s.value = -1; s.dispatchEvent(new Event('change')); }")
    check("all heads: " + b.js(said), "mean of all layers and heads" in b.js(said) and "of 4 heads" in b.js(said) and b.js("() => document.getElementById('head').disabled"))
    said = b.complaints()
    check("console after use: %s" % said, not said)
finally:
    b.close()
sys.exit(failed > 0)
