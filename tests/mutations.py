"""Defects put into a copy of the product one by one, each of which the tests named with it must find.

python -m tests.mutations                  # all of them
python -m tests.mutations cursor table     # those whose file has one of these words in its path
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from time import monotonic
from typing import NamedTuple

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 120.0
"""Limit for the tests of one mutation (s): one that makes them wait without end counts as found."""


class Mutation(NamedTuple):
    """A text that a file of `src/odradek` has once, what replaces it, and the tests one of which must fail then."""

    file: str
    before: str
    after: str
    tests: tuple[str, ...]


PRODUCE, FETCH, KAFKA = ("tests/core/produce",), ("tests/core/fetch",), "tests/core/kafka"
PRODUCERS = ("tests/core/produce", "tests/client/test_producer.py", "tests/client/test_producer_faults.py")
SEQUENCES = (f"{KAFKA}/test_batch_sequences.py", f"{KAFKA}/test_producer_state.py", f"{KAFKA}/test_producer_oracle.py")
TRANSACTIONS = (
    f"{KAFKA}/test_transactions.py",
    f"{KAFKA}/test_hostile_brokers.py",
    "tests/io/kafka/test_transactions.py",
)
SESSION = (f"{KAFKA}/test_fetch_session.py",)
MEMBER = (f"{KAFKA}/test_member.py", f"{KAFKA}/test_disorder.py", f"{KAFKA}/test_group_simulation.py")
RECORDS, MESSAGE_SET = ("tests/wire/kafka/records",), ("tests/wire/test_message_set.py", "tests/wire/test_defer.py")
PIPELINE_OF_REQUESTS, PLANNING = (
    ("tests/io/test_connection.py",),
    ("tests/ranges/test_planning.py", "tests/spark/test_admission.py"),
)
TABLE = ("tests/pipeline/test_table.py", "tests/pipeline/test_table_faults.py", "tests/pipeline/test_flow.py")
VERIFY = ("tests/pipeline/test_verify.py",)

MUTATIONS = (
    # Batches: how much is buffered, what a batch takes, and what becomes of one that was refused.
    Mutation(
        "core/produce/accumulator.py",
        "if buffered > self._buffer_bytes:",
        "if buffered > 2 * self._buffer_bytes:",
        PRODUCERS,
    ),
    Mutation("core/produce/accumulator.py", "batch.size + size > batch.max_size or batch", "batch", PRODUCE),
    Mutation(
        "core/produce/accumulator.py",
        "(range(count // 2), range(count // 2, count))",
        "(range(count // 2, count), range(count // 2))",
        SEQUENCES,
    ),
    Mutation(
        "core/produce/accumulator.py",
        "kind = OutcomeUnknown if batch.may_be_written else Rejected",
        "kind = Rejected",
        PRODUCE,
    ),
    Mutation("core/produce/broker_queue.py", "(self._limits.reorder or not queue.returned)", "True", PRODUCE),
    Mutation("core/produce/broker_queue.py", "and not in_flight[-1].isolated", "", PRODUCE),
    Mutation("core/produce/broker_queue.py", "(batch.size > left or ", "(", PRODUCE),
    Mutation("core/produce/broker_queue.py", "if not self._in_order:", "if self._limits is None:", PRODUCE),
    # Rows that were fetched: their order, the memory they count as, and errors that are checked once more.
    Mutation("core/fetch/cursor.py", "if self.fetch is not fetch:", "if self.fetch is None:", FETCH),
    Mutation(
        "core/fetch/cursor.py",
        "again = error is not None and had_tail and self._retried_at != position",
        "again = False",
        FETCH,
    ),
    Mutation("core/fetch/cursor.py", "decoder.reset(decoder.position)", "decoder.reset(decoder.fetch_position)", FETCH),
    Mutation("core/fetch/row_queue.py", "self._others.appendleft(", "self._others.append(", FETCH),
    Mutation("core/fetch/row_queue.py", "missing -= len(parts[-1])", "missing -= 1", FETCH),
    Mutation("core/fetch/quota_share.py", "recounted(memory - self.counted_memory, ", "recounted(memory, ", FETCH),
    Mutation("core/fetch/progress.py", "elif span is self._first:", "else:", FETCH),
    # Sessions, sequences, transactions and members, as brokers see them.
    Mutation(
        "core/kafka/fetch_session.py", "if self._remembered.get(p) != pos}", "if p not in self._remembered}", SESSION
    ),
    Mutation("core/kafka/fetch_session.py", "return answered <= known", "return True", SESSION),
    Mutation("core/kafka/batch_sequences.py", "= step in _AGAIN, step is", "= True, step is", SEQUENCES),
    Mutation(
        "core/kafka/producer_state.py",
        "(state.established and ahead + ",
        "(ahead + ",
        SEQUENCES,
    ),
    Mutation(
        "core/kafka/producer_state.py", "return stamps[:abandoned], stamps[abandoned:]", "return (), stamps", SEQUENCES
    ),
    Mutation("core/kafka/transactions.py", " and partition in self._contents.added", "", TRANSACTIONS),
    Mutation(
        "core/kafka/transactions.py",
        "if not (self._contents.started or self._contents.undecidable):",
        "if not self._contents.started:",
        TRANSACTIONS,
    ),
    Mutation("core/kafka/member_base.py", "if revoke is self._revoking:", "if self._revoking is not None:", MEMBER),
    Mutation("core/kafka/member.py", "if now >= self._session_ends:", "if now < 0:", MEMBER),
    # Bytes: entries that span feeds, deferred ones in their order, and whose epoch a position gets.
    Mutation(
        "wire/kafka/records/decoder.py", "(self._deferred or is_compressed(entry))", "is_compressed(entry)", RECORDS
    ),
    Mutation(
        "wire/kafka/records/decoder.py",
        "return last.epoch if last.behind == self.fetch_position else batches.NO_EPOCH",
        "return last.epoch",
        RECORDS,
    ),
    Mutation("wire/kafka07/message_set.py", "self._at if left else end, index", "end, index", MESSAGE_SET),
    Mutation("wire/kafka07/message_set.py", "if self._deferring and is_wrapper(head):", "if False:", MESSAGE_SET),
    Mutation("io/request_pipeline.py", "queue.queued_bytes -= pending.size", "pass", PIPELINE_OF_REQUESTS),
    Mutation("io/request_pipeline.py", "failure.sent = False", "failure.sent = True", PIPELINE_OF_REQUESTS),
    # Ranges of a log, and the batches of a table that they become.
    Mutation("ranges/planning.py", "(load + _size(group), number)", "(load, number)", PLANNING),
    Mutation("ranges/planning.py", "and joined[-1].end == part.start", "", PLANNING),
    Mutation("ranges/planning.py", "pool -= shares[partition]", "pool -= 0", PLANNING),
    Mutation("pipeline/table.py", "else batch >= commit.batch:", "else batch > commit.batch:", TABLE),
    Mutation("pipeline/table.py", "newest.attempt == commit.attempt", "newest.batch == commit.batch", TABLE),
    Mutation("pipeline/commits.py", "if identity != known.identity:", "if not identity:", TABLE),
    Mutation("pipeline/verify.py", ' | (pc.field("hash_sum") != 0)', "", VERIFY),
    Mutation("pipeline/verify.py", " if gap.size <= 0}", "}", VERIFY),
)


def outcome(mutation: Mutation, src: Path) -> tuple[str, str]:
    """Run the tests of a mutation on the copy in `src`. Return `killed`, `survived` or `anchor`, and what says so."""
    file = src / "odradek" / mutation.file
    text = file.read_text("utf-8") if file.exists() else ""
    if text.count(mutation.before) != 1:
        return "anchor", f"{mutation.file} has it {text.count(mutation.before)} times"
    file.write_text(text.replace(mutation.before, mutation.after), "utf-8")
    pytest = [sys.executable, "-m", "pytest", "-x", "-q", "--no-header", "-p", "no:randomly", *mutation.tests]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join((str(src), str(ROOT))), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            pytest, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=LIMIT_S, check=False
        )
    except subprocess.TimeoutExpired:
        return "killed", f"no end within {LIMIT_S:.0f} s"
    finally:
        file.write_text(text, "utf-8")
    failures = [line for line in done.stdout.splitlines() if line.startswith(("FAILED ", "ERROR "))]
    if done.returncode == 1 and failures:
        return "killed", failures[0].split(" - ")[0]
    return ("survived" if done.returncode == 0 else "error"), done.stdout[-500:] + done.stderr[-500:]


def main(words: Sequence[str]) -> int:
    chosen = [each for each in MUTATIONS if not words or any(word in each.file for word in words)]
    counts: dict[str, int] = {}
    with tempfile.TemporaryDirectory() as scratch:
        src = Path(scratch) / "src"
        shutil.copytree(ROOT / "src", src, ignore=shutil.ignore_patterns("__pycache__"))
        for mutation in chosen:
            begun = monotonic()
            result, why = outcome(mutation, src)
            counts[result] = counts.get(result, 0) + 1
            sys.stdout.write(f"{result:8} {monotonic() - begun:4.0f} s  {mutation.file}: {mutation.before!r}: {why}\n")
            sys.stdout.flush()
    sys.stdout.write(", ".join(f"{number} {result}" for result, number in sorted(counts.items())) + "\n")
    return 0 if counts.keys() == {"killed"} else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
