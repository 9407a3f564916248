//! Checks that the deployment remembers retryable writes, and says so.

use bson::doc;

use super::check::{CheckError, CheckOutcome};
use super::scratch::{DOCUMENTS, Scratch};
use crate::command::filter_rewriting;
use crate::raw::Doc;
use crate::server::driver::names_its_statement;
use crate::upstream::reports_retries;

/// A repeated insert is carried out once, and its reply names the statement (`retriedStmtIds`).
pub async fn insert(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let mut session = scratch.session().await?;
    let h = scratch.places()?.first;
    let number = scratch.next_number();
    let id = format!("retried {number}");
    let insert = doc! { "insert": DOCUMENTS, "documents": [{ "_id": id, "h": h }] };
    let database = scratch.database();
    let asked = reports_retries(&database, session.driver(), &insert, number, scratch.criteria());
    let is_reported = scratch.answered(asked).await?;
    Ok(match is_reported {
        Some(true) => CheckOutcome::passed(),
        Some(false) => CheckOutcome::Failed("the reply to a repeated insert has no retriedStmtIds".to_owned()),
        None => CheckOutcome::Failed("an insert isn't counted".to_owned()),
    })
}

/// The same for a repeated `findAndModify`, which also gives the document of the first try.
pub async fn find_and_modify(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let mut session = scratch.session().await?;
    let h = scratch.places()?.first;
    let number = scratch.next_number();
    let id = format!("modified {number}");
    let insert = doc! { "insert": DOCUMENTS, "documents": [{ "_id": &id, "h": h, "v": 1 }] };
    session.write(insert, scratch.next_number()).await?;
    let change = doc! {
        "findAndModify": DOCUMENTS, "query": { "_id": &id, "h": h }, "update": { "$inc": { "v": 1 } },
    };
    let number = scratch.next_number();
    let first = session.write(change.clone(), number).await?;
    let second = session.write(change, number).await?;
    let values = [&first, &second].map(|answer| answer.reply.get_document("value").ok().cloned());
    if values[0].is_none() || values[0] != values[1] {
        let seen = "a repeated findAndModify doesn't give the document of the first try";
        return Ok(CheckOutcome::Failed(format!("{seen}: {}", second.shown())));
    }
    Ok(CheckOutcome::of(
        second.reply.get_i32("retriedStmtId").ok() == Some(0),
        || "the reply to a repeated findAndModify has no retriedStmtId".to_owned(),
    ))
}

/// A form of a statement that matches nothing still goes to the shard that remembers the statement.
pub async fn probe(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let mut session = scratch.session().await?;
    for h in [scratch.places()?.first, scratch.places()?.second] {
        for names_shard_key in [true, false] {
            let number = scratch.next_number();
            let id = format!("probed {number}");
            let insert = doc! { "insert": DOCUMENTS, "documents": [{ "_id": &id, "h": h, "v": 1 }] };
            session.write(insert, number).await?;
            let query = match names_shard_key {
                true => doc! { "_id": &id, "h": h },
                false => doc! { "_id": &id },
            };
            let number = scratch.next_number();
            let update = |query| doc! { "update": DOCUMENTS, "updates": [{ "q": query, "u": { "$set": { "v": 2 } } }] };
            let first = session.write(update(query.clone()), number).await?;
            if !first.is_ok() || first.reply.get_i32("n").ok() != Some(1) {
                return Ok(CheckOutcome::Failed(format!("an update by {query}: {}", first.shown())));
            }
            let answer = session.write(update(nothing(&query)?), number).await?;
            if !names_its_statement(&answer.reply) {
                let by = query.keys().map(String::as_str).collect::<Vec<_>>().join(" and ");
                let seen = format!("a probe by {by} that matches nothing doesn't reach the record of the statement");
                return Ok(CheckOutcome::Failed(seen));
            }
        }
    }
    Ok(CheckOutcome::passed())
}

fn nothing(query: &bson::Document) -> Result<bson::Document, CheckError> {
    let unexpected = |_| CheckError::Unexpected("a query can't be encoded".to_owned());
    let bytes = query.to_vec().map_err(unexpected)?;
    let rewritten = Doc::new(&bytes).and_then(filter_rewriting::nothing);
    let rewritten = rewritten.map_err(|_| CheckError::Unexpected("a query can't be read".to_owned()))?;
    bson::Document::from_reader(rewritten.as_slice()).map_err(unexpected)
}
