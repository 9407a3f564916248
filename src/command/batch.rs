//! Reads the parts of an `insert`, `update`, `delete` or `findAndModify` that constraints need.
//!
//! Keyward forwards everything else in the body unchanged. If the server would refuse the command's shape, Keyward refuses it
//! with the server's code. Keyward carries out batches in parts, so the server wouldn't see the mistake in the whole.

use std::time::Duration;

use bson::{Decimal128, spec::ElementType};

use super::running::{is_about_running, session_of};
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::reply::WriteRefusal;
use crate::reservation::RetryId;
use crate::wire::{BatchItemError, OpMsg};

/// The most documents in one command (`maxWriteBatchSize`).
pub const BATCH_MAX: usize = 100_000;
/// The most bytes of all copies of the fields beside a command's operations. Each command that Keyward sends for it has a copy. An update, a
/// delete or a strict insert may need a command for each operation. The writes of a `$merge` stay below: 100 operations, and 16 MB beside them.
const COPIES_BYTES_MAX: usize = 2 << 30;

/// A client's command.
#[derive(Debug)]
pub struct BatchCommand<'a> {
    /// The body, which may contain the batch.
    pub body: Doc<'a>,
    /// The documents to insert, or the statements, in order.
    pub documents: Vec<Doc<'a>>,
    /// Whether the command stops at its first failure.
    pub ordered: bool,
    /// The numbers by which a driver's retry is recognised. A statement in a client's transaction has them, too, though no driver repeats it.
    pub retry: Option<Retry>,
    /// The client's own time limit.
    pub max_time: Option<Duration>,
    /// Whether the client asked for no acknowledgement (`w: 0`).
    pub unacknowledged: bool,
}

/// Whether a command must state these numbers of its statements: by default the server numbers them from zero.
pub fn must_be_stated(numbers: &[i32]) -> bool {
    !numbers.iter().copied().eq(0..i32::try_from(numbers.len()).unwrap_or(0))
}

/// The identity that a driver's retry of the command shares with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    session: [u8; 16],
    txn_number: i64,
    /// The statements' numbers, if the client chose them itself.
    statements: Option<Vec<i32>>,
}

impl Retry {
    /// The retry id of the statement at `position` of the command.
    pub fn retry_id(&self, position: usize) -> RetryId {
        let statement = match &self.statements {
            Some(statements) => statements.get(position).copied().unwrap_or(-1),
            None => i32::try_from(position).unwrap_or(-1),
        };
        RetryId {
            session: self.session,
            txn_number: self.txn_number,
            statement,
        }
    }
}

impl<'a> BatchCommand<'a> {
    /// Reads a command whose batch is `field`.
    ///
    /// # Errors
    /// [`WriteRefusal`] if the server would refuse its shape, or if Keyward can't protect it or would have to send too many bytes for it.
    pub fn parse(message: &OpMsg<'a>, field: &'static str) -> Result<Self, WriteRefusal> {
        let documents = documents(message, field, field)?;
        let count = documents.len();
        if !(1..=BATCH_MAX).contains(&count) {
            return Err(WriteRefusal::BatchSize(count));
        }
        let command = Self::new(message.body, documents)?;
        check_copies(count * copied_bytes(message.body, &[field])?, count)?;
        Ok(command)
    }

    /// Reads a command that is one statement.
    ///
    /// # Errors
    /// [`WriteRefusal`] if the server would refuse its shape.
    pub fn single(body: Doc<'a>) -> Result<Self, WriteRefusal> {
        Self::new(body, vec![body])
    }

    /// The retry id of the statement at `position`, if the driver may retry the command.
    pub fn retry_id(&self, position: usize) -> Option<RetryId> {
        self.retry.as_ref().map(|retry| retry.retry_id(position))
    }

    /// Whether it is part of a client's transaction.
    pub fn is_in_transaction(&self) -> Result<bool, Malformed> {
        Ok(self.body.get("autocommit")?.is_some())
    }

    /// The body of an `insert` as a command of a transaction, without documents, time limit and cluster time.
    pub fn insert_body(&self) -> Result<Builder, Malformed> {
        let mut body = Builder::new();
        body.elements_where(self.body, |element| {
            !matches!(element.name, b"documents" | b"maxTimeMS") && !is_about_running(element)
        })?;
        Ok(body)
    }

    fn new(body: Doc<'a>, documents: Vec<Doc<'a>>) -> Result<Self, WriteRefusal> {
        let field = |name| body.get(name).map_err(malformed);
        // The server takes the field for missing, and would run each of Keyward's commands outside a transaction.
        if field("autocommit")?.is_some_and(|autocommit| autocommit.is_nothing()) {
            return Err(WriteRefusal::WrongType("autocommit"));
        }
        Ok(BatchCommand {
            body,
            ordered: field("ordered")?.is_none_or(is_ordered),
            retry: retry(body, documents.len())?,
            max_time: max_time(field("maxTimeMS")?)?,
            unacknowledged: is_unacknowledged(field("writeConcern")?)?,
            documents,
        })
    }
}

/// The documents of the batch `field`, which an error about a wrong type calls `path`.
///
/// # Errors
/// [`WriteRefusal`] if the server would refuse its shape.
pub fn documents<'a>(
    message: &OpMsg<'a>,
    field: &'static str,
    path: &'static str,
) -> Result<Vec<Doc<'a>>, WriteRefusal> {
    let missing = || WriteRefusal::MissingField(format!("{}.{field}", command_name(message.body)));
    let batch = message.documents(field).map_err(malformed)?.ok_or_else(missing)?;
    if !batch.is_array() {
        return Err(WriteRefusal::WrongType(path));
    }
    let documents: Result<Vec<Doc<'a>>, BatchItemError> = batch.iter().map_err(malformed)?.collect();
    documents.map_err(|error| match error {
        BatchItemError::Malformed(error) => malformed(error),
        BatchItemError::Type(_) => WriteRefusal::WrongType(path),
    })
}

/// The bytes of the fields that Keyward copies into each command that it sends for `body`. These are all but the `lists` and the statements'
/// numbers, of which each command has its own.
///
/// # Errors
/// [`WriteRefusal`] if `body` isn't BSON.
pub fn copied_bytes(body: Doc<'_>, lists: &[&str]) -> Result<usize, WriteRefusal> {
    let mut bytes = 0;
    for field in body.elements() {
        let field = field.map_err(malformed)?;
        if field.name != b"stmtIds" && !lists.iter().any(|list| list.as_bytes() == field.name) {
            // Its type and the end of its name have one byte each.
            bytes += 2 + field.name.len() + field.value.len();
        }
    }
    Ok(bytes)
}

/// Checks that copies of `bytes` in all are not too many for a command of `operations`.
///
/// # Errors
/// [`WriteRefusal::TooManyCopies`]: a message of a few megabytes could keep Keyward busy for hours.
pub fn check_copies(bytes: usize, operations: usize) -> Result<(), WriteRefusal> {
    match bytes > COPIES_BYTES_MAX {
        true => Err(WriteRefusal::TooManyCopies { bytes, operations }),
        false => Ok(()),
    }
}

fn command_name(body: Doc<'_>) -> String {
    let first = body.elements().flatten().next();
    first.map_or_else(String::new, |command| {
        String::from_utf8_lossy(command.name).into_owned()
    })
}

fn retry(body: Doc<'_>, documents: usize) -> Result<Option<Retry>, WriteRefusal> {
    let field = |name| {
        let field = body.get(name).map_err(malformed)?;
        Ok::<_, WriteRefusal>(field.filter(|field| !field.is_nothing()))
    };
    // The server refuses faults of the numbers in every command, also in one that no driver retries.
    let all = field("stmtIds")?.map(|all| numbers(&all)).transpose()?;
    if let Some(all) = all.as_ref().filter(|all| all.len() != documents) {
        return Err(WriteRefusal::StatementNumbers {
            numbers: all.len(),
            statements: documents,
        });
    }
    let first = field("stmtId")?;
    if all.is_some() && first.is_some() {
        return Err(WriteRefusal::NumberedTwice);
    }
    let Some(txn_number) = field("txnNumber")? else {
        return Ok(None);
    };
    let session = session_of(body).map_err(malformed)?;
    let (Some(session), Some(txn_number)) = (session, txn_number.as_whole_number()) else {
        // The server refuses both; without them Keyward couldn't recognise the retry.
        return Err(WriteRefusal::WrongType("txnNumber"));
    };
    let statements = match first {
        Some(first) => {
            let first = first.as_whole_number().and_then(|first| i32::try_from(first).ok());
            let first = first.ok_or(WriteRefusal::WrongType("stmtId"))?;
            Some(numbers_from(first, documents))
        }
        None => all,
    };
    check_numbers(statements.as_deref().unwrap_or_default())?;
    Ok(Some(Retry {
        session,
        txn_number,
        statements,
    }))
}

/// The numbers of `count` statements from `first` on.
pub fn numbers_from(first: i32, count: usize) -> Vec<i32> {
    (0..).map(|offset| first.wrapping_add(offset)).take(count).collect()
}

/// The statement numbers of a command.
///
/// # Errors
/// [`WriteRefusal`] if they aren't valid numbers.
pub fn numbers(array: &Element<'_>) -> Result<Vec<i32>, WriteRefusal> {
    let wrong = WriteRefusal::WrongType("stmtIds");
    let Some(array) = array.as_document_or_array().map_err(malformed)? else {
        return Err(wrong);
    };
    let number = |element: Result<Element<'_>, Malformed>| {
        element
            .ok()
            .and_then(|element| i32::try_from(element.as_whole_number()?).ok())
    };
    array.elements().map(number).collect::<Option<Vec<_>>>().ok_or(wrong)
}

/// Checks the statement numbers of a retryable write.
///
/// # Errors
/// [`WriteRefusal::NegativeNumber`]: to a server, -1 means that a statement isn't retryable. It keeps no memory of it, and even carries out one
/// about many documents.
pub fn check_numbers(statements: &[i32]) -> Result<(), WriteRefusal> {
    match statements.iter().any(|number| *number < 0) {
        true => Err(WriteRefusal::NegativeNumber),
        false => Ok(()),
    }
}

/// Whether the batch is ordered. The server refuses a value that isn't a boolean.
pub(super) fn is_ordered(ordered: Element<'_>) -> bool {
    ordered.is_nothing() || ordered.is_truthy()
}

/// The client's limit; zero means none. Keyward doesn't forward the field unchanged, so it refuses values that the server would
/// refuse.
///
/// # Errors
/// [`WriteRefusal`] if the server would refuse it.
pub fn max_time(element: Option<Element<'_>>) -> Result<Option<Duration>, WriteRefusal> {
    let Some(element) = element else { return Ok(None) };
    let number = number(&element).ok_or_else(|| WriteRefusal::MaxTime("maxTimeMS must be a number".to_owned()))?;
    if element.kind == ElementType::Double && (number.is_nan() || number.fract() != 0.0) {
        return Err(WriteRefusal::MaxTime("maxTimeMS has non-integral value".to_owned()));
    }
    let whole = number.round_ties_even() as i64;
    match u32::try_from(whole) {
        Ok(0) => Ok(None),
        Ok(limit) if i32::try_from(limit).is_ok() => Ok(Some(Duration::from_millis(limit.into()))),
        _ => Err(WriteRefusal::MaxTime(format!(
            "{whole} value for maxTimeMS is out of range"
        ))),
    }
}

/// A number of any type, precise enough for a comparison with small whole numbers.
pub fn number(element: &Element<'_>) -> Option<f64> {
    match element.kind {
        ElementType::Double => Some(f64::from_le_bytes(element.value.try_into().ok()?)),
        ElementType::Decimal128 => Decimal128::from_bytes(element.value.try_into().ok()?)
            .to_string()
            .parse()
            .ok(),
        _ => element.as_whole_number().map(|number| number as f64),
    }
}

/// Whether a write concern asks for no acknowledgement. One that asks for the journal is acknowledged whatever its `w` is.
///
/// # Errors
/// [`WriteRefusal`] if it isn't BSON.
pub fn is_unacknowledged(write_concern: Option<Element<'_>>) -> Result<bool, WriteRefusal> {
    let Some(write_concern) = write_concern else {
        return Ok(false);
    };
    let Some(write_concern) = write_concern.as_document_or_array().map_err(malformed)? else {
        return Ok(false);
    };
    for name in ["j", "fsync"] {
        let asked = write_concern.get(name).map_err(malformed)?;
        if asked.is_some_and(|asked| asked.is_truthy()) {
            return Ok(false);
        }
    }
    let w = write_concern.get("w").map_err(malformed)?;
    // The server truncates a fraction.
    Ok(w.and_then(|w| number(&w)).is_some_and(|w| w.trunc() == 0.0))
}

/// The refusal of bytes that aren't BSON.
pub fn malformed(error: Malformed) -> WriteRefusal {
    WriteRefusal::Malformed(error)
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::*;
    use crate::wire::Draft;

    fn limit(value: impl Into<Bson>) -> Result<Option<Duration>, String> {
        let body = doc! { "maxTimeMS": value.into() }.to_vec().unwrap();
        let element = Doc::new(&body).unwrap().get("maxTimeMS").unwrap();
        max_time(element).map_err(|refusal| refusal.to_string())
    }

    #[test]
    fn a_time_limit_is_taken_and_refused_as_the_server_does() {
        let milliseconds = |number| Ok(Some(Duration::from_millis(number)));
        assert_eq!(limit(7), milliseconds(7));
        assert_eq!(limit(i64::from(i32::MAX)), milliseconds(2_147_483_647));
        assert_eq!(limit(Bson::Decimal128("5".parse().unwrap())), milliseconds(5));
        assert_eq!(limit(-0.0), Ok(None));
        assert_eq!(limit("x"), Err("maxTimeMS must be a number".to_owned()));
        assert_eq!(limit(1.5), Err("maxTimeMS has non-integral value".to_owned()));
        assert_eq!(limit(-1), Err("-1 value for maxTimeMS is out of range".to_owned()));
        assert_eq!(
            limit(1_i64 << 31),
            Err("2147483648 value for maxTimeMS is out of range".to_owned())
        );
    }

    /// Neither the batch nor the statements' numbers are copied.
    #[test]
    fn the_fields_beside_many_statements_are_small() {
        let count = 100_000;
        let parse = |bytes: usize| {
            let command = doc! {
                "update": "c", "updates": vec![doc! {}; count], "let": { "v": "x".repeat(bytes) },
                "stmtIds": (0..100_000).collect::<Vec<i32>>(),
            };
            let bytes = command.to_vec().unwrap();
            let frame = Draft::of_body(&bytes).frame(0, 0).unwrap().to_vec();
            let message = OpMsg::parse(&frame).unwrap();
            BatchCommand::parse(&message, "updates").map(|command| command.documents.len())
        };
        assert_eq!(parse(5_000), Ok(count));
        assert_eq!(parse(20_000), Ok(count));
        let refused = parse(22_000);
        assert!(
            matches!(refused, Err(WriteRefusal::TooManyCopies { .. })),
            "{refused:?}"
        );
    }

    #[test]
    fn null_is_no_answer_to_whether_the_order_counts() {
        for (value, expected) in [(Bson::Null, true), (true.into(), true), (false.into(), false)] {
            let body = doc! { "ordered": value }.to_vec().unwrap();
            let element = Doc::new(&body).unwrap().get("ordered").unwrap().unwrap();
            assert_eq!(is_ordered(element), expected);
        }
    }
}
