"""What one look found. Standard library only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Verdict(StrEnum):
    OK = "ok"
    WARN = "warn"  # it will serve, slower or at a risk
    BAD = "bad"  # it will not serve, or wrongly
    ABSENT = "absent"  # there is nothing to look at, or it does not let itself be read


@dataclass(frozen=True, slots=True)
class Check:
    """`remedy` is empty where nothing is to be done."""

    name: str
    verdict: Verdict
    evidence: str
    remedy: str = ""


def ok(name: str, evidence: str) -> Check:
    return Check(name, Verdict.OK, evidence)


def warn(name: str, evidence: str, remedy: str) -> Check:
    return Check(name, Verdict.WARN, evidence, remedy)


def bad(name: str, evidence: str, remedy: str) -> Check:
    return Check(name, Verdict.BAD, evidence, remedy)


def absent(name: str, evidence: str, remedy: str = "") -> Check:
    return Check(name, Verdict.ABSENT, evidence, remedy)
