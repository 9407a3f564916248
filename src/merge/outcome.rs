//! Follows the writes of a `$merge`, and composes its reply as the server does.

use bson::spec::ElementType;

use super::stage::{MergeStage, WhenMatched};
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::Times;
use crate::server::reply::{self, StatementError};
use crate::server::{code, cursor};
use crate::wire::ServerError;

/// The server's prefix of an error that a stage finds as it runs.
const PREFIX: &str = "PlanExecutor error during aggregation :: caused by :: ";

/// The outcome of the writes so far.
#[derive(Debug, Default)]
pub struct MergeOutcome {
    /// The first error, as a reply without times.
    error: Option<Builder>,
    /// Documents of the present batch that are written, and those of them that had a match.
    written: usize,
    matched: usize,
    write_concern_error: Option<Vec<u8>>,
    times: Times,
}

impl MergeOutcome {
    /// Notes the times of a reply.
    pub fn advance(&mut self, reply: Doc<'_>) {
        self.times.advance(Times::of_reply(reply.bytes()));
    }

    /// The latest times so far, for a reply of Keyward's own.
    pub fn times(&self) -> &Times {
        &self.times
    }

    /// Notes the reply to a write of `count` documents, which the server executed as a whole or in part.
    pub fn add(
        &mut self,
        reply: Doc<'_>,
        count: usize,
        stage: &MergeStage<'_>,
        on: &[String],
    ) -> Result<(), Malformed> {
        self.advance(reply);
        self.written += count;
        let affected = reply::documents_affected(reply)?;
        self.matched += usize::try_from(affected)
            .unwrap_or(0)
            .saturating_sub(reply::upserted(reply)?.len());
        if let Some(error) = reply::write_concern_error(reply)? {
            self.write_concern_error = Some(error.bytes().to_vec());
        }
        if let (None, Some(first)) = (&self.error, reply::write_errors(reply)?.first()) {
            self.error = Some(stage_error(first, stage, on)?);
        }
        Ok(())
    }

    /// Ends a batch: from now on an error ends the command, and so does a document without a match if the `stage` requires one.
    pub fn end_batch(&mut self, stage: &MergeStage<'_>) {
        let (written, matched) = (std::mem::take(&mut self.written), std::mem::take(&mut self.matched));
        if self.error.is_none() && stage.must_match() && matched < written {
            let text = "$merge could not find a matching document in the target collection for at least one document in the \
                        source collection";
            self.fail(&ServerError::new(
                code::MERGE_STAGE_NO_MATCHING_DOCUMENT,
                text.to_owned(),
            ));
        }
    }

    /// Notes an error that the stage found.
    pub fn fail(&mut self, error: &ServerError) {
        let errmsg = format!("{PREFIX}{}", error.message);
        self.error = Some(reply::command_error(errmsg.as_bytes(), error.code));
    }

    /// The reply of a command that an error ends.
    pub fn error(&self) -> Option<Vec<u8>> {
        let mut body = self.error.clone()?;
        self.times.append_to(&mut body);
        Some(body.finish())
    }

    /// The reply once all results are written; `first` is the reply that opened the cursor.
    pub fn reply(&self, first: Doc<'_>) -> Result<Vec<u8>, Malformed> {
        let mut body = Builder::new();
        body.open(ElementType::EmbeddedDocument, b"cursor");
        for field in first.nested("cursor")?.unwrap_or(Doc::empty()).elements() {
            let field = field?;
            match field.name {
                b"firstBatch" => body.open(ElementType::Array, b"firstBatch").close(),
                b"id" => body.int64("id", cursor::CLOSED),
                _ => body.element(&field),
            };
        }
        body.close();
        if let Some(error) = &self.write_concern_error {
            body.document("writeConcernError", Doc::new(error)?);
        }
        body.double("ok", 1.0);
        self.times.append_to(&mut body);
        Ok(body.finish())
    }
}

/// The reply of the command, without times, if a statement of its writes fails in this way.
fn stage_error(error: &StatementError<'_>, stage: &MergeStage<'_>, on: &[String]) -> Result<Builder, Malformed> {
    let context = match error.code {
        code::DUPLICATE_KEY if stage.when_matched == WhenMatched::Fail && is_on(error.body, on)? => {
            "$merge with whenMatched: fail found an existing document with the same values for the 'on' fields :: caused by :: "
        }
        code::DUPLICATE_KEY => "$merge failed due to a DuplicateKey error :: caused by :: ",
        code::IMMUTABLE_FIELD => {
            "$merge failed to update the matching document, did you attempt to modify the _id or the shard key? :: caused by :: "
        }
        _ => "",
    };
    let text = reply::errmsg(error.body)?.unwrap_or_default();
    let errmsg = [PREFIX.as_bytes(), context.as_bytes(), text].concat();
    let mut body = reply::command_error(&errmsg, error.code);
    body.elements_where(error.body, |field| {
        !matches!(field.name, b"index" | b"code" | b"codeName" | b"errmsg")
    })?;
    Ok(body)
}

/// Whether a duplicate's index has just these fields.
fn is_on(duplicate: Doc<'_>, on: &[String]) -> Result<bool, Malformed> {
    let pattern = duplicate.nested("keyPattern")?.unwrap_or(Doc::empty());
    let mut fields: Vec<&[u8]> = Vec::new();
    for field in pattern.elements() {
        fields.push(field?.name);
    }
    fields.sort_unstable();
    Ok(fields
        .iter()
        .eq(on.iter().map(|path| path.as_bytes()).collect::<Vec<_>>().iter()))
}

#[cfg(test)]
mod tests {
    use bson::{Document, bson, doc};

    use super::*;

    fn with_stage<T>(when_matched: &str, when_not_matched: &str, test: impl FnOnce(&MergeStage<'_>) -> T) -> T {
        let stage = bson!({ "into": "t", "whenMatched": when_matched, "whenNotMatched": when_not_matched });
        let bytes = doc! { "$merge": stage }.to_vec().unwrap();
        let element = Doc::new(&bytes).unwrap().get("$merge").unwrap().unwrap();
        test(&MergeStage::read(&element).unwrap().unwrap())
    }

    fn after(stage: &MergeStage<'_>, replies: &[(Document, usize)]) -> Option<Document> {
        let mut outcome = MergeOutcome::default();
        for (reply, count) in replies {
            let reply = reply.to_vec().unwrap();
            outcome
                .add(Doc::new(&reply).unwrap(), *count, stage, &["_id".to_owned()])
                .unwrap();
        }
        outcome.end_batch(stage);
        let error = outcome.error();
        error.map(|error| Document::from_reader(error.as_slice()).unwrap())
    }

    fn duplicate(field: &str) -> Document {
        doc! { "n": 0, "writeErrors": [{
            "index": 3, "code": 11000, "errmsg": "E11000", "keyPattern": { field: 1 }, "keyValue": { field: "x" },
        }], "ok": 1.0 }
    }

    #[test]
    fn the_first_error_has_the_text_of_the_stage() {
        for (mode, field, context) in [
            ("merge", "email", "$merge failed due to a DuplicateKey error"),
            ("fail", "email", "$merge failed due to a DuplicateKey error"),
            (
                "fail",
                "_id",
                "$merge with whenMatched: fail found an existing document with the same values for the 'on' fields",
            ),
        ] {
            let error = with_stage(mode, "insert", |stage| {
                after(stage, &[(duplicate(field), 1), (duplicate("other"), 1)])
            });
            let expected = doc! {
                "ok": 0.0,
                "errmsg": format!("PlanExecutor error during aggregation :: caused by :: {context} :: caused by :: E11000"),
                "code": 11000, "codeName": "DuplicateKey", "keyPattern": { field: 1 }, "keyValue": { field: "x" },
            };
            assert_eq!(error, Some(expected));
        }
    }

    #[test]
    fn a_document_without_a_match_fails_the_command_after_its_batch() {
        let replies = [(doc! { "n": 2, "ok": 1.0 }, 2), (doc! { "n": 0, "ok": 1.0 }, 1)];
        let failed = with_stage("replace", "fail", |stage| after(stage, &replies));
        assert_eq!(failed.unwrap().get_i32("code").ok(), Some(13113));
        assert_eq!(with_stage("replace", "fail", |stage| after(stage, &replies[..1])), None);
        assert_eq!(with_stage("replace", "discard", |stage| after(stage, &replies)), None);
        let upserted = [(doc! { "n": 1, "upserted": [{ "index": 0, "_id": 1 }], "ok": 1.0 }, 1)];
        assert_eq!(with_stage("replace", "insert", |stage| after(stage, &upserted)), None);
    }

    #[test]
    fn the_reply_has_an_empty_batch_and_no_cursor() {
        let first = doc! { "cursor": { "firstBatch": [{ "a": 1 }], "id": 7_i64, "ns": "d.s" }, "ok": 1.0 };
        let write = doc! { "n": 1, "writeConcernError": { "code": 64 }, "ok": 1.0 };
        let reply = with_stage("merge", "insert", |stage| {
            let mut outcome = MergeOutcome::default();
            let write = write.to_vec().unwrap();
            outcome.add(Doc::new(&write).unwrap(), 1, stage, &[]).unwrap();
            outcome.end_batch(stage);
            outcome.reply(Doc::new(&first.to_vec().unwrap()).unwrap()).unwrap()
        });
        let expected = doc! {
            "cursor": { "firstBatch": [], "id": 0_i64, "ns": "d.s" }, "writeConcernError": { "code": 64 }, "ok": 1.0,
        };
        assert_eq!(Document::from_reader(reply.as_slice()).unwrap(), expected);
    }
}
