"""serve_page_faults.py MODEL DIR -- the page when something is in the way: a key, a wrong setting, a server that goes and
comes back; documents, deletion, the keyboard alone, and the scheme that the system asks for."""
import os
import signal
import sys
from serve_browser import Browser, installed
from serve_client import Server, check, finish, soon

model, work = sys.argv[1:3]
if not installed():
    print("SKIP the page in a browser: there is no chromium here")
    sys.exit(77)
folder = os.path.join(work, "page-faults")
basic = ("--tokenizer", "byte", "--session-dir", folder, "--log", "none", "--chat-template", "plain")
s = Server(model, *basic, env={"HOLA_API_KEY": "sesame"})
b = Browser()
js, until, find, click, keys, console, go, settled = b.js, b.until, b.find, b.click, b.keys, b.console, b.go, b.settled
alert = "() => document.getElementById('alert').hidden ? '' : document.getElementById('alert').textContent"


def new():
    """A new session is open; its id."""
    before = js("() => location.hash")
    click(find("button", "New"))
    check("a new one", until("x => location.hash !== x && document.getElementById('held').textContent.startsWith('0 tokens')", before) and settled())
    return js("() => location.hash.slice(1)")


try:
    # a key: asked for, asked for again, kept for this tab alone
    go("http://127.0.0.1:%d/" % s.port)
    check("it asks for a key", until("() => document.getElementById('ask-key').open") and find("dialog", "API key"))
    keys(find("textbox", "API key"), "wrong\ue007")
    check("... again, if it is wrong", until("() => document.getElementById('ask-key').open && document.getElementById('model').textContent === ''"))
    js("() => { document.getElementById('key').value = ''; }")
    keys(find("textbox", "API key"), "sesame\ue007")
    check("then it opens", settled())
    check("the key is in no place that lasts", js("() => JSON.stringify({...localStorage}) + location.href").count("sesame") == 0)
    console()  # (a browser notes every 401)
    s.stop()

    s = Server(model, *basic)
    home = "http://127.0.0.1:%d/" % s.port
    go(home)
    check("it opens without one", settled())
    for k, v in (("max_tokens", 30), ("temperature", 0)):
        b.setting(k, v)
    # a document is read into the session; a question about it
    name = new()
    document = os.path.join(work, "document.txt")
    with open(document, "w") as f:
        f.write("It was a dark and stormy night. " * 200)
    js("() => { window.bars = 0; new MutationObserver(() => bars++).observe(document.getElementById('reading'), {attributes: true}); }")
    keys(list(js("() => document.getElementById('file')").values())[0], os.path.abspath(document))
    check("a document", soon(lambda: s.get("/v1/sessions/" + name)[1]["position"] > 6400), s.get("/v1/sessions/" + name)[1])
    check("... is read", settled(), js(alert))
    check("... with a bar that was shown", until("() => bars >= 2 && document.getElementById('reading').hidden"))
    check("... its text is there", until("() => document.getElementById('log').textContent.includes('stormy night')"))
    at = s.get("/v1/sessions/" + name)[1]["position"]
    click(find("checkbox", "Ask on a fork"))
    keys(find("textbox", "Message"), "Why?\ue008\ue007\ue008And how?\ue007")
    check("a question of two lines, on a fork", until("() => [...document.querySelectorAll('#log .m.aside.user div')].some(x => x.textContent === 'Why?\\nAnd how?')")
          and settled() and s.quiet() and s.get("/v1/sessions/" + name)[1]["position"] == at)
    click(find("checkbox", "Ask on a fork"))
    # what the server says about a value
    b.setting("temperature", 1000)
    keys(find("textbox", "Message"), "Hot\ue007")
    check("the server's sentence", until("() => document.getElementById('alert').textContent.startsWith('temperature: 1000')") and find("textbox", "Message"), js(alert))
    check("the text is not lost", js("() => document.getElementById('message').value") == "Hot")
    b.setting("temperature", 0)
    # delete: it asks
    click(find("button", "Delete"))
    check("it asks", until("() => document.getElementById('ask-delete').open"))
    click(find("button", "No"))
    check("no", until("() => !document.getElementById('ask-delete').open") and s.get("/v1/sessions/" + name)[0] == 200)
    click(find("button", "Delete"))
    click(find("button", "Yes, delete"))
    check("yes", soon(lambda: s.get("/v1/sessions/" + name)[0] == 404) and until("x => location.hash.slice(1) !== x", name))
    check("... and another is open", settled())
    # the keyboard alone reaches all there is
    js("() => { document.getElementById('tab-chat').focus(); }")
    seen = ["tab-chat"]
    for _ in range(60):
        b.wire("POST", "/actions", {"actions": [{"type": "key", "id": "k", "actions": [{"type": "keyDown", "value": "\ue004"}, {"type": "keyUp", "value": "\ue004"}]}]})
        seen.append(js("() => document.activeElement.id"))
        if seen[-1] == "seed":
            break
    want = ["tab-chat", "dark", "new", "fork", "undo", "save", "delete", "log", "message", "send", "add", "aside", "layer", "head", "temperature", "top_p", "top_k", "max_tokens", "seed"]
    check("Tab goes through all", [x for x in seen if x in want] == want, seen)
    check("... and focus is seen", js("() => parseFloat(getComputedStyle(document.activeElement).outlineWidth)") >= 2)
    keys(find("tab", "Chat"), "\ue014")
    check("arrows change the tab", until("() => document.activeElement.id === 'tab-text' && document.activeElement.getAttribute('aria-selected') === 'true' && !document.getElementById('text-form').hidden"))
    keys(find("tab", "Completion"), "\ue012")
    # the system's scheme, until one is chosen
    for scheme in ("dark", "light"):
        b.wire("POST", "/goog/cdp/execute", {"cmd": "Emulation.setEmulatedMedia", "params": {"features": [{"name": "prefers-color-scheme", "value": scheme}]}})
        check("the system's scheme: " + scheme, until("x => document.documentElement.classList.contains('dark') === (x === 'dark')", scheme, seconds=5))
    # Escape ends an answer
    b.setting("max_tokens", 1000000)
    new()
    keys(find("textbox", "Message"), "Go on\ue007")
    check("it writes", until("() => document.querySelectorAll('#log .m.assistant').length === 1"))
    keys(find("textbox", "Message"), "\ue00c")
    check("Escape", settled() and s.quiet())
    b.setting("max_tokens", 30)
    check("nothing in the console but what was refused", all(" 400 " in x or "status of 400" in x for x in console()), console())
    # the server goes, while something is typed, and comes back at the same address
    for x in s.get("/v1/sessions")[1]["data"]:
        s.post("/v1/sessions/%s/save" % x["id"], {})
    port, there = s.port, js("() => location.hash.slice(1)")
    s.stop(signal.SIGKILL)
    js("() => { document.getElementById('message').value = ''; }")
    keys(find("textbox", "Message"), "Still here\ue007")
    check("away: it says so", until("() => !document.getElementById('alert').hidden && document.getElementById('alert').textContent.includes('cannot be reached')"))
    check("away: the text is kept", js("() => document.getElementById('message').value") == "Still here")
    s = Server(model, *basic, "--port", str(port))
    check("back", s.port == port and until("() => document.getElementById('alert').hidden") and settled())
    check("... the same session, the same text", js("() => location.hash.slice(1)") == there and js("() => document.getElementById('message').value") == "Still here")
    keys(find("textbox", "Message"), "\ue007")
    check("... and on", until("() => [...document.querySelectorAll('#log .m.user div')].some(x => x.textContent === 'Still here') && document.getElementById('stop').disabled") and settled())
finally:
    b.close()
    s.stop()
finish()
