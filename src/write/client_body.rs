//! Makes the bodies of the commands by which Keyward carries out a client's command outside a transaction.
//!
//! It decides which of the client's fields they keep. Within a transaction, [`crate::command::running`] lists the fields that aren't
//! kept.
//!
//! Keyward keeps the statements' numbers where the server would renumber a part of a retryable write.

use std::borrow::Cow;
use std::ops::Range;
use std::time::Duration;

use super::acknowledged::Acknowledged;
use super::cluster_time;
use crate::command::batch::{BatchCommand, must_be_stated};
use crate::command::bulk::BulkWrite;
use crate::command::running::milliseconds;
use crate::command::shape::Form;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::reply::Times;

/// The fields that Keyward sets anew.
pub struct NewFields<'t> {
    /// The members that must have the effect; `None` for those that the client asks for, at least the primary.
    pub acknowledged: Option<Acknowledged>,
    /// The time limit; `None` for the client's own.
    pub time: Option<Duration>,
    /// The time of the reservations that the write relies on.
    pub times: &'t Times,
}

impl<'t> NewFields<'t> {
    /// Sets only the cluster time anew.
    pub fn times(times: &'t Times) -> NewFields<'t> {
        NewFields {
            acknowledged: None,
            time: None,
            times,
        }
    }

    fn is_new(&self, name: &[u8]) -> bool {
        match name {
            b"$clusterTime" => true,
            b"writeConcern" => self.acknowledged.is_some(),
            b"maxTimeMS" => self.time.is_some(),
            _ => false,
        }
    }

    /// Appends them. The cluster time is that of the command `client`, if that is later. Of the write concern of `concern`, the other fields
    /// stay.
    fn append(&self, client: Doc<'_>, concern: Option<Doc<'_>>, body: &mut Builder) -> Result<(), Malformed> {
        match (self.acknowledged, concern) {
            (Some(acknowledged), Some(command)) => acknowledged.append_concern_of(command, body)?,
            (Some(acknowledged), None) => acknowledged.append_concern(body),
            (None, _) => {}
        }
        if let Some(time) = self.time {
            body.int32("maxTimeMS", milliseconds(time));
        }
        cluster_time::append(self.times, client, body)
    }
}

/// The statements' numbers and the write concern of a part, which decide how it keeps the client's other fields.
struct PartFields<'n> {
    numbers: Option<Cow<'n, [i32]>>,
    unacknowledged: bool,
}

impl PartFields<'_> {
    /// Appends a field of the client's command, in the form that the part needs.
    fn append(&self, field: &Element<'_>, body: &mut Builder) {
        match field.name {
            b"stmtId" | b"stmtIds" => {}
            // The stable API doesn't know statement numbers. The parts without numbers keep the field, so its other rules stay
            // enforced.
            b"apiStrict" if self.numbers.is_some() => {}
            // Keyward must learn which statements fail: to release the keys of a refused document, and to attempt no operation
            // after a failed one.
            b"writeConcern" if self.unacknowledged => Acknowledged::ByPrimary.append_concern(body),
            _ => {
                body.element(field);
            }
        }
    }

    /// Appends the statements' numbers, unless the server numbers them alike.
    fn append_numbers(self, body: &mut Builder) {
        if let Some(numbers) = self.numbers {
            body.int32s("stmtIds", numbers.iter().copied());
        }
    }
}

/// The body of the client's command for the part of its batch `list` at `positions`, which is sent beside it.
pub fn of_part(
    command: &BatchCommand<'_>,
    list: &str,
    positions: impl Iterator<Item = usize>,
    new: &NewFields<'_>,
) -> Result<Vec<u8>, Malformed> {
    let numbers = command.retry.as_ref().map(|retry| {
        positions
            .map(|position| retry.retry_id(position).statement)
            .collect::<Vec<_>>()
    });
    let part = PartFields {
        numbers: numbers.filter(|numbers| must_be_stated(numbers)).map(Cow::Owned),
        unacknowledged: command.unacknowledged,
    };
    let mut body = Builder::new();
    for field in command.body.elements() {
        let field = field?;
        if field.name != list.as_bytes() && !new.is_new(field.name) {
            part.append(&field, &mut body);
        }
    }
    part.append_numbers(&mut body);
    let concern = (!command.unacknowledged).then_some(command.body);
    new.append(command.body, concern, &mut body)?;
    Ok(body.finish())
}

/// The body of a command that is one statement, `rewritten` by Keyward.
pub fn of_statement(rewritten: Doc<'_>, new: &NewFields<'_>) -> Result<Vec<u8>, Malformed> {
    let mut body = Builder::new();
    body.elements_where(rewritten, |field| !new.is_new(field.name))?;
    new.append(rewritten, Some(rewritten), &mut body)?;
    Ok(body.finish())
}

/// The body of the command for the operations of `run`: the client's own without the fields that only `bulkWrite` has.
pub fn of_operations(bulk: &BulkWrite<'_>, run: Range<usize>, time_ms: Option<i32>) -> Result<Vec<u8>, Malformed> {
    let first = &bulk.operations[run.start];
    let namespace = &bulk.namespaces[first.namespace];
    let numbers = bulk.numbers.as_ref().map(|numbers| &numbers[run.clone()]);
    let part = PartFields {
        numbers: numbers.filter(|numbers| must_be_stated(numbers)).map(Cow::Borrowed),
        unacknowledged: bulk.unacknowledged,
    };
    let mut body = Builder::new();
    body.string(first.form.name(), namespace.collection);
    for field in bulk.body.elements().skip(1) {
        let field = field?;
        match field.name {
            b"ops" | b"nsInfo" | b"cursor" | b"errorsOnly" | b"maxTimeMS" | b"$db" => {}
            b"let" if first.form == Form::Insert => {}
            // A transaction begins once.
            b"startTransaction" | b"readConcern" if bulk.in_transaction && run.start > 0 => {}
            _ => part.append(&field, &mut body),
        }
    }
    body.elements_where(namespace.entry, |field| field.name != b"ns")?;
    if let Some(time_ms) = time_ms {
        body.int32("maxTimeMS", time_ms);
    }
    part.append_numbers(&mut body);
    body.string("$db", namespace.database);
    Ok(body.finish())
}

#[cfg(test)]
mod tests {
    use bson::spec::BinarySubtype;
    use bson::{Binary, Document, doc};

    use super::*;
    use crate::wire::{Draft, OpMsg};

    /// The body of the part of the `update` with these fields at `position`, with these new fields.
    fn part(fields: Document, position: usize, new: &NewFields<'_>) -> Document {
        let update = doc! { "q": {}, "u": { "$set": { "a": 1 } } };
        let mut command = doc! { "update": "c", "updates": [update.clone(), update] };
        command.extend(fields);
        let bytes = command.to_vec().unwrap();
        let frame = Draft::of_body(&bytes).frame(0, 0).unwrap().to_vec();
        let message = OpMsg::parse(&frame).unwrap();
        let command = BatchCommand::parse(&message, "updates").unwrap();
        let part = of_part(&command, "updates", std::iter::once(position), new).unwrap();
        Document::from_reader(part.as_slice()).unwrap()
    }

    fn session() -> Document {
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![7; 16],
        };
        doc! { "lsid": { "id": id }, "txnNumber": 4_i64 }
    }

    fn with(mut fields: Document, others: Document) -> Document {
        fields.extend(others);
        fields
    }

    #[test]
    fn a_part_keeps_the_other_fields_and_states_only_numbers_that_the_server_would_change() {
        let times = Times::default();
        let fields = with(
            session(),
            doc! { "let": { "v": 1 }, "maxTimeMS": 50, "apiStrict": true },
        );
        let whole = with(doc! { "update": "c" }, fields.clone());
        assert_eq!(part(fields.clone(), 0, &NewFields::times(&times)), whole);
        let mut renumbered = with(whole, doc! { "stmtIds": [1] });
        renumbered.remove("apiStrict");
        assert_eq!(part(fields, 1, &NewFields::times(&times)), renumbered);
    }

    #[test]
    fn new_fields_take_the_place_of_the_clients() {
        let times = Times::default();
        let new = NewFields {
            acknowledged: Some(Acknowledged::ByMajority),
            time: Some(Duration::from_millis(20)),
            times: &times,
        };
        let majority = doc! { "update": "c", "writeConcern": { "w": "majority" }, "maxTimeMS": 20 };
        for concern in [doc! { "w": 0, "j": false }, doc! { "w": 1, "wtimeout": 9 }] {
            let fields = doc! { "writeConcern": concern, "maxTimeMS": 50 };
            assert_eq!(part(fields, 0, &new), majority);
        }
        let unacknowledged = doc! { "writeConcern": { "w": 0 } };
        let acknowledged = doc! { "update": "c", "writeConcern": { "w": 1 } };
        assert_eq!(part(unacknowledged, 0, &NewFields::times(&times)), acknowledged);
    }
}
