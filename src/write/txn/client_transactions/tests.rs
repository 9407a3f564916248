//! Tests which transactions may go on, and which are committed.

use super::*;

fn id(number: i64) -> TransactionId {
    TransactionId {
        session: [7; 16],
        number,
    }
}

/// Starts the transaction, and the server carries it out.
fn start(transactions: &ClientTransactions, id: TransactionId) {
    transactions.begin(id, true);
    transactions.note_started(id);
}

#[test]
fn a_start_counts_once_the_server_has_carried_it_out() {
    let transactions = ClientTransactions::default();
    transactions.begin(id(1), true);
    transactions.enter(id(1), true).unwrap().finish();
    let refused = transactions.enter(id(1), false).unwrap_err();
    assert_eq!(refused, WriteRefusal::NoSuchTransaction { number: 1 });
    assert!(transactions.go_on(id(1), false).is_err());
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Unseen);
    transactions.note_started(id(2));
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Unseen);
    transactions.note_started(id(1));
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Forward);
}

#[test]
fn a_transaction_is_committed_once_all_of_it_is_at_its_end() {
    let transactions = ClientTransactions::default();
    start(&transactions, id(1));
    let (first, second) = (
        transactions.enter(id(1), false).unwrap(),
        transactions.enter(id(1), false).unwrap(),
    );
    first.finish();
    second.finish();
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Forward);
    // A driver's retry.
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Forward);
    // A statement after the commit would take effect without its reservations.
    assert_eq!(transactions.enter(id(1), false).unwrap_err(), WriteRefusal::Committed);
}

/// A server lets the number of an aborted transaction start again, also through another Keyward.
#[test]
fn an_aborted_transaction_is_not_committed_unseen() {
    let transactions = ClientTransactions::default();
    transactions.note_aborted(id(1));
    start(&transactions, id(1));
    assert!(
        transactions.go_on(id(1), false).is_ok(),
        "no transaction was aborted before"
    );
    transactions.note_aborted(id(2));
    assert!(transactions.go_on(id(1), false).is_ok(), "that was another one");
    transactions.note_aborted(id(1));
    let refused = transactions.enter(id(1), false).unwrap_err();
    assert_eq!(refused, WriteRefusal::NoSuchTransaction { number: 1 });
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Unseen);
    // One with an interrupted statement is never committed.
    start(&transactions, id(2));
    transactions.enter(id(2), false).unwrap().break_off();
    transactions.note_aborted(id(2));
    assert_eq!(transactions.decide_commit(id(2)), CommitDecision::Refuse);
}

#[test]
fn nothing_is_written_behind_a_commit_that_came_first() {
    let transactions = ClientTransactions::default();
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Unseen);
    transactions.shut_out(id(1));
    start(&transactions, id(1));
    let refused = transactions.enter(id(1), false).unwrap_err();
    assert_eq!(refused, WriteRefusal::NoSuchTransaction { number: 1 });
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Unseen);
    start(&transactions, id(2));
    assert_eq!(transactions.decide_commit(id(2)), CommitDecision::Forward);
}

#[test]
fn what_was_refused_once_is_refused_for_good() {
    let transactions = ClientTransactions::default();
    start(&transactions, id(1));
    let under_way = transactions.enter(id(1), false).unwrap();
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Refuse);
    under_way.finish();
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Refuse);
}

#[test]
fn what_began_before_a_change_is_refused_when_that_is_asked_for() {
    let transactions = ClientTransactions::default();
    start(&transactions, id(1));
    let other = TransactionId {
        session: [8; 16],
        number: 1,
    };
    start(&transactions, other);
    transactions.note_change();
    assert_eq!(transactions.decide_commit(other), CommitDecision::Forward);
    transactions.refuse_older();
    // Its commit may not have reached the server.
    assert_eq!(transactions.decide_commit(other), CommitDecision::Unseen);
    let refused = transactions.enter(id(1), false).unwrap_err();
    assert_eq!(refused, WriteRefusal::NoSuchTransaction { number: 1 });
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Refuse);
    start(&transactions, id(2));
    assert_eq!(transactions.decide_commit(id(2)), CommitDecision::Forward);
}

#[test]
fn what_was_broken_off_is_never_committed() {
    let transactions = ClientTransactions::default();
    start(&transactions, id(1));
    let _ = transactions.enter(id(1), false).unwrap();
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Refuse);
    // The repeated start changes nothing.
    start(&transactions, id(1));
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Refuse);
    // The session's next transaction can be committed.
    start(&transactions, id(2));
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Unseen);
    transactions.enter(id(2), false).unwrap().break_off();
    assert!(transactions.enter(id(2), false).is_err());
    assert_eq!(transactions.decide_commit(id(2)), CommitDecision::Refuse);
    start(&transactions, id(3));
    assert_eq!(transactions.decide_commit(id(3)), CommitDecision::Forward);
}

#[test]
fn of_what_began_elsewhere_nobody_knows() {
    let transactions = ClientTransactions::default();
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Unseen);
    assert!(transactions.enter(id(1), false).is_err());
    start(&transactions, id(3));
    assert!(transactions.enter(id(4), false).is_err());
    assert_eq!(transactions.decide_commit(id(4)), CommitDecision::Unseen);
}

#[test]
fn what_began_long_ago_is_forgotten() {
    let transactions = ClientTransactions::default();
    start(&transactions, id(1));
    transactions.forget(Instant::now() + MEMORY_OF_COMMITTED);
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Forward);
    transactions.forget(Instant::now() + MEMORY_OF_COMMITTED);
    assert_eq!(transactions.decide_commit(id(1)), CommitDecision::Unseen);
    start(&transactions, id(2));
    transactions.forget(Instant::now() + MEMORY);
    assert_eq!(transactions.decide_commit(id(2)), CommitDecision::Unseen);
}

#[test]
fn a_transaction_that_goes_on_is_remembered() {
    let transactions = ClientTransactions::default();
    start(&transactions, id(1));
    let long_ago = Instant::now().checked_sub(MEMORY).unwrap();
    let set_back = || transactions.by_session.get_mut(&id(1).session).unwrap().at = long_ago;
    set_back();
    assert!(transactions.go_on(id(1), false).is_ok());
    transactions.forget(Instant::now());
    assert_eq!(transactions.by_session.len(), 1);
    set_back();
    assert!(transactions.go_on(id(2), false).is_err());
    transactions.forget(Instant::now());
    assert_eq!(transactions.by_session.len(), 0);
}

#[test]
fn no_more_are_remembered_than_there_can_be() {
    let transactions = ClientTransactions::default();
    for session in 0..=SESSIONS_MAX as u128 {
        let session = session.to_le_bytes();
        transactions.begin(TransactionId { session, number: 1 }, false);
    }
    assert_eq!(transactions.by_session.len(), SESSIONS_MAX / 2);
    for session in 0..=SESSIONS_MAX as u128 {
        let session = session.to_be_bytes();
        transactions.begin(TransactionId { session, number: 1 }, true);
    }
    assert_eq!(transactions.by_session.len(), SESSIONS_MAX);
    // The sessions that are remembered may begin further transactions.
    let first = TransactionId {
        session: [0; 16],
        number: 2,
    };
    start(&transactions, first);
    assert_eq!(transactions.decide_commit(first), CommitDecision::Forward);
    transactions.forget(Instant::now() + TRANSACTION_LIFE);
    assert_eq!(transactions.by_session.len(), 0);
}
