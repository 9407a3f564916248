//! Brings one statement to its end: by itself where its new keys can be read from it ([`super::in_place`]), else in a
//! transaction of Keyward's own, tried again until it commits or is refused, or inside the client's.
//!
//! Killed at any point before the commit, the server aborts the transaction and nothing happened. Killed after it,
//! documents and reservations agree, and the driver's retry finds the result that was recorded in the same transaction.

use tokio::time::Instant;

use super::evaluation::Evaluated;
use super::in_place::update_in_place;
use super::reservation_conflict::{Resolved, resolve};
use super::reservation_diff::{Impossible, ReservationConflict};
use crate::catalog::Protected;
use crate::claims::ConstrainedKey;
use crate::command::batch::BatchCommand;
use crate::command::key_update::KeyUpdate;
use crate::command::statement::Statement;
use crate::constraint::KeyError;
use crate::raw::{Doc, Element, Malformed};
use crate::reply::Refusal;
use crate::reservation::{AttemptId, Operation, Token};
use crate::upstream::Connection;
use crate::write::record;
use crate::write::record::Recorded;
use crate::write::txn::{Failure, Refused, Transaction};
use crate::write::{BackOff, Context, ForwardError};

/// How often an upsert that should find the document whose key is in its way is tried: that document may vanish and come
/// again, but not for ever.
const UPSERTS_MAX: usize = 20;

/// What became of a statement.
#[derive(Debug)]
pub enum StatementResult {
    /// The server's reply, be it that it applied or that it refused the statement.
    Reply(Vec<u8>),
    /// As above, for a part of the documents: the statement is to be run again.
    Part(Vec<u8>),
    /// The server's reply with `ok: 0`.
    Failed(Vec<u8>),
    /// A document holds the key.
    Duplicate(ConstrainedKey),
    /// A native index would refuse a document.
    Unindexable(KeyError),
    /// Keyward gives up.
    Refused(Refusal),
}

/// A statement with what bringing it to its end needs.
#[derive(Debug, Clone, Copy)]
pub struct StatementRun<'a> {
    /// What the writes have in common.
    pub context: &'a Context,
    /// The collection.
    pub protected: &'a Protected,
    /// The client's command.
    pub command: &'a BatchCommand<'a>,
    /// The statement's position in the command.
    pub index: usize,
    /// The statement.
    pub statement: Statement<'a>,
    /// Set if it is retryable.
    pub operation: Option<Operation>,
    /// When to give up.
    pub deadline: Instant,
}

impl StatementRun<'_> {
    /// Brings the statement to its end outside any transaction of the client's.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone: a retry finds out what happened.
    pub async fn run_by_itself(&self, upstream: &mut Connection) -> Result<StatementResult, ForwardError> {
        match KeyUpdate::of(self.statement, self.protected)? {
            Some(key_update) => update_in_place(self, &key_update, upstream).await,
            None => self.run_in_own_transaction(upstream).await,
        }
    }

    /// Runs the statement in transactions of Keyward's own until one settles it.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone: a retry finds out what happened.
    pub async fn run_in_own_transaction(&self, upstream: &mut Connection) -> Result<StatementResult, ForwardError> {
        let mut back_off = BackOff::default();
        let mut upserts = 0;
        loop {
            let mut transaction = Transaction::own(self.protected, self.statement.body, upstream)?;
            let tried = self.attempt(&mut transaction, upstream).await;
            let again = match tried {
                Ok(Attempted::Ran(result)) => return Ok(result),
                Ok(Attempted::Abandoned(result)) => {
                    transaction.abort(upstream).await?;
                    return Ok(result);
                }
                Ok(Attempted::ReservationConflict(conflict)) => match self.resolve(&conflict, &mut upserts).await? {
                    // The first try may have come to its end during the wait, and its document have the key.
                    Some(refusal @ StatementResult::Duplicate(_)) => match self.recorded(upstream).await {
                        Ok(recorded) => Some(recorded.unwrap_or(refusal)),
                        Err(Failure::Forward(error)) => return Err(error),
                        Err(Failure::Refused(refused)) if refused.is_transient() => None,
                        Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => {
                            Some(StatementResult::Failed(refused.body))
                        }
                    },
                    result => result,
                },
                Ok(Attempted::Unseen(refused)) => {
                    transaction.abort(upstream).await?;
                    Some(self.unseen(refused, upstream).await?)
                }
                Err(Failure::Forward(error)) => return Err(error),
                Err(Failure::Refused(refused)) if refused.is_transient() => None,
                Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => {
                    transaction.abort(upstream).await?;
                    Some(StatementResult::Failed(refused.body))
                }
            };
            if let Some(result) = again {
                return Ok(result);
            }
            if Instant::now() > self.deadline {
                return Ok(StatementResult::Refused(Refusal::TimeLimit));
            }
            tokio::time::sleep(back_off.next()).await;
        }
    }

    /// What keeps the statement from taking effect, if anything does: it is evaluated in a transaction that is never
    /// committed.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone.
    pub async fn obstacle(&self, upstream: &mut Connection) -> Result<Option<StatementResult>, ForwardError> {
        let mut transaction = Transaction::own(self.protected, self.statement.body, upstream)?;
        let evaluated = self.evaluate(&mut transaction, upstream).await;
        let obstacle = match evaluated {
            Ok(Attempted::Ran(_)) => None,
            Ok(Attempted::Abandoned(result)) => Some(result),
            Ok(Attempted::ReservationConflict(conflict)) => self.resolve(&conflict, &mut 0).await?,
            Ok(Attempted::Unseen(refused)) => Some(self.unseen(refused, upstream).await?),
            Err(Failure::Forward(error)) => return Err(error),
            Err(Failure::Refused(refused)) if refused.is_transient() => None,
            Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => Some(StatementResult::Failed(refused.body)),
        };
        transaction.abort(upstream).await?;
        Ok(obstacle)
    }

    /// What an earlier try of the statement was answered, if it took effect.
    async fn recorded(&self, upstream: &mut Connection) -> Result<Option<StatementResult>, Failure> {
        let Some(operation) = self.operation else {
            return Ok(None);
        };
        let mut transaction = Transaction::own(self.protected, self.statement.body, upstream)?;
        let record = Recorded::new(self.protected, operation);
        let Some(reply) = record.find(&mut transaction, upstream).await? else {
            transaction.abort(upstream).await?;
            return Ok(None);
        };
        self.commit(&mut transaction, upstream).await?;
        Ok(Some(StatementResult::Reply(reply)))
    }

    async fn attempt(&self, transaction: &mut Transaction, upstream: &mut Connection) -> Result<Attempted, Failure> {
        let record = self.operation.map(|operation| Recorded::new(self.protected, operation));
        if let Some(record) = &record
            && let Some(reply) = record.find(transaction, upstream).await?
        {
            // It counts once a majority has it, and for that the server waits at the commit.
            self.commit(transaction, upstream).await?;
            return Ok(Attempted::Ran(StatementResult::Reply(reply)));
        }
        let (reply, is_part) = match self.evaluate(transaction, upstream).await? {
            Attempted::Ran(StatementResult::Reply(reply)) => (reply, false),
            Attempted::Ran(StatementResult::Part(reply)) => (reply, true),
            other => return Ok(other),
        };
        if let Some(record) = &record
            && !record.write(&reply, transaction, upstream).await?
        {
            // The same operation, sent twice, has just been recorded by the other one.
            return Err(Failure::Refused(Refused::transient()));
        }
        let committed = self.commit(transaction, upstream).await?;
        let reply = record::with_times_of(&reply, &committed)?;
        Ok(Attempted::Ran(if is_part {
            StatementResult::Part(reply)
        } else {
            StatementResult::Reply(reply)
        }))
    }

    /// Has the statement evaluated; what is concluded is there to be committed.
    async fn evaluate(&self, transaction: &mut Transaction, upstream: &mut Connection) -> Result<Attempted, Failure> {
        let documents_max = self.context.documents_max();
        let token = Token::of(AttemptId(rand::random()));
        let evaluated = self
            .statement
            .evaluate(self.protected, token, documents_max, transaction, upstream)
            .await?;
        Ok(match evaluated {
            Evaluated::Done(reply) => Attempted::Ran(StatementResult::Reply(reply)),
            Evaluated::DoneInPart(reply) => Attempted::Ran(StatementResult::Part(reply)),
            Evaluated::Refused(reply) => Attempted::Abandoned(StatementResult::Reply(reply)),
            Evaluated::ReservationConflict(conflict) => Attempted::ReservationConflict(conflict),
            Evaluated::Unseen(refused) => Attempted::Unseen(refused),
            Evaluated::Impossible(Impossible::Duplicate(key)) => Attempted::Abandoned(StatementResult::Duplicate(key)),
            Evaluated::Impossible(Impossible::Unindexable(error)) => {
                Attempted::Abandoned(StatementResult::Unindexable(error))
            }
            Evaluated::TooMany => Attempted::Abandoned(StatementResult::Refused(Refusal::TooMany {
                namespace: self.protected.namespace.clone(),
                documents_max,
            })),
        })
    }

    async fn commit(&self, transaction: &mut Transaction, upstream: &mut Connection) -> Result<Vec<u8>, Failure> {
        transaction
            .commit_until_known(upstream)
            .await
            .map_err(|failure| match failure {
                Failure::InDoubt(refused) => {
                    self.context.note_lost();
                    Failure::InDoubt(refused.in_doubt(self.operation.is_some()))
                }
                failure => failure,
            })
    }

    /// `None` if the statement may be tried again.
    async fn resolve(
        &self,
        conflict: &ReservationConflict,
        upserts: &mut usize,
    ) -> Result<Option<StatementResult>, ForwardError> {
        Ok(
            match resolve(self.context, self.protected, conflict, self.deadline).await {
                Resolved::Cleared => None,
                Resolved::Duplicate if self.is_settled_by_another_try(conflict, upserts)? => None,
                Resolved::Duplicate => Some(StatementResult::Duplicate(conflict.key.clone())),
                Resolved::Unsure => Some(StatementResult::Refused(self.unsure(conflict.key.constraint))),
                Resolved::TimeLimit => Some(StatementResult::Refused(Refusal::TimeLimit)),
            },
        )
    }

    /// An upsert whose query asks for just the key that it would insert finds the document when it is tried again; the
    /// server does so, too.
    fn is_settled_by_another_try(
        &self,
        conflict: &ReservationConflict,
        upserts: &mut usize,
    ) -> Result<bool, ForwardError> {
        *upserts += 1;
        if !self.statement.is_upsert || *upserts > UPSERTS_MAX {
            return Ok(false);
        }
        match (self.statement.query()?, conflict.key.key.values()) {
            (Some(query), Some(values)) => Ok(asks_for_just(query, values)?),
            _ => Ok(false),
        }
    }

    /// The refusal where nobody is sure of a key of the constraint at this position.
    pub fn unsure(&self, constraint: usize) -> Refusal {
        self.protected.unsure(constraint, self.operation.is_some())
    }

    /// Runs the statement in the client's transaction, whose commit or abort then carries everything. A duplicate aborts
    /// it, as natively; a reservation that turned out to be stale is gone, and the client is told to try again.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone.
    pub async fn run_in_clients_transaction(
        &self,
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<StatementResult, ForwardError> {
        let evaluated = match self.evaluate(transaction, upstream).await {
            Ok(evaluated) => evaluated,
            Err(Failure::Forward(error)) => return Err(error),
            Err(Failure::Refused(refused) | Failure::InDoubt(refused)) => {
                self.leave_or_abort(transaction, &refused, upstream).await?;
                return Ok(StatementResult::Failed(refused.body));
            }
        };
        match evaluated {
            Attempted::Ran(result) => Ok(result),
            Attempted::ReservationConflict(conflict) => {
                transaction.abort(upstream).await?;
                Ok(self.resolve_within(&conflict).await)
            }
            Attempted::Abandoned(result) => {
                transaction.abort(upstream).await?;
                Ok(result)
            }
            Attempted::Unseen(refused) => {
                transaction.abort(upstream).await?;
                self.unseen(refused, upstream).await
            }
        }
    }

    /// Leaves the client's transaction as the server has left it that `refused` the last command; aborts it where that may be
    /// open with a part of what belongs together: refused before it has looked at the session, for want of rights, say, the
    /// server leaves it open, and in it a statement without its reservations.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone.
    pub async fn leave_or_abort(
        &self,
        transaction: &mut Transaction,
        refused: &Refused,
        upstream: &mut Connection,
    ) -> Result<(), ForwardError> {
        let is_untouched = transaction.holds_nothing_of(refused, self.protected.is_on_one_replica_set);
        match is_untouched && !refused.is_transient() {
            true => Ok(()),
            false => transaction.abort(upstream).await,
        }
    }

    /// What the client is told where its documents can't be looked for: what the server says of the statement itself,
    /// which is an error of one statement and in the client's own words.
    ///
    /// # Errors
    /// [`ForwardError`] if the connection is gone.
    pub async fn unseen(&self, look: Refused, upstream: &mut Connection) -> Result<StatementResult, ForwardError> {
        Ok(match self.statement.refusal(self.protected, upstream).await? {
            Some(Ok(reply)) => StatementResult::Reply(reply),
            Some(Err(refused)) => StatementResult::Failed(refused.body),
            None => StatementResult::Failed(look.body),
        })
    }

    /// What a client is told whose transaction met `clash`.
    async fn resolve_within(&self, conflict: &ReservationConflict) -> StatementResult {
        match resolve(self.context, self.protected, conflict, self.deadline).await {
            Resolved::Duplicate => StatementResult::Duplicate(conflict.key.clone()),
            Resolved::Cleared | Resolved::TimeLimit => StatementResult::Refused(Refusal::Conflict),
            Resolved::Unsure => StatementResult::Refused(self.unsure(conflict.key.constraint)),
        }
    }
}

/// How one try ended.
#[derive(Debug)]
enum Attempted {
    /// Committed.
    Ran(StatementResult),
    /// Concluded, but the transaction is to be aborted.
    Abandoned(StatementResult),
    /// A reservation is in the way.
    ReservationConflict(ReservationConflict),
    /// The server refused to look for the documents.
    Unseen(Refused),
}

/// Whether `query` is made of equalities with `values`, those of a key by path, and of nothing else.
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
        // Who holds the key needn't match what is asked beside it.
        assert!(!asks(doc! { "b": "x", "c.d": 1, "region": "a" }));
    }
}
