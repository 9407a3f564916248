//! Determines which unique indexes become constraints when a collection is sharded, and how each is made anew.
//!
//! It does no I/O.

use bson::{Bson, Document, doc};

use super::ShardRefusal;
use crate::constraint::{Constraint, ID_INDEX, IndexSpec};
use crate::indexes::{ListedIndex, is_index_of, is_same_key, server_can_keep, specification_of};
use crate::namespace::Namespace;
use crate::raw::Doc;

/// How the name of an index begins that serves queries while another one is made anew.
const MEANWHILE: &str = "keyward_meanwhile_";
/// The field behind the key of such an index. No document has it, so the index serves the same queries.
const MEANWHILE_FIELD: &str = "keyward_meanwhile";

/// Fields that `listIndexes` adds, or that mean nothing any more.
const DROPPED: [&str; 4] = ["v", "ns", "background", "unique"];
/// Fields that an index keeps when a constraint takes its uniqueness over.
const KEPT: [&str; 6] = [
    "key",
    "name",
    "sparse",
    "partialFilterExpression",
    "collation",
    "hidden",
];

/// A collection's indexes.
pub struct Indexes<'a> {
    /// The collection.
    pub namespace: &'a Namespace,
    /// Whether it has a default collation.
    pub is_collated: bool,
    /// The indexes, as `listIndexes` shows them.
    pub listed: Vec<Document>,
}

/// A unique index that becomes a constraint.
#[derive(Debug, Clone)]
pub struct UniqueIndex {
    /// The constraint.
    pub constraint: Constraint,
    /// The index without `unique`, as `createIndexes` takes it.
    pub plain: Document,
}

/// A step of making an index anew, without `unique`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexStep {
    /// Make the index that serves its queries meanwhile.
    MakeMeanwhile,
    /// Drop it.
    DropUnique,
    /// Make it without `unique`.
    MakePlain,
    /// Drop the index that served its queries meanwhile.
    DropMeanwhile,
    /// Nothing is left to do.
    Done,
}

impl Indexes<'_> {
    /// The unique indexes that the server couldn't keep unique under `shard_key`. That includes those that an earlier `keyward shard` hasn't
    /// made anew to the end.
    ///
    /// # Errors
    /// [`ShardRefusal`] if one can't be a constraint, has options that the constraint's index couldn't have, or can't be made anew.
    pub fn to_take_over(&self, shard_key: &[String]) -> Result<Vec<UniqueIndex>, ShardRefusal> {
        let mut taken_over: Vec<UniqueIndex> = Vec::new();
        for index in &self.listed {
            let is_unique = index.get_bool("unique").unwrap_or(false);
            // If an index stands in for an original, an earlier run has made the constraint, by whatever shard key.
            let (original, is_begun) = match original_of(index) {
                Some(original) => (original, true),
                None if is_unique && !is_on_id(index) => (index.clone(), false),
                None => continue,
            };
            let specification = self.specification(&original)?;
            if !is_begun && server_can_keep(&specification, None, shard_key) {
                continue;
            }
            let unique = self.unique_index(&original, specification)?;
            let is_known = taken_over.iter().any(|one| one.name() == unique.name());
            if !is_known {
                taken_over.push(unique);
            }
        }
        for unique in &taken_over {
            self.next_step(unique)?;
            self.check_alone(unique)?;
        }
        Ok(taken_over)
    }

    /// The next step of making it anew, without `unique`. While one run is at work, queries have an index at every step.
    ///
    /// # Errors
    /// [`ShardRefusal::OtherIndex`] if another index has its name.
    pub fn next_step(&self, unique: &UniqueIndex) -> Result<IndexStep, ShardRefusal> {
        let index = self.named(unique.name());
        let meanwhile = self.named(&unique.meanwhile_name());
        let begun = meanwhile.map(|index| original_of(index).unwrap_or_else(|| index.clone()));
        for index in index.into_iter().chain(&begun) {
            if !is_index_of(&self.specification(index)?, &unique.constraint) {
                let (name, meanwhile) = (unique.name().to_owned(), unique.meanwhile_name());
                return Err(ShardRefusal::OtherIndex { name, meanwhile });
            }
        }
        let is_unique = index.map(|index| index.get_bool("unique").unwrap_or(false));
        Ok(match (is_unique, meanwhile.is_some()) {
            (Some(true), false) => IndexStep::MakeMeanwhile,
            (Some(true), true) => IndexStep::DropUnique,
            // Without the other one, too: of two runs at once, one may have dropped what the other had made.
            (None, _) => IndexStep::MakePlain,
            (Some(false), true) => IndexStep::DropMeanwhile,
            (Some(false), false) => IndexStep::Done,
        })
    }

    /// Whether the server can shard the collection by `key` with one of the indexes.
    pub fn serve_shard_key(&self, key: &Document) -> bool {
        let begins = |index: &Document| {
            let fields = index.get_document("key").into_iter().flatten();
            let begin: Document = fields
                .take(key.len())
                .map(|(path, kind)| (path.clone(), kind.clone()))
                .collect();
            is_same_key(&begin, key)
        };
        let mut whole = self.listed.iter().filter(|index| {
            let is_limited = ["sparse", "hidden"]
                .iter()
                .any(|option| index.get_bool(option).unwrap_or(false));
            !is_limited && !index.contains_key("partialFilterExpression") && !index.contains_key("collation")
        });
        whole.any(begins)
    }

    /// The indexes in the form that is compared with the list of clients' constraints. An index that serves queries meanwhile stands for
    /// the one that is made anew.
    pub fn for_list(&self) -> Vec<ListedIndex> {
        let listed = self.listed.iter().filter_map(|index| match original_of(index) {
            Some(original) => original.to_vec().ok(),
            None => index.to_vec().ok(),
        });
        let listed = listed.filter_map(|index| ListedIndex::of(Doc::new(&index).ok()?).ok()?);
        listed.collect()
    }

    /// A name that none of the indexes has, for one with this `key`.
    pub fn free_name(&self, key: &Document) -> String {
        let part = |(path, kind): (&String, &Bson)| match kind.as_str() {
            Some(kind) => format!("{path}_{kind}"),
            None => format!("{path}_1"),
        };
        let mut name = key.iter().map(part).collect::<Vec<_>>().join("_");
        while self.named(&name).is_some() {
            name.push_str("_shard_key");
        }
        name
    }

    fn named(&self, name: &str) -> Option<&Document> {
        let is_it = |index: &&Document| index.get_str("name").is_ok_and(|one| one == name);
        self.listed.iter().find(is_it)
    }

    /// A server has no two indexes without `unique` that have the same key and options.
    fn check_alone(&self, unique: &UniqueIndex) -> Result<(), ShardRefusal> {
        for index in &self.listed {
            let other = index.get_str("name").unwrap_or_default();
            let is_plain = !index.get_bool("unique").unwrap_or(false) && other != unique.name();
            if is_plain && is_index_of(&self.specification(index)?, &unique.constraint) {
                let (name, other) = (unique.name().to_owned(), other.to_owned());
                return Err(ShardRefusal::PlainToo { name, other });
            }
        }
        Ok(())
    }

    fn specification(&self, index: &Document) -> Result<IndexSpec, ShardRefusal> {
        let kept = index.iter().filter(|(field, _)| KEPT.contains(&field.as_str()));
        let kept: Document = kept.map(|(field, value)| (field.clone(), value.clone())).collect();
        let specification = kept.to_vec().ok();
        let specification = specification.and_then(|bytes| specification_of(Doc::new(&bytes).ok()?).ok()?);
        let Some(mut specification) = specification else {
            let name = index.get_str("name").unwrap_or_default();
            return Err(ShardRefusal::Unreadable(name.to_owned()));
        };
        if self.is_collated && specification.collation.is_none() {
            // The index would inherit the collection's collation.
            specification.collation = Some(doc! { "locale": "simple" });
        }
        Ok(specification)
    }

    fn unique_index(&self, index: &Document, specification: IndexSpec) -> Result<UniqueIndex, ShardRefusal> {
        let name = index.get_str("name").unwrap_or_default().to_owned();
        let is_unknown = |field: &&String| !DROPPED.contains(&field.as_str()) && !KEPT.contains(&field.as_str());
        if let Some(option) = index.keys().find(is_unknown) {
            let option = option.clone();
            return Err(ShardRefusal::Option { name, option });
        }
        let kept = index.iter().filter(|(field, _)| KEPT.contains(&field.as_str()));
        let mut plain: Document = kept.map(|(field, value)| (field.clone(), value.clone())).collect();
        if let Some(collation) = &specification.collation {
            plain.insert("collation", collation.clone());
        }
        let constraint = Constraint::new(self.namespace.clone(), specification);
        let constraint = constraint.map_err(|error| ShardRefusal::Specification { name, error })?;
        Ok(UniqueIndex { constraint, plain })
    }
}

impl UniqueIndex {
    /// Its name.
    pub fn name(&self) -> &str {
        self.constraint.name()
    }

    /// The index that serves its queries while it is made anew.
    pub fn meanwhile(&self) -> Document {
        let mut meanwhile = self.plain.clone();
        meanwhile.insert("name", self.meanwhile_name());
        if let Ok(key) = meanwhile.get_document_mut("key") {
            key.insert(MEANWHILE_FIELD, 1);
        }
        meanwhile
    }

    /// The name of [`UniqueIndex::meanwhile`].
    pub fn meanwhile_name(&self) -> String {
        format!("{MEANWHILE}{}", self.name())
    }
}

/// Whether it is the index on `_id`, which a server shows as unique if the collection is clustered. It isn't in the way of a shard key.
fn is_on_id(index: &Document) -> bool {
    index.get_str("name").is_ok_and(|name| name == ID_INDEX)
}

/// The index for which `index` serves queries meanwhile, if it is such a one.
fn original_of(index: &Document) -> Option<Document> {
    let name = index.get_str("name").ok()?.strip_prefix(MEANWHILE)?;
    let mut key = index.get_document("key").ok()?.clone();
    key.remove(MEANWHILE_FIELD)?;
    let mut original = index.clone();
    original.insert("name", name);
    original.insert("key", key);
    Some(original)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn namespace() -> Namespace {
        Namespace::new("shop", "users")
    }

    fn with_indexes<T>(listed: &[Document], is_collated: bool, look: impl FnOnce(&Indexes<'_>) -> T) -> T {
        look(&Indexes {
            namespace: &namespace(),
            is_collated,
            listed: listed.to_vec(),
        })
    }

    fn to_take_over(listed: &[Document], shard_key: &str) -> Result<Vec<UniqueIndex>, ShardRefusal> {
        with_indexes(listed, false, |indexes| indexes.to_take_over(&[shard_key.to_owned()]))
    }

    fn taken_over(listed: &[Document], shard_key: &str) -> Vec<UniqueIndex> {
        to_take_over(listed, shard_key).unwrap()
    }

    fn email() -> Document {
        doc! { "v": 2, "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true }
    }

    fn with(mut index: Document, field: &str, value: impl Into<bson::Bson>) -> Document {
        index.insert(field, value);
        index
    }

    #[test]
    fn what_was_begun_for_another_shard_key_is_ended() {
        let unique = taken_over(&[email()], "region").remove(0);
        assert_eq!(taken_over(&[unique.meanwhile()], "email")[0].plain, unique.plain);
    }

    #[test]
    fn what_the_server_can_keep_stays_with_it() {
        let by_region = doc! { "v": 2, "key": { "region": 1, "n": 1 }, "name": "region_1_n_1", "unique": true };
        // The options of an index that stays don't matter.
        let by_region = with(by_region, "expireAfterSeconds", 60);
        let plain = doc! { "v": 2, "key": { "name": 1 }, "name": "name_1" };
        let clustered = doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_", "unique": true, "clustered": true };
        let indexes = [clustered, by_region, plain, email()];
        let taken = taken_over(&indexes, "region");
        assert_eq!(taken.len(), 1);
        assert_eq!(
            taken[0].plain,
            doc! { "key": { "email": 1 }, "name": "email_1", "sparse": true }
        );
    }

    #[test]
    fn an_index_is_served_at_every_step_and_found_again_after_each() {
        let unique = taken_over(&[email()], "region").remove(0);
        let mut indexes = vec![email()];
        let mut steps = Vec::new();
        loop {
            // Another run begins here.
            let step = with_indexes(&indexes, false, |indexes| indexes.next_step(&unique)).unwrap();
            let is_found = !taken_over(&indexes, "region").is_empty();
            assert_eq!(is_found, step != IndexStep::Done, "{indexes:?}");
            assert!(!indexes.is_empty());
            steps.push(step);
            let drop =
                |indexes: &mut Vec<Document>, name: &str| indexes.retain(|one| one.get_str("name").unwrap() != name);
            match step {
                IndexStep::MakeMeanwhile => indexes.push(unique.meanwhile()),
                IndexStep::DropUnique => drop(&mut indexes, unique.name()),
                IndexStep::MakePlain => indexes.push(unique.plain.clone()),
                IndexStep::DropMeanwhile => drop(&mut indexes, &unique.meanwhile_name()),
                IndexStep::Done => break,
            }
        }
        assert_eq!(indexes, std::slice::from_ref(&unique.plain));
        assert_eq!(steps.len(), 5);
        // Another run dropped the one that this run made.
        let step = with_indexes(&[], false, |indexes| indexes.next_step(&unique)).unwrap();
        assert_eq!(step, IndexStep::MakePlain);
    }

    #[test]
    fn an_index_with_more_than_a_constraint_has_is_refused() {
        let expiring = with(email(), "expireAfterSeconds", 60);
        let refused = to_take_over(&[expiring], "region");
        assert!(matches!(refused, Err(ShardRefusal::Option { option, .. }) if option == "expireAfterSeconds"));
    }

    #[test]
    fn an_index_that_another_took_the_name_of_is_refused() {
        let unique = taken_over(&[email()], "region").remove(0);
        let other = with(email(), "key", doc! { "mail": 1 });
        for indexes in [[other.clone(), unique.meanwhile()], [unique.meanwhile(), other]] {
            let refused = to_take_over(&indexes, "region");
            assert!(matches!(refused, Err(ShardRefusal::OtherIndex { name, .. }) if name == "email_1"));
        }
        // Which name the driver gives a number doesn't matter.
        let same = with(email(), "key", doc! { "email": 1.0 });
        assert_eq!(taken_over(&[same, unique.meanwhile()], "region").len(), 1);
    }

    #[test]
    fn an_index_that_has_its_like_without_unique_is_refused() {
        let mut plain = with(email(), "name", "for_queries");
        plain.remove("unique");
        let refused = to_take_over(&[email(), plain.clone()], "region");
        assert!(matches!(refused, Err(ShardRefusal::PlainToo { other, .. }) if other == "for_queries"));
        plain.remove("sparse");
        assert_eq!(taken_over(&[email(), plain], "region").len(), 1);
    }

    #[test]
    fn an_index_without_a_collation_states_that_on_a_collated_collection() {
        let shard_key = ["region".to_owned()];
        let taken = with_indexes(&[email()], true, |indexes| indexes.to_take_over(&shard_key)).unwrap();
        let plain = &taken[0].plain;
        assert_eq!(plain.get_document("collation").unwrap(), &doc! { "locale": "simple" });
    }

    #[test]
    fn an_index_that_begins_with_the_shard_key_serves_it() {
        let serves = |index: Document, key: Document| with_indexes(&[index], false, |one| one.serve_shard_key(&key));
        let index = |key: Document| doc! { "key": key, "name": "x" };
        let both = index(doc! { "region": 1.0, "n": 1 });
        assert!(serves(both.clone(), doc! { "region": 1 }));
        assert!(serves(both.clone(), doc! { "region": 1, "n": 1 }));
        assert!(!serves(both.clone(), doc! { "n": 1 }));
        assert!(!serves(index(doc! { "region": -1 }), doc! { "region": 1 }));
        assert!(!serves(both.clone(), doc! { "region": "hashed" }));
        assert!(!serves(with(both.clone(), "sparse", true), doc! { "region": 1 }));
        assert!(!serves(
            with(both, "collation", doc! { "locale": "en" }),
            doc! { "region": 1 }
        ));
        assert!(serves(index(doc! { "_id": "hashed" }), doc! { "_id": "hashed" }));
        assert!(!serves(index(doc! { "region": 1 }), doc! { "region": 1, "n": 1 }));
        let sparse = with(index(doc! { "region": 1 }), "name", "region_1");
        let name = with_indexes(&[sparse], false, |one| one.free_name(&doc! { "region": 1 }));
        assert_eq!(name, "region_1_shard_key");
    }
}
