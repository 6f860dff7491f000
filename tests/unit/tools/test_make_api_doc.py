from __future__ import annotations

from tools.make_api_doc import FILE, filled


def test_the_tables_of_the_api_are_those_of_the_schemas() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert text == filled(text), "docs/api.md is stale: run python -m tools.make_api_doc"
    assert text.count("<!-- fields: ") == text.count("<!-- end -->") > 5


def test_a_stale_table_is_found() -> None:
    text = FILE.read_text(encoding="utf-8")
    assert filled(text.replace("| `seed` |", "| `sed` |")) == text
