"""serve_proxy.py MODEL DIR -- two servers that share a folder, behind HAProxy and behind nginx with the configurations in
docs/serve.md: turns, streams, clients that leave, and a server that dies."""
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from serve_client import Server, check, finish, soon

model, work = sys.argv[1:3]
basic = ("--tokenizer", "byte", "--log", "none", "--parallel", "4")
docs = open(os.path.join(os.path.dirname(os.path.dirname(os.path.abspath(__file__))), "docs", "serve.md")).read()
lone = Server(model, *basic)


def configuration(name):
    """The indented block behind "NAME:" in the documentation."""
    block = re.search(r"%s:\n\n((?:    .*\n|\n)+)" % re.escape(name), docs)
    check("the documentation has %s" % name, block)
    return re.sub("(?m)^    ", "", block.group(1)) if block else ""


class Proxied(Server):
    """The same calls, over the proxy's socket: no port has to be free."""

    def __init__(self, p, path):
        self.p, self.path = p, os.path.relpath(path)

    def connect(self, timeout=60):
        k = socket.socket(socket.AF_UNIX)
        k.settimeout(timeout)
        k.connect(self.path)
        return k

    def call(self, method, path, body=None, headers=None, timeout=60, raw=False):
        c = http.client.HTTPConnection("hola.example", timeout=timeout)
        c.sock = self.connect(timeout)
        c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, json.loads(data) if "json" in (r.getheader("Content-Type") or "") else data, r


def turn(server, session, prompt, **more):
    body = {"session": session, "prompt": prompt, "max_tokens": 7, "temperature": 0, "seed": 1, "ignore_eos": True, "return_token_ids": True}
    return server.post("/v1/completions", dict(body, **more))


def through(name, start):
    folder = os.path.join(work, "proxied-" + name)
    w = [Server(model, *basic, "--session-dir", folder, "--shared-sessions", "--session-lease", "1.5", "--allow-host", "hola.example") for _ in range(2)]
    here = os.path.join(work, name)
    proxy = start(here, w)
    p = Proxied(proxy, here)
    check("%s: health" % name, soon(lambda: p.get("/health")[0] == 200))
    before = [x.metric("hola_generated_tokens_total") for x in w]
    for s in (lone, p):
        check("%s: a session" % name, s.post("/v1/sessions", {"id": name})[0] == 201)
    for i in range(6):
        a = turn(p, name, "turn %d" % i)
        check("%s: a turn" % name, a[0] == 200 and a[1]["choices"] == turn(lone, name, "turn %d" % i)[1]["choices"], a[1])
    check("%s: both had some of them" % name, all(x.metric("hola_generated_tokens_total") > b for x, b in zip(w, before)))
    # a stream comes as it is written, and ends when its client leaves: an answer without end would show nothing otherwise
    gone = sum(x.metric("hola_disconnects_total") for x in w)
    k = p.connect()
    body = json.dumps({"prompt": "a", "max_tokens": 1 << 30, "ignore_eos": True, "stream": True}).encode()
    k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: hola.example\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n" % len(body) + body)
    got = b""
    while got.count(b"data: ") < 20:
        more = k.recv(65536)
        if not more:
            break
        got += more
    check("%s: a stream" % name, got.count(b"data: ") >= 20 and got.startswith(b"HTTP/1.1 200 "), got[:300])
    k.close()
    check("%s: its client leaves" % name, soon(lambda: sum(x.metric("hola_disconnects_total") for x in w) == gone + 1))
    check("%s: a large prompt" % name, p.post("/tokenize", {"content": "ab" * 1000000})[0] == 200)
    check("%s: errors pass" % name, p.post("/v1/completions", {"n": 0})[1]["error"]["param"] == "n")
    w[0].stop(signal.SIGKILL)
    got = []
    check("%s: one dies, the other goes on" % name, soon(lambda: got.append(turn(p, name, "last")) or got[-1][0] == 200)
          and got[-1][1]["choices"] == turn(lone, name, "last")[1]["choices"], got[-1:])
    a, b = w[1].get("/v1/sessions/%s/file" % name)[1], lone.get("/v1/sessions/%s/file" % name)[1]
    check("%s: to the bit as the lone replay" % name, isinstance(a, bytes) and a == b)
    proxy.terminate()
    check("%s: it ends" % name, proxy.wait(20) is not None and w[1].stop() == 0)


def workers(text, w):
    check("two servers are in it", text.count("127.0.0.1:8081") == text.count("127.0.0.1:8082") == 1, text)
    return text.replace("127.0.0.1:8081", "127.0.0.1:%d" % w[0].port).replace("127.0.0.1:8082", "127.0.0.1:%d" % w[1].port)


def start_haproxy(here, w):
    text = workers(configuration("haproxy.cfg"), w).replace("127.0.0.1:8000", "unix@%s mode 600" % os.path.relpath(here))
    with open(here + ".cfg", "w") as f:
        f.write(text)
    return subprocess.Popen([programs["haproxy"], "-db", "-f", here + ".cfg"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


def start_nginx(here, w):
    text = workers(configuration("nginx.conf"), w)
    text = re.sub(r"listen .*;", "listen unix:%s;" % here, re.sub(r"\n *ssl_certificate.*", "", text))  # TLS is nginx's own
    places = "".join("%s_temp_path %s.tmp;\n" % (x, here) for x in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi"))
    with open(here + ".conf", "w") as f:
        f.write("daemon off;\nmaster_process off;\npid %s.pid;\nerror_log %s.log;\nevents {}\nhttp {\naccess_log off;\n%s%s}\n" % (here, here, places, text))
    return subprocess.Popen([programs["nginx"], "-p", work, "-c", os.path.abspath(here + ".conf")], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)


programs = {x: shutil.which(x, path=os.environ.get("PATH", "") + ":/usr/sbin") for x in ("haproxy", "nginx")}
for name, start in (("haproxy", start_haproxy), ("nginx", start_nginx)):
    if programs[name]:
        through(name, start)
    else:
        print("SKIP servers behind %s: it is not installed" % name)
check("it ends", lone.stop() == 0)
finish()
