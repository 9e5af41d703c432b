#!/usr/bin/env python3
"""Compares `hola eval` with lm-evaluation-harness, request by request and metric by metric: the harness's own tasks,
over the files of a data directory, answered by hola.lm_eval. The texts become ids in Hugging Face's tokenizers or
sentencepiece on the harness's side, in hola's tokenizer on the other.

    pip install .[eval] tokenizers sentencepiece
    tools/lm_eval_hola.py -m DIR --data DIR --limit 100 [--tasks arc_easy,piqa]
"""

import argparse
import json
import os
import subprocess
import sys
import tempfile

import hola
from hola.lm_eval import HolaLM


class HubTokenizer:
    """tokenizer.json through tokenizers, tokenizer.model through sentencepiece"""

    def __init__(self, directory):
        model = os.path.join(directory, "tokenizer.model")
        if os.path.exists(model):
            import sentencepiece

            self.sp = sentencepiece.SentencePieceProcessor(model_file=model)
            self.encode, self.bos, self.eos = self.sp.encode, self.sp.bos_id(), self.sp.eos_id()
        else:
            import tokenizers

            tok = tokenizers.Tokenizer.from_file(os.path.join(directory, "tokenizer.json"))
            self.encode = lambda text: tok.encode(text, add_special_tokens=False).ids
            config = json.load(open(os.path.join(directory, "config.json")))

            def special(names, field):
                found = [tok.token_to_id(n) for n in names if tok.token_to_id(n) is not None]
                return found[0] if found else config[field] if config.get(field) is not None else -1

            self.bos = special(["<s>", "<|begin_of_text|>", "<|endoftext|>"], "bos_token_id")
            self.eos = special(["</s>", "<|end_of_text|>", "<|endoftext|>"], "eos_token_id")
        path = os.path.join(directory, "tokenizer_config.json")
        said = json.load(open(path)) if os.path.exists(path) else {}
        self.add_bos = said.get("add_bos_token", True) is not False


class HubLM(HolaLM):
    """hola's model behind another tokenizer"""

    def __init__(self, model, bos=None, eos=None):
        super().__init__(model)
        self.hub = HubTokenizer(model)
        if bos is not None:
            self.hub.bos, self.hub.eos = int(bos), int(eos)
        self.add_bos_token = self.hub.add_bos

    eot_token_id = property(lambda self: self.hub.eos)
    prefix_token_id = property(lambda self: self.hub.bos if self.hub.bos >= 0 else self.hub.eos)

    def tok_encode(self, string, add_special_tokens=None, **_):
        special = self.add_bos_token if add_special_tokens is None else add_special_tokens
        return ([self.hub.bos] if special and self.hub.bos >= 0 else []) + list(self.hub.encode(string))


# ---- the check ----


def rows(path):
    return [json.loads(line) for line in open(path) if line.strip()]


def hub_rows(data, dataset, name):
    """(split, rows as the hub has them) for a dataset, from the files of a data directory"""

    def arc(row):
        if isinstance(row["choices"], dict):
            return row
        labels = [chr(65 + i) for i in range(len(row["choices"]))]
        return {
            "id": row["id"],
            "question": row["question"],
            "question_stem": row["question"],
            "choices": {"text": row["choices"], "label": labels},
            "answerKey": labels[row["gold"]],
        }

    def hellaswag(row):  # cleaned rows, put so that cleaning them again leaves them alone
        label, rest = row["query_ctxb_capitalized"].split(": ", 1)
        return {
            "activity_label": label,
            "ctx_a": rest,
            "ctx_b": "",
            "endings": row["endings"],
            "label": str(row["label"]),
        }

    def read(name, change=lambda row: row):
        return [change(row) for row in rows(os.path.join(data, name))]

    key = dataset.split("/")[-1] + ("/" + name if name in ("ARC-Easy", "ARC-Challenge", "boolq") else "")
    return {
        "wikitext_document_level": lambda: ("test", read("wikitext/wikitext_document_level.test.jsonl")),
        "lambada_openai": lambda: ("test", read("lambada/lambada_test.jsonl")),
        "lambada": lambda: (
            "test",
            [
                {"text": t}
                for t in open(os.path.join(data, "lambada/lambada_test_plain_text.txt")).read().split("\n")
                if t
            ],
        ),
        "ai2_arc/ARC-Easy": lambda: ("test", read("arc_easy/test.jsonl", arc)),
        "ai2_arc/ARC-Challenge": lambda: ("test", read("arc_challenge/test.jsonl", arc)),
        "openbookqa": lambda: ("test", read("openbookqa/test.jsonl", arc)),
        "hellaswag": lambda: ("validation", read("hellaswag/hellaswag_val.klosax.jsonl", hellaswag)),
        "piqa": lambda: ("validation", read("piqa/validation.jsonl")),
        "winogrande": lambda: ("validation", read("winogrande/validation.jsonl")),
        "super_glue/boolq": lambda: (
            "validation",
            read("boolq/validation.jsonl", lambda r: {**r, "label": int(r["answer"])}),
        ),
        "sciq": lambda: ("test", read("sciq/validation.jsonl")),
        "based-fda": lambda: ("validation", read("fda/fda_rebuilt.jsonl")),
        "based-swde-v2": lambda: ("validation", read("swde/swde_rebuilt.jsonl")),
    }[key]()


def local_datasets(data, limit):
    import datasets

    def load(path=None, name=None, **_):
        split, found = hub_rows(data, path, name)
        keep = set.intersection(*(set(r) for r in found))
        table = datasets.Dataset.from_list([{k: r[k] for k in sorted(keep)} for r in found[: limit or len(found)]])
        return datasets.DatasetDict(
            {s: table for s in ("train", "validation", "test")}
            if split == "validation"
            else {"test": table, "validation": table, "train": table}
        )

    datasets.load_dataset = load


def compare(args):
    import lm_eval

    local_datasets(args.data, args.limit)
    tasks = args.tasks.split(",")
    lm = HubLM(args.model, bos=args.bos, eos=args.eos)
    theirs = lm_eval.simple_evaluate(
        model=lm,
        tasks=tasks,
        limit=args.limit or None,
        bootstrap_iters=0,
        log_samples=True,
        random_seed=None,
        numpy_random_seed=None,
    )
    with tempfile.NamedTemporaryFile("w", suffix=".jsonl") as f:
        command = [
            args.hola,
            "eval",
            "-m",
            args.model,
            "--data",
            args.data,
            "--tasks",
            ",".join(tasks),
            "--json",
            "--log-samples",
            f.name,
        ] + (["--limit", str(args.limit)] if args.limit else [])
        ours = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
        samples = rows(f.name)
    bad = 0
    for task in tasks:
        mine = [s for s in samples if s["task"] == task]
        answers = [r for doc in sorted(theirs["samples"][task], key=lambda d: d["doc_id"]) for r in doc["resps"]]
        worst = flips = 0
        assert len(mine) == len(answers), f"{task}: {len(mine)} requests, the harness has {len(answers)}"
        for m, t in zip(mine, answers):
            t = t[0]
            if "output" in m:
                flips += not t.startswith(m["output"])  # ours may stop once the target is there
            elif isinstance(t, (tuple, list)):
                worst = max(worst, abs(float(t[0]) - m["loglikelihood"]))
                flips += (str(t[1]) == "True") != m["is_greedy"]
            else:
                worst = max(worst, abs(float(t) - m["loglikelihood"]) / m["tokens"])
        for metric, value in theirs["results"][task].items():
            name = metric.split(",")[0]
            if name in ours["results"][task] and not name.endswith("_stderr"):
                same = abs(ours["results"][task][name] - value) <= 1e-6 * max(1, abs(value))
                bad += not same
                print(
                    f"{task:18} {name:16} hola {ours['results'][task][name]:<20.12g} harness {value:<20.12g}"
                    f"{'' if same else ' DIFFERENT'}"
                )
        said = f"log-likelihoods differ by {worst:.2g} nats at most, {flips} answers differ"
        print(f"{task:18} {len(mine)} requests: {said}")
        bad += flips > 0 or worst > 1e-3
    return bad


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hola", default=hola.program_path(), help="the program (default: the package's)")
    parser.add_argument("-m", "--model", required=True)
    parser.add_argument("--data", required=True)
    parser.add_argument("--limit", type=int, default=100, help="documents of a task; 0: all")
    parser.add_argument("--bos", type=int, help="ids of BOS and EOS where the tokenizer's files do not say")
    parser.add_argument("--eos", type=int)
    parser.add_argument(
        "--tasks",
        default="wikitext,lambada_openai,lambada_standard,arc_easy,arc_challenge,hellaswag,"
        "piqa,winogrande,boolq,sciq,openbookqa,fda,swde",
    )
    sys.exit(1 if compare(parser.parse_args()) else 0)
