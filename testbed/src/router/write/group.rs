//! Sends one round's groups and takes their answers apart: what is done, what failed, what a shard calls stale and must be
//! sent again.

use std::collections::VecDeque;

use bytes::Bytes;

use super::Batch;
use super::outcome::Outcome;
use super::plan::{Group, Round};
use crate::router::error::{Failure, ServerError, code, is_retryable, is_stale};
use crate::router::message::Sequence;
use crate::router::operation::{Access, ShardCommand};
use crate::router::raw::Doc;
use crate::router::reply::Reply;

impl Batch<'_> {
    /// Runs a round. Takes what is settled out of `pending`; gives a shard's reason if something was stale.
    pub(super) async fn execute(
        &self,
        round: Round,
        outcome: &mut Outcome,
        pending: &mut VecDeque<usize>,
    ) -> Result<Option<Bytes>, Failure> {
        let (groups, broadcast) = match round {
            Round::Single(groups) => (groups, false),
            Round::Broadcast(groups) => (groups, true),
        };
        let commands = groups.iter().map(|group| self.shard_command(group)).collect();
        let answers = self.operation.call_all(commands).await;
        let mut answered = Vec::new();
        for (group, answer) in groups.iter().zip(answers) {
            answered.push((group, self.read_answer(group, answer)?));
        }
        if broadcast {
            drop_echoes(&mut answered);
        }
        let mut stale = None;
        let first_error = outcome.first_error();
        for (group, answer) in &answered {
            let again = outcome.take(group, answer, self.stops_at_errors());
            stale = stale.or(again);
        }
        if broadcast && outcome.forgive_stale_broadcast(groups.first(), &answered) {
            stale = None;
        }
        match (self.stops_at_errors(), outcome.first_error() == first_error) {
            (true, false) => pending.clear(),
            // In order, what is settled stands at the front: a long batch isn't gone through for every round.
            (true, true) => {
                let settled = pending.iter().take_while(|index| outcome.is_settled(**index)).count();
                pending.drain(..settled);
            }
            (false, _) => pending.retain(|index| !outcome.is_settled(*index)),
        }
        Ok(stale)
    }

    fn shard_command(&self, group: &Group) -> ShardCommand {
        let statements = group.members.iter().map(|member| self.statements[*member].clone());
        ShardCommand {
            shard: group.shard.to_string(),
            version: group.version.clone(),
            body: self.command_for(&group.members),
            sequence: Some(Sequence {
                name: self.kind.field().to_owned(),
                documents: statements.collect(),
            }),
            access: Access::Write,
        }
    }

    /// A shard's answer, or the error that stands for one.
    ///
    /// An error that makes a driver send its retryable write again is the whole command's: what has been done is recognised by
    /// its statement numbers. So is every error inside a transaction, and what a `mongos` finds out itself, which parses
    /// the command before any shard does.
    fn read_answer(&self, group: &Group, answer: Result<(Reply, String), Failure>) -> Result<Answer, Failure> {
        let command = &self.operation.command;
        let whole = |code| {
            self.operation.transaction.is_some()
                || matches!(
                    code,
                    code::WOULD_CHANGE_OWNING_SHARD | code::UNKNOWN_FIELD | code::MISSING_FIELD
                )
                || (command.is_retryable_write() && is_retryable(code))
        };
        match answer {
            Ok((reply, _)) if reply.is_ok() => Ok(Answer::Reply(reply)),
            Ok((reply, _)) if is_stale(reply.code()) => Ok(Answer::Stale(reply.bytes().clone())),
            Ok((reply, _)) if whole(reply.code()) => Err(self.refused_whole(reply)),
            Ok((reply, _)) => Ok(Answer::Failed(
                ServerError::new(reply.code(), reply.message()),
                Some(reply),
            )),
            Err(Failure::Own(error)) if !whole(error.code) => {
                let message = format!(
                    "Write results unavailable from failing to target a host in the shard {} :: caused by :: {}",
                    group.shard, error.message
                );
                Ok(Answer::Failed(ServerError::new(error.code, message), None))
            }
            Err(failure) => Err(failure),
        }
    }

    fn refused_whole(&self, reply: Reply) -> Failure {
        match reply.code() {
            code::WOULD_CHANGE_OWNING_SHARD if self.statements.len() > 1 => Failure::Own(ServerError::new(
                code::INVALID_OPTIONS,
                "Document shard key updates that cause the doc to move shards must be sent with write batch of size 1",
            )),
            _ => Failure::Shard(reply),
        }
    }
}

/// What a shard said to a group.
#[derive(Debug)]
pub enum Answer {
    /// Its statements were run.
    Reply(Reply),
    /// None of them were, the routing is stale.
    Stale(Bytes),
    /// The command as a whole failed.
    Failed(ServerError, Option<Reply>),
}

impl Answer {
    /// Whether the shard hasn't done it now, but knows that it was done before.
    fn is_from_memory(&self) -> bool {
        match self {
            Answer::Reply(reply) => reply.get("retriedStmtIds").is_some(),
            _ => false,
        }
    }

    /// How many documents it says were written.
    pub fn n(&self) -> i64 {
        match self {
            Answer::Reply(reply) => reply.number("n"),
            _ => 0,
        }
    }
}

/// With a chunk a shard also takes over the memory of what was done to its documents, and answers for it: where another
/// shard says the same, one of them counts.
fn drop_echoes(answered: &mut Vec<(&Group, Answer)>) {
    answered.sort_by_key(|(_, answer)| answer.is_from_memory());
    let mut is_found = false;
    answered.retain(|(_, answer)| {
        let is_echo = is_found && answer.is_from_memory();
        is_found |= answer.n() > 0;
        !is_echo
    });
}

/// The write errors of a reply: index within the group, and the element.
pub fn write_errors(reply: &Reply) -> Vec<(usize, Doc<'_>)> {
    let errors = reply.nested("writeErrors").unwrap_or_else(Doc::empty);
    let errors = errors.elements().flatten().filter_map(|error| {
        let error = Doc::new(error.value).ok()?;
        let index = error.get("index").ok()??.as_whole_number()?;
        Some((usize::try_from(index).ok()?, error))
    });
    errors.collect()
}
