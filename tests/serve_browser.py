"""serve_browser.py -- Debian's Chromium, driven by chromedriver. The standard library alone."""
import base64
import http.client
import json
import shutil
import subprocess
import time


def installed():
    return shutil.which("chromedriver") and shutil.which("chromium")


class Browser:
    def __init__(self, width=1200, height=900, *more):
        self.driver = subprocess.Popen([shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port, self.base = 0, ""
        while not self.port:
            line = self.driver.stdout.readline().decode()
            if "started successfully on port" in line:
                self.port = int(line.split("port")[1].strip().rstrip("."))
        args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--window-size=%d,%d" % (width, height), *more]
        a = self.wire("POST", "/session", {"capabilities": {"alwaysMatch": {"goog:chromeOptions": {"args": args},
                                                                            "goog:loggingPrefs": {"browser": "ALL"}}}})
        self.base = "/session/" + a["sessionId"]

    def wire(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request(method, self.base + path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        a = json.loads(c.getresponse().read())["value"]
        c.close()
        if isinstance(a, dict) and "error" in a:
            raise RuntimeError(a["message"][:300])
        return a

    def close(self):
        self.wire("DELETE", "")
        self.driver.terminate()
        self.driver.wait()
        self.driver.stdout.close()

    def js(self, code, *args):
        return self.wire("POST", "/execute/sync", {"script": "return (" + code + ").apply(null, arguments)", "args": list(args)})

    def until(self, code, *args, seconds=30):
        end = time.time() + seconds
        while time.time() < end:
            try:
                if self.js(code, *args):
                    return True
            except RuntimeError:
                pass
            time.sleep(0.1)
        return False

    def find(self, role, name):
        """The element with this ARIA role and name, as the browser computes them; likely ones are looked at first."""
        likely = """name => [...document.querySelectorAll('button, textarea, input, select, [role], nav, section, table, progress, dialog')].filter(
            e => [e.getAttribute('aria-label'), e.textContent.trim(), e.closest('label') && e.closest('label').textContent.trim()].includes(name))"""
        for _ in range(20):
            try:
                for e in self.js(likely, name):
                    at = "/element/%s/" % list(e.values())[0]
                    if self.wire("GET", at + "computedlabel") == name and self.wire("GET", at + "computedrole") == role:
                        return list(e.values())[0]
            except RuntimeError:
                pass  # the page changed meanwhile
            time.sleep(0.1)
        return None

    def click(self, ref):
        self.wire("POST", "/element/%s/click" % ref, {})

    def keys(self, ref, text):
        self.wire("POST", "/element/%s/value" % ref, {"text": text})

    def console(self):
        return [x["message"] for x in self.wire("POST", "/se/log", {"type": "browser"}) if x["level"] in ("SEVERE", "WARNING")]

    def go(self, url):
        self.wire("POST", "/url", {"url": url})

    def size(self, width, height):
        """Of what is seen; windows are no narrower than 500 pixels otherwise."""
        self.wire("POST", "/goog/cdp/execute", {"cmd": "Emulation.setDeviceMetricsOverride",
                                                "params": {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}})

    def picture(self, path):
        with open(path, "wb") as f:
            f.write(base64.b64decode(self.wire("GET", "/screenshot")))

    def worked(self):
        """Seconds of processor time that the page's own thread has taken: what a busy machine does not change."""
        self.wire("POST", "/goog/cdp/execute", {"cmd": "Performance.enable", "params": {"timeDomain": "threadTicks"}})
        m = self.wire("POST", "/goog/cdp/execute", {"cmd": "Performance.getMetrics", "params": {}})["metrics"]
        return next(x["value"] for x in m if x["name"] == "TaskDuration")

    def settled(self):
        return self.until("() => document.getElementById('held').textContent.includes('tokens read') && document.getElementById('stop').disabled")

    def setting(self, name, value):
        self.js("(k, v) => { const x = document.getElementById(k); x.value = v; x.dispatchEvent(new Event('change')); }", name, value)
