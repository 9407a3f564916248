//! What clients can use up has limits, and who goes past one is told so and harms nobody else.

use std::io::{ErrorKind, Read, Write};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use bson::{Binary, Document, doc, spec::BinarySubtype};
use keyward::limits::Limits;
use keyward::wire::{Draft, Header, OpCode, OutSequence};
use mongodb::Client;
use testbed::ReplicaSet;

use crate::transparent::fake::FakeMongos;
use crate::transparent::forwarding::message_of;
use crate::transparent::proxy::Proxy;
use crate::transparent::socket::{Socket, message, ping};

/// For those who are sent away.
const SHORT: Duration = Duration::from_millis(300);
/// For those who stay: a busy machine holds them up for longer than the short time.
const LONG: Duration = Duration::from_secs(5);

fn limited(change: impl Fn(&mut Limits)) -> Proxy {
    let mut limits = Limits::default();
    change(&mut limits);
    Proxy::with_limits(&ReplicaSet::shared().uri(), limits)
}

/// A ping with `bytes` more in it.
fn large_ping(bytes: usize) -> Vec<u8> {
    large(ping(), bytes)
}

fn large(mut command: Document, bytes: usize) -> Vec<u8> {
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
    let proxy = limited(|limits| limits.message_timeout = SHORT);
    let mut later = Socket::open(&proxy.address);
    later.command(&ping());
    later.send(&message(&ping(), 0, 1)[..20]);
    assert!(later.is_closed());
    // Who is slow, but goes on, isn't.
    let proxy = limited(|limits| limits.message_timeout = LONG);
    let mut slow = Socket::open(&proxy.address);
    slow.command(&ping());
    let begun = Instant::now();
    for byte in message(&ping(), 0, 1).chunks(8) {
        slow.send(byte);
        std::thread::sleep(LONG / 5);
    }
    assert!(begun.elapsed() > LONG);
    assert!(slow.receive().is_some());
}

#[test]
fn idle_connections_are_closed_where_that_is_asked_for() {
    let proxy = limited(|limits| limits.idle_timeout = LONG);
    let mut idle = Socket::open(&proxy.address);
    idle.command(&ping());
    assert!(idle.is_closed());
    let proxy = limited(|limits| limits.message_timeout = LONG);
    let mut stays = Socket::open(&proxy.address);
    stays.command(&ping());
    std::thread::sleep(LONG + SHORT * 2);
    stays.command(&ping());
}

#[test]
fn a_long_message_waits_until_there_is_memory() {
    let proxy = limited(|limits| limits.max_buffered_bytes = 1_500_000);
    let mut hoarder = Socket::open(&proxy.address);
    hoarder.command(&ping());
    let large = large_ping(1_000_000);
    hoarder.send(&large[..900_000]);
    // Otherwise the other client could be the first to get the memory.
    let begun = Instant::now();
    while proxy.metrics.buffered_bytes.get() < 900_000 {
        assert!(
            begun.elapsed() < Duration::from_secs(20),
            "the first client never got its memory"
        );
        std::thread::yield_now();
    }
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

/// More than all buffers on the way of a message can hold.
const FLOOD_BYTES: usize = 45_000_000;

/// A client that has asked something, the fake server's end of its connection, and a long answer under way to it.
fn flooded(upstream: &FakeMongos, proxy: &Proxy) -> (Socket, JoinHandle<(Socket, std::io::Result<()>)>) {
    let mut client = Socket::open(&proxy.address);
    client.send(&message(&ping(), 0, 1));
    let (mut server, _) = upstream.accept();
    let mut reply = message_of(FLOOD_BYTES);
    reply[8..12].copy_from_slice(&1_i32.to_le_bytes());
    server.stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    let flooding = std::thread::spawn(move || {
        let flooded = server.stream.write_all(&reply);
        (server, flooded)
    });
    (client, flooding)
}

fn sending(client: &Socket, bytes: Vec<u8>) -> JoinHandle<std::io::Result<()>> {
    let mut stream = client.stream.try_clone().unwrap();
    stream.set_write_timeout(Some(Duration::from_secs(20))).unwrap();
    std::thread::spawn(move || stream.write_all(&bytes))
}

fn is_late(sent: &std::io::Result<()>) -> bool {
    let kind = sent.as_ref().map_err(std::io::Error::kind);
    matches!(kind, Err(ErrorKind::WouldBlock | ErrorKind::TimedOut))
}

/// Whether a client gets a message through that takes all of the memory but a little.
fn has_room(upstream: &FakeMongos, proxy: &Proxy) -> bool {
    let large = message_of(40_000_000);
    let mut client = Socket::open(&proxy.address);
    client.send(&large);
    let (_server, first) = upstream.accept();
    first == large
}

/// Room for one message of 40 MB and the growth of its buffer.
fn room_for_one(message_timeout: Duration) -> (FakeMongos, Proxy) {
    let upstream = FakeMongos::start();
    let limits = Limits {
        message_timeout,
        max_buffered_bytes: 70_000_000,
        ..Limits::default()
    };
    let proxy = Proxy::with_limits(&upstream.uri(), limits);
    (upstream, proxy)
}

#[test]
fn who_reads_no_replies_does_not_keep_the_memory_for_messages() {
    let refused = large(doc! { "applyOps": [], "$db": "admin" }, 10_000_000);
    // The one can't go on because the server, whose replies back up, doesn't read; the other waits for its turn.
    for held in [message_of(40_000_000), refused] {
        let (upstream, proxy) = room_for_one(SHORT);
        let (client, flooding) = flooded(&upstream, &proxy);
        let sending = sending(&client, held);
        let (server, flooded) = flooding.join().unwrap();
        assert!(!is_late(&flooded), "the connection is kept");
        assert!(has_room(&upstream, &proxy));
        drop((client, server));
        let _ = sending.join().unwrap();
    }
}

#[test]
fn who_reads_none_of_keywards_own_replies_does_not_keep_it_either() {
    let (upstream, proxy) = room_for_one(SHORT);
    let body = ping().to_vec().unwrap();
    let name = vec![b'x'; 1_000_000];
    let sequence = OutSequence {
        name: &name,
        documents: vec![],
    };
    // Is refused with an error that repeats the name.
    let draft = Draft {
        sequences: vec![sequence.clone(), sequence],
        ..Draft::of_body(&body)
    };
    let refused = draft.frame(1, 0).unwrap().to_vec();
    let client = Socket::open(&proxy.address);
    let sent = sending(&client, refused.repeat(100)).join().unwrap();
    assert!(sent.is_err() && !is_late(&sent), "the connection is kept: {sent:?}");
    assert!(has_room(&upstream, &proxy));
}

#[test]
fn who_reads_slowly_or_waits_for_the_server_is_not_sent_away() {
    let held = message_of(40_000_000);
    // The server is at work, and reads nothing meanwhile.
    let (upstream, proxy) = room_for_one(LONG);
    let mut client = Socket::open(&proxy.address);
    client.send(&message(&ping(), 0, 1));
    let (mut server, _) = upstream.accept();
    let sending_held = sending(&client, held.clone());
    std::thread::sleep(LONG + SHORT * 2);
    assert!(server.receive_bytes().as_ref() == Some(&held));
    sending_held.join().unwrap().unwrap();
    // The client takes its time, and holds nothing.
    let (mut client, flooding) = flooded(&upstream, &proxy);
    std::thread::sleep(LONG + SHORT * 2);
    assert_eq!(client.receive_bytes().map(|reply| reply.len()), Some(FLOOD_BYTES));
    flooding.join().unwrap().1.unwrap();
    // It holds something, and takes its time, but goes on.
    let (upstream, proxy) = room_for_one(LONG);
    let (mut client, flooding) = flooded(&upstream, &proxy);
    let sending_held = sending(&client, held.clone());
    let mut part = vec![0; FLOOD_BYTES / 60];
    for _ in 0..60 {
        std::thread::sleep(LONG / 40);
        client.stream.read_exact(&mut part).unwrap();
    }
    let (mut server, flooded) = flooding.join().unwrap();
    flooded.unwrap();
    assert!(server.receive_bytes() == Some(held));
    sending_held.join().unwrap().unwrap();
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
