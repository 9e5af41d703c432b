#!/usr/bin/env python3
"""eval_terminal.py HOLA RESULTS: the table of hola eval (three models, two tasks or more, a p below 0.05) on a terminal
of several widths: nothing is wider than the terminal, and what had to be left out is said."""
import fcntl
import json
import os
import pty
import struct
import subprocess
import sys
import termios

HOLA, RESULTS = sys.argv[1], sys.argv[2]
failures = 0


def check(good, what):
    global failures
    if not good:
        failures += 1
        print("FAILED:", what)


def table(columns):
    """The lines that hola prints on a terminal of that width; None: on a pipe."""
    command = [HOLA, "eval", "--results", RESULTS]
    if columns is None:
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\n")
    outer, inner = pty.openpty()
    fcntl.ioctl(inner, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    child = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner)
    os.close(inner)
    text = b""
    while True:
        try:
            more = os.read(outer, 4096)
        except OSError:  # the other side is closed
            break
        if not more:
            break
        text += more
    os.close(outer)
    check(child.wait() == 0, f"{columns} columns: status {child.returncode}")
    return text.decode().replace("\r\n", "\n").split("\n")


def numbers(lines):
    """What the rows hold, whatever their layout: metric and figures, without errors."""
    rows = []
    for line in lines:
        words = line.split()
        while "±" in words:
            at = words.index("±")
            del words[at : at + 2]
        rows.append(words)
    return rows


models = json.load(open(RESULTS))["models"]
tasks = list(models[0]["results"])
for columns in (60, 80, 120, 200, None):
    lines = table(columns)
    said = f"{columns} columns:\n" + "\n".join(lines)
    width = columns or 120
    head = [x for x in lines if "B - A" in x or "C - A" in x]
    check(max(len(x) for x in lines if columns or "p: " not in x) <= width, "a line is too wide: " + said)
    check(all(x == x.rstrip() for x in lines), "spaces at the end of a line: " + said)
    check(head and all("metric" in x and x.rstrip().endswith("p") for x in head), "no head: " + said)
    check(sum("B - A" in x for x in lines) == 1 and sum("C - A" in x for x in lines) == 1, "B, C: " + said)
    check(any(x.endswith(" **") for x in lines), "no stars: " + said)
    check(lines[0].startswith("A  "), "the names: " + said)
    # every task is named, in front of its figures or above them, and every figure of every model is there
    for task in tasks:
        check(any(x.split()[:1] == [task] for x in lines), task + ": " + said)
    flat = " ".join(" ".join(x) for x in numbers(lines))
    for model in models:
        for task in tasks:
            acc = model["results"][task].get("acc")
            check(acc is None or f"{acc:.4f}" in flat, f"{task} {acc} of {model['model']}: " + said)
    bare = "± error" not in " ".join(lines)
    if columns is None:
        check(not any(x.strip() in tasks for x in lines), "each line of a pipe names its task: " + said)
    check(bare == any("a wider terminal also shows" in x for x in lines), "what is left out: " + said)
    check(bare == (columns in (60, 80)), "errors at this width: " + said)
    check(("chance" in head[0]) == (columns != 60), "chance: " + said)
    check((len(head) == 1) == (columns == 200), "all models in one table: " + said)
sys.exit(failures > 0)
