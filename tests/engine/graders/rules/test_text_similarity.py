import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from grpo_engine.graders.rules.text_similarity import MAX_CHARACTERS
from grpo_engine.graders.similarity import METRICS
from tests.engine.graders.helpers import read, refusal, reward, score

CAT = ("the cat sat on the mat", "the cat is on the mat")
FOX = ("The quick brown fox jumps over the lazy dog", "The quick brown dog jumps on the log.")
POLICE = ("police killed the gunman", "the gunman kill police")


def grader(metric: str) -> dict[str, Any]:
    return {
        "type": "text_similarity",
        "input": "{{sample.output_text}}",
        "reference": "{{item.answer}}",
        "evaluation_metric": metric,
    }


@pytest.mark.parametrize(
    ("metric", "pair", "expected"),
    [
        # 22 and 21 characters, 20 of them in common: 2 * 20 / 43.
        ("fuzzy_match", CAT, 40 / 43),
        ("fuzzy_match", ("abcd", "bcde"), 6 / 8),
        ("fuzzy_match", ("", ""), 1.0),
        # Precisions 5/6, 3/5, 1/4 and, smoothed, 1/2 of 1/3; equal lengths: (5/6 * 3/5 * 1/4 * 1/6)^(1/4).
        ("bleu", CAT, (5 / 6 * 3 / 5 * 1 / 4 * 1 / 6) ** 0.25),
        # All 1- to 4-grams match; 4 words for 6: brevity penalty e^(1 - 6/4).
        ("bleu", ("the cat is on", "the cat is on the mat"), 0.6065306597126334),
        ("bleu", ("", "x"), 0.0),
        # 9 of the 18 n-grams are in common.
        ("gleu", CAT, 9 / 18),
        ("gleu", ("a b", "a b"), 1.0),
        # 5 of 6 words match in 2 chunks: F 5/6, penalty 0.5 * (2/5)^3.
        ("meteor", CAT, 5 / 6 * (1 - 0.5 * (2 / 5) ** 3)),
        # killed and kill have one stem: 4 matches in 3 chunks.
        ("meteor", POLICE, 1 - 0.5 * (3 / 4) ** 3),
        ("meteor", ("quick", "fast"), 0.0),
        ("meteor", ("", "x"), 0.0),
        # Of google-research's rouge-score, F1 without stemming.
        ("rouge_1", CAT, 5 / 6),
        ("rouge_2", CAT, 3 / 5),
        ("rouge_3", CAT, 1 / 4),
        ("rouge_4", CAT, 0.0),
        ("rouge_4", ("a b c d e", "a b c d f"), 1 / 2),
        ("rouge_5", ("a b c d e f", "a b c d e g"), 1 / 2),
        ("rouge_l", CAT, 5 / 6),
        ("rouge_1", FOX, 12 / 17),
        ("rouge_2", FOX, 4 / 15),
        ("rouge_3", FOX, 2 / 13),
        ("rouge_l", FOX, 10 / 17),
        ("rouge_1", POLICE, 3 / 4),
        ("rouge_2", POLICE, 1 / 3),
        ("rouge_l", POLICE, 1 / 2),
        ("rouge_1", ("It's 3.5 km, isn't it?", "It's 3.5 km, is it not?"), 3 / 4),
        ("rouge_l", ("", "x"), 0.0),
        # 2 of 3 words in common, and 4 of 5 characters; other scripts have no words in rouge-score.
        ("rouge_1", ("Столица – город Париж", "столица: город Рим"), 2 / 3),
        ("rouge_l", ("首都は東京", "首都は京都"), 4 / 5),
        ("rouge_l", ("une réponse brève", "Une réponse_brève"), 1.0),
    ],
)
def test_a_metric_has_the_value_of_its_definition(
    metric: str, pair: tuple[str, str], expected: float
) -> None:
    assert reward(grader(metric), pair[0], {"answer": pair[1]}) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@given(text=st.text(alphabet=" ab.é\ud800'\n", max_size=40), reference=st.text(max_size=40))
def test_every_metric_is_between_0_and_1(metric: str, text: str, reference: str) -> None:
    assert 0.0 <= METRICS[metric](text, reference) <= 1.0


@pytest.mark.parametrize(
    "text", ["Париж стоит мессы", "باريس هي العاصمة", "서울은 수도이다", "मेरा भारत महान", "東京"]
)
def test_equal_texts_of_every_script_have_rouge_1(text: str) -> None:
    assert (METRICS["rouge_1"](text, text), METRICS["rouge_l"](text, text)) == (1.0, 1.0)


@pytest.mark.parametrize("metric", METRICS)
def test_equal_texts_have_1_less_the_penalty_of_meteor(metric: str) -> None:
    text = "To be, or not to be: that is the question."
    # 13 words and signs in one chunk.
    expected = 1 - 0.5 / 13**3 if metric == "meteor" else 1.0
    assert METRICS[metric](text, text) == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("metric", METRICS)
@pytest.mark.parametrize("pattern", ["word{} ", "a", "a ", ".,!?", "1.", "\n", "ational", "&amp;"])
def test_the_longest_text_costs_little(metric: str, pattern: str) -> None:
    text = "".join(pattern.format(number) for number in range(MAX_CHARACTERS // len(pattern)))[
        :MAX_CHARACTERS
    ]
    METRICS[metric]("load", "libraries")
    start = time.process_time()
    METRICS[metric](text, text[::-1])
    assert time.process_time() - start < 3.0


@pytest.mark.parametrize(
    ("text", "answer", "name"), [("x" * 65_537, "x", "input"), ("x", "x" * 65_537, "reference")]
)
def test_a_longer_text_is_unscorable(text: str, answer: str, name: str) -> None:
    found = score(grader("rouge_l"), text, {"answer": answer})
    assert found.reward is None
    assert found.errors["text_similarity"].message == f"{name} is longer than 65536 characters"


def test_cosine_and_unknown_metrics_are_refused() -> None:
    place, message = refusal(**grader("cosine"))
    assert place == ("text_similarity", "evaluation_metric")
    assert "cosine needs an embedding model" in message
    assert "'fuzzy_match'" in refusal(**grader("rouge_6"))[1]


def test_feedback_on_a_partial_reward_states_the_expected_text() -> None:
    found = score(grader("rouge_l"), CAT[0], {"answer": CAT[1]})
    assert found.feedback == 'rouge_l is 0.83, expected a text like "the cat is on the mat"'
    assert score(grader("rouge_l"), CAT[1], {"answer": CAT[1]}).feedback == ""


def test_it_runs_in_the_caller_and_reads_back_equal() -> None:
    found = read(**grader("bleu"))
    assert found.execution == "inline"
    assert read(**found.model_dump()) == found
    assert found.problems({}) == ["{{item.answer}} does not resolve"]
