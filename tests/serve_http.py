"""serve_http.py MODEL DIR -- HTTP as well-behaved clients, browsers and proxies use it: methods, headers, bodies in
chunks, kept connections, and what a server says while it shuts down."""
import http.client
import json
import os
import re
import socket
import sys
import time
from serve_client import HOLA, Server, check, finish, request, soon

model, work = sys.argv[1:3]
s = Server(model, "--tokenizer", "byte", "--log", "none", "--cors", "http://app.example", "--alias", "one", "--alias", "two",
           "--connections", "30", "--timeout-body", "20", "--timeout-drain", "20")
CLOSE = b"Connection: close"
ANSWERED = ("X-Request-Id", "X-Content-Type-Options", "Cache-Control")  # headers of every answer


def answers(data):
    """(status, headers, body) of all answers in a connection's bytes."""
    out = []
    while data:
        head, _, data = data.partition(b"\r\n\r\n")
        lines = head.decode().split("\r\n")
        fields = {k.lower(): v for k, v in (x.split(": ", 1) for x in lines[1:])}
        n = int(fields.get("content-length", 0))
        out.append((int(lines[0].split()[1]), fields, data[:n]))
        data = data[n:]
    return out


def post(body, path=b"/tokenize", fields=()):
    return request(b"POST", path, json.dumps(body).encode(), fields)


# every endpoint: HEAD is GET without a body, OPTIONS says what may be asked, every other method gets 405
s.post("/v1/sessions", {"id": "x"})
methods = {"/": "GET", "/page.css": "GET", "/page.js": "GET", "/health": "GET", "/v1/models": "GET", "/v1/models/one": "GET", "/metrics": "GET",
           "/v1/completions": "POST", "/v1/chat/completions": "POST", "/tokenize": "POST", "/detokenize": "POST", "/apply-template": "POST",
           "/v1/sessions": "GET POST", "/v1/sessions/x": "GET POST DELETE", "/v1/sessions/x/fork": "POST", "/v1/sessions/x/rollback": "POST",
           "/v1/sessions/x/save": "POST", "/v1/sessions/x/file": "GET PUT", "/v1/sessions/x/messages": "GET", "/v1/sessions/x/tokens": "GET",
           "/v1/sessions/x/memory": "GET"}
for path, which in methods.items():
    allow = set(which.split()) | {"OPTIONS"} | ({"HEAD"} if "GET" in which else set())
    a = s.call("OPTIONS", path)
    check("OPTIONS %s" % path, a[0] == 204 and set(a[2].getheader("Allow").split(", ")) == allow, (a[0], a[2].getheaders()))
    for m in {"GET", "HEAD", "POST", "PUT", "DELETE", "PATCH", "TRACE"} - allow:
        a = s.call(m, path, b"{}", {"Content-Type": "application/json"}, raw=True)
        check("405: %s %s" % (m, path), a[0] == 405 and set(a[2].getheader("Allow").split(", ")) == allow, (a[0], a[2].getheaders()))
    if "GET" in which:
        one, two = s.call("GET", path, raw=True), s.call("HEAD", path, raw=True)
        same = one[0] == two[0] and one[2].getheader("Content-Type") == two[2].getheader("Content-Type") and two[1] == b""
        same = same and (path == "/metrics" or path.endswith("file") or two[2].getheader("Content-Length") == str(len(one[1])))
        check("HEAD %s" % path, same, (one[0], two[0], two[2].getheaders()))
        check("headers of %s" % path, all(one[2].getheader(x) for x in ANSWERED), one[2].getheaders())
check("OPTIONS *", s.talk(request(b"OPTIONS", b"*", fields=[CLOSE])).startswith(b"HTTP/1.1 204 "))
check("OPTIONS of nothing", s.call("OPTIONS", "/nothing")[0] == 404)

# the page's files may be kept; nothing else
for path in ("/", "/page.css", "/page.js"):
    tag = s.get(path, raw=True)[2].getheader("ETag")
    a = s.get(path, raw=True, headers={"If-None-Match": 'W/"x", ' + tag})
    check("304 for %s" % path, a[0] == 304 and a[1] == b"" and a[2].getheader("ETag") == tag, (a[0], a[1]))
    check("... not with another tag", s.get(path, raw=True, headers={"If-None-Match": '"0000000000000000"'})[0] == 200)
check("no-store", s.get("/v1/models")[2].getheader("Cache-Control") == "no-store")

# pages of other origins
cors = {"Origin": "http://app.example"}
asked = "authorization,content-type,x-stainless-lang,x-stainless-retry-count"
a = s.call("OPTIONS", "/v1/completions", headers=dict(cors, **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": asked}))
check("a preflight may name headers", a[0] == 204 and a[2].getheader("Access-Control-Allow-Headers") == asked, a[2].getheaders())
a = s.call("OPTIONS", "/v1/completions", headers=dict(cors, **{"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "a;b\"c"}))
check("... odd ones are not copied", a[0] == 204 and ";" not in a[2].getheader("Access-Control-Allow-Headers"), a[2].getheaders())
a = s.get("/v1/models", headers=cors)
check("an answer to it", a[2].getheader("Access-Control-Allow-Origin") == cors["Origin"] and a[2].getheader("Vary") == "Origin", a[2].getheaders())
a = s.get("/v1/models", headers={"Origin": "http://127.0.0.1:%d" % s.port})
check("none for others", not any(k.startswith("Access-Control") for k, _ in a[2].getheaders()), a[2].getheaders())
status, _, raw = s.stream("/v1/completions", {"prompt": "a", "max_tokens": 2}, headers=cors)
check("a stream to it", status == 200 and "[DONE]" in raw)

# bodies
def chunked(data, sizes, trailer=b""):
    out, i = b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json; charset=utf-8\r\nTransfer-Encoding: Chunked\r\n\r\n", 0
    for n in sizes:
        part, i = data[i:i + n], i + n
        out += b"%X;x=1\r\n%s\r\n" % (len(part), part)
    return out + b"0\r\n" + trailer + b"\r\n"


body = json.dumps({"content": "abcdef"}).encode()
data = chunked(body, (1, len(body) - 1), b"X-Checksum: 1\r\nContent-Length: 5\r\n") + chunked(body, (len(body),)) + request(b"GET", b"/health", fields=[CLOSE])
got = answers(s.talk(data))
check("chunks, a trailer, and the next request", [a[0] for a in got] == [200, 200, 200] and got[0][2] == got[1][2], got)
got = answers(s.talk(request(b"GET", b"/health") + b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}" +
                     request(b"GET", b"/health")))
check("nothing is answered behind a body that was not read", [a[0] for a in got] == [200, 415] and got[1][1]["connection"] == "close", got)
got = answers(s.talk(request(b"GET", b"/nothing") + post({"content": 5}) + request(b"GET", b"/health", fields=[CLOSE])))
check("errors keep the connection", [a[0] for a in got] == [404, 400, 200], got)
check("... with the headers of every answer", all(all(x.lower() in a[1] for x in ANSWERED) for a in got), got)
got = answers(s.talk(b"GET /health HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\nabc" + request(b"GET", b"/health", fields=[CLOSE])))
check("a GET with a body", [a[0] for a in got] == [200, 200], got)
k = s.connect()
k.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\nExpect: 100-Continue\r\n\r\n")
check("100 before chunks", k.recv(100) == b"HTTP/1.1 100 Continue\r\n\r\n")
k.sendall(chunked(body, (len(body),)).split(b"\r\n\r\n", 1)[1])
check("... then 200", k.recv(4096).startswith(b"HTTP/1.1 200 "))
k.close()
got = answers(s.talk(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: text/plain\r\nContent-Length: 9\r\nExpect: 100-continue\r\n\r\n"))
check("no 100 for what is refused", [a[0] for a in got] == [415], got)
got = answers(s.talk(b"GET /health HTTP/1.0\r\nConnection: keep-alive\r\n\r\n"))
check("HTTP/1.0 is closed", [a[0] for a in got] == [200] and got[0][1]["connection"] == "close", got)
old = s.talk(b"POST /v1/completions HTTP/1.0\r\nContent-Type: application/json\r\nContent-Length: 45\r\n\r\n" + b'{"prompt": "a", "max_tokens":2,"stream":true}')
check("... a stream, too, without chunks", b"chunked" not in old and old.endswith(b"data: [DONE]\n\n"), old[-200:])
check("a parameter of JSON's type", s.call("POST", "/tokenize", body, {"Content-Type": "application/json;charset=UTF-8"})[0] == 200)

# a connection too many hears so, even if its request is on the way
k = [s.connect() for _ in range(30)]
check("30 of them", soon(lambda: len(k) == 30 and s.descriptors() >= 35))
got = answers(s.talk(request(b"GET", b"/health")))
check("one too many", got and got[0][0] == 503 and json.loads(got[0][2])["error"]["code"] == "overloaded"
      and all(x.lower() in got[0][1] for x in ANSWERED) and got[0][1]["retry-after"], got)
[x.close() for x in k]
check("and again", soon(lambda: s.get("/health")[0] == 200))

# metrics: the names that are promised, each with HELP and TYPE
s.post("/v1/completions", {"prompt": "a", "max_tokens": 3, "model": "two"})
text = s.get("/metrics", raw=True)[1].decode()
kinds = dict(re.findall(r"# TYPE (\S+) (\S+)", text))
counters = """hola_requests_total hola_prompt_tokens_total hola_prompt_tokens_cached_total hola_generated_tokens_total hola_steps_total
    hola_step_sessions_total hola_disconnects_total hola_rejected_total hola_session_saves_total hola_session_save_errors_total""".split()
gauges = """hola_requests_running hola_requests_waiting hola_connections hola_sessions hola_session_bytes hola_snapshots hola_snapshot_bytes
    process_resident_memory_bytes process_start_time_seconds hola_build_info""".split()
histograms = ["hola_queue_seconds", "hola_time_to_first_token_seconds", "hola_inter_token_seconds"]
want = dict([(x, "counter") for x in counters] + [(x, "gauge") for x in gauges] + [(x, "histogram") for x in histograms])
check("metrics", kinds == want and set(re.findall(r"# HELP (\S+) \S", text)) == set(want), set(kinds) ^ set(want))
for x in histograms:
    counts = [int(n) for n in re.findall(x + r'_bucket\{le="[^"]+"\} (\d+)', text)]
    check(x, counts == sorted(counts) and counts[-1] == s.metric(x + "_count") > 0 and s.metric(x + "_sum") is not None, counts)
check("requests by endpoint", re.search(r'hola_requests_total\{endpoint="/v1/completions",code="200"\} \d', text), text[:600])
check("the model's name is the request's", s.post("/v1/completions", {"prompt": "a", "model": "two"})[1]["model"] == "two")

# who waits hears that it waits, every 5 seconds; the log has a line for each request and none of its text
log = os.path.join(work, "log.json")
one = Server(model, "--tokenizer", "byte", "--log", "json", "--parallel", "1", stderr=log)
run, wait = one.connect(), one.connect()
run.sendall(post({"prompt": "hush-hush", "max_tokens": 1000000, "stream": True, "ignore_eos": True}, b"/v1/completions"))
while b"data: " not in run.recv(65536):
    pass
began = time.time()
wait.sendall(post({"prompt": "hush-hush", "max_tokens": 3, "stream": True, "ignore_eos": True}, b"/v1/completions", [b"X-Request-Id: patient"]))
got = b""
while b": wait\n\n" not in got and time.time() - began < 30:
    got += wait.recv(4096)
check("a comment in silence", b": wait\n\n" in got and b"data: " not in got and time.time() - began > 4.5, got)
run.close()
while b"[DONE]" not in got:
    got += wait.recv(65536)
check("... then the answer", b'"finish_reason":"length"' in got, got[-300:])
wait.close()
one.post("/v1/chat/completions", {"messages": [{"role": "user", "content": "hush-hush"}], "max_tokens": 2}, headers={"Authorization": "Bearer hush-key"})
one.get("/nothing")
check("it ends", one.stop() == 0)
with open(log) as f:
    said = f.read()
lines = [json.loads(x) for x in said.splitlines() if x.startswith("{")]
check("no text, no key in the log", "hush" not in said, said[:400])
check("its fields", all(set(x) == {"time", "id", "call", "status", "read", "cached", "written", "seconds"} for x in lines), lines[:1])
check("its lines", [(x["call"], x["status"]) for x in lines][-3:] == [("POST /v1/completions", 200), ("POST /v1/chat/completions", 200), ("GET other", 404)]
      and [x["read"] + x["cached"] for x in lines if x["id"] == "patient"] == [10] and [x["written"] for x in lines if x["id"] == "patient"] == [3], lines)

# memory: what 64 answers need was ready before the first connection, so the thread that talks to all of them takes none
# that is new to the process, nor after some was freed; it is the first one, whose number is the process's
def new_pages(server):
    with open("/proc/%d/task/%d/stat" % (server.p.pid, server.p.pid)) as f:
        return int(f.read().rsplit(")", 1)[1].split()[7])


fresh = Server(model, "--tokenizer", "byte", "--log", "none", "--parallel", "64")
with open("/proc/%d/maps" % fresh.p.pid) as f:
    glibc = "libc.so.6" in f.read()
body = {"prompt": "a" * 64, "max_tokens": 1000, "ignore_eos": True}
for turn in ("the first 64 answers", "64 more"):
    before = new_pages(fresh)
    k = [fresh.connect(120) for _ in range(64)]
    [x.sendall(post(body, b"/v1/completions", [CLOSE])) for x in k]
    got = [b"".join(iter(lambda: x.recv(65536), b"")) for x in k]
    [x.close() for x in k]
    taken = new_pages(fresh) - before
    check("%s came" % turn, all(x.startswith(b"HTTP/1.1 200 ") for x in got), got[0][:300])
    check("%s: new pages" % turn, taken < 30 or not glibc or HOLA.endswith("san/hola"), taken)
fresh.stop()

# shutting down: what runs goes on, what comes on a kept connection is turned down, a body is not waited for
run = s.connect()
run.sendall(post({"prompt": "a", "max_tokens": 1000000, "stream": True, "ignore_eos": True}, b"/v1/completions"))
while b"data: " not in run.recv(65536):
    pass
kept = [http.client.HTTPConnection("127.0.0.1", s.port, timeout=30) for _ in range(3)]
for c in kept:
    c.request("GET", "/health")
    c.getresponse().read()
half = s.connect()
half.sendall(b"POST /tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 100\r\n\r\n{")
time.sleep(0.2)
s.p.terminate()

check("the port is free", soon(s.refuses))
for c, path in zip(kept, ("/health", "/v1/models")):
    c.request("GET", path)
    r = c.getresponse()
    said = json.loads(r.read())
    check("shutting down: %s" % path, r.status == 503 and said["error"]["code"] == "shutting_down" and r.getheader("Retry-After"), said)
check("... a body", b"shutting_down" in half.recv(4096))
check("... what runs goes on", b"data: " in run.recv(65536))
run.close()
started = time.time()
check("it ends when that has ended", s.stop() == 0 and time.time() - started < 10, time.time() - started)
[c.close() for c in kept]
finish()
