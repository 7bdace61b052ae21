"""What can be wrong with a ledger."""

from __future__ import annotations

from odradek.errors import OdradekError

__all__ = ["LedgerBroken", "LedgerConflict"]


class LedgerBroken(OdradekError):
    """A ledger does not hold together: a file of it is missing or was changed.

    Args:
        place: Which file or entry.
        why: What is wrong with it.
    """

    hint = "restore the ledger's directory from a copy; nothing is read from or added to a broken ledger"

    def __init__(self, place: str, why: str) -> None:
        super().__init__(place, why)
        self.place, self.why = place, why

    def message(self) -> str:
        return f"{self.place}: {self.why}"


class LedgerConflict(OdradekError):
    """Somebody else has committed this batch.

    Args:
        flow: Of which flow.
        batch: Its number.
        why: What was found.
    """

    hint = "one driver at a time may write a table, from a checkpoint that belongs to it"

    def __init__(self, flow: str, batch: int, why: str) -> None:
        super().__init__(flow, batch, why)
        self.flow, self.batch, self.why = flow, batch, why

    def message(self) -> str:
        return f"flow {self.flow}, batch {self.batch}: {self.why}"
