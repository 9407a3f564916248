//! One statement that changes documents: of an `update` or `delete` command, or a whole `findAndModify`; and its
//! evaluation by the server, inside a transaction, between a look before and a look after.
//!
//! The server evaluates the statement, so no operator is reimplemented here. A statement about one document is pinned to
//! the document that was looked at, which the server would have picked as well, or could have.

use bson::spec::ElementType;

use super::image::{self, Image, Selection};
use super::moves::{Clash, Impossible, Moves};
use super::transaction::{Failure, Transaction, is_about_running};
use crate::catalog::Protected;
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::reservation::Token;
use crate::upstream::Connection;

/// The most documents that one statement may change in one transaction.
pub const DOCUMENTS_MAX: usize = 10_000;

/// The command that a statement belongs to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// `update`.
    Update,
    /// `delete`.
    Delete,
    /// `findAndModify`.
    FindAndModify,
}

/// One statement.
#[derive(Debug, Clone, Copy)]
pub struct Statement<'a> {
    /// What it is part of.
    pub kind: Kind,
    /// The command's body.
    pub body: Doc<'a>,
    /// The statement itself; the body for a `findAndModify`.
    pub own: Doc<'a>,
    /// Whether it is about one document only.
    pub is_single: bool,
    /// Whether it inserts where nothing matches.
    pub is_upsert: bool,
}

/// What came of a statement in a transaction that is still open, unless it says otherwise.
#[derive(Debug)]
pub enum Evaluated {
    /// The server's reply; reservations have moved along.
    Done(Vec<u8>),
    /// As above, for the first [`DOCUMENTS_MAX`] of the documents that a `delete` matches: it is to be run again.
    DoneInPart(Vec<u8>),
    /// The server's reply says that it refused the statement; the transaction is over.
    Refused(Vec<u8>),
    /// A reservation is in the way; the transaction is over.
    Clash(Clash),
    /// A native index would refuse the outcome.
    Impossible(Impossible),
    /// More than [`DOCUMENTS_MAX`] documents match, and they can't be changed by parts.
    TooMany,
}

impl<'a> Statement<'a> {
    fn query_name(self) -> &'static str {
        match self.kind {
            Kind::FindAndModify => "query",
            Kind::Update | Kind::Delete => "q",
        }
    }

    /// The statement's query, if it has one.
    ///
    /// # Errors
    /// [`Malformed`] if it isn't BSON.
    pub fn query(self) -> Result<Option<Doc<'a>>, Malformed> {
        let query = self.own.get(self.query_name())?;
        Ok(query.map(|query| query.as_document_or_array()).transpose()?.flatten())
    }

    fn selection(self) -> Result<Selection<'a>, Malformed> {
        let variables = self.body.get("let")?;
        let options = [
            self.own.get("sort")?,
            self.own.get("collation")?,
            self.own.get("hint")?,
            variables,
        ];
        Ok(Selection {
            query: self.query()?,
            options,
            is_single: self.is_single,
        })
    }

    /// The statement as a command of its own, with the query `narrowed` instead of its own if there is one.
    ///
    /// # Errors
    /// [`Malformed`] if it isn't BSON.
    pub fn command(self, narrowed: Option<&[u8]>) -> Result<Builder, Malformed> {
        let mut own = Builder::new();
        for element in self.own.elements() {
            let element = element?;
            let is_query = element.name == self.query_name().as_bytes();
            match narrowed {
                Some(query) if is_query => {
                    own.append(ElementType::EmbeddedDocument, element.name, query);
                }
                _ if self.kind == Kind::FindAndModify && is_about_running(&element) => {}
                _ => {
                    own.element(&element);
                }
            }
        }
        if self.kind == Kind::FindAndModify {
            return Ok(own);
        }
        let list: &[u8] = if self.kind == Kind::Update {
            b"updates"
        } else {
            b"deletes"
        };
        let mut command = Builder::new();
        for element in self.body.elements() {
            let element = element?;
            if element.name != list && !is_about_running(&element) {
                command.element(&element);
            }
        }
        command.open(ElementType::Array, list);
        command.append(ElementType::EmbeddedDocument, b"0", &own.finish());
        command.close();
        Ok(command)
    }

    /// Has the server evaluate the statement, and moves reservations along, all in `transaction`.
    ///
    /// # Errors
    /// [`Failure`]; the transaction is over then.
    pub async fn evaluate(
        self,
        protected: &Protected,
        token: Token,
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<Evaluated, Failure> {
        let selection = self.selection()?;
        let mut selected = image::read(protected, &selection, DOCUMENTS_MAX + 1, transaction, upstream).await?;
        // A delete of many isn't atomic on the server either.
        let is_part = selected.len() > DOCUMENTS_MAX && self.kind == Kind::Delete;
        if is_part {
            selected.truncate(DOCUMENTS_MAX);
        } else if selected.len() > DOCUMENTS_MAX {
            return Ok(Evaluated::TooMany);
        }
        let these = image::by_ids(selected.iter().map(|image| image.id.as_slice()).filter(|_| is_part))?;
        let before = self
            .all_with_these_ids(protected, selected, transaction, upstream)
            .await?;
        let pinned = before.first().filter(|_| self.is_single);
        let narrowed = match pinned {
            Some(image) => Some(pin(self.query()?.unwrap_or(Doc::empty()), image)?),
            None if is_part => Some(both(Doc::new(&these)?, self.query()?.unwrap_or(Doc::empty()))),
            None => None,
        };
        let command = self.command(narrowed.as_deref())?;
        let reply = transaction
            .run(upstream, &protected.namespace.database, command, None)
            .await?;
        let outcome = Doc::new(&reply)?;
        if outcome.get("writeErrors")?.is_some() {
            return Ok(Evaluated::Refused(undone(outcome)?));
        }
        let inserted = upserted_id(outcome)?;
        let ids = before
            .iter()
            .map(|image| image.id.as_slice())
            .chain(inserted.as_deref());
        let query = image::by_ids(ids)?;
        let touched = Selection {
            query: Some(Doc::new(&query)?),
            ..Selection::default()
        };
        let after = match before.is_empty() && inserted.is_none() {
            true => Vec::new(),
            false => image::read(protected, &touched, usize::MAX, transaction, upstream).await?,
        };
        let moves = match Moves::between(&before, &after) {
            Ok(moves) => moves,
            Err(impossible) => return Ok(Evaluated::Impossible(impossible)),
        };
        if transaction.is_clients()
            && let Some(key) = moves.duplicate(protected, transaction, upstream).await?
        {
            return Ok(Evaluated::Impossible(Impossible::Duplicate(key)));
        }
        match moves.run(protected, token, transaction, upstream).await? {
            Some(clash) => Ok(Evaluated::Clash(clash)),
            None if is_part => Ok(Evaluated::DoneInPart(reply)),
            None => Ok(Evaluated::Done(reply)),
        }
    }

    /// On shards several documents may have one `_id`, and the look after the statement can't tell them apart: the look
    /// before it must have seen them all. The one selected stays first.
    async fn all_with_these_ids(
        self,
        protected: &Protected,
        selected: Vec<Image>,
        transaction: &mut Transaction,
        upstream: &mut Connection,
    ) -> Result<Vec<Image>, Failure> {
        let ids_are_unique = protected.shard_key.is_empty() || protected.shard_key == ["_id"];
        if ids_are_unique || selected.is_empty() {
            return Ok(selected);
        }
        let query = image::by_ids(selected.iter().map(|image| image.id.as_slice()))?;
        let these = Selection {
            query: Some(Doc::new(&query)?),
            ..Selection::default()
        };
        let mut all = image::read(protected, &these, usize::MAX, transaction, upstream).await?;
        if let Some(first) = all.iter().position(|image| image.owner == selected[0].owner) {
            all.swap(0, first);
        }
        Ok(all)
    }
}

/// The reply to a refused statement of which nothing is left: a router counts what the other shards did.
fn undone(reply: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let mut undone = Builder::new();
    for element in reply.elements() {
        let element = element?;
        match element.name {
            b"n" => undone.int32("n", 0),
            b"nModified" => undone.int32("nModified", 0),
            _ => undone.element(&element),
        };
    }
    Ok(undone.finish())
}

/// The `_id` that an upsert inserted, as a document `{_id}`.
fn upserted_id(reply: Doc<'_>) -> Result<Option<Vec<u8>>, Malformed> {
    let id = match reply.nested("upserted")? {
        Some(list) => match list.nested("0")? {
            Some(first) => first.get("_id")?,
            None => None,
        },
        None => match reply.nested("lastErrorObject")? {
            Some(last) => last.get("upserted")?,
            None => None,
        },
    };
    Ok(id.map(|id| {
        let mut document = Builder::new();
        document.append(id.kind, b"_id", id.value);
        document.finish()
    }))
}

/// `query`, and no other document than `image`: its `_id` and shard key, beside the query's own conditions so that a
/// router sees them, or with `$and` where the query has other conditions on the same paths. What the query asks for
/// already isn't repeated: the server takes a path that is matched twice for one that isn't.
fn pin(query: Doc<'_>, image: &Image) -> Result<Vec<u8>, Malformed> {
    let mut pins = Builder::new();
    if let Some(id) = Doc::new(&image.id)?.get("_id")? {
        append_equal(&mut pins, b"_id", &id);
    }
    if let Some(route) = &image.owner.route {
        for element in Doc::new(route.as_bytes())?.elements() {
            let element = element?;
            if element.name != b"_id" {
                append_equal(&mut pins, element.name, &element);
            }
        }
    }
    let pins = pins.finish();
    let pins = Doc::new(&pins)?;
    let mut pinned = Builder::from_document(query.bytes());
    let mut crossed = Builder::new();
    for pin in pins.elements() {
        let pin = pin?;
        let own = query.elements().flatten().find(|own| own.name == pin.name);
        match own {
            None => pinned.element(&pin),
            Some(own) if is_plain_equality(&own)? => continue,
            Some(_) => crossed.element(&pin),
        };
    }
    let crossed = crossed.finish();
    if Doc::new(&crossed)?.is_empty() {
        return Ok(pinned.finish());
    }
    Ok(both(Doc::new(&crossed)?, Doc::new(&pinned.finish())?))
}

fn both(one: Doc<'_>, other: Doc<'_>) -> Vec<u8> {
    let mut both = Builder::new();
    both.open(ElementType::Array, b"$and")
        .document("0", one)
        .document("1", other);
    both.finish()
}

/// Whether a query's condition is a value, or `{$eq: …}`.
fn is_plain_equality(condition: &Element<'_>) -> Result<bool, Malformed> {
    Ok(match condition.kind {
        ElementType::RegularExpression => false,
        ElementType::EmbeddedDocument => {
            let document = condition.as_document_or_array()?.unwrap_or(Doc::empty());
            let mut operators = document.elements();
            match operators.next().transpose()? {
                Some(first) if first.name == b"$eq" => operators.next().is_none(),
                Some(first) => !first.name.starts_with(b"$"),
                None => true,
            }
        }
        _ => true,
    })
}

fn append_equal(query: &mut Builder, path: &[u8], value: &Element<'_>) {
    query
        .open(ElementType::EmbeddedDocument, path)
        .append(value.kind, b"$eq", value.value)
        .close();
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn a_pinned_query_repeats_no_equality() {
        let route = bson::rawdoc! { "region": "b" };
        let owner = crate::proxy_collection::Owner {
            id: bson::RawBson::Int32(1),
            route: Some(route),
        };
        let image = Image {
            id: doc! { "_id": 1 }.to_vec().unwrap(),
            owner,
            keys: Ok(Vec::new()),
        };
        let pinned = |query: Document| {
            let bytes = pin(Doc::new(&query.to_vec().unwrap()).unwrap(), &image).unwrap();
            Document::from_reader(bytes.as_slice()).unwrap()
        };
        assert_eq!(
            pinned(doc! { "_id": 1, "region": "b" }),
            doc! { "_id": 1, "region": "b" }
        );
        let by_name = doc! { "name": "x", "_id": { "$eq": 1 }, "region": { "$eq": "b" } };
        assert_eq!(pinned(doc! { "name": "x" }), by_name);
        let crossed = doc! { "$and": [{ "_id": { "$eq": 1 } }, { "_id": { "$gt": 0 }, "region": "b" }] };
        assert_eq!(pinned(doc! { "_id": { "$gt": 0 }, "region": "b" }), crossed);
    }

    #[test]
    fn an_upserted_id_is_found_in_either_reply() {
        let id = |reply: Document| upserted_id(Doc::new(&reply.to_vec().unwrap()).unwrap()).unwrap();
        let expected = doc! { "_id": 7 }.to_vec().unwrap();
        assert_eq!(
            id(doc! { "n": 1, "upserted": [{ "index": 0, "_id": 7 }] }),
            Some(expected.clone())
        );
        assert_eq!(
            id(doc! { "lastErrorObject": { "n": 1, "upserted": 7 }, "value": null }),
            Some(expected)
        );
        assert_eq!(id(doc! { "n": 1 }), None);
    }
}
