"""Of an error that came through Java, what is told is what began it."""

from __future__ import annotations

import pytest
from py4j.protocol import Py4JError, Py4JNetworkError  # type: ignore[import-untyped]

from odradek.errors import ConfigError
from odradek.spark.errors import describe_error

CRASHED = """An error occurred while calling o78.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 0 in stage 2.0 failed 1 times, most recent \
failure: Lost task 0.0 in stage 2.0: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:1)
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:1)
\t... 26 more

Driver stacktrace:
\tat org.apache.spark.scheduler.DAGScheduler.handle(DAGScheduler.scala:1)
Caused by: org.apache.spark.SparkException: Python worker exited unexpectedly (crashed)
\tat org.apache.spark.api.python.BasePythonRunner$ReaderIterator.read(PythonRunner.scala:1)
\t... 1 more
Caused by: java.io.EOFException
\tat java.base/java.io.DataInputStream.readInt(DataInputStream.java:1)
\t... 26 more
"""

NO_SPACE = """An error occurred while calling o121.save.
: org.apache.spark.SparkException: Job aborted due to stage failure: Task 1 in stage 1.0 failed 1 times
\tat org.apache.spark.scheduler.DAGScheduler.handle(DAGScheduler.scala:1)
Caused by: java.io.IOException: No space left on device
\tat java.base/sun.nio.ch.FileDispatcherImpl.write0(Native Method)
"""

IN_PYTHON = """An exception was thrown from the Python worker:
Traceback (most recent call last):
  File "/x/a.py", line 14, in write
    raise ValueError("of two\\nlines")
ValueError: of two
lines
"""

CHAINED = """An error occurred while calling o12.save.
: org.apache.spark.SparkException: Writing failed.
\tat org.apache.spark.sql.Writer.write(Writer.scala:1)
Caused by: org.apache.spark.api.python.PythonException: Traceback (most recent call last):
  File "/x/a.py", line 1, in read
KeyError: 'a'

During handling of the above exception, another exception occurred:

Traceback (most recent call last):
  File "/x/a.py", line 3, in read
OSError: [Errno 5] Input/output error

\tat org.apache.spark.api.python.BasePythonRunner.handle(PythonRunner.scala:1)
"""

OURS = """[STREAM_FAILED] Query [id = 1] terminated with exception: Traceback (most recent call last):
  File "/x/source.py", line 1, in latestOffset
odradek.errors.ConfigError: first
odradek.spark.errors.DataLoss: data was lost: t/1-0
"""


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        (CRASHED, "SparkException: Python worker exited unexpectedly (crashed)"),
        (NO_SPACE, "IOException: No space left on device"),
        (IN_PYTHON, "RuntimeError: ValueError: of two"),
        (CHAINED, "PythonException: OSError: [Errno 5] Input/output error"),
        (OURS, "data was lost: t/1-0"),
        ("plain\nand more", "RuntimeError: plain"),
        ("", "RuntimeError"),
    ],
)
def test_the_innermost_cause_with_a_message_is_shown_in_one_line(text: str, shown: str) -> None:
    assert describe_error(RuntimeError(text)) == shown


def test_odradek_errors_are_shown_unchanged() -> None:
    assert describe_error(ConfigError("two\nlines")) == str(ConfigError("two\nlines"))


@pytest.mark.parametrize("error", [Py4JNetworkError("no answer"), ConnectionRefusedError("no answer")])
def test_a_lost_connection_to_java_is_named(error: Exception) -> None:
    assert describe_error(error) == "Spark's Java process has ended: no answer"


def test_an_unknown_java_call_does_not_mean_java_has_ended() -> None:
    error = Py4JError("An error occurred while calling o1.x. Trace:\npy4j.Py4JException: no such method\n")
    assert describe_error(error) == "Py4JError: An error occurred while calling o1.x. Trace:"


class FromJava(Exception):
    """As py4j's: its text is Java's to know."""

    def __str__(self) -> str:
        raise ConnectionRefusedError(111, "Connection refused")


def test_an_error_whose_java_process_is_gone_is_shown_from_python() -> None:
    assert describe_error(FromJava("An error occurred while calling o78.save.\n", object())) == (
        "FromJava: An error occurred while calling o78.save."
    )
    assert describe_error(FromJava()) == "FromJava"
