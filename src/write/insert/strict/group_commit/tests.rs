//! Tests which insert leads, which joins a group, and which runs alone.

use std::borrow::Cow;
use std::task::Poll;

use futures_util::future::{BoxFuture, FutureExt};
use futures_util::poll;

use super::*;
use crate::metrics::Metrics;
use crate::proxy_collection::Owner;
use crate::reservation::{Token, WriteId};

const COMMITTED: Done = Done::Committed(Vec::new());

fn groups() -> Arc<Groups> {
    Arc::new(Groups::new(Metrics::new(&[]).group_commit))
}

fn terms(name: &str) -> GroupTerms {
    name.as_bytes().into()
}

fn member(bytes: usize) -> Member {
    let token = Token {
        write: WriteId(rand::random()),
        position: 0,
        retry_id: None,
    };
    let owner = Owner {
        id: bson::RawBson::Int32(1),
        route: None,
    };
    let document = Cow::Owned(vec![0; bytes]);
    Member {
        candidates: vec![Candidate::of_keys(token, document, owner, Vec::new())],
        record: None,
        time: Times::default(),
    }
}

/// Enters a group, and waits as long as the insert has to.
async fn enter(groups: &Arc<Groups>, bytes: usize) -> (BoxFuture<'static, GroupTurn>, Option<GroupTurn>) {
    let groups = groups.clone();
    let mut turn = async move { groups.enter(terms("a"), || member(bytes)).await }.boxed();
    match poll!(turn.as_mut()) {
        Poll::Ready(now) => (turn, Some(now)),
        Poll::Pending => (turn, None),
    }
}

/// Starts the highest possible number of groups.
async fn leads(groups: &Arc<Groups>) -> Vec<Lead> {
    let mut leads = Vec::new();
    for _ in 0..AT_ONCE {
        leads.push(lead(groups).await);
    }
    leads
}

async fn lead(groups: &Arc<Groups>) -> Lead {
    match enter(groups, 0).await.1 {
        Some(GroupTurn::Lead(lead)) => lead,
        turn => panic!("{turn:?}"),
    }
}

#[tokio::test]
async fn an_insert_that_arrives_during_a_commit_joins_the_next_group() {
    let groups = groups();
    let mut first = leads(&groups).await;
    assert!(first[0].take_members().0.is_empty());
    let waiting = [
        enter(&groups, 0).await,
        enter(&groups, 0).await,
        enter(&groups, 0).await,
    ];
    let [(leader, None), (gone, None), (taken, None)] = waiting else {
        panic!("somebody didn't wait");
    };
    // Other terms have other groups.
    let other = groups.enter(terms("b"), || panic!("nobody is there")).await;
    assert!(matches!(other, GroupTurn::Lead(_)));
    drop(gone);
    drop(first.pop());
    let GroupTurn::Lead(mut leads) = leader.await else {
        panic!("nobody leads");
    };
    let (members, others) = leads.take_members();
    assert_eq!(members.len(), 1);
    leads.note(&COMMITTED, 2);
    let counts = &groups.counts;
    let counts = [&counts.transactions, &counts.inserts, &counts.failed];
    assert_eq!(counts.map(prometheus::IntCounter::get), [1, 2, 0]);
    others.resolve(&Done::Committed(vec![7]));
    assert!(matches!(taken.await, GroupTurn::Done(Done::Committed(reply)) if reply == [7]));
}

#[tokio::test]
async fn a_leader_that_has_gone_is_followed_by_the_next() {
    let groups = groups();
    let mut first = leads(&groups).await;
    let (gone, _) = enter(&groups, 0).await;
    let (next, _) = enter(&groups, 0).await;
    drop(first.pop());
    // The insert was to lead, but its client had gone.
    drop(gone);
    assert!(matches!(next.await, GroupTurn::Lead(_)));
    // As many groups as before may be under way.
    let _last = lead(&groups).await;
    assert!(enter(&groups, 0).await.1.is_none());
}

#[tokio::test]
async fn a_member_of_a_lost_leaders_group_is_in_doubt() {
    let groups = groups();
    let mut first = leads(&groups).await;
    let (leader, _) = enter(&groups, 0).await;
    let (taken, _) = enter(&groups, 0).await;
    drop(first.pop());
    let GroupTurn::Lead(mut leads) = leader.await else {
        panic!("nobody leads");
    };
    drop(leads.take_members());
    assert!(matches!(taken.await, GroupTurn::InDoubt));
}

#[tokio::test]
async fn a_group_has_an_end() {
    let groups = groups();
    let mut first = leads(&groups).await;
    let large = MOST.bytes / 2 + 1;
    let waiting = [
        enter(&groups, large).await,
        enter(&groups, 0).await,
        enter(&groups, large).await,
    ];
    let [(leader, _), _, (rest, _)] = waiting;
    drop(first.pop());
    let GroupTurn::Lead(mut leads) = leader.await else {
        panic!("nobody leads");
    };
    assert_eq!(leads.take_members().0.len(), 1);
    drop(leads);
    assert!(matches!(rest.await, GroupTurn::Lead(_)));
}

#[tokio::test]
async fn after_groups_that_came_to_nothing_more_and_more_go_alone() {
    let groups = groups();
    let (first, _) = ALONE;
    let _other = lead(&groups).await;
    for alone in [first, 2 * first, 4 * first] {
        lead(&groups).await.note(&Done::Nothing, 2);
        for _ in 0..alone {
            assert!(matches!(enter(&groups, 0).await.1, Some(GroupTurn::Alone)));
        }
    }
    lead(&groups).await.note(&COMMITTED, 2);
    lead(&groups).await.note(&Done::Nothing, 2);
    for _ in 0..first {
        assert!(matches!(enter(&groups, 0).await.1, Some(GroupTurn::Alone)));
    }
    lead(&groups).await;
}

#[tokio::test]
async fn an_insert_that_waits_too_long_runs_alone() {
    let groups = groups();
    let mut first = leads(&groups).await;
    let (patient, _) = enter(&groups, 0).await;
    assert!(matches!(patient.await, GroupTurn::Alone));
    drop(first.pop());
    // Its lead neither waits for it nor inserts it any more.
    assert!(lead(&groups).await.take_members().0.is_empty());
}

#[tokio::test]
async fn a_transaction_that_never_ends_is_not_waited_for() {
    let groups = groups();
    let mut all = leads(&groups).await;
    let mut stuck = all.pop().unwrap();
    {
        let stuck = stuck.during(std::future::pending::<()>());
        let mut stuck = std::pin::pin!(stuck);
        assert!(poll!(stuck.as_mut()).is_pending());
        let before = groups.lock()[&terms("a")].last_duration;
        let sleeping = tokio::time::sleep(PATIENCE_MAX - PATIENCE / 2);
        sleeping.await;
        let (waiting, None) = enter(&groups, 0).await else {
            panic!("it didn't wait");
        };
        tokio::time::sleep(PATIENCE / 2).await;
        assert!(poll!(stuck.as_mut()).is_pending());
        // The waiting inserts, and the next ones, run alone: neither in its group nor in one of their own.
        assert!(matches!(waiting.now_or_never(), Some(GroupTurn::Alone)));
        for _ in 0..ALONE.0 {
            assert!(matches!(enter(&groups, 0).await.1, Some(GroupTurn::Alone)));
        }
        let groups = groups.lock();
        let group = &groups[&terms("a")];
        assert_eq!((group.under_way, group.last_duration), (AT_ONCE - 1, before));
    }
    // One further group may be under way instead.
    drop(stuck);
    let _instead = lead(&groups).await;
    assert!(enter(&groups, 0).await.1.is_none());
}

#[tokio::test]
async fn where_transactions_take_long_they_are_waited_for() {
    let groups = groups();
    let _first = lead(&groups).await;
    let patience = |groups: &Groups| groups.lock()[&terms("a")].patience();
    assert_eq!(patience(&groups), PATIENCE);
    for (seconds, waits) in [(2, 4..5), (60, 5..6), (0, 0..1)] {
        let mut slow = lead(&groups).await;
        slow.since -= Duration::from_secs(seconds);
        drop(slow);
        assert!(waits.contains(&patience(&groups).as_secs()), "{seconds}");
    }
}

#[tokio::test]
async fn nothing_is_kept_of_those_who_have_been_there() {
    let groups = groups();
    drop(leads(&groups).await);
    assert!(groups.lock().is_empty());
    for number in 0..=IDLE_MAX {
        match groups.enter(terms(&number.to_string()), || panic!()).await {
            GroupTurn::Lead(lead) => lead.note(&Done::Nothing, 2),
            turn => panic!("{turn:?}"),
        }
    }
    drop(lead(&groups).await);
    assert!(groups.lock().is_empty());
}
