from __future__ import annotations

from sparkstral.kv_cache.prefix_index import KeyChain, PrefixIndex, digest_256
from sparkstral.types import ImageInput

TOKENS = list(range(12))


def chain(salt: str = "") -> KeyChain:
    return KeyChain(salt, 4, digest_256)


def test_a_key_depends_on_salt_tokens_and_all_that_came_before() -> None:
    key = chain().key(1, TOKENS)
    assert key == chain().key(1, TOKENS)
    assert key.digest != chain("other").key(1, TOKENS).digest
    assert key.digest != chain().key(1, [9, *TOKENS[1:]]).digest
    assert key.digest != chain().key(1, [*TOKENS[:7], 99]).digest
    assert key.digest == chain().key(1, [*TOKENS[:8], 99]).digest, "what follows the block does not count"


def test_keys_are_made_once_and_stay_while_tokens_are_appended() -> None:
    keys = chain()
    tokens = TOKENS[:5]
    first = keys.key(0, tokens)
    tokens += TOKENS[5:8]
    assert keys.key(0, tokens) is first
    assert keys.key(1, tokens) == chain().key(1, TOKENS)


def test_digests_are_the_same_in_every_process() -> None:
    assert chain("salt").key(0, TOKENS).digest.hex()[:16] == "35c513303b270335"


def test_equal_digests_hit_only_with_equal_tokens_and_equal_parent() -> None:
    keys = KeyChain("", 4, lambda _: b"always the same")
    others = KeyChain("", 4, lambda _: b"always the same")
    index = PrefixIndex()
    assert index.add(keys.key(0, TOKENS), 1, "")
    assert index.find(keys.key(0, TOKENS), "") == 1
    assert index.find(others.key(0, TOKENS[::-1]), "") is None
    assert index.find(keys.key(0, TOKENS), "other salt") is None
    assert index.find(keys.key(0, TOKENS), 7) is None
    assert not index.add(others.key(0, TOKENS[::-1]), 2, ""), "the digest is taken"


def test_a_block_without_its_parent_is_not_entered() -> None:
    index = PrefixIndex()
    assert not index.add(chain().key(1, TOKENS), 2, 1)
    assert len(index) == 0


def test_removing_a_block_with_its_descendants_leaves_the_other_branches() -> None:
    index = PrefixIndex()
    left, right = chain(), chain()
    left_tokens, right_tokens = TOKENS, [*TOKENS[:4], *range(50, 58)]
    index.add(left.key(0, left_tokens), 1, "")
    index.add(left.key(1, left_tokens), 2, 1)
    index.add(left.key(2, left_tokens), 3, 2)
    index.add(right.key(1, right_tokens), 4, 1)
    assert sorted(index.remove_with_descendants([2])) == [2, 3]
    assert index.find(right.key(1, right_tokens), 1) == 4
    assert sorted(index.remove_with_descendants([1])) == [1, 4]
    assert len(index) == 0


def test_blocks_of_equal_tokens_and_other_images_have_other_keys() -> None:
    def of_images(*digests: bytes) -> KeyChain:
        images = [ImageInput(offset, 1, 4, digest, b"") for offset, digest in zip((3, 10), digests, strict=True)]
        return KeyChain("", 4, digest_256, images)

    token_ids = [1, 2, 3, 10, 10, 10, 10, 13, 5, 6, 10, 10, 10, 10, 13, 7, 8, 9, 9, 9]
    one, other = of_images(b"a" * 32, b"b" * 32), of_images(b"a" * 32, b"c" * 32)
    keys, others = ([keys_of.key(i, token_ids) for i in range(5)] for keys_of in (one, other))
    assert keys[:2] == others[:2]  # up to the second image
    assert [a.tokens == b.tokens for a, b in zip(keys, others, strict=True)] == [True, True, False, False, True]
    assert [a.digest == b.digest for a, b in zip(keys, others, strict=True)] == [True, True, False, False, False]
    assert keys[0] != KeyChain("", 4, digest_256).key(0, token_ids)
