"""The files page: uploads, CSV, rows and lengths, new names, deletion; held-out rows in the form."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import Browser, BrowserContext, Page, expect

from service.importing.dataset_formats import as_jsonl
from service.platform.migrate import upgrade
from tests.browser.conftest import Tab, log_in, new_tab, profile
from tests.browser.deployment import Deployment, questions, reinforcement
from tests.conftest import settings_for
from tests.e2e.api import api_process
from tests.service.job_samples import MODEL, jsonl, row, upload

CSV = (
    "\ufeffquestion,answer,note\r\n"
    '"Capital of ""la France""?",Paris,"two\nlines"\r\n'
    "007,7,\r\n"
    "\r\n"
    '"a, b",x y,1e5\r\n'
)


@pytest.fixture(scope="module")
def deployment(tmp_path_factory: pytest.TempPathFactory, clean_environment: None) -> Iterator[Deployment]:
    """A separate API without a worker."""
    settings = settings_for(tmp_path_factory.mktemp("files") / "home")
    upgrade(settings)
    with api_process(settings) as api:
        api.start()
        yield Deployment(api)


@pytest.fixture
def context(browser: Browser, deployment: Deployment) -> Iterator[BrowserContext]:
    """A visitor of a tenant of its own, which has no files."""
    key = deployment.new_key(f"tenant-{len(deployment.jobs)}")
    deployment.jobs[key] = ""
    deployment.client.headers["Authorization"] = f"Bearer {key}"
    with profile(browser, deployment) as context:
        log_in(context, key)
        yield context


@pytest.fixture
def shared_tab(context: BrowserContext) -> Tab:
    return new_tab(context)


def files(deployment: Deployment) -> list[dict[str, Any]]:
    return list(deployment.get("/v1/files")["data"])


def rows_of(deployment: Deployment, file: dict[str, Any]) -> list[Any]:
    content = deployment.client.get(f"/v1/files/{file['id']}/content").text
    return [json.loads(line) for line in content.splitlines()]


def written(path: Path, content: bytes) -> Path:
    path.write_bytes(content)
    return path


def test_an_uploaded_file_is_listed_shown_renamed_and_deleted(
    page: Page, deployment: Deployment, tmp_path: Path, shots: Callable[[Page, str], None]
) -> None:
    page.goto("/#/files")
    expect(page.get_by_role("heading", name="No file yet")).to_be_visible()
    shots(page, "files-empty")
    upload(deployment.client, jsonl(*(row(f"What is {n} + {n}?", str(2 * n)) for n in range(250))))
    upload(deployment.client, jsonl({"prompt": "<b>x</b>" * 200, "answer": {"a": [1, 2]}}))
    page.get_by_label("Upload a file").set_input_files(written(tmp_path / "sums.jsonl", questions()))
    expect(page.get_by_text("sums.jsonl uploaded. 8 rows.")).to_be_visible()
    listed = page.get_by_role("row")
    expect(listed).to_have_count(4)
    expect(listed.nth(1)).to_contain_text("sums.jsonl")
    expect(listed.nth(1).get_by_role("cell").nth(0)).to_have_text("8")
    expect(page.get_by_role("link", name="Files", exact=True)).to_have_attribute("aria-current", "page")
    shots(page, "files")

    page.get_by_role("link", name="sums.jsonl").click()
    expect(page.get_by_role("heading", name="sums.jsonl")).to_be_visible()
    expect(page.get_by_text("What is 7 + 7?")).to_be_visible()
    expect(page.get_by_text("The first 8 of 8 rows.")).to_be_visible()
    page.get_by_label("Count tokens of").select_option(MODEL)
    expect(page.get_by_text("counted in all 8 rows")).to_be_visible()
    found = deployment.get(f"/v1/files/{files(deployment)[0]['id']}/preview", model=MODEL)["tokens"]
    for name in ("min", "median", "p95", "max"):
        expect(page.locator(".figures")).to_contain_text(f"{found[name]}tokens")
    shots(page, "file")

    page.get_by_role("button", name="Rename sums.jsonl").click()
    page.get_by_role("textbox", name="Name").fill("")
    page.get_by_role("button", name="Rename", exact=True).click()
    expect(page.get_by_role("alert")).to_contain_text("filename")
    page.get_by_role("textbox", name="Name").fill("additions.jsonl")
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="additions.jsonl")).to_be_visible()
    page.get_by_role("button", name="Delete additions.jsonl").click()
    page.get_by_role("button", name="Keep").click()
    assert len(files(deployment)) == 3
    page.get_by_role("button", name="Delete additions.jsonl").click()
    shots(page, "file-delete")
    page.get_by_role("button", name="Delete", exact=True).click()
    expect(page.get_by_role("heading", name="Files", exact=True)).to_be_visible()
    expect(listed).to_have_count(3)
    assert len(files(deployment)) == 2


@pytest.fixture(autouse=True)
def _refusals(expected_errors: list[str]) -> None:
    """Chromium writes refused requests to its console."""
    expected_errors.append("400 (Bad Request)")


def test_a_long_file_shows_its_first_rows_and_more_on_request(page: Page, deployment: Deployment) -> None:
    rows = [{"prompt": f"<img src=x onerror=alert({n})>", "answer": {"n": [n]}} for n in range(150)]
    file_id = upload(deployment.client, jsonl(*rows))
    page.goto(f"/#/files/{file_id}")
    expect(page.get_by_text("The first 20 of 150 rows.")).to_be_visible()
    expect(page.get_by_text("<img src=x onerror=alert(19)>")).to_be_visible()
    page.get_by_role("button", name="Show 100 rows").click()
    expect(page.get_by_text("The first 100 of 150 rows.")).to_be_visible()
    expect(page.get_by_text('{"n":[99]}')).to_be_visible()


def test_a_download_that_fails_shows_why(
    page: Page, deployment: Deployment, expected_errors: list[str]
) -> None:
    expected_errors.append("404")
    error = {"error": {"message": "The content is no longer stored.", "code": "content_missing"}}
    page.route("**/content", lambda route: route.fulfill(status=404, json=error))
    page.goto(f"/#/files/{upload(deployment.client, questions())}")
    page.get_by_role("button", name="Download").click()
    expect(page.get_by_role("alert")).to_have_text("The content is no longer stored.")


def test_a_csv_file_becomes_the_same_rows_as_with_the_command(
    page: Page, deployment: Deployment, tmp_path: Path, shots: Callable[[Page, str], None]
) -> None:
    path = written(tmp_path / "capitals.csv", CSV.encode())
    page.goto("/#/files")
    page.get_by_label("Upload a file").set_input_files(path)
    expect(page.get_by_label("Prompt column")).to_have_value("question")
    expect(page.get_by_text("3 rows. Which column is the prompt?")).to_be_visible()
    shots(page, "files-csv")
    page.get_by_role("button", name="Cancel").click()
    expect(page.get_by_text("capitals.csv was not uploaded.")).to_be_visible()
    page.get_by_label("Upload a file").set_input_files(path)
    page.get_by_role("dialog").get_by_role("button", name="Upload").click()
    expect(page.get_by_text("capitals.jsonl uploaded. 3 rows.")).to_be_visible()
    (file,) = files(deployment)
    with as_jsonl(str(path), columns={"question": "prompt"}) as expected:
        assert rows_of(deployment, file) == [json.loads(line) for line in expected.read_text().splitlines()]


def test_the_index_column_of_pandas_is_kept_as_with_the_command(
    page: Page, deployment: Deployment, tmp_path: Path
) -> None:
    path = written(tmp_path / "sums.csv", b",sum,total\n0,1+1,2\n1,2+2,4\n")
    page.goto("/#/files")
    page.get_by_label("Upload a file").set_input_files(path)
    expect(page.get_by_label("Prompt column")).to_have_value("sum")
    page.get_by_role("dialog").get_by_role("button", name="Upload").click()
    expect(page.get_by_text("sums.jsonl uploaded. 2 rows.")).to_be_visible()
    (file,) = files(deployment)
    with as_jsonl(str(path), columns={"sum": "prompt"}) as expected:
        assert rows_of(deployment, file) == [json.loads(line) for line in expected.read_text().splitlines()]


def test_an_instruction_precedes_the_prompt_of_every_row_of_a_csv_file(page: Page, tmp_path: Path) -> None:
    page.goto("/#/files")
    page.get_by_label("Upload a file").set_input_files(
        written(tmp_path / "a.csv", b"word,label\ncat,pet\nelm,tree\n")
    )
    page.get_by_label("Instruction").fill("One word:")
    expect(page.get_by_label("First row as JSON")).to_contain_text(r'"content": "One word:\ncat"')
    page.get_by_role("dialog").get_by_role("button", name="Upload").click()
    page.get_by_role("link", name="a.jsonl").click()
    for word in ("cat", "elm"):
        expect(page.get_by_text(f"One word:\n{word}", exact=True)).to_be_visible()


@pytest.mark.parametrize(
    ("name", "content", "reason"),
    [
        ("a.csv", b"a,b\n1,2\n\n3\n", "a.csv was not uploaded: line 4 has 1 cells, and line 1 has 2."),
        ("a.csv", b'a,b\n1,"2\n', "line 2: a quote is not closed, or text follows it."),
        ("a.csv", b"a;b\n1;2\n", "line 1 has no commas"),
        ("a.csv", b"a,a\n1,2\n", "line 1: column 2 repeats the name a."),
        ("a.csv", b"a,b\n\xff,2\n", "it is not UTF-8"),
        ("a.csv", b"a,b\n", "it has no rows below"),
        ("a.parquet", b"PAR1", "only JSONL and CSV can be uploaded here. The command `grpo files upload`"),
        ("a.jsonl", b'{"a": 1}\n{"a": }\n', "a.jsonl was not uploaded: line 2 is not JSON"),
        ("a.jsonl", b"question,answer\n1,2\n", "it looks like CSV"),
    ],
)
def test_a_file_that_cannot_be_used_is_named_with_its_line(
    page: Page, deployment: Deployment, tmp_path: Path, name: str, content: bytes, reason: str
) -> None:
    page.goto("/#/files")
    page.get_by_label("Upload a file").set_input_files(written(tmp_path / name, content))
    expect(page.locator("p.problem")).to_contain_text(reason)
    assert files(deployment) == []


def test_a_dropped_file_is_uploaded_and_the_same_bytes_only_once(page: Page, deployment: Deployment) -> None:
    page.goto("/#/files")
    for name in ("first.jsonl", "second.jsonl"):
        data = page.evaluate_handle(
            """(name) => {
              const data = new DataTransfer();
              data.items.add(new File(['{"prompt": "2+2?", "answer": 4}\\n'], name));
              return data;
            }""",
            name,
        )
        page.dispatch_event(".drop", "drop", {"dataTransfer": data})
        expect(page.get_by_text(f"{name} uploaded. 1 row.")).to_be_visible()
    expect(page.get_by_text("These rows are stored already, as first.jsonl.")).to_be_visible()
    assert [file["filename"] for file in files(deployment)] == ["first.jsonl"]


def test_a_file_in_use_stays_and_the_job_is_named(page: Page, deployment: Deployment) -> None:
    job_id = deployment.create(upload(deployment.client, questions()))
    page.goto("/#/files")
    page.get_by_role("button", name="Delete").click()
    page.get_by_role("dialog").get_by_role("button", name="Delete").click()
    expect(page.get_by_role("alert")).to_contain_text(f"is used by the unfinished job {job_id}")
    page.get_by_role("button", name="Close").click()
    assert len(files(deployment)) == 1


def body(page: Page) -> Any:
    return json.loads(page.get_by_label("Request as JSON").input_value())


def test_a_job_holds_out_a_part_of_its_file(
    page: Page, deployment: Deployment, shots: Callable[[Page, str], None]
) -> None:
    file_id = upload(deployment.client, questions())
    page.goto(f"/#/files/{file_id}")
    page.get_by_role("link", name="New job", exact=True).nth(1).click()
    expect(page.get_by_label("Training file")).to_have_value(file_id)
    page.get_by_label("Held-out rows", exact=True).select_option("split")
    expect(page.get_by_label("Held-out part", exact=True)).to_have_value("10")
    page.get_by_label("Held-out part", exact=True).fill("25")
    assert body(page)["validation_split"] == 0.25
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("6 rows, 2 held out")).to_be_visible()
    shots(page, "new-split")
    page.get_by_label("Unit of the held-out part").select_option("rows")
    assert body(page)["validation_split"] == 50
    page.get_by_role("button", name="Check").click()
    problem = page.locator("#new-validation_split-problem")
    expect(problem).to_contain_text("leaves no row to train on")
    page.get_by_label("Held-out part", exact=True).fill("1.5")
    page.get_by_role("button", name="Check").click()
    expect(problem).to_contain_text("use a share of the rows between 0 and 1, such as 0.1, or a whole number")
    page.get_by_label("Held-out rows", exact=True).select_option("none")
    assert not {"validation_split", "validation_file"} & body(page).keys()
    job_id = deployment.create(file_id, validation_split=0.5, method=reinforcement(n_steps=3))
    page.goto(f"/#/new?from={job_id}")
    expect(page.get_by_label("Held-out part", exact=True)).to_have_value("50")


def test_held_out_rows_have_an_upload_of_their_own(
    page: Page, deployment: Deployment, tmp_path: Path
) -> None:
    training = upload(deployment.client, questions())
    page.goto("/#/new")
    page.get_by_label("Training file").select_option(training)
    page.get_by_label("Max completion tokens").fill("16")
    page.get_by_label("Held-out rows", exact=True).select_option("file")
    page.get_by_role("button", name="Check").click()
    expect(page.locator("#new-validation_file-problem")).to_have_text("Choose or upload a file.")
    broken = written(tmp_path / "broken.jsonl", b"{\n")
    page.get_by_label("Upload held-out rows").set_input_files(broken)
    expect(page.locator("p.problem.small[role=status]")).to_contain_text(
        "broken.jsonl was not uploaded: line 1 is not JSON"
    )
    assert body(page)["validation_file"] == ""
    held_out = written(tmp_path / "held.jsonl", jsonl(row("What is 50 + 50?", "100")))
    page.get_by_label("Upload held-out rows").set_input_files(held_out)
    expect(page.get_by_text("held.jsonl uploaded. 1 row.")).to_be_visible()
    found = {file["filename"]: file["id"] for file in files(deployment)}
    assert (body(page)["validation_file"], body(page)["training_file"]) == (found["held.jsonl"], training)
    page.get_by_role("button", name="Check").click()
    expect(page.get_by_text("8 rows, 1 held out")).to_be_visible()
