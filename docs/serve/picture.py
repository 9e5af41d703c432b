"""picture.py HOLA OUT.png [WIDTH HEIGHT [dark]] -- the page of hola serve with the bundled model, as the README shows it.
Needs Debian's chromium and chromium-driver."""
import os
import sys

os.environ["HOLA"] = os.path.abspath(sys.argv[1])
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "tests"))
from serve_browser import Browser  # noqa: E402
from serve_client import Server  # noqa: E402

width, height = (int(x) for x in sys.argv[3:5]) if len(sys.argv) > 4 else (1200, 760)
s = Server(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..", "models", "hola-46m"), "--log", "none")
b = Browser(width, height)
try:
    b.size(width, height)
    for title, prompt, n in (("The cat", "The cat sat down and said, \"", 180), ("A letter", "My dear friend,\n", 340),
                             ("The old house", "Once upon a time there was an old house at the end of the road. ", 620)):
        one = s.post("/v1/sessions", {"metadata": {"title": title}})[1]["id"]
        s.post("/v1/completions", {"session": one, "prompt": prompt, "max_tokens": n, "temperature": 0.7, "top_p": 0.9,
                                   "repeat_penalty": 1.1, "seed": 7, "ignore_eos": True})
    b.go("http://127.0.0.1:%d/#%s" % (s.port, one))
    b.settled()
    if sys.argv[5:] == ["dark"]:
        b.click(b.find("switch", "Dark"))
    b.setting("max_tokens", 24)
    b.setting("seed", 3)
    b.click(b.find("button", "Continue"))
    b.until("() => document.getElementById('speed').textContent && document.getElementById('stop').disabled")
    b.settled()
    b.until("""() => document.querySelector('#sessions [aria-current] small').textContent.startsWith(
        parseInt(document.getElementById('held').textContent) + ' tokens')""")
    b.js("""() => { document.activeElement.blur(); const log = document.getElementById('log'), marks = log.querySelectorAll('mark');
        marks[marks.length - 1].scrollIntoView({block: 'end'}); log.scrollTop += 60;
        const text = document.getElementById('text'); text.scrollTop = text.scrollHeight; scrollTo(0, 0); }""")
    b.picture(sys.argv[2])
finally:
    b.close()
    s.stop()
