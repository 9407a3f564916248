//! Decides from a statement whether it may move documents to other shards, and where it inserts one.
//!
//! If a statement doesn't change the shard key, its documents stay on their shards, and only these need to be read again.
//! Otherwise a document may be on any shard afterwards. Other shards may have documents with the same `_id`, so Keyward has to
//! read all of them before and after.

use super::document_keys::DocumentKeys;
use crate::catalog::Protected;
use crate::claims::owner_of;
use crate::command::affected_keys::{Paths, may_affect};
use crate::command::filter_rewriting::equality;
use crate::command::kept_place::without_kept;
use crate::command::statement::Statement;
use crate::constraint::fills_in;
use crate::raw::{Builder, Doc, Element, Malformed};

impl Statement<'_> {
    /// Whether the statement moves none of the `selected` documents: it sets no other shard key than its query asks for, or replaces documents by others
    /// with the same shard key, or deletes them.
    pub fn leaves_on_shard(self, protected: &Protected, selected: &[DocumentKeys]) -> Result<bool, Malformed> {
        if self.deletes()? {
            return Ok(true);
        }
        let Some(update) = self.update()? else {
            return Ok(false);
        };
        let paths: Vec<&str> = protected.shard_key.iter().map(String::as_str).collect();
        match self.replacement()? {
            // The server's time is another shard key than the zero that some of them have.
            Some(document) if fills_in(document, paths.iter().copied())? => Ok(false),
            Some(document) => {
                let route = owner_of(protected, document)?.route;
                Ok(selected.iter().all(|document| document.owner.route == route))
            }
            None => Ok(!self.may_change(&update, &paths)?),
        }
    }

    /// The shard key, without `_id`, of the document that the statement inserts. `None` if its query and update don't determine it.
    pub fn inserts_at(self, protected: &Protected) -> Result<Option<Vec<u8>>, Malformed> {
        // It inserts a document that nothing here reads.
        if self.raw.get("upsertSupplied")?.is_some() {
            return Ok(None);
        }
        let query = self.query()?.unwrap_or(Doc::empty());
        let (Some(route), Some(update)) = (route_of(query, &protected.shard_key)?, self.update()?) else {
            return Ok(None);
        };
        let paths: Vec<&str> = protected.shard_key.iter().map(String::as_str).collect();
        let is_kept = match self.replacement()? {
            Some(document) if fills_in(document, paths.iter().copied())? => false,
            Some(document) => owner_of(protected, document)?
                .route
                .is_some_and(|own| own.as_bytes() == route),
            None => !self.may_change(&update, &paths)? && !sets_on_insert(&update, &paths)?,
        };
        let conditions = is_kept.then(|| conditions_on_shard_key(Doc::new(&route)?, &protected.shard_key));
        Ok(conditions.transpose()?.map(Builder::finish))
    }

    /// Whether the `update`, operators or a pipeline, may set another value at one of `paths` than the query asks for.
    fn may_change(self, update: &Element<'_>, paths: &Vec<&str>) -> Result<bool, Malformed> {
        let Some(operators) = update.as_document()? else {
            return may_affect(update, paths);
        };
        let rest = without_kept(operators, self.query()?.unwrap_or(Doc::empty()), paths)?;
        may_affect(
            &Element {
                value: &rest,
                ..*update
            },
            paths,
        )
    }
}

/// The conditions of `query` on the shard key alone. A document that meets the query goes on to meet them while its shard key
/// doesn't change.
pub fn conditions_on_shard_key(query: Doc<'_>, shard_key: &[String]) -> Result<Builder, Malformed> {
    let mut conditions = Builder::new();
    for condition in query.elements() {
        let condition = condition?;
        // The caller adds its own condition on `_id`.
        if condition.name != b"_id" && shard_key.iter().any(|path| path.as_bytes() == condition.name) {
            conditions.element(&condition);
        }
    }
    Ok(conditions)
}

/// Whether `$setOnInsert` sets one of `paths`. The server applies each of two operators of one name.
fn sets_on_insert(update: &Element<'_>, paths: &Vec<&str>) -> Result<bool, Malformed> {
    let Some(operators) = update.as_document_or_array()? else {
        return Ok(true);
    };
    operators.any(|operator| match operator.name {
        b"$setOnInsert" => match operator.as_document()? {
            Some(fields) => fields.any(|field| Ok(paths.overlap(field.name))),
            None => Ok(true),
        },
        _ => Ok(false),
    })
}

/// The shard key in the equalities of a query. The server inserts these values.
fn route_of(query: Doc<'_>, shard_key: &[String]) -> Result<Option<Vec<u8>>, Malformed> {
    let mut route = Builder::new();
    for path in shard_key {
        match asked_for(query, path)? {
            Some(value) => route.append(value.kind, path.as_bytes(), value.value),
            None => return Ok(None),
        };
    }
    Ok((!shard_key.is_empty()).then(|| route.finish()))
}

/// The value that a query asks for at `path`, directly or in a conjunction.
fn asked_for<'a>(query: Doc<'a>, path: &str) -> Result<Option<Element<'a>>, Malformed> {
    let own = equality(query, path)?;
    if own.is_some() {
        return Ok(own);
    }
    for part in query.nested("$and")?.into_iter().flat_map(Doc::elements) {
        if let Some(part) = part?.as_document_or_array()?
            && let Some(value) = asked_for(part, path)?
        {
            return Ok(Some(value));
        }
    }
    Ok(None)
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use bson::spec::ElementType;

    use super::*;

    #[test]
    fn each_of_several_set_on_inserts_counts() {
        let sets = |operators: &[(&str, bson::Document)]| {
            let mut update = Builder::new();
            update.open(ElementType::EmbeddedDocument, b"u");
            for (name, fields) in operators {
                update.document(name, Doc::new(&fields.to_vec().unwrap()).unwrap());
            }
            update.close();
            let statement = update.finish();
            let update = Doc::new(&statement).unwrap().get("u").unwrap().unwrap();
            sets_on_insert(&update, &vec!["region"]).unwrap()
        };
        let [email, region] = [doc! { "email": "x" }, doc! { "region": "z" }];
        assert!(!sets(&[("$setOnInsert", email.clone()), ("$set", region.clone())]));
        assert!(sets(&[("$setOnInsert", email), ("$setOnInsert", region)]));
    }
}
