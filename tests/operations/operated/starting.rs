//! A Keyward renews its entry while it starts: reading the documents can take longer than the entry vouches for it.

use std::time::{Duration, Instant};

use bson::doc;
use testbed::ReplicaSet;

use crate::operated::rejoined::entries;
use crate::operated::rolled::user;
use testkit::keyward::{Keyward, PATIENCE};

#[test]
fn an_entry_is_renewed_while_the_documents_are_read() {
    let set = ReplicaSet::alone().unwrap();
    let database = "starting";
    set.run(database, doc! { "insert": "users", "documents": [user(1, "x")] })
        .unwrap();
    // They can't be read until this is lifted: there is no primary, as the server reports.
    let unread = doc! { "failCommands": ["find"], "namespace": format!("{database}.users"), "errorCode": 189 };
    let unread = set.fail_point("failCommand", "alwaysOn", unread).unwrap();
    let before: Vec<_> = entries(&set)
        .iter()
        .map(|entry| entry.get_object_id("_id").unwrap())
        .collect();
    let uri = set.uri();
    std::thread::scope(|scope| {
        let starting = scope.spawn(move || {
            let constraints = format!("[{{ collection: {database}.users, key: {{ z: 1 }} }}]");
            let settings = format!("upstream: {uri}\nreload_interval: 0s\nconstraints: {constraints}\n");
            // Makes an entry vouch for 3 s instead of 30.
            Keyward::of_in(&settings, &[("KEYWARD_REGISTER_HASTE", "10")])
        });
        // More often than fits into one of its terms.
        let is_renewed = || {
            let entries = entries(&set);
            let mut new = entries
                .iter()
                .filter(|entry| !before.contains(&entry.get_object_id("_id").unwrap()));
            new.any(|entry| entry.get_i64("beat").unwrap() > 10)
        };
        let deadline = Instant::now() + PATIENCE;
        while !is_renewed() {
            assert!(Instant::now() < deadline, "the entry is not renewed");
            std::thread::sleep(Duration::from_millis(20));
        }
        assert!(!starting.is_finished());
        drop(unread);
        let keyward = starting.join().unwrap();
        keyward.insert_once_permitted(database, user(2, "y")).unwrap();
        assert_eq!(keyward.insert_once_permitted(database, user(3, "x")), Err(11000));
    });
}
