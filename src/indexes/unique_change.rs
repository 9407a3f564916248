//! Reads a `collMod` that makes an index unique from its message, and writes its forms for the server and the client.
//!
//! It does no I/O.

use bson::Document;
use bson::spec::ElementType;

use super::command::flag;
use super::list::ListedIndex;
use super::specification::is_same_key;
use crate::command::running::is_about_running;
use crate::raw::{Builder, Doc, Element, Malformed};

/// A `collMod` with `unique: true` or `prepareUnique: true`.
pub struct UniqueChange<'a> {
    /// Its field `index`.
    index: Doc<'a>,
    /// Whether it is `unique`.
    is_unique: bool,
    /// Whether it only asks if documents violate the constraint.
    pub is_dry_run: bool,
}

/// Whether the `collMod` `body` makes an index unique.
pub fn asks_to_convert(body: Doc<'_>) -> Result<bool, Malformed> {
    match body.nested("index")? {
        Some(index) => Ok(flag(index, "unique")? == Some(true) || flag(index, "prepareUnique")? == Some(true)),
        None => Ok(false),
    }
}

impl<'a> UniqueChange<'a> {
    /// Reads it; none if it is none, or only the server can judge it.
    pub fn of(body: Doc<'a>) -> Result<Option<UniqueChange<'a>>, Malformed> {
        let Some(index) = body.nested("index")?.filter(|_| asks_to_convert(body) == Ok(true)) else {
            return Ok(None);
        };
        let flags = (
            flag(index, "unique")?,
            flag(index, "prepareUnique")?,
            flag(body, "dryRun")?,
        );
        let (Some(is_unique), Some(_), Some(is_dry_run)) = flags else {
            return Ok(None);
        };
        // A server refuses a dry run that would change anything else.
        let is_plain = !body.any(|field| Ok(!is_of_dry_run(field)))?
            && !index.any(|field| Ok(!matches!(field.name, b"name" | b"keyPattern" | b"unique")))?;
        // In a transaction no server accepts the command.
        let is_judged_by_server = (is_dry_run && !is_plain) || body.get("autocommit")?.is_some();
        Ok((!is_judged_by_server).then_some(UniqueChange {
            index,
            is_unique,
            is_dry_run,
        }))
    }

    /// The index that it names among `indexes`; none if it names none or several of them.
    pub fn index_among<'i>(&self, indexes: &'i [ListedIndex]) -> Option<&'i ListedIndex> {
        let name = self.index.get("name").ok()?.map(|name| name.as_string_bytes());
        let key = self.index.nested("keyPattern").ok()?;
        let key = key.map(|key| Document::from_reader(key.bytes()).unwrap_or_default());
        let is_named = |index: &&ListedIndex| match (&name, &key) {
            (Some(name), None) => *name == Some(index.name.as_bytes()),
            (None, Some(key)) => index
                .specification
                .as_ref()
                .is_some_and(|one| is_same_key(key, &one.key)),
            _ => false,
        };
        let mut named = indexes.iter().filter(is_named);
        named.next().filter(|_| named.next().is_none())
    }

    /// The command `body` in the form for the server. The server checks it and makes all its other changes, and leaves the index as unique
    /// as it is.
    pub fn without_unique(&self, body: Doc<'_>) -> Result<Vec<u8>, Malformed> {
        let mut command = Builder::new();
        for field in body.elements() {
            let field = field?;
            match field.name {
                b"index" => {
                    command.open(ElementType::EmbeddedDocument, b"index");
                    command.elements_where(self.index, |one| !matches!(one.name, b"unique" | b"prepareUnique"))?;
                    command.boolean("prepareUnique", false).close();
                }
                b"dryRun" => {}
                _ => drop(command.element(&field)),
            }
        }
        Ok(command.finish())
    }

    /// The server's `answer` to that form, as it were to the command itself: each shard notes the change.
    pub fn noted_in(&self, answer: Doc<'_>) -> Result<Vec<u8>, Malformed> {
        let mut reply = Builder::new();
        for field in answer.elements() {
            let field = field?;
            let Some(shards) = field.as_document()?.filter(|_| field.name == b"raw") else {
                reply.element(&field);
                continue;
            };
            reply.open(ElementType::EmbeddedDocument, b"raw");
            for shard in shards.elements() {
                let shard = shard?;
                let Some(of_shard) = shard.as_document()? else {
                    reply.element(&shard);
                    continue;
                };
                reply.open(ElementType::EmbeddedDocument, shard.name);
                match self.is_unique {
                    true => reply.boolean("unique_new", true),
                    false => reply
                        .boolean("prepareUnique_old", false)
                        .boolean("prepareUnique_new", true),
                };
                reply.elements(of_shard)?.close();
            }
            reply.close();
        }
        Ok(reply.finish())
    }
}

/// Whether a `collMod` with `dryRun` may have this field.
fn is_of_dry_run(field: &Element<'_>) -> bool {
    matches!(
        field.name,
        b"collMod" | b"index" | b"dryRun" | b"comment" | b"maxTimeMS"
    ) || is_about_running(field)
}

#[cfg(test)]
mod tests {
    use bson::doc;

    use super::*;

    fn with_change<T>(body: &Document, read: impl FnOnce(Option<UniqueChange<'_>>, Doc<'_>) -> T) -> T {
        let bytes = body.to_vec().unwrap();
        let body = Doc::new(&bytes).unwrap();
        read(UniqueChange::of(body).unwrap(), body)
    }

    fn change(index: Document) -> Document {
        doc! { "collMod": "users", "index": index, "$db": "shop" }
    }

    #[test]
    fn the_server_gets_all_but_the_change() {
        let mut body = change(doc! { "name": "email_1", "hidden": true, "unique": true });
        body.insert("validationLevel", "off");
        let mut expected = change(doc! { "name": "email_1", "hidden": true, "prepareUnique": false });
        expected.insert("validationLevel", "off");
        let sent = with_change(&body, |change, body| change.unwrap().without_unique(body).unwrap());
        assert_eq!(Document::from_reader(sent.as_slice()).unwrap(), expected);
    }

    #[test]
    fn each_shard_notes_the_change() {
        let noted = |index: Document| {
            let answer = doc! { "raw": { "s/h:1": { "ok": 1.0 } }, "ok": 1.0 }.to_vec().unwrap();
            let answer = Doc::new(&answer).unwrap();
            let noted = with_change(&change(index), |change, _| change.unwrap().noted_in(answer).unwrap());
            Document::from_reader(noted.as_slice()).unwrap()
        };
        let of_unique = doc! { "unique_new": true, "ok": 1.0 };
        let expected = doc! { "raw": { "s/h:1": of_unique }, "ok": 1.0 };
        assert_eq!(noted(doc! { "name": "email_1", "unique": true }), expected);
        let of_prepared = doc! { "prepareUnique_old": false, "prepareUnique_new": true, "ok": 1.0 };
        let expected = doc! { "raw": { "s/h:1": of_prepared }, "ok": 1.0 };
        assert_eq!(noted(doc! { "name": "email_1", "prepareUnique": true }), expected);
    }

    #[test]
    fn only_the_server_judges_a_dry_run_that_changes_more() {
        let is_change = |body: Document| with_change(&body, |change, _| change.is_some());
        let mut body = change(doc! { "name": "email_1", "unique": true });
        body.insert("dryRun", true);
        assert!(is_change(body.clone()));
        body.insert("validationLevel", "off");
        assert!(!is_change(body));
        let mut hidden = change(doc! { "name": "email_1", "unique": true, "hidden": true });
        assert!(is_change(hidden.clone()));
        hidden.insert("dryRun", true);
        assert!(!is_change(hidden));
        assert!(!is_change(change(doc! { "name": "email_1", "unique": false })));
        assert!(!is_change(doc! { "collMod": "users", "validationLevel": "off" }));
        assert!(!is_change(change(doc! { "name": "email_1", "unique": "yes" })));
        assert!(!is_change(change(
            doc! { "name": "email_1", "unique": true, "prepareUnique": "yes" }
        )));
    }

    #[test]
    fn an_index_is_named_or_has_the_key() {
        let listed = |name: &str, key: Document| {
            let index = doc! { "name": name, "key": key }.to_vec().unwrap();
            ListedIndex::of(Doc::new(&index).unwrap()).unwrap().unwrap()
        };
        let indexes = [
            listed("a", doc! { "email": 1 }),
            listed("b", doc! { "email": 1 }),
            listed("c", doc! { "email": -1 }),
        ];
        let among = |mut index: Document| {
            index.insert("unique", true);
            with_change(&change(index), |change, _| {
                let index = change.unwrap().index_among(&indexes).map(|index| index.name.clone());
                index.unwrap_or_default()
            })
        };
        assert_eq!(among(doc! { "name": "b" }), "b");
        assert_eq!(among(doc! { "keyPattern": { "email": -1.0 } }), "c");
        assert_eq!(among(doc! { "keyPattern": { "email": 1 } }), "");
        assert_eq!(among(doc! { "name": "b", "keyPattern": { "email": 1 } }), "");
    }
}
