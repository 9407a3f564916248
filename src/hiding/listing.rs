//! Adds a condition to a command that lists or watches, so that its reply leaves out Keyward's own collections.
//!
//! It does no I/O.

use bson::spec::ElementType;
use bson::{Document, doc};

use crate::constraint::PROXY_PREFIX;
use crate::fleet;
use crate::raw::{Builder, Doc, Element, Malformed};

/// A command that would show Keyward's own collections.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Listing {
    /// `listCollections`.
    Collections,
    /// `listDatabases`.
    Databases,
    /// A change stream on a database or the cluster.
    Changes,
}

impl Listing {
    /// The command whose reply leaves out what is Keyward's own, unless the client asks for that. Returns nothing if Keyward forwards the
    /// command unchanged, and its reply: if the client asks for Keyward's own collections, or if only the server can judge the command.
    pub(super) fn hiding(self, body: Doc<'_>) -> Option<Vec<u8>> {
        let hiding = match self {
            Listing::Collections | Listing::Databases => self.with_filter(body),
            Listing::Changes => with_stage(body),
        };
        // The server has an error for a part of the command that can't be read.
        hiding.ok().flatten()
    }

    fn with_filter(self, body: Doc<'_>) -> Result<Option<Vec<u8>>, Malformed> {
        let filter = match body.get("filter")? {
            Some(filter) if filter.kind == ElementType::EmbeddedDocument => Some(Doc::new(filter.value)?),
            Some(filter) if filter.is_nothing() => None,
            Some(_) => return Ok(None),
            None => None,
        };
        if let Some(name) = filter.map(|filter| filter.get("name")).transpose()?.flatten() {
            let is_own = names_own(&name)?;
            match self {
                // The reply may still list a database that was dropped.
                Listing::Databases if is_own => return Ok(Some(body.bytes().to_vec())),
                Listing::Databases => {}
                // One name is asked for: the server then reads one collection, instead of all.
                _ if is_own || name.as_string_bytes().is_some() => return Ok(None),
                _ => {}
            }
        }
        let mut command = Builder::new();
        command.elements_where(body, |field| field.name != b"filter")?;
        let condition = match self {
            Listing::Databases => doc! { "name": { "$ne": fleet::DATABASE } },
            _ => doc! { "name": { "$not": { "$regex": own_names() } } },
        };
        append_condition(&mut command, filter, &condition);
        Ok(Some(command.finish()))
    }
}

/// The same `aggregate`, with a stage right behind `$changeStream`. The stream goes on from the tokens of the events left out.
fn with_stage(body: Doc<'_>) -> Result<Option<Vec<u8>>, Malformed> {
    let mut command = Builder::new();
    for field in body.elements() {
        let field = field?;
        let Some(pipeline) = field.as_document_or_array()?.filter(|_| field.name == b"pipeline") else {
            command.element(&field);
            continue;
        };
        let mut stages = Vec::new();
        for stage in pipeline.elements() {
            let Some(stage) = stage?.as_document_or_array()? else {
                return Ok(None);
            };
            stages.push(stage.bytes().to_vec());
        }
        let hiding = match stages.first().map(|stage| resumes(stage)).transpose()? {
            Some(true) => pruning(),
            _ => matching(),
        };
        stages.insert(1.min(stages.len()), bytes_of(&hiding));
        command.documents("pipeline", &stages);
    }
    Ok(Some(command.finish()))
}

/// Whether a `$changeStream` stage goes on behind an event.
fn resumes(stage: &[u8]) -> Result<bool, Malformed> {
    let Some(options) = Doc::new(stage)?.nested("$changeStream")? else {
        return Ok(false);
    };
    Ok(options.get("resumeAfter")?.is_some() || options.get("startAfter")?.is_some())
}

/// The stage that leaves Keyward's own events out as early as the server can.
fn matching() -> Document {
    doc! { "$match": {
        "ns.db": { "$ne": fleet::DATABASE }, "ns.coll": { "$not": { "$regex": own_names() } },
    } }
}

/// The stage that leaves them out of a stream that goes on behind an event. That may be one of Keyward's own: the stream was opened past
/// Keyward. The server looks for that event first. It moves a `$match` before that look, and would not find the event; it doesn't move this.
fn pruning() -> Document {
    let collection = doc! { "$ifNull": ["$ns.coll", ""] };
    let is_own = doc! { "$or": [
        { "$eq": ["$ns.db", fleet::DATABASE] },
        { "$regexMatch": { "input": collection, "regex": own_names() } },
    ] };
    doc! { "$redact": { "$cond": [is_own, "$$PRUNE", "$$KEEP"] } }
}

/// Appends the client's `filter`, if there is one, together with `condition`.
fn append_condition(command: &mut Builder, filter: Option<Doc<'_>>, condition: &Document) {
    let condition = bytes_of(condition);
    match filter {
        None => command.append(ElementType::EmbeddedDocument, b"filter", &condition),
        Some(filter) => command
            .open(ElementType::EmbeddedDocument, b"filter")
            .documents("$and", [filter.bytes(), condition.as_slice()])
            .close(),
    };
}

/// The server's pattern that matches the names of Keyward's collections.
fn own_names() -> String {
    format!("^{}", PROXY_PREFIX.replace('.', "\\."))
}

/// Whether a condition on a name mentions one of Keyward's.
fn names_own(condition: &Element<'_>) -> Result<bool, Malformed> {
    let Some(nested) = condition.as_document_or_array()? else {
        return Ok(is_own_name(condition));
    };
    // It doesn't call itself: the nesting comes from the network, and may be deeper than the program's stack.
    let mut left = vec![nested];
    while let Some(document) = left.pop() {
        for element in document.elements() {
            let element = element?;
            match element.as_document_or_array()? {
                Some(nested) => left.push(nested),
                None if is_own_name(&element) => return Ok(true),
                None => {}
            }
        }
    }
    Ok(false)
}

/// Whether this value is one of Keyward's names, or a pattern that begins with one.
fn is_own_name(condition: &Element<'_>) -> bool {
    let text = match condition.kind {
        // Its value begins with the pattern.
        ElementType::RegularExpression => Some(condition.value),
        _ => condition.as_string_bytes(),
    };
    let is_own = |name: &[u8]| name.starts_with(PROXY_PREFIX.as_bytes()) || name == fleet::DATABASE.as_bytes();
    text.is_some_and(|text| {
        let pattern = text.strip_prefix(b"^");
        is_own(text) || pattern.is_some_and(|pattern| pattern.starts_with(fleet::DATABASE.as_bytes()))
    })
}

fn bytes_of(document: &Document) -> Vec<u8> {
    document.to_vec().unwrap_or_else(|_| Doc::empty().bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Regex, bson};

    use super::*;

    fn hidden(listing: Listing, command: &Document) -> Option<Document> {
        let command = command.to_vec().unwrap();
        let hiding = listing.hiding(Doc::new(&command).unwrap());
        hiding.map(|command| Document::from_reader(command.as_slice()).unwrap())
    }

    /// The server refuses it. A client may send it before it has logged in.
    #[test]
    fn a_filter_of_any_depth_is_read() {
        let mut filter = Builder::new().finish();
        for _ in 0..10_000 {
            let mut outer = Builder::new();
            outer.append(ElementType::EmbeddedDocument, b"", &filter);
            filter = outer.finish();
        }
        let name = Element {
            kind: ElementType::EmbeddedDocument,
            name: b"name",
            value: &filter,
        };
        let named = std::thread::Builder::new().stack_size(128 << 10);
        std::thread::scope(|scope| {
            let named = named.spawn_scoped(scope, || names_own(&name));
            assert_eq!(named.unwrap().join().unwrap(), Ok(false));
        });
    }

    #[test]
    fn a_condition_is_added_to_a_filter() {
        let list = doc! { "listCollections": 1, "nameOnly": true, "$db": "d" };
        let condition = doc! { "name": { "$not": { "$regex": "^keyward\\." } } };
        let mut expected = list.clone();
        expected.insert("filter", condition.clone());
        assert_eq!(hidden(Listing::Collections, &list), Some(expected.clone()));
        let mut filtered = list.clone();
        filtered.insert("filter", doc! { "type": "view" });
        expected.insert("filter", doc! { "$and": [{ "type": "view" }, condition] });
        assert_eq!(hidden(Listing::Collections, &filtered), Some(expected));
        let databases = doc! { "listDatabases": 1, "$db": "admin" };
        let mut expected = databases.clone();
        expected.insert("filter", doc! { "name": { "$ne": "keyward" } });
        assert_eq!(hidden(Listing::Databases, &databases), Some(expected));
    }

    #[test]
    fn a_client_that_names_keywards_own_gets_it() {
        let pattern = Regex {
            pattern: "^keyward\\.".try_into().unwrap(),
            options: "".try_into().unwrap(),
        };
        for (name, is_hidden) in [
            (bson!("keyward.users.email_1"), false),
            (bson!({ "$in": ["users", "keyward.constraints"] }), false),
            (bson!({ "$regex": "^keyward" }), false),
            (Bson::RegularExpression(pattern), false),
            (bson!("users"), false),
            (bson!({ "$eq": "users" }), true),
            (bson!({ "$ne": "users" }), true),
        ] {
            let list = doc! { "listCollections": 1, "filter": { "name": name.clone() }, "$db": "d" };
            assert_eq!(hidden(Listing::Collections, &list).is_some(), is_hidden, "{name}");
        }
        let list = doc! { "listDatabases": 1, "filter": { "name": "keyward" }, "$db": "admin" };
        assert_eq!(hidden(Listing::Databases, &list), Some(list));
        let without = doc! { "listDatabases": 1, "$db": "admin" };
        for nothing in [Bson::Null, Bson::Undefined] {
            let list = doc! { "listDatabases": 1, "filter": nothing, "$db": "admin" };
            assert_eq!(hidden(Listing::Databases, &list), hidden(Listing::Databases, &without));
        }
        let odd = doc! { "listDatabases": 1, "filter": 1, "$db": "admin" };
        assert_eq!(hidden(Listing::Databases, &odd), None);
    }

    #[test]
    fn a_change_stream_leaves_events_out_in_its_second_stage() {
        let watch =
            doc! { "aggregate": 1, "pipeline": [{ "$changeStream": {} }, { "$project": { "a": 1 } }], "cursor": {} };
        let hiding = doc! { "$match": {
            "ns.db": { "$ne": "keyward" }, "ns.coll": { "$not": { "$regex": "^keyward\\." } },
        } };
        let expected = doc! {
            "aggregate": 1, "pipeline": [{ "$changeStream": {} }, hiding, { "$project": { "a": 1 } }], "cursor": {},
        };
        assert_eq!(hidden(Listing::Changes, &watch), Some(expected));
        for option in ["resumeAfter", "startAfter"] {
            let stage = doc! { "$changeStream": { option: { "_data": "82" } } };
            let resumed = doc! { "aggregate": 1, "pipeline": [stage.clone()], "cursor": {} };
            let expected = doc! { "aggregate": 1, "pipeline": [stage, pruning()], "cursor": {} };
            assert_eq!(hidden(Listing::Changes, &resumed), Some(expected), "{option}");
        }
    }

    #[test]
    fn a_command_that_cannot_be_read_goes_to_the_server() {
        let list = doc! { "listCollections": 1, "filter": { "name": { "$in": ["x"] } }, "$db": "d" };
        let mut bytes = list.to_vec().unwrap();
        let nested = bytes.windows(3).position(|window| window == b"$in").unwrap() + 4;
        // A length that reaches past the end.
        bytes[nested] = 100;
        assert_eq!(Listing::Collections.hiding(Doc::new(&bytes).unwrap()), None);
    }
}
