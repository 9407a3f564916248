//! Connections that begin and end in unusual ways: other protocols, no upstream, a limit, a stop, a new primary.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use bson::doc;
use keyward::limits::Limits;
use testbed::ReplicaSet;

use crate::transparent::fake::FakeMongos;
use crate::transparent::proxy::Proxy;
use crate::transparent::socket::{Socket, message, ping};

fn answer(address: &str, bytes: &[u8]) -> String {
    let mut stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(Duration::from_secs(20))).unwrap();
    stream.write_all(bytes).unwrap();
    let mut answer = String::new();
    let _ = stream.read_to_string(&mut answer);
    answer
}

#[test]
fn other_protocols_hear_what_mongod_tells_them() {
    let direct = ReplicaSet::shared().addresses().remove(0);
    let proxy = Proxy::start(&ReplicaSet::shared().uri());
    let tls = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03aaaaaaaaaaaaaaaa";
    for bytes in [
        &b"GET / HTTP/1.1\r\n\r\n"[..],
        b"POST / HTTP/1.1\r\n\r\n",
        b"HEAD / HTTP/1.1\r\n\r\n",
        tls,
    ] {
        assert_eq!(answer(&direct, bytes), answer(&proxy.address, bytes));
    }
    assert!(answer(&proxy.address, b"GET / HTTP/1.1\r\n\r\n").contains("native driver port"));
}

#[test]
fn without_an_upstream_the_client_hears_why() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let proxy = Proxy::start(&format!("mongodb://{nobody}/"));
    let mut client = Socket::open(&proxy.address);
    let begun = Instant::now();
    let reply = client.command(&doc! { "hello": 1, "$db": "admin" });
    assert_eq!(reply.get_i32("code").ok(), Some(6));
    assert_eq!(reply.get_str("codeName").ok(), Some("HostUnreachable"));
    assert!(begun.elapsed() < Duration::from_secs(10), "drivers give up after 10 s");
    assert!(client.is_closed());
}

#[test]
fn another_mongos_is_tried_when_one_is_down() {
    let nobody = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&format!("mongodb://{nobody},{}/", upstream.address));
    for _ in 0..4 {
        Socket::open(&proxy.address).send(&message(&ping(), 0, 1));
        let (_, first) = upstream.accept();
        assert_eq!(first, message(&ping(), 0, 1));
    }
}

/// To drivers this is one server: they go on with a cursor, or in a transaction, over any connection to it.
#[test]
fn of_several_mongos_one_has_all_clients() {
    let mongos = [FakeMongos::start(), FakeMongos::start()];
    let proxy = Proxy::start(&format!("mongodb://{},{}/", mongos[0].address, mongos[1].address));
    let next = || {
        let deadline = Instant::now() + Duration::from_secs(20);
        Socket::open(&proxy.address).send(&message(&ping(), 0, 1));
        loop {
            assert!(Instant::now() < deadline, "no mongos gets the client");
            if let Some(one) = mongos.iter().position(FakeMongos::has_accepted) {
                return one;
            }
            std::thread::sleep(Duration::from_millis(1));
        }
    };
    let first = next();
    for _ in 0..30 {
        assert_eq!(next(), first);
    }
}

#[test]
fn one_connection_too_many_is_closed() {
    let limits = Limits {
        max_connections: 2,
        ..Limits::default()
    };
    let proxy = Proxy::with_limits(&ReplicaSet::shared().uri(), limits);
    let mut first = Socket::open(&proxy.address);
    let mut second = Socket::open(&proxy.address);
    assert_eq!(first.command(&ping()).get_f64("ok").ok(), Some(1.0));
    assert_eq!(second.command(&ping()).get_f64("ok").ok(), Some(1.0));
    assert!(Socket::open(&proxy.address).is_closed());
    assert_eq!(first.command(&ping()).get_f64("ok").ok(), Some(1.0));
}

#[test]
fn a_stop_waits_for_answers_and_for_nothing_else() {
    let upstream = FakeMongos::start();
    let mut proxy = Proxy::start(&upstream.uri());
    let mut silent = Socket::open(&proxy.address);
    let mut idle = Socket::open(&proxy.address);
    idle.send(&message(&ping(), 2, 1));
    let (mut idle_server, _) = upstream.accept();
    let mut busy = Socket::open(&proxy.address);
    busy.send(&message(&ping(), 0, 1));
    let (mut server, _) = upstream.accept();
    proxy.begin_stop(Duration::from_secs(30));
    assert!(silent.is_closed());
    assert!(idle.is_closed());
    assert!(idle_server.is_closed());
    assert!(TcpStream::connect(&proxy.address).is_err() || Socket::open(&proxy.address).is_closed());
    let mut reply = message(&doc! { "ok": 1.0 }, 0, 2);
    reply[8..12].copy_from_slice(&1_i32.to_le_bytes());
    server.send(&reply);
    assert_eq!(busy.receive_bytes(), Some(reply));
    assert!(busy.is_closed());
    proxy.wait();
}

#[test]
fn what_never_gets_an_answer_is_cut_off() {
    let upstream = FakeMongos::start();
    let mut proxy = Proxy::start(&upstream.uri());
    let mut busy = Socket::open(&proxy.address);
    busy.send(&message(&ping(), 0, 1));
    let (mut server, _) = upstream.accept();
    proxy.begin_stop(Duration::from_millis(200));
    proxy.wait();
    assert!(busy.is_closed());
    assert!(server.is_closed());
}

#[test]
fn unacknowledged_writes_before_a_hang_up_arrive() {
    let set = ReplicaSet::shared();
    let proxy = Proxy::start(&set.uri());
    let mut client = Socket::open(&proxy.address);
    for n in 0..200 {
        let insert = doc! { "insert": "unacknowledged", "$db": "lifecycle", "documents": [{ "_id": n }] };
        client.send_command(&insert, 2);
    }
    drop(client);
    let mut direct = Socket::open(&set.addresses()[0]);
    let deadline = Instant::now() + Duration::from_secs(20);
    let count = doc! { "count": "unacknowledged", "$db": "lifecycle" };
    while direct.command(&count).get_i32("n").ok() != Some(200) {
        assert!(Instant::now() < deadline, "{}", direct.command(&count));
    }
}

#[test]
fn clients_follow_the_primary() {
    let set = ReplicaSet::start(3).unwrap();
    let proxy = Proxy::start(&set.uri());
    let mut client = Socket::open(&proxy.address);
    let insert = |n: i32| doc! { "insert": "c", "$db": "failover", "documents": [{ "_id": n }] };
    assert_eq!(client.command(&insert(1)).get_i32("n").ok(), Some(1));
    set.step_down().unwrap();
    // The connection to the old primary ends by itself, so that drivers connect anew.
    assert!(client.is_closed());
    set.wait_for_primary().unwrap();
    let deadline = Instant::now() + Duration::from_secs(30);
    loop {
        let mut again = Socket::open(&proxy.address);
        let id = again.send_command(&insert(2), 0);
        match again.receive() {
            Some(reply) if reply.header.response_to == id && reply.document().get_i32("n").ok() == Some(1) => break,
            _ => assert!(Instant::now() < deadline, "no client reaches the new primary"),
        }
    }
}
