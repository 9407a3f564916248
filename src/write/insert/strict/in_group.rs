//! Chooses whether a transaction of a strict insert runs alone or in a group.

use std::borrow::Cow;

use bson::spec::ElementType;

use super::group_commit::{Done, GroupTerms, GroupTurn, Member, Size};
use super::transaction::{Load, ReservationMode, StrictInsert, TransactionOutcome, own_transaction};
use crate::claims::Candidate;
use crate::command::running::{API, append_fields, asks_beyond_majority};
use crate::raw::Malformed;
use crate::write::context::TIME_MAX;
use crate::write::forward::reply_within;
use crate::write::forward_error::ForwardError;
use crate::write::operation::WriteOp;
use crate::write::txn::Failure;

/// Longer terms are not compared: hardly any other insert has the same long `comment`, for example.
const TERMS_MAX: usize = 4096;

impl StrictInsert {
    /// Inserts `these` in one transaction, alone or in a group.
    pub(super) async fn try_in_group(
        &self,
        op: &mut WriteOp<'_>,
        these: &[&Candidate<'_>],
        reservations: ReservationMode,
    ) -> Result<TransactionOutcome, ForwardError> {
        // If a group waited for more than a majority, it would hold its members up for as long.
        let waits = op.client_deadline.is_some() || asks_beyond_majority(op.command.body)?;
        if waits || !Size::of(these).is_little() {
            return self.try_alone(op, these, reservations).await;
        }
        let terms = Self::terms(op, reservations)?;
        if terms.len() > TERMS_MAX {
            return self.try_alone(op, these, reservations).await;
        }
        let load = self.load(op, these)?;
        let done = match op.context.groups.enter(terms, || member(&load)).await {
            GroupTurn::Lead(mut lead) => {
                let (members, others) = lead.take_members();
                if members.is_empty() {
                    return lead.during(self.try_alone(op, these, reservations)).await;
                }
                let as_group = self.try_as_group(op, load, &members, reservations);
                let done = lead.during(reply_within(TIME_MAX, as_group)).await;
                let done = done.inspect_err(|_| lead.note_lost())?;
                lead.note(&done, 1 + members.len());
                others.resolve(&done);
                done
            }
            GroupTurn::Done(done) => done,
            GroupTurn::Alone => Done::Nothing,
            GroupTurn::InDoubt => return Err(ForwardError::GroupConnectionLost),
        };
        match done {
            Done::Committed(reply) => Ok(TransactionOutcome::Committed(reply)),
            Done::InDoubt(refused) => Ok(TransactionOutcome::InDoubt(refused.in_doubt(op.is_retryable()).body)),
            // The transaction is over.
            Done::Nothing => self.try_alone(op, these, reservations).await,
        }
    }

    /// Inserts share a group only if the server treats them alike: one user's, with the same options.
    fn terms(op: &WriteOp<'_>, reservations: ReservationMode) -> Result<GroupTerms, Malformed> {
        let mut terms = op.command.insert_body()?;
        append_fields(&mut terms, op.command.body, &API)?;
        // The leader's transaction waits for its own client's write concern.
        append_fields(&mut terms, op.command.body, &["writeConcern"])?;
        terms.boolean("checked", reservations == ReservationMode::Checked);
        // The leader's retry ends a transaction that its first try has left open.
        terms.boolean("retryable", op.is_retryable());
        // The address of the constraints, which stay allocated during the insert: so members share one version of them.
        terms.int64("protected", std::ptr::from_ref(op.protected) as i64);
        terms.append(ElementType::EmbeddedDocument, b"users", op.upstream.users());
        Ok(terms.finish().into())
    }

    /// Inserts the documents of `load` and `members` in one transaction.
    async fn try_as_group(
        &self,
        op: &mut WriteOp<'_>,
        mut load: Load<'_>,
        members: &[Member],
        reservations: ReservationMode,
    ) -> Result<Done, ForwardError> {
        for member in members {
            load.candidates.extend(&member.candidates);
            load.records.extend(member.record.clone());
            load.time.advance(member.time.clone());
        }
        let mut transaction = own_transaction(op, reservations)?;
        transaction.not_before(load.time.clone());
        let tried = self.try_to_insert(op, &load, reservations, &mut transaction).await;
        match tried {
            Ok(TransactionOutcome::Committed(reply)) => Ok(Done::Committed(reply)),
            Err(Failure::InDoubt(refused)) => Ok(Done::InDoubt(refused)),
            Err(Failure::Forward(error)) => Err(error),
            Ok(_) | Err(Failure::ErrorReply(_) | Failure::Refused(_)) => {
                transaction.abort(op.upstream).await?;
                Ok(Done::Nothing)
            }
        }
    }
}

/// The same insert for another client's connection.
fn member(load: &Load<'_>) -> Member {
    let owned = |candidate: &&Candidate<'_>| {
        let document = Cow::Owned(candidate.document.to_vec());
        let (owner, keys) = (candidate.owner.clone(), candidate.keys.clone());
        Candidate::of_keys(candidate.attempt.token(), document, owner, keys)
    };
    Member {
        candidates: load.candidates.iter().map(owned).collect(),
        record: load.records.first().cloned(),
        time: load.time.clone(),
    }
}
