"""A pack: compiled kernels of one Triton version and one device, in a folder that can be carried to any machine.

Owns the folder's form, the key of a variant, and how a machine takes a pack into Triton's cache. Triton's own cache
cannot be carried: its keys hash the compiler's shared library (another on aarch64 than on x86-64) and what ptxas
calls itself, and its files name each other by absolute paths. So a pack has keys of its own, of what a launch
asks for (source, types, constants, options, device, Triton's version), and `install` writes each kernel under the key
that Triton computes here; the launch then finds it as if it had been compiled on this machine.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import triton
from triton import knobs
from triton._C.libtriton import get_cache_invalidating_env_vars
from triton.compiler import ASTSource, make_backend
from triton.runtime.cache import get_cache_key, get_cache_manager
from triton.runtime.driver import driver

MANIFEST = "manifest.json"
SCHEMA_VERSION = 1
SHIPPED = Path(__file__).with_name("packs")  # where an image or a wheel puts packs: packs/sm_121a, ...


@dataclass(frozen=True, slots=True)
class Launch:
    """What Triton is about to compile."""

    key: str  # in a pack
    function: str
    triton_key: str  # the name of its folder in Triton's cache on this machine
    types: dict[str, Any]  # by argument
    constants: dict[str, Any]  # likewise
    source: Any = field(repr=False)
    options: Any = field(repr=False)

    def compile(self) -> None:
        """Into Triton's cache, where the launch will look."""
        triton.compile(self.source, target=driver.active.get_current_target(), options=vars(self.options))


def _asked_for(function: Any, asked: dict[str, Any]) -> Launch:
    """`asked` is what Triton hands to its hook; options are in it as JSON, where tuples have become lists."""
    target = driver.active.get_current_target()
    backend = make_backend(target)
    options = backend.parse_options(_as_tuples(json.loads(asked["specialization_data"])["options"]))
    # Tensors that only stand for those on a GPU ask for the interpreter's form of inline PTX.
    names = {path: function.arg_names[path[0]] for path in asked["constants"]}
    constants = {path: True if names[path] == "PTX" else value for path, value in asked["constants"].items()}
    source = ASTSource(function, asked["signature"], constants, asked["configs"][0])
    # Paths of libraries are of this machine; everything else an option says belongs to the kernel.
    said = sorted((name, str(value)) for name, value in vars(options).items() if name != "extern_libs")
    triton_key = get_cache_key(source, backend, options, env_vars=get_cache_invalidating_env_vars())
    return Launch(
        key=hashlib.sha256(repr((triton.__version__, target.arch, source.hash(), said)).encode()).hexdigest()[:40],
        function=source.name,
        triton_key=hashlib.sha256(triton_key.encode()).hexdigest(),
        types=dict(asked["signature"]),
        constants={names[path]: value for path, value in constants.items()},
        source=source,
        options=options,
    )


def _as_tuples(value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_as_tuples(each) for each in value)
    return {name: _as_tuples(each) for name, each in value.items()} if isinstance(value, dict) else value


@contextmanager
def recorded(*, runs: bool) -> Iterator[list[Launch]]:
    """Collect every variant that this process launches for the first time while the block runs. If it does not run, it
    is not compiled either, and tensors of device "meta" will do."""
    found: list[Launch] = []

    def hook(*, fn: Any, compile: dict[str, Any], **_: Any) -> bool:
        found.append(_asked_for(fn.jit_function, compile))
        return not runs

    before = knobs.runtime.jit_cache_hook
    knobs.runtime.jit_cache_hook = hook
    try:
        yield found
    finally:
        knobs.runtime.jit_cache_hook = before


def write_manifest(folder: Path, capability: int, variants: list[dict[str, Any]]) -> None:
    manifest = {
        "schema_version": SCHEMA_VERSION,
        "target": capability,
        "triton": triton.__version__,
        "variants": variants,
    }
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1))


@dataclass(frozen=True, slots=True)
class Installed:
    """What a pack gave this machine."""

    num_ready: int  # variants that a launch will find in Triton's cache
    num_missing: int  # that the pack does not have: another source, another Triton


def find(capability: int) -> Path | None:
    """The shipped pack for SM `capability` (121), if there is one and this Triton made it."""
    folder = SHIPPED / f"sm_{capability}a"
    try:
        manifest = json.loads((folder / MANIFEST).read_text())
    except OSError:
        return None
    return folder if manifest["triton"] == triton.__version__ else None


def install(folder: Path, wanted: Iterable[Launch]) -> Installed:
    """Take what `wanted` variants the pack has into Triton's cache; those that are there already stay.

    `wanted` is what `build.wanted(capability)` gives: the shipped variants as this machine would launch them."""
    num_ready = num_missing = 0
    for launch in wanted:
        cache = get_cache_manager(launch.triton_key)
        name = launch.function[:150]  # as Triton cuts it
        if cache.get_group(f"{name}.json"):
            num_ready += 1
            continue
        try:
            cubin = (folder / f"{launch.key}.cubin").read_bytes()
            metadata = json.loads((folder / f"{launch.key}.json").read_text())
        except OSError:
            num_missing += 1
            continue
        metadata["hash"] = launch.triton_key
        files = {f"{name}.cubin": cache.put(cubin, f"{name}.cubin")}
        files[f"{name}.json"] = cache.put(json.dumps(metadata), f"{name}.json", binary=False)
        cache.put_group(f"{name}.json", files)
        num_ready += 1
    return Installed(num_ready, num_missing)
