//! Reads the commands about indexes from their messages, and writes their forms for the server.
//!
//! It does no I/O.

use bson::spec::ElementType;

use crate::classify::Target;
use crate::raw::{Builder, Doc, Malformed};
use crate::wire::OpMsg;

/// A command about the indexes of one collection, which Keyward serves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum IndexCommand<'a> {
    /// `createIndexes` on a protected collection; with a unique index, on any collection.
    Create(Target<'a>),
    /// `collMod` on any collection that makes an index unique.
    Convert(Target<'a>),
    /// `dropIndexes` on any collection.
    Drop(Target<'a>),
    /// `listIndexes` on a protected collection.
    List(Target<'a>),
    /// `shardCollection` of a collection that isn't protected.
    Shard,
}

/// The index documents of a `createIndexes`; none if the command has another form, which only the server judges.
pub fn index_documents<'a>(message: &OpMsg<'a>) -> Result<Vec<Doc<'a>>, Malformed> {
    let Some(indexes) = message.body.nested("indexes")? else {
        return Ok(Vec::new());
    };
    let mut all = Vec::new();
    for index in indexes.elements() {
        match index?.as_document()? {
            Some(index) => all.push(index),
            None => return Ok(Vec::new()),
        }
    }
    Ok(all)
}

/// Whether a `createIndexes` asks for a unique index.
pub fn asks_for_unique(message: &OpMsg<'_>) -> Result<bool, Malformed> {
    for index in index_documents(message)? {
        if flag(index, "unique")? == Some(true) {
            return Ok(true);
        }
    }
    Ok(false)
}

/// The option with this name; none if it has a type that the server refuses.
pub fn flag(options: Doc<'_>, name: &str) -> Result<Option<bool>, Malformed> {
    Ok(match options.get(name)? {
        None => Some(false),
        Some(option) => {
            let is_flag = option.is_number() || option.kind == ElementType::Boolean;
            is_flag.then(|| option.is_truthy())
        }
    })
}

/// The body of a `createIndexes` in which the indexes at `positions` aren't unique.
pub fn without_unique(message: &OpMsg<'_>, positions: &[usize]) -> Result<Vec<u8>, Malformed> {
    let mut indexes = Vec::new();
    for (position, index) in index_documents(message)?.into_iter().enumerate() {
        let mut plain = Builder::new();
        plain.elements_where(index, |field| field.name != b"unique" || !positions.contains(&position))?;
        indexes.push(plain.finish());
    }
    let mut body = Builder::new();
    for field in message.body.elements() {
        let field = field?;
        match field.name {
            b"indexes" => drop(body.documents("indexes", &indexes)),
            _ => drop(body.element(&field)),
        }
    }
    Ok(body.finish())
}

/// The indexes that a `dropIndexes` names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum DroppedIndexes<'a> {
    /// All but the one on `_id`.
    All,
    /// The indexes with these names.
    Named(Vec<&'a [u8]>),
    /// The one with this key pattern.
    OfKey(Doc<'a>),
}

impl<'a> DroppedIndexes<'a> {
    /// The indexes that `body` names. Returns `None` if it has a form that only the server judges.
    pub fn of(body: Doc<'a>) -> Result<Option<DroppedIndexes<'a>>, Malformed> {
        let Some(index) = body.get("index")? else {
            return Ok(None);
        };
        Ok(match index.kind {
            ElementType::String if index.as_string_bytes() == Some(b"*") => Some(DroppedIndexes::All),
            ElementType::String => index.as_string_bytes().map(|name| DroppedIndexes::Named(vec![name])),
            ElementType::EmbeddedDocument => Some(DroppedIndexes::OfKey(Doc::new(index.value)?)),
            ElementType::Array => {
                let names = Doc::new(index.value)?.elements();
                let names = names.map(|name| name.map(|name| name.as_string_bytes()));
                names.collect::<Result<Option<Vec<_>>, _>>()?.map(DroppedIndexes::Named)
            }
            _ => None,
        })
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;
    use crate::wire::Draft;

    fn with_message<T>(body: &Document, read: impl FnOnce(&OpMsg<'_>) -> T) -> T {
        let body = body.to_vec().unwrap();
        let message: Vec<u8> = Draft::of_body(&body)
            .frame(1, 0)
            .unwrap()
            .pieces()
            .flatten()
            .copied()
            .collect();
        read(&OpMsg::parse(&message).unwrap())
    }

    #[test]
    fn only_the_indexes_that_become_constraints_lose_unique() {
        let command = doc! { "createIndexes": "c", "indexes": [
            { "key": { "a": 1 }, "name": "a_1", "unique": true, "sparse": true },
            { "key": { "b": 1 }, "name": "b_1", "unique": 1 },
            { "key": { "c": 1 }, "name": "c_1" },
        ], "$db": "d" };
        with_message(&command, |message| {
            assert!(asks_for_unique(message).unwrap());
            let plain = without_unique(message, &[0]).unwrap();
            let expected = doc! { "createIndexes": "c", "indexes": [
                { "key": { "a": 1 }, "name": "a_1", "sparse": true },
                { "key": { "b": 1 }, "name": "b_1", "unique": 1 },
                { "key": { "c": 1 }, "name": "c_1" },
            ], "$db": "d" };
            assert_eq!(Document::from_reader(plain.as_slice()).unwrap(), expected);
        });
        for indexes in [
            bson::Bson::Int32(1),
            bson::bson!([1]),
            bson::bson!([{ "key": { "a": 1 }, "unique": false }]),
            bson::bson!([{ "key": { "a": 1 }, "unique": "yes" }]),
        ] {
            with_message(
                &doc! { "createIndexes": "c", "indexes": indexes, "$db": "d" },
                |message| {
                    assert!(!asks_for_unique(message).unwrap());
                },
            );
        }
    }

    #[test]
    fn a_drop_names_indexes_in_four_forms() {
        let read = |index: bson::Bson, check: fn(Option<DroppedIndexes<'_>>) -> bool| {
            let body = doc! { "dropIndexes": "c", "index": index }.to_vec().unwrap();
            assert!(check(DroppedIndexes::of(Doc::new(&body).unwrap()).unwrap()));
        };
        read("*".into(), |read| read == Some(DroppedIndexes::All));
        read("a_1".into(), |read| read == Some(DroppedIndexes::Named(vec![b"a_1"])));
        read(bson::bson!(["a", "b"]), |read| {
            read == Some(DroppedIndexes::Named(vec![b"a", b"b"]))
        });
        read(doc! { "a": 1 }.into(), |read| {
            matches!(read, Some(DroppedIndexes::OfKey(_)))
        });
        read(1.into(), |read| read.is_none());
        read(bson::bson!(["a", 1]), |read| read.is_none());
    }
}
