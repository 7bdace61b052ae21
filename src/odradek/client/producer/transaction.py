"""A transaction: records of one producer, and positions of consumers, that count together or not at all.

    async with k.producer(transactional_id="billing-1") as out:
        async for batch in c.batches():
            async with out.transaction() as tx:
                for record in batch:
                    await out.put("invoices", work(record))
                tx.done(batch)

A transaction ends in a task of the producer, because the block that it belongs to may be cancelled at any moment.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType
from typing import Literal, Self, cast

import anyio

from odradek import arguments
from odradek.client.producer.dispatcher import Dispatcher
from odradek.core.fetch.progress import DeliveredSpan
from odradek.core.interfaces import ConsumerPositions, DeliveredBatch, ProducerTransactions
from odradek.errors import CommitOutcomeUnknown, DeadlineError, OdradekError, TransactionAborted, UsageError
from odradek.types import Position, TopicPartition

__all__ = ["Transaction"]

_BATCH = arguments.having("transaction_spans", "a batch or a table of a consumer")

Spans = list[tuple[TopicPartition, DeliveredSpan]]

EXITED = "the producer has exited"


class Transaction:
    """One transaction. Made by `Producer.transaction`; used as `async with`, once.

    Everything that any task sends with the producer while the block runs belongs to it. **Leaving** the block waits
    until every record is written and commits: for at most `deliver_within` each. If that fails, or the block ends with
    an exception, the transaction is aborted, for at most `exit_within`; what has not been sent is dropped. The block's
    exception stays. A record that failed lets the transaction only be aborted, even if its error was caught.

    **Cancellation.** A cancelled block aborts, shielded, before the cancellation continues. Once the commit has been
    requested it cannot be taken back: leaving then waits for the answer, shielded, and `outcome` tells. The
    cancellation continues after that, or CommitOutcomeUnknown replaces it. A second native cancellation ends the wait,
    and the transaction ends in the background.

    If an abort is not confirmed in time, or another producer was opened with the same id, the producer has ended: open
    another one. A producer that exits while another task is in the block aborts the transaction.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        transactions: ProducerTransactions,
        *,
        commit_within: float,
        abort_within: float,
    ) -> None:
        self._dispatcher, self._transactions = dispatcher, transactions
        self._commit_within, self._abort_within = commit_within, abort_within
        self._spans: dict[ConsumerPositions, Spans] = {}
        self._stored: list[tuple[ConsumerPositions, Spans, Mapping[TopicPartition, Position]]] = []
        self._state: Literal["new", "open", "ending", "ended"] = "new"
        self._preparing, self._requested, self._ended = anyio.CancelScope(), False, anyio.Event()
        self._error: OdradekError | None = None
        self.outcome: Literal["committed", "aborted", "unknown"] | None = None
        """How it ended; None: it has not ended. `unknown`: it was committed or will be aborted."""

    def __repr__(self) -> str:
        return f"<{type(self).__name__} of {self._transactions.transactional_id} {self.outcome or self._state}>"

    async def __aenter__(self) -> Self:
        """Open the transaction. Waits for the one before, if that still ends. Cancellation: nothing was opened.

        Raises:
            UsageError: This object was entered before, or a transaction of the producer is open.
            Fenced: Another producer was opened with this id.
            Closed: The producer has ended for another reason.
        """
        if self._state != "new":
            raise UsageError("a transaction is used once: call producer.transaction() for another one")
        if self._dispatcher.transaction_ends is not None:
            await self._dispatcher.transaction_ends.wait()
        self._dispatcher.begin(self._transactions, self._leave_early)
        self._state = "open"
        return self

    def done(self, batch: DeliveredBatch) -> None:
        """Mark all records of a consumer's batch or table as processed by this transaction: if and only if it is
        committed, they are done, and the group's positions are stored with it.

        Use this instead of `batch.done()`. From now on the consumer itself stores no position of these partitions,
        unless they are moved by `seek`. After an abort the batch is not done: process it again in another transaction,
        or leave the consumer, whose group continues with it.

        Raises:
            UsageError: The transaction is not open.
            TypeError: This is no batch of a consumer.
        """
        if self._state != "open":
            raise UsageError("this transaction is not open: call done() inside its block")
        for positions, partition, span in cast(DeliveredBatch, _BATCH("batch", batch)).transaction_spans():
            span.leave_to_transactions()
            self._spans.setdefault(positions, []).append((partition, span))

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Commit, or abort after an exception.

        Raises:
            TransactionAborted: The transaction could not be committed; its cause says why. Another one may follow.
            Fenced: Another producer was opened with this id, or the transaction was open for too long (from 4.0 on only
                if more was added to it after that).
            BrokerError, DeadlineError: The coordinator refused the commit for good (from 4.0 on with INVALID_TXN_STATE,
                if the transaction was open for too long), or did not confirm the abort in time. The producer has ended;
                the cluster aborts the transaction.
            CommitOutcomeUnknown: The commit was requested, and its outcome is not known.
        """
        if self._state == "open":
            self._begin_to_end("" if kind is None else "the block ended with an exception")
        # The end runs in a task of the producer. A cancellation of this one, while it waits, stops a commit that is not
        # requested yet, and the transaction is aborted. Once EndTxn was sent nothing can take it back: then its outcome
        # is waited for, like that of an abort, because the next transaction cannot begin before.
        try:
            with anyio.CancelScope(shield=kind is not None):
                await self._wait()
        except BaseException as cancelled:
            self._preparing.cancel()
            with anyio.CancelScope(shield=True):
                await self._wait()
            if self.outcome == "unknown" and self._error is not None:
                raise self._error from cancelled
            raise
        if self._error is None:
            return
        if error is None:
            raise self._error
        error.add_note(str(self._error))

    async def _wait(self) -> None:
        await self._ended.wait()
        if self._state != "ended":
            self._cut_short()

    # ---- the end, in a task of the producer ------------------------------------------------------------------

    def _leave_early(self) -> None:
        """Abort, because the producer exits while the block runs."""
        self._error = TransactionAborted(self._transactions.transactional_id, EXITED)
        self._begin_to_end(EXITED)

    def _begin_to_end(self, why_aborted: str) -> None:
        self._state = "ending"
        dispatcher = self._dispatcher
        dispatcher.refuse_records(UsageError("the transaction is ending: send records before the end of its block"))
        dispatcher.abort_transaction, dispatcher.transaction_ends = None, self._ended
        dispatcher.spawn(self._end, why_aborted)

    async def _end(self, why_aborted: str) -> None:
        try:
            if why_aborted:
                await self._abort(why_aborted)
            else:
                await self._commit()
            self._state = "ended"
        finally:
            self._dispatcher.end_transaction()

    def _cut_short(self) -> None:
        """Say what is known of a transaction whose producer has exited without waiting for its end any longer."""
        name = self._transactions.transactional_id
        if self._requested and self.outcome is None:
            self.outcome, self._error = "unknown", CommitOutcomeUnknown(name, EXITED)
        elif self.outcome != "committed":
            self.outcome, self._error = "aborted", self._error or TransactionAborted(name, EXITED)

    async def _commit(self) -> None:
        """Commit. Until the commit is requested, `_preparing` can cancel it."""
        try:
            with self._preparing:
                await self._prepare()
            if self._preparing.cancelled_caught:
                await self._abort("the block was cancelled")
                return
            await self._request_commit()
        except CommitOutcomeUnknown as error:
            self.outcome, self._error = "unknown", error
            self._dispatcher.fail(error)
        except OdradekError as error:
            await self._abort(str(error))
            self._error = self._aborted(error)
        else:
            self.outcome = "committed"

    async def _prepare(self) -> None:
        """Wait until all records are written, then add the positions."""
        await self._dispatcher.flush()
        if self._transactions.error is not None:
            raise self._transactions.error
        for positions, spans in self._spans.items():
            with anyio.move_on_after(self._commit_within) as scope:
                stored = await positions.after(spans)
                await self._transactions.add_positions(positions.membership, stored)
                self._stored.append((positions, spans, stored))
            if scope.cancelled_caught:
                raise DeadlineError(f"storing positions with a transaction{self._problem()}", self._commit_within)

    async def _request_commit(self) -> None:
        self._requested = True
        with anyio.move_on_after(self._commit_within) as scope:
            await self._transactions.commit()
        if scope.cancelled_caught:
            late = DeadlineError(f"the commit{self._problem()}", self._commit_within, sent=True)
            raise CommitOutcomeUnknown(self._transactions.transactional_id, str(late)) from late
        for positions, spans, stored in self._stored:
            positions.stored(spans, stored)

    async def _abort(self, why: str) -> None:
        """Abort. An abort that is not confirmed ends the producer: nothing may follow the transaction."""
        dispatcher = self._dispatcher
        try:
            with anyio.move_on_after(self._abort_within) as scope:
                await dispatcher.drop(f"the transaction was aborted: {why}")
                await self._transactions.abort()
            if scope.cancelled_caught:
                late = DeadlineError(f"aborting a transaction{self._problem()}", self._abort_within, sent=True)
                late.hint = "the cluster aborts it when its time is over, or another producer with its id is opened"
                raise late
        except OdradekError as error:
            dispatcher.fail(error)
            self._error = error
        finally:
            self.outcome = "aborted"
            dispatcher.failures.take()  # of records that are not to be written any more

    def _aborted(self, cause: OdradekError) -> OdradekError:
        """Return the error of a transaction that was to be committed: why the producer has ended, if it has."""
        error = self._error or TransactionAborted(self._transactions.transactional_id, str(cause))
        if error is not cause:
            error.__cause__ = cause
        return error

    def _problem(self) -> str:
        problem = self._transactions.problem
        return "" if problem is None else f" ({problem})"
