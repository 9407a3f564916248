//! The differences from a native unique index that are meant: those of `docs/differences.md`, and no others.

use bson::{Bson, Document, doc};

use testkit::wire::is_ok;

/// How two replies to one command compare.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    Same,
    /// They tell another one of several errors; what is left is the same.
    OtherError,
    /// Other documents are left; both are what an outcome may be.
    OtherOutcome,
    /// Both failed, and one of them may have changed some documents before, but no key.
    Halfway,
    Different,
}

/// Compares replies that have no times any more.
pub fn judge(command: &Document, keyward: &Document, native: &Document) -> Verdict {
    if is_of_many(command) && is_failure(native) {
        return judge_update_of_many(keyward, native);
    }
    if keyward == native {
        return Verdict::Same;
    }
    if is_out_of_sight(command, keyward) {
        return Verdict::OtherOutcome;
    }
    if !is_failure(keyward) || !is_failure(native) || is_ok(keyward) != is_ok(native) {
        return Verdict::Different;
    }
    if is_unordered_insert(command) && is_another_order(command, keyward, native) {
        return Verdict::OtherOutcome;
    }
    let (ours, theirs) = (errors(keyward), errors(native));
    let same_errors = ours.len() == theirs.len()
        && ours
            .iter()
            .zip(theirs)
            .all(|(ours, theirs)| is_another_error(command, ours, theirs));
    match same_errors && (!is_ok(native) || without_errors(keyward) == without_errors(native)) {
        true => Verdict::OtherError,
        false => Verdict::Different,
    }
}

/// Natively it stops at the first document that fails, and keeps what it did before. Through Keyward only the outcome
/// counts, all or nothing; where it touches no constraint each shard does as it likes, and the router adds up.
fn judge_update_of_many(keyward: &Document, native: &Document) -> Verdict {
    match (is_failure(keyward), is_duplicate(native)) {
        (true, true) => Verdict::Halfway,
        (true, false) => Verdict::OtherOutcome,
        (false, true) => Verdict::OtherOutcome,
        (false, false) => Verdict::Different,
    }
}

/// Keyward refuses a statement that gives `_id` an equal value with another hash, and so the document another shard.
fn is_out_of_sight(command: &Document, keyward: &Document) -> bool {
    let is_refusal = |error: &&Document| {
        let text = error.get_str("errmsg").unwrap();
        error.get_i32("code").ok() == Some(115) && text.contains("leave the type of its _id as it is")
    };
    // The other statements of an update have their results.
    let is_of_one_statement = is_ok(keyward) || command.contains_key("findAndModify");
    is_of_one_statement && errors(keyward).iter().any(is_refusal) && has_decimal_fraction(command)
}

/// Only `_id`s that updates state have these values.
fn has_decimal_fraction(document: &Document) -> bool {
    document.values().any(|value| match value {
        Bson::Decimal128(number) => number.to_string().ends_with(".75"),
        Bson::Document(document) => has_decimal_fraction(document),
        Bson::Array(values) => values.iter().filter_map(Bson::as_document).any(has_decimal_fraction),
        _ => false,
    })
}

/// Of documents of one unordered insert that collide with each other, another one was first.
fn is_another_order(command: &Document, keyward: &Document, native: &Document) -> bool {
    let count = command.get_array("documents").unwrap().len();
    let adds_up = |reply: &Document| reply.get_i32("n").unwrap() as usize + errors(reply).len() == count;
    let are_duplicates = |reply: &Document| codes(reply).iter().all(|code| *code == 11000);
    adds_up(keyward) && adds_up(native) && are_duplicates(keyward) && are_duplicates(native)
}

/// Whether the document fails on both sides, for another one of its reasons.
fn is_another_error(command: &Document, ours: &Document, theirs: &Document) -> bool {
    let is_insert = command.contains_key("insert");
    let code = |error: &Document| error.get_i32("code").unwrap();
    let is_about_id = theirs.get_document("keyPattern").ok() == Some(&doc! { "_id": 1 });
    let is_unindexable = matches!(code(ours), 171 | 16746);
    let is_theirs_a_duplicate = code(theirs) == 11000;
    let may_be_another = match code(ours) {
        // Natively the `_id` is looked at first; in a batch, a collision with another of its documents may come later.
        11000 => is_insert && is_theirs_a_duplicate && (is_about_id || is_of_several(command)),
        // What can't be indexed by a later index is found out before any index is asked.
        _ => is_unindexable && is_theirs_a_duplicate,
    };
    ours == theirs || ours.get("index") == theirs.get("index") && may_be_another
}

fn is_of_several(command: &Document) -> bool {
    let documents = command.get_array("documents");
    documents.is_ok_and(|documents| documents.len() > 1)
}

fn is_unordered_insert(command: &Document) -> bool {
    is_of_several(command) && command.get_bool("ordered").ok() == Some(false)
}

/// An update of many documents: the one kind that can fail after a part of its work.
pub fn is_of_many(command: &Document) -> bool {
    let updates = command
        .get_array("updates")
        .map(Vec::as_slice)
        .unwrap_or_default()
        .iter();
    updates
        .filter_map(Bson::as_document)
        .any(|update| update.contains_key("multi"))
}

pub fn is_failure(reply: &Document) -> bool {
    !is_ok(reply) || reply.contains_key("writeErrors")
}

pub fn is_duplicate(reply: &Document) -> bool {
    codes(reply).contains(&11000)
}

fn codes(reply: &Document) -> Vec<i32> {
    let code = |error: &Document| error.get_i32("code").unwrap();
    errors(reply).into_iter().map(code).collect()
}

fn errors(reply: &Document) -> Vec<&Document> {
    match reply.get_array("writeErrors") {
        Ok(errors) => errors.iter().filter_map(Bson::as_document).collect(),
        Err(_) if is_ok(reply) => Vec::new(),
        Err(_) => vec![reply],
    }
}

fn without_errors(reply: &Document) -> Document {
    let mut reply = reply.clone();
    reply.remove("writeErrors");
    reply
}
