"""`python -m grpo_engine.merge --base MODEL --adapter FOLDER --out FOLDER`: an adapter becomes whole weights.

Boundary: PEFT's own arithmetic, in the base model's type. Left out: quantised base models.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer


def merge(base: str, adapter: Path, out: Path, revision: str | None = None) -> None:
    """safetensors, configuration and tokenizer in `out`; it loads without PEFT."""
    model = AutoModelForCausalLM.from_pretrained(base, revision=revision, dtype="auto")
    # the folder's own base name is the catalogue's, which need not be a place on this machine
    merged = PeftModel.from_pretrained(model, str(adapter)).merge_and_unload(safe_merge=True)
    merged.save_pretrained(out, safe_serialization=True)
    AutoTokenizer.from_pretrained(base, revision=revision).save_pretrained(out)


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="python -m grpo_engine.merge", description=__doc__)
    parser.add_argument("--base", required=True, help="folder or hub id of the base model")
    parser.add_argument("--revision", help="of the hub's repository")
    parser.add_argument("--adapter", type=Path, required=True, help="folder in PEFT layout")
    parser.add_argument("--out", type=Path, required=True, help="where the merged model goes")
    given = parser.parse_args(arguments)
    try:
        merge(given.base, given.adapter, given.out, given.revision)
    except (OSError, ValueError, RuntimeError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
