"""serve_promises.py HOLA -m MODEL -- what hola serve promises (docs/serve.md), measured: ratios within one run.

    python3 bench/serve_promises.py ./hola -m model [--backend cpu] [--only P1,P6] [--json FILE]

The machine should have nothing else to do. Only the standard library is needed, and bench_streams, which reads the
streams of P1, P2 and P5: `make build/cc/bench/streams`, and in the archive of `make pack-cuda`. P6 has a server of its
own, the others share one; P5 comes first that makes many steps, since its server must not have made any before.
--long, --requests and --connections make it shorter where a machine is slow; the table names the numbers that were used.

A promise that fails, whatever the reason, takes none of the others with it: its row says why, and the next one gets a
new server. --limit (--quick: 40) ends each after so many seconds, --total all. The JSON file is written anew after every
promise, and rows of others that are in it stay, so that several runs with --only give one file. The table is printed
once more at the end. Exit status: 0: all kept, 1: a bound is missed, 3: something was not measured. On two cores, with
46m:

    P1,P5,P6,P9    2 minutes
    P2,P3,P4,P7    4 minutes (100,000 tokens, read alone and beside others)
    P8             4 minutes (10,000 requests)"""
import argparse
import json
import os
import random
import resource
import signal
import statistics
import subprocess
import sys
import tempfile
import time
import traceback

parser = argparse.ArgumentParser()
parser.add_argument("hola")
parser.add_argument("-m", required=True)
parser.add_argument("--preset", default="46m", help="of the model, for hola bench")
parser.add_argument("--backend", default="cpu")
parser.add_argument("--tokenizer")
parser.add_argument("-t", "--threads", type=int, default=0)
parser.add_argument("--only", help="P1,P2,...")
parser.add_argument("--long", type=int, default=100000, help="tokens of the long prompt")
parser.add_argument("--requests", type=int, default=10000)
parser.add_argument("--connections", type=int, default=5000)
parser.add_argument("--limit", type=int, default=0, help="seconds for a promise at most")
parser.add_argument("--total", type=int, default=0, help="seconds for all of them at most")
parser.add_argument("--quick", action="store_true", help="40 seconds for a promise at most, the shortest ones first")
parser.add_argument("--json")
o = parser.parse_args()
limit = o.limit or (40 if o.quick else 0)
last = time.monotonic() + o.total if o.total else float("inf")
os.environ["HOLA"] = os.path.abspath(o.hola)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from serve_client import Server, soon  # noqa: E402
from serve_streams import Clients, Streams, beside, gaps, ms, p99, together  # noqa: E402

only = o.only.split(",") if o.only else ["P%d" % i for i in range(1, 10)]
threads = ["-t", str(o.threads)] if o.threads else []
dice = random.Random(1)
gpu = o.backend.startswith("cuda")
try:
    with open(o.json or "") as f:
        rows = [x for x in json.load(f)["rows"] if x["name"] not in only]  # what earlier runs measured stays
except (OSError, ValueError, LookupError):
    rows = []
running, clients = [], []  # processes of the present promise, and the server that several share
many = os.cpu_count() >= 8
program = beside(o.hola)
if not program:
    sys.exit("serve_promises.py: no bench_streams beside %s: make build/cc/bench/streams" % o.hola)


class Late(Exception):
    """A promise took longer than its limit."""


def too_late(*_):
    raise Late("more than %d s" % allowed)


def wanted(*names):
    return any(n in only for n in names)


def line(r):
    return "| %s %s | %s | %s | %s |" % (r["name"], r["what"], r["bound"], r["measured"], "yes" if r["ok"] else "**no**")


def row(name, what, bound, value, ok, **more):
    rows.append(dict(name=name, what=what, bound=bound, measured=value, ok=bool(ok), **more))
    print(line(rows[-1]), flush=True)
    if o.json:
        with open(o.json + ".tmp", "w") as f:
            json.dump({"backend": o.backend, "model": os.path.basename(os.path.abspath(o.m)), "cores": os.cpu_count(),
                       "rows": sorted(rows, key=lambda x: x["name"])}, f, indent=1)
        os.replace(o.json + ".tmp", o.json)


def server(*more):
    """Its log says why it did not start, and what its threads did in long gaps."""
    tokenizer = ["--tokenizer", o.tokenizer] if o.tokenizer else []
    log = os.path.join(work, "log%d" % len(os.listdir(work)))
    began = time.monotonic()
    s = Server(o.m, "--backend", o.backend, "--log", "debug", *tokenizer, *threads, *more, stderr=log)
    s.log_file, s.seen, s.told = log, 0, False
    if not s.port:
        raise ValueError("the server did not start (status %s): %s" % (s.p.wait(), said(s)[-300:].strip()))
    running.append(s)
    s.meta = s.get("/v1/models")[1]["data"][0]["meta"]
    s.vocab = s.meta["vocab_size"]
    print("    a server started in %.1f s" % (time.monotonic() - began), flush=True)
    return s


def shared():
    """The server of all promises but P6."""
    alive = [s for s in running if s.p.poll() is None]
    return alive[0] if alive else server("--parallel", "64", "--connections", str(o.connections + 100), "--timeout-idle", "600")


def said(s):
    """What its log says since the last call."""
    with open(s.log_file, errors="replace") as f:
        f.seek(s.seen)
        text = f.read()
        s.seen = f.tell()
    return text


def streams(s, bodies, ready):
    c = Clients(program, s.port, bodies, ready, spin=many)
    clients.append(c)
    return c


def between(s):
    """Gaps between tokens as the engine saw them: how many there were, and how many took more than 5 and 10 ms."""
    found = {}
    for x in s.get("/metrics", raw=True)[1].decode().splitlines():
        if x.startswith("hola_inter_token_seconds_bucket"):
            found[x.split('"')[1]] = float(x.split()[-1])
    return found["+Inf"], found["+Inf"] - found["0.005"], found["+Inf"] - found["0.01"]


def tokens(s, n):
    return [dice.randrange(s.vocab // 2, s.vocab) for _ in range(n)]


def throughput():
    a = [o.hola, "bench", "--preset", o.preset, "--alone", "--infer-only", "--sessions", "64", "--prefill", "128", "-r", "1",
         "--backend", o.backend, "--json", *threads]
    began = time.monotonic()
    bench = json.loads(subprocess.run(a, capture_output=True, text=True, check=True).stdout)
    print("    hola bench took %.1f s" % (time.monotonic() - began), flush=True)
    want = find(bench, "decode_ids")["tokens_per_s"]
    s = shared()

    shares = []

    def rate(n):
        """Tokens a second while all write. Some have no text, or not yet a whole character: they have no event."""
        c = streams(s, [{"prompt": tokens(s, 1), "max_tokens": n} for _ in range(64)], 1)
        c.ready()
        at = [x["at"] for x in c.result()]
        begin, end = max(x[0] for x in at), min(x[-1] for x in at)
        shares.append(sum(len(x) for x in at) / (64 * n))
        return sum(sum(begin < t <= end for t in x) for x in at) / (end - begin) / shares[-1]

    all_rates = [rate(128) for _ in range(5 if gpu else 1)]
    longer = rate(1024) if gpu else None
    got = statistics.median(all_rates)
    row("P1", "64 streams against `hola bench`", ">= 90 %", "%.0f %% (%.0f of %.0f tokens/s)" % (100 * got / want, got, want),
        got >= 0.9 * want, tokens_per_s=got, bench_tokens_per_s=want, all_tokens_per_s=all_rates, of_1024_tokens_per_s=longer, events_per_token=shares)
    print("    all: %s%s; events for %.1f %% of the tokens" % (", ".join("%.0f" % x for x in all_rates), "; of 1,024 tokens: %.0f" % longer if longer else "",
                                                            100 * min(shares)), flush=True)


def find(x, key):
    if isinstance(x, dict):
        if key in x:
            return x[key]
        x = list(x.values())
    for y in x if isinstance(x, list) else []:
        got = find(y, key)
        if got:
            return got
    return None


def long_prompt():
    """One reading alone, into a session that is asked on forks (P7), and one beside others that write (P2 to P4)."""
    s = shared()
    n = "%d tokens" % o.long
    ids = tokens(s, o.long)
    s.post("/v1/sessions", {"id": "book"})
    alone = Streams(s.port)
    x = alone.add({"session": "book", "prompt": ids, "max_tokens": 1})
    alone.run(lambda: x["done"])
    lone = since_asked(x)
    if wanted("P7"):
        asked = [first_token(s, {"session": "book", "fork": True, "prompt": tokens(s, 32), "max_tokens": 1}) for _ in range(10)]
        row("P7", "question on a fork, against reading %s" % n, "<= 5 %", "%.3f %% (%s of %.1f s)" % (100 * max(asked) / lone, ms(max(asked)), lone),
            max(asked) <= 0.05 * lone, question_s=asked, read_s=lone)
    if not wanted("P2", "P3", "P4"):
        return
    writers = streams(s, [{"prompt": tokens(s, 8), "max_tokens": 1 << 24} for _ in range(16)], 3)
    writers.ready()
    begin = time.monotonic()
    time.sleep(2 if gpu else 5)
    end = time.monotonic()
    q = Streams(s.port)
    x = q.add({"prompt": ids, "max_tokens": 1})
    began, short = time.monotonic(), []
    while not x["done"]:
        y = q.add({"prompt": tokens(s, 64), "max_tokens": 1})
        q.run(lambda: y["done"] or x["done"])
        if y["at"] and not x["done"]:
            short.append(y["at"][0] - y["began"])
        pause = time.monotonic() + (0.02 if gpu else 1)
        q.run(lambda: x["done"] or time.monotonic() > pause)
    time.sleep(0.1 if gpu else 1)  # the gap that the end of the reading falls into counts, too
    at = writers.result(stop=True)
    before, during = gaps(at, begin, end), gaps(at, began, x["ended"])
    other = since_asked(x)
    q.close()
    least = 0.01 if gpu else 0.1
    old, new = p99(before), p99(during)
    row("P2", "p99 gap of 16 streams while %s are read" % n, "<= max(3 x, %.0f ms)" % (1000 * least),
        "%s (%.1f x of %s)" % (ms(new), new / max(old, 1e-9), ms(old)), new <= max(3 * old, least), before_s=old, during_s=new, paused_s=writers.paused(began, x["ended"]))
    row("P3", "that prompt beside them", "<= 2.5 x", "%.2f x of %.1f s alone" % (other / lone, lone), other <= 2.5 * lone,
        alone_s=lone, beside_s=other)
    gap = statistics.median(during)
    worst = max(short) if short else float("nan")
    row("P4", "first token of a prompt of 64 meanwhile", "<= max(10 gaps, 1 s)",
        "%s (worst of %d; a gap: %s)" % (ms(worst), len(short), ms(gap)), worst <= max(10 * gap, 1), first_token_s=short, gap_s=gap)


def why(text):
    """What the server said of its start, of its longest steps and rounds, and of the longest times between two sends."""
    lines = text.splitlines()
    out = [x for x in lines if x.startswith("engine: ") and "first uses" in x]
    for start, has, most in (("engine: ", " between steps", 8), ("http: ", " for a round", 6), ("http: ", " between two sends", 4)):
        out += sorted((x for x in lines if x.startswith(start) and has in x), key=lambda x: -float(x.split()[1]))[:most]
    return out


def joining():
    s = shared()
    eight = streams(s, [{"prompt": tokens(s, 8), "max_tokens": 1 << 24} for _ in range(8)], 10)
    eight.ready()
    bodies = [{"prompt": tokens(s, 64), "max_tokens": 1 << 24} for _ in range(56)]
    engine = between(s)
    begin = time.monotonic()
    rest = streams(s, bodies, 30)
    rest.ready()
    new = rest.result(stop=True)
    old = eight.result(stop=True)
    engine = [b - a for a, b in zip(engine, between(s))]
    joined, end = max(x["at"][0] for x in new), min(x["at"][-1] for x in new)
    seen = gaps(old, begin, joined)
    worst, all64 = p99(seen), p99(gaps(old + new, joined, end))
    least = 0.01 if gpu else 0.1
    notes = why(said(s))
    row("P5", "p99 gap of 8 streams while 56 join", "<= max(3 x, %.0f ms)" % (1000 * least),
        "%s (%.1f x of %s with 64)" % (ms(worst), worst / max(all64, 1e-9), ms(all64)), worst <= max(3 * all64, least), joining_s=worst,
        with_64_s=all64, gaps=len(seen), largest_s=sorted(seen)[-24:], joined_s=joined - begin, paused_s=eight.paused(begin, joined),
        engine_gaps=engine, said=notes)
    print("    the largest gaps of one of the 8: %s; all had joined after %s; the client's own longest pause: %s; in the engine "
          "%d gaps, %d over 5 ms, %d over 10 ms" % (", ".join(ms(x) for x in sorted(gaps(old[:1], begin, joined))[-6:]),
                                                    ms(joined - begin), ms(eight.paused(begin, joined)), *engine))
    for x in notes:
        print("    " + x, flush=True)


def first_token(s, body):
    q = Streams(s.port)
    x = q.add(body)
    q.run(lambda: x["done"])
    return since_asked(x)


def since_asked(x):
    """Until its first token."""
    if not x["at"]:
        raise ValueError("a request got no token: %s" % x["rest"][-200:])
    return x["at"][0] - x["began"]


def worked(s):
    """Processor time of all its threads so far: what a busy machine does not change."""
    total = 0
    for task in os.listdir("/proc/%d/task" % s.p.pid):
        with open("/proc/%d/task/%s/schedstat" % (s.p.pid, task)) as f:
            total += int(f.read().split()[0])
    return total / 1e9


def parked():
    other = shared()
    size = other.meta["session_bytes"]
    other.told = True
    other.stop()
    s = server("--session-dir", os.path.join(work, "s"), "--cache-mem", str(int(2.2 * size)), "--parallel", "4")
    for i in range(6):
        s.post("/v1/sessions", {"id": "p%d" % i})
        first_token(s, {"session": "p%d" % i, "prompt": tokens(s, 64), "max_tokens": 2})
        s.post("/v1/sessions/p%d/save" % i, {})
    disk, memory, work_disk, work_memory = [], [], [], []
    for i in range(18):
        name = "p%d" % (i % 6)
        body = {"session": name, "prompt": tokens(s, 8), "max_tokens": 2}
        for _ in range(2):
            where, began = s.get("/v1/sessions/" + name)[1]["where"], worked(s)
            (disk if where == "disk" else memory).append(first_token(s, body))
            (work_disk if where == "disk" else work_memory).append(worked(s) - began)
        s.post("/v1/sessions/%s/save" % name, {})
    s.told = True
    s.stop()
    extra = statistics.median(work_disk) - statistics.median(work_memory)
    more = max(disk) - statistics.median(memory)
    row("P6", "first token of a parked session, against one in memory", "<= 100 ms more",
        "%s more (worst of %d; median %s against %s; processor time: %s more)"
        % (ms(more), len(disk), ms(statistics.median(disk)), ms(statistics.median(memory)), ms(extra)),
        more <= 0.1, processor_s=extra, disk_s=disk, memory_s=memory, session_bytes=size)


def used(s):
    with open("/proc/%d/stat" % s.p.pid) as f:
        x = f.read().rsplit(")", 1)[1].split()
    return (int(x[11]) + int(x[12])) / os.sysconf("SC_CLK_TCK")


def idle():
    s = shared()

    def some(n):
        def client(i):
            own = random.Random(n + i)
            for _ in range(n // 16):
                s.post("/v1/completions", {"prompt": [own.randrange(s.vocab) for _ in range(own.randrange(1, 40))], "max_tokens": own.randrange(1, 4)})
            return []

        together(16, client)

    some(o.requests // 10)
    s.quiet()
    first = s.resident()
    some(o.requests - o.requests // 10)
    s.quiet()
    grown = s.resident() / first - 1
    seconds = 5 if o.quick else 10
    before = used(s)
    time.sleep(seconds)
    share = (used(s) - before) / seconds
    row("P8", "idle; resident memory after %d requests, against after a tenth of them" % o.requests, "< 1 % of a core; +5 %",
        "%.2f %%; %+.1f %% of %.0f MB" % (100 * share, 100 * grown, first / 1e6), share < 0.01 and grown <= 0.05,
        idle_share=share, growth=grown, resident_bytes=first)


def private(s):
    """Bytes of memory that only this process has: what its own allocations take, to a page."""
    with open("/proc/%d/smaps_rollup" % s.p.pid) as f:
        return sum(1024 * int(line.split()[1]) for line in f if line.startswith(("Private_Dirty", "Private_Clean")))


def kernel_sockets():
    """Bytes that the kernel holds for TCP sockets; None: only root may know."""
    try:
        with open("/proc/slabinfo") as f:
            rows = [x.split() for x in f]
    except OSError:
        return None
    names = ("TCP", "tw_sock_TCP", "request_sock_TCP", "sock_inode_cache", "filp", "eventpoll_epi", "eventpoll_pwq")
    return sum(int(x[1]) * int(x[3]) for x in rows if x[0] in names) or None


def connections():
    """Connections that made a request each and are kept, at a server that has done nothing else: it has freed nothing
    that they could take instead of new memory, but for what it made ready for 64 streams (6 MB: 1.5 KiB for each of 4,000)."""
    n = o.connections
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n + 500, max(hard, n + 500)))
    except (ValueError, OSError):  # not root
        raise ValueError("%d open files allowed, %d needed (ulimit -Hn)" % (hard, n + 500)) from None
    s = shared()
    ask = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"

    def kept():
        k = s.connect()
        k.sendall(ask)
        if b" 200 OK" not in k.recv(4096):
            raise ValueError("a connection was refused")
        return k

    open_ones = [kept() for _ in range(n // 5)]  # these take what loading the model left free
    before, kernel = private(s), kernel_sockets()
    open_ones += [kept() for _ in range(n - len(open_ones))]
    counted = n - n // 5
    time.sleep(1)
    each, rss = (private(s) - before) / counted, s.resident()
    there = s.metric("hola_connections")
    sockets = (kernel_sockets() - kernel) / counted if kernel else None
    took = []
    for _ in range(50):
        t = time.monotonic()
        s.get("/health")
        took.append(time.monotonic() - t)
    began = used(s)
    time.sleep(2)
    share = (used(s) - began) / 2
    [k.close() for k in open_ones]
    soon(lambda: s.metric("hola_connections") < 10)
    row("P9", "%d idle connections: memory of each; `/health`" % n, "<= 8 KiB; < 100 ms",
        "%.2f KiB%s; %s (worst of 50); %.2f %% of a core" % (each / 1024, " (and %.1f in the kernel, both ends)" % (sockets / 1024) if sockets else "",
                                                          ms(max(took)), 100 * share),
        each <= 8192 and max(took) < 0.1 and there > n, bytes_each=each, kernel_bytes_each=sockets, health_s=took, resident_bytes=rss, idle_share=share)


def ended():
    """How servers ended that were not told to: '' if none did."""
    return "; ".join("the server ended with status %d: %s" % (s.p.returncode, " ".join(said(s)[-300:].split())) for s in running if s.p.poll() is not None and not s.told)


def stop_all():
    for s in running:
        s.told = True
        s.p.kill()
        s.p.wait()
    running.clear()


# P9 counts the memory of connections at a server that has freed nothing yet, and P5 makes its first steps
parts = [(("P9",), connections), (("P5",), joining), (("P1",), throughput), (("P2", "P3", "P4", "P7"), long_prompt), (("P8",), idle), (("P6",), parked)]
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGALRM, too_late)
print("| promise | bound | measured | kept |\n|---|---|---|---|", flush=True)
missing = []
with tempfile.TemporaryDirectory() as work:
    for names, f in parts:
        if not wanted(*names):
            continue
        done, began = len(rows), time.monotonic()
        allowed = min(limit or 1e9, max(0, last - began))
        try:
            if allowed < 1:
                raise Late("no time was left of %d s" % o.total)
            signal.alarm(int(allowed) if allowed < 1e9 else 0)
            f()
            problem = ""
        except (Exception, SystemExit) as e:
            problem = "%s: %s" % (type(e).__name__, " ".join(str(e)[:300].split()))
            traceback.print_exc()
        finally:
            signal.alarm(0)
        [c.kill() for c in clients]
        clients.clear()
        if problem or ended():
            problem = "; ".join(x for x in (problem, ended()) if x)
            print("    " + problem, flush=True)
            stop_all()
        for s in running:
            if s.p.poll() is None:
                s.quiet(5)
        for name in names:
            if name in only and name not in [r["name"] for r in rows[done:]]:
                missing.append(name)
                row(name, "", "", "not measured: " + (problem or "nothing was found"), False)
        print("    %s: %.1f s" % (",".join(names), time.monotonic() - began), flush=True)
    stop_all()
print("\n| promise | bound | measured | kept |\n|---|---|---|---|")
for r in sorted(rows, key=lambda x: x["name"]):
    print(line(r))
missed = [r["name"] for r in rows if r["name"] in only and not r["ok"] and r["name"] not in missing]
print("%s: missed: %s; not measured: %s" % (os.path.basename(os.path.abspath(o.m)), ", ".join(missed) or "none", ", ".join(missing) or "none"), flush=True)
sys.exit(1 if missed else 3 if missing else 0)
