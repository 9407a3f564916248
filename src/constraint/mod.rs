//! Constraints: what a key is, and when two are the same.
//!
//! It turns an index specification into a checked [`Constraint`], a document into the [`Key`]s that it holds, and a key
//! into a reservation's `_id` or into the error that a client sees when the key is taken. All of it is what a native
//! unique index of the server does, or it is refused when the constraint is made. Pure: no input, no output, no clock.

mod canonical;
mod collation;
mod display;
mod duplicate;
mod extract;
mod filter;
mod key;
mod number;
mod rewrite;
mod spec;
mod text;

use std::collections::HashMap;

use bson::{Document, RawDocument, RawDocumentBuf, doc, spec::ElementType};

use self::canonical::Uncomparable;
use self::collation::{Collation, SORT_KEYS};
use self::filter::Filter;
use self::key::Draft;
use crate::namespace::Namespace;
use crate::raw::{Doc, Malformed};

pub use self::canonical::id_identity;
pub use self::collation::{Uncollatable, resolved_collation};
pub use self::duplicate::DuplicateKey;
pub use self::filter::TypeTest;
pub use self::key::{Key, MAX_VERBATIM_BYTES, MAX_VERBATIM_DEPTH, ReservationIdError};
pub(crate) use self::text::bytes_of_hex;

pub use self::spec::{IndexSpec, Sharding, SpecError, Strategy};

use self::spec::{Field, ID_INDEX};

/// Of a document with more keys than this each takes no more memory than it must: there may be a million.
const FEW: usize = 16;

/// What the names of proxy collections start with.
pub const PROXY_PREFIX: &str = "keyward.";

/// The version of everything that is stored: canonical form, bucket, escapes. A Keyward refuses another one's.
const FORMAT: i32 = 1;

/// The field of a definition with what made the sort keys; only a constraint with a collation has it.
pub const SORT_KEYS_FIELD: &str = "sortKeys";

/// A unique key on one collection, checked.
#[derive(Debug, Clone)]
pub struct Constraint {
    namespace: Namespace,
    name: String,
    key_pattern: RawDocumentBuf,
    fields: Vec<Field>,
    sparse: bool,
    filter: Option<Filter>,
    collation: Collation,
    sharding: Sharding,
    strategy: Option<Strategy>,
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
        /// The array that an earlier one does.
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
    /// The server would put its own time in the place of `Timestamp(0, 0)`, so the key isn't known ahead. Keyward's own
    /// refusal: a native index takes the time.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    FilledIn {
        /// The constraint's name.
        constraint: String,
    },
    /// The server may compare a string of the key otherwise than Keyward. Keyward's own refusal: a native index takes it.
    #[error("{}", String::from_utf8_lossy(&self.errmsg()))]
    Uncollatable {
        /// The constraint's name.
        constraint: String,
        /// Why.
        reason: Uncollatable,
    },
    /// The document isn't BSON, or nests deeper than any that the server takes.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl Constraint {
    /// Checks `spec` as the server checks an index specification, and that Keyward can keep it.
    ///
    /// # Errors
    /// [`SpecError`], with the server's code and text where the server refuses it, too.
    pub fn new(namespace: Namespace, mut spec: IndexSpec) -> Result<Self, SpecError> {
        check_namespace(&namespace)?;
        if spec.is_on_id() {
            // However it is written, the server has this one.
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
            sparse: spec.sparse,
            filter,
            collation,
            sharding: spec.sharding,
            strategy: spec.strategy,
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

    /// The index's name, by which clients know it from errors.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether it is the index that every collection has.
    pub fn is_on_id(&self) -> bool {
        self.name == ID_INDEX
    }

    /// The key pattern as it was written, its number types included.
    pub fn key_pattern(&self) -> &RawDocument {
        &self.key_pattern
    }

    /// How the proxy collection is spread.
    pub fn sharding(&self) -> Sharding {
        self.sharding
    }

    /// How writes are made one with their reservations, if the operator chose.
    pub fn strategy(&self) -> Option<Strategy> {
        self.strategy
    }

    /// The collection of this constraint's reservations, in the protected collection's database.
    pub fn proxy_collection(&self) -> Namespace {
        proxy_collection(&self.namespace, &self.name)
    }

    /// Every path whose change can change a document's keys: the key's fields, then those of the partial filter.
    pub fn paths(&self) -> impl Iterator<Item = &str> {
        let of_filter = self.filter.iter().flat_map(Filter::paths);
        self.fields.iter().map(|field| field.path.as_str()).chain(of_filter)
    }

    /// The partial filter's tests of types, each with whether `document` meets it: equal values may differ in them.
    ///
    /// # Errors
    /// [`Malformed`] if `document` is.
    pub fn type_tests(&self, document: Doc<'_>) -> Result<Vec<TypeTest>, Malformed> {
        match &self.filter {
            Some(filter) => filter.type_tests(document),
            None => Ok(Vec::new()),
        }
    }

    /// The keys that `document` holds, in index order, no two of them equal; none if the index leaves it out.
    ///
    /// # Errors
    /// [`KeyError`] if the server would refuse the document, whatever else the collection holds.
    pub fn keys(&self, document: Doc<'_>) -> Result<Vec<Key>, KeyError> {
        if let Some(filter) = &self.filter
            && !filter.matches(document).map_err(|error| self.unkeyable(error))?
        {
            return Ok(Vec::new());
        }
        let mut drafts = Vec::new();
        let paths = self.fields.iter().map(|field| field.path.as_str());
        extract::extract(paths, self.sparse, document, &mut |values| {
            let mut draft = Draft::new(self, values).map_err(|error| self.unkeyable(error))?;
            if drafts.len() >= FEW {
                draft.shrink();
            }
            drafts.push(draft);
            Ok(())
        })?;
        // Of equal keys the first in the document stays: the one that the server's set keeps.
        drafts.sort_by(|a, b| a.canonical().cmp(b.canonical()));
        drafts.dedup_by(|a, b| a.canonical() == b.canonical());
        Ok(drafts.into_iter().map(Draft::finish).collect())
    }

    /// Whether the server would fill in a value that decides over `document`'s keys when it is inserted or replaces
    /// another: it puts its time in the place of `Timestamp(0, 0)` in a top-level field. Then the keys aren't known yet.
    ///
    /// # Errors
    /// [`Malformed`] if `document` is.
    pub fn server_fills_in(&self, document: Doc<'_>) -> Result<bool, Malformed> {
        for element in document.elements() {
            let element = element?;
            let is_zero = element.kind == ElementType::Timestamp && element.value == [0; 8];
            // A path with a dot leads into a document, never to a field that has the dot in its name.
            let may_decide = element.name != b"_id" && !element.name.contains(&b'.');
            if is_zero && may_decide && self.paths().any(|path| path.as_bytes() == element.name) {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// What this constraint is, to be stored in the cluster and compared between Keywards: equal for two constraints
    /// exactly if they may share a proxy collection.
    pub fn definition(&self) -> Document {
        self.definition.clone()
    }

    /// The error of a document whose `key` is taken.
    ///
    /// `key` is one that [`Constraint::keys`] gave, so that it has its values. Under a collation it shows sort keys of
    /// ICU4X in the place of the server's, which only the server can tell: see [`Constraint::duplicate_showing`].
    pub fn duplicate(&self, key: &Key) -> DuplicateKey {
        self.duplicate_showing(key, &HashMap::new())
    }

    /// The same with the server's own `sort_keys` of the key's strings.
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

    /// The strings in `key` that an error shows the sort keys of; none without a collation.
    pub fn collated_strings(&self, key: &Key) -> Vec<Vec<u8>> {
        let mut strings: Vec<Vec<u8>> = Vec::new();
        DuplicateKey::new(self, key, &mut |string| {
            if !strings.iter().any(|other| other == string) {
                strings.push(string.to_vec());
            }
            Vec::new()
        });
        strings
    }

    /// The same constraint with `collation`, where the operator chose none: an index without one has its collection's.
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

    /// Whether the operator stated a collation, be it the simple one: without, that of the collection counts.
    pub fn states_collation(&self) -> bool {
        self.spec.collation.is_some()
    }

    /// Its collation, all fields as the server shows them; none for the simple one.
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
    /// The code of the server's error; none for what isn't BSON, which the server refuses before it is a document.
    pub fn code(&self) -> Option<i32> {
        match self {
            KeyError::ParallelArrays { .. } => Some(171),
            KeyError::AmbiguousField { .. } => Some(16746),
            KeyError::FilledIn { .. } | KeyError::Uncollatable { .. } => Some(115),
            KeyError::Malformed(_) => None,
        }
    }

    /// The name that a command error gives the code.
    pub fn code_name(&self) -> Option<&'static str> {
        match self {
            KeyError::ParallelArrays { .. } => Some("CannotIndexParallelArrays"),
            KeyError::AmbiguousField { .. } => Some("Location16746"),
            KeyError::FilledIn { .. } | KeyError::Uncollatable { .. } => Some("CommandNotSupported"),
            KeyError::Malformed(_) => None,
        }
    }

    /// The server's text, which need not be UTF-8.
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
            KeyError::Malformed(malformed) => malformed.to_string().into_bytes(),
        }
    }
}

/// The collection of the reservations of the constraint `name` on the collection `namespace`. As both names may have dots in them,
/// another constraint's may be the same.
pub fn proxy_collection(namespace: &Namespace, name: &str) -> Namespace {
    let collection = format!("{PROXY_PREFIX}{}.{name}", namespace.collection);
    Namespace::new(namespace.database.clone(), collection)
}

fn check_namespace(namespace: &Namespace) -> Result<(), SpecError> {
    namespace.check()?;
    let reserved = matches!(namespace.database.as_str(), "admin" | "config" | "local")
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
    RawDocumentBuf::try_from(document).map_err(|error| SpecError::refused(2, error.to_string()))
}

fn not_bson(malformed: Malformed) -> SpecError {
    SpecError::refused(2, malformed.to_string())
}

/// The server's name of a type, as `$type` takes it.
fn type_name(kind: ElementType) -> &'static str {
    match kind {
        ElementType::Double => "double",
        ElementType::String => "string",
        ElementType::EmbeddedDocument => "object",
        ElementType::Array => "array",
        ElementType::Binary => "binData",
        ElementType::Undefined => "undefined",
        ElementType::ObjectId => "objectId",
        ElementType::Boolean => "bool",
        ElementType::DateTime => "date",
        ElementType::Null => "null",
        ElementType::RegularExpression => "regex",
        ElementType::DbPointer => "dbPointer",
        ElementType::JavaScriptCode => "javascript",
        ElementType::JavaScriptCodeWithScope => "javascriptWithScope",
        ElementType::Int32 => "int",
        ElementType::Timestamp => "timestamp",
        ElementType::Int64 => "long",
        ElementType::Symbol => "symbol",
        ElementType::Decimal128 => "decimal",
        ElementType::MaxKey => "maxKey",
        ElementType::MinKey => "minKey",
    }
}

#[cfg(test)]
mod tests;
