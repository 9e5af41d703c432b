"""serve_page.py MODEL DIR -- the page in Debian's Chromium, by chromedriver: what its users do, found by role and name."""
import os
import sys
import time
from serve_browser import Browser, installed
from serve_client import Server, check, finish

model, work = sys.argv[1:3]
if not installed():
    print("SKIP the page in a browser: there is no chromium here")
    sys.exit(77)
s = Server(model, "--tokenizer", "byte", "--session-dir", os.path.join(work, "page"), "--log", "none", "--chat-template", "plain")
b = Browser()
js, until, find, click, keys, console, go, settled = b.js, b.until, b.find, b.click, b.keys, b.console, b.go, b.settled
try:
    home = "http://127.0.0.1:%d/" % s.port
    go(home)
    check("it opens", settled())
    for role, name in (("tablist", "Mode"), ("tab", "Chat"), ("tab", "Completion"), ("navigation", "Sessions"), ("button", "New"), ("button", "Fork"),
                       ("button", "Undo"), ("button", "Save"), ("button", "Delete"), ("log", "Conversation"), ("textbox", "Message"), ("button", "Send"),
                       ("button", "Stop"), ("button", "Add document"), ("checkbox", "Ask on a fork"), ("region", "Memory"), ("combobox", "Layer"),
                       ("combobox", "Head"), ("table", "Kept tokens"), ("group", "Settings"), ("spinbutton", "Temperature"), ("spinbutton", "Top p"),
                       ("spinbutton", "Top k"), ("spinbutton", "Max tokens"), ("spinbutton", "Seed"), ("switch", "Dark")):
        check("%s %s" % (role, name), find(role, name))
    # greedy: this model's random text would soon end with EOS
    js("() => { for (const [k, v] of [['max_tokens', 60], ['temperature', 0]]) { const x = document.getElementById(k); x.value = v; x.dispatchEvent(new Event('change')); } }")
    # a chat, streamed
    keys(find("textbox", "Message"), "Hello\ue007")
    check("it answers", until("() => document.querySelectorAll('#log .m.assistant').length === 1 && document.getElementById('stop').disabled")
          and settled())
    check("speed", until("() => /^\\d+ tokens, [\\d.]+ tokens\\/s/.test(document.getElementById('speed').textContent)"))
    check("the question is there", js("() => document.querySelector('#log .m.user div').textContent") == "Hello")
    check("kept tokens", until("() => document.querySelectorAll('#kept tr').length > 0"))
    check("marks", until("() => document.querySelectorAll('#log mark').length > 0"))
    name = js("() => location.hash.slice(1)")
    check("the URL names it", name and s.get("/v1/sessions/" + name)[0] == 200)
    go("about:blank")
    go(home + "#" + name)
    check("reload", settled() and until("() => document.querySelector('#log .m.user div').textContent === 'Hello'"))
    # stop
    js("() => { for (const [k, v] of [['max_tokens', 100000], ['temperature', 0]]) { const x = document.getElementById(k); x.value = v; x.dispatchEvent(new Event('change')); } }")
    keys(find("textbox", "Message"), "More\ue007")
    before = js("() => document.getElementById('held').textContent")
    # (where the model is fast, its text may have met EOS by now)
    check("it writes", until("() => document.querySelectorAll('#log .m.assistant').length === 2"))
    check("the memory follows", until("x => document.getElementById('held').textContent !== x", before, seconds=20))
    click(find("button", "Stop"))
    check("stop", settled() and s.quiet())
    # (the server notices at its next step, and lists the turn from then on)
    check("what was stopped stays", until("() => document.querySelectorAll('#log .m.assistant').length === 2 && /^\\d+ tokens/.test(document.querySelector('#sessions small').textContent)"))
    check("it has a title", until("() => document.querySelector('[aria-current]').textContent.startsWith('Hello')"))
    js("() => { const x = document.getElementById('max_tokens'); x.value = 20; x.dispatchEvent(new Event('change')); }")
    # undo, fork, a question on a fork
    click(find("button", "Undo"))
    check("undo", until("() => document.querySelectorAll('#log .m.assistant').length === 1"))
    click(find("button", "Fork"))
    check("fork", until("x => location.hash.slice(1) !== x", name))
    click(find("checkbox", "Ask on a fork"))
    keys(find("textbox", "Message"), "Aside\ue007")
    check("a question on a fork", until("() => document.querySelectorAll('#log .m.aside').length === 2 && document.getElementById('stop').disabled"))
    # the memory's choice, completion
    js("() => { const x = document.getElementById('layer'); x.value = '1'; x.dispatchEvent(new Event('change')); }")
    click(find("button", "New"))
    check("new", until("() => document.querySelectorAll('#log .m').length === 0"))
    click(find("tab", "Completion"))
    text = find("textbox", "Text")
    keys(text, "Once upon")
    click(find("button", "Continue"))
    check("completion", until("() => document.getElementById('text').value.length > 15 && document.getElementById('stop').disabled") and settled())
    check("it goes on behind the text", js("() => document.getElementById('text').value.startsWith('Once upon')"))
    # a long one: at most one append a frame, and the page answers meanwhile
    js("""() => { window.appends = 0; window.frames_ = 0; const add = HTMLTextAreaElement.prototype.setRangeText;
        HTMLTextAreaElement.prototype.setRangeText = function (...x) { appends++; return add.apply(this, x); };
        const frame = () => { frames_++; requestAnimationFrame(frame); }; requestAnimationFrame(frame); }""")
    b.setting("max_tokens", 2000)
    click(find("button", "Continue"))
    answered = 0
    while not js("() => document.getElementById('stop').disabled && document.getElementById('text').value.length > 1500"):
        answered += 1
        if answered > 3000:
            break
    check("a long text", settled() and answered < 3000, answered)
    check("one append a frame", js("() => appends > 0 && appends <= frames_ + 1"), js("() => [appends, frames_]"))
    b.setting("max_tokens", 20)
    # a session of 100,000 tokens: typing and writing on take the page's thread no longer than they should
    s.post("/v1/sessions", {"id": "long"})
    words = " ".join("word%d" % (i % 977) for i in range(20000))[:99990]
    check("a long session", s.post("/v1/completions", {"session": "long", "prompt": words, "max_tokens": 0})[0] == 200)
    go("about:blank")
    go(home + "#long")
    check("... opens", settled() and until("n => document.getElementById('log').textContent.length >= n && document.getElementById('text').value.length >= n", len(words)))
    b.setting("max_tokens", 200)
    js("() => document.getElementById('tab-chat').click()")
    before = b.worked()
    keys(find("textbox", "Message"), "these are thirty keys or so...")
    typed = b.worked() - before
    keys(find("textbox", "Message"), "\ue007")
    check("... answers", until("() => document.querySelectorAll('#log .m.assistant').length === 1 && document.getElementById('stop').disabled") and settled())
    time.sleep(0.5)
    wrote = b.worked() - before - typed
    check("... typing takes %.3f s" % typed, typed < 0.4)
    check("... an answer %.3f s" % wrote, wrote < 3)
    click(find("button", "New"))
    check("new again", until("() => document.querySelectorAll('#log .m').length === 0"))
    b.setting("max_tokens", 20)
    # texts are text
    js("() => document.getElementById('tab-chat').click()")
    js("() => { document.getElementById('aside').checked = false; }")
    keys(find("textbox", "Message"), "<img src=x onerror=alert(1)>\ue007")
    check("markup is text", settled() and until("() => document.querySelector('#log .m.user:last-of-type, #log .m.user') && !document.querySelector('#log img')"))
    # dark, narrow
    dark = js("() => getComputedStyle(document.body).backgroundColor")
    click(find("switch", "Dark"))
    check("dark", js("() => getComputedStyle(document.body).backgroundColor") != dark)
    # every text on what is behind it, transparent layers and all, in both schemes
    contrast = """() => { const part = s => { const m = /rgba?\\(([^)]+)\\)/.exec(s)[1].split(',').map(Number); return m.length < 4 ? [...m, 1] : m; };
        const light = c => { const v = c.map(x => (x /= 255) <= 0.03928 ? x / 12.92 : ((x + 0.055) / 1.055) ** 2.4); return 0.2126 * v[0] + 0.7152 * v[1] + 0.0722 * v[2]; };
        const behind = e => { const all = []; for (; e; e = e.parentElement) { const c = part(getComputedStyle(e).backgroundColor); all.push(c); if (c[3] === 1) break; }
            return all.reduceRight((under, c) => [0, 1, 2].map(i => c[3] * c[i] + (1 - c[3]) * under[i]), [255, 255, 255]); };
        return [...document.querySelectorAll('body *')].filter(e => e.offsetParent && !e.disabled && [...e.childNodes].some(n => n.nodeType === 3 && n.textContent.trim())).map(e => {
            const a = light(part(getComputedStyle(e).color).slice(0, 3)), b = light(behind(e));
            return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), e.tagName, e.id, e.className]; }).filter(x => x[0] < 4.5); }"""
    js("() => { const d = document.querySelector('.m.user div'); for (const c of ['', 'h2', 'h3']) { const m = document.createElement('mark'); m.className = c; m.textContent = 'x'; d.append(m); } }")
    for scheme in ("dark", "light"):
        check("contrast, " + scheme, js(contrast) == [], js(contrast))
        click(find("switch", "Dark"))
    b.size(360, 800)
    check("360 px", until("() => document.documentElement.scrollWidth <= window.innerWidth", seconds=5), js("() => [document.documentElement.scrollWidth, window.innerWidth]"))
    small = js("() => [...document.querySelectorAll('button, select, input:not([hidden])')].filter(x => x.offsetParent && (x.offsetWidth < 24 || x.offsetHeight < 24)).map(x => x.id)")
    check("targets", small == [], small)
    check("an empty console", console() == [], console())
    size = len(s.get("/page.js", raw=True)[1]) + len(s.get("/page.css", raw=True)[1]) + len(s.get("/", raw=True)[1])
    check("under 100 kB", size < 100000, size)
    csp = s.get("/")[2].getheader("Content-Security-Policy")
    check("CSP", "default-src 'none'" in csp and "unsafe" not in csp and "frame-ancestors 'none'" in csp, csp)
finally:
    b.close()
    s.stop()
finish()
