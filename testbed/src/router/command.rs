//! A client's command, read once: its name, database, and the generic fields that decide how it is run. Everything
//! else stays bytes.
//!
//! [`Command::forward`] starts the command that a shard gets: the client's own fields in their order, without those
//! that the router sets anew for each shard.

use std::time::Duration;

use bson::spec::ElementType;
use bytes::Bytes;

use super::error::{Failure, code, refuse};
use super::message::{Request, Sequence};
use super::raw::{Builder, Doc, Element};

/// Fields that the router gives each shard itself.
const SET_BY_ROUTER: [&str; 12] = [
    "$clusterTime",
    "lsid",
    "txnNumber",
    "autocommit",
    "startTransaction",
    "coordinator",
    "readConcern",
    "writeConcern",
    "$db",
    "apiVersion",
    "apiStrict",
    "apiDeprecationErrors",
];

/// Fields that every command of a session carries on.
pub const API_PARAMETERS: [&str; 3] = ["apiVersion", "apiStrict", "apiDeprecationErrors"];

/// One command.
#[derive(Debug, Clone)]
pub struct Command {
    /// Its name, as the client wrote it.
    pub name: String,
    /// `$db`.
    pub db: String,
    /// The whole body.
    pub body: Bytes,
    /// Document sequences.
    pub sequences: Vec<Sequence>,
    /// `lsid`.
    pub lsid: Option<Bytes>,
    /// `txnNumber`.
    pub txn_number: Option<i64>,
    /// `autocommit: false`: part of a transaction.
    pub in_transaction: bool,
    /// `startTransaction: true`.
    pub starts_transaction: bool,
    /// `readConcern`.
    pub read_concern: Option<Bytes>,
    /// `writeConcern`.
    pub write_concern: Option<Bytes>,
    /// `maxTimeMS`, if it is a limit.
    pub time_limit: Option<Duration>,
}

impl Command {
    /// Reads a request's generic fields.
    ///
    /// # Errors
    /// A [`Failure`] to answer with if the body isn't a command.
    pub fn parse(request: &Request) -> Result<Self, Failure> {
        let body = Doc::new(&request.body)?;
        body.validate()?;
        let Some(first) = body.elements().next().transpose()? else {
            return refuse(code::FAILED_TO_PARSE, "no command given");
        };
        let mut command = Command {
            name: String::from_utf8_lossy(first.name).into_owned(),
            db: String::new(),
            body: request.body.clone(),
            sequences: request.sequences.clone(),
            lsid: None,
            txn_number: None,
            in_transaction: false,
            starts_transaction: false,
            read_concern: None,
            write_concern: None,
            time_limit: None,
        };
        for element in body.elements() {
            command.note(&element?);
        }
        match command.db.is_empty() && request.framing != super::message::Framing::LegacyQuery {
            true => refuse(40571, "OP_MSG requests require a $db argument"),
            false => Ok(command),
        }
    }

    fn note(&mut self, element: &Element<'_>) {
        let document = || Some(Bytes::copy_from_slice(element.value));
        match element.name {
            b"$db" => self.db = element.as_str().unwrap_or_default().to_owned(),
            b"lsid" => self.lsid = document(),
            b"txnNumber" => self.txn_number = element.as_whole_number(),
            b"autocommit" => self.in_transaction = !element.is_truthy(),
            b"startTransaction" => self.starts_transaction = element.is_truthy(),
            b"readConcern" if element.kind == ElementType::EmbeddedDocument => self.read_concern = document(),
            b"writeConcern" if element.kind == ElementType::EmbeddedDocument => self.write_concern = document(),
            b"maxTimeMS" => {
                let limit = element.as_whole_number().and_then(|limit| u64::try_from(limit).ok());
                self.time_limit = limit.filter(|limit| *limit > 0).map(Duration::from_millis);
            }
            _ => (),
        }
    }

    /// The body.
    pub fn doc(&self) -> Doc<'_> {
        Doc::new(&self.body).unwrap_or_else(|_| Doc::empty())
    }

    /// The first field of that name.
    pub fn get(&self, name: &str) -> Option<Element<'_>> {
        self.doc().get(name).ok().flatten()
    }

    /// A nested document, `None` if there is none.
    pub fn nested(&self, name: &str) -> Option<Doc<'_>> {
        self.get(name)?.as_document_or_array().ok().flatten()
    }

    /// A flag; `default` where the field is missing.
    pub fn flag(&self, name: &str, default: bool) -> bool {
        self.get(name).map_or(default, |field| field.is_truthy())
    }

    /// A whole number.
    pub fn number(&self, name: &str) -> Option<i64> {
        self.get(name)?.as_whole_number()
    }

    /// A string.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.get(name)?.as_str()
    }

    /// `db.collection`, from the command's first field.
    ///
    /// # Errors
    /// What the server says where it is no collection's name.
    pub fn namespace(&self) -> Result<String, Failure> {
        let first = self.get(&self.name);
        match first.and_then(|first| first.as_str()) {
            Some(collection) if !collection.is_empty() && !collection.contains('\0') => {
                Ok(format!("{}.{collection}", self.db))
            }
            Some(collection) => refuse(
                code::INVALID_NAMESPACE,
                format!("Invalid namespace specified '{}.{collection}'", self.db),
            ),
            None => refuse(
                code::INVALID_NAMESPACE,
                format!("collection name has invalid type {}", type_name(first)),
            ),
        }
    }

    /// `db.collection` where the first field is a whole namespace (admin commands).
    ///
    /// # Errors
    /// What the server says where it is none.
    pub fn full_namespace(&self) -> Result<String, Failure> {
        match self.text(&self.name) {
            Some(namespace)
                if namespace
                    .split_once('.')
                    .is_some_and(|(db, rest)| !db.is_empty() && !rest.is_empty()) =>
            {
                Ok(namespace.to_owned())
            }
            other => refuse(
                code::INVALID_NAMESPACE,
                format!("Invalid namespace specified '{}'", other.unwrap_or_default()),
            ),
        }
    }

    /// The documents of an array field, wherever they stand: in a sequence or in the body.
    ///
    /// # Errors
    /// If the field is missing or holds anything but documents.
    pub fn documents(&self, name: &str) -> Result<Vec<Bytes>, Failure> {
        if let Some(sequence) = self.sequences.iter().find(|sequence| sequence.name == name) {
            return Ok(sequence.documents.clone());
        }
        let missing = || format!("BSON field '{}.{name}' is missing but a required field", self.name);
        let Some(array) = self.get(name) else {
            return refuse(40414, missing());
        };
        let Some(array) = array.as_document_or_array()? else {
            return refuse(
                code::TYPE_MISMATCH,
                format!("BSON field '{}.{name}' is the wrong type", self.name),
            );
        };
        let mut documents = Vec::new();
        for element in array.elements() {
            let element = element?;
            if element.kind != ElementType::EmbeddedDocument {
                return refuse(
                    code::TYPE_MISMATCH,
                    format!("BSON field '{}.{name}' holds a wrong type", self.name),
                );
            }
            documents.push(self.body.slice_ref(element.value));
        }
        Ok(documents)
    }

    /// Starts the command for a shard: the client's fields but for those the router sets and those in `without`.
    pub fn forward(&self, without: &[&str]) -> Builder {
        let mut builder = Builder::new();
        for element in self.doc().elements().flatten() {
            let named = |name: &&str| name.as_bytes() == element.name;
            if !SET_BY_ROUTER.iter().any(&named) && !without.iter().any(named) {
                builder.element(&element);
            }
        }
        builder
    }

    /// Whether the command may be sent a second time: the shard remembers its retryable statements.
    pub fn is_retryable_write(&self) -> bool {
        self.txn_number.is_some() && !self.in_transaction
    }

    /// Whether it is an `aggregate` that writes: no other takes a write concern.
    pub fn writes_by_pipeline(&self) -> bool {
        let stages = self.nested("pipeline").unwrap_or_else(Doc::empty).elements().flatten();
        let mut stages = stages.filter_map(|stage| stage.as_document_or_array().ok().flatten());
        stages.any(|stage| {
            ["$out", "$merge"]
                .iter()
                .any(|name| matches!(stage.get(name), Ok(Some(_))))
        })
    }

    /// `readConcern.level`.
    pub fn read_concern_level(&self) -> Option<&str> {
        let document = Doc::new(self.read_concern.as_ref()?).ok()?;
        document.get("level").ok()??.as_str()
    }
}

fn type_name(element: Option<Element<'_>>) -> &'static str {
    match element.map(|element| element.kind) {
        Some(ElementType::Int32) => "int",
        Some(ElementType::Int64) => "long",
        Some(ElementType::Double) => "double",
        Some(ElementType::EmbeddedDocument) => "object",
        Some(ElementType::Array) => "array",
        Some(ElementType::Boolean) => "bool",
        Some(ElementType::Null) => "null",
        _ => "missing",
    }
}
