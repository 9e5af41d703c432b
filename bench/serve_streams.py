"""serve_streams.py -- many clients of a server at once, and when each of their tokens came. The standard library alone."""
import json
import os
import select
import selectors
import socket
import subprocess
import time
import traceback


class Streams:
    """Many requests at once, and when each of their tokens came."""
    TOKEN = b'"finish_reason":null'

    def __init__(self, port, **fields):
        """fields: of every request."""
        self.port, self.look, self.all, self.fields = port, selectors.DefaultSelector(), [], fields

    def add(self, body, name=None):
        k = socket.create_connection(("127.0.0.1", self.port), 30)
        x = dict(sock=k, rest=b"", at=[], done=False, name=name, began=time.monotonic())
        body = json.dumps(dict(dict(self.fields, stream=True, ignore_eos=True, temperature=0, cache_prompt=False), **body)).encode()
        head = b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
        k.sendall(head % len(body) + body)
        k.setblocking(False)
        self.look.register(k, selectors.EVENT_READ, x)
        self.all.append(x)
        return x

    def run(self, until, seconds=3600):
        """Reads until until() is true."""
        end = time.monotonic() + seconds
        while not until() and time.monotonic() < end:
            for key, _ in self.look.select(0.05):
                x = key.data
                got = x["sock"].recv(1 << 16)
                now = time.monotonic()
                data = x["rest"] + got
                whole = data.rfind(b"\n\n") + 2 if b"\n\n" in data else 0
                x["rest"] = data[whole:]
                x["at"] += [now] * data.count(self.TOKEN, 0, whole)
                last = data[max(0, whole - 400):whole]  # the end, or an error, comes last
                refused = not x["at"] and data[:5] == b"HTTP/" and data[8:13] not in (b"", b" 200 ")
                if not got or refused or b"data: [DONE]" in last or b'"error":' in last:
                    x["done"] = True
                    x["ended"] = now
                    self.look.unregister(x["sock"])
                    x["sock"].close()
        return until()

    def close(self):
        for x in self.all:
            if not x["done"]:
                self.look.unregister(x["sock"])
                x["sock"].close()
                x["done"] = True


def gaps(streams, begin, end):
    out = []
    for x in streams:
        at = [t for t in x["at"] if begin <= t <= end]
        out += [b - a for a, b in zip(at, at[1:])]
    return out


def p99(x):
    x = sorted(x)
    return x[min(len(x) - 1, int(0.99 * len(x)))]


def ms(x):
    return "%.1f ms" % (1000 * x)


def beside(hola):
    """bench_streams.c, built or packed with the program; None: it is not there."""
    folder = os.path.dirname(os.path.realpath(hola))
    for name in ("bench_streams", "bench/streams"):
        if os.access(os.path.join(folder, name), os.X_OK):
            return os.path.join(folder, name)
    return None


class Clients:
    """The same by bench_streams.c, a process that does nothing else: tokens come faster than Python counts them, and
    a pause of the interpreter would look like one of the server."""

    def __init__(self, program, port, bodies, tokens, spin=False):
        """ready: every one of them has had so many tokens."""
        self.p = subprocess.Popen([program, str(port), str(tokens)] + ["spin"] * spin, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        body = dict(stream=True, ignore_eos=True, temperature=0, cache_prompt=False)
        self.p.stdin.write(b"".join(json.dumps(dict(body, **b)).encode() + b"\n" for b in bodies) + b"\n")
        self.p.stdin.flush()

    def ready(self):
        line = self.p.stdout.readline()
        if line != b"ready\n":
            self.kill()
            raise ValueError("bench_streams ended: %d" % self.p.wait())

    def result(self, stop=False):
        """What came, as Streams has it; stop: now, else at the end of all."""
        if stop:
            self.p.stdin.close()
        got = json.loads(self.p.stdout.readline() or b"null")
        self.kill()
        if not got or any(x["status"] not in (0, 200) for x in got["streams"]):
            raise ValueError("bench_streams: %s" % ("no result" if not got else [x["status"] for x in got["streams"]]))
        self.pauses = got["pauses"]
        return got["streams"]

    def paused(self, begin, end):
        """The longest pause of the client itself, in seconds."""
        return max([0] + [b - a for a, b in self.pauses if b > begin and a < end])

    def kill(self):
        for pipe in (self.p.stdin, self.p.stdout):
            try:
                pipe.close()
            except OSError:
                pass
        self.p.kill()
        self.p.wait()


class Elsewhere:
    """f() in a process of its own."""

    def __init__(self, f):
        there, here = os.pipe()
        self.pid = os.fork()
        if self.pid == 0:
            try:
                os.close(there)
                with os.fdopen(here, "w") as out:
                    json.dump(f(), out)
            except Exception:
                traceback.print_exc()
            finally:
                os._exit(0)
        os.close(here)
        self.pipe = there

    def result(self):
        with os.fdopen(self.pipe) as x:
            out = json.load(x)
        os.waitpid(self.pid, 0)
        return out


def together(n, f):
    """The joined lists of f(0) to f(n - 1), each in a process of its own where there are several."""
    if n == 1:
        return f(0)
    parts = [Elsewhere(lambda i=i: f(i)) for i in range(n)]
    return [x for part in parts for x in part.result()]
