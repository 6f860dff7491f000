"""Where the model is: the demo, a folder, or a repository of the Hub that is downloaded first.

Owns the meaning of a MODEL argument; what the folder holds is checkpoint/'s business.
"""

from __future__ import annotations

from pathlib import Path

from sparkstral.checkpoint.locate import EXAMPLE_HUB_ID, is_hub_id
from sparkstral.demo.location import DEMO_CHECKPOINT
from sparkstral.errors import CheckpointError

# One copy of the weights: the native files, or, where a repository has only those, the HF layout.
_NATIVE_FILES = ["params.json", "tekken.json", "consolidated*.safetensors", "consolidated*.index.json"]
_HF_FILES = ["config.json", "tekken.json", "model*.safetensors", "model*.index.json"]


def resolve_model(model: str) -> Path:
    """The folder that `model` means: "demo", a path, or `owner/name` on the Hub (downloaded, resumable).

    Raises CheckpointError with what to do when there is no such thing.
    """
    if model == "demo":
        return DEMO_CHECKPOINT
    path = Path(model).expanduser()
    if path.is_dir():
        return path
    if path.is_file():
        raise CheckpointError(f"{path} is a file; name the folder that holds the checkpoint: {path.parent}")
    if is_hub_id(model):
        return _download(model)
    raise CheckpointError(
        f"No model at {model!r}. Give the folder of a checkpoint, a Hub id such as "
        f"{EXAMPLE_HUB_ID}, or nothing for the demo model."
    )


def _download(repo_id: str) -> Path:
    # Imported here, since only a Hub id needs it. Its calls are guarded against any Exception: which class an
    # unreachable Hub raises depends on the HTTP package under the Hub's client.
    from huggingface_hub import HfApi, snapshot_download
    from huggingface_hub.errors import RepositoryNotFoundError

    try:
        names = HfApi().list_repo_files(repo_id)
        patterns = _NATIVE_FILES if "params.json" in names else _HF_FILES
    except RepositoryNotFoundError as error:
        raise CheckpointError(
            f"The Hub has no repository {repo_id!r} that you may read. Check the name; if it is gated, log in "
            "with `hf auth login` or set HF_TOKEN."
        ) from error
    except Exception:
        patterns = _NATIVE_FILES + _HF_FILES  # offline: whatever was downloaded before
    try:
        return Path(snapshot_download(repo_id, allow_patterns=patterns))
    except Exception as error:
        first_line = next(iter(str(error).strip().splitlines()), type(error).__name__).rstrip(".")
        raise CheckpointError(
            f"Could not download {repo_id!r} from the Hub: {first_line}. Check the network and the free disk space "
            "and run the same command again (it goes on where it stopped), or give a folder that holds the files."
        ) from error
