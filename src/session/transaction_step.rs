//! Reads from the reply to a forwarded command of a client's transaction whether the transaction has begun, or is over.

use crate::raw::{Doc, Malformed};
use crate::server::code::NO_SUCH_TRANSACTION;
use crate::server::reply::{code, ends_transaction, is_ok};
use crate::write::TransactionId;

/// Where a command stands in its transaction, if it is the first or the last one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Edge {
    /// It starts the transaction.
    Start,
    /// It commits it.
    Commit,
    /// It aborts it.
    Abort,
}

/// A command of a client's transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TransactionStep {
    /// The transaction.
    pub transaction: TransactionId,
    /// The edge that the command is; `None` if other commands come before and after it.
    pub edge: Option<Edge>,
}

/// A finding about a client's transaction, by the reply to one of its commands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ShownTransaction {
    /// The server has carried out its start.
    Begun(TransactionId),
    /// The server has aborted it. A server lets its number start again, also elsewhere.
    Over(TransactionId),
}

impl TransactionStep {
    /// The finding by the `reply` to the command.
    pub fn shown_by(self, reply: Doc<'_>) -> Result<Option<ShownTransaction>, Malformed> {
        let is_over = match self.edge {
            // A server also refuses the start of a transaction that is open, and leaves it open.
            Some(Edge::Start) => return Ok(self.shown_by_start(is_ok(reply)? && !ends_transaction(reply)?)),
            None => ends_transaction(reply)?,
            // After any other error, the server may have committed it.
            Some(Edge::Commit) => !is_ok(reply)? && code(reply)? == Some(NO_SUCH_TRANSACTION),
            // It counts as aborted since the request.
            Some(Edge::Abort) => false,
        };
        Ok(is_over.then_some(ShownTransaction::Over(self.transaction)))
    }

    /// The same of a long reply, of which it is only known whether it `is_result`. A server may have given a long error before it read the
    /// transaction: it quotes unknown fields.
    pub fn shown_by_long(self, is_result: bool) -> Option<ShownTransaction> {
        self.shown_by_start(is_result && self.edge == Some(Edge::Start))
    }

    fn shown_by_start(self, is_carried_out: bool) -> Option<ShownTransaction> {
        is_carried_out.then_some(ShownTransaction::Begun(self.transaction))
    }
}

#[cfg(test)]
mod tests {
    use bson::{Binary, Document, doc, spec::BinarySubtype};

    use super::*;

    fn transaction() -> TransactionId {
        let id = Binary {
            subtype: BinarySubtype::Uuid,
            bytes: vec![7; 16],
        };
        let body = doc! { "lsid": { "id": id }, "txnNumber": 1_i64 }.to_vec().unwrap();
        TransactionId::of(Doc::new(&body).unwrap()).unwrap()
    }

    fn shown(edge: Option<Edge>, reply: &Document) -> Option<ShownTransaction> {
        let reply = reply.to_vec().unwrap();
        let transaction = transaction();
        let step = TransactionStep { transaction, edge };
        step.shown_by(Doc::new(&reply).unwrap()).unwrap()
    }

    fn error(code: i32) -> Document {
        doc! { "ok": 0.0, "errmsg": "failed", "code": code }
    }

    /// A server aborts a transaction at any error of a statement. Its number may then start again through another Keyward.
    #[test]
    fn an_error_of_a_statement_ends_its_transaction() {
        let over = Some(ShownTransaction::Over(transaction()));
        assert_eq!(shown(None, &doc! { "n": 1, "ok": 1.0 }), None);
        let refused = doc! { "index": 0, "code": 11000, "errmsg": "E11000" };
        assert_eq!(shown(None, &doc! { "n": 0, "writeErrors": [refused], "ok": 1.0 }), over);
        assert_eq!(shown(None, &doc! { "cursor": {}, "nErrors": 0, "ok": 1.0 }), None);
        assert_eq!(shown(None, &doc! { "cursor": {}, "nErrors": 1, "ok": 1.0 }), over);
        for code in [43, 112, 241, 251, 11_000] {
            assert_eq!(shown(None, &error(code)), over, "{code}");
        }
    }

    /// Clients go on in a transaction after such an error, as without Keyward.
    #[test]
    fn an_error_that_may_leave_the_transaction_open_ends_nothing() {
        for code in [13, 50, 59, 263, 11_601, 40_324, 40_415, 51_024] {
            assert_eq!(shown(None, &error(code)), None, "{code}");
        }
        assert_eq!(shown(None, &doc! { "ok": 0.0 }), None);
    }

    #[test]
    fn a_start_is_shown_by_its_success_alone() {
        let begun = Some(ShownTransaction::Begun(transaction()));
        let start = Some(Edge::Start);
        assert_eq!(shown(start, &doc! { "ok": 1.0 }), begun);
        // Such a transaction is open, or was aborted at once.
        assert_eq!(shown(start, &error(117)), None);
        assert_eq!(shown(start, &doc! { "writeErrors": [{}], "ok": 1.0 }), None);
        let transaction = transaction();
        let long = |edge, is_result| TransactionStep { transaction, edge }.shown_by_long(is_result);
        assert_eq!(long(start, true), begun);
        for (edge, is_result) in [(start, false), (None, true), (None, false)] {
            assert_eq!(long(edge, is_result), None);
        }
    }

    #[test]
    fn a_commit_that_finds_no_transaction_shows_its_end() {
        let commit = Some(Edge::Commit);
        assert_eq!(shown(commit, &error(251)), Some(ShownTransaction::Over(transaction())));
        // The server may have committed it.
        for reply in [error(91), error(64), doc! { "ok": 1.0 }] {
            assert_eq!(shown(commit, &reply), None, "{reply}");
        }
        assert_eq!(shown(Some(Edge::Abort), &error(251)), None);
    }
}
