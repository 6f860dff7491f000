"""What a user may set, with each default's reason beside it. Standard library only; no flag parsing (see cli/)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from sparkstral.errors import ConfigError
from sparkstral.types import Precision, PrefillForm

DEFAULT_HOST = "127.0.0.1"  # nobody else on the network is served unless it is asked for
DEFAULT_PORT = 8002  # the port of the recipe that users come from
SERVED_MODEL_NAME = "mistral-small-4"  # likewise
DEFAULT_MAX_BODY_BYTES = 32 << 20  # a 262,144-token prompt is about 1 MiB of text; the rest is images
DEFAULT_REQUEST_TIMEOUT_S = 3600.0  # 100,000 tokens at the speed of one client: whoever waits longer has left
DEFAULT_MAX_IMAGES = 32  # of a request; each of the largest is 3,080 tokens, and 28 MB on its way to the engine
DEFAULT_MAX_NUM_SEQS = 32  # more at once share the memory bus without gain: the experts read grow with them
DEFAULT_MAX_NUM_BATCHED_TOKENS = 2048  # a chunk of a prompt short enough that running answers go on meanwhile
MAX_DRAFT_TOKENS = 7  # with the token before them eight queries: what the attention of a decode step is made for
DEFAULT_BLOCK_SIZE_TOKENS = 64  # small enough to waste little, large enough for few table entries at 262,144 tokens
DEFAULT_MAX_SLOWDOWN = 3.0  # what readers of a stream bear while somebody else's long prompt is read


@dataclass(frozen=True, slots=True)
class EngineConfig:
    """What the engine process needs to know. Raises ConfigError for what no machine and no model could serve."""

    model_path: Path  # a folder with a checkpoint
    device: Literal["auto", "cpu", "cuda"] = "auto"
    max_model_len: int | None = None  # None: the model's own limit, or what the memory plan allows
    max_num_seqs: int = DEFAULT_MAX_NUM_SEQS  # requests that run at once; the rest wait
    max_num_batched_tokens: int = DEFAULT_MAX_NUM_BATCHED_TOKENS  # tokens of one step, of all requests together
    max_slowdown: float | None = DEFAULT_MAX_SLOWDOWN  # of running answers by prompts beside them; None: no limit
    block_size_tokens: int = DEFAULT_BLOCK_SIZE_TOKENS
    kv_memory_bytes: int | None = None  # None: what the plan finds
    kv_dir: Path | None = None  # where cached prefixes outlive the engine; None: nowhere
    kv_dir_bytes: int = 64 << 30  # of it for this model: 2.9 million tokens of the full one
    seed: int = 0  # the base from which requests without a seed draw theirs
    # FP8 is less exact, so it is asked for; `sparkstral eval precision` says what it costs a model.
    dense: Precision = "bf16"  # of the attention's projections and the output head; fp8: made of them at load
    kv: Precision = "bf16"  # of the cached latents; fp8: a token takes 0.6 of the memory
    # w4a4 is faster on a GPU that multiplies NVFP4 and less exact; what it costs was not measured on real weights.
    prefill: PrefillForm = "w4a16"
    kernels: Literal["auto", "reference"] = "auto"  # reference: plain PyTorch on a GPU too, to compare with
    reads_images: bool = True  # False leaves the vision encoder's weights in the file
    # Guesses of the next tokens, verified together; answers do not change. auto is prompt-lookup, which needs no
    # weights and does nothing for as long as plain steps are faster; on a GPU it is off until its verifying pass was
    # timed on one. eagle, a draft head, is refused until it can be served.
    speculative: Literal["auto", "eagle", "prompt-lookup", "off"] = "auto"
    max_draft_tokens: int = MAX_DRAFT_TOKENS  # of a request in a step; how many is decided step by step
    num_threads: int | None = None  # CPU threads for torch; None: all cores that the process may use
    port: int | None = None  # of the server in front of it, told to who finds the device taken

    def __post_init__(self) -> None:
        if self.max_num_seqs < 1:
            raise ConfigError(f"--max-num-seqs is {self.max_num_seqs}; it must be at least 1.")
        if self.max_num_batched_tokens <= self.max_num_seqs:
            raise ConfigError(
                f"--max-num-batched-tokens is {self.max_num_batched_tokens} and --max-num-seqs "
                f"{self.max_num_seqs}: a step must hold a token of each running request and one of a prompt. "
                f"Set --max-num-batched-tokens to {self.max_num_seqs + 1} or more."
            )
        if self.max_slowdown is not None and self.max_slowdown < 2:
            raise ConfigError(
                f"--max-slowdown is {self.max_slowdown:g}; prompts need room beside answers: it must be at least 2, "
                "or 0 for no limit."
            )
        if not 1 <= self.max_draft_tokens <= MAX_DRAFT_TOKENS:
            raise ConfigError(
                f"--max-draft-tokens is {self.max_draft_tokens}; it must be 1 to {MAX_DRAFT_TOKENS}. To draft nothing, "
                "use --speculative off."
            )
        if self.max_model_len is not None and self.max_model_len < 2:
            raise ConfigError(f"--max-model-len is {self.max_model_len}; it must be at least 2.")


@dataclass(frozen=True, slots=True)
class ServerConfig:
    """What the HTTP process needs to know."""

    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    served_model_name: str = SERVED_MODEL_NAME
    max_in_flight: int = 256  # requests, running or waiting; one more gets 429: eight full houses are wait enough
    max_body_bytes: int = DEFAULT_MAX_BODY_BYTES
    body_timeout_s: float = 60.0  # without a byte of a body: a client that sends has a byte sooner on any line
    keep_alive_s: float = 10.0  # a stream that has nothing to say says so: many clients and proxies hang up after 30
    reader_timeout_s: float = 60.0  # without reading a byte of what waits for it; then a stream's client is given up
    request_timeout_s: float = DEFAULT_REQUEST_TIMEOUT_S  # from asking to the last token
    api_keys: tuple[str, ...] = ()  # none: whoever reaches the server may use it
    strict_history: bool = False  # refuse message lists that would have to be repaired
    max_images: int = DEFAULT_MAX_IMAGES
    allowed_image_hosts: tuple[str, ...] = ()  # whose images are fetched; none: the server asks nobody for anything
    cors_origins: tuple[str, ...] = ()  # other sites whose pages may use the server, or * for all
    default_temperature_none: float = 0.1  # the model card's examples without reasoning
    default_temperature_high: float = 0.7  # the model card's advice with reasoning
