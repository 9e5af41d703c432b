#!/usr/bin/env python3
"""doc_commands.py HOLA FILE...: every hola command in these documents has options that hola knows."""
import re
import subprocess
import sys

HOLA = sys.argv[1]
COMMANDS = re.findall(r"^  (\w+)  ", subprocess.run([HOLA, "help"], check=True, capture_output=True, text=True).stdout, re.M)
known, seen, wrong = {}, 0, 0


def options(command):
    if command not in known:
        text = subprocess.run([HOLA, *command.split(), "--help"], check=True, capture_output=True, text=True).stdout
        known[command] = set(re.findall(r"(?<=\s)--[a-z0-9-]+|(?<=  )-[a-zA-Z](?=,)", text)) | {"--help"}
    return known[command]


for path in sys.argv[2:]:
    with open(path, encoding="utf-8") as f:
        text = re.sub(r"\\\n", " ", f.read())
    for line in text.split("\n"):
        for command, words in re.findall(r"(?<![\w./-])(?:\./)?hola ((?:tokenizer )?[a-z]+)([^`|;&#]*)", line):
            if command.split()[0] not in COMMANDS or command == "tokenizer":
                continue
            seen += 1
            for option in re.findall(r"(?<=\s)(--[a-z0-9-]+|-[a-zA-Z])(?=[\s=]|$)", words):
                if option not in options(command):
                    wrong += 1
                    print(f"FAILED: {path}: hola {command} has no {option}: {line.strip()[:100]}")
print(f"{seen} commands in {len(sys.argv) - 2} documents")
sys.exit(wrong > 0 or seen == 0)
