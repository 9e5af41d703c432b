"""serve_promises.py HOLA -m MODEL -- what hola serve promises (docs/serve.md), measured: ratios within one run.

    python3 bench/serve_promises.py ./hola -m model [--backend cpu] [--only P1,P6] [--json FILE]

The machine should have nothing else to do. Only the standard library is needed. On a machine of few cores one thread
reads all streams, so that the clients take little of what they measure; with more cores four processes do, since a
GPU writes faster than one reads. --long, --requests and --connections make it shorter where a machine is slow; the
table names the numbers that were used. The JSON file is written anew after every promise, and --limit (--quick: 40)
ends each of them after so many seconds, so that a run that is cut off keeps what it had. Rows of other promises that
are in the file stay, so that several runs with --only give one file. On two cores, with 46m:

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
import threading
import time

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
parser.add_argument("--quick", action="store_true", help="40 seconds for a promise at most, the shortest ones first")
parser.add_argument("--json")
o = parser.parse_args()
limit = o.limit or (40 if o.quick else 0)
os.environ["HOLA"] = os.path.abspath(o.hola)
sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "tests"))
from serve_client import Server  # noqa: E402
from serve_streams import Elsewhere, Streams, gaps, ms, p99, together  # noqa: E402

only = o.only.split(",") if o.only else ["P%d" % i for i in range(1, 10)]
threads = ["-t", str(o.threads)] if o.threads else []
dice = random.Random(1)
gpu = o.backend.startswith("cuda")
try:
    with open(o.json or "") as f:
        rows = [x for x in json.load(f)["rows"] if x["name"] not in only]  # what earlier runs measured stays
except (OSError, ValueError, LookupError):
    rows = []
running = []  # servers


class Late(Exception):
    """A promise took longer than its limit."""


def too_late(*_):
    raise Late()


def wanted(*names):
    return any(n in only for n in names)


def row(name, what, bound, value, ok, **more):
    rows.append(dict(name=name, what=what, bound=bound, measured=value, ok=bool(ok), **more))
    print("| %s %s | %s | %s | %s |" % (name, what, bound, value, "yes" if ok else "**no**"), flush=True)
    if o.json:
        with open(o.json + ".tmp", "w") as f:
            json.dump({"backend": o.backend, "model": os.path.basename(os.path.abspath(o.m)), "cores": os.cpu_count(),
                       "rows": sorted(rows, key=lambda x: x["name"])}, f, indent=1)
        os.replace(o.json + ".tmp", o.json)


def server(*more, log=None):
    """log: a file for what the server says, with what its engine did in long gaps."""
    tokenizer = ["--tokenizer", o.tokenizer] if o.tokenizer else []
    s = Server(o.m, "--backend", o.backend, "--log", "debug" if log else "none", *tokenizer, *threads, *more, stderr=log)
    if not s.port:
        sys.exit("serve_promises.py: the server did not start")
    running.append(s)
    s.vocab = s.get("/v1/models")[1]["data"][0]["meta"]["vocab_size"]
    return s


def tokens(s, n):
    return [dice.randrange(s.vocab // 2, s.vocab) for _ in range(n)]


def throughput():
    a = [o.hola, "bench", "--preset", o.preset, "--alone", "--infer-only", "--sessions", "64", "--prefill", "128", "-r", "1",
         "--backend", o.backend, "--json", *threads]
    bench = json.loads(subprocess.run(a, capture_output=True, text=True, check=True).stdout)
    want = find(bench, "decode_ids")["tokens_per_s"]
    s = server("--parallel", "64")
    clients = 4 if os.cpu_count() >= 8 else 1
    prompts = [tokens(s, 1) for _ in range(64)]
    at = together(clients, lambda i: streamed(s, prompts[i::clients], 128))
    begin, end = max(x[0] for x in at), min(x[-1] for x in at)
    got = sum(sum(begin < t <= end for t in x) for x in at) / (end - begin)
    s.stop()
    row("P1", "64 streams against `hola bench`", ">= 90 %", "%.0f %% (%.0f of %.0f tokens/s)" % (100 * got / want, got, want),
        got >= 0.9 * want, tokens_per_s=got, bench_tokens_per_s=want)


def streamed(s, prompts, n):
    """When each one's tokens came."""
    q = Streams(s.port)
    for p in prompts:
        q.add({"prompt": p, "max_tokens": n})
    q.run(lambda: all(x["done"] for x in q.all))
    return [x["at"] for x in q.all]


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
    s = server("--parallel", "32")
    n = "%d tokens" % o.long
    ids = tokens(s, o.long)
    s.post("/v1/sessions", {"id": "book"})
    alone = Streams(s.port)
    x = alone.add({"session": "book", "prompt": ids, "max_tokens": 1})
    alone.run(lambda: x["done"])
    lone = x["at"][0] - x["began"]
    if wanted("P7"):
        asked = [first_token(s, {"session": "book", "fork": True, "prompt": tokens(s, 32), "max_tokens": 1}) for _ in range(10)]
        row("P7", "question on a fork, against reading %s" % n, "<= 5 %", "%.3f %% (%s of %.1f s)" % (100 * max(asked) / lone, ms(max(asked)), lone),
            max(asked) <= 0.05 * lone, question_s=asked, read_s=lone)
    if not wanted("P2", "P3", "P4"):
        s.stop()
        return
    q = Streams(s.port)
    writers = [q.add({"prompt": tokens(s, 8), "max_tokens": 1 << 24}) for _ in range(16)]
    q.run(lambda: all(len(w["at"]) > 3 for w in writers))
    begin = time.monotonic()
    q.run(lambda: time.monotonic() > begin + 5)
    before = gaps(writers, begin, time.monotonic())
    x = q.add({"prompt": ids, "max_tokens": 1})
    began, short = time.monotonic(), []
    while not x["done"]:
        y = q.add({"prompt": tokens(s, 64), "max_tokens": 1})
        q.run(lambda: y["done"] or x["done"])
        if y["at"] and not x["done"]:
            short.append(y["at"][0] - y["began"])
        pause = time.monotonic() + 1
        q.run(lambda: x["done"] or time.monotonic() > pause)
    during = gaps(writers, began, x["ended"])
    beside = x["at"][0] - x["began"]
    q.close()
    s.stop()
    least = 0.01 if gpu else 0.1
    old, new = p99(before), p99(during)
    row("P2", "p99 gap of 16 streams while %s are read" % n, "<= max(3 x, %.0f ms)" % (1000 * least),
        "%s (%.1f x of %s)" % (ms(new), new / old, ms(old)), new <= max(3 * old, least), before_s=old, during_s=new)
    row("P3", "that prompt beside them", "<= 2.5 x", "%.2f x of %.1f s alone" % (beside / lone, lone), beside <= 2.5 * lone,
        alone_s=lone, beside_s=beside)
    gap = statistics.median(during)
    worst = max(short) if short else float("nan")
    row("P4", "first token of a prompt of 64 meanwhile", "<= max(10 gaps, 1 s)",
        "%s (worst of %d; a gap: %s)" % (ms(worst), len(short), ms(gap)), worst <= max(10 * gap, 1), first_token_s=short, gap_s=gap)


def why(log, most=8):
    """What the engine said of its start and of its longest gaps, also of those of the first steps."""
    with open(log, errors="replace") as f:
        said = [x.rstrip() for x in f if x.startswith("engine: ")]
    long = [x for x in said if " between steps: " in x]
    long.sort(key=lambda x: -float(x.split()[1]))
    return [x for x in said if " between steps: " not in x] + long[:most]


def joining(log):
    """On many cores those who join are another process: opening 56 connections takes longer than a device's step."""
    s = server("--parallel", "64", log=log)
    q = Streams(s.port)
    eight = [q.add({"prompt": tokens(s, 8), "max_tokens": 1 << 24}) for _ in range(8)]
    q.run(lambda: all(len(x["at"]) > 10 for x in eight))
    prompts = [tokens(s, 64) for _ in range(56)]

    def rest(streams):
        new = [streams.add({"prompt": p, "max_tokens": 1 << 24}) for p in prompts]
        streams.run(lambda: all(len(x["at"]) > 30 for x in new))
        return [x["at"] for x in new]

    begin = time.monotonic()
    if os.cpu_count() >= 8:
        child = Elsewhere(lambda: rest(Streams(s.port)))
        q.run(child.ended)
        new = child.result()
    else:
        new = rest(q)
    joined, end = max(at[0] for at in new), min(at[-1] for at in new)
    q.close()
    s.stop()
    worst, all64 = p99(gaps(eight, begin, joined)), p99(gaps(eight + [{"at": at} for at in new], joined, end))
    least = 0.01 if gpu else 0.1
    row("P5", "p99 gap of 8 streams while 56 join", "<= max(3 x, %.0f ms)" % (1000 * least),
        "%s (%.1f x of %s with 64)" % (ms(worst), worst / all64, ms(all64)), worst <= max(3 * all64, least), joining_s=worst,
        with_64_s=all64, largest_s=sorted(gaps(eight, begin, joined))[-24:], joined_s=joined - begin, engine=why(log))
    print("    the largest gaps of one of the 8: %s; all had joined after %s" %
          (", ".join(ms(x) for x in sorted(gaps(eight[:1], begin, joined))[-6:]), ms(joined - begin)))
    for x in why(log):
        print("    " + x, flush=True)


def first_token(s, body):
    q = Streams(s.port)
    x = q.add(body)
    q.run(lambda: x["done"])
    return x["at"][0] - x["began"]


def worked(s):
    """Processor time of all its threads so far: what a busy machine does not change."""
    total = 0
    for task in os.listdir("/proc/%d/task" % s.p.pid):
        with open("/proc/%d/task/%s/schedstat" % (s.p.pid, task)) as f:
            total += int(f.read().split()[0])
    return total / 1e9


def parked(folder):
    probe = server()
    size = probe.get("/v1/models")[1]["data"][0]["meta"]["session_bytes"]
    probe.stop()
    s = server("--session-dir", folder, "--cache-mem", str(int(2.2 * size)))
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
    s = server("--parallel", "16", "--cache-mem", "256M")
    lock, left = threading.Lock(), [o.requests]
    at_tenth = []

    def client(i):
        own = random.Random(i)
        while True:
            with lock:
                left[0] -= 1
                if left[0] < 0:
                    return
                if left[0] == o.requests - o.requests // 10:
                    at_tenth.append(s.resident())
            s.post("/v1/completions", {"prompt": [own.randrange(s.vocab) for _ in range(own.randrange(1, 40))], "max_tokens": own.randrange(1, 4)})

    ts = [threading.Thread(target=client, args=(i,)) for i in range(16)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    s.quiet()
    grown = s.resident() / at_tenth[0] - 1
    before = used(s)
    time.sleep(10)
    share = (used(s) - before) / 10
    s.stop()
    row("P8", "idle; resident memory after %d requests, against after a tenth of them" % o.requests, "< 1 % of a core; +5 %",
        "%.2f %%; %+.1f %% of %.0f MB" % (100 * share, 100 * grown, at_tenth[0] / 1e6), share < 0.01 and grown <= 0.05,
        idle_share=share, growth=grown, resident_bytes=at_tenth[0])


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
    that they could take instead of new memory."""
    n = o.connections
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (n + 500, max(hard, n + 500)))
    except (ValueError, OSError):  # not root
        raise ValueError("%d open files allowed, %d needed (ulimit -Hn)" % (hard, n + 500)) from None
    s = server("--connections", str(n + 100), "--timeout-idle", "600")
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
    time.sleep(5)
    share = (used(s) - began) / 5
    [k.close() for k in open_ones]
    s.stop()
    row("P9", "%d idle connections: memory of each; `/health`" % n, "<= 8 KiB; < 100 ms",
        "%.2f KiB%s; %s (worst of 50); %.2f %% of a core" % (each / 1024, " (and %.1f in the kernel, both ends)" % (sockets / 1024) if sockets else "",
                                                          ms(max(took)), 100 * share),
        each <= 8192 and max(took) < 0.1 and there > n, bytes_each=each, kernel_bytes_each=sockets, health_s=took, resident_bytes=rss, idle_share=share)


parts = [(("P6",), lambda work: parked(os.path.join(work, "s"))), (("P9",), lambda work: connections()), (("P5",), lambda work: joining(os.path.join(work, "log"))),
         (("P1",), lambda work: throughput()), (("P2", "P3", "P4", "P7"), lambda work: long_prompt()), (("P8",), lambda work: idle())]
signal.signal(signal.SIGINT, signal.SIG_DFL)
signal.signal(signal.SIGALRM, too_late)
print("| promise | bound | measured | kept |\n|---|---|---|---|", flush=True)
with tempfile.TemporaryDirectory() as work:
    for names, f in parts if o.quick else sorted(parts, key=lambda x: x[0]):
        if not wanted(*names):
            continue
        done = len(rows)
        try:
            signal.alarm(limit)
            f(work)
        except (Late, OSError, LookupError, ValueError, subprocess.CalledProcessError) as e:
            for name in names:
                if name in only and name not in [r["name"] for r in rows[done:]]:
                    row(name, "", "", "not measured: %s" % ("more than %d s" % limit if isinstance(e, Late) else repr(e)[:200]), False)
        finally:
            signal.alarm(0)
            [s.p.kill() for s in running if s.p.poll() is None]
sys.exit(not all(r["ok"] for r in rows if r["name"] in only))
