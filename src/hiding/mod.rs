//! Hides Keyward's own collections from clients that list collections or databases, or watch a whole database or cluster.
//!
//! The proxy collections lie in the protected database, and the register in the database `keyward`. Tools that compare, migrate or
//! mirror a database would trip over them. Keyward adds a condition to the client's command, so that the server leaves them out. A
//! client that asks for one by its name gets it.

mod listing;

pub use listing::Listing;

use std::collections::BTreeSet;
use std::future::IntoFuture;

use mongodb::Client;

use crate::catalog::Catalog;
use crate::constraint::PROXY_PREFIX;
use crate::proxy_collection::answered;
use crate::raw::{Builder, Doc, Malformed};
use crate::server::reply;
use crate::upstream::{Connection, sharded_collections};
use crate::write::ForwardError;

/// Carries out a command that lists or watches, without what is Keyward's own. Returns nothing if Keyward forwards it unchanged.
pub async fn serve(
    listing: Listing,
    body: Doc<'_>,
    (client, catalog): (&Client, &Catalog),
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let Some(command) = listing.hiding(body) else {
        return Ok(None);
    };
    let answer = upstream.run(&command).await?;
    if listing != Listing::Databases || !reply::is_ok(Doc::new(&answer)?)? {
        return Ok(Some(answer));
    }
    let mut emptied = Vec::new();
    for database in databases_with_proxies(client, catalog).await {
        if lists(Doc::new(&answer)?, &database)? && is_emptied(client, &database).await {
            emptied.push(database.into_bytes());
        }
    }
    Ok(Some(without_databases(Doc::new(&answer)?, &emptied)?))
}

/// The databases in which only proxy collections may be left: those of the constraints, and those of a constraint that a client
/// made, which ended as its database was dropped.
async fn databases_with_proxies(client: &Client, catalog: &Catalog) -> BTreeSet<String> {
    let pattern = format!("^[^.]+\\.{}", PROXY_PREFIX.replace('.', "\\."));
    let of_proxies = answered(sharded_collections(client, &pattern))
        .await
        .unwrap_or_default();
    let former = of_proxies.iter().filter_map(|name| Some(name.split_once('.')?.0));
    let protected = catalog.databases().filter_map(|name| str::from_utf8(name).ok());
    former.chain(protected).map(ToOwned::to_owned).collect()
}

/// Whether the reply to a `listDatabases` lists this database.
fn lists(answer: Doc<'_>, name: &str) -> Result<bool, Malformed> {
    let Some(databases) = answer.nested("databases")? else {
        return Ok(false);
    };
    databases.any(|database| {
        let listed = database.as_document_or_array()?.map(|database| database.get("name"));
        let listed = listed.transpose()?.flatten();
        Ok(listed.is_some_and(|listed| listed.as_string_bytes() == Some(name.as_bytes())))
    })
}

/// Whether a protected database has no collection but Keyward's own, which Keyward asks as its own user: it was dropped.
async fn is_emptied(client: &Client, database: &str) -> bool {
    let database = client.database(database);
    let names = answered(database.list_collection_names().into_future()).await;
    names.is_ok_and(|names| names.iter().all(|name| name.starts_with(PROXY_PREFIX)))
}

/// The reply to a `listDatabases` without these.
fn without_databases(answer: Doc<'_>, hidden: &[Vec<u8>]) -> Result<Vec<u8>, Malformed> {
    if hidden.is_empty() {
        return Ok(answer.bytes().to_vec());
    }
    let (mut shown, mut size) = (Vec::new(), 0);
    for database in answer.nested("databases")?.into_iter().flat_map(Doc::elements) {
        let Some(database) = database?.as_document_or_array()? else {
            continue;
        };
        let name = database.get("name")?.and_then(|name| name.as_string_bytes());
        match name.is_some_and(|name| hidden.iter().any(|hidden| hidden == name)) {
            true => size += database.whole_number("sizeOnDisk")?.unwrap_or(0),
            false => shown.push(database.bytes()),
        }
    }
    let mut edited = Builder::new();
    for field in answer.elements() {
        let field = field?;
        match (field.name, field.as_whole_number()) {
            (b"databases", _) => edited.documents("databases", &shown),
            (b"totalSize", Some(total)) => edited.int64("totalSize", total - size),
            (b"totalSizeMb", Some(_)) => edited.int64("totalSizeMb", (total_size(answer)? - size) / (1 << 20)),
            _ => edited.element(&field),
        };
    }
    Ok(edited.finish())
}

fn total_size(answer: Doc<'_>) -> Result<i64, Malformed> {
    Ok(answer.whole_number("totalSize")?.unwrap_or(0))
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn a_dropped_database_goes_with_its_size() {
        let answer = doc! {
            "databases": [{ "name": "a", "sizeOnDisk": 3_i64 << 20 }, { "name": "b", "sizeOnDisk": 1_i64 << 20 }],
            "totalSize": 4_i64 << 20, "totalSizeMb": 4_i64, "ok": 1.0,
        };
        let bytes = answer.to_vec().unwrap();
        let edited = |hidden: &[Vec<u8>]| {
            let edited = without_databases(Doc::new(&bytes).unwrap(), hidden).unwrap();
            Document::from_reader(edited.as_slice()).unwrap()
        };
        assert_eq!(edited(&[]), answer);
        let expected = doc! {
            "databases": [{ "name": "b", "sizeOnDisk": 1_i64 << 20 }],
            "totalSize": 1_i64 << 20, "totalSizeMb": 1_i64, "ok": 1.0,
        };
        assert_eq!(edited(&[b"a".to_vec()]), expected);
    }
}
