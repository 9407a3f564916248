//! A real server, spoken to in bytes: its answers need not be UTF-8, so no driver can read them.

use std::collections::HashSet;
use std::io::{Read, Write};
use std::net::TcpStream;

use bson::{Document, doc, spec::ElementType};
use keyward::constraint::IndexSpec;
use keyward::namespace::Namespace;
use keyward::raw::{Builder, Doc, Element};
use testbed::ReplicaSet;

/// A connection to a server.
pub struct Server {
    stream: TcpStream,
}

impl Server {
    /// A connection to a replica set of its own. Nothing here counts on its majority: it has one member.
    pub fn connect() -> Self {
        Self::at(&ReplicaSet::shared().addresses()[0])
    }

    /// A connection to `address`.
    pub fn at(address: &str) -> Self {
        Server {
            stream: TcpStream::connect(address).unwrap(),
        }
    }

    /// Creates the index; the error's code and text if the server refuses it.
    pub fn create_index(&mut self, namespace: &Namespace, spec: &IndexSpec) -> Result<(), (i32, String)> {
        let command = doc! {
            "createIndexes": &namespace.collection, "indexes": [index_document(spec)], "$db": &namespace.database,
        };
        let reply = self.run(&command, &[]);
        let reply = Doc::new(&reply).unwrap();
        let field = |name| reply.get(name).unwrap().unwrap();
        if field("ok").is_truthy() {
            return Ok(());
        }
        // The specification is repeated in the text, its long strings cut anywhere.
        let text = String::from_utf8_lossy(field("errmsg").as_string_bytes().unwrap()).into_owned();
        Err((field("code").as_whole_number().unwrap() as i32, text))
    }

    /// Inserts each document whatever happens to the others; the entry of `writeErrors` for each one refused.
    pub fn insert(&mut self, namespace: &Namespace, documents: &[Vec<u8>]) -> Vec<Option<Vec<u8>>> {
        let mut answers = vec![None; documents.len()];
        let mut rest = 0..0;
        while rest.end < documents.len() {
            // Few at a time: a reply that repeats large keys must stay below 16 MB.
            rest = rest.end..documents.len().min(rest.end + 200);
            let command = doc! { "insert": &namespace.collection, "ordered": false, "$db": &namespace.database };
            let reply = self.run(&command, &documents[rest.clone()]);
            let reply = Doc::new(&reply).unwrap();
            assert!(
                reply.get("ok").unwrap().unwrap().is_truthy(),
                "{:?}",
                String::from_utf8_lossy(reply.bytes())
            );
            let Some(errors) = reply.get("writeErrors").unwrap() else {
                continue;
            };
            for entry in nested(errors).elements() {
                let entry = nested(entry.unwrap());
                let index = entry.get("index").unwrap().unwrap().as_whole_number().unwrap() as usize + rest.start;
                let mut entry = entry.bytes().to_vec();
                // `index` is the first element, an int32: make it count from the first batch on.
                entry[11..15].copy_from_slice(&(index as i32).to_le_bytes());
                answers[index] = Some(entry);
            }
        }
        answers
    }

    /// The `_id`s, all numbers, of the documents that match `filter`.
    pub fn find_ids(&mut self, namespace: &Namespace, filter: &Document, collation: &Document) -> HashSet<i64> {
        let command = doc! {
            "find": &namespace.collection, "filter": filter, "projection": { "_id": 1 }, "batchSize": 10_000,
            "collation": collation,
            "$db": &namespace.database,
        };
        self.ids(&command).into_iter().collect()
    }

    /// The `_id`s, all numbers, of all documents in the order of the index on `v`.
    pub fn ids_in_index_order(&mut self, namespace: &Namespace, direction: i32) -> Vec<i64> {
        let command = doc! {
            "find": &namespace.collection, "sort": { "v": direction }, "hint": { "v": direction },
            "projection": { "_id": 1 }, "batchSize": 10_000, "$db": &namespace.database,
        };
        self.ids(&command)
    }

    /// The `_id`s that the first batch of a `find` holds.
    fn ids(&mut self, find: &Document) -> Vec<i64> {
        let reply: Document = bson::deserialize_from_slice(&self.run(find, &[])).unwrap();
        let batch = reply
            .get_document("cursor")
            .and_then(|cursor| cursor.get_array("firstBatch"));
        let batch = batch.unwrap_or_else(|_| panic!("{reply}"));
        batch
            .iter()
            .map(|found| found.as_document().unwrap().get_i32("_id").unwrap().into())
            .collect()
    }

    /// What the server makes of `text` under `collation`, from the error of a duplicate.
    pub fn sort_key(&mut self, collation: &Document, text: &[u8]) -> Vec<u8> {
        let namespace = Namespace::new("native", format!("sort_keys{:x}", collation.to_string().len()));
        self.drop(&namespace);
        let index = doc! { "key": { "v": 1 }, "name": "v", "unique": true, "collation": collation };
        let command = doc! { "createIndexes": &namespace.collection, "indexes": [index], "$db": &namespace.database };
        self.run(&command, &[]);
        let document = |id| {
            let mut document = Builder::new();
            document.int32("_id", id).string("v", text);
            document.finish()
        };
        let answers = self.insert(&namespace, &[document(0), document(1)]);
        let error: Document = bson::deserialize_from_slice(answers[1].as_ref().unwrap()).unwrap();
        let digits = error.get_document("keyValue").unwrap().get_str("v").unwrap();
        let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
        (0..digits.len()).step_by(2).map(byte).collect()
    }

    pub fn drop(&mut self, namespace: &Namespace) {
        self.run(&doc! { "drop": &namespace.collection, "$db": &namespace.database }, &[]);
    }

    /// Sends an OP_MSG with `documents` as a sequence, and waits for its answer.
    pub fn run(&mut self, command: &Document, documents: &[Vec<u8>]) -> Vec<u8> {
        self.run_raw(&command.to_vec().unwrap(), documents)
    }

    /// The same for a command that need not be UTF-8.
    pub fn run_raw(&mut self, command: &[u8], documents: &[Vec<u8>]) -> Vec<u8> {
        let mut message = vec![0; 16];
        message.extend_from_slice(&[0; 4]);
        message.push(0);
        message.extend_from_slice(command);
        if !documents.is_empty() {
            let size = 4 + b"documents\0".len() + documents.iter().map(Vec::len).sum::<usize>();
            message.push(1);
            message.extend_from_slice(&(size as i32).to_le_bytes());
            message.extend_from_slice(b"documents\0");
            documents
                .iter()
                .for_each(|document| message.extend_from_slice(document));
        }
        let length = (message.len() as i32).to_le_bytes();
        message[..4].copy_from_slice(&length);
        message[12..16].copy_from_slice(&2013_i32.to_le_bytes());
        self.stream.write_all(&message).unwrap();

        let mut length = [0; 4];
        self.stream.read_exact(&mut length).unwrap();
        let mut reply = vec![0; i32::from_le_bytes(length) as usize - 4];
        self.stream.read_exact(&mut reply).unwrap();
        // The rest of the header, the flags, and the kind of the only section.
        reply.split_off(12 + 4 + 1)
    }
}

/// The document of an index specification as `createIndexes` takes it.
fn index_document(spec: &IndexSpec) -> Document {
    let mut index = doc! { "key": spec.key.clone(), "name": spec.name.clone(), "unique": true };
    if spec.sparse {
        index.insert("sparse", true);
    }
    if let Some(filter) = &spec.partial_filter_expression {
        index.insert("partialFilterExpression", filter.clone());
    }
    if let Some(collation) = &spec.collation {
        index.insert("collation", collation.clone());
    }
    index
}

/// The arrays and documents that a test needs to look into.
fn nested(element: Element<'_>) -> Doc<'_> {
    assert!(matches!(
        element.kind,
        ElementType::EmbeddedDocument | ElementType::Array
    ));
    Doc::new(element.value).unwrap()
}
