//! When nobody is to be waited for any more, one Keyward reads the documents, and the others wait for it; if it is killed, another does.

use bson::doc;
use testbed::ReplicaSet;

use crate::operated::rolled::{is_enforced, readyz, until_ready, user};
use testkit::keyward::Keyward;

/// Makes a claim to a backfill last for 6 s instead of 30.
const HASTE: [(&str, &str); 1] = [("KEYWARD_REGISTER_HASTE", "5")];
const ANOTHER: &str = "reserving: a Keyward reads the documents";

#[test]
fn one_keyward_backfills_for_all_and_another_if_it_is_killed() {
    let set = ReplicaSet::alone().unwrap();
    let database = "backfilled_once";
    let settings = |constraints: &str| {
        let uri = set.uri();
        format!("upstream: {uri}\nlease: 2s\nreload_interval: 0s\nconstraints: {constraints}\n")
    };
    let with = settings(&format!("[{{ collection: {database}.users, key: {{ z: 1 }} }}]"));
    let last = Keyward::of_in(&settings("[]"), &HASTE);
    last.insert_once_permitted(database, user(1, "x")).unwrap();
    let mut keywards: Vec<Keyward> = (0..3).map(|_| Keyward::of_in(&with, &HASTE)).collect();
    for keyward in &keywards {
        assert!(readyz(keyward).contains("reserving: waits for Keyward "));
    }
    // Whoever reads the documents is at it for as long.
    let slow = doc! {
        "failCommands": ["find"], "namespace": format!("{database}.users"), "blockConnection": true, "blockTimeMS": 15_000,
    };
    let slow = set.fail_point("failCommand", "alwaysOn", slow).unwrap();
    last.stop();
    let who_waits = || {
        keywards
            .iter()
            .filter(|keyward| readyz(keyward).contains(ANOTHER))
            .count()
    };
    keywards[0].until("two that wait for one", || who_waits() == 2);
    let reader = keywards.iter().position(|keyward| !readyz(keyward).contains(ANOTHER));
    drop(keywards.remove(reader.unwrap()));
    drop(slow);
    for keyward in &keywards {
        keyward.until("enforced", || is_enforced(keyward, database));
        until_ready(keyward);
        assert_eq!(keyward.insert_once_permitted(database, user(2, "x")), Err(11000));
    }
    let has_enforced = |keyward: &&Keyward| keyward.log().contains("constraint enforced");
    assert_eq!(keywards.iter().filter(has_enforced).count(), 1);
}
