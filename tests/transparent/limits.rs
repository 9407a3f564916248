//! What clients can use up has limits, and who goes past one is told so and harms nobody else.

use std::io::Write;
use std::time::{Duration, Instant};

use bson::{Binary, doc, spec::BinarySubtype};
use keyward::limits::Limits;
use keyward::wire::{Header, OpCode};
use mongodb::Client;
use testbed::ReplicaSet;

use crate::proxy::Proxy;
use crate::socket::{Socket, message, ping};

const SHORT: Duration = Duration::from_millis(300);

fn limited(change: impl Fn(&mut Limits)) -> Proxy {
    let mut limits = Limits::default();
    change(&mut limits);
    Proxy::with_limits(&ReplicaSet::shared().uri(), limits)
}

/// A ping with `bytes` more in it.
fn large_ping(bytes: usize) -> Vec<u8> {
    let mut command = ping();
    let blob = Binary {
        subtype: BinarySubtype::Generic,
        bytes: vec![7; bytes],
    };
    command.insert("comment", blob);
    message(&command, 0, 5)
}

#[test]
fn who_says_nothing_or_stops_midway_is_sent_away() {
    let proxy = limited(|limits| {
        limits.handshake_timeout = SHORT;
        limits.message_timeout = SHORT;
    });
    assert!(Socket::open(&proxy.address).is_closed());
    let mut half = Socket::open(&proxy.address);
    half.send(&message(&ping(), 0, 1)[..20]);
    assert!(half.is_closed());
    let mut later = Socket::open(&proxy.address);
    later.command(&ping());
    later.send(&message(&ping(), 0, 1)[..20]);
    assert!(later.is_closed());
    // Who is slow, but goes on, isn't.
    let mut slow = Socket::open(&proxy.address);
    slow.command(&ping());
    for byte in message(&ping(), 0, 1).chunks(8) {
        slow.send(byte);
        std::thread::sleep(SHORT / 3);
    }
    assert!(slow.receive().is_some());
}

#[test]
fn idle_connections_are_closed_where_that_is_asked_for() {
    let proxy = limited(|limits| limits.idle_timeout = SHORT);
    let mut idle = Socket::open(&proxy.address);
    idle.command(&ping());
    assert!(idle.is_closed());
    let proxy = limited(|limits| limits.message_timeout = SHORT);
    let mut stays = Socket::open(&proxy.address);
    stays.command(&ping());
    std::thread::sleep(SHORT * 3);
    stays.command(&ping());
}

#[test]
fn a_long_message_waits_until_there_is_memory() {
    let proxy = limited(|limits| limits.max_buffered_bytes = 1_500_000);
    let mut hoarder = Socket::open(&proxy.address);
    hoarder.command(&ping());
    let large = large_ping(1_000_000);
    hoarder.send(&large[..900_000]);
    let mut waiting = Socket::open(&proxy.address);
    waiting.command(&ping());
    let mut other = waiting.stream.try_clone().unwrap();
    let whole = large.clone();
    let sending = std::thread::spawn(move || other.write_all(&whole).unwrap());
    waiting.stream.set_read_timeout(Some(SHORT)).unwrap();
    assert!(waiting.stream.peek(&mut [0]).is_err(), "there is no memory for it");
    // Small ones go on meanwhile.
    let mut small = Socket::open(&proxy.address);
    assert_eq!(small.command(&ping()).get_f64("ok").ok(), Some(1.0));
    waiting.stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    drop(hoarder);
    assert!(waiting.receive().is_some());
    sending.join().unwrap();
}

#[test]
fn a_slow_reader_holds_up_nobody_else() {
    let set = ReplicaSet::shared();
    let proxy = limited(|_| {});
    let blob = "x".repeat(1_000_000);
    for n in 0..30 {
        let insert = doc! { "insert": "slow", "documents": [{ "_id": n, "blob": blob.as_str() }] };
        set.run("limits", insert).unwrap();
    }
    let find = doc! { "find": "slow", "$db": "limits", "batchSize": 15 };
    let mut readers: Vec<Socket> = (0..20).map(|_| Socket::open(&proxy.address)).collect();
    for reader in &mut readers {
        reader.send_command(&find, 0);
    }
    let begun = Instant::now();
    let mut client = Socket::open(&proxy.address);
    for _ in 0..200 {
        client.command(&ping());
    }
    assert!(begun.elapsed() < Duration::from_secs(10));
    // Slow, but not forgotten.
    assert!(readers.pop().unwrap().receive().is_some());
}

#[tokio::test(flavor = "multi_thread")]
async fn who_has_not_authenticated_may_send_little() {
    let set = tokio::task::spawn_blocking(|| {
        ReplicaSet::builder("limited")
            .root_user("root", "secret")
            .start()
            .unwrap()
    });
    let set = set.await.unwrap();
    let uri = set.uri();
    let proxy = tokio::task::spawn_blocking(move || Proxy::start(&uri)).await.unwrap();
    let address = proxy.address.clone();
    let refused = tokio::task::spawn_blocking(move || {
        let large = large_ping(100_000);
        let first = Header::read(&large).unwrap().unwrap();
        let mut replies = Vec::new();
        for after_ping in [false, true] {
            let mut socket = Socket::open(&address);
            if after_ping {
                socket.command(&ping());
            }
            let _ = socket.stream.write_all(&large);
            let reply = socket.receive().unwrap();
            assert_eq!(
                (reply.header.response_to, reply.op_code),
                (first.request_id, OpCode::MSG)
            );
            assert!(socket.is_closed());
            replies.push(reply.document());
        }
        replies
    });
    for reply in refused.await.unwrap() {
        assert_eq!(reply.get_i32("code").ok(), Some(13), "{reply}");
        assert!(reply.get_str("errmsg").unwrap().contains("65536 bytes"), "{reply}");
    }
    for mechanism in ["SCRAM-SHA-1", "SCRAM-SHA-256"] {
        let uri = format!("mongodb://root:secret@{}/?authMechanism={mechanism}", proxy.address);
        let client = Client::with_uri_str(uri).await.unwrap();
        let blobs = client.database("limits").collection("blobs");
        blobs.insert_one(doc! { "blob": "x".repeat(1_000_000) }).await.unwrap();
    }
    tokio::task::spawn_blocking(|| drop((proxy, set))).await.unwrap();
}

#[test]
fn without_an_upstream_the_time_to_wait_can_be_set() {
    let nobody = std::net::TcpListener::bind("127.0.0.1:0")
        .unwrap()
        .local_addr()
        .unwrap();
    let limits = Limits {
        upstream_timeout: SHORT,
        ..Limits::default()
    };
    let proxy = Proxy::with_limits(&format!("mongodb://{nobody}/"), limits);
    let reply = Socket::open(&proxy.address).command(&ping());
    assert!(reply.get_str("errmsg").unwrap().contains("within 300ms"), "{reply}");
}
