//! Two clients' commands about one index, through two Keywards at once.

use testkit::relay::{Held, Relay};

use super::*;

/// The `dropIndexes` of the unique index.
fn drop_email() -> Document {
    doc! { "dropIndexes": "users", "index": "email_1" }
}

/// A Keyward whose way to the cluster is `relay`.
fn start_behind(relay: &Relay) -> Keyward {
    Keyward::of(&format!("upstream: {}\nlease: 10s\nconstraints: []\n", relay.uri())).leaving()
}

/// Holds back the next change of the list that comes through `relay`.
fn hold_change(relay: &Relay) -> Held {
    let name = "clientConstraints";
    let length = i32::try_from(name.len() + 1).unwrap().to_le_bytes();
    relay.hold(&[b"\x02update\0", &length[..], name.as_bytes(), b"\0"].concat())
}

/// Otherwise the client has its reply, and nothing holds.
#[test]
fn an_index_made_again_amid_its_drop_stays_a_constraint() {
    const DATABASE: &str = "created_amid_drop";
    shard_users(DATABASE);
    let relay = Relay::start(CLUSTER.router_address());
    let [quick, slow] = [start(), start_behind(&relay)];
    must(&reply(&quick, DATABASE, &create([unique_email()])));
    std::thread::scope(|scope| {
        let held = hold_change(&relay);
        let dropped = scope.spawn(|| reply(&slow, DATABASE, &drop_email()));
        held.wait();
        must(&reply(&quick, DATABASE, &create([unique_email()])));
        drop(held);
        must(&dropped.join().unwrap());
    });
    for keyward in [&quick, &slow] {
        assert_eq!(unique_indexes(keyward, DATABASE), ["email_1"]);
    }
    assert_eq!(insert_pair(&slow, DATABASE, 1, "x"), [Ok(()), Err(11_000)]);
    must(&reply(&slow, DATABASE, &drop_email()));
    assert_eq!(insert_pair(&slow, DATABASE, 3, "y"), [Ok(()), Ok(())]);
}
