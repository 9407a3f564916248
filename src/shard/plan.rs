//! Plans what becomes of a collection's unique indexes when it is sharded. Pure.

use bson::{Document, doc};

use super::ShardRefusal;
use crate::constraint::IndexSpec;
use crate::indexes::{server_can_keep, specification_of};
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

/// A unique index that becomes a constraint.
#[derive(Debug, Clone)]
pub struct UniqueIndex {
    /// Its name.
    pub name: String,
    /// The constraint's specification.
    pub specification: IndexSpec,
    /// The index without `unique`, as `createIndexes` takes it.
    pub plain: Document,
}

/// The unique indexes that the server couldn't keep unique under `shard_key`. That includes those that an earlier `keyward shard` hasn't
/// made anew to the end. The collection has these `indexes`, as `listIndexes` shows them, and a default collation if `is_collated`.
///
/// # Errors
/// [`ShardRefusal`] if one can't be a constraint, or has options that the constraint's index couldn't have.
pub fn to_take_over(
    indexes: &[Document],
    is_collated: bool,
    shard_key: &[String],
) -> Result<Vec<UniqueIndex>, ShardRefusal> {
    let mut taken_over: Vec<UniqueIndex> = Vec::new();
    for index in indexes {
        let is_unique = index.get_bool("unique").unwrap_or(false);
        // Of the former, an earlier run has made a constraint, whatever the shard key was then.
        let (original, is_begun) = match original_of(index) {
            Some(original) => (original, true),
            None if is_unique => (index.clone(), false),
            None => continue,
        };
        let unique = UniqueIndex::of(&original, is_collated)?;
        let is_known = taken_over.iter().any(|one| one.name == unique.name);
        if !is_known && (is_begun || !server_can_keep(&unique.specification, None, shard_key)) {
            taken_over.push(unique);
        }
    }
    Ok(taken_over)
}

impl UniqueIndex {
    fn of(index: &Document, is_collated: bool) -> Result<UniqueIndex, ShardRefusal> {
        let name = index.get_str("name").unwrap_or_default().to_owned();
        let is_unknown = |field: &&String| !DROPPED.contains(&field.as_str()) && !KEPT.contains(&field.as_str());
        if let Some(option) = index.keys().find(is_unknown) {
            let option = option.clone();
            return Err(ShardRefusal::Option { name, option });
        }
        let kept = index.iter().filter(|(field, _)| KEPT.contains(&field.as_str()));
        let mut plain: Document = kept.map(|(field, value)| (field.clone(), value.clone())).collect();
        if is_collated && !plain.contains_key("collation") {
            // The index would inherit the collection's collation.
            plain.insert("collation", doc! { "locale": "simple" });
        }
        let specification = plain.to_vec().ok();
        let specification = specification.and_then(|bytes| specification_of(Doc::new(&bytes).ok()?).ok()?);
        match specification {
            Some(specification) => Ok(UniqueIndex {
                name,
                specification,
                plain,
            }),
            None => Err(ShardRefusal::Unreadable(name)),
        }
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
        format!("{MEANWHILE}{}", self.name)
    }

    /// The next step of making it anew, without `unique`, on a collection with these `indexes`. At any moment one of them serves its
    /// queries.
    pub fn next_step(&self, indexes: &[Document]) -> IndexStep {
        let named = |name: &str| {
            indexes
                .iter()
                .find(|index| index.get_str("name").is_ok_and(|one| one == name))
        };
        let is_unique = named(&self.name).map(|index| index.get_bool("unique").unwrap_or(false));
        match (is_unique, named(&self.meanwhile_name()).is_some()) {
            (Some(true), false) => IndexStep::MakeMeanwhile,
            (Some(true), true) => IndexStep::DropUnique,
            (None, true) => IndexStep::MakePlain,
            (Some(false), true) => IndexStep::DropMeanwhile,
            (Some(false), false) => IndexStep::Done,
            (None, false) => IndexStep::Gone,
        }
    }
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
    /// Somebody else has dropped it.
    Gone,
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

    fn email() -> Document {
        doc! { "v": 2, "key": { "email": 1 }, "name": "email_1", "unique": true, "sparse": true }
    }

    fn taken_over(indexes: &[Document], shard_key: &str) -> Vec<UniqueIndex> {
        to_take_over(indexes, false, &[shard_key.to_owned()]).unwrap()
    }

    #[test]
    fn what_was_begun_for_another_shard_key_is_ended() {
        let unique = taken_over(&[email()], "region").remove(0);
        assert_eq!(taken_over(&[unique.meanwhile()], "email")[0].plain, unique.plain);
    }

    #[test]
    fn what_the_server_can_keep_stays_with_it() {
        let by_region = doc! { "v": 2, "key": { "region": 1, "n": 1 }, "name": "region_1_n_1", "unique": true };
        let plain = doc! { "v": 2, "key": { "name": 1 }, "name": "name_1" };
        let indexes = [
            doc! { "v": 2, "key": { "_id": 1 }, "name": "_id_" },
            by_region,
            plain,
            email(),
        ];
        let taken = taken_over(&indexes, "region");
        assert_eq!(taken.len(), 1);
        assert_eq!(
            taken[0].plain,
            doc! { "key": { "email": 1 }, "name": "email_1", "sparse": true }
        );
        assert!(taken_over(&indexes, "email").iter().all(|one| one.name != "email_1"));
    }

    #[test]
    fn an_index_is_served_at_every_step_and_found_again_after_each() {
        let unique = taken_over(&[email()], "region").remove(0);
        let mut indexes = vec![email()];
        let mut steps = Vec::new();
        loop {
            // Another run begins here.
            let step = unique.next_step(&indexes);
            let is_found = !taken_over(&indexes, "region").is_empty();
            assert_eq!(is_found, step != IndexStep::Done, "{indexes:?}");
            assert!(!indexes.is_empty());
            steps.push(step);
            let drop =
                |indexes: &mut Vec<Document>, name: &str| indexes.retain(|one| one.get_str("name").unwrap() != name);
            match step {
                IndexStep::MakeMeanwhile => indexes.push(unique.meanwhile()),
                IndexStep::DropUnique => drop(&mut indexes, &unique.name),
                IndexStep::MakePlain => indexes.push(unique.plain.clone()),
                IndexStep::DropMeanwhile => drop(&mut indexes, &unique.meanwhile_name()),
                IndexStep::Done | IndexStep::Gone => break,
            }
        }
        assert_eq!(indexes, std::slice::from_ref(&unique.plain));
        assert_eq!(steps.len(), 5);
        assert_eq!(unique.next_step(&[]), IndexStep::Gone);
    }

    #[test]
    fn an_index_with_more_than_a_constraint_has_is_refused() {
        let mut expiring = email();
        expiring.insert("expireAfterSeconds", 60);
        let refused = to_take_over(&[expiring], false, &["region".to_owned()]);
        assert!(matches!(refused, Err(ShardRefusal::Option { option, .. }) if option == "expireAfterSeconds"));
    }

    #[test]
    fn an_index_without_a_collation_states_that_on_a_collated_collection() {
        let taken = to_take_over(&[email()], true, &["region".to_owned()]).unwrap();
        assert_eq!(
            taken[0].plain.get_document("collation").unwrap(),
            &doc! { "locale": "simple" }
        );
    }
}
