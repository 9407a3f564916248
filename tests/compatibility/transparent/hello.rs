//! The handshake, in all its forms, against a real replica set.

use bson::{Bson, Document, doc};
use keyward::proxy_collection::StoreError;
use keyward::upstream::Upstream;
use keyward::wire::{Compressor, Flags, OpCode, compress};
use testbed::ReplicaSet;

use crate::transparent::fake::FakeMongos;
use crate::transparent::proxy::Proxy;
use crate::transparent::socket::{Socket, message};

/// By any of these a driver would find the members themselves.
const GIVE_AWAY: [&str; 6] = ["hosts", "setName", "me", "primary", "electionId", "secondary"];

fn assert_is_mongos(reply: &Document) {
    assert_eq!(reply.get_str("msg").ok(), Some("isdbgrid"), "{reply}");
    assert_eq!(reply.get_f64("ok").ok(), Some(1.0));
    assert!(reply.contains_key("topologyVersion") && reply.contains_key("$clusterTime"));
    for field in GIVE_AWAY {
        assert!(!reply.contains_key(field), "{field} in {reply}");
    }
}

#[test]
fn every_spelling_is_presented_as_a_mongos() {
    let proxy = Proxy::start(&ReplicaSet::shared().uri());
    let mut client = Socket::open(&proxy.address);
    for name in ["hello", "isMaster", "ismaster"] {
        for value in [Bson::from(1), Bson::from(1_i64), Bson::from(1.0), Bson::from(true)] {
            assert_is_mongos(&client.command(&doc! { name: value, "$db": "admin" }));
        }
    }
}

#[test]
fn checksums_and_compression_are_kept_up() {
    let proxy = Proxy::start(&ReplicaSet::shared().uri());
    let mut client = Socket::open(&proxy.address);
    let offer = doc! { "hello": 1, "$db": "admin", "compression": ["zlib", "unheard", "snappy", "zstd"] };
    // Parsing the reply verifies its checksum.
    client.send(&message(&offer, Flags::CHECKSUM_PRESENT, 1));
    let reply = client.receive().unwrap();
    assert_eq!(reply.flags, Flags::CHECKSUM_PRESENT);
    assert_is_mongos(&reply.document());
    let document = reply.document();
    let negotiated = document.get_array("compression").unwrap();
    assert!(
        negotiated
            .iter()
            .all(|name| ["snappy", "zlib", "zstd"].contains(&name.as_str().unwrap()))
    );
    assert!(!negotiated.is_empty());
    let hello = message(&doc! { "hello": 1, "$db": "admin" }, 0, 2);
    client.send(&compress(&hello, Compressor::Zlib).unwrap());
    assert_is_mongos(&client.receive().unwrap().document());
}

#[test]
fn the_legacy_handshake_is_answered_in_kind() {
    let proxy = Proxy::start(&ReplicaSet::shared().uri());
    let mut client = Socket::open(&proxy.address);
    let mut body = b"\0\0\0\0admin.$cmd\0\0\0\0\0\xff\xff\xff\xff".to_vec();
    body.extend(doc! { "ismaster": 1, "helloOk": true }.to_vec().unwrap());
    let header = keyward::wire::Header {
        length: 16 + body.len(),
        request_id: 9,
        response_to: 0,
        op_code: OpCode::QUERY,
    };
    client.send(&[&header.bytes()[..], &body].concat());
    let reply = client.receive().unwrap();
    assert_eq!(
        (reply.op_code, reply.flags, reply.header.response_to),
        (OpCode::REPLY, 8, 9)
    );
    assert_eq!(reply.document().get_bool("helloOk").ok(), Some(true));
    assert_is_mongos(&reply.document());
}

#[test]
fn a_streamed_handshake_goes_on_by_itself() {
    let proxy = Proxy::start(&ReplicaSet::shared().uri());
    let mut client = Socket::open(&proxy.address);
    let first = client.command(&doc! { "hello": 1, "$db": "admin" });
    let version = first.get_document("topologyVersion").unwrap();
    let streamed = doc! { "hello": 1, "$db": "admin", "topologyVersion": version, "maxAwaitTimeMS": 50 };
    let mut answers = client.send_command(&streamed, Flags::EXHAUST_ALLOWED);
    for _ in 0..5 {
        let reply = client.receive().unwrap();
        assert_eq!((reply.flags, reply.header.response_to), (Flags::MORE_TO_COME, answers));
        assert_is_mongos(&reply.document());
        answers = reply.header.request_id;
    }
}

/// Older routers don't say which statements of a retry were carried out before.
#[tokio::test(flavor = "multi_thread")]
async fn servers_older_than_mongodb_6_get_no_clients() {
    for (version, is_new_enough) in [(13, false), (16, false), (17, true), (25, true)] {
        let fake = FakeMongos::of_version(version);
        let upstream = Upstream::new(&fake.uri()).await.unwrap();
        let answered = keyward::prepare::ping(upstream.client()).await;
        let is_too_old = matches!(answered, Err(StoreError::TooOld(old)) if old == version);
        assert_eq!(is_too_old, !is_new_enough, "{version}: {answered:?}");
        // What the driver has published by then is what it selected the server by.
        assert_eq!(
            upstream.targets().borrow().addresses().is_empty(),
            !is_new_enough,
            "{version}"
        );
    }
}
