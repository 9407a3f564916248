//! What is fuzzed: each function takes any bytes, and panics where Keyward does what it mustn't. `cargo fuzz` looks for such
//! bytes, and `cargo test --test compatibility fuzzed` goes through those that it has kept, and some made from them.

use std::collections::HashSet;
use std::path::Path;
use std::sync::LazyLock;

use bson::doc;
use bytes::BufMut;
use keyward::classify::{ConstraintRemoval, EncryptedField, OtherCollation, Protection, Verdict, classify};
use keyward::config::Config;
use keyward::constraint::{Constraint, IndexSpec, Key};
use keyward::encrypted_fields::EncryptedFields;
use keyward::namespace::Namespace;
use keyward::raw::{Doc, Element};
use keyward::wire::{
    Compressor, Draft, Header, Inbox, MESSAGE_BYTES_MAX, Message, OpMsg, OutSequence, Request, Sequence, compress,
    decompress, more_to_come, stated_bytes,
};

/// A stream of messages: cut as the first byte says or all at once, it is the same messages; and what a header states takes
/// no memory before it is there.
pub fn framing(data: &[u8]) {
    let Some((step, stream)) = data.split_first() else {
        return;
    };
    let whole = messages(stream, stream.len().max(1));
    assert_eq!(whole, messages(stream, usize::from(*step).max(1)));
}

/// The lengths of the messages that arrive in pieces of `step` bytes, and whether what follows them is refused.
fn messages(stream: &[u8], step: usize) -> (Vec<usize>, bool) {
    let mut inbox = Inbox::default();
    let mut lengths = Vec::new();
    for piece in stream.chunks(step) {
        inbox.space(piece.len()).put_slice(piece);
        loop {
            match inbox.message() {
                Ok(Some(message)) => {
                    let length = message.len();
                    lengths.push(length);
                    inbox.consume(length);
                }
                Ok(None) => break,
                Err(_) => return (lengths, true),
            }
        }
        let stated = inbox.header().ok().flatten().map_or(0, |header| header.length);
        assert!(stated <= MESSAGE_BYTES_MAX);
        let capacity = inbox.capacity_for(stated);
        assert!(
            capacity <= 4 * stream.len() + 512 * 1024,
            "{capacity} bytes for {}",
            stream.len()
        );
    }
    (lengths, false)
}

/// A message: composed anew it says the same, and what goes to the write path names what is protected.
pub fn message(data: &[u8]) {
    let message = with_length(data);
    // What is packed is for `decompression`.
    if stated_bytes(&message).is_some_and(|bytes| bytes > 1 << 20) {
        return;
    }
    let mut scratch = Vec::new();
    let Ok(request) = Request::read(&message, None, &mut scratch) else {
        return;
    };
    let Ok(parsed) = &request.parsed else { return };
    let verdict = classify(parsed, &Guarded);
    let Message::Msg(parsed) = parsed else { return };
    let draft = Draft {
        flags: parsed.flags,
        body: parsed.body.bytes(),
        sequences: parsed.sequences().map(of_sequence).collect(),
    };
    let anew = draft.frame(1, 2).expect("it isn't longer than the message").to_vec();
    assert_eq!(OpMsg::parse(&anew).as_ref(), Ok(parsed));
    if let Ok(Verdict::Write(write)) = verdict {
        let is_named = request.unpacked.windows(GUARDED.len()).any(|bytes| bytes == GUARDED);
        assert!(is_named, "{write:?}");
    }
    for field in ["documents", "updates", "deletes", "ops"] {
        let Ok(Some(Ok(documents))) = parsed.documents(field).map(|batch| batch.map(|batch| batch.iter())) else {
            continue;
        };
        let bytes: usize = documents.flatten().map(|document| document.bytes().len()).sum();
        assert!(bytes <= request.unpacked.len());
    }
}

fn of_sequence(sequence: Sequence<'_>) -> OutSequence<'_> {
    OutSequence {
        name: sequence.name,
        documents: vec![sequence.documents],
    }
}

/// The bytes as a message: its header states the length that it has.
fn with_length(data: &[u8]) -> Vec<u8> {
    let mut message = data.to_vec();
    if let (Some(field), Ok(length)) = (message.first_chunk_mut(), i32::try_from(data.len())) {
        *field = length.to_le_bytes();
    }
    message
}

/// The name that is protected, of whichever database.
const GUARDED: &[u8] = b"guarded";

struct Guarded;

impl Protection for Guarded {
    fn protects(&self, _database: &[u8], collection: &[u8]) -> bool {
        collection == GUARDED
    }

    fn has_constraints(&self, database: &[u8], collection: &[u8]) -> bool {
        self.protects(database, collection)
    }

    fn removal(&self, _database: &[u8], _collection: &[u8]) -> ConstraintRemoval {
        ConstraintRemoval::default()
    }

    fn strict_constraint(&self, _database: &[u8], _collection: &[u8]) -> Option<String> {
        None
    }

    fn is_keywards_own(&self, _database: &[u8], collection: &[u8]) -> bool {
        collection.starts_with(b"keyward.")
    }

    fn other_collation(
        &self,
        database: &[u8],
        collection: &[u8],
        collation: Option<&Element<'_>>,
    ) -> Option<OtherCollation> {
        (self.protects(database, collection) && collation.is_some()).then(|| OtherCollation {
            constraint: String::new(),
            had: String::new(),
            removal: ConstraintRemoval::default(),
        })
    }

    /// Whatever they are.
    fn encrypted(&self, database: &[u8], collection: &[u8], _fields: &EncryptedFields) -> Option<EncryptedField> {
        self.protects(database, collection).then(|| EncryptedField {
            constraint: String::new(),
            field: String::new(),
            removal: ConstraintRemoval::default(),
        })
    }
}

/// A packed message: unpacked it has the size that it states, or it is refused; and what isn't packed comes back as it was.
pub fn decompression(data: &[u8]) {
    let message = with_length(data);
    let stated = stated_bytes(&message).unwrap_or(0);
    let mut unpacked = Vec::new();
    match decompress(&message, &mut unpacked) {
        Ok(_) => assert_eq!(unpacked.len(), Header::SIZE + stated),
        Err(_) => assert!(unpacked.len() <= Header::SIZE + stated),
    }
    for end in 0..=message.len().min(100) {
        let _ = more_to_come(&message[..end]);
    }
    if Header::read(&message).ok().flatten().is_none() {
        return;
    }
    for compressor in Compressor::ALL {
        let Some(packed) = compress(&message, compressor) else {
            continue;
        };
        let mut again = Vec::new();
        if decompress(&packed, &mut again).is_ok() {
            assert_eq!(again, message, "{compressor:?}");
        }
    }
}

/// A document: its keys differ, stand for themselves in the `_id`s of reservations, and can be told in an error.
pub fn keys(data: &[u8]) {
    let Ok(document) = Doc::new(data) else { return };
    for constraint in &*CONSTRAINTS {
        let Ok(keys) = constraint.keys(document) else {
            continue;
        };
        let distinct: HashSet<&[u8]> = keys.iter().map(Key::canonical).collect();
        assert_eq!(distinct.len(), keys.len(), "{}", constraint.name());
        for key in &keys {
            let again = Key::from_reservation_id(constraint, &key.reservation_id());
            assert_eq!(
                again.as_ref().map(Key::canonical),
                Ok(key.canonical()),
                "{}",
                constraint.name()
            );
            let duplicate = constraint.duplicate(key);
            assert!(duplicate.errmsg().starts_with(b"E11000 "));
        }
    }
}

static CONSTRAINTS: LazyLock<Vec<Constraint>> = LazyLock::new(|| {
    let on = |key, change: fn(&mut IndexSpec)| {
        let mut spec = IndexSpec {
            key,
            ..IndexSpec::default()
        };
        change(&mut spec);
        Constraint::new(Namespace::new("db", "guarded"), spec).expect("a specification that the server takes")
    };
    vec![
        on(doc! { "a": 1 }, |_| {}),
        on(doc! { "a.b": 1 }, |_| {}),
        on(doc! { "a": 1, "b.0": -1 }, |spec| spec.sparse = true),
        on(doc! { "a": 1 }, |spec| {
            spec.collation = Some(doc! { "locale": "de", "strength": 2 })
        }),
        on(doc! { "a": 1 }, |spec| {
            spec.partial_filter_expression = Some(doc! { "b": { "$gt": 5 }, "c": { "$exists": true } });
        }),
        on(doc! { "_id": 1 }, |_| {}),
    ]
});

/// A configuration file: what is wrong with it stands in it, and what isn't refused is read the same way twice.
pub fn configuration(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let read = || Config::from_text(Path::new("keyward.yaml"), text, None);
    match read() {
        Ok(config) => assert_eq!(format!("{:?}", read().ok()), format!("{:?}", Some(config))),
        Err(problems) => {
            assert!(!problems.problems.is_empty());
            // As YAML has them.
            let lines = text.split(['\n', '\r', '\u{85}', '\u{2028}', '\u{2029}']).count();
            let positions = problems.problems.iter().filter_map(|problem| problem.position);
            positions.for_each(|position| assert!(position.line <= lines + 1, "{position:?} of {lines}"));
        }
    }
}
