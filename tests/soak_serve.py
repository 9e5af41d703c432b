"""soak_serve.py HOLA -- random misfortune for SOAK_SECONDS (600): clients that vanish, stall or lie, servers that are
killed, stopped and started again, a disk that fills up. Two servers share a folder, one has its own, and one that is
never harmed replays every conversation alone: what was answered must be there, and be the same, to the bit. In the
end no descriptor, slot or memory is missing. SOAK_SEED makes the same choices again (not the same timing)."""
import http.client
import json
import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

os.environ["HOLA"] = os.path.abspath(sys.argv[1])
from serve_client import HOLA, Server, check, finish, request, reset, soon

SECONDS = float(os.environ.get("SOAK_SECONDS", 600))
seed = int(os.environ.get("SOAK_SEED", random.randrange(1 << 30)))
LEASE, PARALLEL, TURNS = 1.5, 8, 10
dice = random.Random(seed)
work = tempfile.mkdtemp(prefix="hola-soak-")
model = os.path.join(work, "tiny")
config = {"model_type": "hola", "hidden_size": 48, "num_hidden_layers": 2, "num_heads": 2, "head_dim": 24, "expand_v": 1, "intermediate_size": 96,
          "vocab_size": 260, "tie_word_embeddings": True, "initializer_range": 0.2, "cache_window": 8, "cache_chunk": 32}
with open(os.path.join(work, "c.json"), "w") as f:
    json.dump(config, f)
subprocess.run([HOLA, "init", "-o", model, "--config", os.path.join(work, "c.json"), "-s", "5"], check=True, stdout=subprocess.DEVNULL)

# a small disk, where we may make one
disk = os.path.join(work, "disk")
os.mkdir(disk)
small = os.geteuid() == 0 and subprocess.run(["mount", "-t", "tmpfs", "-o", "size=24m", "hola-soak", disk], stderr=subprocess.DEVNULL).returncode == 0
basic = ("--tokenizer", "byte", "--log", "none", "--parallel", str(PARALLEL), "--queue", "64", "--timeout-header", "2", "--timeout-body", "4",
         "--timeout-send", "2", "--timeout-drain", "1", "--cache-mem", "16M")
count, counts = threading.Lock(), {}
over = threading.Event()


def note(what):
    with count:
        counts[what] = counts.get(what, 0) + 1


class Member:
    """A server that is started again whenever it is gone; `s` is the one that runs."""

    def __init__(self, *args):
        self.args = (*basic, *args)
        self.lock = threading.Lock()
        self.s = Server(model, *self.args)

    def again(self, sig):
        with self.lock:
            rc = self.s.stop(sig)
            self.s = Server(model, *self.args)
        return rc


shared = [Member("--session-dir", os.path.join(disk, "shared"), "--shared-sessions", "--session-lease", str(LEASE)) for _ in range(2)]
single = Member("--session-dir", os.path.join(disk, "single"))
steady = Server(model, *basic, "--cache-mem", "4M")  # full long before its memory is first looked at
members = [*shared, single]


# ---- conversations ----

class Lost(Exception):
    """The answer did not come, or not whole: nobody knows what became of the request."""


def ask(server, method, path, body=None, timeout=120):
    try:
        return server.call(method, path, body, timeout=timeout)
    except (OSError, http.client.HTTPException, ValueError):
        raise Lost()


def body_of(session, turn):
    prompt, n, k = turn
    return {"session": session, "prompt": prompt, "max_tokens": n, "seed": k, "temperature": 0.9, "ignore_eos": True, "return_token_ids": True}


def vanish(server, body, dice):
    """The turn is begun, and the client goes away somewhere in it. It waits until the server has seen that: a server that
    was stopped would take the request up later, and nobody could say what the session holds."""
    try:
        k = server.connect(60)
        k.sendall(request(b"POST", b"/v1/completions", json.dumps(dict(body, max_tokens=5000, stream=True)).encode()))
        time.sleep(dice.random() * 0.1)
        k.recv(4096) if dice.random() < 0.5 else None
        k.shutdown(socket.SHUT_WR)
        while k.recv(65536):
            pass
        k.close()
    except OSError:
        pass


def differ(a, b):
    """Where two lists first do."""
    return next((i for i, (x, y) in enumerate(zip(a, b)) if x != y), min(len(a), len(b)))


class Conversation:
    def __init__(self, name, places, dice, keeps):
        self.name, self.places, self.dice, self.keeps = name, places, dice, keeps
        self.turns, self.ids, self.ends, self.safe, self.unsure, self.last = [], [], [], 0, False, ()
        self.history = []  # what was asked and what came of it, for when something is wrong

    def where(self):
        s = self.dice.choice(self.places).s
        self.at = s.p.pid
        return s

    def tell(self, what, *more):
        self.history.append("%.3f %d %s %s" % (time.time() - start, self.at, what, " ".join(str(m)[:200] for m in more)))

    def failed(self, what, said=""):
        check("%s: %s" % (self.name, what), False, said)
        with count:
            print("  history of %s:" % self.name, *self.history, sep="\n    ", flush=True)

    def create(self):
        while not over.is_set():
            try:
                a = ask(self.where(), "POST", "/v1/sessions", {"id": self.name})
                if a[0] in (201, 409) and (a[0] == 201 or a[1]["error"]["code"] == "session_exists"):
                    return True
            except Lost:
                pass
            time.sleep(0.1)
        return False

    def turn(self):
        t = ("turn %d " % len(self.turns) * self.dice.randrange(1, 12), self.dice.randrange(1, 24), self.dice.randrange(1 << 20))
        try:
            if self.dice.random() < 0.15:
                self.unsure = True
                vanish(self.where(), body_of(self.name, t), self.dice)
                self.tell("vanished")
                note("clients that vanished")
                return
            a = ask(self.where(), "POST", "/v1/completions", body_of(self.name, t))
            self.tell("turn", t[1:], a[0], a[1].get("session") or a[1])
            if a[0] == 200:
                # (a server that ends cuts answers short)
                self.turns.append((t[0], len(a[1]["choices"][0]["token_ids"]), t[2]))
                first = [256] if not self.ids else []
                self.ids += first + list(t[0].encode()) + a[1]["choices"][0]["token_ids"]
                self.ends.append(len(self.ids))
                if a[1]["session"]["position"] != len(self.ids):
                    self.failed("its position", (a[1]["session"], len(self.ids)))
                note("turns")
                return
            note("answers %d" % a[0])
            # (a busy one may have been refused because of the turn before, which was cut off)
            if not (a[0] in (409, 503, 507) or (a[0] == 404 and not self.keeps)):
                self.failed("refused for a reason", a[1])
            self.unsure = True
        except Lost:
            self.tell("lost")
            note("answers lost")
            self.unsure = True
        time.sleep(0.05)

    def settle(self):
        """What is there begins with all that was answered; what was not is taken back."""
        try:
            s = self.where()
            a = self.last = ask(s, "GET", "/v1/sessions/%s/tokens" % self.name)
            self.tell("look", a[0], len(a[1]["ids"]) if a[0] == 200 else a[1])
            if a[0] == 404 and not self.keeps and self.safe == 0:  # killed before it was ever saved
                self.turns, self.ids, self.ends = [], [], []
                self.create()
                return
            if a[0] != 200:
                if a[0] not in (409, 503, 507):
                    self.failed("it is there", a[1])
                    over.set()
                return
            have = a[1]["ids"]
            if have[:len(self.ids)] != self.ids:
                cut = len(have) if not self.keeps and (len(have) == 0 or len(have) in self.ends) and have == self.ids[:len(have)] else -1
                if cut < self.safe:
                    self.failed("what was answered is there", (len(have), self.ends, self.safe, differ(have, self.ids)))
                    over.set()
                    return
                keep = self.ends.index(cut) + 1 if cut else 0
                self.turns, self.ids, self.ends = self.turns[:keep], self.ids[:cut], self.ends[:keep]
                note("turns that were not yet saved")
            # also where there is nothing to take back: it shows that no one works on it any more
            a = ask(s, "POST", "/v1/sessions/%s/rollback" % self.name, {"position": len(self.ids)})
            self.last = a
            self.tell("way back to", len(self.ids), a[0], a[1].get("position") if a[0] == 200 else a[1])
            if a[0] != 200:
                return
            note("ways back" if len(have) > len(self.ids) else "sessions looked at")
            self.unsure = False
            if not self.keeps:
                self.unsure = not self.save()
        except Lost:
            pass

    def save(self):
        a = ask(self.where(), "POST", "/v1/sessions/%s/save" % self.name, {})
        self.tell("save", a[0])
        if a[0] == 200:
            self.safe = a[1]["saved_position"]
        return a[0] == 200

    def compare(self):
        """The same turns, alone, on the server that nobody harms."""
        said = [steady.post("/v1/sessions", {"id": self.name})[:2]]
        for t in self.turns:
            said.append(steady.post("/v1/completions", body_of(self.name, t))[:2])
        want = steady.get("/v1/sessions/%s/tokens" % self.name)[1]["ids"]
        steady.call("DELETE", "/v1/sessions/" + self.name)
        note("conversations compared")
        if [s[0] for s in said] != [201] + [200] * len(self.turns):
            self.failed("its replay was refused", [s for s in said if s[0] not in (200, 201)])
        elif want != self.ids:
            self.failed("not as its lone replay", (len(want), len(self.ids), differ(want, self.ids), self.ends, self.turns))
        else:
            check("as its lone replay", True)

    def life(self, turns):
        if not self.create():
            return
        while len(self.turns) < turns and not over.is_set():
            if self.unsure:
                self.settle()
                time.sleep(0.05)
            else:
                self.turn()
                try:
                    if not self.keeps and not self.unsure and self.dice.random() < 0.3:
                        self.save()
                except Lost:
                    self.unsure = True
        while self.unsure and time.time() < limit:
            self.settle()
            time.sleep(0.1)
        if self.unsure:
            self.failed("not at rest in the end", self.last[:2])
        else:
            self.compare()
        try:
            ask(self.where(), "DELETE", "/v1/sessions/" + self.name)
        except Lost:
            pass


def talker(i):
    mine, k = random.Random(seed * 1000 + i), 0
    while not over.is_set():
        keeps = i % 3 != 0
        Conversation("c%d-%d" % (i, k), shared if keeps else [single], mine, keeps).life(mine.randrange(2, TURNS))
        k += 1


# ---- misfortune ----

def rude(dice):
    s = dice.choice([steady, *(m.s for m in members)])
    long = json.dumps({"prompt": "x", "max_tokens": 1000000, "stream": True, "ignore_eos": True, "logprobs": 5}).encode()
    what = dice.choice(["reset", "stall", "noise", "slow", "short", "lie", "half"])
    note("rude clients")
    try:
        k = s.connect(3)
        if what in ("reset", "stall"):
            k.sendall(request(b"POST", b"/v1/completions", long))
            k.recv(1000)
            time.sleep(dice.random() * (4 if what == "stall" else 0.2))
        elif what == "noise":
            k.sendall(os.urandom(dice.randrange(1, 5000)))
        elif what == "slow":
            for c in b"GET /health HTTP/1.1\r\n":
                k.sendall(bytes([c]))
                time.sleep(0.05)
        elif what in ("short", "lie"):
            k.sendall(b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n{\"prompt\": \"a\"}"
                      % (100 if what == "short" else 3))
            k.recv(1000) if what == "lie" else None
        else:
            k.sendall(request(b"POST", b"/v1/completions", long))
            k.shutdown(socket.SHUT_WR)
            k.recv(1000)
        (reset if dice.random() < 0.5 else socket.socket.close)(k)
    except OSError:
        pass


def vandal(i):
    mine = random.Random(seed * 1000 + 500 + i)
    while not over.is_set():
        rude(mine)
        time.sleep(mine.random() * 0.3)


def fate():
    while not over.is_set():
        m = dice.choice(members)
        what = dice.choice(["kill", "kill", "stop", "stop", "end", "fill"])
        if what == "kill":
            m.again(signal.SIGKILL)
        elif what == "end":
            check("it ends well", m.again(signal.SIGTERM) == 0)
        elif what == "stop":
            with m.lock:
                m.s.p.send_signal(signal.SIGSTOP)
                over.wait(dice.random() * 2.5 * LEASE)
                m.s.p.send_signal(signal.SIGCONT)
        elif small:
            try:
                with open(os.path.join(disk, "ballast"), "wb") as f:
                    while True:
                        f.write(b"x" * 65536)
                        f.flush()
            except OSError:
                pass
            over.wait(dice.random() * 2)
            os.unlink(os.path.join(disk, "ballast"))
        note("servers: " + what if what != "fill" else "disks filled" if small else "disks not filled (needs root)")
        over.wait(dice.random() * 3)


# ---- the run ----

warm = None
base = steady.descriptors()
start = time.time()
limit = start + SECONDS + 90
threads = [threading.Thread(target=talker, args=(i,)) for i in range(6)] + [threading.Thread(target=vandal, args=(i,)) for i in range(2)]
misfortune = threading.Thread(target=fate)
[t.start() for t in threads], misfortune.start()
while time.time() < start + SECONDS and not over.is_set():
    over.wait(1)
    if warm is None and time.time() > start + max(10, SECONDS / 5):
        warm = steady.resident()
over.set()
misfortune.join()
[t.join() for t in threads]

for m in [*members, steady]:
    s = m.s if isinstance(m, Member) else m
    check("alive", s.p.poll() is None)
    check("nothing runs", s.quiet(30))
    # every place is there: as many answers at once as there are places
    got = []
    ts = [threading.Thread(target=lambda: got.append(s.post("/v1/completions", {"prompt": "a", "max_tokens": 20, "ignore_eos": True})[0])) for _ in range(PARALLEL)]
    [t.start() for t in ts]
    [t.join() for t in ts]
    check("all places are free", got == [200] * PARALLEL, got)
check("no descriptor is lost", soon(lambda: steady.descriptors() <= base), (base, steady.descriptors()))
check("no memory is lost", warm is not None and steady.resident() < 1.05 * warm + (8 << 20), (warm, steady.resident()))
for m in members:
    check("it ends", m.s.stop() == 0)
check("it ends", steady.stop() == 0)
rows = subprocess.run([sys.executable, os.path.join(os.path.dirname(os.path.abspath(__file__)), "serve_rows.py"), model, work],
                      env=dict(os.environ, HOLA_TEST_FULL="1"), capture_output=True, text=True)
check("the rows of tests/serve_rows.py at full size", rows.returncode == 0, (rows.stdout + rows.stderr)[-390:])
if small:
    subprocess.run(["umount", disk])
shutil.rmtree(work, ignore_errors=True)
print("seed %d, %.0f s: " % (seed, time.time() - start) + ", ".join("%d %s" % (n, what) for what, n in sorted(counts.items())))
if warm:
    print("resident memory of the server that ran throughout: %.1f MB at a fifth of the time" % (warm / 1e6))
finish()
