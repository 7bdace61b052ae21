"""Errors of tables and of the records that go into them."""

from __future__ import annotations

import re

from odradek.errors import ConfigError, OdradekError

__all__ = [
    "BatchTooOld",
    "FileNotVisible",
    "InexactRead",
    "PipelineError",
    "SchemaRegistryError",
    "StorageError",
    "TableConflict",
    "TableHistoryLost",
    "TableMismatch",
    "TableMissing",
    "TableReplaced",
    "TableUnreadable",
    "TooManyDeadLetters",
]

_COLORS = re.compile(r"\x1b\[[0-9;]*m")


class PipelineError(OdradekError):
    """The base of the errors below. Its arguments are what the template has: where something is wrong, and what."""

    template = "{}: {}"

    def message(self) -> str:
        return self.template.format(*self.args)


class TableMismatch(PipelineError, ConfigError):
    """The pipeline file does not match the table: rows of both cannot be in one table. Has the table or the key, and
    what would change."""

    hint = "let the file say what the table has, or start a new table with another flow and sink.path"


class TableMissing(PipelineError, ConfigError):
    """The pipeline file names a place without a table. Has the flow and the location."""

    template = "flow {}: {}: there is no table: nothing was run yet, or it is gone"
    hint = "run the pipeline, or put the table back, or correct sink.path"


class TableConflict(PipelineError):
    """Another process has changed a table while a batch was written. Nothing of the batch was committed. Has the flow,
    the table and what has changed."""

    template = "flow {}: {}: {}"
    hint = "one run at a time may write a table; the next run continues after its newest commit"


class TableHistoryLost(PipelineError):
    """The log of a table does not say where its newest batch ends. Has the table and what is missing."""

    hint = "restore the table's log, or FLOW.json in run.state, from a copy; or write a new table at another path"


class TableReplaced(PipelineError):
    """The table is not the one that this pipeline wrote last: it is gone, another one, or an older version. Has the
    flow, the table and what is different."""

    template = "flow {}: {}: {}"
    hint = (
        "put the table back, or correct sink.path; to go on with what is there now, or with a new table from the start "
        "of the logs: `odradek pipeline accept FILE --flow NAME`"
    )


class StorageError(PipelineError):
    """The storage of a table does not answer, or cannot be read or written. It may be full. Has the table, or a file of
    it, and what it says."""

    retriable = True
    hint = (
        "free space on it, or see that it can be reached, and run again: the next run continues after the newest batch "
        "in the table"
    )

    def __init__(self, where: str, why: object) -> None:
        text = _COLORS.sub("", str(why)).replace("\u21b3", ": ")  # delta-rs draws a tree of causes
        super().__init__(where, " ".join(text.split()).replace(" : ", ": "))


class TableUnreadable(StorageError):
    """The log, the metadata or the catalog of a table cannot be read: it is damaged, locked or does not answer. Has the
    table, and the error of the library that reads it."""

    hint = (
        "see that nothing holds or has cut off its log, its metadata or its catalog, and restore what is damaged from "
        "a copy; the next run continues after the newest batch in the table"
    )

    def __init__(self, where: str, why: object) -> None:  # without a stack of Rust, the statement of SQL, and so on
        super().__init__(where, str(why).partition("\n")[0] or type(why).__name__)


class TooManyDeadLetters(PipelineError):
    """A batch has more dead records than `run.max_error_percent` allows, and was not committed. Has the flow, the
    number of dead records and of all, the share of the dead ones and the limit (percent), and some dead records with
    reason and position."""

    template = "flow {}: {} of {} records could not be decoded: {:.3g} %, where {:g} % are allowed; {}"
    hint = "fix the decoding, or raise run.max_error_percent; the next run reads the same batch again"


class InexactRead(PipelineError):
    """The ranges that were read differ from those that were planned. Nothing was committed. Has the flow, and what is
    missing or was read twice."""

    template = "flow {}: {}"
    hint = "run it again; if the error stays, the log has changed since the batch was planned"


class FileNotVisible(PipelineError):
    """A task wrote a file that this machine does not have. Nothing of the batch was committed. Has the flow and the
    path of the file."""

    template = "flow {}: a task wrote {}, but the driver does not see it, or not all of it"
    hint = (
        "tables and dead letters belong on storage that every machine has under the same path, where nothing but "
        "`clean` deletes files; the next run reads the same batch again"
    )


class BatchTooOld(PipelineError):
    """A batch took so long that `clean` may delete its first files before a commit lists them. Nothing of it was
    committed. Has the flow, and how long it took and may take (h)."""

    template = "flow {}: a batch took {:.1f} hours, and may take {:g}"
    hint = (
        "lower run.batch_bytes or run.batch_records, or give Spark more cores; the next run reads the same batch again"
    )


class SchemaRegistryError(PipelineError):
    """A schema registry did not answer, or refused to. Has the registry and what went wrong."""

    template = "schema registry {}: {}"
    retriable = True
    hint = "nothing of the batch was written; see that the registry can be reached with these settings, and run again"
