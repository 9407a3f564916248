//! Reads from the reply to a routed command whether it found its document.

use crate::raw::{Doc, Malformed};
use crate::server::code::{EXCEEDED_TIME_LIMIT, INTERRUPTED, MAX_TIME_MS_EXPIRED};
use crate::server::{cursor, reply};

/// The result that a reply shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RoutedReply {
    /// The document: the reply is complete.
    Document {
        /// Whether the reply leaves a cursor open.
        leaves_cursor: bool,
    },
    /// No document.
    Nothing {
        /// The cursor that the reply leaves open.
        cursor: Option<i64>,
    },
    /// An error that says that the client's time is over, or that the command was ended.
    Ended,
}

/// The result for the document, as `answer` shows it.
pub fn found(answer: Doc<'_>) -> Result<RoutedReply, Malformed> {
    if !reply::is_ok(answer)? {
        let code = reply::code(answer)?.unwrap_or_default();
        return Ok(match code {
            MAX_TIME_MS_EXPIRED | EXCEEDED_TIME_LIMIT | INTERRUPTED => RoutedReply::Ended,
            _ => RoutedReply::Nothing { cursor: None },
        });
    }
    if cursor::is_in(answer)? {
        let cursor = cursor::more(answer)?;
        return Ok(match cursor::batch(answer)?.is_empty() {
            true => RoutedReply::Nothing { cursor },
            false => RoutedReply::Document {
                leaves_cursor: cursor.is_some(),
            },
        });
    }
    let is_counted = answer.whole_number("n")?.is_some_and(|number| number > 0);
    let has_values = answer.nested("values")?.is_some_and(|values| !values.is_empty());
    Ok(match is_counted || has_values {
        true => RoutedReply::Document { leaves_cursor: false },
        false => RoutedReply::Nothing { cursor: None },
    })
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn of(reply: Document) -> RoutedReply {
        found(Doc::new(&reply.to_vec().unwrap()).unwrap()).unwrap()
    }

    #[test]
    fn only_a_document_completes_a_reply() {
        let document = |leaves_cursor| RoutedReply::Document { leaves_cursor };
        let nothing = |cursor| RoutedReply::Nothing { cursor };
        let batch = |id: i64, batch: Vec<Document>| doc! { "cursor": { "firstBatch": batch, "id": id }, "ok": 1 };
        assert_eq!(of(batch(0, vec![doc! {}])), document(false));
        assert_eq!(of(batch(7, vec![doc! {}])), document(true));
        assert_eq!(of(batch(0, vec![])), nothing(None));
        assert_eq!(of(batch(7, vec![])), nothing(Some(7)));
        assert_eq!(of(doc! { "n": 1, "ok": 1 }), document(false));
        assert_eq!(of(doc! { "n": 0, "ok": 1 }), nothing(None));
        assert_eq!(of(doc! { "values": ["a"], "ok": 1 }), document(false));
        assert_eq!(of(doc! { "values": [], "ok": 1 }), nothing(None));
        assert_eq!(of(doc! { "ok": 0, "code": 13 }), nothing(None));
        assert_eq!(of(doc! { "ok": 0, "code": 50 }), RoutedReply::Ended);
    }
}
