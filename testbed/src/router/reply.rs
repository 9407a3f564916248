//! A shard's reply: what the router reads from it, and what it takes away before a client sees it.

use bson::spec::ElementType;
use bytes::Bytes;

use super::error::{Failure, is_stale};
use super::raw::{Builder, Doc, Element};

/// Fields between servers, or the router's to give: never handed on from a shard.
const NOT_HANDED_ON: [&str; 8] = [
    "$clusterTime",
    "operationTime",
    "$configTime",
    "$topologyTime",
    "$gleStats",
    "lastCommittedOpTime",
    "readOnly",
    "ok",
];

/// One reply document whose outer form has been checked.
#[derive(Debug, Clone)]
pub struct Reply(Bytes);

impl Reply {
    /// Takes a body that came in a well-formed message.
    pub fn new(body: Bytes) -> Self {
        Reply(body)
    }

    /// The document; an empty one if the bytes are none.
    pub fn doc(&self) -> Doc<'_> {
        Doc::new(&self.0).unwrap_or_else(|_| Doc::empty())
    }

    /// Its bytes.
    pub fn bytes(&self) -> &Bytes {
        &self.0
    }

    /// The first field of that name.
    pub fn get(&self, name: &str) -> Option<Element<'_>> {
        self.doc().get(name).ok().flatten()
    }

    /// A whole number in a field, 0 if there is none.
    pub fn number(&self, name: &str) -> i64 {
        self.get(name).and_then(|field| field.as_whole_number()).unwrap_or(0)
    }

    /// Whether the command succeeded.
    pub fn is_ok(&self) -> bool {
        self.get("ok").is_some_and(|ok| ok.is_truthy())
    }

    /// The error code, 0 if there is none.
    pub fn code(&self) -> i32 {
        i32::try_from(self.number("code")).unwrap_or(0)
    }

    /// The error's text.
    pub fn message(&self) -> String {
        self.get("errmsg")
            .and_then(|field| field.as_string_bytes())
            .map(|text| String::from_utf8_lossy(text).into_owned())
            .unwrap_or_default()
    }

    /// A nested document or array.
    pub fn nested(&self, name: &str) -> Option<Doc<'_>> {
        self.get(name)?.as_document_or_array().ok().flatten()
    }

    /// Itself if it reports success.
    ///
    /// # Errors
    /// [`Failure::Stale`] for a routing version that the shard refuses, else [`Failure::Shard`].
    pub fn success(self) -> Result<Self, Failure> {
        match self.is_ok() {
            true => Ok(self),
            false if is_stale(self.code()) => Err(Failure::Stale(self.0)),
            false => Err(Failure::Shard(self)),
        }
    }

    /// The fields that a client may see, without `ok` and the times: both are appended at the end.
    pub fn public_fields(&self) -> Builder {
        self.public_fields_without(&[])
    }

    /// [`Reply::public_fields`] without those named either.
    pub fn public_fields_without(&self, without: &[&str]) -> Builder {
        let mut builder = Builder::new();
        for element in self.doc().elements().flatten() {
            let named = |name: &&str| name.as_bytes() == element.name;
            if !NOT_HANDED_ON.iter().any(&named) && !without.iter().any(named) {
                builder.element(&element);
            }
        }
        builder
    }

    /// The reply as a client may see it.
    pub fn public(&self) -> Vec<u8> {
        let mut builder = self.public_fields();
        builder.double("ok", f64::from(u8::from(self.is_ok())));
        builder.finish()
    }
}

/// `{ok: 1}` and nothing else.
pub fn ok() -> Vec<u8> {
    let mut builder = Builder::new();
    builder.double("ok", 1.0);
    builder.finish()
}

/// Encodes a reply built with the `bson` crate, `ok: 1` appended if it isn't there.
pub fn from_document(mut document: bson::Document) -> Vec<u8> {
    if !document.contains_key("ok") {
        document.insert("ok", 1.0);
    }
    encode(&document)
}

/// Encodes a document of the router's own making.
pub fn encode(document: &bson::Document) -> Vec<u8> {
    document
        .to_vec()
        .expect("documents of the router's own hold nothing that BSON can't")
}

/// A timestamp as one number that orders as the timestamp does.
pub fn timestamp_value(element: Option<Element<'_>>) -> Option<u64> {
    let element = element.filter(|element| element.kind == ElementType::Timestamp)?;
    Some(u64::from_le_bytes(element.value.try_into().ok()?))
}
