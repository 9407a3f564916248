//! Defines keys, the tuples of values that must be unique, and the reservation `_id`s that represent them.
//!
//! A key's identity is its canonical form. A reservation's `_id` is made of the values themselves. A reader of the
//! proxy collection can therefore see them, and the server's own comparison of `_id`s agrees with Keyward's. Some
//! values would be refused or confused by the server inside an `_id`. They are encoded so that distinct keys stay
//! distinct, and the encoding can be undone. Under a collation, strings are replaced by their sort keys. A sort key
//! can't be turned back into its string; only a document has the string.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};

use bson::spec::{BinarySubtype, ElementType};
use bson::{RawDocument, RawDocumentBuf};
use sha2::{Digest, Sha256};
use xxhash_rust::xxh3::xxh3_64;

use super::canonical::{Canonical, Strings, Uncomparable};
use super::collation::{Collation, Icu};
use super::display::is_displayable;
use super::rewrite::{self, Names};
use super::{Constraint, Sharding, text};
use crate::raw::{Builder, Doc, Element, Malformed};

/// The longest canonical form, in bytes, for which a reservation holds the values themselves.
///
/// The server accepts an `_id` of about 8 MB at most (the oplog has it twice). The limit is far lower, because one
/// command holds many reservations, and a reply that refuses them all repeats their keys. It applies to the canonical
/// form, because that is the same for all equal keys.
pub const MAX_VERBATIM_BYTES: usize = 4096;
/// The nesting depth of the deepest value that a reservation holds itself. Inside an `_id` the value is two levels
/// deeper than in its document, and the server refuses documents of more than 180 levels.
pub const MAX_VERBATIM_DEPTH: usize = 100;
/// About the most memory, in bytes, of keys that a walk over documents handles together. A document may have a million keys, or long ones.
pub const KEYS_MEMORY_MAX: usize = 64 << 20;
/// About the bytes of memory that a key takes beside its values.
const OVERHEAD: usize = 256;
/// The first byte of a digest's canonical form; no value's canonical form starts with it.
const DIGEST: u8 = 0;

/// One key of one constraint: a value for each of its fields.
///
/// Two keys are equal if the server calls them equal; their number types, for example, don't count. The order is the
/// index's order, except that keys held as a digest come first.
#[derive(Debug, Clone)]
pub struct Key {
    canonical: Vec<u8>,
    /// A document with the constraint's paths as names. Absent if the key was read from a reservation and is held as a
    /// digest or under a collation.
    values: Option<Vec<u8>>,
    /// Under a collation, the values as a reservation holds them: with sort keys, in hexadecimal, in place of strings.
    stored: Option<Vec<u8>>,
    sharding: Sharding,
}

/// A key with its whole canonical form, however large. The keys of one document are ordered by that form.
#[derive(Debug)]
pub(super) struct KeyDraft {
    key: Key,
    deepest: usize,
}

/// Why a reservation's `_id` can't be read as a key of the constraint.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReservationIdError {
    /// It isn't well-formed BSON.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// It lacks `k`, or `k` isn't a document of the constraint's paths (or a digest).
    #[error("a reservation's _id doesn't have the constraint's fields")]
    Shape,
    /// Its `h` isn't the bucket of its `k`, so this version of Keyward didn't write it.
    #[error("a reservation's _id has h {}, its key has {}", shown(found), shown(expected))]
    Bucket {
        /// The bucket in the `_id`.
        found: Option<i64>,
        /// The bucket of the key.
        expected: Option<i32>,
    },
}

/// The bucket, if there is one.
fn shown(bucket: &Option<impl ToString>) -> String {
    bucket.as_ref().map_or_else(|| "none".to_owned(), ToString::to_string)
}

impl Key {
    /// The number of buckets.
    pub const BUCKETS: usize = 1 << 16;

    /// Bytes that are equal for two keys exactly if the server calls the keys equal.
    ///
    /// A key held as a digest (see [`Key::reservation_id`]) has a zero and a SHA-256.
    pub fn canonical(&self) -> &[u8] {
        &self.canonical
    }

    /// The bytes of its values.
    pub fn size(&self) -> usize {
        let stored = [&self.values, &self.stored].into_iter().flatten();
        self.canonical.len() + stored.map(Vec::len).sum::<usize>()
    }

    /// About the bytes of memory that it takes with its owner.
    pub fn memory(&self) -> usize {
        self.size() + OVERHEAD
    }

    /// The values, as a document with the constraint's paths as names.
    ///
    /// `None` if the key was read from a reservation and is held as a digest or under a collation.
    pub fn values(&self) -> Option<Doc<'_>> {
        self.values.as_deref().and_then(|bytes| Doc::new(bytes).ok())
    }

    /// The values as the reservation holds them.
    fn stored(&self) -> Option<Doc<'_>> {
        match &self.stored {
            Some(bytes) => Doc::new(bytes).ok(),
            None => self.values(),
        }
    }

    /// The key's position in a proxy collection that is spread by hash: 0 to 65,535.
    ///
    /// It is a hash of the canonical form, so equal keys have equal buckets, and two equal keys are never on two
    /// shards. The server's own hash has this property, too. But it hashes only the whole parts of numbers, so prices
    /// from 9.00 to 9.99 would share one bucket.
    ///
    /// The bucket is stored. So neither the canonical form nor the hash may ever change for a format of definition that
    /// is in use; see [`Constraint::definition`].
    pub fn bucket(&self) -> i32 {
        // The top 16 bits: they fit any int32.
        (xxh3_64(&self.canonical) >> 48) as i32
    }

    /// The rough position of the key's reservation in the proxy collection, so that neighbouring keys can be written
    /// one after the other, which is faster. It is the bucket, or 0 if the proxy collection is spread by ranges.
    pub fn rough_place(&self) -> i32 {
        self.stored_bucket().unwrap_or(0)
    }

    /// `h` in [`Key::reservation_id`]; `None` if the proxy collection is spread by ranges.
    pub fn stored_bucket(&self) -> Option<i32> {
        match self.sharding {
            Sharding::Hashed => Some(self.bucket()),
            Sharding::Ranged => None,
        }
    }

    /// The `_id` of the key's reservation: `{h: <bucket>, k: {<path>: <value>, …}}`. If the proxy collection is spread
    /// by ranges, `h` is absent.
    ///
    /// - Names inside the values that start with `$` or `%` get a `%` before them.
    /// - Some keys are held as a digest: `k` is then a binary with the SHA-256 of the canonical form. These are keys
    ///   over [`MAX_VERBATIM_BYTES`] or [`MAX_VERBATIM_DEPTH`], and keys with text that the server would break in an
    ///   error. No driver could read a reply with such an error.
    pub fn reservation_id(&self) -> RawDocumentBuf {
        let mut builder = Builder::new();
        self.append_reservation_id(&mut builder);
        RawDocumentBuf::from_bytes(builder.finish()).expect("the builder made a document")
    }

    /// Appends the elements of [`Key::reservation_id`].
    pub fn append_reservation_id(&self, builder: &mut Builder) {
        if let Some(bucket) = self.stored_bucket() {
            builder.int32("h", bucket);
        }
        match (&*self.canonical, self.stored()) {
            ([DIGEST, digest @ ..], _) => {
                builder.binary(b"k", BinarySubtype::Generic, digest);
            }
            (_, Some(values)) => {
                builder.open(ElementType::EmbeddedDocument, b"k");
                for element in values.elements().flatten() {
                    rewrite::append(builder, element.name, &element, Names::Escape)
                        .expect("the values were copied, so they were well-formed");
                }
                builder.close();
            }
            (_, None) => unreachable!("only a digest is without values"),
        }
    }

    /// The key that `id`, a reservation's `_id`, represents.
    ///
    /// # Errors
    /// [`ReservationIdError`] if [`Key::reservation_id`] can't have made it for this constraint.
    pub fn from_reservation_id(constraint: &Constraint, id: &RawDocument) -> Result<Self, ReservationIdError> {
        let id = Doc::new(id.as_bytes())?;
        let held = id.get("k")?.ok_or(ReservationIdError::Shape)?;
        let key = match held.kind {
            ElementType::EmbeddedDocument => Self::from_values(constraint, Doc::new(held.value)?)?,
            ElementType::Binary => Self::from_digest(constraint, held.value)?,
            _ => return Err(ReservationIdError::Shape),
        };
        let found = id.get("h")?.map(|bucket| bucket.as_whole_number().unwrap_or(-1));
        let expected = (constraint.spec.sharding == Sharding::Hashed).then(|| key.bucket());
        match found == expected.map(i64::from) {
            true => Ok(key),
            false => Err(ReservationIdError::Bucket { found, expected }),
        }
    }

    fn from_values(constraint: &Constraint, escaped: Doc<'_>) -> Result<Self, ReservationIdError> {
        let mut copy = Builder::new();
        for element in escaped.elements() {
            let element = element?;
            rewrite::append(&mut copy, element.name, &element, Names::Unescape)?;
        }
        let values = copy.finish();
        let elements = Doc::new(&values)?.elements().collect::<Result<Vec<_>, _>>()?;
        let names = elements.iter().map(|element| element.name);
        if !names.eq(constraint.fields.iter().map(|field| field.path.as_bytes())) {
            return Err(ReservationIdError::Shape);
        }
        let strings = match constraint.collation {
            Collation::Simple => Strings::Simple,
            Collation::Icu(_) => Strings::SortKeys,
        };
        let draft = KeyDraft::with_strings(constraint, strings, &mut elements.into_iter());
        let key = draft.map_err(|error| match error {
            Uncomparable::Malformed(malformed) => malformed.into(),
            Uncomparable::Uncollatable(_) => ReservationIdError::Shape,
        });
        let key = key?.finish();
        // Such a key must be held as a digest: with its values it would have a second `_id`.
        match key.canonical[0] == DIGEST {
            true => Err(ReservationIdError::Shape),
            false => Ok(key),
        }
    }

    fn from_digest(constraint: &Constraint, binary: &[u8]) -> Result<Self, ReservationIdError> {
        match binary {
            [_, _, _, _, 0, digest @ ..] if digest.len() == 32 => Ok(Key {
                canonical: [&[DIGEST], digest].concat(),
                values: None,
                stored: None,
                sharding: constraint.spec.sharding,
            }),
            _ => Err(ReservationIdError::Shape),
        }
    }
}

impl KeyDraft {
    pub(super) fn new<'d>(
        constraint: &Constraint,
        values: &mut dyn Iterator<Item = Element<'d>>,
    ) -> Result<Self, Uncomparable> {
        Self::with_strings(constraint, Strings::from(&constraint.collation), values)
    }

    fn with_strings<'d>(
        constraint: &Constraint,
        strings: Strings<'_>,
        values: &mut dyn Iterator<Item = Element<'d>>,
    ) -> Result<Self, Uncomparable> {
        let mut canonical = Vec::with_capacity(64);
        let mut copy = Builder::new();
        let mut writer = Canonical::for_index(&mut canonical, strings);
        for (field, value) in constraint.fields.iter().zip(values) {
            writer.append(&value, field.descending)?;
            rewrite::append(&mut copy, field.path.as_bytes(), &value, Names::Keep)?;
        }
        let deepest = writer.deepest();
        let copy = copy.finish();
        let (values, stored) = match strings {
            Strings::Simple => (Some(copy), None),
            Strings::Collated(icu) => {
                let stored = with_sort_keys(icu, Doc::new(&copy)?)?;
                (Some(copy), Some(stored))
            }
            Strings::SortKeys => (None, Some(copy)),
        };
        let sharding = constraint.spec.sharding;
        let key = Key {
            canonical,
            values,
            stored,
            sharding,
        };
        Ok(KeyDraft { key, deepest })
    }

    /// The canonical form in full.
    pub(super) fn canonical(&self) -> &[u8] {
        &self.key.canonical
    }

    /// Its size in memory, in bytes, roughly.
    pub(super) fn bytes(&self) -> usize {
        let of = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::len);
        size_of::<KeyDraft>() + self.key.canonical.len() + of(&self.key.values) + of(&self.key.stored)
    }

    /// Frees its spare memory, which is most of the memory of a small key.
    pub(super) fn shrink(&mut self) {
        let Key {
            canonical,
            values,
            stored,
            ..
        } = &mut self.key;
        canonical.shrink_to_fit();
        for bytes in [values, stored].into_iter().flatten() {
            bytes.shrink_to_fit();
        }
    }

    /// The key. A digest replaces its canonical form if the key is large or the server couldn't name it in an error.
    pub(super) fn finish(self) -> Key {
        let mut key = self.key;
        let is_large = self.deepest > MAX_VERBATIM_DEPTH || key.canonical.len() > MAX_VERBATIM_BYTES;
        if is_large || !key.stored().is_none_or(is_displayable) {
            key.canonical = [&[DIGEST], &Sha256::digest(&key.canonical)[..]].concat();
        }
        key
    }
}

/// `values` with sort keys in hexadecimal in place of strings.
fn with_sort_keys(icu: &Icu, values: Doc<'_>) -> Result<Vec<u8>, Uncomparable> {
    let mut refused = Ok(());
    let mut copy = Builder::new();
    for element in values.elements() {
        let element = element?;
        rewrite::append_replaced(&mut copy, element.name, &element, &mut |string| {
            let key = icu.sort_key(string).unwrap_or_else(|error| {
                refused = Err(error);
                Vec::new()
            });
            text::hex(&key, false).into_bytes()
        })?;
    }
    refused?;
    Ok(copy.finish())
}

impl PartialEq for Key {
    fn eq(&self, other: &Self) -> bool {
        self.canonical == other.canonical
    }
}

impl Eq for Key {}

impl Hash for Key {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.canonical.hash(state);
    }
}

impl PartialOrd for Key {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Key {
    fn cmp(&self, other: &Self) -> Ordering {
        self.canonical.cmp(&other.canonical)
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc};

    use super::super::IndexSpec;
    use super::*;
    use crate::namespace::Namespace;

    #[test]
    fn each_of_many_keys_takes_little_memory() {
        let spec = IndexSpec {
            key: doc! { "t": 1 },
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(Namespace::new("db", "c"), spec).unwrap();
        let tags: Vec<Bson> = (0..10_000).map(Bson::Int32).collect();
        let document = doc! { "t": tags }.to_vec().unwrap();
        let keys = constraint.keys(Doc::new(&document).unwrap()).unwrap();
        let capacity = |bytes: &Option<Vec<u8>>| bytes.as_ref().map_or(0, Vec::capacity);
        let taken = |key: &Key| key.canonical.capacity() + capacity(&key.values) + capacity(&key.stored);
        assert_eq!(keys.len(), 10_000);
        assert!(keys.iter().map(taken).sum::<usize>() < 40 * keys.len());
    }
}
