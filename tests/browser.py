"""browser.py -- Debian's Chromium by chromedriver, over plain HTTP: pages at any size and in both colour schemes."""
import base64
import http.client
import json
import shutil
import subprocess
import time


def missing():
    """Why there is no browser; empty where there is one."""
    return "" if shutil.which("chromedriver") and shutil.which("chromium") else "there is no chromium with chromedriver here"


class Browser:
    def __init__(self):
        self.driver = subprocess.Popen([shutil.which("chromedriver"), "--port=0"], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
        self.port, self.session = 0, ""
        while not self.port:
            line = self.driver.stdout.readline().decode()
            if not line:
                raise RuntimeError("chromedriver does not start")
            if "started successfully on port" in line:
                self.port = int(line.split("port")[1].strip().rstrip("."))
        args = ["--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--hide-scrollbars", "--force-device-scale-factor=1"]
        a = self.wire("POST", "/session", {"capabilities": {"alwaysMatch": {
            "goog:chromeOptions": {"args": args}, "goog:loggingPrefs": {"browser": "ALL", "performance": "ALL"}}}})
        self.session = "/session/" + a["sessionId"]

    def wire(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        c.request(method, self.session + path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        a = json.loads(c.getresponse().read())["value"]
        c.close()
        if isinstance(a, dict) and "error" in a:
            raise RuntimeError(a["message"][:300])
        return a

    def js(self, code, *args):
        return self.wire("POST", "/execute/sync", {"script": "return (" + code + ").apply(null, arguments)", "args": list(args)})

    def until(self, code, *args, seconds=20):
        end = time.time() + seconds
        while time.time() < end:
            if self.js(code, *args):
                return True
            time.sleep(0.05)
        return False

    def cdp(self, cmd, **params):
        return self.wire("POST", "/goog/cdp/execute", {"cmd": cmd, "params": params})

    def look(self, width, height, scheme, scale=1):
        self.cdp("Emulation.setDeviceMetricsOverride", width=width, height=height, deviceScaleFactor=scale, mobile=width < 600)
        self.cdp("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])

    def go(self, url):
        self.wire("POST", "/url", {"url": url})

    def log(self, kind):
        return self.wire("POST", "/se/log", {"type": kind})

    def complaints(self):
        return [x["message"] for x in self.log("browser") if x["level"] in ("SEVERE", "WARNING")]

    def requested(self):
        """The addresses that the browser asked for since the last call."""
        sent = [json.loads(x["message"])["message"] for x in self.log("performance")]
        return [m["params"]["request"]["url"] for m in sent if m["method"] == "Network.requestWillBeSent"]

    def shot(self, path, whole=True):
        a = self.cdp("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        with open(path, "wb") as f:
            f.write(base64.b64decode(a["data"]))

    def close(self):
        try:
            self.wire("DELETE", "")
        except (OSError, RuntimeError):
            pass
        self.driver.terminate()
        self.driver.wait()
