//! Reads from a request what it does to its connection: it may open a cursor, join a transaction, or write.
//!
//! It reads the body's own fields, without allocating, for every message.

use super::transaction_step::{Edge, TransactionStep};
use crate::command::running::is_in_other_session;
use crate::raw::Doc;
use crate::server::reply::{RETRYABLE_WRITE_ERROR, TRANSIENT_TRANSACTION_ERROR};
use crate::wire::Message;
use crate::write::TransactionId;

/// The state of its connection that one request shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RequestContext {
    /// It belongs to a transaction of the client's.
    pub is_in_transaction: bool,
    /// That transaction, if its command identifies it.
    pub transaction: Option<TransactionId>,
    /// It has a number, and is in a session of another kind than those of drivers.
    pub is_in_other_session: bool,
    /// It begins or ends that transaction.
    edge: Option<Edge>,
    /// It continues a cursor, or closes one.
    is_of_cursor: bool,
    /// Its reply may leave a cursor open.
    pub may_leave_cursor: bool,
    /// It may change documents, as far as its name shows, and later its judgement. A change of the constraints waits for its end.
    pub may_write: bool,
    /// Its reply may say that the client is authenticated now.
    pub authenticates: bool,
    /// The connection may belong to another user once it is carried out.
    pub may_change_user: bool,
    /// It has a number by which a driver sends it again.
    has_number: bool,
}

impl RequestContext {
    /// Reads `message`. One that can't be read may change documents.
    pub fn of(message: &Message<'_>) -> RequestContext {
        match message {
            Message::Msg(message) => RequestContext::of_body(message.body),
            Message::Query(query) => RequestContext::of_body(query.command),
        }
    }

    fn of_body(body: Doc<'_>) -> RequestContext {
        let mut request_context = RequestContext {
            may_write: true,
            ..RequestContext::default()
        };
        let mut elements = body.elements().map_while(Result::ok);
        let Some(first) = elements.next() else {
            return request_context;
        };
        match first.name {
            b"find" => {
                request_context.may_write = false;
                request_context.may_leave_cursor = true;
            }
            b"getMore" => {
                request_context.may_write = false;
                request_context.may_leave_cursor = true;
                request_context.is_of_cursor = true;
            }
            b"aggregate" | b"listCollections" | b"listIndexes" | b"bulkWrite" => {
                request_context.may_leave_cursor = true
            }
            b"killCursors" => {
                request_context.may_write = false;
                request_context.is_of_cursor = true;
            }
            // Building an index may take hours, and changes no document.
            b"count" | b"distinct" | b"ping" | b"endSessions" | b"createIndexes" => request_context.may_write = false,
            b"hello" | b"isMaster" | b"ismaster" | b"saslStart" | b"saslContinue" | b"authenticate" => {
                request_context.may_write = false;
                request_context.authenticates = true;
                request_context.may_change_user = true;
            }
            b"logout" => request_context.may_change_user = true,
            b"commitTransaction" => request_context.edge = Some(Edge::Commit),
            b"abortTransaction" => request_context.edge = Some(Edge::Abort),
            _ => {}
        }
        for element in elements {
            match element.name {
                b"autocommit" => request_context.is_in_transaction = !element.is_truthy(),
                b"startTransaction" if element.is_truthy() => request_context.edge = Some(Edge::Start),
                b"txnNumber" => request_context.has_number = true,
                _ => {}
            }
        }
        if request_context.is_in_transaction {
            request_context.transaction = TransactionId::of(body);
        }
        // The server refuses one that can't be read.
        let is_other = || is_in_other_session(body).unwrap_or(false);
        request_context.is_in_other_session = request_context.has_number && is_other();
        request_context
    }

    /// Whether a transaction is open once it has been carried out, as far as it shows.
    pub fn leaves_transaction(&self) -> bool {
        self.is_in_transaction && !self.ends_transaction()
    }

    fn ends_transaction(&self) -> bool {
        matches!(self.edge, Some(Edge::Commit | Edge::Abort))
    }

    /// The transaction that it begins.
    pub fn begins(&self) -> Option<TransactionId> {
        self.transaction.filter(|_| self.edge == Some(Edge::Start))
    }

    /// Its step in its transaction.
    pub fn step(&self) -> Option<TransactionStep> {
        let edge = self.edge;
        self.transaction
            .map(|transaction| TransactionStep { transaction, edge })
    }

    /// The transaction that it aborts.
    pub fn aborts(&self) -> Option<TransactionId> {
        self.transaction.filter(|_| self.edge == Some(Edge::Abort))
    }

    /// Whether a driver sends it again if it gets no reply: a write outside transactions.
    pub fn is_retryable_write(&self) -> bool {
        self.has_number && !self.is_in_transaction
    }

    /// Whether it commits a transaction.
    pub fn commits(&self) -> bool {
        self.edge == Some(Edge::Commit)
    }

    /// Whether it continues what an earlier command began, and so can't be carried out elsewhere.
    pub fn continues_earlier(&self) -> bool {
        self.is_of_cursor || self.is_in_transaction && self.edge != Some(Edge::Start)
    }

    /// The label by which a driver knows what it may repeat if the command is turned away: the command, or its transaction.
    pub fn label(&self) -> Option<&'static str> {
        match (self.is_in_transaction, self.edge) {
            (true, _) if self.ends_transaction() => Some(RETRYABLE_WRITE_ERROR),
            (true, _) => Some(TRANSIENT_TRANSACTION_ERROR),
            (false, _) => self.has_number.then_some(RETRYABLE_WRITE_ERROR),
        }
    }
}

#[cfg(test)]
mod tests {
    use bson::{Binary, Document, doc, spec::BinarySubtype};

    use super::*;

    fn request_context(command: &Document) -> RequestContext {
        let bytes = command.to_vec().unwrap();
        RequestContext::of_body(Doc::new(&bytes).unwrap())
    }

    #[test]
    fn a_transaction_is_open_from_its_first_command_to_its_last() {
        let first =
            doc! { "insert": "c", "lsid": 1, "txnNumber": 1_i64, "startTransaction": true, "autocommit": false };
        let next = doc! { "find": "c", "lsid": 1, "txnNumber": 1_i64, "autocommit": false };
        let last = doc! { "commitTransaction": 1, "lsid": 1, "txnNumber": 1_i64, "autocommit": false };
        let of = |command| {
            let request_context = request_context(command);
            (
                request_context.leaves_transaction(),
                request_context.continues_earlier(),
                request_context.label(),
            )
        };
        assert_eq!(of(&first), (true, false, Some("TransientTransactionError")));
        assert_eq!(of(&next), (true, true, Some("TransientTransactionError")));
        assert_eq!(of(&last), (false, true, Some("RetryableWriteError")));
    }

    #[test]
    fn what_may_be_sent_again_is_labelled() {
        assert_eq!(
            request_context(&doc! { "insert": "c", "txnNumber": 1_i64 }).label(),
            Some("RetryableWriteError")
        );
        assert_eq!(request_context(&doc! { "insert": "c" }).label(), None);
        assert_eq!(request_context(&doc! { "find": "c" }).label(), None);
    }

    /// Its transaction must not be mistaken for the one of the same number in the session of that `id`.
    #[test]
    fn a_session_of_another_kind_has_no_transaction_that_keyward_knows() {
        let uuid = |byte| Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![byte; 16],
        };
        let of = |lsid: Document, more: Document| {
            let mut command = doc! { "find": "c", "lsid": lsid };
            command.extend(more);
            let request_context = request_context(&command);
            (
                request_context.transaction.is_some(),
                request_context.is_in_other_session,
            )
        };
        let (drivers, others) = (doc! { "id": uuid(7) }, doc! { "id": uuid(7), "txnUUID": uuid(8) });
        let within = doc! { "txnNumber": 1_i64, "autocommit": false };
        assert_eq!(of(drivers, within.clone()), (true, false));
        assert_eq!(of(others.clone(), within), (false, true));
        assert_eq!(of(others.clone(), doc! { "txnNumber": 1_i64 }), (false, true));
        // Nothing is known by the session alone.
        assert_eq!(of(others, doc! {}), (false, false));
    }

    #[test]
    fn cursors_go_on_and_writes_may_write() {
        assert!(request_context(&doc! { "getMore": 1_i64, "collection": "c" }).continues_earlier());
        assert!(!request_context(&doc! { "find": "c" }).continues_earlier());
        for (command, may_write) in [
            ("find", false),
            ("insert", true),
            ("aggregate", true),
            ("createIndexes", false),
            ("unheardOf", true),
        ] {
            assert_eq!(
                request_context(&doc! { command: "c" }).may_write,
                may_write,
                "{command}"
            );
        }
    }
}
