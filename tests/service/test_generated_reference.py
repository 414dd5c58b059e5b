"""The generated reference pages are complete and current, and their examples give what they say."""

import pytest
from fastapi.testclient import TestClient

from docs import generate_sizing
from docs.generate_reference import KINDS, METHODS, REFERENCE, pages
from docs.grader_examples import EXAMPLES, Example

RUN = {kind: example for kind, example in EXAMPLES.items() if example.reward is not None}


def test_the_pages_are_what_the_generator_writes() -> None:
    stale = [str(path) for path, text in pages().items() if path.read_text(encoding="utf-8") != text]
    assert stale == [], "run python -m docs.generate_reference"


def test_the_table_of_what_fits_where_is_what_the_generator_writes() -> None:
    assert generate_sizing.PAGE.read_text(encoding="utf-8") == generate_sizing.page(), (
        "run python -m docs.generate_sizing"
    )


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("0.6B", 0.596),
        ("1.7B", 1.72),
        ("4B", 4.02),
        ("8B", 8.19),
        ("14B", 14.8),
        ("32B", 32.8),
        ("70B", 70.6),
    ],
)
def test_a_shape_of_the_table_has_the_published_number_of_parameters(name: str, billions: float) -> None:
    (config,) = [config for model, config in generate_sizing.MODELS.items() if model.endswith(f"-{name}")]
    found = generate_sizing.model_shape(config).num_parameters / 10**9
    assert found == pytest.approx(billions, rel=0.005)


def test_every_grader_has_a_page_and_an_example_and_no_page_is_left_over() -> None:
    assert {path.stem for path in (REFERENCE / "graders").iterdir()} == {"README", *KINDS}
    assert EXAMPLES.keys() == KINDS.keys()


def test_every_hyperparameter_of_every_method_has_a_section_that_names_the_method() -> None:
    page = (REFERENCE / "hyperparameters.md").read_text(encoding="utf-8").split("\n### ")
    sections = {section.split("\n")[0]: section for section in page}
    for method, model in METHODS.items():
        assert [name for name in model.model_fields if method not in sections[name]] == []


@pytest.mark.parametrize("database_url", ["sqlite"], indirect=True)
@pytest.mark.parametrize("example", RUN.values(), ids=RUN)
def test_an_example_gives_the_reward_on_its_page(client: TestClient, example: Example) -> None:
    answer = client.post("/v1/fine_tuning/alpha/graders/run", json=example.request()).json()
    assert answer["reward"] == pytest.approx(example.reward, abs=0.001), answer
