//! Good and broken messages are treated by Keyward's parser as by a real mongod: accepted, answered with which code,
//! closed, or ignored.

use bson::{Document, doc};
use keyward::wire::{Compressor, Header, OpCode, OpMsg, OpQuery, Rejection, Treatment, compress};
use rand::rngs::StdRng;
use rand::seq::IndexedRandom;
use rand::{Rng, SeedableRng};
use testbed::ReplicaSet;

use crate::transparent::proxy::Proxy;
use crate::transparent::socket::{Socket, message, ping};

/// What a server does with a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Seen {
    /// It took the message for a request; whatever it then said.
    Accepted,
    /// It answered with this code, which only a message that can't be read has.
    Error(i64),
    Silence,
    Closed,
}

/// The codes that mongod gives to messages it can't read. A command can't fail with any of them here.
const UNREADABLE: [i64; 11] = [13, 15, 22, 352, 40430, 40431, 40432, 40433, 40587, 51252, 5_739_101];

/// Sends `bytes`, and a ping to see what is left of the connection.
fn seen(address: &str, bytes: &[u8]) -> Seen {
    let mut socket = Socket::open(address);
    socket.send(bytes);
    // A server that closes may do so before this is written.
    let _ = std::io::Write::write_all(&mut socket.stream, &message(&ping(), 0, 99));
    match socket.receive() {
        None => Seen::Closed,
        Some(reply) if reply.header.response_to == 99 => Seen::Silence,
        Some(reply) => match reply.code() {
            Some(code) if UNREADABLE.contains(&code) => Seen::Error(code),
            _ => Seen::Accepted,
        },
    }
}

/// What Keyward's own parser makes of it; for op codes that it parses.
fn parsed(bytes: &[u8]) -> Seen {
    let header = Header::read(bytes).unwrap().unwrap();
    let rejection = match header.op_code {
        OpCode::MSG => OpMsg::parse_whole(bytes).err(),
        OpCode::QUERY => OpQuery::parse(bytes).err(),
        OpCode(other) => Some(Rejection::OpCode(other)),
    };
    let wants_reply = header.op_code != OpCode::MSG || bytes.get(16).is_none_or(|flags| flags & 2 == 0);
    match rejection.map(|rejection| rejection.treatment()) {
        None if wants_reply => Seen::Accepted,
        None | Some(Treatment::Ignore) => Seen::Silence,
        Some(Treatment::Close) => Seen::Closed,
        Some(Treatment::Answer(_)) if !wants_reply => Seen::Silence,
        Some(Treatment::Answer(error)) => Seen::Error(error.code.into()),
    }
}

/// A document, sometimes with something wrong in it.
fn document(random: &mut StdRng, document: &Document) -> Vec<u8> {
    let mut bytes = document.to_vec().unwrap();
    if random.random_ratio(1, 6) {
        let position = random.random_range(0..bytes.len());
        bytes[position] = *[0, 1, 2, 4, 5, 8, 0x20, 0x7f, 0xff].choose(random).unwrap();
    }
    bytes
}

fn section(random: &mut StdRng) -> Vec<u8> {
    let kind = *[0, 0, 1, 1, 1, 1, 2, 9].choose(random).unwrap();
    if kind != 1 {
        let body = doc! { "ping": 1, "a": { "b": [1, { "c": true }] }, "$db": "admin" };
        return [&[kind][..], &document(random, &body)].concat();
    }
    let name = *[
        "d", "e", "a", "a.", "a..b", "a.b", "a.b.0", "a.b.2", "a.b.c", "a.b.1.c", "a.x", "ping.x", "",
    ]
    .choose(random)
    .unwrap();
    let mut documents = Vec::new();
    for n in 0..random.random_range(0..3) {
        documents.extend(document(random, &doc! { "n": n, "s": "text" }));
    }
    let size = 4 + name.len() as i32 + 1 + documents.len() as i32;
    let wrong = random.random_ratio(1, 8);
    let size = if wrong {
        *[0, 3, 4, 5, -1, size + 1, size - 1, 1 << 30].choose(random).unwrap()
    } else {
        size
    };
    [&[1][..], &size.to_le_bytes(), name.as_bytes(), &[0], &documents].concat()
}

fn generated(random: &mut StdRng) -> Vec<u8> {
    let flags: u32 = *[0, 0, 0, 0, 1, 1, 2, 3, 4, 1 << 15, 1 << 16, 1 << 17, 1 << 31]
        .choose(random)
        .unwrap();
    let mut sections = Vec::new();
    let body = doc! { "ping": 1, "a": { "b": [1, { "c": true }] }, "$db": "admin" };
    if random.random_ratio(5, 6) {
        sections.push([&[0][..], &document(random, &body)].concat());
    }
    for _ in 0..random.random_range(0..4) {
        let at = random.random_range(0..=sections.len());
        sections.insert(at, section(random));
    }
    let mut bytes = [&flags.to_le_bytes()[..], &sections.concat()].concat();
    if random.random_ratio(1, 10) {
        bytes.truncate(random.random_range(0..=bytes.len()));
    }
    let has_checksum = flags & 1 != 0 && random.random_ratio(4, 5);
    let header = Header {
        length: Header::SIZE + bytes.len() + if has_checksum { 4 } else { 0 },
        request_id: 1,
        response_to: 0,
        op_code: OpCode::MSG,
    };
    let mut message = [&header.bytes()[..], &bytes].concat();
    if has_checksum {
        let wrong = u32::from(random.random_ratio(1, 5));
        message.extend((crc32c::crc32c(&message) ^ wrong).to_le_bytes());
    }
    message
}

#[test]
fn generated_messages_are_read_as_by_mongod() {
    let address = ReplicaSet::shared().addresses().remove(0);
    let seed = 2013;
    let mut random = StdRng::seed_from_u64(seed);
    let mut counts = std::collections::BTreeMap::new();
    for number in 0..1500 {
        let bytes = generated(&mut random);
        let theirs = seen(&address, &bytes);
        assert_eq!(parsed(&bytes), theirs, "seed {seed}, message {number}: {bytes:02x?}");
        *counts.entry(format!("{theirs:?}")).or_insert(0) += 1;
    }
    // The generator must reach every kind of outcome, or the test shows nothing.
    assert!(counts.len() > 10, "{counts:?}");
}

#[test]
fn other_op_codes_are_treated_as_by_mongod() {
    let address = ReplicaSet::shared().addresses().remove(0);
    let proxy = Proxy::start(&ReplicaSet::shared().uri());
    for op_code in [
        0, 1, 2001, 2002, 2003, 2004, 2005, 2006, 2007, 2010, 2011, 2012, 2014, 9999, -1,
    ] {
        for length in [0, 3, 4, 20, 40] {
            let header = Header {
                length: Header::SIZE + length,
                request_id: 1,
                response_to: 0,
                op_code: OpCode(op_code),
            };
            let bytes = [&header.bytes()[..], &vec![0; length]].concat();
            let (direct, through) = (seen(&address, &bytes), seen(&proxy.address, &bytes));
            assert_eq!(direct, through, "op code {op_code}, {length} bytes");
        }
    }
}

#[test]
fn broken_messages_are_treated_through_keyward_as_by_mongod() {
    let address = ReplicaSet::shared().addresses().remove(0);
    let proxy = Proxy::start(&ReplicaSet::shared().uri());
    let seed = 40432;
    let mut random = StdRng::seed_from_u64(seed);
    for number in 0..300 {
        let mut bytes = generated(&mut random);
        if random.random_ratio(1, 3) {
            bytes = compress(&bytes, *Compressor::ALL.choose(&mut random).unwrap()).unwrap();
        }
        let (direct, through) = (seen(&address, &bytes), seen(&proxy.address, &bytes));
        assert_eq!(direct, through, "seed {seed}, message {number}: {bytes:02x?}");
    }
}

#[test]
fn replies_to_broken_messages_look_like_the_servers() {
    let address = ReplicaSet::shared().addresses().remove(0);
    let proxy = Proxy::start(&ReplicaSet::shared().uri());
    let bodies = [&[0][..], &ping().to_vec().unwrap(), &[0], &ping().to_vec().unwrap()].concat();
    let header = Header {
        length: Header::SIZE + 4 + bodies.len(),
        request_id: 5,
        response_to: 0,
        op_code: OpCode::MSG,
    };
    let plain = [&header.bytes()[..], &[0; 4], &bodies].concat();
    let packed = compress(&plain, Compressor::Snappy).unwrap();
    for bytes in [plain, packed] {
        let reply = |address: &str| {
            let mut socket = Socket::open(address);
            socket.send(&bytes);
            let reply = socket.receive().unwrap();
            let mut document = reply.document();
            document.remove("$clusterTime");
            document.remove("operationTime");
            (
                document,
                reply.flags,
                reply.op_code,
                reply.compressor,
                reply.header.response_to,
            )
        };
        assert_eq!(reply(&address), reply(&proxy.address));
    }
}
