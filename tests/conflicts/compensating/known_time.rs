//! What is written once a key is held carries the time that Keyward was told when it reserved the key, through whichever
//! router: no snapshot shows the key's new holder at a time when its reservation isn't there.

use std::sync::{Arc, Mutex};

use bson::{Binary, Document, Timestamp, doc, spec::BinarySubtype};

use crate::compensating::{EMAIL, insert, users};
use testkit::Keyward;
use testkit::relay::Fate;
use testkit::relay::Relay;
use testkit::wire::{BODY, send};

/// What passes a relay: the body of each message, in order.
type Log = Arc<Mutex<Vec<Document>>>;

/// A relay before `target`, and what passes it.
fn relay(target: String) -> (Relay, Log) {
    let log = Log::default();
    let judge = || {
        let log = log.clone();
        move |message: &[u8]| {
            // What isn't an OP_MSG greets.
            if let Ok(body) = Document::from_reader(&message[BODY..]) {
                // A server refuses a field that is there twice; the document just read has it once.
                let once = body.to_vec().unwrap();
                assert!(message[BODY..].starts_with(&once[..4]), "a field twice: {body}");
                log.lock().unwrap().push(body);
            }
            Fate::Passed
        }
    };
    (Relay::judged(target, judge(), judge()), log)
}

fn time_of(message: &Document) -> Timestamp {
    let told = message.get_document("$clusterTime");
    let told = told.unwrap_or_else(|_| panic!("no time: {message}"));
    told.get_timestamp("clusterTime").unwrap()
}

/// The command that is passed on while `command` is carried out, the last of those with this name for this collection.
fn passed_on(log: &Log, keyward: &Keyward, database: &str, command: Document) -> (Document, Timestamp) {
    log.lock().unwrap().clear();
    let name = command.keys().next().unwrap().clone();
    let reply = send(&keyward.address, database, command).unwrap();
    assert_eq!(reply.get_f64("ok").unwrap(), 1.0, "{reply}");
    assert!(!reply.contains_key("writeErrors"), "{reply}");
    let log = log.lock().unwrap();
    let is_it = |message: &&Document| message.get_str(&name).is_ok_and(|name| name == "users");
    let at = log.iter().rposition(|message| is_it(&message)).unwrap();
    let reserves = |message: &Document| {
        let name = message.get_str("insert");
        name.is_ok_and(|name| name == "keyward.users.email_1")
    };
    let reserving = log[..at].iter().position(reserves).unwrap_or(at);
    // The next reply to a write is the reservation's: nothing else is written meanwhile.
    let replies = log[reserving..at].iter();
    let mut times = replies.filter(|message| message.contains_key("n"));
    let reserved = times.next().and_then(|reply| reply.get_timestamp("operationTime").ok());
    (log[at].clone(), reserved.unwrap_or(Timestamp { time: 0, increment: 0 }))
}

/// A time long past, and a client's `$clusterTime` that tells of it.
fn early() -> (Timestamp, Document) {
    let unsigned = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![0; 20],
    };
    let early = Timestamp { time: 1, increment: 1 };
    let known = doc! { "clusterTime": early, "signature": { "hash": unsigned, "keyId": 0_i64 } };
    (early, known)
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_written_is_not_before_its_reservation() {
    let database = "known_time";
    let cluster = users(database);
    let (relay, log) = relay(cluster.router_address());
    let keyward = Keyward::start_with_lease(&relay.uri(), "60s", &EMAIL.replace("DB", database));
    let (early, known) = early();
    let user = |id: i32| doc! { "_id": id, "region": "a", "email": format!("{id}@x") };
    let changed = doc! { "$set": { "email": "changed@x" } };
    let changed_again = doc! { "$set": { "email": "changed again@x" } };
    let plain = doc! { "_id": 1, "region": "a" };
    let commands = [
        insert(vec![user(1)], true),
        insert(vec![user(2), user(3)], false),
        doc! { "update": "users", "updates": [{ "q": &plain, "u": changed }] },
        doc! { "findAndModify": "users", "query": &plain, "update": changed_again },
    ];
    for (nth, command) in commands.into_iter().enumerate() {
        let mut command = command;
        if nth % 2 == 1 {
            command.insert("$clusterTime", known.clone());
        }
        let (forwarded, reserved) = passed_on(&log, &keyward, database, command);
        assert!(reserved > early, "{forwarded}");
        assert!(time_of(&forwarded) >= reserved, "{reserved} {forwarded}");
    }
}

/// A transaction tells with its first command what is known by then.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_begins_after_what_was_reserved() {
    let database = "known_time_within";
    let cluster = users(database);
    let (relay, log) = relay(cluster.router_address());
    let keyward = Keyward::start_with_lease(&relay.uri(), "60s", &EMAIL.replace("DB", database));
    let user = |id: i32| doc! { "_id": id, "region": "a", "email": format!("{id}@x") };
    let (_, reserved) = passed_on(&log, &keyward, database, insert(vec![user(1)], true));
    let bytes = rand::random::<[u8; 16]>().to_vec();
    let lsid = doc! { "id": Binary { subtype: BinarySubtype::Uuid, bytes } };
    let begins = doc! {
        "lsid": lsid, "txnNumber": 1_i64, "startTransaction": true, "autocommit": false, "$clusterTime": early().1,
    };
    let mut first = insert(vec![user(2)], true);
    first.extend(begins.clone());
    passed_on(&log, &keyward, database, first);
    let many = doc! { "q": { "region": "a" }, "u": { "$set": { "email": null } }, "multi": true };
    let many_of_one = doc! { "update": "users", "updates": [many] };
    let begun = |log: &Log| {
        let log = log.lock().unwrap();
        log.iter()
            .find(|message| message.contains_key("startTransaction"))
            .cloned()
    };
    let clients = begun(&log).unwrap();
    assert!(time_of(&clients) >= reserved, "{reserved} {clients}");
    // Of two statements the first one changes no key; the transaction begins with it all the same.
    let one = |change: Document| doc! { "q": { "_id": 2, "region": "a" }, "u": { "$set": change } };
    let updates = vec![one(doc! { "name": "ann" }), one(doc! { "email": "ann@x" })];
    let mut first = doc! { "update": "users", "updates": updates };
    first.extend(begins);
    first.insert("txnNumber", 2_i64);
    passed_on(&log, &keyward, database, first);
    log.lock().unwrap().clear();
    // Refused or not, as another holds a key: it is tried in a transaction of Keyward's own.
    let mut many_of_one = many_of_one;
    many_of_one.insert("maxTimeMS", 1_000);
    send(&keyward.address, database, many_of_one).unwrap();
    let own = begun(&log).unwrap();
    assert!(time_of(&own) >= reserved, "{reserved} {own}");
}
