"""The compiler: each grammar once, beside the caller, within its time limit."""

from __future__ import annotations

import threading
from typing import cast

import pytest

from sparkstral.structured.compiler import MAX_CACHED, MAX_WORKERS, Compilation, GrammarCompiler
from sparkstral.structured.matcher import CompiledGrammar, GrammarError
from sparkstral.types import Failure, GrammarSpec


class FakeGrammar(CompiledGrammar):
    def __init__(self, lark: str) -> None:
        self.lark = lark


class Bench:
    """A compiler whose grammars compile when the test lets them."""

    def __init__(self, time_limit_s: float = 60.0) -> None:
        self.built: list[str] = []
        self.gates: dict[str, threading.Event] = {}
        self.woken = threading.Semaphore(0)
        self.compiler = GrammarCompiler(self.build, self.woken.release, time_limit_s)

    def build(self, lark: str) -> CompiledGrammar:
        self.built.append(lark)
        if lark in self.gates and not self.gates[lark].wait(timeout=30):
            raise AssertionError("the test never opened the gate")
        if lark == "wrong":
            raise GrammarError("not a grammar")
        if lark == "defect":
            raise ZeroDivisionError("ours")
        return FakeGrammar(lark)

    def finish(self, compilation: Compilation) -> CompiledGrammar | Failure:
        self.compiler.poll()
        while compilation.result is None:
            assert self.woken.acquire(timeout=30)
            self.compiler.poll()
        return compilation.result


def test_a_grammar_is_compiled_once_for_many_requests():
    bench = Bench()
    bench.gates["g"] = threading.Event()
    first = bench.compiler.compile(GrammarSpec("g"))
    second = bench.compiler.compile(GrammarSpec("g"))
    bench.compiler.poll()
    assert first.result is None
    bench.gates["g"].set()
    grammar = bench.finish(first)
    assert second.result is grammar
    assert bench.compiler.compile(GrammarSpec("g")).result is grammar
    assert bench.compiler.compiled(GrammarSpec("g")) is grammar
    assert bench.built == ["g"]


@pytest.mark.parametrize("lark", ["wrong", "defect"])
def test_a_fault_is_a_failure_and_is_not_kept(lark: str):
    bench = Bench()
    result = bench.finish(bench.compiler.compile(GrammarSpec(lark)))
    assert isinstance(result, Failure)
    assert result.code == "grammar"
    bench.finish(bench.compiler.compile(GrammarSpec(lark)))
    assert bench.built == [lark, lark]


def test_what_takes_too_long_fails_and_others_go_on():
    bench = Bench(time_limit_s=0.02)
    for i in range(MAX_WORKERS):
        bench.gates[f"slow {i}"] = threading.Event()
    slow = [bench.compiler.compile(GrammarSpec(f"slow {i}")) for i in range(MAX_WORKERS)]
    quick = bench.compiler.compile(GrammarSpec("quick"))  # waits for a worker
    for compilation in slow:
        while compilation.result is None:
            bench.woken.acquire(timeout=bench.compiler.poll())
        assert isinstance(compilation.result, Failure)
    assert "0.02 s" in cast(Failure, slow[0].result).message
    assert isinstance(bench.finish(quick), FakeGrammar)
    for gate in bench.gates.values():
        gate.set()
    bench.woken.acquire(timeout=30)
    bench.compiler.poll()
    assert isinstance(slow[0].result, Failure)  # too late is too late


def test_only_what_compiles_asks_for_a_poll():
    bench = Bench(time_limit_s=60.0)
    assert bench.compiler.poll() is None
    bench.gates["g"] = threading.Event()
    compilation = bench.compiler.compile(GrammarSpec("g"))
    wait_s = bench.compiler.poll()
    assert wait_s is not None
    assert 0 < wait_s <= 60
    bench.gates["g"].set()
    bench.finish(compilation)
    assert bench.compiler.poll() is None


def test_the_cache_forgets_the_oldest_that_no_request_uses():
    bench = Bench()
    kept = bench.finish(bench.compiler.compile(GrammarSpec("kept")))
    bench.finish(bench.compiler.compile(GrammarSpec("dropped")))
    for i in range(MAX_CACHED):
        bench.finish(bench.compiler.compile(GrammarSpec(f"g{i}")))
    assert bench.compiler.compiled(GrammarSpec("kept")) is kept
    with pytest.raises(KeyError):
        bench.compiler.compiled(GrammarSpec("dropped"))
    assert bench.compiler.compile(GrammarSpec("g0")).result is not None
