"""A repository of the Hub at one revision: which of its files are the checkpoint, their sizes and hashes.

Owns the question to the Hub's API and the sentences of its failures; must not know what is on this disk.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from fnmatch import fnmatchcase

from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID, TOKENIZER_FILE
from sparkstral.errors import CheckpointError

DEFAULT_REVISION = "main"
PINNED_REVISIONS = {EXAMPLE_HUB_ID: "45331841b631f4e281df8e959ea3cc9beb84298a"}
"""What is downloaded unless another revision is asked for: the one whose tensors docs/model.md counts."""

# One copy of the weights: the native files, or, where a repository has only those, the HF layout.
NATIVE_FILES = ("params.json", TOKENIZER_FILE, "consolidated*.safetensors", "consolidated*.index.json")
HF_FILES = ("config.json", TOKENIZER_FILE, "model*.safetensors", "model*.index.json")
_OF_OTHERS = ("config.json", "generation_config.json", "tokenizer_config.json", "processor_config.json")


@dataclass(frozen=True, slots=True)
class HubFile:
    name: str
    num_bytes: int
    sha256: str | None  # of files that Git LFS holds: the Hub has no sha256 of small ones


@dataclass(frozen=True, slots=True)
class Repository:
    repo_id: str
    asked: str  # the revision, as it was asked for
    revision: str  # the commit that it is
    files: tuple[HubFile, ...]  # that are the checkpoint, by name
    not_needed: tuple[str, ...]  # that are there and not downloaded
    lacking: tuple[str, ...]  # that other programs want and this repository does not have; nor are they needed

    @property
    def num_bytes(self) -> int:
        return sum(file.num_bytes for file in self.files)

    @property
    def is_native(self) -> bool:
        return any(file.name == "params.json" for file in self.files)

    def remark(self) -> str:
        """What users of other programs miss in the native layout, and why nothing is missing; or nothing."""
        if not (self.is_native and self.lacking):
            return ""
        return (
            f"{self.repo_id} has no {', '.join(self.lacking)}: not needed. params.json says what the model is, "
            f"{TOKENIZER_FILE} is its tokenizer."
        )


def revision_of(repo_id: str, asked: str | None) -> str:
    """What is meant if no revision is named: the pinned one, or the newest of a repository that is not known."""
    return asked or PINNED_REVISIONS.get(repo_id, DEFAULT_REVISION)


def look_up(repo_id: str, revision: str) -> Repository:
    """Ask the Hub, with the user's token, endpoint and offline mode as its own client has them.

    Raises CheckpointError with what to do: no such repository or revision, no checkpoint in it, no Hub."""
    from huggingface_hub import HfApi

    with hub_errors(repo_id, revision, "looked up on the Hub"):
        info = HfApi().model_info(repo_id, revision=revision, files_metadata=True)
    found = {
        file.rfilename: HubFile(file.rfilename, file.size or 0, file.lfs.sha256 if file.lfs else None)
        for file in info.siblings or ()
    }
    patterns = patterns_for(repo_id, found)
    wanted = tuple(found[name] for name in sorted(found) if matches(name, patterns))
    for needed in (TOKENIZER_FILE, patterns[2]):
        if not any(fnmatchcase(file.name, needed) for file in wanted):
            raise CheckpointError(
                f"{repo_id} on the Hub has no {needed}, without which it cannot be served. Use the released model, "
                f"{EXAMPLE_HUB_ID}."
            )
    names = {file.name for file in wanted}
    return Repository(
        repo_id=repo_id,
        asked=revision,
        revision=info.sha or revision,
        files=wanted,
        not_needed=tuple(sorted(set(found) - names)),
        lacking=tuple(name for name in _OF_OTHERS if name not in found),
    )


def patterns_for(repo_id: str, names: Iterable[str]) -> tuple[str, ...]:
    """Of the files that are one copy of the checkpoint. Raises CheckpointError if there is none."""
    for patterns in (NATIVE_FILES, HF_FILES):
        if patterns[0] in names:
            return patterns
    raise CheckpointError(
        f"{repo_id} on the Hub has neither params.json nor config.json, so that it is no checkpoint of this model. "
        f"The released one is {EXAMPLE_HUB_ID}."
    )


def matches(name: str, patterns: Iterable[str]) -> bool:
    return any(fnmatchcase(name, pattern) for pattern in patterns)


@contextmanager
def hub_errors(repo_id: str, revision: str, done: str) -> Iterator[None]:
    """What the Hub's client raises in the block becomes one sentence: "… could not be `done`: why. What to do"."""
    # Guarded against any Exception: which class an unreachable Hub raises depends on the HTTP package under the client.
    from huggingface_hub.errors import (
        GatedRepoError,
        OfflineModeIsEnabled,
        RepositoryNotFoundError,
        RevisionNotFoundError,
    )

    try:
        yield
    except CheckpointError:
        raise
    except (RepositoryNotFoundError, GatedRepoError) as error:
        raise CheckpointError(
            f"The Hub has no repository {repo_id!r} that you may read. Check the name; if it is gated, log in "
            "with `hf auth login` or set HF_TOKEN."
        ) from error
    except RevisionNotFoundError as error:
        raise CheckpointError(
            f"{repo_id} on the Hub has no revision {revision}. `--revision main` takes the newest."
        ) from error
    except OfflineModeIsEnabled as error:
        raise UnreachableHubError(
            f"{repo_id!r} could not be {done}: HF_HUB_OFFLINE is set. Unset it, or give a folder that holds the files."
        ) from error
    except Exception as error:
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise UnreachableHubError(
            f"{repo_id!r} could not be {done}: {first_line}. Check the network and run the same command again (a "
            "download goes on where it stopped), or give a folder that holds the files."
        ) from error


class UnreachableHubError(CheckpointError):
    """The Hub does not answer, or must not be asked: what was downloaded before may do."""
