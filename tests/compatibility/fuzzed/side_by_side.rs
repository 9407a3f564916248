//! What Keyward understands of a message is what the server does with it: messages that drivers send and messages that no
//! driver would, to a protected collection through Keyward and to one with a native unique index. Both do the same, say the
//! same and hold the same afterwards; or Keyward refuses, and then nothing has changed.

use std::io::{self, Write};
use std::net::TcpStream;
use std::time::Duration;

use bson::{Bson, Document, RawDocument, doc};
use rand::SeedableRng;
use rand::rngs::StdRng;
use testbed::ReplicaSet;

use crate::fuzzed::messages::{self, message, op_msg};
use testkit::relay::read_message;
use testkit::{Keyward, comparable, in_one_order};

/// So many messages, unless `KEYWARD_FUZZ_MESSAGES` says otherwise.
const MESSAGES: u64 = 2_000;
const ANSWERED_WITHIN: Duration = Duration::from_secs(30);
/// Of many differences so many are told.
const SHOWN_MAX: usize = 20;

/// The server's codes for what is no BSON, or runs past its end: of several such faults any may be found first.
const FOUND_IN_ANY_ORDER: [i32; 2] = [22, 15];

/// What became of a message.
#[derive(Debug)]
struct Outcome {
    /// The reply's fields, in their order; none if nothing came.
    reply: Option<Document>,
    is_closed: bool,
}

/// A connection that is made anew when it was closed.
struct Line {
    address: String,
    database: &'static str,
    stream: TcpStream,
}

#[tokio::test(flavor = "multi_thread")]
async fn what_keyward_understands_is_what_the_server_does() {
    side_by_side("compensating", "fuzzed").await;
}

#[tokio::test(flavor = "multi_thread")]
async fn so_it_is_in_strict_mode() {
    side_by_side("transaction", "fuzzed_strictly").await;
}

async fn side_by_side(strategy: &'static str, database: &'static str) {
    let seed = crate::fuzzed::seed();
    let count = testkit::given::number("KEYWARD_FUZZ_MESSAGES").unwrap_or(MESSAGES);
    tokio::task::spawn_blocking(move || {
        // Each has a server of its own: what comes of garbled messages may go to any database, and any session.
        let [natively, set] = [(); 2].map(|()| ReplicaSet::start(1).unwrap());
        let index = doc! { "key": { "email": 1 }, "name": "email_1", "unique": true };
        natively
            .run(database, doc! { "createIndexes": "users", "indexes": [index] })
            .unwrap();
        let constraint = format!("  - {{ collection: {database}.users, key: {{ email: 1 }}, strategy: {strategy} }}\n");
        let keyward = Keyward::start(&set.uri(), &constraint);
        let mut lines =
            [natively.addresses().remove(0), keyward.address.clone()].map(|address| Line::open(address, database));
        let (mut refused, mut differences) = (0, Vec::new());
        for number in 0..count {
            // Each from a seed of its own, so that one can be looked at alone.
            let mut random = StdRng::seed_from_u64(seed.wrapping_add(number));
            let message = message(database, &mut random);
            let [expected, got] = [0, 1].map(|side| {
                lines[side]
                    .send(&message)
                    .unwrap_or_else(|error| panic!("{error} at side {side}: {}", told(seed, number, &message)))
            });
            let held = [0, 1].map(|side| without_generated_ids(lines[side].all()));
            match got.is_refusal_of_keywards() {
                true => refused += 1,
                false if got.is_as(&expected) && held[0] == held[1] => {}
                false => differences.push(format!(
                    "{}natively {expected:?}\nKeyward  {got:?}{}\n",
                    told(seed, number, &message),
                    first_difference(&held)
                )),
            }
            if held[0] != held[1] || number % 50 == 49 {
                lines.iter_mut().for_each(Line::begin_anew);
            }
        }
        println!("{strategy}: {count} messages, of which Keyward refused {refused}");
        differences.truncate(SHOWN_MAX);
        assert!(differences.is_empty(), "{}", differences.join("\n"));
        assert!(refused * 10 < count, "{refused} refused of {count}");
    })
    .await
    .unwrap();
}

/// Keyward's reply as if it had told what natively comes before the constraint: that the `_id` is taken, or can't be one.
fn told_of_keys(mut keyward: Document, native: &Document) -> Document {
    const DUPLICATE_KEY: i32 = 11_000;
    const INVALID_ID: i32 = 53;
    let Ok(errors) = keyward.get_array_mut("writeErrors") else {
        return keyward;
    };
    let natives = native.get_array("writeErrors").cloned().unwrap_or_default();
    for (error, native) in errors.iter_mut().zip(natives) {
        let code = |error: &Bson| error.as_document().unwrap().get_i32("code").unwrap();
        let is_about_id = match code(&native) {
            DUPLICATE_KEY => native.as_document().unwrap().get_document("keyPattern").ok() == Some(&doc! { "_id": 1 }),
            other => other == INVALID_ID,
        };
        if code(error) == DUPLICATE_KEY && is_about_id {
            *error = native;
        }
    }
    keyward
}

/// BSON with zeros in the place of the `_id`s that servers make.
fn without_generated_ids(mut bson: Vec<u8>) -> Vec<u8> {
    const START: &[u8] = b"\x07_id\0";
    for at in START.len()..bson.len().saturating_sub(12) {
        if bson[..at].ends_with(START) && bson[at..at + 12] != messages::OBJECT_ID {
            bson[at..at + 12].fill(0);
        }
    }
    bson
}

fn first_difference([native, keyward]: &[Vec<u8>; 2]) -> String {
    match native == keyward {
        true => String::new(),
        false => [native, keyward]
            .map(|held| format!("\nheld {}", legible(held)))
            .concat(),
    }
}

fn legible(array: &[u8]) -> String {
    Document::from_reader(array).map_or_else(|_| array.escape_ascii().to_string(), |array| array.to_string())
}

/// The message as far as it can be read, and how to have it again alone.
fn told(seed: u64, number: u64, message: &[u8]) -> String {
    let body = message.get(21..).map(Document::from_reader);
    let body = match body {
        Some(Ok(body)) => body.to_string(),
        _ => String::from_utf8_lossy(message).escape_debug().to_string(),
    };
    format!(
        "KEYWARD_SEED={} KEYWARD_FUZZ_MESSAGES=1\n{body}\n",
        seed.wrapping_add(number)
    )
}

impl Outcome {
    /// Whether it is the same, but for what is known to differ (docs/differences.md).
    fn is_as(&self, native: &Outcome) -> bool {
        let replies = [self, native].map(|outcome| outcome.reply.clone().unwrap_or_default());
        let code = |reply: &Document| reply.get_i32("code").ok();
        let is_text_alike = !replies.iter().any(|reply| reply.contains_key("unreadable"))
            && !code(&replies[1]).is_some_and(|code| FOUND_IN_ANY_ORDER.contains(&code));
        let [keyward, native_reply] = replies;
        let is_alike = match is_text_alike {
            // As bytes: there are numbers that don't equal themselves.
            true => {
                let keyward = in_one_order(told_of_keys(keyward, &native_reply));
                without_generated_ids(keyward) == without_generated_ids(in_one_order(native_reply))
            }
            false => code(&keyward) == code(&native_reply),
        };
        is_alike && self.is_closed == native.is_closed && self.reply.is_some() == native.reply.is_some()
    }

    /// Whether Keyward says that it can't do this, in its own words.
    fn is_refusal_of_keywards(&self) -> bool {
        let reply = self.reply.as_ref();
        reply.is_some_and(|reply| reply.get_str("errmsg").is_ok_and(|text| text.contains("Keyward")))
    }
}

impl Line {
    fn open(address: String, database: &'static str) -> Line {
        let mut line = Line {
            stream: connect(&address),
            address,
            database,
        };
        line.begin_anew();
        line
    }

    /// Sends a message, and a ping after it: what comes before the ping's reply is the message's.
    fn send(&mut self, message: &[u8]) -> io::Result<Outcome> {
        const PING: i32 = 77_777;
        let ping = command(self.database, doc! { "ping": 1 }, PING);
        let mut outcome = Outcome {
            reply: None,
            is_closed: false,
        };
        let sent = self
            .stream
            .write_all(message)
            .and_then(|()| self.stream.write_all(&ping));
        let mut answered = sent.is_err();
        while !answered {
            match read_message(&mut self.stream) {
                Ok(reply) if reply[8..12] == PING.to_le_bytes() => break,
                // Of several, as to a message that asks for that, the first one.
                Ok(reply) => drop(outcome.reply.get_or_insert_with(|| read(&reply))),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => return Err(error),
                Err(_) => answered = true,
            }
        }
        if answered {
            outcome.is_closed = true;
            self.stream = connect(&self.address);
        }
        Ok(outcome)
    }

    /// What the collection holds, as bytes: some of it no driver can read.
    fn all(&mut self) -> Vec<u8> {
        let find = doc! { "find": "users", "sort": { "_id": 1, "x": 1 }, "batchSize": 10_000, "$db": self.database };
        let find = op_msg(&find.to_vec().unwrap(), &[], 0, 5);
        self.stream.write_all(&find).unwrap();
        let reply = read_message(&mut self.stream).unwrap();
        let reply = RawDocument::from_bytes(&reply[21..]).unwrap();
        let cursor = reply.get_document("cursor").unwrap();
        cursor.get_array("firstBatch").unwrap().as_bytes().to_vec()
    }

    /// Some documents, the same for all.
    fn begin_anew(&mut self) {
        let delete = doc! { "delete": "users", "deletes": [{ "q": {}, "limit": 0 }] };
        let documents: Vec<Document> = (0..6)
            .map(|number| doc! { "_id": number, "email": format!("{number}@x"), "x": number % 3, "list": [1, { "y": 2 }] })
            .collect();
        let insert = doc! { "insert": "users", "documents": documents };
        for change in [delete, insert] {
            let reply = self.send(&command(self.database, change, 5)).unwrap().reply.unwrap();
            assert_eq!(reply.get_f64("ok").ok(), Some(1.0), "{reply}");
            assert!(!reply.contains_key("writeErrors"), "{reply}");
        }
    }
}

fn connect(address: &str) -> TcpStream {
    let stream = TcpStream::connect(address).unwrap();
    stream.set_read_timeout(Some(ANSWERED_WITHIN)).unwrap();
    stream.set_nodelay(true).unwrap();
    stream
}

/// A command as an OP_MSG.
fn command(database: &str, mut body: Document, request_id: i32) -> Vec<u8> {
    body.insert("$db", database);
    op_msg(&body.to_vec().unwrap(), &[], 0, request_id)
}

/// The document of a reply, of either form, without what differs between any two.
fn read(reply: &[u8]) -> Document {
    let at = match reply[12..16] == 2013_i32.to_le_bytes() {
        true => 21,
        false => 36,
    };
    let Ok(document) = Document::from_reader(&reply[at..]) else {
        // It holds values that no driver reads, as text that is no UTF-8.
        let raw = RawDocument::from_bytes(&reply[at..]).unwrap();
        let code = raw.get_i32("code").ok().map_or(Bson::Null, Bson::Int32);
        return doc! { "unreadable": true, "code": code };
    };
    let mut document = comparable(document);
    if let Ok(text) = document.get_str("errmsg")
        && let Some((text, _)) = text.split_once(" Statement ids: ")
    {
        // What follows quotes the command.
        document.insert("errmsg", text.to_owned());
    }
    for field in ["recoveryToken", "localTime", "connectionId", "topologyVersion"] {
        document.remove(field);
    }
    document
}
