"""serve_client.py -- a server to test, and clients that are kind, rude or gone. The standard library alone."""
import http.client
import json
import os
import re
import resource
import signal
import socket
import struct
import subprocess
import sys
import time

HOLA = os.environ.get("HOLA", "./hola")
checks = failures = 0


def check(what, ok, said=""):
    global checks, failures
    checks += 1
    if not ok:
        failures += 1
        print("FAILED: %s %s" % (what, str(said)[:400]), flush=True)
    return ok


def finish():
    print("%d checks, %d failed" % (checks, failures))
    sys.exit(failures > 0)


class Server:
    def __init__(self, model, *args, env=None, files=None, limit=None, stderr=None):
        self.args = [HOLA, "serve", "-m", model, "--port", "0", *args]
        limit = (lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (files, files))) if files else limit
        self.log = open(stderr, "wb") if stderr else subprocess.DEVNULL
        self.p = subprocess.Popen(self.args, stdout=subprocess.PIPE, stderr=self.log, preexec_fn=limit,
                                  env=dict(os.environ, **(env or {})))
        line = self.p.stdout.readline().decode()
        m = re.match(r"listening on http://127\.0\.0\.1:(\d+)\n$", line)
        self.port = int(m.group(1)) if m else 0

    def stop(self, sig=signal.SIGTERM, wait=60):
        if self.p.poll() is None:
            self.p.send_signal(sig)
        try:
            rc = self.p.wait(wait)
        except subprocess.TimeoutExpired:
            self.p.kill()
            rc = self.p.wait()
        self.p.stdout.close()
        return rc

    def connect(self, timeout=30):
        s = socket.create_connection(("127.0.0.1", self.port), timeout)
        return s

    def refuses(self):
        """Whether nobody listens at its port."""
        try:
            self.connect(1).close()
            return False
        except OSError:
            return True

    def call(self, method, path, body=None, headers=None, timeout=120, raw=False):
        """(status, object or bytes, headers)"""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        h = dict(headers or {})
        if isinstance(body, (dict, list)):
            body = json.dumps(body)
        if body is not None and "Content-Type" not in h and method == "POST":
            h["Content-Type"] = "application/json"
        if isinstance(body, str):
            body = body.encode()
        c.request(method, path, body, h)
        r = c.getresponse()
        data = r.read()
        c.close()
        if not raw and data and "json" in (r.getheader("Content-Type") or ""):
            data = json.loads(data)
        return r.status, data, r

    def get(self, path, **k):
        return self.call("GET", path, **k)

    def post(self, path, body, **k):
        return self.call("POST", path, body, **k)

    def talk(self, data, half_close=False, timeout=20, pieces=1):
        """Raw bytes there, all bytes back until the server closes or is silent."""
        s = self.connect(timeout)
        out = b""
        try:
            step = max(1, len(data) // pieces)
            for i in range(0, len(data), step):
                s.sendall(data[i:i + step])
            if half_close:
                s.shutdown(socket.SHUT_WR)
            while True:
                got = s.recv(65536)
                if not got:
                    break
                out += got
        except (ConnectionError, socket.timeout, BrokenPipeError):
            pass
        s.close()
        return out

    def status_of(self, data, **k):
        out = self.talk(data, **k)
        m = re.match(rb"HTTP/1\.1 (\d\d\d) ", out)
        return int(m.group(1)) if m else 0

    def stream(self, path, body, timeout=120, headers=None):
        """The data of all events, and the whole text."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        c.request("POST", path, json.dumps(dict(body, stream=True)), dict({"Content-Type": "application/json"}, **(headers or {})))
        r = c.getresponse()
        raw = r.read().decode()
        c.close()
        events = [e[6:] for e in raw.split("\n\n") if e.startswith("data: ")]
        return r.status, [json.loads(e) if e != "[DONE]" else e for e in events], raw

    def metric(self, name):
        for line in self.get("/metrics", raw=True)[1].decode().splitlines():
            if line.startswith(name + " "):
                return float(line.split()[-1])
        return None

    def descriptors(self):
        return len(os.listdir("/proc/%d/fd" % self.p.pid))

    def resident(self):
        with open("/proc/%d/statm" % self.p.pid) as f:
            return int(f.read().split()[1]) * 4096

    def quiet(self, seconds=20):
        """Until nothing runs."""
        end = time.time() + seconds
        while time.time() < end:
            if self.metric("hola_requests_running") == 0 and self.metric("hola_requests_waiting") == 0:
                return True
            time.sleep(0.02)
        return False


def soon(true, seconds=20):
    """Whether it becomes true: a loaded machine takes its time."""
    end = time.time() + seconds
    while time.time() < end:
        try:
            if true():
                return True
        except (OSError, http.client.HTTPException):
            pass
        time.sleep(0.05)
    return False


def reset(sock):
    """Closes with RST."""
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    sock.close()


def request(method, path, body=b"", fields=(), host=b"localhost", version=b"HTTP/1.1"):
    head = b"%s %s %s\r\nHost: %s\r\n" % (method, path, version, host)
    for f in fields:
        head += f + b"\r\n"
    if body:
        head += b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
    return head + b"\r\n" + body
