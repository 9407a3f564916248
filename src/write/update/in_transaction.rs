//! Runs one statement in a transaction of Keyward's own until it commits or is refused; or in the client's transaction.
//!
//! If Keyward is killed before the commit, the server aborts the transaction, and nothing happened. If Keyward is killed after
//! the commit, documents and reservations agree. The driver's retry then finds the result that was recorded in the same
//! transaction.

use tokio::time::Instant;

use super::reservation_conflict::resolve;
use super::result::{Evaluation, ReservationConflict, StatementResult};
use super::selected::Places;
use super::statement_run::StatementRun;
use crate::raw::{Doc, Element, Malformed};
use crate::reply::WriteRefusal;
use crate::server::reply::{code, write_errors};
use crate::write::absent_collection::{CollectionCheck, may_report_absence};
use crate::write::back_off::BackOff;
use crate::write::forward_error::ForwardError;
use crate::write::reserve::ReserveOutcome;
use crate::write::retry::results::{self, Recorded};
use crate::write::txn::{ErrorReply, Failure, Transaction};

/// How often Keyward tries an upsert that should find the document with the conflicting key: that document may vanish and
/// reappear, but the tries must end.
const UPSERTS_MAX: usize = 20;

impl StatementRun<'_, '_> {
    /// Runs the statement in transactions of Keyward's own until one has its result.
    ///
    /// Keyward doesn't look for the result of an earlier try before the first transaction, because few statements are retries. If
    /// an earlier try took effect, the transaction can't write its record a second time. Keyward looks before anything else that
    /// would end or delay the statement.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone: a retry finds out the outcome.
    pub async fn run_in_own_transaction(&mut self) -> Result<StatementResult, ForwardError> {
        let mut back_off = BackOff::default();
        self.upserts = 0;
        let mut has_looked = false;
        loop {
            let mut transaction = self.op.own_transaction()?;
            let tried = self.try_once(&mut transaction, has_looked).await;
            let final_result = match tried {
                Ok(Evaluation::Ran(result)) => return Ok(result),
                Ok(Evaluation::Abandoned(result)) => {
                    transaction.abort(self.op.upstream).await?;
                    Some(result)
                }
                // A retry must not wait for another write's key.
                Ok(Evaluation::ReservationConflict(_)) if !has_looked && self.may_be_recorded().await? => None,
                Ok(Evaluation::ReservationConflict(conflict)) => match self.create_for_takeover().await? {
                    Some(result) => Some(result),
                    None => self.resolve(&conflict).await?,
                },
                Ok(Evaluation::Misplaced { .. }) => {
                    transaction.abort(self.op.upstream).await?;
                    self.doubt_places().await;
                    None
                }
                Ok(Evaluation::ReadRefused(refused)) => {
                    transaction.abort(self.op.upstream).await?;
                    Some(self.answer_to_refused_read(refused).await?)
                }
                // This connection stays with a server that takes no writes any more. The driver goes to the new primary.
                Err(Failure::ErrorReply(refused)) if refused.is_transient() && refused.is_of_another_primary() => {
                    let reply = refused.in_doubt(self.op.is_retryable());
                    return Ok(StatementResult::ErrorReply(reply.body));
                }
                Err(Failure::ErrorReply(refused)) if refused.is_transient() => None,
                Err(Failure::ErrorReply(refused)) if refused.may_run_again() => {
                    transaction.abort(self.op.upstream).await?;
                    None
                }
                Err(Failure::Refused(refusal)) => Some(StatementResult::Refused(refusal)),
                Err(failure) => {
                    let is_in_doubt = matches!(failure, Failure::InDoubt(_));
                    let refused = failure.into_reply()?;
                    transaction.abort(self.op.upstream).await?;
                    has_looked |= is_in_doubt;
                    Some(StatementResult::ErrorReply(refused.body))
                }
            };
            let final_result = self.create_for_next_try(final_result).await?;
            if let Some(result) = final_result {
                // An earlier try may have ended while this one waited for the key.
                let is_answer = has_looked && !matches!(result, StatementResult::Duplicate(_));
                if is_answer || !self.may_be_recorded().await? {
                    return Ok(result);
                }
            }
            has_looked = true;
            if Instant::now() > self.op.deadline {
                return Ok(StatementResult::Refused(WriteRefusal::TimeLimit));
            }
            tokio::time::sleep(back_off.next()).await;
        }
    }

    /// Creates an upsert's collection for a takeover. Returns the server's refusal.
    async fn create_for_takeover(&mut self) -> Result<Option<StatementResult>, ForwardError> {
        if !self.statement.is_upsert {
            return Ok(None);
        }
        let refused = self.op.create_for_takeover().await?;
        Ok(refused.map(|reply| StatementResult::ErrorReply(reply.body)))
    }

    /// The `result` of a try, `None` if Keyward may try again. If an upsert failed because its collection doesn't exist, Keyward
    /// creates it, and may try again.
    async fn create_for_next_try(
        &mut self,
        result: Option<StatementResult>,
    ) -> Result<Option<StatementResult>, ForwardError> {
        let may_lack_collection = match &result {
            None => true,
            Some(StatementResult::ErrorReply(body)) => may_report_absence(code(Doc::new(body)?)?),
            Some(StatementResult::Reply(body)) => {
                let errors = write_errors(Doc::new(body)?)?;
                may_report_absence(errors.first().map(|error| error.code))
            }
            Some(_) => false,
        };
        if !self.statement.is_upsert || !may_lack_collection {
            return Ok(result);
        }
        Ok(match self.op.create_if_absent().await? {
            CollectionCheck::Created => None,
            CollectionCheck::Unneeded => result,
            CollectionCheck::Refused(reply) => Some(StatementResult::ErrorReply(reply.body)),
        })
    }

    /// The obstacle that keeps the statement from taking effect, if there is one. Keyward evaluates the statement in a
    /// transaction that is never committed.
    pub async fn obstacle(&mut self) -> Result<Option<StatementResult>, ForwardError> {
        let mut transaction = self.op.own_transaction()?;
        let evaluated = self.statement.evaluate(self.op, &mut transaction, self.places).await;
        let obstacle = match evaluated {
            Ok(Evaluation::Ran(_)) => None,
            Ok(Evaluation::Abandoned(result)) => Some(result),
            Ok(Evaluation::ReservationConflict(conflict)) => self.resolve(&conflict).await?,
            Ok(Evaluation::Misplaced { .. }) => {
                self.doubt_places().await;
                None
            }
            Ok(Evaluation::ReadRefused(refused)) => Some(self.answer_to_refused_read(refused).await?),
            Err(Failure::ErrorReply(refused)) if refused.is_transient() && refused.is_of_another_primary() => Some(
                StatementResult::ErrorReply(refused.in_doubt(self.op.is_retryable()).body),
            ),
            Err(Failure::ErrorReply(refused)) if refused.may_run_again() => None,
            Err(Failure::Refused(refusal)) => Some(StatementResult::Refused(refusal)),
            Err(failure) => Some(StatementResult::ErrorReply(failure.into_reply()?.body)),
        };
        transaction.abort(self.op.upstream).await?;
        Ok(obstacle)
    }

    /// Makes the next try read documents by `_id` alone, and renews the shard keys for later commands.
    async fn doubt_places(&mut self) {
        self.places = Places::Doubted;
        self.op.context.renew_shard_keys().await;
    }

    /// The reply to an earlier try of the statement, if that try took effect.
    async fn recorded(&mut self) -> Result<Option<StatementResult>, Failure> {
        let Some(retry_id) = self.retry_id else {
            return Ok(None);
        };
        let mut transaction = self.op.own_transaction()?;
        let record = Recorded::new(self.op.protected, retry_id);
        let Some(reply) = record.find(&mut transaction, self.op.upstream).await? else {
            // A deposed primary may lack the record. It can't commit with a majority.
            transaction.confirm_reads(self.op.upstream).await?;
            return Ok(None);
        };
        self.commit(&mut transaction).await?;
        Ok(Some(StatementResult::Reply(reply)))
    }

    /// Whether there is the reply to an earlier try, or Keyward can't find out now: then it looks again before it tries again.
    async fn may_be_recorded(&mut self) -> Result<bool, ForwardError> {
        match self.recorded().await {
            Ok(recorded) => Ok(recorded.is_some()),
            Err(Failure::Forward(error)) => Err(error),
            Err(_) => Ok(true),
        }
    }

    /// Evaluates and commits the statement. If it `has_looked`, it first looks for the record of an earlier try.
    async fn try_once(&mut self, transaction: &mut Transaction, has_looked: bool) -> Result<Evaluation, Failure> {
        let record = self.retry_id.map(|retry_id| Recorded::new(self.op.protected, retry_id));
        if has_looked
            && let Some(record) = &record
            && let Some(reply) = record.find(transaction, self.op.upstream).await?
        {
            // The result counts after a majority has it, and the server waits for that at the commit.
            let committed = self.commit(transaction).await?;
            let reply = results::as_committed(&reply, &committed)?;
            return Ok(Evaluation::Ran(StatementResult::Reply(reply)));
        }
        let (reply, is_part) = match self.statement.evaluate(self.op, transaction, self.places).await? {
            Evaluation::Ran(StatementResult::Reply(reply)) => (reply, false),
            Evaluation::Ran(StatementResult::Partial(reply)) => (reply, true),
            other => return Ok(other),
        };
        // The commit would be withheld, too. But this refusal is one of the statement.
        if !self.op.upstream.is_permitted_to_write() {
            let refusal = WriteRefusal::outlasted(self.op.is_retryable());
            return Ok(Evaluation::Abandoned(StatementResult::Refused(refusal)));
        }
        if let Some(record) = &record
            && !record.write(&reply, transaction, self.op.upstream).await?
        {
            // The same statement was sent twice, and the other try has just recorded its result.
            return Err(Failure::ErrorReply(ErrorReply::transient()));
        }
        let committed = self.commit(transaction).await?;
        let reply = results::as_committed(&reply, &committed)?;
        Ok(Evaluation::Ran(if is_part {
            StatementResult::Partial(reply)
        } else {
            StatementResult::Reply(reply)
        }))
    }

    async fn commit(&mut self, transaction: &mut Transaction) -> Result<Vec<u8>, Failure> {
        transaction
            .commit_until_known(self.op.upstream)
            .await
            .map_err(|failure| match failure {
                Failure::InDoubt(refused) => {
                    self.op.context.note_in_doubt();
                    Failure::InDoubt(refused.in_doubt(self.retry_id.is_some()))
                }
                failure => failure,
            })
    }

    /// The statement's result; `None` if Keyward may try it again.
    async fn resolve(&mut self, conflict: &ReservationConflict) -> Result<Option<StatementResult>, ForwardError> {
        Ok(match resolve(self.op, conflict).await {
            ReserveOutcome::Held => None,
            ReserveOutcome::Duplicate(_) => {
                self.upserts += 1;
                match self.may_upsert_again(conflict)? {
                    true => None,
                    false => Some(StatementResult::Duplicate(conflict.key.clone())),
                }
            }
            ReserveOutcome::Refused(refusal) => Some(StatementResult::Refused(refusal)),
        })
    }

    /// Whether another try of an upsert may end the conflict. If its query asks only for the key that it would insert, another
    /// try finds the document; the server retries such an upsert, too.
    fn may_upsert_again(&self, conflict: &ReservationConflict) -> Result<bool, ForwardError> {
        if !self.statement.is_upsert || self.upserts > UPSERTS_MAX {
            return Ok(false);
        }
        match (self.statement.query()?, conflict.key.key.values()) {
            (Some(query), Some(values)) => Ok(asks_for_just(query, values)?),
            _ => Ok(false),
        }
    }

    /// Runs the statement in the client's transaction, whose commit or abort then carries everything. A duplicate aborts the
    /// transaction, as without Keyward. If the conflicting reservation is stale, Keyward removes it and returns an error that
    /// asks the client to retry.
    pub async fn run_in_clients_transaction(
        &mut self,
        transaction: &mut Transaction,
    ) -> Result<StatementResult, ForwardError> {
        if self.statement.is_upsert
            && let Some(refused) = self.op.create_for_transaction().await?
        {
            self.leave_or_abort(transaction, &refused).await?;
            return Ok(StatementResult::ErrorReply(refused.body));
        }
        let evaluated = match self.statement.evaluate(self.op, transaction, self.places).await {
            Ok(evaluated) => evaluated,
            Err(Failure::Refused(refusal)) => return Ok(StatementResult::Refused(refusal)),
            Err(failure) => {
                let refused = failure.into_reply()?;
                self.leave_or_abort(transaction, &refused).await?;
                return Ok(StatementResult::ErrorReply(refused.body));
            }
        };
        match evaluated {
            Evaluation::Ran(result) => Ok(result),
            Evaluation::ReservationConflict(conflict) => {
                transaction.abort(self.op.upstream).await?;
                Ok(self.resolve_in_clients_transaction(&conflict).await)
            }
            Evaluation::Abandoned(result) => {
                transaction.abort(self.op.upstream).await?;
                Ok(result)
            }
            Evaluation::Misplaced { .. } => {
                transaction.abort(self.op.upstream).await?;
                self.doubt_places().await;
                Ok(StatementResult::Refused(WriteRefusal::Conflict))
            }
            Evaluation::ReadRefused(refused) => {
                self.leave_or_abort(transaction, &refused).await?;
                self.answer_to_refused_read(refused).await
            }
        }
    }

    /// Runs a statement that can't change a key in the client's transaction.
    pub async fn forward_in_clients_transaction(
        &mut self,
        transaction: &mut Transaction,
    ) -> Result<StatementResult, ForwardError> {
        let command = self.statement.command(None)?;
        let database = &self.op.protected.namespace.database;
        match transaction.run(self.op.upstream, database, command, None).await {
            Ok(reply) => Ok(StatementResult::Reply(reply)),
            Err(failure) => {
                let refused = failure.into_reply()?;
                self.leave_or_abort(transaction, &refused).await?;
                Ok(StatementResult::ErrorReply(refused.body))
            }
        }
    }

    /// Leaves the client's transaction open or aborts it, after the server `refused` the last command. If the transaction holds
    /// nothing of the command, it stays as the server left it. Otherwise Keyward aborts it. A server that refuses a command
    /// before it reads the session, for a missing privilege for example, leaves the transaction open. The client could then
    /// commit a statement without its reservations.
    async fn leave_or_abort(
        &mut self,
        transaction: &mut Transaction,
        refused: &ErrorReply,
    ) -> Result<(), ForwardError> {
        let is_untouched = transaction.holds_nothing_of(refused, self.op.protected.is_on_one_replica_set);
        match is_untouched && !refused.is_transient() {
            true => Ok(()),
            false => transaction.abort(self.op.upstream).await,
        }
    }

    /// The result if the documents can't be read: the server's answer to the statement itself. It is an error of one statement,
    /// and quotes the client's own query.
    pub async fn answer_to_refused_read(&mut self, refused_read: ErrorReply) -> Result<StatementResult, ForwardError> {
        let refusal = self.statement.refusal(self.op).await?;
        Ok(refusal.unwrap_or(StatementResult::ErrorReply(refused_read.body)))
    }

    /// The result for a client whose transaction met the conflict.
    async fn resolve_in_clients_transaction(&mut self, conflict: &ReservationConflict) -> StatementResult {
        match resolve(self.op, conflict).await {
            ReserveOutcome::Duplicate(_) => StatementResult::Duplicate(conflict.key.clone()),
            // The transaction is over. With this error a driver runs it again, also where the cluster gave no sure answer.
            ReserveOutcome::Held | ReserveOutcome::Refused(_) => StatementResult::Refused(WriteRefusal::Conflict),
        }
    }
}

/// Whether `query` consists only of equalities with `values`, which are those of a key by path.
fn asks_for_just(query: Doc<'_>, values: Doc<'_>) -> Result<bool, Malformed> {
    let mut asked = 0;
    for condition in query.elements() {
        let condition = condition?;
        let operators = condition.as_document_or_array()?;
        let equal = operators.map(|operators| operators.get("$eq")).transpose()?.flatten();
        let asked_for = equal.unwrap_or(condition);
        let is_value = |value: &Element<'_>| value.kind == asked_for.kind && value.value == asked_for.value;
        let own = values.elements().flatten().find(|value| value.name == condition.name);
        if !own.as_ref().is_some_and(is_value) {
            return Ok(false);
        }
        asked += 1;
    }
    Ok(asked == values.elements().count())
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn only_a_query_for_the_very_key_is_worth_another_try() {
        let asks = |query: Document| {
            let (query, values) = (query.to_vec().unwrap(), doc! { "c.d": 1, "b": "x" }.to_vec().unwrap());
            asks_for_just(Doc::new(&query).unwrap(), Doc::new(&values).unwrap()).unwrap()
        };
        assert!(asks(doc! { "b": "x", "c.d": { "$eq": 1 } }));
        assert!(!asks(doc! { "b": "x" }));
        assert!(!asks(doc! { "b": "x", "c.d": 2 }));
        assert!(!asks(doc! { "b": "x", "c.d": { "$gte": 1 } }));
        // The document that holds the key may fail the other conditions.
        assert!(!asks(doc! { "b": "x", "c.d": 1, "region": "a" }));
    }
}
