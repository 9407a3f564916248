//! Bytes in are bytes out, both ways, however they are cut on the way.

use std::io::{Read, Write};

use bson::{Bson, doc};
use keyward::wire::{Compressor, Draft, Flags, Header, OutSequence, compress};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};

use crate::transparent::fake::FakeMongos;
use crate::transparent::proxy::Proxy;
use crate::transparent::socket::{Socket, message, ping};

fn blob(random: &mut StdRng, longest: usize) -> Bson {
    let bytes = (0..random.random_range(0..longest))
        .map(|_| random.random_range(0..4))
        .collect();
    let subtype = bson::spec::BinarySubtype::Generic;
    Bson::Binary(bson::Binary { subtype, bytes })
}

/// A request that needs no attention, in one of the forms that a request may have.
fn request(random: &mut StdRng, id: i32) -> Vec<u8> {
    let body = doc! { "insert": "orders", "$db": "shop", "x": blob(random, 300) }
        .to_vec()
        .unwrap();
    let documents: Vec<Vec<u8>> = (0..random.random_range(0..20))
        .map(|n| doc! { "n": n, "b": blob(random, 20_000) }.to_vec().unwrap())
        .collect();
    let flags = *[0, 1, 2, 3, 1 << 16, 1 << 17].choose(random).unwrap();
    let draft = Draft {
        flags: Flags(flags),
        body: &body,
        sequences: vec![OutSequence {
            name: b"documents",
            documents: documents.iter().map(|document| &document[..]).collect(),
        }],
    };
    let bytes = draft.frame(id, 0).unwrap().to_vec();
    packed(random, bytes)
}

fn packed(random: &mut StdRng, bytes: Vec<u8>) -> Vec<u8> {
    match [
        None,
        Some(Compressor::Snappy),
        Some(Compressor::Zlib),
        Some(Compressor::Zstd),
    ]
    .choose(random)
    {
        Some(Some(compressor)) => compress(&bytes, *compressor).unwrap(),
        _ => bytes,
    }
}

fn wants_reply(bytes: &[u8]) -> bool {
    let mut scratch = Vec::new();
    let request = keyward::wire::Request::read(bytes, None, &mut scratch).unwrap();
    request.envelope.wants_reply()
}

fn reply(random: &mut StdRng, id: i32, answers: i32) -> Vec<u8> {
    let mut bytes = message(&doc! { "ok": 1.0, "b": blob(random, 200_000) }, 0, id);
    bytes[8..12].copy_from_slice(&answers.to_le_bytes());
    packed(random, bytes)
}

/// Writes `bytes` in pieces, so that nothing depends on how a stream is cut.
fn send_in_pieces(socket: &mut Socket, bytes: &[u8], random: &mut StdRng) {
    let mut rest = bytes;
    while !rest.is_empty() {
        let size = random.random_range(1..=rest.len().min(5000));
        socket.stream.write_all(&rest[..size]).unwrap();
        rest = &rest[size..];
    }
}

#[test]
fn requests_and_replies_go_through_as_the_bytes_that_came() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    for seed in 0..20 {
        println!("seed {seed}");
        let mut random = StdRng::seed_from_u64(seed);
        let requests: Vec<Vec<u8>> = (0..15).map(|id| request(&mut random, id)).collect();
        let mut client = Socket::open(&proxy.address);
        send_in_pieces(&mut client, &requests.concat(), &mut random);
        let (mut server, first) = upstream.accept();
        assert!(first == requests[0], "request 0 arrived changed");
        for (id, request) in requests.iter().enumerate() {
            if id > 0 {
                assert!(
                    server.receive_bytes().as_ref() == Some(request),
                    "request {id} arrived changed"
                );
            }
        }
        for (id, _) in requests.iter().enumerate().filter(|(_, request)| wants_reply(request)) {
            let reply = reply(&mut random, 100 + id as i32, id as i32);
            send_in_pieces(&mut server, &reply, &mut random);
            assert!(client.receive_bytes() == Some(reply), "reply {id} arrived changed");
        }
        drop(client);
        if !requests.iter().all(|request| wants_reply(request)) {
            // Keyward asks for an answer, which shows that the writes without replies are done.
            assert!(server.receive_bytes().is_some(), "no question");
        }
        assert!(server.is_closed());
    }
}

#[test]
fn streamed_replies_flow_unasked_until_the_last() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let mut random = StdRng::seed_from_u64(7);
    for compressed in [false, true] {
        let mut client = Socket::open(&proxy.address);
        let get_more = doc! { "getMore": 1_i64, "collection": "orders", "$db": "shop" };
        client.send(&message(&get_more, Flags::EXHAUST_ALLOWED, 1));
        let (mut server, _) = upstream.accept();
        let mut answers = 1;
        for id in 10..20 {
            let flags = if id < 19 { Flags::MORE_TO_COME } else { 0 };
            let mut bytes = message(&doc! { "n": id, "b": blob(&mut random, 100_000) }, flags, id);
            bytes[8..12].copy_from_slice(&i32::to_le_bytes(answers));
            if compressed {
                bytes = compress(&bytes, Compressor::Zstd).unwrap();
            }
            server.send(&bytes);
            assert!(client.receive_bytes() == Some(bytes), "reply {id} arrived changed");
            answers = id;
        }
        // The stream has ended: the next request and its reply are plain again.
        client.send(&message(&ping(), 0, 2));
        let bytes = server.receive_bytes().unwrap();
        assert_eq!(Header::read(&bytes).unwrap().unwrap().request_id, 2);
        let mut reply = message(&doc! { "ok": 1.0 }, 0, 21);
        reply[8..12].copy_from_slice(&2_i32.to_le_bytes());
        server.send(&reply);
        assert_eq!(client.receive_bytes(), Some(reply));
    }
}

/// What such a reply says of the next one stands at its beginning, packed or not.
#[test]
fn a_streamed_reply_flows_before_it_is_whole() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let mut random = StdRng::seed_from_u64(8);
    let mut noise = vec![0; 4_000_000];
    random.fill(&mut noise[..]);
    let subtype = bson::spec::BinarySubtype::Generic;
    let body = doc! { "b": Bson::Binary(bson::Binary { subtype, bytes: noise }) };
    for compressor in [
        None,
        Some(Compressor::Snappy),
        Some(Compressor::Zlib),
        Some(Compressor::Zstd),
    ] {
        let mut client = Socket::open(&proxy.address);
        let get_more = doc! { "getMore": 1_i64, "collection": "orders", "$db": "shop" };
        client.send(&message(&get_more, Flags::EXHAUST_ALLOWED, 1));
        let (mut server, _) = upstream.accept();
        for (id, answers, flags) in [(10, 1, Flags::MORE_TO_COME), (11, 10, 0)] {
            let mut reply = message(&body, flags, id);
            reply[8..12].copy_from_slice(&i32::to_le_bytes(answers));
            let reply = compressor.map_or(reply.clone(), |compressor| compress(&reply, compressor).unwrap());
            let (most, rest) = reply.split_at(3_000_000);
            server.send(most);
            let mut arrived = vec![0; most.len()];
            client.stream.read_exact(&mut arrived).expect("most of the reply");
            server.send(rest);
            arrived.resize(reply.len(), 0);
            client.stream.read_exact(&mut arrived[most.len()..]).unwrap();
            assert!(arrived == reply, "reply {id} arrived changed ({compressor:?})");
        }
    }
}

#[test]
fn a_reply_out_of_step_ends_both_connections() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let reply_to = |answers: i32| {
        let mut reply = message(&doc! { "ok": 1.0 }, 0, 50);
        reply[8..12].copy_from_slice(&answers.to_le_bytes());
        reply
    };
    // Answers something that wasn't asked.
    let mut client = Socket::open(&proxy.address);
    client.send(&message(&ping(), 0, 1));
    let (mut server, _) = upstream.accept();
    server.send(&reply_to(2));
    assert!(client.is_closed());
    assert!(server.is_closed());
    // Answers twice.
    let mut client = Socket::open(&proxy.address);
    client.send(&message(&ping(), 0, 1));
    let (mut server, _) = upstream.accept();
    server.send(&reply_to(1));
    server.send(&reply_to(1));
    assert!(client.receive_bytes().is_some());
    assert!(client.is_closed());
    assert!(server.is_closed());
    // Sends what is no message.
    let mut client = Socket::open(&proxy.address);
    client.send(&message(&ping(), 0, 1));
    let (mut server, _) = upstream.accept();
    server.send(&[0xff; 16]);
    assert!(client.is_closed());
    assert!(server.is_closed());
}

#[test]
fn upstream_closing_midway_closes_the_client() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let mut client = Socket::open(&proxy.address);
    client.send(&message(&ping(), 0, 1));
    let (mut server, _) = upstream.accept();
    let mut reply = message(&doc! { "ok": 1.0 }, 0, 50);
    reply[8..12].copy_from_slice(&1_i32.to_le_bytes());
    server.send(&reply[..20]);
    drop(server);
    assert!(client.is_closed());
}

#[test]
fn a_client_that_does_not_read_holds_up_nobody_else() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let mut slow = Socket::open(&proxy.address);
    slow.send(&message(&ping(), 0, 1));
    let (mut flood, _) = upstream.accept();
    // More than all buffers on the way can hold: the fake upstream's write blocks until the slow client reads.
    let big = {
        let blob = bson::Binary {
            subtype: bson::spec::BinarySubtype::Generic,
            bytes: vec![7; 40_000_000],
        };
        let mut bytes = message(&doc! { "b": blob }, 0, 9);
        bytes[8..12].copy_from_slice(&1_i32.to_le_bytes());
        bytes
    };
    let expected = big.clone();
    let flooding = std::thread::spawn(move || {
        flood.send(&big);
        flood
    });
    for _ in 0..3 {
        let mut other = Socket::open(&proxy.address);
        other.send(&message(&ping(), 0, 5));
        let (mut server, _) = upstream.accept();
        let mut reply = message(&doc! { "ok": 1.0 }, 0, 6);
        reply[8..12].copy_from_slice(&5_i32.to_le_bytes());
        server.send(&reply);
        assert_eq!(other.receive_bytes(), Some(reply));
    }
    assert!(!flooding.is_finished(), "40 MB can't be on their way unread");
    assert!(
        slow.receive_bytes() == Some(expected),
        "the large reply arrived changed"
    );
    flooding.join().unwrap();
}

/// A message of exactly `length` bytes: one body and a document sequence.
pub fn message_of(length: usize) -> Vec<u8> {
    let body = doc! { "insert": "orders", "$db": "shop" }.to_vec().unwrap();
    let document = |size: usize| {
        let subtype = bson::spec::BinarySubtype::Generic;
        let bytes = vec![0xab; size];
        doc! { "b": Bson::Binary(bson::Binary { subtype, bytes }) }
            .to_vec()
            .unwrap()
    };
    let third = document(length / 3);
    let around = Header::SIZE + 4 + 1 + body.len() + 1 + 4 + b"documents\0".len() + 2 * third.len() + document(0).len();
    let last = document(length - around);
    let draft = Draft {
        sequences: vec![OutSequence {
            name: b"documents",
            documents: vec![&third, &third, &last],
        }],
        ..Draft::of_body(&body)
    };
    let bytes = draft.frame(1, 0).unwrap().to_vec();
    assert_eq!(bytes.len(), length);
    bytes
}

#[test]
fn messages_of_48_megabytes_go_through_both_ways() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let largest = message_of(48_000_000);
    let mut client = Socket::open(&proxy.address);
    client.send(&largest);
    let (mut server, first) = upstream.accept();
    assert!(first == largest, "the request arrived changed");
    let mut reply = largest;
    reply[8..12].copy_from_slice(&1_i32.to_le_bytes());
    let expected = reply.clone();
    let sending = std::thread::spawn(move || server.send(&reply));
    assert!(client.receive_bytes() == Some(expected), "the reply arrived changed");
    sending.join().unwrap();
    let mut header = Header::read(&message(&ping(), 0, 1)).unwrap().unwrap().bytes();
    header[..4].copy_from_slice(&48_000_001_i32.to_le_bytes());
    client.send(&header);
    assert!(client.is_closed());
}

#[test]
fn what_keyward_answers_itself_keeps_its_place() {
    let upstream = FakeMongos::start();
    let proxy = Proxy::start(&upstream.uri());
    let mut client = Socket::open(&proxy.address);
    let refused = doc! { "applyOps": [], "$db": "admin" };
    let stream = [message(&ping(), 0, 1), message(&refused, 0, 2), message(&ping(), 0, 3)].concat();
    client.send(&stream);
    let (mut server, _) = upstream.accept();
    for (answers, expects_more) in [(1, true), (3, false)] {
        let mut reply = message(&doc! { "ok": 1.0 }, 0, 50);
        reply[8..12].copy_from_slice(&i32::to_le_bytes(answers));
        server.send(&reply);
        assert_eq!(client.receive().unwrap().header.response_to, answers);
        if expects_more {
            let own = client.receive().unwrap();
            assert_eq!((own.header.response_to, own.code()), (2, Some(115)));
            server.receive_bytes().unwrap();
        }
    }
}
