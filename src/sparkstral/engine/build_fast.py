"""The parts of an engine whose model runs through the Triton kernels: what they need, hold and do before ready.

Owns the composition of model, runner and warm-up; build.py owns the order of all parts. Imported only where kernels
were selected, since it imports Triton.
"""

from __future__ import annotations

import logging
import subprocess
from collections.abc import Callable, Sequence

import torch

from sparkstral.checkpoint.forms import Form
from sparkstral.checkpoint.held import held_lines
from sparkstral.checkpoint.plan import LoadPlan
from sparkstral.config import EngineConfig
from sparkstral.engine.build_vision import build_encoder
from sparkstral.errors import ConfigError
from sparkstral.kernels.configs import KernelConfigs
from sparkstral.kernels.mla_decode.triton_kernel import MAX_REQUESTS
from sparkstral.kernels.vision_attention import triton_kernel as vision_attention
from sparkstral.memory.fast_workspace import FastWorkspace, KernelSizes
from sparkstral.memory.holding import Holding
from sparkstral.memory.lines import PlanLine
from sparkstral.model.fast_mistral4 import FastLimits, FastMistral4
from sparkstral.model.fast_weights import NOT_STACKED
from sparkstral.model.pixtral import Attend
from sparkstral.model.weights import ModelWeights
from sparkstral.runner.compile_worker import CompileSetup, start_workers
from sparkstral.runner.decode_sizes import decode_sizes
from sparkstral.runner.encoder_cache import EncoderCache
from sparkstral.runner.fast_runner import FastRunner
from sparkstral.runner.held import held_bytes, reserved_bytes, split_shared_expert, taken_now
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.runner.warm_up import ReportProgress, warm_up
from sparkstral.runner.warm_up_steps import prompt_steps
from sparkstral.speculative.proposer import Proposer
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.types import GrammarSpec

logger = logging.getLogger(__name__)


class FastParts:
    """For one engine. `close` it if the engine does not come to be."""

    def __init__(
        self,
        config: EngineConfig,
        load_plan: LoadPlan,
        kernels: KernelConfigs,
        device: torch.device,
        dtype: torch.dtype,
    ) -> None:
        """Raises ConfigError for settings or a checkpoint that the kernels do not serve."""
        if config.max_num_seqs > MAX_REQUESTS:
            raise ConfigError(
                f"--max-num-seqs is {config.max_num_seqs}; the GPU's kernels decode up to {MAX_REQUESTS} requests at "
                f"once. Set it to {MAX_REQUESTS} or less."
            )
        if any(form is not Form.NVFP4 for slot, form in load_plan.forms.items() if "expert" in slot):
            raise ConfigError(NOT_STACKED)
        self._config = config
        # Drafts of a request that is served alone need rows too.
        drafts = config.speculative not in ("auto", "off")
        self.max_rows = max(config.max_num_seqs, config.max_draft_tokens + 1 if drafts else 0)
        self._load_plan = load_plan
        self._kernels = kernels
        self._device = device
        self._dtype = dtype
        self._holding = Holding(config.dense, config.kv)
        self._compilers: list[subprocess.Popen[bytes]] = []
        self._gap_bytes = 0  # what PyTorch's allocator holds beside weights, cache and workspaces
        self._beside_bytes = 0  # in use on the device before the first launch, and not PyTorch's
        self.workspace = FastWorkspace(
            model=load_plan.config,
            kernels=KernelSizes(
                kernels.decode.max_splits,
                kernels.moe.max_few,
                kernels.sampling.stretch,
                kernels.token_logprobs.stretch,
            ),
            dtype_bytes=dtype.itemsize,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=self.max_rows,
            num_graphs=len(decode_sizes(self.max_rows)),
            dense=config.dense,
        )

    def held_lines(self) -> tuple[PlanLine, ...]:
        return held_lines(self._load_plan.config, self._load_plan.forms, self._holding, "headers")

    def limits(self, max_model_len: int) -> FastLimits:
        return FastLimits(
            max_num_seqs=self.max_rows,
            max_positions=max_model_len,
            prefill_keys=self.workspace.prefill_keys(max_model_len),
            prefill_tokens=self._config.max_num_batched_tokens,
            moe_tokens=self.workspace.moe_tokens,
        )

    def start_compiling(self, max_model_len: int) -> None:
        """In processes of their own, while the weights are loaded."""
        capability = torch.cuda.get_device_capability(self._device)
        self._compilers = start_workers(
            CompileSetup(
                self._load_plan.config,
                self.limits(max_model_len),
                self._config.block_size_tokens,
                capability,
                self._kernels,
                self._config.dense,
                self._config.kv,
                self._config.prefill,
            )
        )

    def make_model(self, weights: ModelWeights, max_model_len: int) -> FastMistral4:
        """Takes `weights` over; the caller is to forget them."""
        limits, device = self.limits(max_model_len), self._device
        return FastMistral4(
            self._load_plan.config, weights, self._kernels, limits, device, self._dtype, self._config.dense
        )

    def make_encoder(self, weights: ModelWeights) -> EncoderCache | None:
        """None where the model reads no images."""
        config = self._load_plan.config
        return build_encoder(config, weights.vision, self._device, self._dtype, self._vision_attention)

    def make_runner(
        self,
        model: FastMistral4,
        num_blocks: int,
        compiled_grammar: Callable[[GrammarSpec], CompiledGrammar],
        proposer: Proposer | None,
        encoder: EncoderCache | None,
    ) -> FastRunner:
        config, model_config, device = self._config, self._load_plan.config, self._device
        if device.type == "cuda":
            torch.cuda.empty_cache()  # what was made of the weights has left PyTorch more than the plan knows of
        pool = allocate_latent_pool(
            model_config.num_hidden_layers, num_blocks, config.block_size_tokens, device, self._dtype, config.kv
        )
        runner = FastRunner(
            model, pool, self._config.seed, compiled_grammar, model_config.vocab_size, proposer, encoder
        )
        self._gap_bytes = reserved_bytes(device) - sum(held_bytes({"runner": runner}).values())
        self._beside_bytes = taken_now(device).beside_bytes
        return runner

    def _vision_attention(self, cu_seqlens: Sequence[int]) -> Attend:
        """Of a batch whose images begin and end at `cu_seqlens`."""
        config = self._kernels.vision
        tiles = vision_attention.plan_tiles(cu_seqlens, config, self._device)
        return lambda qkv, rotation: vision_attention.vision_attention(qkv, rotation, tiles, config=config)

    def warm_up(self, runner: FastRunner, max_model_len: int, report: ReportProgress) -> None:
        """After this nothing is compiled, captured or allocated."""
        bounds = [pair.max_tokens for pair in (*self._kernels.moe.many, *self._kernels.moe.w4a4)]
        steps = prompt_steps(self.limits(max_model_len), self._config.block_size_tokens, bounds)
        warm_up(runner, steps, self._compilers, report, planned_bytes=self.workspace.activation_bytes())

    def measure(self, runner: FastRunner) -> dict[str, int]:
        """What is held at ready, by the names of the plan's lines. What PyTorch holds beside tensors is gaps,
        if it was so before the first launch, and for activations if not; what came outside of it since then is modules
        and graphs."""
        found = split_shared_expert(held_bytes({"runner": runner}), self._load_plan.config.n_routed_experts)
        if self._device.type == "cuda":
            now = taken_now(self._device)
            found["allocator gaps"] = self._gap_bytes
            found["activations"] = now.reserved_bytes - runner.graph_bytes - sum(found.values())
            found["graphs"] = runner.graph_bytes + now.beside_bytes - self._beside_bytes
        return found

    def close(self) -> None:
        for compiler in self._compilers:
            compiler.kill()
