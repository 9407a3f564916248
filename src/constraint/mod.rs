//! Defines constraints: which keys a document has, and when two keys are equal.
//!
//! It turns an index specification into a checked [`Constraint`], and a document into the [`Key`]s that it holds. It
//! turns a key into a reservation's `_id`, or into the error that a client sees when the key is taken. A constraint
//! acts as a native unique index of the server does. If Keyward can't ensure that, it refuses the constraint when it is
//! made. The module is pure: no input, no output, no clock.

mod canonical;
mod collation;
mod display;
mod duplicate;
mod extract;
mod filter;
mod key;
mod name;
mod number;
mod rewrite;
mod routing;
mod spec;
mod stored_keys;
mod text;

use std::collections::{BTreeSet, HashMap, HashSet};

use bson::{Document, RawDocument, RawDocumentBuf, doc, oid::ObjectId, spec::ElementType};

use self::canonical::Uncomparable;
use self::collation::{Collation, SORT_KEYS};
use self::filter::Filter;
use self::key::KeyDraft;
use crate::namespace::{Namespace, OF_MONGODB};
use crate::raw::{Doc, Malformed};
use crate::server::code;

pub use self::canonical::{compare, id_identity};
pub use self::collation::{COLLATION_FIELDS, Uncollatable, resolved_collation};
pub use self::duplicate::DuplicateKey;
pub use self::filter::{FILTER_OPERATORS, TypeTest};
pub use self::key::{KEYS_MEMORY_MAX, Key, MAX_VERBATIM_BYTES, MAX_VERBATIM_DEPTH, ReservationIdError};
pub use self::name::ConstraintName;
pub(crate) use self::text::bytes_of_hex;

pub use self::routing::{root_of, values_asked_for};
pub use self::spec::{ID_INDEX, IndexSpec, OnViolation, Sharding, SpecError, Strategy};
pub use self::stored_keys::StoredKeys;

use self::spec::KeyField;

/// If a document has more keys than this, each further key's spare memory is freed: there may be a million keys.
const FEW: usize = 16;

/// The most memory, in bytes, that the keys of one document may take. A key of several fields repeats their values for each element of an
/// array, so without a limit one document could take all memory.
const KEY_BYTES_MAX: usize = 256 << 20;
/// The same for a stored document. A write may pass with twice its limit, because equal keys are dropped only now and then. A document with more
/// was written past Keyward, or before the limit.
const STORED_KEY_BYTES_MAX: usize = 2 * KEY_BYTES_MAX;
/// The most places to which the arrays of one document may lead.
const PLACES_MAX: usize = 16 << 20;
/// The same for each byte of the fields with these arrays, and for the smallest document: a command may have many documents. They seldom lead
/// to more places than they have elements.
const PLACES_PER_BYTE: usize = 16;
const PLACES_OF_SMALLEST: usize = 1 << 13;

/// The prefix of the names of proxy collections.
pub const PROXY_PREFIX: &str = "keyward.";

/// The version of the stored format: canonical form, bucket, escapes. Keyward refuses any other version.
const FORMAT: i32 = 1;

/// A definition's field with the versions of the libraries that made the sort keys. Only a constraint with a collation
/// has it.
pub const SORT_KEYS_FIELD: &str = "sortKeys";

/// A unique key on one collection, checked.
#[derive(Debug, Clone)]
pub struct Constraint {
    namespace: Namespace,
    name: String,
    key_pattern: RawDocumentBuf,
    fields: Vec<KeyField>,
    filter: Option<Filter>,
    collation: Collation,
    definition: Document,
    spec: IndexSpec,
}

/// Why the server refuses a document before any key is compared.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum KeyError {
    /// Two of the index's paths lead through two arrays.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    ParallelArrays {
        /// The array that the later field of the index leads through.
        later: Vec<u8>,
        /// The array that an earlier field leads through.
        earlier: Vec<u8>,
    },
    /// A numeric path component could be a position or a name.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    AmbiguousField {
        /// The component.
        field: Vec<u8>,
        /// The array, as the server prints it.
        array: Vec<u8>,
    },
    /// The server would replace `Timestamp(0, 0)` by its own time, so Keyward can't know the key before the write.
    /// This is Keyward's own refusal: a native index accepts the document and indexes the time.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    FilledIn {
        /// The constraint's name.
        constraint: String,
    },
    /// The document has a field twice that keys or its place are made of. The server's projection then leaves out fields behind it, so
    /// Keyward would later read other keys. This is Keyward's own refusal: a native index accepts the document.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    Repeated {
        /// The field.
        field: String,
    },
    /// The server may compare a string of the key differently from Keyward. This is Keyward's own refusal: a native
    /// index accepts the string.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    Uncollatable {
        /// The constraint's name.
        constraint: String,
        /// Why.
        reason: Uncollatable,
    },
    /// The keys of the document take more than 256 MiB of memory. This is Keyward's own refusal: a server accepts as much as its cache holds.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    TooLarge {
        /// The constraint's name.
        constraint: String,
    },
    /// The arrays of the document lead to very many places, far more than it has elements. This is Keyward's own refusal.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    TooManyPlaces {
        /// The constraint's name.
        constraint: String,
    },
    /// The document isn't BSON, or is nested deeper than the server allows.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Constraint {
    /// Checks `spec` as the server checks an index specification, and checks that Keyward can enforce it.
    ///
    /// # Errors
    /// [`SpecError`], with the server's code and text if the server also refuses it.
    pub fn new(namespace: Namespace, mut spec: IndexSpec) -> Result<Self, SpecError> {
        check_namespace(&namespace)?;
        if spec.is_on_id() {
            // The server's index on `_id` has this key pattern, however the operator wrote it.
            spec.key = doc! { "_id": 1 };
        }
        let key_pattern = raw_document(&spec.key)?;
        let fields = spec::fields(Doc::new(key_pattern.as_bytes()).map_err(not_bson)?)?;
        let name = spec.index_name()?;
        spec.check_options()?;
        let collation = Collation::new(spec.collation.as_ref())?;
        let filter = spec.partial_filter_expression.as_ref();
        let filter = filter.map(|filter| Filter::new(filter, &collation)).transpose()?;
        let definition = definition(&namespace, &name, &spec, &collation);
        let constraint = Constraint {
            namespace,
            name,
            key_pattern,
            fields,
            filter,
            collation,
            definition,
            spec,
        };
        constraint.check_proxy_collection()?;
        Ok(constraint)
    }

    /// The protected collection.
    pub fn namespace(&self) -> &Namespace {
        &self.namespace
    }

    /// The index's name, which clients see in errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The specification that it was made of.
    pub fn spec(&self) -> &IndexSpec {
        &self.spec
    }

    /// Whether it is the index on `_id`, which every collection has.
    pub fn is_on_id(&self) -> bool {
        self.name == ID_INDEX
    }

    /// The key pattern as the operator wrote it, including its number types.
    pub fn key_pattern(&self) -> &RawDocument {
        &self.key_pattern
    }

    /// Whether it leaves out the documents that don't meet a filter.
    pub fn is_partial(&self) -> bool {
        self.filter.is_some()
    }

    /// How the proxy collection is spread.
    pub fn sharding(&self) -> Sharding {
        self.spec.sharding
    }

    /// How a write is made consistent with its reservations, if the operator chose.
    pub fn strategy(&self) -> Option<Strategy> {
        self.spec.strategy
    }

    /// The same constraint with `strategy: strict`.
    pub fn strict(&self) -> Constraint {
        let mut strict = self.clone();
        strict.spec.strategy = Some(Strategy::Strict);
        strict
    }

    /// Whether a Keyward may serve clients without it if existing documents violate it.
    pub fn may_be_left_out(&self) -> bool {
        self.spec.on_violation == OnViolation::LeaveOut
    }

    /// The collection of this constraint's reservations, in the protected collection's database.
    pub fn proxy_collection(&self) -> Namespace {
        proxy_collection(&self.namespace, &self.name)
    }

    /// Every path whose change can change a document's keys: first the key's fields, then the partial filter's.
    pub fn paths(&self) -> impl Iterator<Item = &str> + Clone {
        let of_filter = self.filter.iter().flat_map(Filter::paths);
        self.fields.iter().map(|field| field.path.as_str()).chain(of_filter)
    }

    /// Whether `is_it` is true for any of [`Constraint::paths`]. A chain of iterators takes more instructions than this, which runs for
    /// each field of each update.
    pub fn has_path(&self, mut is_it: impl FnMut(&str) -> bool) -> bool {
        self.fields.iter().any(|field| is_it(&field.path))
            || self
                .filter
                .as_ref()
                .is_some_and(|filter| filter.paths().into_iter().any(is_it))
    }

    /// The partial filter's tests of types, each with whether `document` meets it. Two equal values may differ in this.
    pub fn type_tests(&self, document: Doc<'_>) -> Result<Vec<TypeTest>, Malformed> {
        match &self.filter {
            Some(filter) => filter.type_tests(document),
            None => Ok(Vec::new()),
        }
    }

    /// The keys that `document` holds, in index order and without equal keys; none if the index leaves the document
    /// out.
    ///
    /// # Errors
    /// [`KeyError`] if the server would refuse the document whatever the collection holds, or if Keyward refuses it.
    pub fn keys(&self, document: Doc<'_>) -> Result<Vec<Key>, KeyError> {
        self.keys_within(document, KEY_BYTES_MAX, self.places_max(document))
    }

    /// The most places to which the arrays of `document` may lead. A later read shows only some of its fields. So only those count that the
    /// paths begin with: else an accepted document could have no keys for the next update of it.
    fn places_max(&self, document: Doc<'_>) -> usize {
        let roots = self.fields.iter().map(|field| root_of(&field.path));
        // The search for the keys reports bytes that aren't BSON.
        let roots = roots.filter_map(|root| document.get(root).ok().flatten());
        let bytes: usize = roots.map(|root| root.value.len()).sum();
        PLACES_MAX.min(PLACES_OF_SMALLEST + bytes * PLACES_PER_BYTE)
    }

    /// The keys that a stored `document` holds. It may be older than the limits of a write, or was written past Keyward. So each document has
    /// the limits of the largest one.
    pub fn keys_of_stored(&self, document: Doc<'_>) -> StoredKeys {
        self.stored_keys_within(document, STORED_KEY_BYTES_MAX, PLACES_MAX)
    }

    fn stored_keys_within(&self, document: Doc<'_>, bytes: usize, places: usize) -> StoredKeys {
        match self.keys_within(document, bytes, places) {
            Ok(keys) => StoredKeys::These(keys.into_iter().collect()),
            Err(KeyError::TooLarge { .. } | KeyError::TooManyPlaces { .. }) => StoredKeys::Unknown,
            Err(_) => StoredKeys::These(HashSet::new()),
        }
    }

    fn keys_within(&self, document: Doc<'_>, bytes_max: usize, places_max: usize) -> Result<Vec<Key>, KeyError> {
        if let Some(filter) = &self.filter
            && !filter.matches(document).map_err(|error| self.unkeyable(error))?
        {
            return Ok(Vec::new());
        }
        let too_large = || KeyError::TooLarge {
            constraint: self.name.clone(),
        };
        let (mut drafts, mut bytes, mut most) = (Vec::new(), 0_usize, bytes_max);
        // Equal keys take time, and no memory in the end.
        let mut time = bytes_max.saturating_mul(8);
        let paths = self.fields.iter().map(|field| field.path.as_str());
        extract::extract(
            paths,
            self.spec.sparse,
            document,
            self.steps(places_max),
            &mut |values| {
                let mut draft = KeyDraft::new(self, values).map_err(|error| self.unkeyable(error))?;
                if drafts.len() >= FEW {
                    draft.shrink();
                }
                bytes += draft.bytes();
                time = time.checked_sub(draft.bytes()).ok_or_else(too_large)?;
                drafts.push(draft);
                if bytes > most {
                    drop_equal(&mut drafts);
                    bytes = drafts.iter().map(KeyDraft::bytes).sum();
                    if bytes > bytes_max {
                        return Err(too_large());
                    }
                    // So that equal keys aren't looked for each time.
                    most = bytes_max + bytes;
                }
                Ok(())
            },
        )?;
        drop_equal(&mut drafts);
        Ok(drafts.into_iter().map(KeyDraft::finish).collect())
    }

    /// Checks what only a new constraint must meet, because an earlier version made constraints without it.
    ///
    /// # Errors
    /// [`SpecError`] if it doesn't.
    pub fn check_new(&self) -> Result<(), SpecError> {
        self.filter.as_ref().map_or(Ok(()), Filter::check_new)
    }

    fn steps(&self, left: usize) -> extract::Steps<'_> {
        extract::Steps {
            left,
            constraint: &self.name,
        }
    }

    /// Whether `document` has none of the constraint's fields: with `sparse: true` it has no key.
    pub fn lacks_fields(&self, document: Doc<'_>) -> bool {
        let mut has_any = false;
        let paths = self.fields.iter().map(|field| field.path.as_str());
        let read = extract::extract(paths, true, document, self.steps(PLACES_MAX), &mut |_| {
            has_any = true;
            Ok(())
        });
        read.is_ok() && !has_any
    }

    /// Whether the server would fill in a value that affects `document`'s keys, so that the keys aren't known yet.
    ///
    /// When a document is inserted or replaces another, the server replaces `Timestamp(0, 0)` in a top-level field by
    /// its time.
    pub fn server_fills_in(&self, document: Doc<'_>) -> Result<bool, Malformed> {
        fills_in(document, self.paths())
    }

    /// The constraint's definition, which is stored in the cluster and compared between Keywards.
    ///
    /// Two constraints have equal definitions exactly if they may share a proxy collection.
    pub fn definition(&self) -> Document {
        self.definition.clone()
    }

    /// Whether both are the same constraint, including the order of their fields; the strategy doesn't matter.
    pub fn is_equivalent(&self, other: &Constraint) -> bool {
        self.has_name_of(other) && self.states_collation() == other.states_collation() && self.is_defined_as(other)
    }

    /// Whether both definitions are the same byte for byte. Equality of documents ignores the order of fields, but reservations keep the
    /// order of a key's fields.
    pub fn is_defined_as(&self, other: &Constraint) -> bool {
        let definitions = (self.definition.to_vec(), other.definition.to_vec());
        matches!(definitions, (Ok(one), Ok(other)) if one == other)
    }

    /// The number of its entry in the list of clients' constraints, if a client made it.
    pub fn client_entry(&self) -> Option<ObjectId> {
        self.spec.client_entry
    }

    /// The same constraint, with another number in the list of clients' constraints.
    pub fn in_entry(&self, id: ObjectId) -> Constraint {
        let mut constraint = self.clone();
        constraint.spec.client_entry = Some(id);
        constraint
    }

    /// The error of a document whose `key` is taken.
    ///
    /// `key` comes from [`Constraint::keys`], so it has its values. Under a collation the error shows sort keys of
    /// ICU4X, because only the server knows its own: see [`Constraint::duplicate_showing`].
    pub fn duplicate(&self, key: &Key) -> DuplicateKey {
        self.duplicate_showing(key, &HashMap::new())
    }

    /// Works as [`Constraint::duplicate`], but with the server's own `sort_keys` of the key's strings.
    pub fn duplicate_showing(&self, key: &Key, sort_keys: &HashMap<Vec<u8>, Vec<u8>>) -> DuplicateKey {
        DuplicateKey::new(
            self,
            key,
            &mut |string| match (sort_keys.get(string), &self.collation) {
                (Some(sort_key), _) => sort_key.clone(),
                (None, Collation::Icu(icu)) => icu.sort_key(string).unwrap_or_default(),
                (None, Collation::Simple) => string.to_vec(),
            },
        )
    }

    /// The strings in `key` whose sort keys an error shows; none without a collation.
    pub fn collated_strings(&self, key: &Key) -> Vec<Vec<u8>> {
        let mut strings: BTreeSet<Vec<u8>> = BTreeSet::new();
        DuplicateKey::new(self, key, &mut |string| {
            strings.insert(string.to_vec());
            Vec::new()
        });
        strings.into_iter().collect()
    }

    /// The same constraint with its collection's `collation`, which an index without a collation inherits. `None` if
    /// the operator stated a collation, or if the collection has none.
    ///
    /// # Errors
    /// [`SpecError`] if a constraint can't have that collation.
    pub fn inheriting(&self, collation: Option<&Document>) -> Result<Option<Self>, SpecError> {
        let (None, Some(collation)) = (&self.spec.collation, collation) else {
            return Ok(None);
        };
        let spec = IndexSpec {
            collation: Some(collation.clone()),
            ..self.spec.clone()
        };
        Self::new(self.namespace.clone(), spec).map(Some)
    }

    /// Whether the operator stated a collation, including the simple one. If not, the collection's collation applies.
    pub fn states_collation(&self) -> bool {
        self.spec.collation.is_some()
    }

    /// All fields of its collation, as the server shows them; none for the simple collation.
    pub fn collation(&self) -> Option<&RawDocument> {
        self.collation.resolved().map(|resolved| &**resolved)
    }

    fn unkeyable(&self, error: Uncomparable) -> KeyError {
        match error {
            Uncomparable::Malformed(malformed) => KeyError::Malformed(malformed),
            Uncomparable::Uncollatable(reason) => KeyError::Uncollatable {
                constraint: self.name.clone(),
                reason,
            },
        }
    }

    fn check_proxy_collection(&self) -> Result<(), SpecError> {
        let proxy_collection = self.proxy_collection();
        proxy_collection.check()?;
        if proxy_collection.len() > Namespace::MAX_SHARDED_BYTES {
            let reason = "the proxy collection's name would be longer than 235 bytes";
            return Err(SpecError::Name {
                name: self.name.clone(),
                reason,
            });
        }
        Ok(())
    }
}

impl KeyError {
    /// The code of the server's error.
    pub fn code(&self) -> i32 {
        match self {
            KeyError::ParallelArrays { .. } => code::CANNOT_INDEX_PARALLEL_ARRAYS,
            KeyError::AmbiguousField { .. } => code::AMBIGUOUS_FIELD,
            KeyError::FilledIn { .. }
            | KeyError::Repeated { .. }
            | KeyError::Uncollatable { .. }
            | KeyError::TooLarge { .. }
            | KeyError::TooManyPlaces { .. } => code::COMMAND_NOT_SUPPORTED,
            KeyError::Malformed(_) => code::INVALID_BSON,
        }
    }

    /// The server's text, which may be invalid UTF-8.
    pub fn errmsg(&self) -> Vec<u8> {
        match self {
            KeyError::ParallelArrays { later, earlier } => {
                [&b"cannot index parallel arrays ["[..], later, b"] [", earlier, b"]"].concat()
            }
            KeyError::AmbiguousField { field, array } => {
                let text = b"Ambiguous field name found in array (do not use numeric field names in embedded elements \
                             in an array), field: '";
                [&text[..], field, b"' for array: ", array].concat()
            }
            KeyError::Repeated { field } => format!(
                "Keyward can't keep unique constraints on a document that has the field {field} twice: the server doesn't show the \
                 fields behind it to a reader; give the document one such field"
            )
            .into_bytes(),
            KeyError::FilledIn { constraint } => format!(
                "Keyward can't reserve a key of unique constraint {constraint} ahead: the server puts its time in the place of \
                 Timestamp(0, 0); insert the time itself, or set it with $currentDate afterwards"
            )
            .into_bytes(),
            KeyError::Uncollatable { constraint, reason } => format!(
                "Keyward can't be sure to compare a value as the server does under the collation of unique constraint \
                 {constraint}: {reason}"
            )
            .into_bytes(),
            KeyError::TooLarge { constraint } => format!(
                "Keyward can't reserve the keys of unique constraint {constraint}: together they take more than 256 MiB, because each \
                 element of an array has a key with all other fields of the index; shorten the array or those fields"
            )
            .into_bytes(),
            KeyError::TooManyPlaces { constraint } => format!(
                "Keyward can't find the keys of unique constraint {constraint} in this document: the arrays on its paths lead to too many \
                 places; shorten them"
            )
            .into_bytes(),
            KeyError::Malformed(malformed) => malformed.to_string().into_bytes(),
        }
    }
}

/// Sorts the keys of a document. If some are equal, the first in the document stays, as in the server's set.
fn drop_equal(drafts: &mut Vec<KeyDraft>) {
    drafts.sort_by(|a, b| a.canonical().cmp(b.canonical()));
    drafts.dedup_by(|a, b| a.canonical() == b.canonical());
}

/// The collection of the reservations of the constraint `name` on the collection `namespace`.
///
/// Two constraints can have the same proxy collection name, because both parts of it may contain dots.
pub fn proxy_collection(namespace: &Namespace, name: &str) -> Namespace {
    let collection = format!("{PROXY_PREFIX}{}.{name}", namespace.collection);
    Namespace::new(namespace.database.clone(), collection)
}

/// Whether the server fills in a value at one of `paths` when it inserts `document` or replaces another one by it: the server
/// replaces `Timestamp(0, 0)` in a top-level field by its time.
pub fn fills_in<'p>(document: Doc<'_>, paths: impl Iterator<Item = &'p str> + Clone) -> Result<bool, Malformed> {
    document.any(|element| {
        let is_zero = element.kind == ElementType::Timestamp && element.value == [0; 8];
        // A path with a dot leads into a document, never to a field with a dot in its name.
        let may_decide = element.name != b"_id" && !element.name.contains(&b'.');
        Ok(is_zero && may_decide && paths.clone().any(|path| path.as_bytes() == element.name))
    })
}

fn check_namespace(namespace: &Namespace) -> Result<(), SpecError> {
    namespace.check()?;
    let reserved = OF_MONGODB.contains(&namespace.database.as_str())
        || namespace.collection.starts_with("system.")
        || namespace.collection.starts_with(PROXY_PREFIX);
    match reserved {
        true => Err(SpecError::ReservedNamespace(namespace.to_string())),
        false => Ok(()),
    }
}

fn definition(namespace: &Namespace, name: &str, spec: &IndexSpec, collation: &Collation) -> Document {
    let mut definition = doc! {
        "format": FORMAT,
        "collection": namespace.to_string(),
        "name": name,
        "key": spec.key.clone(),
        "sparse": spec.sparse,
    };
    if let Some(filter) = &spec.partial_filter_expression {
        definition.insert("partialFilterExpression", filter.clone());
    }
    if let Some(resolved) = collation
        .resolved()
        .and_then(|resolved| Document::try_from(resolved).ok())
    {
        definition.insert("collation", resolved);
        definition.insert(SORT_KEYS_FIELD, SORT_KEYS);
    }
    if spec.sharding == Sharding::Ranged {
        definition.insert("sharding", "ranged");
    }
    definition
}

fn raw_document(document: &Document) -> Result<RawDocumentBuf, SpecError> {
    RawDocumentBuf::try_from(document).map_err(|error| SpecError::refused(code::BAD_VALUE, error.to_string()))
}

/// The server's error for an index that isn't BSON.
pub fn not_bson(malformed: Malformed) -> SpecError {
    SpecError::refused(code::BAD_VALUE, malformed.to_string())
}

#[cfg(test)]
mod tests;
