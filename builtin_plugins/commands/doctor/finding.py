"""Results of doctor checks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

Status = Literal["ok", "warn", "fail"]
STATUSES: Final[tuple[Status, ...]] = ("ok", "warn", "fail")


@dataclass(frozen=True, slots=True)
class Finding:
    """One line of the doctor report."""

    status: Status
    subject: str
    text: str
    advice: str = ""
    """Recommended action; empty for none."""

    def __str__(self) -> str:
        text = self.text
        if self.advice:
            text = f"{text.removesuffix('.')}{'' if text.endswith('?') else '.'} {self.advice}"
        return f"{self.status:<4}  {self.subject:<13} {text}"


def judge(
    subject: str, text: str, *, fail: bool = False, warn: bool = False, advice: str = ""
) -> Finding:
    """Return a finding; the advice is dropped when the status is "ok"."""
    status: Status = "fail" if fail else "warn" if warn else "ok"
    return Finding(status, subject, text, advice if fail or warn else "")
