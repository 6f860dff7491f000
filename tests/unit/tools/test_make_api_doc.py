from __future__ import annotations

from tools.make_api_doc import FILE, filled


def test_the_tables_of_the_api_are_those_of_the_schemas() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text == filled(text), "docs/api.md is stale: run python -m tools.make_api_doc"
    assert text.count("<!-- fields: ") == text.count("<!-- end -->") > 5


def test_a_stale_table_is_found() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert filled(text.replace("| `seed` |", "| `sed` |")) == text


def test_limits_and_duties_are_told_as_they_are() -> None:
    def row(body: str, path: str) -> str:
        table = filled(f"<!-- fields: {body} -->\n<!-- end -->\n").splitlines()
        return next(line for line in table if line.startswith(f"| `{path}` |"))

    assert "above 0, up to 2" in row("ChatCompletionRequest", "repetition_penalty")
    assert "0 to 1" in row("ChatCompletionRequest", "top_p")
    assert "| required |" in row("ChatCompletionRequest", "messages")
    assert "required" not in row("ChatCompletionRequest", "messages[].content")  # an assistant's may be left out
    assert "required where its kind has it" in row("ChatCompletionRequest", "messages[].content[].text")
