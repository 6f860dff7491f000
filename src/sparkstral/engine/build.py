"""The composition root: an `EngineConfig` becomes an engine.

Owns which parts there are and in which order they come to be: plan, weights, model, pool, grammars, loop.
Every part knows only what it is given here.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from typing import TYPE_CHECKING, NamedTuple, Protocol

import torch

from sparkstral.checkpoint.held import decoded_lines
from sparkstral.checkpoint.load import load_planned
from sparkstral.checkpoint.locate import locate_tokenizer
from sparkstral.checkpoint.plan import LoadPlan, plan_load
from sparkstral.checkpoint.stream import LoadProgress
from sparkstral.config import EngineConfig
from sparkstral.engine.build_vision import build_encoder, why_blind
from sparkstral.engine.core import EngineCore, Runner
from sparkstral.engine.inbox import Inbox
from sparkstral.engine.kv_persistence import KvPersistence
from sparkstral.engine.messages import FromEngine
from sparkstral.errors import ConfigError, MemoryPlanError, SparkstralError
from sparkstral.kernels.select import check_w4a4, select_kernels
from sparkstral.kv_cache.block_store import BlockStore
from sparkstral.kv_cache.layout import KvLayout
from sparkstral.kv_cache.manager import KvCacheManager
from sparkstral.memory.holders import advice, gpu_holders, host_holders
from sparkstral.memory.host import GROWTH
from sparkstral.memory.ledger import draw_ledger, show_ledger
from sparkstral.memory.lines import PassMemory, PlanLine
from sparkstral.memory.plan import MemoryPlan, PlanRequest, draw_plan
from sparkstral.memory.probe import AvailableMemory, host_memory
from sparkstral.memory.vision_workspace import VisionWorkspace
from sparkstral.memory.workspace import Workspace
from sparkstral.model.mistral4 import Mistral4
from sparkstral.runner.block_copy import BlockCopier
from sparkstral.runner.held import held_bytes, taken_now
from sparkstral.runner.latent_pool import allocate_latent_pool
from sparkstral.runner.model_runner import ModelRunner
from sparkstral.scheduler.budgets import SchedulerConfig
from sparkstral.scheduler.encoder_cache import EncoderLimits
from sparkstral.scheduler.scheduler import Scheduler
from sparkstral.speculative.controller import DepthController
from sparkstral.speculative.prompt_lookup import PromptLookup
from sparkstral.structured.compiler import GrammarCompiler
from sparkstral.structured.matcher import CompiledGrammar
from sparkstral.structured.vocabulary import build_grammar_tokenizer, read_vocabulary
from sparkstral.types import EngineInfo, EnginePhase
from sparkstral.units import format_bytes

if TYPE_CHECKING:
    from sparkstral.engine.build_fast import FastParts

logger = logging.getLogger(__name__)


class StoppedError(SparkstralError):
    """Loading was given up because the engine is to stop."""


class Report(Protocol):
    def __call__(self, phase: EnginePhase, progress: float = 0.0, detail: str = "") -> None: ...


def build_engine(
    config: EngineConfig, inbox: Inbox, send: Callable[[FromEngine], None], report: Report
) -> tuple[EngineCore, EngineInfo]:
    """An engine with its weights loaded, before its first token.

    Raises CheckpointError, ConfigError or MemoryPlanError with what to do, mostly before anything is loaded,
    and `StoppedError` if a `Shutdown` comes meanwhile.
    """
    report(EnginePhase.LOADING)
    if config.num_threads is not None:
        torch.set_num_threads(config.num_threads)
    if config.speculative == "eagle":
        raise ConfigError(
            "--speculative eagle: a draft head cannot be served yet. Use --speculative prompt-lookup, which needs no "
            "weights, or --speculative off."
        )
    device, dtype, load_plan, fast, memory_plan = prepare(config)
    speculative = config.speculative
    if speculative == "auto":
        speculative = "prompt-lookup" if fast is None else "off"
    require(memory_plan, config, device)
    logger.info("memory plan:\n%s", memory_plan.table())
    model_config = load_plan.config
    before = taken_now(device)
    vocabulary = read_vocabulary(locate_tokenizer(config.model_path))
    grammar_tokenizer = build_grammar_tokenizer(vocabulary, model_config.vocab_size)

    def check_running() -> None:
        if inbox.is_closing:
            raise StoppedError("The engine was stopped while it was loading.")

    def show_progress(progress: LoadProgress) -> None:
        check_running()
        done, total = format_bytes(progress.bytes_done), format_bytes(progress.bytes_total)
        report(EnginePhase.LOADING, progress.bytes_done / max(1, progress.bytes_total), f"{done} of {total}")

    def show_warm_up(progress: float, detail: str) -> None:
        check_running()
        report(EnginePhase.WARMING_UP, progress, detail)

    grammars = GrammarCompiler(partial(CompiledGrammar, grammar_tokenizer), wake=inbox.wake)
    cache = KvCacheManager(memory_plan.num_blocks, config.block_size_tokens)
    vision = VisionWorkspace.of(model_config, dtype.itemsize)
    scheduler = Scheduler(
        SchedulerConfig(
            max_num_seqs=config.max_num_seqs,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_model_len=memory_plan.max_model_len,
            vocab_size=model_config.vocab_size,
            max_sampled_rows=config.max_num_batched_tokens if fast is None else fast.max_rows,
            drafts_for_changed_logits=fast is None,  # the kernels note every sampled token
            max_slowdown=config.max_slowdown,
            encoder=None if vision is None else EncoderLimits(vision.max_encoded, vision.capacity),
        ),
        cache,
        None if speculative == "off" else DepthController(config.max_draft_tokens),
    )
    proposer = PromptLookup() if speculative == "prompt-lookup" else None
    runner: Runner
    with ExitStack() as on_failure:
        if fast is not None:
            on_failure.callback(fast.close)
            fast.start_compiling(memory_plan.max_model_len)
        _, weights = load_planned(load_plan, device, show_progress)
        if fast is not None:
            fast_model = fast.make_model(weights, memory_plan.max_model_len)
            encoder = fast.make_encoder(weights)
            del weights  # the model has taken them over, or has them in another form
            fast_runner = fast.make_runner(
                fast_model, memory_plan.num_blocks, grammars.compiled, proposer, encoder
            )
            fast.warm_up(fast_runner, memory_plan.max_model_len, show_warm_up)
            runner, latent_pool = fast_runner, fast_runner.latent_pool
            measured = fast.measure(fast_runner)
        else:
            model = Mistral4(model_config, weights, device, dtype, config.dense)
            encoder = build_encoder(model_config, weights.vision, device, dtype)
            del weights  # the model has its own form of them
            latent_pool = allocate_latent_pool(
                model_config.num_hidden_layers, memory_plan.num_blocks, config.block_size_tokens, device, dtype,
                config.kv,
            )  # fmt: skip
            runner = ModelRunner(model, latent_pool, config.seed, grammars.compiled, proposer, encoder)
            measured = held_bytes({"model": model, "encoder": encoder, "latent_pool": latent_pool})
        on_failure.pop_all()
    ledger = draw_ledger(memory_plan.lines, measured, taken_now(device).used_bytes - before.used_bytes)
    logger.info("memory taken:\n%s", show_ledger(ledger))
    info = EngineInfo(
        max_model_len=memory_plan.max_model_len,
        block_size_tokens=config.block_size_tokens,
        num_usable_blocks=cache.pool.num_usable,
        device=describe_device(device),
        dtype=str(dtype).removeprefix("torch."),
        speculative=speculative,
        max_draft_tokens=0 if speculative == "off" else config.max_draft_tokens,
        memory=ledger,
        reads_images=vision is not None,
        why_blind=why_blind(model_config, not config.reads_images),
    )
    persistence = None
    if config.kv_dir is not None:
        persistence = KvPersistence(
            cache, open_block_store(config, load_plan, dtype), BlockCopier(latent_pool)
        )
    return EngineCore(scheduler, runner, grammars, inbox, send, persistence), info


class Prepared(NamedTuple):
    """What is known of an engine from its settings, the headers and the machine, before anything is loaded."""

    device: torch.device
    dtype: torch.dtype
    load_plan: LoadPlan
    fast: FastParts | None
    memory_plan: MemoryPlan  # which may not fit


def prepare(config: EngineConfig) -> Prepared:
    """Raises CheckpointError and ConfigError with what to do."""
    device = choose_device(config.device)
    # The CPU computes in float32, which is what its matrix products are fast in; GPUs hold what the files hold.
    dtype = torch.float32 if device.type == "cpu" else torch.bfloat16
    kernels = select_kernels(config.kernels, device)
    if config.prefill == "w4a4":
        check_w4a4(None if kernels is None else torch.cuda.get_device_capability(device))
    load_plan = plan_load(
        config.model_path, with_vision=config.reads_images, with_input_scales=config.prefill == "w4a4"
    )
    fast: FastParts | None = None
    if kernels is not None:
        from sparkstral.engine.build_fast import FastParts  # brings Triton, which the CPU's path does without

        fast = FastParts(config, load_plan, kernels, device, dtype)
    return Prepared(device, dtype, load_plan, fast, plan_memory(config, load_plan, device, dtype, fast))


def open_block_store(config: EngineConfig, load_plan: LoadPlan, dtype: torch.dtype) -> BlockStore:
    """The folder of --kv-dir, for blocks of this model alone: its files by name, size and time, how they are held, the
    cache's type and block. Raises ConfigError if it cannot be used."""
    assert config.kv_dir is not None
    files = [(path.name, path.stat().st_size, path.stat().st_mtime_ns) for path in sorted(load_plan.file_bytes)]
    held = (str(dtype), config.dense, config.kv, config.prefill)
    layout = repr((files, load_plan.config, *held, config.block_size_tokens)).encode()
    try:
        return BlockStore(config.kv_dir, layout, config.kv_dir_bytes)
    except OSError as error:
        raise ConfigError(
            f"--kv-dir {config.kv_dir} cannot be used: {error}. Name a folder that can be written."
        ) from error


def choose_device(name: str) -> torch.device:
    """The device for `auto`, `cpu` or `cuda`. Raises `ConfigError` for a GPU that is not there."""
    if name == "cpu" or (name == "auto" and not torch.cuda.is_available()):
        return torch.device("cpu")
    if not torch.cuda.is_available():
        raise ConfigError(
            "--device cuda: this PyTorch sees no GPU. Use --device cpu, or install a PyTorch built for CUDA "
            "and check that nvidia-smi lists the GPU."
        )
    return torch.device("cuda", torch.cuda.current_device())


def exclusive_device(config: EngineConfig) -> str | None:
    """The name of the device that the engine takes for itself; None for the CPU, which several may share. Raises
    ConfigError for a GPU that is not there."""
    device = choose_device(config.device)
    if device.type == "cpu":
        return None
    return f"{describe_device(device)} {getattr(torch.cuda.get_device_properties(device), 'uuid', device.index)}"


def describe_device(device: torch.device) -> str:
    return "cpu" if device.type == "cpu" else torch.cuda.get_device_name(device)


def plan_memory(
    config: EngineConfig,
    load_plan: LoadPlan,
    device: torch.device,
    dtype: torch.dtype,
    fast: FastParts | None = None,
) -> MemoryPlan:
    """The memory that `config` asks for, from the checkpoint's headers alone."""
    model_config = load_plan.config
    layout = KvLayout.of(
        config.kv, model_config.num_hidden_layers, dtype.itemsize, config.block_size_tokens
    )
    workspace: PassMemory
    if fast is not None:
        shares_memory = device.type == "cuda" and torch.cuda.get_device_properties(device).is_integrated
        held, workspace = (*fast.held_lines(), *((GROWTH,) if shares_memory else ())), fast.workspace
    else:
        held = (
            *decoded_lines(model_config, dtype.itemsize, str(dtype).removeprefix("torch.")),
            PlanLine("weights as stored", load_plan.weights_bytes, "from the headers; until they are decoded"),
        )
        workspace = Workspace(
            model=model_config,
            dtype_bytes=dtype.itemsize,
            max_num_batched_tokens=config.max_num_batched_tokens,
            max_num_seqs=config.max_num_seqs,
        )
    vision = VisionWorkspace.of(model_config, dtype.itemsize)
    held += () if vision is None else (vision.line(),)
    request = PlanRequest(held, workspace, layout, config.max_model_len, config.kv_memory_bytes)
    return draw_plan(request, available_memory(device))


def require(plan: MemoryPlan, config: EngineConfig, device: torch.device) -> None:
    """Raises MemoryPlanError for a plan that does not fit, with who else holds memory; whoever holds much of the GPU is
    named in the log in any case."""
    holders = (*(gpu_holders() if device.type != "cpu" else ()), *(() if plan.fits else host_holders()))
    others = advice(holders, own_process_ids=(os.getpid(), os.getppid()))
    if plan.fits:
        if others:
            logger.warning("%s", others.replace("must be stopped first", "is there"))
        return
    hint = ""
    if device.type == "cpu" and config.device == "auto":
        hint = (
            " PyTorch sees no GPU, so this is the CPU's plan, with every weight decoded to float32: check that "
            "nvidia-smi lists the GPU and that PyTorch is built for CUDA."
        )
    raise MemoryPlanError(f"{plan.verdict} {others}".rstrip() + hint)


def available_memory(device: torch.device) -> AvailableMemory:
    """What can be taken on `device`. Of a GPU that shares the host's memory, what the kernel counts: there the driver
    calls free what holds nothing at all, so that a page cache full of other files, which gives way, would leave no
    room (seen on a GB10: 41.5 GiB free by the driver, 115.7 by the kernel, after 60 GiB of files were written)."""
    if device.type == "cpu" or torch.cuda.get_device_properties(device).is_integrated:
        return host_memory()
    free_bytes, _ = torch.cuda.mem_get_info(device)
    return AvailableMemory(free_bytes, f"free on {describe_device(device)}")
