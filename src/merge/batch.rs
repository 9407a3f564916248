//! Turns results of the pipeline into the statements or documents of writes.

use bson::oid::ObjectId;
use bson::spec::ElementType;

use super::stage::{MergeStage, WhenMatched, WhenNotMatched};
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::server::code;
use crate::wire::ServerError;

/// The field of a result that has the document, if the result has the values of variables, too.
pub(super) const DOCUMENT: &str = "document";
/// The field with these values.
pub(super) const VARIABLES: &str = "variables";

/// The most statements in one write: the constraints can't change before it has its reply.
const STATEMENTS_MAX: usize = 100;
/// The most bytes of statements in one write, unless a single one has more.
const BYTES_MAX: usize = 16 << 20;

/// Why a document can't be matched: the server refuses it, too.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum MergeKeyFault {
    /// The document has no value to match by.
    #[error("$merge write error: 'on' field '{0}' cannot be missing, null, undefined or an array")]
    Nothing(String),
    /// The document has an array there, or on the way there.
    #[error("$merge write error: 'on' field '{0}' is an array")]
    Array(String),
    /// A result isn't BSON.
    #[error(transparent)]
    Malformed(#[from] Malformed),
}

impl MergeKeyFault {
    /// The error for the client.
    pub fn error(&self) -> ServerError {
        let code = match self {
            MergeKeyFault::Nothing(_) => code::MERGE_KEY_MISSING,
            MergeKeyFault::Array(_) => code::MERGE_KEY_IS_ARRAY,
            MergeKeyFault::Malformed(_) => code::INVALID_BSON,
        };
        ServerError::new(code, self.to_string())
    }
}

/// The statements or documents of one batch of results, in parts of a limited size. Each part is made only when it is asked for: the stage's
/// pipeline, which may have many megabytes, is in each statement.
pub struct MergeParts<'b, I> {
    results: &'b [Doc<'b>],
    stage: &'b MergeStage<'b>,
    on: &'b [String],
    new_id: I,
    has_variables: bool,
}

impl<'b, I: FnMut() -> ObjectId> MergeParts<'b, I> {
    /// The parts of `results`. `on` are the fields to match by. `new_id` makes the `_id` of a document that lacks it.
    ///
    /// # Errors
    /// [`MergeKeyFault`]: the server, too, then writes no document of the batch.
    pub fn of(
        results: &'b [Doc<'b>],
        stage: &'b MergeStage<'b>,
        on: &'b [String],
        new_id: I,
    ) -> Result<MergeParts<'b, I>, MergeKeyFault> {
        let mut parts = MergeParts {
            results,
            stage,
            on,
            new_id,
            has_variables: !stage.computed_variables()?.is_empty(),
        };
        for result in results {
            let (document, _) = parts.document(*result)?;
            let with_id = parts.with_id(document)?;
            query(with_id.as_deref().map_or(Ok(document), Doc::new)?, on)?;
        }
        Ok(parts)
    }

    /// The document of a result, and the values of the variables.
    fn document(&self, result: Doc<'b>) -> Result<(Doc<'b>, Option<Doc<'b>>), Malformed> {
        Ok(match self.has_variables {
            true => (
                result.nested(DOCUMENT)?.unwrap_or(Doc::empty()),
                result.nested(VARIABLES)?,
            ),
            false => (result, None),
        })
    }

    /// The document with an `_id`, if it is matched by that and lacks it.
    fn with_id(&mut self, document: Doc<'_>) -> Result<Option<Vec<u8>>, Malformed> {
        let is_needed = self.on.iter().any(|path| path == "_id");
        Ok(match is_needed && document.get("_id")?.is_none() {
            true => {
                let mut with_id = Builder::from_document(document.bytes());
                with_id.append(ElementType::ObjectId, b"_id", &(self.new_id)().bytes());
                Some(with_id.finish())
            }
            false => None,
        })
    }

    /// The statement for a result, or the document to insert.
    fn written(&mut self, result: Doc<'b>) -> Result<Vec<u8>, MergeKeyFault> {
        let (document, variables) = self.document(result)?;
        let with_id = self.with_id(document)?;
        let document = with_id.as_deref().map_or(Ok(document), Doc::new)?;
        Ok(match self.stage.when_matched {
            WhenMatched::Fail => document.bytes().to_vec(),
            _ => statement(&query(document, self.on)?, document, variables, self.stage)?,
        })
    }
}

impl<I: FnMut() -> ObjectId> Iterator for MergeParts<'_, I> {
    type Item = Result<Vec<Vec<u8>>, MergeKeyFault>;

    fn next(&mut self) -> Option<Self::Item> {
        let (mut part, mut bytes) = (Vec::new(), 0);
        while let Some((result, rest)) = self.results.split_first()
            && part.len() < STATEMENTS_MAX
        {
            let written = match self.written(*result) {
                Ok(written) => written,
                Err(fault) => return Some(Err(fault)),
            };
            bytes += written.len();
            if bytes > BYTES_MAX && !part.is_empty() {
                break;
            }
            part.push(written);
            self.results = rest;
        }
        (!part.is_empty()).then_some(Ok(part))
    }
}

/// The query for the match of `document`.
fn query(document: Doc<'_>, on: &[String]) -> Result<Vec<u8>, MergeKeyFault> {
    let mut query = Builder::new();
    for path in on {
        let value = value_at(document, path)?;
        let value = value.filter(|value| !value.is_nothing());
        let value = value.ok_or_else(|| MergeKeyFault::Nothing(path.clone()))?;
        query.append(value.kind, path.as_bytes(), value.value);
    }
    Ok(query.finish())
}

/// The value at `path`, which must not lead through an array, nor to one.
fn value_at<'d>(document: Doc<'d>, path: &str) -> Result<Option<Element<'d>>, MergeKeyFault> {
    let (mut within, mut names) = (document, path.split('.').peekable());
    while let Some(name) = names.next() {
        let Some(value) = within.get(name)? else {
            return Ok(None);
        };
        if value.kind == ElementType::Array {
            return Err(MergeKeyFault::Array(path.to_owned()));
        }
        if names.peek().is_none() {
            return Ok(Some(value));
        }
        let Some(nested) = value.as_document()? else {
            return Ok(None);
        };
        within = nested;
    }
    Ok(None)
}

/// The statement of an `update`, as the server's own `$merge` makes it.
fn statement(
    query: &[u8],
    document: Doc<'_>,
    variables: Option<Doc<'_>>,
    stage: &MergeStage<'_>,
) -> Result<Vec<u8>, Malformed> {
    let inserts = stage.when_not_matched == WhenNotMatched::Insert;
    let mut statement = Builder::new();
    statement.append(ElementType::EmbeddedDocument, b"q", query);
    match stage.when_matched {
        WhenMatched::Replace | WhenMatched::Fail => {
            statement.document("u", document);
        }
        WhenMatched::Merge => append_operator(&mut statement, "$set", document),
        WhenMatched::KeepExisting => append_operator(&mut statement, "$setOnInsert", document),
        WhenMatched::Pipeline(pipeline) => {
            statement
                .append(ElementType::Array, b"u", pipeline.value)
                .open(ElementType::EmbeddedDocument, b"c")
                .elements(variables.unwrap_or(Doc::empty()))?;
            if stage.passes_new()? {
                statement.document("new", document);
            }
            statement.close();
            if inserts {
                statement.boolean("upsertSupplied", true);
            }
        }
    }
    statement.boolean("upsert", inserts);
    Ok(statement.finish())
}

fn append_operator(statement: &mut Builder, operator: &str, document: Doc<'_>) {
    statement
        .open(ElementType::EmbeddedDocument, b"u")
        .document(operator, document)
        .close();
}

#[cfg(test)]
mod tests {
    use bson::{Bson, Document, bson, doc};

    use super::*;

    const ID: ObjectId = ObjectId::from_bytes([7; 12]);

    fn parts(stage: Bson, on: &[&str], results: &[Document]) -> Result<Vec<Vec<Document>>, MergeKeyFault> {
        let stage = doc! { "$merge": stage }.to_vec().unwrap();
        let stage = Doc::new(&stage).unwrap().get("$merge").unwrap().unwrap();
        let stage = MergeStage::read(&stage).unwrap().unwrap();
        let results: Vec<Vec<u8>> = results.iter().map(|result| result.to_vec().unwrap()).collect();
        let results: Vec<Doc<'_>> = results.iter().map(|result| Doc::new(result).unwrap()).collect();
        let on: Vec<String> = on.iter().map(|path| (*path).to_owned()).collect();
        let parts = MergeParts::of(&results, &stage, &on, || ID)?;
        let decoded = |part: Vec<Vec<u8>>| {
            let documents = part.iter().map(|one| Document::from_reader(one.as_slice()).unwrap());
            documents.collect()
        };
        parts.map(|part| part.map(decoded)).collect()
    }

    fn one(stage: Bson, on: &[&str], result: Document) -> Document {
        parts(stage, on, &[result]).unwrap()[0][0].clone()
    }

    #[test]
    fn each_mode_has_its_statement() {
        let new = || doc! { "_id": 1, "a": 2 };
        for (mode, update) in [
            ("replace", doc! { "_id": 1, "a": 2 }),
            ("merge", doc! { "$set": new() }),
            ("keepExisting", doc! { "$setOnInsert": new() }),
        ] {
            let statement = one(bson!({ "into": "t", "whenMatched": mode }), &["_id"], new());
            assert_eq!(
                statement,
                doc! { "q": { "_id": 1 }, "u": update, "upsert": true },
                "{mode}"
            );
        }
        let inserted = one(bson!({ "into": "t", "whenMatched": "fail" }), &["_id"], new());
        assert_eq!(inserted, new());
        let discarding = one(
            bson!({ "into": "t", "whenMatched": "replace", "whenNotMatched": "discard" }),
            &["_id"],
            new(),
        );
        assert_eq!(discarding, doc! { "q": { "_id": 1 }, "u": new(), "upsert": false });
    }

    #[test]
    fn a_pipeline_gets_the_new_document_and_the_variables() {
        let stage = bson!({ "into": "t", "whenMatched": [{ "$set": { "a": "$$new.a" } }] });
        let expected = doc! {
            "q": { "_id": 1 }, "u": [{ "$set": { "a": "$$new.a" } }], "c": { "new": { "_id": 1 } },
            "upsertSupplied": true, "upsert": true,
        };
        assert_eq!(one(stage, &["_id"], doc! { "_id": 1 }), expected);
        let stage =
            bson!({ "into": "t", "let": { "v": "$a" }, "whenMatched": [{ "$unset": "b" }], "whenNotMatched": "fail" });
        let result = doc! { "document": { "_id": 1 }, "variables": { "v": 5 } };
        let expected = doc! { "q": { "_id": 1 }, "u": [{ "$unset": "b" }], "c": { "v": 5 }, "upsert": false };
        assert_eq!(one(stage, &["_id"], result), expected);
    }

    #[test]
    fn a_document_without_an_id_gets_one_if_it_is_matched_by() {
        let statement = one(bson!("t"), &["_id", "a.b"], doc! { "a": { "b": 1 } });
        let expected = doc! {
            "q": { "_id": ID, "a.b": 1 }, "u": { "$set": { "a": { "b": 1 }, "_id": ID } }, "upsert": true,
        };
        assert_eq!(statement, expected);
        let statement = one(bson!("t"), &["a"], doc! { "a": 1 });
        assert_eq!(
            statement,
            doc! { "q": { "a": 1 }, "u": { "$set": { "a": 1 } }, "upsert": true }
        );
    }

    #[test]
    fn a_field_to_match_by_has_one_value() {
        let fault = |document: Document| parts(bson!("t"), &["a.b"], &[document]).unwrap_err().error().code;
        assert_eq!(fault(doc! {}), code::MERGE_KEY_MISSING);
        assert_eq!(fault(doc! { "a": 1 }), code::MERGE_KEY_MISSING);
        assert_eq!(fault(doc! { "a": { "b": Bson::Null } }), code::MERGE_KEY_MISSING);
        assert_eq!(fault(doc! { "a": { "b": [1] } }), code::MERGE_KEY_IS_ARRAY);
        assert_eq!(fault(doc! { "a": [{ "b": 1 }] }), code::MERGE_KEY_IS_ARRAY);
    }

    #[test]
    fn a_part_has_a_limited_size() {
        let small: Vec<Document> = (0..250).map(|id| doc! { "_id": id }).collect();
        let sizes = |results: &[Document]| -> Vec<usize> {
            let parts = parts(bson!("t"), &["_id"], results).unwrap();
            parts.iter().map(Vec::len).collect()
        };
        assert_eq!(sizes(&small), [100, 100, 50]);
        let large = "x".repeat(6 << 20);
        let large: Vec<Document> = (0..5).map(|id| doc! { "_id": id, "x": &large }).collect();
        assert_eq!(sizes(&large), [2, 2, 1]);
        assert!(sizes(&[]).is_empty());
    }
}
