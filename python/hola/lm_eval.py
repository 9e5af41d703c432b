"""lm-evaluation-harness with this package's models: ``pip install hola-lm[eval]``, then

    python -m hola.lm_eval --model hola --model_args pretrained=DIR --tasks arc_easy

Importing this module registers the model "hola" with the harness; run as a program, it is the harness's own.
"""

from __future__ import annotations

import sys

try:
    from ._harness import HolaLM
except ImportError as e:
    if (e.name or "").split(".")[0] == "hola":
        raise
    raise ImportError(f"hola.lm_eval needs lm-evaluation-harness: pip install lm-eval ({e})") from None

__all__ = ["HolaLM", "main"]


def main() -> None:
    """The program of the harness, which knows the model "hola" now."""
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()


if __name__ == "__main__":
    sys.exit(main())  # type: ignore[func-returns-value]
