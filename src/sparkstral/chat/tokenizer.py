"""The tokenizer of the model: tekken.json, read by mistral-common.

Owns loading and checking the file, and the ids of the control tokens. Must not know messages.
Source: mistral-common's Tekkenizer; the control ids are those of the released v15 file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

from mistral_common.tokens.tokenizers.base import TokenizerVersion
from mistral_common.tokens.tokenizers.image import ImageEncoder
from mistral_common.tokens.tokenizers.mistral import MistralTokenizer
from mistral_common.tokens.tokenizers.tekken import Tekkenizer

from sparkstral.chat.images import ImagePlaces, ImageReader
from sparkstral.checkpoint.locate import TOKENIZER_FILE, locate_tokenizer
from sparkstral.errors import CheckpointError
from sparkstral.model.config import EOS_TOKEN_ID, IMAGE_BREAK_TOKEN_ID, IMAGE_END_TOKEN_ID, IMAGE_TOKEN_ID


class Control(IntEnum):
    """Ids of the control tokens that this program itself handles; checked against the file at load."""

    EOS = EOS_TOKEN_ID
    TOOL_CALLS = 9
    IMAGE = IMAGE_TOKEN_ID
    IMAGE_BREAK = IMAGE_BREAK_TOKEN_ID
    IMAGE_END = IMAGE_END_TOKEN_ID
    ARGS = 32
    BEGIN_THINK = 34
    END_THINK = 35


_SPELLINGS = {
    Control.EOS: "</s>",
    Control.TOOL_CALLS: "[TOOL_CALLS]",
    Control.IMAGE: "[IMG]",
    Control.IMAGE_BREAK: "[IMG_BREAK]",
    Control.IMAGE_END: "[IMG_END]",
    Control.ARGS: "[ARGS]",
    Control.BEGIN_THINK: "[THINK]",
    Control.END_THINK: "[/THINK]",
}


class ChatTokenizer:
    """Text to ids and ids to bytes. `mistral` is mistral-common's whole tokenizer, for rendering alone."""

    def __init__(self, mistral: MistralTokenizer[Any, Any, Any, Any, Any]) -> None:
        self.mistral = mistral
        self._tekken = cast(Tekkenizer, mistral.instruct_tokenizer.tokenizer)
        self.num_control_tokens: int = self._tekken.num_special_tokens
        self.vocab_size: int = self._tekken.n_words
        self.image_reader: ImageReader | None = None  # None: the file says nothing of images
        encoder = mistral.instruct_tokenizer.image_encoder
        if encoder is not None:
            self.image_reader = ImageReader(encoder)
            self.image_places = ImagePlaces(encoder.special_ids)
            mistral.instruct_tokenizer.image_encoder = cast(ImageEncoder, self.image_places)

    @classmethod
    def load(cls, path: Path) -> ChatTokenizer:
        """Reads `path`, a tekken.json or the folder that holds one.

        Raises CheckpointError when it is missing, damaged, of another version than v15, or lacks what
        the chat format needs.
        """
        file = locate_tokenizer(path) if path.is_dir() else path
        _check_version(file)
        try:
            mistral = MistralTokenizer.from_file(file)
        except Exception as error:  # the file's content decides which; all mean the same to the user
            raise CheckpointError(
                f"{file} cannot be read as a tokenizer: {type(error).__name__}: {error}. "
                f"Download {TOKENIZER_FILE} again from the model's repository."
            ) from error
        tokenizer = cls(mistral)
        tokenizer._check_controls(file)
        return tokenizer

    def _check_controls(self, file: Path) -> None:
        if self._tekken.model_settings_builder is None:
            raise CheckpointError(
                f"{file} has no model_settings_builder, so reasoning_effort cannot be told to the model. "
                f"Take {TOKENIZER_FILE} from the repository of Mistral Small 4."
            )
        for control, spelling in _SPELLINGS.items():
            found = self._tekken.get_special_token(spelling) if self._tekken.is_special(spelling) else None
            if found != control:
                raise CheckpointError(
                    f"{file}: expected {spelling} to be token {control.value}, got {found}. "
                    f"Take {TOKENIZER_FILE} from the repository of Mistral Small 4."
                )

    def encode(self, text: str, *, with_begin: bool = False) -> list[int]:
        """The ids of plain text: no control token, whatever the text spells, but <s> `with_begin`."""
        return self._tekken.encode(text, bos=with_begin, eos=False)

    def decode(self, token_ids: Iterable[int]) -> str:
        """The text of the text tokens; bytes that are no character become U+FFFD."""
        return b"".join(map(self.token_bytes, token_ids)).decode("utf-8", "replace")

    def spell(self, token_ids: Iterable[int]) -> str:
        """The same for people: control tokens are spelled."""
        return b"".join(map(self.spelled_bytes, token_ids)).decode("utf-8", "replace")

    def count(self, text: str) -> int:
        """How many tokens `text` has, without any control token."""
        return len(self.encode(text))

    def token_bytes(self, token_id: int) -> bytes:
        """The bytes of a text token; b"" for a control token."""
        return self._tekken.id_to_byte_piece(token_id)

    def spelled_bytes(self, token_id: int) -> bytes:
        """The bytes of a text token, or a control token's name."""
        return self.token_bytes(token_id) or self.piece(token_id).encode()

    def is_control(self, token_id: int) -> bool:
        return token_id < self.num_control_tokens

    def piece(self, token_id: int) -> str:
        """For people: a control token's name, or a text token's characters, U+FFFD for half ones."""
        return self._tekken.id_to_piece(token_id)


def _check_version(file: Path) -> None:
    """Tells a missing, broken, old or newer file apart before mistral-common meets it."""
    try:
        config = json.loads(file.read_bytes())["config"]
    except FileNotFoundError:
        raise CheckpointError(
            f"{file} is missing. The tokenizer is part of the checkpoint: copy {TOKENIZER_FILE} from the model's "
            f"repository beside its weights."
        ) from None
    except (ValueError, KeyError, TypeError, OSError) as error:
        raise CheckpointError(
            f"{file} is not a tekken tokenizer file: {error}. Download it again from the model's repository."
        ) from error
    version = config.get("version")
    if version == TokenizerVersion.v15.value:
        return
    if version in TokenizerVersion.__members__:
        raise CheckpointError(
            f"{file} is of version {version}; the chat format of Mistral Small 4 needs v15. "
            f"Take {TOKENIZER_FILE} from the repository of Mistral Small 4."
        )
    raise CheckpointError(
        f"{file} is of version {version}, which is unknown here; v15 is known. "
        f"Take {TOKENIZER_FILE} from the repository of Mistral Small 4, or update: pip install -U mistral-common."
    )
