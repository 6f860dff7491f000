from __future__ import annotations

import re
from typing import Any

import pytest

from sparkstral.chat.tool_ids import NativeIds, native_id, new_tool_call_id
from tests.support.chat_cases import load_cases


@pytest.mark.parametrize("case", load_cases("tool_ids"), ids=lambda case: case["id"])
def test_case(case: dict[str, Any]) -> None:
    ids, expect, native_ids = case["ids"], case["expect"], NativeIds()
    natives = [native_ids.add(client_id) for client_id in ids]
    assert all(re.fullmatch(expect["pattern"], native) for native in natives)
    assert len(set(natives)) == len(ids)
    assert [NativeIds().add(client_id) for client_id in ids] == natives
    assert all(native_id(client_id) == client_id for client_id in expect["unchanged"])


def test_the_hash_is_the_same_after_a_restart() -> None:
    assert native_id("call_1") == "BU2HUL5e5"


def test_an_id_that_comes_again_gets_another_native_id() -> None:
    native_ids = NativeIds()
    natives = [native_ids.add(client_id) for client_id in ["123456789", "x", "x", "123456789", "x"]]
    assert len(set(natives)) == 5


def test_an_id_of_ours_maps_to_itself() -> None:
    ours = {new_tool_call_id() for _ in range(100)}
    assert len(ours) == 100
    assert all(native_id(i) == i == NativeIds().add(i) for i in ours)
