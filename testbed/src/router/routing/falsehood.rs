//! Queries that are true, or false, whatever the document: the newest `mongos` puts such a truth in the place of the query
//! before it looks for a shard key in it.
//!
//! Source: mongodb/mongo `src/mongo/db/query/compiler/rewrites/matcher/expression_optimizer.cpp`. Folded are `$alwaysFalse`,
//! `$alwaysTrue`, an `$in` of nothing, an `$expr` without fields, and what `$and`, `$or` and `$nor` make of them.

use bson::spec::ElementType;

use crate::router::raw::{Doc, Element};

/// Whether no document can meet the query, as its text alone tells.
pub fn is_never_met(query: Doc<'_>) -> bool {
    truth(query) == Some(false)
}

/// What the query says of every document, if that is always the same.
fn truth(query: Doc<'_>) -> Option<bool> {
    all(query.elements().flatten().map(|condition| match condition.name {
        b"$and" => all(documents(&condition).into_iter().map(truth)),
        b"$or" => any(documents(&condition).into_iter().map(truth)),
        b"$nor" => any(documents(&condition).into_iter().map(truth)).map(|any| !any),
        b"$expr" => constant(&condition),
        b"$alwaysFalse" => Some(false),
        b"$alwaysTrue" | b"$comment" => Some(true),
        _ => predicate(&condition),
    }))
}

/// The conditions on one field.
fn predicate(condition: &Element<'_>) -> Option<bool> {
    if condition.kind != ElementType::EmbeddedDocument {
        return None;
    }
    let operators = Doc::new(condition.value).ok()?;
    let is_nothing = |operator: &Element<'_>| {
        let values = operator.as_document_or_array().ok().flatten();
        operator.name == b"$in" && values.is_some_and(Doc::is_empty)
    };
    operators
        .elements()
        .flatten()
        .any(|operator| is_nothing(&operator))
        .then_some(false)
}

/// What an aggregation expression without fields comes to.
fn constant(expression: &Element<'_>) -> Option<bool> {
    match expression.kind {
        ElementType::EmbeddedDocument => {
            let operators = Doc::new(expression.value).ok()?;
            let operator = operators.elements().next()?.ok()?;
            let operands = || operator.as_document_or_array().ok().flatten();
            match operator.name {
                b"$literal" | b"$const" => Some(operator.is_truthy()),
                b"$and" => all(operands()?.elements().flatten().map(|operand| constant(&operand))),
                b"$or" => any(operands()?.elements().flatten().map(|operand| constant(&operand))),
                _ => None,
            }
        }
        ElementType::Array => Some(true),
        ElementType::String if expression.as_str().is_none_or(|text| text.starts_with('$')) => None,
        _ => Some(expression.is_truthy()),
    }
}

fn documents<'a>(list: &Element<'a>) -> Vec<Doc<'a>> {
    let list = list.as_document_or_array().ok().flatten();
    let elements = list.into_iter().flat_map(Doc::elements).flatten();
    elements
        .filter_map(|element| element.as_document_or_array().ok().flatten())
        .collect()
}

fn all(truths: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    fold(truths, false)
}

fn any(truths: impl Iterator<Item = Option<bool>>) -> Option<bool> {
    fold(truths, true)
}

/// `decisive` if one of them is; the opposite if all of them are that.
fn fold(truths: impl Iterator<Item = Option<bool>>, decisive: bool) -> Option<bool> {
    let mut folded = Some(!decisive);
    for truth in truths {
        match truth {
            Some(truth) if truth == decisive => return Some(decisive),
            Some(_) => {}
            None => folded = None,
        }
    }
    folded
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    #[test]
    fn what_is_false_by_itself_is_never_met() {
        let is_never = |query: &Document| is_never_met(Doc::new(&query.to_vec().unwrap()).unwrap());
        for never in [
            doc! { "_id": 1, "$expr": { "$and": [false] } },
            doc! { "_id": 1, "$expr": false },
            doc! { "_id": 1, "$nor": [{}] },
            doc! { "_id": 1, "$nor": [{ "a": 1 }, { "$alwaysTrue": 1 }] },
            doc! { "a": { "$in": [] }, "_id": 1 },
            doc! { "$and": [{ "_id": 1 }, { "$or": [{ "a": { "$in": [] } }, { "$alwaysFalse": 1 }] }] },
            doc! { "$expr": { "$and": ["$a", { "$literal": 0 }] } },
        ] {
            assert!(is_never(&never), "{never}");
        }
        for unknown in [
            doc! {},
            doc! { "_id": 1 },
            doc! { "$expr": { "$eq": [{ "$type": "$_id" }, "missing"] } },
            doc! { "$expr": { "$and": ["$a", true] } },
            doc! { "$nor": [{ "a": 1 }] },
            doc! { "$or": [{ "a": { "$in": [] } }, { "a": 1 }] },
            doc! { "a": { "$in": [1] } },
        ] {
            assert!(!is_never(&unknown), "{unknown}");
        }
    }
}
