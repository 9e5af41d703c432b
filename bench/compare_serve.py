"""compare_serve.py HOLA -m MODEL LLAMA_SERVER GGUF -- hola serve beside llama.cpp's server, by one client program.

    python3 bench/compare_serve.py ./hola -m m46 llama-server llama46.gguf [-t 2] [--only throughput,gaps,resume]

Both speak OpenAI's completions. The servers run one after the other on a machine that has nothing else to do; their
command lines are printed. Only the standard library is needed. Prompts are token ids, answers are greedy and of a given
length (ignore_eos), and nothing is taken from a cache but what `resume` is about."""
import argparse
import http.client
import json
import os
import random
import re
import shlex
import socket
import statistics
import subprocess
import tempfile
import time
from serve_streams import Streams, gaps, ms, p99

parser = argparse.ArgumentParser()
parser.add_argument("hola")
parser.add_argument("-m", required=True)
parser.add_argument("llama")
parser.add_argument("gguf")
parser.add_argument("-t", "--threads", type=int, default=2)
parser.add_argument("--only", default="throughput,gaps,resume")
parser.add_argument("--clients", default="16,64")
parser.add_argument("--at-once", action="store_true", help="clients come as soon as a server answers, not 5 s after two short requests")
parser.add_argument("--answer", type=int, default=128, help="tokens of an answer")
parser.add_argument("--long", type=int, default=8192, help="tokens of the long prompt, and of a parked conversation")
parser.add_argument("--conversations", type=int, default=3)
parser.add_argument("--vocab", type=int, default=32000)
parser.add_argument("--kv", default="f16", help="type of llama.cpp's K and V")
parser.add_argument("--batch", type=int, default=0, help="-b and -ub of llama.cpp's server while gaps are measured; 0: its own")
parser.add_argument("--llama-flags", action="append", metavar="FLAGS", help="more options of llama.cpp's server for throughput and gaps; "
                    "several times: each is tried, and its best counts")
parser.add_argument("--json")
o = parser.parse_args()
dice = random.Random(1)
parts = o.only.split(",")
out = {"threads": o.threads, "commands": [], "hola": {}, "llama.cpp": {}}


def tokens(n):
    return [dice.randrange(o.vocab // 2, o.vocab) for _ in range(n)]


class Running:
    """A server, until the end of the block."""

    def __init__(self, who, command):
        with socket.socket() as k:
            k.bind(("127.0.0.1", 0))
            self.port = k.getsockname()[1]
        print("    $ " + shlex.join(os.path.basename(x.rstrip("/")) if "/" in x else x for x in command), flush=True)
        out["commands"].append({"who": who, "command": command})
        self.p = subprocess.Popen(command + ["--port", str(self.port)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.time() + 120
        while time.time() < end:
            try:
                if self.call("GET", "/health")[0] == 200:
                    return
            except OSError:
                time.sleep(0.05)
        self.p.kill()
        raise SystemExit("compare_serve.py: %s did not start" % who)

    def call(self, method, path, body=None):
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=300)
        c.request(method, path, json.dumps(body) if body is not None else None, {"Content-Type": "application/json"})
        r = c.getresponse()
        data = r.read()
        c.close()
        return r.status, data

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.p.terminate()
        try:
            self.p.wait(60)
        except subprocess.TimeoutExpired:
            self.p.kill()
            self.p.wait()


def hola(*more):
    return Running("hola", [o.hola, "serve", "-m", o.m, "-t", str(o.threads), "--log", "none", *more])


def llama(context, *more):
    return Running("llama.cpp", [o.llama, "-m", o.gguf, "-t", str(o.threads), "-c", str(context), "-ctk", o.kv, "-ctv", o.kv, "-cb", "--no-ui", *more])


def best(measure, better, context, *more):
    """llama.cpp's figure with the flags that suit it best."""
    got = []
    for flags in o.llama_flags or [""]:
        with llama(context, *more, *shlex.split(flags)) as s:
            got.append(measure(s))
        if len(o.llama_flags or []) > 1:
            print("    # '%s': %s" % (flags, got[-1]), flush=True)
    return better(got)


def both(name, hola_value, llama_value, text, lower):
    out["hola"][name], out["llama.cpp"][name] = hola_value, llama_value
    ratio = llama_value / hola_value if lower else hola_value / llama_value
    print("| %s | %s | %s | %.1f x |" % (name, text(hola_value), text(llama_value), ratio), flush=True)


def rate(server, n):
    """Tokens a second of n clients, from the first request to the last token; both servers have had 5 s to settle."""
    for warm in (n,) if o.at_once else (2, n):
        q = Streams(server.port)
        begin = time.monotonic()
        answer = 4 if warm < n else o.answer
        for _ in range(warm):
            q.add({"prompt": tokens(32), "max_tokens": answer})
        q.run(lambda: all(x["done"] for x in q.all), 600)
        took = time.monotonic() - begin
        if warm < n:
            time.sleep(5)
    came = sum(len(x["at"]) for x in q.all)
    if came < 0.9 * n * answer:
        raise SystemExit("compare_serve.py: %d of %d tokens came" % (came, n * answer))
    return n * answer / took


def throughput():
    for n in (int(x) for x in o.clients.split(",")):
        with hola("--parallel", str(n)) as s:
            a = rate(s, n)
        b = best(lambda s: rate(s, n), max, n * 512, "-np", str(n))
        both("%d clients%s" % (n, " at once after the start" if o.at_once else ""), a, b, lambda x: "%.0f tokens/s" % x, False)


def reading(server):
    """p99 gap of 16 streams before and while a prompt is read, and how long that takes."""
    q = Streams(server.port)
    writers = [q.add({"prompt": tokens(8), "max_tokens": 2000}) for _ in range(16)]
    q.run(lambda: all(len(w["at"]) > 3 or w["done"] for w in writers), 120)
    begin = time.monotonic()
    q.run(lambda: time.monotonic() > begin + 3)
    before = gaps(writers, begin, time.monotonic())
    x = q.add({"prompt": tokens(o.long), "max_tokens": 1})
    began = time.monotonic()
    q.run(lambda: x["done"], 300)
    if not x["at"]:
        raise SystemExit("compare_serve.py: the long prompt was not read")
    # the gap that the end of the reading falls into counts, too
    q.run(lambda: all(w["done"] or w["at"][-1] > x["ended"] for w in writers), 60)
    during = gaps(writers, began - 0.5, time.monotonic())
    q.close()
    return p99(before), p99(during), x["at"][0] - began


def long_prompt():
    with hola("--parallel", "32") as s:
        a = reading(s)
    # -kvu: one store for all sequences, or each would need room for the long prompt
    own = ["-b", str(o.batch), "-ub", str(o.batch)] if o.batch else []
    b = best(reading, lambda all: min(all, key=lambda x: x[1]), o.long + 17 * 2048, "-np", "17", "-kvu", *own)
    for i, name in enumerate(("p99 gap of 16 writing clients", "... while %d tokens are read" % o.long, "the first token of that prompt")):
        both(name, a[i], b[i], ms, True)


def first(server, body):
    q = Streams(server.port)
    x = q.add(body)
    q.run(lambda: x["done"], 300)
    if not x["at"]:
        raise SystemExit("compare_serve.py: no token came")
    return x["at"][0]


def resume(work):
    """A conversation goes on after the server was started anew: from the request to the first token."""
    texts = [tokens(o.long) for _ in range(o.conversations)]
    more = [tokens(8) for _ in texts]
    folder = os.path.join(work, "sessions")
    with hola("--session-dir", folder) as s:
        for i, t in enumerate(texts):
            s.call("POST", "/v1/sessions", {"id": "c%d" % i})
            first(s, {"session": "c%d" % i, "prompt": t, "max_tokens": 2})
            s.call("POST", "/v1/sessions/c%d/save" % i, {})
    mine = []
    with hola("--session-dir", folder) as s:
        first(s, {"prompt": tokens(32), "max_tokens": 2})
        for i, m in enumerate(more):
            if b'"disk"' not in s.call("GET", "/v1/sessions/c%d" % i)[1]:
                raise SystemExit("compare_serve.py: the conversation is not on the disk")
            began = time.monotonic()
            mine.append(first(s, {"session": "c%d" % i, "prompt": m, "max_tokens": 2}) - began)
    hola_bytes = sum(os.path.getsize(os.path.join(folder, x)) for x in os.listdir(folder)) / len(texts)
    slots = os.path.join(work, "slots")
    os.mkdir(slots)
    context, own = o.long + 512, ["-np", "1", "--slot-save-path", slots + "/"]
    answers = []
    with llama(context, *own) as s:
        for i, t in enumerate(texts):
            body = {"prompt": t, "max_tokens": 2, "id_slot": 0, "temperature": 0, "ignore_eos": True, "return_tokens": True}
            answers.append(json.loads(s.call("POST", "/completion", dict(body, n_predict=2))[1])["tokens"])
            status, said = s.call("POST", "/slots/0?action=save", {"filename": "c%d" % i})
            if status != 200:
                raise SystemExit("compare_serve.py: llama.cpp did not save: %s" % said[:300])
    restored, reread = [], []
    with llama(context, *own) as s:
        first(s, {"prompt": tokens(32), "max_tokens": 2})
        for i, t in enumerate(texts):
            began = time.monotonic()
            status, said = s.call("POST", "/slots/0?action=restore", {"filename": "c%d" % i})
            if status != 200:
                raise SystemExit("compare_serve.py: llama.cpp did not restore: %s" % said[:300])
            restored.append(first(s, {"prompt": t + answers[i] + more[i], "max_tokens": 2, "id_slot": 0, "cache_prompt": True}) - began)
        for i, t in enumerate(texts):
            began = time.monotonic()
            reread.append(first(s, {"prompt": t + answers[i] + more[i], "max_tokens": 2, "id_slot": 0}) - began)
    llama_bytes = sum(os.path.getsize(os.path.join(slots, x)) for x in os.listdir(slots)) / len(texts)
    both("resume of %d tokens" % o.long, statistics.median(mine), statistics.median(restored), ms, True)
    both("... against reading them again", statistics.median(mine), statistics.median(reread), ms, True)
    both("its file", hola_bytes / 1e6, llama_bytes / 1e6, lambda x: "%.1f MB" % x, True)


version = subprocess.run([o.llama, "--version"], capture_output=True, text=True)
version = re.search(r"version: .*", version.stderr + version.stdout)
print("llama.cpp %s, %d threads, %s and %s" % (version.group(0) if version else "", o.threads, os.path.basename(o.m), os.path.basename(o.gguf)))
print("| | hola | llama.cpp | |\n|---|---|---|---|")
with tempfile.TemporaryDirectory() as work:
    if "throughput" in parts:
        throughput()
    if "gaps" in parts:
        long_prompt()
    if "resume" in parts:
        resume(work)
if o.json:
    with open(o.json, "w") as f:
        json.dump(out, f, indent=1)
