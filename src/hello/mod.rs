//! Edits upstream's reply to a handshake, as little as possible, so that a driver treats Keyward as a `mongos`.
//!
//! In a real `mongos`'s reply, Keyward changes only `compression`, so that no compressor is negotiated that it can't
//! read. From a replica set member's reply it also removes every field by which a driver would find the members, and
//! adds `msg: "isdbgrid"`. A driver that takes Keyward for a load balancer also needs `serviceId`. All other fields (limits, wire versions, `topologyVersion`, `speculativeAuthenticate`,
//! cluster time) stay unchanged.

use bson::oid::ObjectId;
use bson::spec::ElementType;

use crate::raw::{Builder, Doc, Element, Malformed};
use crate::wire::{Compressor, Draft, Flags, Header, OpCode, OpMsg, OpReply, Rejection, decompress};

/// The fields that only a replica set's member sends, or that name other members.
const MEMBER_FIELDS: [&str; 22] = [
    "hosts",
    "passives",
    "arbiters",
    "primary",
    "me",
    "setName",
    "setVersion",
    "electionId",
    "secondary",
    "lastWrite",
    "arbiterOnly",
    "passive",
    "hidden",
    "tags",
    "slaveDelay",
    "secondaryDelaySecs",
    "buildIndexes",
    "isreplicaset",
    "info",
    "isImplicitDefaultMajorityWC",
    "configsvr",
    "lastCommittedOpTime",
];

/// A handshake's reply for the client.
#[derive(Debug, PartialEq, Eq)]
pub struct Edited {
    /// The whole message, not compressed, with upstream's ids and flags.
    pub message: Vec<u8>,
    /// Whether upstream accepts writes: a replica set's member that isn't primary doesn't.
    pub takes_writes: bool,
    /// Whether another reply will follow unasked.
    pub more_to_come: bool,
}

/// Edits a reply, given as upstream's whole message. With `service_id` the client takes Keyward for a load balancer. If upstream is one
/// itself, its reply names the server behind it already.
///
/// # Errors
/// A [`Rejection`] if it isn't a reply.
pub fn edit(message: &[u8], service_id: Option<ObjectId>) -> Result<Edited, Rejection> {
    let mut unpacked = Vec::new();
    let outer = Header::read(message)?.ok_or(Rejection::TooShort)?;
    let message = match outer.op_code {
        OpCode::COMPRESSED => {
            decompress(message, &mut unpacked)?;
            &unpacked
        }
        _ => message,
    };
    let header = Header::read(message)?.ok_or(Rejection::TooShort)?;
    match header.op_code {
        OpCode::MSG => {
            let reply = OpMsg::parse(message)?;
            let body = Body::edit(reply.body, service_id)?;
            let draft = Draft {
                flags: reply.flags,
                ..Draft::of_body(&body.bytes)
            };
            let frame = draft
                .frame(header.request_id, header.response_to)
                .map_err(Rejection::from)?;
            Ok(Edited {
                message: frame.to_vec(),
                takes_writes: body.takes_writes,
                more_to_come: reply.flags.has(Flags::MORE_TO_COME),
            })
        }
        OpCode::REPLY => {
            let reply = OpReply::parse(message)?;
            let body = Body::edit(reply.document, service_id)?;
            Ok(Edited {
                message: OpReply::message(reply.flags, &body.bytes, header.request_id, header.response_to),
                takes_writes: body.takes_writes,
                more_to_come: false,
            })
        }
        OpCode(other) => Err(Rejection::OpCode(other)),
    }
}

struct Body {
    bytes: Vec<u8>,
    takes_writes: bool,
}

impl Body {
    fn edit(body: Doc<'_>, service_id: Option<ObjectId>) -> Result<Self, Malformed> {
        // A member that isn't in a set yet sends `isreplicaset` instead of `setName`.
        let is_member = body.get("setName")?.is_some() || body.get("isreplicaset")?.is_some();
        let mut edited = Builder::new();
        let mut takes_writes = !is_member;
        for element in body.elements() {
            let element = element?;
            match element.name {
                b"compression" => append_common(&mut edited, &element)?,
                b"isWritablePrimary" | b"ismaster" if is_member => {
                    takes_writes = element.is_truthy();
                    edited.element(&element).string("msg", b"isdbgrid");
                }
                name if is_member && MEMBER_FIELDS.iter().any(|field| field.as_bytes() == name) => {}
                _ => {
                    edited.element(&element);
                }
            }
        }
        if let Some(service_id) = service_id
            && body.get("serviceId")?.is_none()
        {
            edited.append(ElementType::ObjectId, b"serviceId", &service_id.bytes());
        }
        Ok(Body {
            bytes: edited.finish(),
            takes_writes,
        })
    }
}

/// Appends the compressors that Keyward can also read. If there are none, it appends nothing, as the server does.
fn append_common(edited: &mut Builder, compression: &Element<'_>) -> Result<(), Malformed> {
    let mut common = Vec::new();
    if let Some(offered) = compression.as_document_or_array()? {
        for name in offered.elements() {
            let name = name?;
            if Compressor::ALL.iter().any(|ours| name.as_str() == Some(ours.name())) {
                common.push(name);
            }
        }
    }
    if !common.is_empty() {
        edited.open(ElementType::Array, compression.name);
        for (index, name) in common.iter().enumerate() {
            edited.append(name.kind, index.to_string().as_bytes(), name.value);
        }
        edited.close();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn edited(reply: &Document, flags: u32) -> (Document, Edited) {
        let bytes = reply.to_vec().unwrap();
        let draft = Draft {
            flags: Flags(flags),
            ..Draft::of_body(&bytes)
        };
        let edited = edit(&draft.frame(5, 4).unwrap().to_vec(), None).unwrap();
        let parsed = OpMsg::parse_whole(&edited.message).unwrap();
        assert_eq!(parsed.flags, Flags(flags));
        let header = Header::read(&edited.message).unwrap().unwrap();
        assert_eq!((header.request_id, header.response_to), (5, 4));
        (Document::from_reader(parsed.body.bytes()).unwrap(), edited)
    }

    fn member(is_primary: bool) -> Document {
        doc! {
            "helloOk": true, "topologyVersion": { "counter": 6_i64 }, "hosts": ["a:1", "b:1"], "setName": "rs",
            "setVersion": 1, "isWritablePrimary": is_primary, "secondary": !is_primary, "primary": "a:1", "me": "a:1",
            "electionId": 1, "lastWrite": { "opTime": 1 }, "maxBsonObjectSize": 16_777_216, "maxWireVersion": 17,
            "compression": ["snappy", "lzma", "zstd"], "saslSupportedMechs": ["SCRAM-SHA-256"],
            "speculativeAuthenticate": { "payload": "x" }, "ok": 1.0, "$clusterTime": { "t": 1 },
        }
    }

    #[test]
    fn a_member_becomes_a_mongos() {
        for flags in [0, 1, 2, 3] {
            let (document, edited) = edited(&member(true), flags);
            let expected = doc! {
                "helloOk": true, "topologyVersion": { "counter": 6_i64 }, "isWritablePrimary": true, "msg": "isdbgrid",
                "maxBsonObjectSize": 16_777_216, "maxWireVersion": 17, "compression": ["snappy", "zstd"],
                "saslSupportedMechs": ["SCRAM-SHA-256"], "speculativeAuthenticate": { "payload": "x" }, "ok": 1.0,
                "$clusterTime": { "t": 1 },
            };
            assert_eq!(document, expected);
            assert!(edited.takes_writes);
            assert_eq!(edited.more_to_come, flags & 2 != 0);
        }
        assert!(!edited(&member(false), 0).1.takes_writes);
        assert!(
            !edited(&doc! { "ismaster": false, "isreplicaset": true, "ok": 1.0 }, 0)
                .1
                .takes_writes
        );
    }

    #[test]
    fn a_mongos_and_an_error_stay_as_they_are() {
        let mongos = doc! { "ismaster": true, "msg": "isdbgrid", "hosts": 1, "compression": ["zlib"], "ok": 1.0 };
        let error = doc! { "ok": 0.0, "errmsg": "x", "code": 186 };
        for reply in [mongos, error] {
            let (document, edited) = edited(&reply, 0);
            assert_eq!(document, reply);
            assert!(edited.takes_writes);
        }
        let (document, _) = edited(&doc! { "compression": ["lzma"], "ok": 1.0 }, 0);
        assert_eq!(document, doc! { "ok": 1.0 });
    }

    #[test]
    fn behind_a_load_balancer_the_reply_names_the_service() {
        let edited = |reply: &Document, service_id| {
            let message = OpReply::message(0, &reply.to_vec().unwrap(), 5, 4);
            let edited = edit(&message, Some(service_id)).unwrap();
            let reply = OpReply::parse(&edited.message).unwrap();
            Document::from_reader(reply.document.bytes()).unwrap()
        };
        let own = ObjectId::new();
        let mongos = doc! { "ismaster": true, "msg": "isdbgrid", "ok": 1.0 };
        let expected = doc! { "ismaster": true, "msg": "isdbgrid", "ok": 1.0, "serviceId": own };
        assert_eq!(edited(&mongos, own), expected);
        assert_eq!(edited(&expected, ObjectId::new()), expected);
    }

    #[test]
    fn a_legacy_reply_is_edited_alike() {
        let body = doc! { "ismaster": true, "setName": "rs", "ok": 1.0 }.to_vec().unwrap();
        let edited = edit(&OpReply::message(8, &body, 5, 4), None).unwrap();
        let reply = OpReply::parse(&edited.message).unwrap();
        let document = Document::from_reader(reply.document.bytes()).unwrap();
        assert_eq!(document, doc! { "ismaster": true, "msg": "isdbgrid", "ok": 1.0 });
        assert_eq!(reply.flags, 8);
    }
}
