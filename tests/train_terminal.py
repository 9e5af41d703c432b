#!/usr/bin/env python3
"""train_terminal.py HOLA DIR: hola train on a real terminal (a pty) of several widths.

A screen of our own plays the terminal: it wraps as terminals do, and breaks lines anew when it becomes narrower. What
must hold: no row but the last ever holds a progress line, none is wrapped, and colours are there only where wanted."""
import fcntl
import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time

HOLA, DIR = sys.argv[1], sys.argv[2]
failures = checks = 0


def check(good, what):
    global failures, checks
    checks += 1
    if not good:
        failures += 1
        print("FAILED:", what)


class Screen:
    """Rows of text with a cursor: carriage return, newline, erase, cursor up, colours; wraps at the width."""

    def __init__(self, columns):
        self.columns, self.rows, self.row, self.col = columns, [""], 0, 0
        self.wrapped, self.colours, self.widest, self.frames = 0, 0, 0, []
        self.rest = ""

    def put(self, c):
        if self.col == self.columns:
            self.wrapped += self.rows[self.row].startswith("step")
            self.newline()
            self.col = 0
        line = self.rows[self.row].ljust(self.col)
        self.rows[self.row] = line[: self.col] + c + line[self.col + 1 :]
        self.col += 1
        if self.rows[self.row].startswith("step"):
            self.widest = max(self.widest, self.col)

    def newline(self):
        self.row += 1
        if self.row == len(self.rows):
            self.rows.append("")

    def feed(self, text):
        text = self.rest + text
        self.rest = ""
        at = 0
        while at < len(text):
            c = text[at]
            if c == "\033":
                m = re.match(r"\033\[([0-9;]*)([A-Za-z])", text[at:])
                if not m:
                    self.rest = text[at:]
                    return
                n, what = m.group(1), m.group(2)
                if what == "K":
                    self.frames.append(self.rows[self.row])
                    self.rows[self.row] = self.rows[self.row][: self.col]
                elif what == "J":
                    self.rows[self.row] = self.rows[self.row][: self.col]
                    del self.rows[self.row + 1 :]
                elif what == "A":
                    self.row = max(0, self.row - int(n or 1))
                elif what == "m":
                    self.colours += 1
                else:
                    check(False, f"an escape that this test does not know: {m.group(0)!r}")
                at += len(m.group(0))
                continue
            if c == "\r":
                self.col = 0
            elif c == "\n":
                self.newline()
                self.col = 0
            else:
                self.put(c)
            at += 1

    def resize(self, columns):
        """Rows that are too long are broken, as terminals that reflow do."""
        rows, row = [], 0
        for i, r in enumerate(self.rows):
            pieces = [r[k : k + columns] for k in range(0, len(r), columns)] or [""]
            rows += pieces
            if i == self.row:
                row = len(rows) - 1
        self.rows, self.row, self.columns = rows, row, columns
        self.col = min(len(rows[row]), columns)


def size(fd, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))


def train(out, columns, options, env=None, act=None):
    """Runs to the end; act(screen, master, process) is called after every read. Returns screen, status, stdout."""
    master, slave = pty.openpty()
    size(slave, columns)
    e = {**os.environ, "TERM": "xterm", **(env or {})}
    for name in [k for k, v in e.items() if v is None]:
        del e[name]
    p = subprocess.Popen(
        [HOLA, "train", "--data", f"{DIR}/data", "--out", f"{DIR}/{out}", "--config", f"{DIR}/c.json", *options],
        stderr=slave, stdin=slave, stdout=subprocess.PIPE, env=e, start_new_session=True)
    os.close(slave)
    screen, data = Screen(columns), b""
    while True:
        if select.select([master], [], [], 30)[0]:
            try:
                data += os.read(master, 65536)
            except OSError:
                break
            text = data.decode("utf-8", "ignore")
            data = b""
            screen.feed(text)
            if act:
                act(screen, master, p)
        elif p.poll() is not None:
            break
    output = p.stdout.read().decode()
    os.close(master)
    return screen, p.wait(), output


def small(screen):
    """No progress line is left behind, none was wrapped, and nothing reached the last column."""
    check(screen.wrapped == 0, f"{screen.columns} columns: {screen.wrapped} lines wrapped: {screen.rows[-4:]}")
    left = [r for r in screen.rows if re.match(r"step +\d+/\d+", r) and "val loss" not in r]
    check(left == [], f"{screen.columns} columns: progress lines left behind: {left[:3]}")
    check(screen.widest < screen.columns, f"{screen.columns} columns: a line of {screen.widest}")


RUN = ["--steps", "40", "--batch-tokens", "1024", "--seq-len", "64", "--micro-tokens", "256", "-t", "1",
       "--eval-every", "20", "--eval-tokens", "256", "--log-every", "1"]

PIECE = (r"step \d+/\d+|\[[#.]{8}\]( slice \d+/\d+)?(, \d+m \d\ds)?|(loss|val) \d+\.\d{4}|[\d,]+ tok/s|[\d.]+ m?s|"
         r"ETA \d+m \d\ds|lr \d\.\d\de[-+]\d\d|norm [\d.e+-]+|\d+% of peak|validation( slice \d+/\d+)?|saving")

for columns in (60, 80, 200):
    screen, status, output = train(f"w{columns}", columns, RUN, {"NO_COLOR": None})
    check(status == 0, f"{columns} columns: status {status}: {screen.rows[-3:]}")
    small(screen)
    text = "\n".join(screen.rows)
    for want in ("memory: ", " GB predicted", "time: ", " a step", "end: about ", "epochs: past four", "val loss "):
        check(want in text, f"{columns} columns: no '{want}' in {text}")
    check(screen.colours > 0, "no colour on a terminal")
    longest = max(screen.frames, key=len, default="")
    check("loss " in longest and "ETA" in longest, f"{columns} columns: the line is only {longest!r}")
    cut = [p for p in longest.split(" | ") if not re.fullmatch(PIECE, p)]
    check(cut == [], f"{columns} columns: pieces that are cut: {cut}")
    for want in ("best validation loss: ", " at step ", f"model: {DIR}/w{columns}/best", "next: hola generate -m "):
        check(want in output, f"no '{want}' in {output}")
check("of peak" in longest and "norm" in longest, f"200 columns have room for all: {longest!r}")

FEW = ["--steps", "4", *RUN[2:]]
screen, status, _ = train("plain", 80, FEW, {"NO_COLOR": "1"})
check(status == 0 and screen.colours == 0, "NO_COLOR is not obeyed")
small(screen)
screen, status, _ = train("dumb", 80, FEW, {"TERM": "dumb"})
check(status == 0 and screen.colours == 0 and screen.frames == [], "TERM=dumb: the line is rewritten")
check(screen.wrapped == 0 and screen.widest < 80, f"TERM=dumb: a line of {screen.widest}, {screen.wrapped} wrapped")

# The terminal becomes narrow in the middle of a run: at the first step that is shown, of a run that is long enough on
# any machine (the line is not redrawn for every step).
state = {"narrow": False}
LONG = ["--steps", "300", *RUN[2:]]


def narrow(screen, master, p):
    if not state["narrow"] and re.search(r"step [1-9]\d*/", screen.rows[screen.row]):
        state["narrow"] = True
        size(master, 60)
        screen.resize(60)
        os.kill(p.pid, signal.SIGWINCH)


screen, status, _ = train("narrow", 160, LONG, {"NO_COLOR": None}, narrow)
check(status == 0 and state["narrow"], "the run ended before its terminal could become narrow")
left = [r for r in screen.rows if re.match(r"step +\d+/\d+", r) and "val loss" not in r]
check(left == [], f"after a change of width: {left}")
check(len(screen.frames[-1]) < 60, f"after a change of width: {screen.frames[-1]!r}")

# Ctrl-C in a step of many slices: said at once, and the step does not go on to its end.
state = {"asked": 0.0, "said": 0.0, "slices": []}
SLOW = ["--steps", "4", "--batch-tokens", "65536", "--seq-len", "64", "--micro-tokens", "64", "-t", "1"]


def interrupt(screen, master, p):
    text = "\n".join(screen.rows)
    m = re.search(r"step 1/4 \| \[[#.]*\] slice (\d+)/1024", screen.rows[screen.row])
    if m and not state["asked"]:
        state["asked"] = time.monotonic()
        p.send_signal(signal.SIGINT)
    if "stopping after this slice" in text and not state["said"]:
        state["said"] = time.monotonic()


screen, status, _ = train("slow", 80, SLOW, {"NO_COLOR": None}, interrupt)
end = time.monotonic()
text = "\n".join(screen.rows)
check(status == 0 and state["asked"] > 0, f"Ctrl-C: status {status}, slices seen: {state['asked'] > 0}: {text}")
check(state["said"] > 0, "Ctrl-C is not acknowledged")
check("stopped at step 0; the same command resumes" in text, f"Ctrl-C did not end the step: {text}")

print(f"{checks} checks, {failures} failed")
sys.exit(failures > 0)
