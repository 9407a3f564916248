//! Carries out an `aggregate` with `$merge` into a protected collection: it reads the pipeline's results, and writes them.
//!
//! Keyward writes the results in parts, each in the way of a client's own write, by the constraints that hold then. While it reads,
//! the connection holds no catalog epoch. So a change of the constraints waits for one part at most. If the client leaves, the merge
//! ends after that part, too.

use std::sync::Arc;
use std::time::Duration;

use bson::oid::ObjectId;
use futures_util::FutureExt;
use tokio::time::Instant;

use super::End;
use super::judgement::Judged;
use super::leaving::{AHEAD_BYTES_MAX, gone};
use super::registration::Registration;
use super::request_context::RequestContext;
use super::serve::MessageHandler;
use crate::classify::{CommandRefusal, TargetKind, Verdict};
use crate::merge::{MergeCommand, MergeKey, MergeKeyFault, MergeOutcome, MergeParts, MergeStage};
use crate::raw::{Doc, Malformed};
use crate::reply::{Times, WriteRefusal};
use crate::server::{code, cursor, reply};
use crate::stream::Incoming;
use crate::upstream::ConnectionError;
use crate::wire::{Draft, OpMsg, Rejection, Request};
use crate::write::Served;

/// The server's shortest time limit.
const SHORTEST: Duration = Duration::from_millis(1);

impl MessageHandler<'_> {
    /// Carries out the `aggregate` in the whole `message` of `client`; returns the reply's body.
    pub(super) async fn merge(&mut self, message: &[u8], client: &mut Incoming) -> Result<Vec<u8>, End> {
        let body = OpMsg::parse_whole(message)?.body;
        let database = body
            .get("$db")
            .map_err(unreadable)?
            .and_then(|name| name.as_string_bytes());
        let command = MergeCommand::read(body, database.unwrap_or_default()).map_err(unreadable)?;
        let command = command.expect("it was read when it was judged");
        self.leave_epoch().await?;
        let merged = self.merge_by(&command, client).await?;
        self.enter_epoch();
        Ok(merged)
    }

    async fn merge_by(&mut self, command: &MergeCommand<'_>, client: &mut Incoming) -> Result<Vec<u8>, End> {
        let stage = MergeStage::read(&command.specification).map_err(unreadable)?;
        let protected = self
            .catalog
            .protected(command.target.database, command.target.collection);
        let (Some(stage), Some(protected)) = (stage, protected) else {
            let explanation = command.explanation(false).map_err(unreadable)?;
            return self.refused_by_server(command, &explanation).await;
        };
        if command.is_impossible().map_err(unreadable)? {
            let explaining = command.explaining().map_err(unreadable)?;
            return self.refused_by_server(command, &explaining).await;
        }
        let is_collated = command.is_collated().map_err(unreadable)?;
        let key = MergeKey::of(&stage, is_collated, protected, |constraint| {
            self.service.is_enforced_lately(constraint)
        });
        let explanation = command.explanation(key.is_constraints).map_err(unreadable)?;
        let explained = self.upstream.run(&explanation).await?;
        if let Some(code) = failure(&explained).map_err(unreadable)?
            // A router can't explain a pipeline on a database that doesn't exist. It runs the pipeline.
            && code != code::NAMESPACE_NOT_FOUND
        {
            return Ok(explained);
        }
        let max_time = match command.max_time() {
            Ok(max_time) => max_time,
            Err(refusal) => return Ok(refusal.body(&Times::default())),
        };
        let merging = Merging {
            handler: self,
            ahead_max: client.inbox.bytes().len() + AHEAD_BYTES_MAX,
            client,
            command,
            stage: &stage,
            on: &key.paths,
            deadline: max_time.map(|limit| Instant::now() + limit),
            outcome: MergeOutcome::default(),
        };
        merging.run().await
    }

    /// The server's refusal of `explanation`, or Keyward's if the server refuses nothing.
    async fn refused_by_server(&mut self, command: &MergeCommand<'_>, explanation: &[u8]) -> Result<Vec<u8>, End> {
        let explained = self.upstream.run(explanation).await?;
        match failure(&explained).map_err(unreadable)? {
            Some(_) => Ok(explained),
            None => {
                let kind = TargetKind::Protected;
                let refusal = CommandRefusal::of(b"$merge", command.target, kind, &*self.catalog);
                Ok(self.refuse(&refusal))
            }
        }
    }

    /// Carries out a write that Keyward composed as if the client had sent it, by the constraints that hold now.
    async fn write_part(&mut self, draft: &Draft<'_>) -> Result<Vec<u8>, End> {
        let message = draft.frame(0, 0).map_err(ConnectionError::from)?.to_vec();
        loop {
            self.enter_epoch();
            self.upstream.begin_command();
            self.catalog = Arc::clone(&self.service.writes.catalog());
            let mut unpacked = Vec::new();
            let request = Request::read(&message, None, &mut unpacked)?;
            let context = request.parsed.as_ref().map(RequestContext::of).unwrap_or_default();
            let mut judged = Judged::of(request, context, self.service, &self.catalog);
            let undeclared = std::mem::take(&mut judged.undeclared);
            match self.register(&undeclared, judged.asks_to_write, &context).await? {
                Registration::Known => {}
                Registration::JudgeAnew => continue,
                Registration::Refused(refusal) => return Ok(refusal.body(&Times::default())),
            }
            let write = match &judged.verdict {
                Ok(Verdict::Refuse(refusal)) => return Ok(self.refuse(refusal)),
                Ok(Verdict::Write(write)) if !judged.is_unchanged() => write,
                Ok(_) => return Ok(self.upstream.request(draft).await?.body().bytes().to_vec()),
                Err(rejection) => return Err(rejection.clone().into()),
            };
            let parsed = OpMsg::parse_whole(&message)?;
            return match self.protected_write(write, judged.key_change, &parsed).await? {
                Served::Reply(reply) => Ok(reply),
                Served::Untouched => Ok(self.upstream.request(draft).await?.body().bytes().to_vec()),
            };
        }
    }
}

/// A merge under way.
struct Merging<'h, 's, 'm> {
    handler: &'h mut MessageHandler<'s>,
    client: &'h mut Incoming,
    command: &'h MergeCommand<'m>,
    stage: &'h MergeStage<'m>,
    on: &'h [String],
    deadline: Option<Instant>,
    /// As long as this many bytes of the client's have arrived, Keyward reads no more of them.
    ahead_max: usize,
    outcome: MergeOutcome,
}

impl Merging<'_, '_, '_> {
    /// Reads all results and writes them; returns the reply's body.
    async fn run(mut self) -> Result<Vec<u8>, End> {
        let source = self.command.source(self.stage).map_err(unreadable)?;
        let mut results = self.read(&source).await?;
        let opened = cursor::with_first_batch(read(&results)?, &[]).map_err(unreadable)?;
        let collection = cursor::collection(read(&opened)?).map_err(unreadable)?.to_vec();
        loop {
            if failure(&results).map_err(unreadable)?.is_some() {
                return Ok(results);
            }
            let reply = read(&results)?;
            self.outcome.advance(reply);
            let cursor = cursor::more(reply).map_err(unreadable)?;
            let ended = self.write(&cursor::batch(reply).map_err(unreadable)?).await;
            let Some(cursor) = cursor else {
                return match ended? {
                    Some(error) => Ok(error),
                    None => self.outcome.reply(read(&opened)?).map_err(unreadable),
                };
            };
            if let Some(ended) = ended.transpose() {
                if self.handler.upstream.is_in_step() {
                    let kill = self.command.kill_cursor(cursor, &collection).map_err(unreadable)?;
                    self.handler.upstream.run(&kill).await?;
                }
                return ended;
            }
            self.handler.leave_epoch().await?;
            let get_more = self.command.get_more(cursor, &collection).map_err(unreadable)?;
            results = self.read(&get_more).await?;
        }
    }

    /// Sends a command that reads, and waits for its reply, or until the client is gone. If the client goes, the upstream connection
    /// is out of step. It is closed, and so the server ends the read.
    async fn read(&mut self, command: &[u8]) -> Result<Vec<u8>, End> {
        tokio::select! {
            biased;
            reply = self.handler.upstream.run(command) => Ok(reply?),
            end = gone(self.client, self.ahead_max) => Err(end),
        }
    }

    /// Writes one batch of results. Returns the client's reply if the merge ends with an error.
    ///
    /// A statement that fails doesn't keep the others of its batch from being written: the server, too, writes batches in this way.
    async fn write(&mut self, results: &[Doc<'_>]) -> Result<Option<Vec<u8>>, End> {
        let parts = match MergeParts::of(results, self.stage, self.on, ObjectId::new) {
            Ok(parts) => parts,
            Err(fault) => return Ok(self.fail(&fault)),
        };
        let list = self.stage.form().list().expect("the command has a batch");
        for part in parts {
            if let Some(end) = gone(self.client, self.ahead_max).now_or_never() {
                return Err(end);
            }
            let left = self
                .deadline
                .map(|deadline| deadline.saturating_duration_since(Instant::now()));
            if left.is_some_and(|left| left < SHORTEST) {
                return Ok(Some(WriteRefusal::TimeLimit.body(self.outcome.times())));
            }
            let part = match part {
                Ok(part) => part,
                Err(fault) => return Ok(self.fail(&fault)),
            };
            let body = match self.command.write_body(self.stage, left) {
                Ok(body) => body,
                Err(refusal) => return Ok(Some(refusal.body(self.outcome.times()))),
            };
            let draft = Draft::with_documents(&body, list, part.iter().map(Vec::as_slice));
            let reply = self.handler.write_part(&draft).await?;
            if failure(&reply).map_err(unreadable)?.is_some() {
                return Ok(Some(reply));
            }
            let added = self.outcome.add(read(&reply)?, part.len(), self.stage, self.on);
            added.map_err(unreadable)?;
        }
        self.outcome.end_batch(self.stage);
        Ok(self.outcome.error())
    }

    /// Ends the merge with this error. Returns the client's reply.
    fn fail(&mut self, fault: &MergeKeyFault) -> Option<Vec<u8>> {
        self.outcome.fail(&fault.error());
        self.outcome.error()
    }
}

/// The code of a reply that isn't `ok`.
fn failure(reply: &[u8]) -> Result<Option<i32>, Malformed> {
    let reply = Doc::new(reply)?;
    Ok(match reply::is_ok(reply)? {
        true => None,
        false => Some(reply::code(reply)?.unwrap_or_default()),
    })
}

fn read(reply: &[u8]) -> Result<Doc<'_>, End> {
    Doc::new(reply).map_err(unreadable)
}

fn unreadable(malformed: Malformed) -> End {
    Rejection::from(malformed).into()
}
