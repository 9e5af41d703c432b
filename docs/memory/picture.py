"""picture.py HOLA OUT.png [LAYER HEAD] -- the page of hola inspect --memory with the bundled model and town.txt, as the
README shows it. Needs Debian's chromium and chromium-driver."""
import os
import subprocess
import sys
import tempfile

here = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, os.path.join(here, "..", "..", "tests"))
from serve_browser import Browser  # noqa: E402

layer, head = sys.argv[3:5] if len(sys.argv) > 4 else ("7", "2")
with tempfile.TemporaryDirectory() as work:
    page = os.path.join(work, "memory.html")
    subprocess.run([sys.argv[1], "inspect", "-m", os.path.join(here, "..", "..", "models", "hola-46m"), "--memory", "-f",
                    os.path.join(here, "town.txt"), "--html", page], check=True, stdout=subprocess.DEVNULL)
    b = Browser(1200, 1170, "--hide-scrollbars")
    try:
        b.size(1200, 1170)
        b.go("file://" + page)
        for name, value in (("layer", layer), ("head", head)):
            b.js("""(name, value) => { const e = document.getElementById(name); e.value = value;
                e.dispatchEvent(new Event('change')); }""", name, value)
        b.picture(sys.argv[2])
    finally:
        b.close()
