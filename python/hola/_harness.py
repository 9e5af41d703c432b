"""The model class of lm-evaluation-harness. Importing it needs lm-eval, and registers the model "hola" there."""

from __future__ import annotations

import json
import os
from typing import Any, Optional

from lm_eval import utils
from lm_eval.api.model import TemplateLM
from lm_eval.api.registry import register_model
from tqdm import tqdm

from ._errors import InvalidArgument
from ._model import Model

_TOGETHER = 1024  # requests that are handed to the library at a time; between them Ctrl-C is heard


def _flag(value: Any, name: str) -> bool:
    if isinstance(value, bool):
        return value
    if str(value).lower() in ("true", "1"):
        return True
    if str(value).lower() in ("false", "0"):
        return False
    raise InvalidArgument(f"{name}: {value!r} is not True or False")


@register_model("hola")  # type: ignore[misc,untyped-decorator,unused-ignore]
class HolaLM(TemplateLM):  # type: ignore[misc,unused-ignore]
    """``--model hola --model_args pretrained=DIR[,backend=,tokenizer=,max_length=,add_bos_token=]``.

    Windows, contexts and stop strings are the harness's; ids are scored by libhola, in process and in batches. A BOS
    is put before texts unless the directory's tokenizer_config.json or add_bos_token says otherwise, as in `hola eval`.
    batch_size has no effect: how many requests share a pass is the library's choice.
    """

    def __init__(
        self,
        pretrained: str,
        backend: Optional[str] = None,
        tokenizer: Optional[str] = None,
        max_length: Optional[int] = None,
        add_bos_token: Any = None,
        device: Optional[str] = None,
        batch_size: Any = None,
        max_batch_size: Any = None,
    ) -> None:
        super().__init__()
        self.model = Model.load(str(pretrained), backend=backend or device or None, tokenizer=tokenizer)
        if self.model.tokenizer is None:
            raise InvalidArgument(f"{pretrained}: holds no tokenizer; name one with tokenizer=")
        self._tok = self.model.tokenizer
        self._name = str(pretrained)
        self._max_length = int(max_length) if max_length else self.model.config.max_position_embeddings
        said = _tokenizer_config(os.fspath(self._tok.path)).get("add_bos_token", True) is not False
        self.add_bos_token = said if add_bos_token is None else _flag(add_bos_token, "add_bos_token")

    @property
    def eot_token_id(self) -> int:
        """The end of a text."""
        return self._tok.eos_id

    @property
    def prefix_token_id(self) -> int:
        """What a text without a context follows."""
        return self._tok.bos_id if self._tok.bos_id >= 0 else self._tok.eos_id

    @property
    def max_length(self) -> int:
        """The most tokens of a window."""
        return self._max_length

    @property
    def max_gen_toks(self) -> int:
        """How many tokens are generated where a task does not say."""
        return 256

    @property
    def tokenizer_name(self) -> str:
        """For the harness's cache of requests."""
        return self._name.replace("/", "__")

    def tok_encode(self, string: str, add_special_tokens: Optional[bool] = None, **_: Any) -> list[int]:
        """The ids of a text."""
        bos = self.add_bos_token if add_special_tokens is None else add_special_tokens
        ids: list[int] = self._tok.encode(string, bos=bos and self._tok.bos_id >= 0).tolist()
        return ids

    def tok_decode(self, tokens: Any) -> str:
        """The text of ids."""
        return self._tok.decode(tokens)

    def _loglikelihood_tokens(self, requests: Any, disable_tqdm: bool = False, **_: Any) -> list[tuple[float, bool]]:
        pairs = []
        for _name, context, continuation in requests:
            if not 0 < len(continuation) <= self.max_length:
                raise InvalidArgument(f"a continuation of {len(continuation)} tokens; max_length is {self.max_length}")
            tokens = (list(context) + list(continuation))[-(self.max_length + 1) :]
            cut = len(tokens) - len(continuation)
            pairs.append((tokens[:cut], tokens[cut:]))
        answers: list[tuple[float, bool]] = []
        with tqdm(total=len(pairs), disable=disable_tqdm, desc="Scoring") as bar:
            for first in range(0, len(pairs), _TOGETHER):
                some = pairs[first : first + _TOGETHER]
                scores, greedy = self.model.loglikelihood(some)
                answers += [(float(s), bool(g)) for s, g in zip(scores, greedy)]
                bar.update(len(some))
        for (name, *_rest), answer in zip(requests, answers):
            if name is not None:
                self.cache_hook.add_partial("loglikelihood", name, answer)
        return answers

    def loglikelihood_rolling(self, requests: Any, disable_tqdm: bool = False) -> list[float]:
        """The log-likelihood of whole texts, in windows."""
        windows: list[Any] = []
        owner: list[int] = []
        for i, request in enumerate(requests):
            for window in utils.get_rolling_token_windows(
                token_list=self.tok_encode(request.args[0]),
                prefix_token=self.prefix_token_id,
                max_seq_len=self.max_length,
                context_len=1,
            ):
                windows.append((None, *utils.make_disjoint_window(window)))
                owner.append(i)
        total = [0.0] * len(requests)
        for i, (score, _greedy) in zip(owner, self._loglikelihood_tokens(windows, disable_tqdm)):
            total[i] += score
        for request, score in zip(requests, total):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, score)
        return total

    def generate_until(self, requests: Any, disable_tqdm: bool = False) -> list[str]:
        """Continues texts up to one of the task's stop strings."""
        groups: dict[str, list[int]] = {}
        for i, request in enumerate(requests):
            groups.setdefault(json.dumps(request.args[1], sort_keys=True, default=str), []).append(i)
        texts = [""] * len(requests)
        with tqdm(total=len(requests), disable=disable_tqdm, desc="Generating") as bar:
            for members in groups.values():
                options = _options(requests[members[0]].args[1], self.max_gen_toks)
                room = self.max_length - options["max_tokens"]
                if room < 1:
                    raise InvalidArgument(
                        f"{options['max_tokens']} tokens to generate; max_length is {self.max_length}"
                    )
                prompts = [(self.tok_encode(requests[i].args[0]) or [self.prefix_token_id])[-room:] for i in members]
                for i, done in zip(members, self.model.generate_batch(prompts, **options)):
                    texts[i] = done.text
                    self.cache_hook.add_partial("generate_until", requests[i].args, done.text)
                bar.update(len(members))
        return texts


def _options(how: dict[str, Any], most: int) -> dict[str, Any]:
    """A task's generation_kwargs as generate's options."""
    until = how.get("until") or []
    options: dict[str, Any] = {
        "max_tokens": int(how.get("max_gen_toks", most)),
        "stop": [until] if isinstance(until, str) else [s for s in until if s],
        "temperature": 0.0,
    }
    if how.get("do_sample") and float(how.get("temperature", 1.0)) > 0:
        options.update(temperature=float(how.get("temperature", 1.0)), top_k=int(how.get("top_k", 0)))
        options.update(top_p=float(how.get("top_p", 1.0)), min_p=float(how.get("min_p", 0.0)))
    return options


def _tokenizer_config(path: str) -> dict[str, Any]:
    folder = path if os.path.isdir(path) else os.path.dirname(path)
    name = os.path.join(folder, "tokenizer_config.json")
    if not os.path.exists(name):
        return {}
    with open(name, encoding="utf-8") as f:
        said = json.load(f)
    return said if isinstance(said, dict) else {}
