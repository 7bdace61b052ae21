"""Errors of tables and of the records that go into them."""

from __future__ import annotations

from odradek.errors import ConfigError, OdradekError

__all__ = [
    "CheckpointMismatch",
    "FileNotVisible",
    "InexactRead",
    "LedgerConflict",
    "LedgerCorrupted",
    "TableLocked",
    "TableMismatch",
    "TooManyDeadLetters",
]


class LedgerCorrupted(OdradekError):
    """A ledger does not hold together: a file of it is missing or was changed.

    Args:
        where: The file or entry.
        why: What is wrong with it.
    """

    hint = "restore the ledger's directory from a copy; nothing is read from or added to a broken ledger"

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def message(self) -> str:
        return f"{self.where}: {self.why}"


class LedgerConflict(OdradekError):
    """Another process has committed this batch.

    Args:
        flow: Name of the flow.
        batch: Number of the batch.
        why: What is wrong.
    """

    hint = "one driver at a time may write a table, from a checkpoint that belongs to it"

    def __init__(self, flow: str, batch: int, why: str) -> None:
        super().__init__(flow, batch, why)
        self.flow, self.batch, self.why = flow, batch, why

    def message(self) -> str:
        return f"flow {self.flow}, batch {self.batch}: {self.why}"


class CheckpointMismatch(OdradekError):
    """Spark's checkpoint does not match the ledger.

    Args:
        where: Directory of the checkpoint.
        why: What does not match.
    """

    hint = "`odradek pipeline repair FILE` makes a checkpoint that continues where the ledger ends"

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def message(self) -> str:
        return f"{self.where}: {self.why}"


class TableMismatch(ConfigError):
    """The pipeline file does not match the table: rows of both cannot be in one table.

    Args:
        where: File, line and key.
        why: What would change.
    """

    hint = "restore the key, or start a new table with another flow and sink.path"

    def __init__(self, where: str, why: str) -> None:
        super().__init__(where, why)
        self.where, self.why = where, why

    def message(self) -> str:
        return f"{self.where}: {self.why}"


class TableLocked(OdradekError):
    """Another process is writing this table.

    Args:
        lock: Path of its lock file.
    """

    hint = "wait for the other run, or end it"

    def __init__(self, lock: str) -> None:
        super().__init__(lock)
        self.lock = lock

    def message(self) -> str:
        return f"table is locked by another run ({self.lock})"


class TooManyDeadLetters(OdradekError):
    """A batch has more dead records than `run.max_error_percent` allows, and was not committed.

    Args:
        flow: Name of the flow.
        dead: Number of records that could not be decoded.
        rows: Number of records that could.
        most: The limit (percent).
        examples: Some of the dead records, with reason and position.
    """

    hint = "fix the decoding, or raise run.max_error_percent; the next run reads the same batch again"

    def __init__(self, flow: str, dead: int, rows: int, most: float, examples: str) -> None:
        super().__init__(flow, dead, rows, most, examples)
        self.flow, self.dead, self.rows, self.most, self.examples = flow, dead, rows, most, examples

    def message(self) -> str:
        share = 100 * self.dead / (self.dead + self.rows)
        return (
            f"flow {self.flow}: {self.dead} of {self.dead + self.rows} records could not be decoded: {share:.3g} %, "
            f"where {self.most:g} % are allowed; {self.examples}"
        )


class InexactRead(OdradekError):
    """The ranges that were read differ from those that were planned. Nothing was committed.

    Args:
        flow: Name of the flow.
        why: What is missing, or was read twice.
    """

    hint = "run it again; if the error stays, the log has changed since the batch was planned"

    def __init__(self, flow: str, why: str) -> None:
        super().__init__(flow, why)
        self.flow, self.why = flow, why

    def message(self) -> str:
        return f"flow {self.flow}: {self.why}"


class FileNotVisible(OdradekError):
    """A task wrote a file that this machine does not have. Nothing of the batch was committed.

    Args:
        flow: Name of the flow.
        path: Path of the file.
    """

    hint = "tables, dead letters and checkpoints belong on storage that every machine has under the same path"

    def __init__(self, flow: str, path: str) -> None:
        super().__init__(flow, path)
        self.flow, self.path = flow, path

    def message(self) -> str:
        return f"flow {self.flow}: a task wrote {self.path}, but the driver does not see it, or not all of it"
