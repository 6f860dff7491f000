"""`deploy vllm`: the public recipe that this project's users come from, and the one for a vLLM that has native MLA.

Owns images, variables and flags, each with its reason, and the check of the length against the plan of that recipe
before 70 GB are loaded for nothing. Sources: the recipe as its author published it (17 March 2026); for the modern one,
what two public runs on a DGX Spark used (vLLM 0.26.0 and 0.28.0).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from sparkstral.checkpoint.facts import ModelFacts
from sparkstral.config import SERVED_MODEL_NAME
from sparkstral.deploy.options import Option, as_array
from sparkstral.deploy.steps import Command, Deployment, FileToWrite
from sparkstral.kv_cache.layout import KvLayout
from sparkstral.memory.fallback import BLOCK_SIZE_TOKENS, draw_fallback_plan
from sparkstral.memory.holding import BYTES_PER_VALUE
from sparkstral.memory.host import DEFAULT_TOTAL_BYTES
from sparkstral.memory.plan import MemoryPlan
from sparkstral.memory.probe import AvailableMemory
from sparkstral.model.config import LATENT_WIDTH

CONTAINER = "sparkstral-vllm"
RECIPE_BASE = "avarok/dgx-vllm-nvfp4-kernel:v23"
RECIPE_IMAGE = f"{CONTAINER}:v23"
MODERN_IMAGE = "vllm/vllm-openai:v0.28.0"
RECIPE_LENGTH = 40_000
MODERN_LENGTH = 131_072
UTILIZATION = 0.75

_DOCKERFILE = f"""FROM {RECIPE_BASE}
RUN /opt/venv/bin/pip install --no-cache-dir --upgrade mistral_common
"""

RECIPE_VARIABLES = (
    Option("--env", "VLLM_MLA_DISABLE=1", "standard attention with heads of 128 instead of MLA, which had no backend "
           "for head size 320 on SM 12.1; the cache then takes 25.6 times as much"),
    Option("--env", "VLLM_NVFP4_GEMM_BACKEND=marlin", "weight-only NVFP4 matrix products"),
    Option("--env", "VLLM_USE_FLASHINFER_MOE_FP4=0", "no FlashInfer for the experts: it fails on SM 12.1"),
    Option("--env", "VLLM_TEST_FORCE_FP8_MARLIN=1", "Marlin for the FP8 and NVFP4 layers too"),
    Option("--env", "VLLM_ENGINE_CORE_STARTUP_TIMEOUT=300", "loading takes minutes (7 to 8 were reported)"),
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Vllm:
    """One way to run vLLM. `mla` False: the recipe."""

    model_folder: Path
    mla: bool
    max_model_len: int
    port: int
    host: str = "127.0.0.1"
    utilization: float = UTILIZATION

    @property
    def image(self) -> str:
        return MODERN_IMAGE if self.mla else RECIPE_IMAGE

    def mount(self) -> tuple[Path, str]:
        """What is mounted, and where the model then is. In the Hub's cache a snapshot holds links to the folder
        above, which must come along."""
        if self.model_folder.parent.name == "snapshots":
            return self.model_folder.parents[1], f"/repository/snapshots/{self.model_folder.name}"
        return self.model_folder, "/model"

    def container(self) -> tuple[Option, ...]:
        source, inside = self.mount()
        target = "/repository" if inside.startswith("/repository") else "/model"
        common = (
            Option("--gpus", "all", "the GPU"),
            Option("--ipc", "host", "processes of vLLM share memory with each other"),
            Option("--entrypoint", "", "the image's own is another program's"),
            Option("--volume", f"{source}:{target}:ro", "the model's files, which are not written"),
            Option("--publish", f"{self.host}:{self.port}:{self.port}", "who may reach it"),
            Option("--restart", "unless-stopped", "again after a crash and after a boot"),
        )  # fmt: skip
        if self.mla:
            return common
        of_recipe = (
            Option("--runtime", "nvidia", "as in the recipe"),
            Option("--shm-size", "16g", "as in the recipe"),
        )
        return (*common[:1], *of_recipe, *common[1:], *RECIPE_VARIABLES)

    def flags(self) -> tuple[Option, ...]:
        shared = (
            Option("--host", "0.0.0.0", "inside the container; --publish says who reaches it"),
            Option("--port", str(self.port), "of sparkstral serve too, so that clients need no change"),
            Option("--served-model-name", SERVED_MODEL_NAME, "likewise"),
            Option("--tokenizer-mode", "mistral", "tekken.json"),
            Option("--config-format", "mistral", "params.json; there is no config.json"),
            Option("--load-format", "mistral", "consolidated*.safetensors"),
            Option("--tensor-parallel-size", "1", "one GPU"),
            Option("--gpu-memory-utilization", f"{self.utilization:g}", "of the memory that the host shares"),
            Option("--max-model-len", str(self.max_model_len), self._why_length()),
            Option("--tool-call-parser", "mistral", "tool calls in the model's own form"),
            Option("--enable-auto-tool-choice", None, "and whenever the model makes one"),
        )  # fmt: skip
        if not self.mla:
            return shared
        return (
            *shared,
            Option("--reasoning-parser", "mistral", "[THINK] blocks apart from the answer"),
            Option("--attention-backend", "TRITON_MLA", "what a public run on a Spark used with this version; without "
                   "the flag vLLM chooses, which may be faster or not start"),
            Option("--max-num-seqs", "8", "the memory's bandwidth is shared: more at once gain little"),
            Option("--max-num-batched-tokens", "4096", "longer steps hold up those who read along"),
        )  # fmt: skip

    def _why_length(self) -> str:
        if self.mla:
            return "the longest that was shown to run; the cache has room for more (see the plan)"
        return "the recipe's: 42,000 tokens need 23.07 GiB of cache and 22.96 were free"

    def command(self) -> tuple[str, ...]:
        """What runs in the container, for vLLM's own parser of arguments."""
        return ("vllm", "serve", self.mount()[1], *(word for option in self.flags() for word in option.words))

    def script(self) -> str:
        build = "" if self.mla else (
            "# The image's own mistral_common knows tekken up to v13; the model's tokenizer is v15.\n"
            f"docker build --tag {RECIPE_IMAGE} - <<'DOCKERFILE'\n{_DOCKERFILE}DOCKERFILE\n"
        )  # fmt: skip
        what = "vLLM 0.28 with native MLA" if self.mla else "the public recipe of March 2026: vLLM with MLA off"
        return "\n".join(
            (
                "#!/usr/bin/env bash",
                f"# Mistral Small 4 119B NVFP4 through {what}. Written by sparkstral deploy vllm.",
                "set -euo pipefail",
                build + as_array("container", self.container()),
                as_array("options", self.flags()),
                f"docker rm --force {CONTAINER} >/dev/null 2>&1 || true",
                f'docker run --detach --name {CONTAINER} "${{container[@]}}" {self.image} \\',
                f'  vllm serve {self.mount()[1]} "${{options[@]}}"',
                f'echo "It loads for minutes. Follow it: docker logs --follow {CONTAINER}"',
                f'echo "Ready when this answers: curl --fail http://127.0.0.1:{self.port}/v1/models"',
                "",
            )
        )


def plan_of(vllm: Vllm, facts: ModelFacts, memory: AvailableMemory | None = None) -> MemoryPlan:
    """The memory of that recipe, with the cache of its kind of attention. It may not fit."""
    layout = None
    if vllm.mla:
        width = BYTES_PER_VALUE["bf16"]
        layout = KvLayout(facts.config.num_hidden_layers, LATENT_WIDTH, width, BLOCK_SIZE_TOKENS, num_null_blocks=0)
    return draw_fallback_plan(
        facts.config, facts.stored, memory or AvailableMemory(DEFAULT_TOTAL_BYTES, "what a Spark shows at least"),
        max_model_len=vllm.max_model_len, utilization=vllm.utilization, layout=layout,
    )  # fmt: skip


def plan_vllm(vllm: Vllm, script: Path) -> Deployment:
    return Deployment(
        f"vLLM on {vllm.host}:{vllm.port}, {'native MLA' if vllm.mla else 'MLA off'}, {vllm.max_model_len:,} tokens",
        files=(FileToWrite(script, vllm.script(), 0o755),),
        commands=(Command(("bash", str(script)), "build what is missing, start the container"),),
        notes=(f"Stop it: docker rm --force {CONTAINER}. Nothing else large must run beside it.",),
    )
