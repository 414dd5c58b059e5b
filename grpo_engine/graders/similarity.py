"""Similarity of two texts: each metric is a function (text, reference) → [0, 1].

Equal texts give 1, except for METEOR, whose penalty leaves 1 - 0.5 / (number of words)^3. Texts without a
word, or with fewer than N words for ROUGE-N, give 0.

Words of bleu, gleu and meteor are those of mteval-v13a, sacrebleu's default. Words of ROUGE are runs of
letters and digits in lower case, as in rouge-score, which has only a-z; in Chinese and Japanese, which have
no spaces, each character is a word. The libraries are imported when they are used.
"""

import re
from collections import Counter
from collections.abc import Callable, Sequence
from functools import lru_cache, partial
from typing import Any

_NO_SPACES = "\u3040-\u30ff\u3400-\u9fff\uf900-\ufaff"  # kana and ideographs
_ROUGE_WORD = re.compile(rf"[{_NO_SPACES}]|[^\W_{_NO_SPACES}]+")


def fuzzy_match(text: str, reference: str) -> float:
    """rapidfuzz's ratio: 1 - (insertions + deletions) / (length of both), over characters."""
    from rapidfuzz import fuzz

    return fuzz.ratio(text, reference) / 100


def bleu(text: str, reference: str) -> float:
    """Sentence BLEU-4 (Papineni et al. 2002) by sacrebleu, with its exponential smoothing."""
    import sacrebleu

    # rounding can give equal texts slightly more than 100
    return min(1.0, sacrebleu.sentence_bleu(text, [reference]).score / 100)


def gleu(text: str, reference: str) -> float:
    """Google BLEU (Wu et al. 2016): common 1- to 4-grams over those of the longer text, by nltk."""
    from nltk.translate.gleu_score import sentence_gleu

    return float(sentence_gleu([_words(reference)], _words(text)))


def meteor(text: str, reference: str) -> float:
    """METEOR (Banerjee and Lavie 2005) by nltk with its default parameters, over exact and stem matches.

    Synonyms, its third kind of match, need WordNet's data and are left out.
    """
    from nltk.translate.meteor_score import single_meteor_score

    return float(single_meteor_score(_words(reference), _words(text), wordnet=_NoSynonyms()))


def rouge_n(text: str, reference: str, *, n: int) -> float:
    """ROUGE-N (Lin 2004): F1 of the common n-grams."""
    found, wanted = (_grams(_rouge_words(each), n) for each in (text, reference))
    return _f1((found & wanted).total(), found.total(), wanted.total())


def rouge_l(text: str, reference: str) -> float:
    """ROUGE-L (Lin 2004): F1 of the longest common subsequence of words."""
    from rapidfuzz.distance import LCSseq

    found, wanted = _rouge_words(text), _rouge_words(reference)
    return _f1(LCSseq.similarity(found, wanted), len(found), len(wanted))


METRICS: dict[str, Callable[[str, str], float]] = {
    "fuzzy_match": fuzzy_match,
    "bleu": bleu,
    "gleu": gleu,
    "meteor": meteor,
    **{f"rouge_{n}": partial(rouge_n, n=n) for n in range(1, 6)},
    "rouge_l": rouge_l,
}


class _NoSynonyms:
    """Replaces nltk's WordNet reader."""

    def synsets(self, word: str) -> list[Any]:
        return []


@lru_cache(maxsize=1)
def _tokenizer() -> Any:
    from sacrebleu.tokenizers.tokenizer_13a import Tokenizer13a

    return Tokenizer13a()


def _words(text: str) -> list[str]:
    return str(_tokenizer()(text)).split()


def _rouge_words(text: str) -> list[str]:
    return _ROUGE_WORD.findall(text.lower())


def _grams(words: Sequence[str], n: int) -> Counter[tuple[str, ...]]:
    return Counter(zip(*(words[start:] for start in range(n)), strict=False))


def _f1(common: int, num_found: int, num_wanted: int) -> float:
    return 2 * common / (num_found + num_wanted) if common else 0.0
