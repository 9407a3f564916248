//! Makes filters that find reservations by their keys, so that a router asks only the shards on which they lie.
//!
//! The shard key of a proxy collection is `{"_id.h": "hashed"}`, or `{_id: 1}` ([`crate::prepare`]). These filters suit both:
//!
//! - A filter for one key names its `_id` alone. A router reads `h` inside it. If the filter also named `"_id.h"`, the router
//!   would find no shard key in it. It would refuse to delete one document by it.
//! - A router doesn't read inside a list of `_id`s. So a filter for several keys also lists their `h`s.

use bson::{RawBson, RawDocumentBuf, cstr, rawdoc, spec::ElementType};

use super::reservation::token_value;
use super::{Reservation, ReservationVersion};
use crate::constraint::Key;
use crate::raw::Builder;
use crate::reservation::Token;

/// Matches the reservation of `key`. More conditions may follow, but none about a part of `_id`.
pub fn key_filter(key: &Key) -> RawDocumentBuf {
    rawdoc! { "_id": key.reservation_id() }
}

/// Matches the reservation of `key` that has this token.
pub(super) fn token_filter(key: &Key, token: Token) -> RawDocumentBuf {
    let mut filter = key_filter(key);
    filter.append(cstr!("token"), token_value(token));
    filter
}

/// Matches the reservation of `key` that has this token and generation.
pub(super) fn version_filter(key: &Key, version: ReservationVersion) -> RawDocumentBuf {
    let mut filter = token_filter(key, version.token);
    match version.generation {
        // Null matches an absent field.
        0 => filter.append(cstr!("beginning"), RawBson::Null),
        generation => filter.append(cstr!("beginning"), i64::from(generation)),
    }
    filter
}

/// Matches only the write that was seen: an attempt that begins again reserves under its old token again.
pub(super) fn seen_filter(key: &Key, seen: &Reservation) -> RawDocumentBuf {
    let mut filter = token_filter(key, seen.token);
    filter.append(cstr!("at"), seen.at);
    filter
}

pub(super) fn seen_filters(keys: &[(&Key, &Reservation)]) -> Vec<RawDocumentBuf> {
    keys.iter().map(|(key, seen)| seen_filter(key, seen)).collect()
}

/// The condition that a field has this value.
///
/// The server compares no value with undefined, so the condition is on the type. The server refuses undefined as an `_id`,
/// but Keyward writes the reservation before that.
pub(super) fn equal_to(value: RawBson) -> RawDocumentBuf {
    match value {
        RawBson::Undefined => rawdoc! { "$type": "undefined" },
        value => rawdoc! { "$eq": value },
    }
}

/// Appends the conditions that match the reservations of `keys`. The command needs [`append_hint`], too.
pub(super) fn append_keys<'k>(filter: &mut Builder, keys: impl Iterator<Item = &'k Key> + Clone) {
    filter
        .open(ElementType::EmbeddedDocument, b"_id")
        .documents("$in", keys.clone().map(|key| key.reservation_id().into_bytes()))
        .close();
    let mut buckets = keys.filter_map(Key::stored_bucket).peekable();
    if buckets.peek().is_some() {
        filter
            .open(ElementType::EmbeddedDocument, b"_id.h")
            .int32s("$in", buckets)
            .close();
    }
}

/// Makes a `find` use the index on `_id`. The index on `h` would lead it to all reservations with the same `h`.
pub(super) fn append_hint(find: &mut Builder) {
    find.open(ElementType::EmbeddedDocument, b"hint")
        .int32("_id", 1)
        .close();
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;
    use crate::constraint::{Constraint, IndexSpec, Sharding};
    use crate::namespace::Namespace;
    use crate::raw::Doc;
    use crate::reservation::WriteId;

    fn keys(sharding: Sharding) -> Vec<Key> {
        let spec = IndexSpec {
            key: doc! { "n": 1 },
            sharding,
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(Namespace::new("db", "c"), spec).unwrap();
        let key = |n: i32| {
            let document = doc! { "n": n }.to_vec().unwrap();
            constraint.keys(Doc::new(&document).unwrap()).unwrap().remove(0)
        };
        vec![key(1), key(2)]
    }

    fn filter_of(keys: &[Key]) -> Document {
        let mut filter = Builder::new();
        append_keys(&mut filter, keys.iter());
        Document::from_reader(&*filter.finish()).unwrap()
    }

    /// A router would refuse to delete by a filter that names both.
    #[test]
    fn a_filter_for_one_key_names_its_id_alone() {
        let keys = keys(Sharding::Hashed);
        let filter = Document::try_from(&token_filter(&keys[0], Token::of(WriteId([1; 16])))).unwrap();
        assert_eq!(filter.keys().collect::<Vec<_>>(), ["_id", "token"]);
        assert!(filter.get_document("_id").unwrap().contains_key("h"));
    }

    #[test]
    fn a_filter_for_several_keys_lists_their_buckets() {
        let keys = keys(Sharding::Hashed);
        let filter = filter_of(&keys);
        let buckets: Vec<i32> = keys.iter().map(Key::bucket).collect();
        assert_eq!(filter.get_document("_id.h").unwrap(), &doc! { "$in": buckets });
        assert_eq!(filter.get_document("_id").unwrap().get_array("$in").unwrap().len(), 2);
    }

    #[test]
    fn keys_that_are_spread_by_ranges_have_no_bucket() {
        let filter = filter_of(&keys(Sharding::Ranged));
        assert_eq!(filter.keys().collect::<Vec<_>>(), ["_id"]);
    }
}
