//! Drops the indexes that a `createIndexes` made beside those of its constraints, if it fails: a server makes all indexes of a command, or
//! none.
//!
//! Keyward drops an index only if this command definitely made it, and if no other command has changed it since.

use std::collections::BTreeSet;

use bson::{Bson, Document};

use super::IndexContext;
use super::building::WantedConstraints;
use super::create::has_other_collection;
use super::list::{ListedIndex, existing_indexes};
use crate::raw::{Builder, Doc, Malformed};
use crate::server::reply;
use crate::upstream::Connection;
use crate::write::ForwardError;

/// The indexes that the server made for a command, without those of its constraints.
#[derive(Default)]
pub struct IndexesBeside(Vec<ListedIndex>);

impl IndexesBeside {
    /// Reads them after the server has carried out the command with this `reply`. The command asks for `indexes`, and the collection had
    /// those `before`. Returns none if another client may have made one of them meanwhile.
    pub async fn made(
        wanted: &WantedConstraints,
        (indexes, before): (&[Doc<'_>], Option<&[ListedIndex]>),
        reply: &[u8],
        body: Doc<'_>,
        upstream: &mut Connection,
    ) -> Result<IndexesBeside, ForwardError> {
        let Some(before) = before else {
            return Ok(IndexesBeside::default());
        };
        let lacked = lacked(indexes, before)?;
        let is_wanted = |name: &str| wanted.names().any(|wanted| wanted == name);
        let mut beside = lacked.clone();
        beside.retain(|name| !is_wanted(name));
        if beside.is_empty() || !are_all_made(Doc::new(reply)?, before.len(), lacked.len())? {
            return Ok(IndexesBeside::default());
        }
        let mut listed = existing_indexes(&wanted.namespace, body, upstream)
            .await?
            .unwrap_or_default();
        listed.retain(|index| beside.contains(index.name.as_str()));
        Ok(IndexesBeside(listed))
    }

    /// Drops them, because the command failed. One stays that another client's command has changed or made a constraint since.
    pub async fn drop_all(
        &self,
        context: &IndexContext<'_>,
        wanted: &WantedConstraints,
        body: Doc<'_>,
        upstream: &mut Connection,
    ) -> Result<(), ForwardError> {
        if self.0.is_empty() || has_other_collection(context, wanted).await {
            return Ok(());
        }
        let namespace = &wanted.namespace;
        let Ok(list) = context.list.store.read().await else {
            return Ok(());
        };
        let present = existing_indexes(namespace, body, upstream).await?.unwrap_or_default();
        let is_constraint = |name: &str| list.on(namespace).any(|entry| entry.constraint.name() == name);
        let is_unchanged = |made: &&ListedIndex| present.iter().any(|index| index.document == made.document);
        let unchanged = self.0.iter().filter(is_unchanged).map(|index| index.name.as_str());
        let names: Vec<&str> = unchanged.filter(|name| !is_constraint(name)).collect();
        if names.is_empty() {
            return Ok(());
        }
        if let Err(error) = drop_indexes(wanted, &names, body, upstream).await? {
            let names = names.join(", ");
            tracing::warn!(%namespace, names, error, "indexes of a createIndexes that failed stay; send dropIndexes for them");
        }
        Ok(())
    }
}

/// Has the server drop the indexes with these names, on the client's connection. Returns the server's error text if it doesn't.
pub(super) async fn drop_indexes(
    wanted: &WantedConstraints,
    names: &[&str],
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Result<(), String>, ForwardError> {
    let namespace = &wanted.namespace;
    let names: Vec<Bson> = names.iter().map(|name| Bson::from(*name)).collect();
    let mut command = Document::new();
    command.insert("dropIndexes", &namespace.collection);
    command.insert("index", names);
    let mut draft = Builder::from_document(&command.to_vec().unwrap_or_default());
    super::append_session(&mut draft, body)?;
    draft.string("$db", namespace.database.as_bytes());
    let reply = upstream.run(&draft.finish()).await?;
    let reply = Doc::new(&reply)?;
    if reply::is_ok(reply)? {
        return Ok(Ok(()));
    }
    let error = reply::errmsg(reply)?.unwrap_or_default();
    Ok(Err(String::from_utf8_lossy(error).into_owned()))
}

/// The names of those of the command's `indexes` that the collection lacked `before`.
fn lacked<'a>(indexes: &[Doc<'a>], before: &[ListedIndex]) -> Result<BTreeSet<&'a str>, Malformed> {
    let mut lacked = BTreeSet::new();
    for index in indexes {
        let name = index.get("name")?;
        lacked.extend(name.and_then(|name| name.as_str()));
    }
    for index in before {
        lacked.remove(index.name.as_str());
    }
    Ok(lacked)
}

/// Whether the server had as many indexes as `before` on each shard, and made as many as the collection `lacked`.
fn are_all_made(reply: Doc<'_>, before: usize, lacked: usize) -> Result<bool, Malformed> {
    let is_count = |answer: Doc<'_>, field: &str, count: usize| {
        let stated = answer.whole_number(field)?;
        Ok::<_, Malformed>(stated.is_some_and(|stated| usize::try_from(stated) == Ok(count)))
    };
    let are_made = |answer: Doc<'_>| {
        Ok::<_, Malformed>(
            is_count(answer, "numIndexesBefore", before)? && is_count(answer, "numIndexesAfter", before + lacked)?,
        )
    };
    match reply.nested("raw")? {
        None => are_made(reply),
        Some(shards) => shards.all(|shard| shard.as_document()?.map_or(Ok(false), are_made)),
    }
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn index(name: &str) -> Vec<u8> {
        doc! { "key": { "a": 1 }, "name": name }.to_vec().unwrap()
    }

    #[test]
    fn an_index_that_existed_is_not_lacked() {
        let [a, b] = ["a", "b"].map(index);
        let [a, b] = [&a, &b].map(|bytes| Doc::new(bytes).unwrap());
        let before = [ListedIndex::of(a).unwrap().unwrap()];
        assert_eq!(lacked(&[a, b, b], &before).unwrap(), BTreeSet::from(["b"]));
    }

    #[test]
    fn an_index_that_another_client_may_have_made_does_not_count_as_made() {
        let counts = |before: i32, after: i32| doc! { "numIndexesBefore": before, "numIndexesAfter": after };
        for (reply, expected) in [
            (doc! { "raw": { "a": counts(2, 4), "b": counts(2, 4) } }, true),
            // On one shard, an index was made or dropped meanwhile.
            (doc! { "raw": { "a": counts(2, 4), "b": counts(3, 4) } }, false),
            (doc! { "raw": { "a": counts(2, 4), "b": counts(2, 3) } }, false),
            (doc! { "raw": { "a": counts(2, 4), "b": { "ok": 1 } } }, false),
            (counts(2, 4), true),
            (counts(3, 4), false),
            (doc! { "ok": 1 }, false),
        ] {
            let bytes = reply.to_vec().unwrap();
            assert_eq!(
                are_all_made(Doc::new(&bytes).unwrap(), 2, 2).unwrap(),
                expected,
                "{reply}"
            );
        }
    }
}
