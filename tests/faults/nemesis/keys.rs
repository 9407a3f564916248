//! Which keys a document of the workload holds, and which key a reservation is for, in one form.

use std::collections::BTreeSet;

use bson::{Bson, Document};

use testkit::index_values;

/// A unique key: the field and its value as the index has it.
pub type Held = (String, String);

/// The fields that are unique by a constraint of Keyward's.
pub const FIELDS: [&str; 2] = ["email", "tags"];
/// The field that is unique at times.
pub const PHONE: &str = "phone";

/// The keys that a document holds, those that are unique at times included.
pub fn keys_of(document: &Document) -> BTreeSet<Held> {
    let of = |field: &str| {
        let values = index_values(document, field).into_iter();
        let field = field.to_owned();
        values.map(move |value| (field.clone(), value))
    };
    let mut keys: BTreeSet<Held> = FIELDS.iter().flat_map(|field| of(field)).collect();
    if document.contains_key(PHONE) {
        keys.extend(of(PHONE));
    }
    keys
}

/// Whether the key is unique at times only.
pub fn is_phone(key: &Held) -> bool {
    key.0 == PHONE
}

/// The key of an index with this field that has this value.
pub fn key(field: &str, value: &Bson) -> Held {
    (field.to_owned(), format!("{value:?}"))
}

/// The key that a reservation is for.
pub fn reserved(reservation: &Document) -> Option<Held> {
    let key = reservation.get_document("_id").ok()?.get_document("k").ok()?;
    let (field, value) = key.iter().next()?;
    Some(self::key(field, value))
}
