//! A Keyward that is told to stop tells drivers to go as a `mongos` does, and lets them finish what they have begun.

use std::time::{Duration, Instant};

use bson::{Document, doc, oid::ObjectId};

use crate::transparent::fake::{FakeMongos, mongos_hello};
use crate::transparent::proxy::Proxy;
use crate::transparent::socket::{Received, Socket, message, ping};

/// Long enough for everything to be served in its first half.
const LONG: Duration = Duration::from_secs(60);

/// A reply of upstream's to the message `id`.
fn reply(body: &Document, flags: u32, answers: i32, id: i32) -> Vec<u8> {
    let mut bytes = message(body, flags, id);
    bytes[8..12].copy_from_slice(&answers.to_le_bytes());
    bytes
}

fn id_of(bytes: &[u8]) -> i32 {
    Received::new(bytes.to_vec()).header.request_id
}

/// A client whose ping has been answered, and its server.
fn connected(proxy: &Proxy, upstream: &FakeMongos) -> (Socket, Socket) {
    let mut client = Socket::open(&proxy.address);
    client.send_command(&ping(), 0);
    let (mut server, asked) = upstream.accept();
    server.send(&reply(&doc! { "ok": 1.0 }, 0, id_of(&asked), 1));
    assert!(client.receive().is_some());
    (client, server)
}

/// Passes the client's command to the server, and its answer back.
fn served(client: &mut Socket, server: &mut Socket, command: &Document, answer: &Document) {
    client.send_command(command, 0);
    let asked = server.receive_bytes().expect("it goes on");
    server.send(&reply(answer, 0, id_of(&asked), 7));
    assert_eq!(client.receive().unwrap().document(), *answer);
}

fn assert_is_drain_error(reply: &Document) {
    assert_eq!(reply.get_i32("code").ok(), Some(91), "{reply}");
    assert_eq!(reply.get_str("codeName").ok(), Some("ShutdownInProgress"));
    assert_eq!(reply.get_f64("ok").ok(), Some(0.0));
    assert!(
        reply
            .get_i64("remainingQuiesceTimeMillis")
            .is_ok_and(|left| left > 0 && left <= 60_000)
    );
    let version = reply.get_document("topologyVersion").unwrap();
    assert!(version.get_object_id("processId").is_ok() && version.get_i64("counter").is_ok());
}

#[test]
fn a_stream_of_handshakes_ends_with_the_news() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let process = ObjectId::new();
    let mut body = mongos_hello();
    body.insert("topologyVersion", doc! { "processId": process, "counter": 0_i64 });
    let mut client = Socket::open(&proxy.address);
    let awaitable = doc! {
        "hello": 1, "topologyVersion": body.get_document("topologyVersion").unwrap().clone(),
        "maxAwaitTimeMS": 10_000_i64, "fromClient": true, "$db": "admin",
    };
    client.send_command(&awaitable, 1 << 16);
    let (mut server, asked) = upstream.accept();
    server.send(&reply(&body, 2, id_of(&asked), 50));
    assert_eq!(client.receive().unwrap().header.request_id, 50);
    proxy.begin_stop(LONG);
    let last = client.receive().unwrap();
    // It stands where the stream's next one would.
    assert_eq!((last.header.response_to, last.flags), (50, 0));
    assert_is_drain_error(&last.document());
    // A counter that goes on from the mongos' own would make its next word, through another Keyward, look old.
    let version = last.document().get_document("topologyVersion").unwrap().clone();
    assert_ne!(version.get_object_id("processId").unwrap(), process);
    assert!(client.is_closed());
    assert!(server.is_closed());
}

#[test]
fn a_handshake_that_waits_or_comes_late_gets_the_news() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let hello = doc! { "hello": 1, "fromClient": true, "$db": "admin" };
    let mut waiting = Socket::open(&proxy.address);
    let id = waiting.send_command(&hello, 0);
    let (_server, _) = upstream.accept();
    let (mut late, _late_server) = connected(&proxy, &upstream);
    let mut legacy = Socket::open(&proxy.address);
    legacy.send_command(&ping(), 0);
    let (mut legacy_server, asked) = upstream.accept();
    legacy_server.send(&reply(&doc! { "ok": 1.0 }, 0, id_of(&asked), 1));
    legacy.receive().unwrap();
    proxy.begin_stop(LONG);
    let answer = waiting.receive().unwrap();
    assert_eq!(answer.header.response_to, id);
    assert_is_drain_error(&answer.document());
    assert!(waiting.is_closed());
    assert_is_drain_error(&late.command(&hello));
    let query = [
        &0_i32.to_le_bytes()[..],
        b"admin.$cmd\0",
        &0_i32.to_le_bytes(),
        &(-1_i32).to_le_bytes(),
        &doc! { "isMaster": 1, "fromClient": true }.to_vec().unwrap(),
    ]
    .concat();
    let header = keyward::wire::Header {
        length: 16 + query.len(),
        request_id: 9,
        response_to: 0,
        op_code: keyward::wire::OpCode::QUERY,
    };
    legacy.send(&[&header.bytes()[..], &query].concat());
    let answer = legacy.receive().unwrap();
    assert_eq!(answer.op_code, keyward::wire::OpCode::REPLY);
    assert_is_drain_error(&answer.document());
}

#[test]
fn what_is_begun_is_finished_and_what_is_quiet_is_closed() {
    let upstream = FakeMongos::start();
    let mut proxy = Proxy::start(&upstream.uri());
    let (mut idle, _idle_server) = connected(&proxy, &upstream);
    let (mut transaction, mut transaction_server) = connected(&proxy, &upstream);
    let (mut cursor, mut cursor_server) = connected(&proxy, &upstream);
    let session = bson::Uuid::new();
    let within = |command: &str| {
        doc! { command: "c", "$db": "d", "lsid": { "id": session }, "txnNumber": 1_i64, "autocommit": false }
    };
    let mut first = within("insert");
    first.insert("startTransaction", true);
    served(&mut transaction, &mut transaction_server, &first, &doc! { "ok": 1.0 });
    let batch = |name: &str, id: i64| doc! { "cursor": { name: [{ "_id": 1 }], "id": id, "ns": "d.c" }, "ok": 1.0 };
    let find = doc! { "find": "c", "$db": "d" };
    served(&mut cursor, &mut cursor_server, &find, &batch("firstBatch", 77));
    let begun = Instant::now();
    proxy.begin_stop(LONG);
    assert!(idle.is_closed());
    assert!(
        begun.elapsed() < Duration::from_secs(15),
        "it needn't wait for the deadline"
    );
    // Both are still there after what was quiet has gone, and go once they are done.
    served(
        &mut transaction,
        &mut transaction_server,
        &within("find"),
        &doc! { "ok": 1.0 },
    );
    served(
        &mut cursor,
        &mut cursor_server,
        &doc! { "getMore": 77_i64, "collection": "c", "$db": "d" },
        &batch("nextBatch", 0),
    );
    served(
        &mut transaction,
        &mut transaction_server,
        &within("commitTransaction"),
        &doc! { "ok": 1.0 },
    );
    assert!(cursor.is_closed());
    assert!(transaction.is_closed());
    proxy.wait();
    assert!(begun.elapsed() < LONG / 2);
}

#[test]
fn late_in_the_drain_new_commands_are_turned_away_and_labelled() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let (mut client, mut server) = connected(&proxy, &upstream);
    let find = doc! { "find": "c", "$db": "d" };
    let open = doc! { "cursor": { "firstBatch": [], "id": 5_i64, "ns": "d.c" }, "ok": 1.0 };
    served(&mut client, &mut server, &find, &open);
    // With no time, all of it is late; what is open keeps the connection until the cut.
    let drain = Duration::from_secs(8);
    let begun = Instant::now();
    proxy.begin_stop(drain);
    let write = doc! { "insert": "c", "documents": [{}], "lsid": 1, "txnNumber": 3_i64, "$db": "d" };
    let refused = loop {
        assert!(begun.elapsed() < drain);
        client.send_command(&write, 0);
        if let Some(refused) = server_or_client(&mut client, &mut server, &open) {
            break refused;
        }
    };
    // Until half of the time is over it is served, as by a mongos.
    assert!(begun.elapsed() >= drain / 2, "{:?}", begun.elapsed());
    assert_is_drain_error(&refused);
    assert_eq!(
        refused.get_array("errorLabels").unwrap(),
        &["RetryableWriteError".into()]
    );
    let mut first = doc! { "insert": "c", "documents": [{}], "lsid": 1, "txnNumber": 4_i64, "$db": "d" };
    first.extend(doc! { "startTransaction": true, "autocommit": false });
    let refused = client.command(&first);
    assert_eq!(
        refused.get_array("errorLabels").unwrap(),
        &["TransientTransactionError".into()]
    );
    let more = doc! { "getMore": 5_i64, "collection": "c", "$db": "d" };
    served(&mut client, &mut server, &more, &doc! { "ok": 1.0 });
}

/// The client's answer if Keyward itself gives it; if the server is asked, it answers `body`.
fn server_or_client(client: &mut Socket, server: &mut Socket, body: &Document) -> Option<Document> {
    let begun = Instant::now();
    // A busy machine may take long to pass the command on: only what arrives tells who answers.
    while begun.elapsed() < Duration::from_secs(20) {
        if has_arrived(server) {
            let asked = server.receive_bytes().unwrap();
            server.send(&reply(body, 0, id_of(&asked), 9));
            client.receive().unwrap();
            return None;
        }
        if has_arrived(client) {
            return Some(client.receive().unwrap().document());
        }
    }
    panic!("nobody answers");
}

/// Whether something is there to be received, or comes at once.
fn has_arrived(socket: &Socket) -> bool {
    socket.stream.set_read_timeout(Some(Duration::from_millis(20))).unwrap();
    let has_arrived = socket.stream.peek(&mut [0]).is_ok();
    socket.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    has_arrived
}
