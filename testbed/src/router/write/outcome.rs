//! What has become of a batch so far, put together from the shards' answers; and the reply that says so.

use std::collections::{BTreeMap, BTreeSet};

use bson::spec::ElementType;
use bytes::Bytes;

use super::Kind;
use super::group::{Answer, write_errors};
use super::plan::Group;
use crate::router::error::{Failure, ServerError, code, is_stale};
use crate::router::raw::{Builder, Doc};
use crate::router::reply::{self, Reply};

/// The longest document that a server sends, in bytes (16 MiB and 16 KiB).
const REPLY_BYTES_MAX: usize = 16_793_600;

/// The state of a batch.
#[derive(Debug, Default)]
pub struct Outcome {
    n: i64,
    n_modified: i64,
    settled: BTreeSet<usize>,
    upserted: BTreeMap<usize, Vec<u8>>,
    /// Each a `writeErrors` element without its index.
    errors: BTreeMap<usize, Vec<u8>>,
    /// Shard and `writeConcernError`.
    concern_errors: Vec<(String, Vec<u8>)>,
    retried: BTreeSet<i64>,
}

impl Outcome {
    /// Whether any statement failed.
    pub fn has_errors(&self) -> bool {
        !self.errors.is_empty()
    }

    /// The first statement that failed.
    pub fn first_error(&self) -> Option<usize> {
        self.errors.keys().next().copied()
    }

    /// Whether nothing is left to do for a statement.
    pub fn is_settled(&self, index: usize) -> bool {
        self.settled.contains(&index)
    }

    /// Notes that nothing is left to do for a statement, and that it changed nothing.
    pub fn settle(&mut self, index: usize) {
        self.settled.insert(index);
    }

    /// Fails a statement that was never sent.
    pub fn refuse(&mut self, index: usize, error: &ServerError) {
        let mut element = Builder::new();
        element
            .int32("code", error.code)
            .string("errmsg", error.message.as_bytes());
        self.fail(index, element.finish());
    }

    /// Takes a group's answer over; gives the reason if statements must be sent again because the routing is stale.
    pub fn take(&mut self, group: &Group, answer: &Answer, stops_at_errors: bool) -> Option<Bytes> {
        match answer {
            Answer::Stale(why) => Some(why.clone()),
            Answer::Failed(error, reply) => {
                let failed = if stops_at_errors {
                    &group.members[..1]
                } else {
                    &group.members
                };
                for index in failed {
                    self.refuse(*index, error);
                }
                self.take_concern_error(group, reply.as_ref());
                None
            }
            Answer::Reply(reply) => {
                self.take_counts(group, reply);
                self.take_concern_error(group, Some(reply));
                self.take_statements(group, reply, stops_at_errors)
            }
        }
    }

    fn take_counts(&mut self, group: &Group, reply: &Reply) {
        self.n += reply.number("n");
        self.n_modified += reply.number("nModified");
        let upserted = reply.nested("upserted").unwrap_or_else(Doc::empty);
        for upsert in upserted
            .elements()
            .flatten()
            .filter_map(|upsert| Doc::new(upsert.value).ok())
        {
            let index = upsert
                .get("index")
                .ok()
                .flatten()
                .and_then(|index| index.as_whole_number())
                .unwrap_or(0);
            if let Some(member) = group.members.get(index as usize) {
                self.upserted.insert(*member, without_index(upsert));
            }
        }
        let retried = reply.nested("retriedStmtIds").unwrap_or_else(Doc::empty);
        self.retried
            .extend(retried.elements().flatten().filter_map(|id| id.as_whole_number()));
    }

    fn take_concern_error(&mut self, group: &Group, reply: Option<&Reply>) {
        if let Some(error) = reply.and_then(|reply| reply.nested("writeConcernError")) {
            self.concern_errors
                .push((group.shard.to_string(), error.bytes().to_vec()));
        }
    }

    fn take_statements(&mut self, group: &Group, reply: &Reply, stops_at_errors: bool) -> Option<Bytes> {
        let mut errors: BTreeMap<usize, Doc<'_>> = write_errors(reply).into_iter().collect();
        let mut stale = None;
        for (position, index) in group.members.iter().enumerate() {
            match errors.remove(&position) {
                None => {
                    self.settled.insert(*index);
                }
                Some(error) if is_stale(error_code(error)) => {
                    stale = stale.or_else(|| Some(stale_reply(error)));
                    if stops_at_errors {
                        return stale;
                    }
                }
                Some(error) => {
                    self.fail(*index, without_index(error));
                    if stops_at_errors {
                        return stale;
                    }
                }
            }
        }
        stale
    }

    /// A write of one document that was sent to several shards is done when one of them found it, though another was stale.
    pub fn forgive_stale_broadcast(&mut self, group: Option<&Group>, answers: &[(&Group, Answer)]) -> bool {
        let found = answers.iter().any(|(_, answer)| answer.n() > 0);
        if let Some(group) = group {
            let stale = answers.iter().any(|(_, answer)| !is_settling(answer));
            if stale && !found {
                for index in &group.members {
                    self.settled.remove(index);
                }
                return false;
            }
            self.settled.extend(&group.members);
        }
        true
    }

    fn fail(&mut self, index: usize, error: Vec<u8>) {
        self.settled.insert(index);
        let combined = match self.errors.remove(&index) {
            None => error,
            Some(other) => combine(&other, &error),
        };
        self.errors.insert(index, combined);
    }

    /// The reply to an unacknowledged write.
    pub fn acknowledge(&self) -> Vec<u8> {
        reply::ok()
    }

    /// The reply.
    ///
    /// # Errors
    /// If it would be longer than a server's reply may be.
    pub fn reply(&self, kind: Kind) -> Result<Vec<u8>, Failure> {
        let mut body = Builder::new();
        body.int32("n", self.n as i32);
        if kind == Kind::Update {
            body.int32("nModified", self.n_modified as i32);
        }
        if !self.upserted.is_empty() {
            append_indexed(&mut body, "upserted", &self.upserted);
        }
        if !self.errors.is_empty() {
            append_indexed(&mut body, "writeErrors", &self.errors);
        }
        if let Some(error) = self.concern_error() {
            body.append(ElementType::EmbeddedDocument, b"writeConcernError", &error);
        }
        if !self.retried.is_empty() {
            body.open(ElementType::Array, b"retriedStmtIds");
            for (position, id) in self.retried.iter().enumerate() {
                body.int32(&position.to_string(), *id as i32);
            }
            body.close();
        }
        body.double("ok", 1.0);
        let body = body.finish();
        match body.len() > REPLY_BYTES_MAX {
            true => Err(ServerError::new(10334, format!("BSONObj size: {} is invalid", body.len())).into()),
            false => Ok(body),
        }
    }

    /// One shard's error as it is; of several, the first one's code and all their texts.
    fn concern_error(&self) -> Option<Vec<u8>> {
        let (_, first) = self.concern_errors.first()?;
        if self.concern_errors.len() == 1 {
            return Some(first.clone());
        }
        let text = |error: &[u8]| {
            let field = Doc::new(error).ok()?.get("errmsg").ok()??;
            field
                .as_string_bytes()
                .map(|text| String::from_utf8_lossy(text).into_owned())
        };
        let mut message = "multiple errors reported :".to_owned();
        for (shard, error) in &self.concern_errors {
            message.push_str(&format!(": {} at {shard} :", text(error).unwrap_or_default()));
        }
        let mut combined = Builder::new();
        combined.int32("code", error_code(Doc::new(first).ok()?));
        combined.string("errmsg", message.as_bytes());
        Some(combined.finish())
    }
}

fn is_settling(answer: &Answer) -> bool {
    match answer {
        Answer::Stale(_) => false,
        Answer::Failed(..) => true,
        Answer::Reply(reply) => !write_errors(reply)
            .iter()
            .any(|(_, error)| is_stale(error_code(*error))),
    }
}

fn error_code(error: Doc<'_>) -> i32 {
    let code = error.get("code").ok().flatten().and_then(|code| code.as_whole_number());
    code.unwrap_or(0) as i32
}

fn without_index(element: Doc<'_>) -> Vec<u8> {
    let mut copy = Builder::new();
    for field in element.elements().flatten().filter(|field| field.name != b"index") {
        copy.element(&field);
    }
    copy.finish()
}

/// A write error in the form of a command's error.
fn stale_reply(error: Doc<'_>) -> Bytes {
    let mut reply = Builder::new();
    reply.double("ok", 0.0);
    for field in error.elements().flatten().filter(|field| field.name != b"index") {
        reply.element(&field);
    }
    reply.finish().into()
}

fn combine(left: &[u8], right: &[u8]) -> Vec<u8> {
    let text = |error: &[u8]| {
        let field = Doc::new(error).ok()?.get("errmsg").ok()??;
        field.as_string_bytes().map(<[u8]>::to_vec)
    };
    let code = Doc::new(left).map_or(code::INTERNAL_ERROR, error_code);
    let message = [text(left).unwrap_or_default(), text(right).unwrap_or_default()].join(&b" :: and :: "[..]);
    let mut combined = Builder::new();
    combined.int32("code", code).string("errmsg", &message);
    combined.finish()
}

/// An array of documents, each starting with its index in the client's command.
fn append_indexed(body: &mut Builder, name: &str, elements: &BTreeMap<usize, Vec<u8>>) {
    body.open(ElementType::Array, name.as_bytes());
    for (position, (index, element)) in elements.iter().enumerate() {
        body.open(ElementType::EmbeddedDocument, position.to_string().as_bytes());
        body.int32("index", *index as i32);
        for field in Doc::new(element)
            .iter()
            .flat_map(|element| element.elements())
            .flatten()
        {
            body.element(&field);
        }
        body.close();
    }
    body.close();
}
