//! An `insert`, `update`, `delete` or `findAndModify` as the client sent it, read as far as enforcing constraints needs
//! it.
//!
//! Everything else in the body is the server's business and goes to it unchanged. What the server would refuse because
//! of its shape is refused here with the server's code: batches are carried out in parts, so the server wouldn't see
//! the mistake in the whole.

use std::time::Duration;

use bson::spec::ElementType;

use crate::raw::{Doc, Element, Malformed};
use crate::reply::Refusal;
use crate::reservation::Operation;
use crate::wire::{BatchItemError, OpMsg};

/// At most so many documents in one command (`maxWriteBatchSize`).
const BATCH_MAX: usize = 100_000;

/// A client's command.
#[derive(Debug)]
pub struct BatchCommand<'a> {
    /// The body, the batch perhaps in it.
    pub body: Doc<'a>,
    /// The documents to insert, or the statements, in order.
    pub documents: Vec<Doc<'a>>,
    /// Whether nothing after the first failure is attempted.
    pub ordered: bool,
    /// Set if the command is a retryable write.
    pub retry: Option<Retry>,
    /// The client's own limit.
    pub max_time: Option<Duration>,
    /// Whether the client asked not to be told the outcome (`w: 0`).
    pub unacknowledged: bool,
}

/// What a driver's retry of the command would have in common with it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Retry {
    session: [u8; 16],
    txn_number: i64,
    /// The statements' numbers where the client chose them itself.
    statements: Option<Vec<i32>>,
}

impl Retry {
    /// The statement at `position` of the command.
    pub fn operation(&self, position: usize) -> Operation {
        let statement = match &self.statements {
            Some(statements) => statements.get(position).copied().unwrap_or(-1),
            None => i32::try_from(position).unwrap_or(-1),
        };
        Operation {
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
    /// [`Refusal`] if the server would refuse its shape, or if Keyward can't protect it.
    pub fn parse(message: &OpMsg<'a>, field: &'static str) -> Result<Self, Refusal> {
        Self::new(message.body, documents(message, field)?)
    }

    /// Reads a command that is one statement.
    ///
    /// # Errors
    /// [`Refusal`] if the server would refuse its shape.
    pub fn single(body: Doc<'a>) -> Result<Self, Refusal> {
        Self::new(body, vec![body])
    }

    fn new(body: Doc<'a>, documents: Vec<Doc<'a>>) -> Result<Self, Refusal> {
        let field = |name| body.get(name).map_err(malformed);
        Ok(BatchCommand {
            body,
            ordered: field("ordered")?.is_none_or(|ordered| ordered.is_truthy()),
            retry: retry(body, documents.len())?,
            max_time: max_time(field("maxTimeMS")?),
            unacknowledged: is_unacknowledged(field("writeConcern")?)?,
            documents,
        })
    }
}

fn documents<'a>(message: &OpMsg<'a>, field: &'static str) -> Result<Vec<Doc<'a>>, Refusal> {
    let batch = message
        .documents(field)
        .map_err(malformed)?
        .ok_or(Refusal::MissingField(field))?;
    if !batch.is_array() {
        return Err(Refusal::WrongType(field));
    }
    let documents: Result<Vec<Doc<'a>>, BatchItemError> = batch.iter().map_err(malformed)?.collect();
    let documents = documents.map_err(|error| match error {
        BatchItemError::Malformed(error) => malformed(error),
        BatchItemError::Type(_) => Refusal::WrongType(field),
    })?;
    match documents.len() {
        1..=BATCH_MAX => Ok(documents),
        count => Err(Refusal::BatchSize(count)),
    }
}

fn retry(body: Doc<'_>, documents: usize) -> Result<Option<Retry>, Refusal> {
    let Some(txn_number) = body.get("txnNumber").map_err(malformed)? else {
        return Ok(None);
    };
    let lsid = body
        .get("lsid")
        .map_err(malformed)?
        .map(|lsid| lsid.as_document_or_array());
    let id = match lsid.transpose().map_err(malformed)?.flatten() {
        Some(lsid) => lsid.get("id").map_err(malformed)?,
        None => None,
    };
    let session = id.and_then(|id| uuid(&id));
    let (Some(session), Some(txn_number)) = (session, txn_number.as_whole_number()) else {
        // The server refuses both; without them Keyward couldn't recognise the retry.
        return Err(Refusal::WrongType("txnNumber"));
    };
    let statements = match body.get("stmtIds").map_err(malformed)? {
        Some(statements) => Some(numbers(&statements)?),
        None => None,
    };
    if statements
        .as_ref()
        .is_some_and(|statements| statements.len() != documents)
    {
        return Err(Refusal::WrongType("stmtIds"));
    }
    let statements = match (statements, body.get("stmtId").map_err(malformed)?) {
        (None, Some(first)) => {
            let first = first.as_whole_number().and_then(|first| i32::try_from(first).ok());
            let first = first.ok_or(Refusal::WrongType("stmtId"))?;
            Some((0..).map(|offset| first.wrapping_add(offset)).take(documents).collect())
        }
        (statements, _) => statements,
    };
    Ok(Some(Retry {
        session,
        txn_number,
        statements,
    }))
}

/// A binary of subtype 4: int32 length, subtype, 16 bytes.
fn uuid(element: &Element<'_>) -> Option<[u8; 16]> {
    match element.kind {
        ElementType::Binary => element.value.get(5..)?.try_into().ok(),
        _ => None,
    }
}

fn numbers(array: &Element<'_>) -> Result<Vec<i32>, Refusal> {
    let wrong = Refusal::WrongType("stmtIds");
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

fn max_time(element: Option<Element<'_>>) -> Option<Duration> {
    // Zero means none; a value that makes no sense is forwarded and refused by the server.
    let milliseconds = element?
        .as_whole_number()
        .and_then(|number| u64::try_from(number).ok())?;
    (milliseconds > 0).then(|| Duration::from_millis(milliseconds))
}

fn is_unacknowledged(write_concern: Option<Element<'_>>) -> Result<bool, Refusal> {
    let Some(write_concern) = write_concern else {
        return Ok(false);
    };
    let Some(write_concern) = write_concern.as_document_or_array().map_err(malformed)? else {
        return Ok(false);
    };
    let w = write_concern.get("w").map_err(malformed)?;
    Ok(w.is_some_and(|w| w.as_whole_number() == Some(0)))
}

fn malformed(error: Malformed) -> Refusal {
    Refusal::Malformed(error)
}
