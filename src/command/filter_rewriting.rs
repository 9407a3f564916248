//! Rewrites a statement's query: pins it to one document or to the values in it, or makes it match nothing.

use bson::spec::ElementType;

use crate::constraint::{TypeTest, root_of};
use crate::proxy_collection::Owner;
use crate::raw::{Builder, Doc, Element, Malformed};

/// `query`, pinned to the document `owner`: the `_id` of the document `id`, and the owner's shard key, become conditions.
///
/// They stand beside the query's own conditions, so that a router sees them. If the query has other conditions on the same
/// paths, `$and` joins them. Values that the query already asks for aren't repeated: if a path is matched twice, the server
/// treats it as unmatched.
pub fn pin(query: Doc<'_>, id: &[u8], owner: &Owner) -> Result<Vec<u8>, Malformed> {
    let mut pins = Builder::new();
    if let Some(id) = Doc::new(id)?.get("_id")? {
        append_equal(&mut pins, b"_id", &id);
    }
    if let Some(route) = &owner.route {
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

/// Whether a repeated query may match other documents, even in the same snapshot: it depends on chance, the clock or a program.
pub fn is_fickle(query: Doc<'_>) -> Result<bool, Malformed> {
    query.mentions(&[b"$expr", b"$where", b"$sampleRate"])
}

/// A query with both conditions.
pub fn both(one: Doc<'_>, other: Doc<'_>) -> Vec<u8> {
    let mut both = Builder::new();
    both.open(ElementType::Array, b"$and")
        .document("0", one)
        .document("1", other);
    both.finish()
}

/// The longest query whose conditions are looked up one by one. Each look goes through those before it, and a message has room for a million.
const CONDITIONS_MAX: usize = 100;

/// Whether the query is short enough to look each of its conditions up.
pub fn is_short(query: Doc<'_>) -> bool {
    query.elements().take(CONDITIONS_MAX + 1).count() <= CONDITIONS_MAX
}

/// The value that the query asks for at `path`.
pub fn equality<'a>(query: Doc<'a>, path: &str) -> Result<Option<Element<'a>>, Malformed> {
    let Some(condition) = query.get(path)? else {
        return Ok(None);
    };
    if !is_plain_equality(&condition)? {
        return Ok(None);
    }
    let operators = condition.as_document()?;
    let equal = operators.map(|operators| operators.get("$eq")).transpose()?.flatten();
    Ok(Some(equal.unwrap_or(condition)))
}

/// Whether the query names one shard, or one `_id` on all shards. A retry then asks the shard that carried out its first try,
/// or all shards.
pub fn is_targeted(query: Doc<'_>, shard_key: &[String]) -> Result<bool, Malformed> {
    Ok(equality(query, "_id")?.is_some() || names_shard(query, shard_key)?)
}

/// Whether the query can match documents of one shard only. A retry then reaches the shard that carried out its first try, or
/// the shard that received its chunk. The latter also received the chunk's remembered statements.
pub fn names_shard(query: Doc<'_>, shard_key: &[String]) -> Result<bool, Malformed> {
    Ok(shard_key.is_empty()
        || shard_key
            .iter()
            .map(|path| equality(query, path))
            .collect::<Result<Option<Vec<_>>, _>>()?
            .is_some())
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

/// `query`, as long as the values at `paths` are the same as in `document`.
pub fn unchanged(query: Doc<'_>, document: Doc<'_>, paths: &[&str]) -> Result<Vec<u8>, Malformed> {
    let mut compared: Vec<&str> = Vec::new();
    for path in paths {
        let path = match found_at(document, path)? {
            Some(path) => path,
            // The path leads through an array or names a position in one: compare the whole top-level field.
            None => root_of(path),
        };
        if !compared.contains(&path) {
            compared.push(path);
        }
    }
    let mut condition = Builder::new();
    condition.open(ElementType::Array, b"$and");
    for (index, path) in compared.iter().enumerate() {
        condition.open(ElementType::EmbeddedDocument, index.to_string().as_bytes());
        append_comparison(&mut condition, path, document.value_at(path)?);
        condition.close();
    }
    with_expression(query, &condition.finish())
}

/// The test whether the number at `path` has the type that it has in `document`; `None` if there is no number. Equal numbers of
/// different types may have different sums: of 2^53 and 1, the server rounds that of doubles.
pub fn same_type(path: &str, document: Doc<'_>) -> Result<Option<TypeTest>, Malformed> {
    let Some(value) = document.value_at(path)?.filter(Element::is_number) else {
        return Ok(None);
    };
    let mut query = Builder::new();
    query
        .open(ElementType::EmbeddedDocument, path.as_bytes())
        .int32("$type", i32::from(value.kind as u8))
        .close();
    Ok(Some(TypeTest {
        query: query.finish(),
        is_met: true,
    }))
}

/// `query`, for documents that pass exactly those of `tests` that were passed. An expression's `$eq` treats 1 and 1.0 as equal,
/// but a filter's `$type` doesn't. If a client changes one into the other, the document may enter or leave the filter.
pub fn of_same_types(query: Doc<'_>, tests: &[TypeTest]) -> Result<Vec<u8>, Malformed> {
    if tests.is_empty() {
        return Ok(query.bytes().to_vec());
    }
    let mut rewritten = Builder::new();
    rewritten.open(ElementType::Array, b"$and").document("0", query);
    for (position, TypeTest { query, is_met }) in (1..).zip(tests) {
        let (test, position) = (Doc::new(query)?, position.to_string());
        match is_met {
            true => rewritten.document(&position, test),
            false => rewritten
                .open(ElementType::EmbeddedDocument, position.as_bytes())
                .open(ElementType::Array, b"$nor")
                .document("0", test)
                .close()
                .close(),
        };
    }
    Ok(rewritten.finish())
}

/// `query`, rewritten to match no document. The server answers a retryable statement that it carried out before from memory;
/// any other statement has no effect.
///
/// The query asks for a document without an `_id`. A constantly false condition like `{$expr: false}` doesn't work. A router
/// that recognises it replaces the whole query by it, and finds no shard key there. Then the router asks none of the shards for
/// its memory.
pub fn nothing(query: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let mut never = Builder::new();
    append_comparison(&mut never, "_id", None);
    with_expression(query, &never.finish())
}

/// `query` of an upsert, rewritten to match no document. So the server inserts the document `id`, `{_id}`, or refuses its `_id`. A
/// document that has appeared since Keyward read is not changed.
///
/// An upsert's query may have no `$expr`. The rewritten query asks for a document without an `_id`, beside the equalities that the
/// new document is made of.
pub fn only_inserts(query: Doc<'_>, id: Doc<'_>) -> Result<Vec<u8>, Malformed> {
    let mut rewritten = Builder::from_document(query.bytes());
    if let (None, Some(id)) = (query.get("_id")?, id.get("_id")?) {
        append_equal(&mut rewritten, b"_id", &id);
    }
    rewritten
        .open(ElementType::Array, b"$nor")
        .open(ElementType::EmbeddedDocument, b"0")
        .open(ElementType::EmbeddedDocument, b"_id")
        .boolean("$exists", true)
        .close()
        .close()
        .close();
    Ok(rewritten.finish())
}

fn with_expression(query: Doc<'_>, expression: &[u8]) -> Result<Vec<u8>, Malformed> {
    let mut rewritten = match query.get("$expr")? {
        None => Builder::from_document(query.bytes()),
        Some(_) => {
            let mut crossed = Builder::new();
            crossed.open(ElementType::Array, b"$and").document("0", query).close();
            crossed
        }
    };
    rewritten.append(ElementType::EmbeddedDocument, b"$expr", expression);
    Ok(rewritten.finish())
}

/// `path`, if an expression's `$path` identifies its value: one value, or none, below plain documents.
fn found_at<'p>(document: Doc<'_>, path: &'p str) -> Result<Option<&'p str>, Malformed> {
    let is_name = |name: &str| !name.starts_with('$') && !name.bytes().all(|byte| byte.is_ascii_digit());
    if !path.split('.').all(is_name) {
        return Ok(None);
    }
    let mut names = path.split('.');
    let mut document = document;
    while let Some(name) = names.next() {
        let is_last = names.clone().next().is_none();
        let Some(element) = document.get(name)? else { break };
        match element.kind {
            ElementType::Array if path != name => return Ok(None),
            ElementType::EmbeddedDocument if !is_last => document = Doc::new(element.value)?,
            _ => break,
        }
    }
    Ok(Some(path))
}

/// Appends a comparison of the whole value and its type. A query's equality would look into arrays and treat null as a missing
/// field.
fn append_comparison(condition: &mut Builder, path: &str, value: Option<Element<'_>>) {
    let field = format!("${path}");
    match value.filter(|value| value.kind != ElementType::Undefined) {
        Some(value) => {
            condition.open(ElementType::Array, b"$eq").string("0", field.as_bytes());
            condition
                .open(ElementType::EmbeddedDocument, b"1")
                .append(value.kind, b"$literal", value.value)
                .close();
        }
        None => {
            let kind: &[u8] = if value.is_some() { b"undefined" } else { b"missing" };
            condition.open(ElementType::Array, b"$eq");
            condition
                .open(ElementType::EmbeddedDocument, b"0")
                .string("$type", field.as_bytes())
                .close();
            condition.string("1", kind);
        }
    }
    condition.close();
}

/// Appends the condition that `path` equals `value`.
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
        let id = doc! { "_id": 1 }.to_vec().unwrap();
        let pinned = |query: Document| {
            let bytes = pin(Doc::new(&query.to_vec().unwrap()).unwrap(), &id, &owner).unwrap();
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
    fn types_are_compared_where_a_filter_tests_them() {
        let of_same_types = |tests: &[(Document, bool)]| {
            let query = doc! { "_id": 1 }.to_vec().unwrap();
            let test = |(query, is_met): &(Document, bool)| TypeTest {
                query: query.to_vec().unwrap(),
                is_met: *is_met,
            };
            let tests: Vec<TypeTest> = tests.iter().map(test).collect();
            let bytes = of_same_types(Doc::new(&query).unwrap(), &tests).unwrap();
            Document::from_reader(bytes.as_slice()).unwrap()
        };
        assert_eq!(of_same_types(&[]), doc! { "_id": 1 });
        let (is_int, is_text) = (doc! { "n": { "$type": [16] } }, doc! { "s.t": { "$type": [2] } });
        assert_eq!(
            of_same_types(&[(is_int.clone(), true), (is_text.clone(), false)]),
            doc! { "$and": [{ "_id": 1 }, is_int, { "$nor": [is_text] }] }
        );
    }

    #[test]
    fn a_query_that_matches_nothing_keeps_the_clients_fields() {
        let nothing = |query: Document| {
            let bytes = nothing(Doc::new(&query.to_vec().unwrap()).unwrap()).unwrap();
            Document::from_reader(bytes.as_slice()).unwrap()
        };
        let never = doc! { "$eq": [{ "$type": "$_id" }, "missing"] };
        assert_eq!(
            nothing(doc! { "_id": 1, "region": "a" }),
            doc! { "_id": 1, "region": "a", "$expr": never.clone() }
        );
        let own = doc! { "$expr": true, "_id": 1 };
        assert_eq!(nothing(own.clone()), doc! { "$and": [own], "$expr": never });
    }

    #[test]
    fn present_values_are_compared_as_a_whole() {
        let unchanged = |document: Document, paths: &[&str]| {
            let (query, document) = (doc! { "_id": 1 }.to_vec().unwrap(), document.to_vec().unwrap());
            let bytes = unchanged(Doc::new(&query).unwrap(), Doc::new(&document).unwrap(), paths).unwrap();
            let rewritten = Document::from_reader(bytes.as_slice()).unwrap();
            assert_eq!(rewritten.get("_id"), Some(&bson::Bson::Int32(1)));
            rewritten
                .get_document("$expr")
                .unwrap()
                .get_array("$and")
                .unwrap()
                .clone()
        };
        let equal = |path: &str, value: bson::Bson| bson::bson!({ "$eq": [path, { "$literal": value }] });
        let missing = |path: &str| bson::bson!({ "$eq": [{ "$type": path }, "missing"] });
        let nested = doc! { "c": { "d": 1 }, "t": [1, 2] };
        assert_eq!(
            unchanged(nested.clone(), &["c.d", "c.e", "t"]),
            [
                equal("$c.d", 1.into()),
                missing("$c.e"),
                equal("$t", bson::bson!([1, 2]))
            ]
        );
        let in_array = bson::bson!([{ "x": 1 }]);
        assert_eq!(
            unchanged(doc! { "i": in_array.clone() }, &["i.x", "i.y"]),
            [equal("$i", in_array)]
        );
        assert_eq!(unchanged(nested, &["t.0"]), [equal("$t", bson::bson!([1, 2]))]);
    }
}
