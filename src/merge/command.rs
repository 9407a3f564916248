//! Composes the commands that carry out an `aggregate` with `$merge`: the pipeline before it, and the writes.

use std::time::Duration;

use bson::spec::ElementType;

use super::batch::{DOCUMENT, VARIABLES};
use super::stage::{MergeStage, WhenMatched};
use crate::classify::Target;
use crate::command::batch::{is_unacknowledged, max_time};
use crate::command::running::{append_fields, is_about_running};
use crate::raw::{Builder, Doc, Element, Malformed};
use crate::reply::WriteRefusal;
use crate::server::clock::millis;
use crate::server::cursor;

/// How many documents Keyward reads at once.
const READ_AT_ONCE: i32 = 1000;

/// The fields by which each of Keyward's commands runs as the client's own.
const CIRCUMSTANCES: [&str; 4] = ["lsid", "apiVersion", "apiDeprecationErrors", "$clusterTime"];

/// An `aggregate` that ends with `$merge`.
#[derive(Debug, Clone)]
pub struct MergeCommand<'a> {
    body: Doc<'a>,
    /// The stages before `$merge`.
    stages: Vec<Doc<'a>>,
    /// The value of `$merge`.
    pub specification: Element<'a>,
    /// The collection that it writes to.
    pub target: Target<'a>,
}

impl<'a> MergeCommand<'a> {
    /// Reads the `aggregate` `body`, which was sent to `database`. `None` if its last stage isn't `$merge` alone, or servers could
    /// read its target in another way.
    pub fn read(body: Doc<'a>, database: &'a [u8]) -> Result<Option<MergeCommand<'a>>, Malformed> {
        let Some(pipeline) = body
            .get("pipeline")?
            .filter(|pipeline| pipeline.kind == ElementType::Array)
        else {
            return Ok(None);
        };
        let mut stages = Vec::new();
        for stage in Doc::new(pipeline.value)?.elements() {
            let Some(stage) = stage?.as_document()? else {
                return Ok(None);
            };
            stages.push(stage);
        }
        let Some(last) = stages.pop() else { return Ok(None) };
        let mut fields = last.elements();
        let (Some(specification), None) = (fields.next().transpose()?, fields.next()) else {
            return Ok(None);
        };
        if specification.name != b"$merge" {
            return Ok(None);
        }
        Ok(
            MergeStage::target(&specification, database)?.map(|target| MergeCommand {
                body,
                stages,
                specification,
                target,
            }),
        )
    }

    /// The client's time limit.
    ///
    /// # Errors
    /// [`WriteRefusal`] if the server would refuse it.
    pub fn max_time(&self) -> Result<Option<Duration>, WriteRefusal> {
        max_time(self.body.get("maxTimeMS").map_err(WriteRefusal::Malformed)?)
    }

    /// Whether it states a collation.
    pub fn is_collated(&self) -> Result<bool, Malformed> {
        Ok(self.body.get("collation")?.is_some())
    }

    /// Whether its last stage states the fields to match by.
    pub fn states_on(&self) -> Result<bool, Malformed> {
        let specification = self.specification.as_document()?;
        Ok(specification.map_or(Ok(None), |stage| stage.get("on"))?.is_some())
    }

    /// Whether only the server's own refusal can answer it: `$merge` is possible in no transaction, and with no linearizable read.
    pub fn is_impossible(&self) -> Result<bool, Malformed> {
        let level = self.body.value_at("readConcern.level")?;
        let is_linearizable = level.is_some_and(|level| level.as_str() == Some("linearizable"));
        Ok(is_linearizable || self.body.get("autocommit")?.is_some())
    }

    /// The command itself with `explain`, so that it can't write.
    pub fn explaining(&self) -> Result<Vec<u8>, Malformed> {
        let mut explaining = Builder::new();
        explaining.elements_where(self.body, |field| !matches!(field.name, b"writeConcern" | b"explain"))?;
        explaining.boolean("explain", true);
        Ok(explaining.finish())
    }

    /// An `explain` of the command. The server refuses it for the same faults as the command. If `is_on_left_out`, the stage lacks
    /// `on`: no index of the server's makes these fields unique.
    pub fn explanation(&self, is_on_left_out: bool) -> Result<Vec<u8>, Malformed> {
        let mut explain = Builder::new();
        explain.open(ElementType::EmbeddedDocument, b"explain");
        for field in self.body.elements() {
            let field = field?;
            match field.name {
                b"pipeline" if is_on_left_out => {
                    let mut last = Builder::new();
                    last.open(ElementType::EmbeddedDocument, b"$merge");
                    let specification = self.specification.as_document()?.unwrap_or(Doc::empty());
                    last.elements_where(specification, |field| field.name != b"on")?;
                    self.append_pipeline(&mut explain, Some(last.finish()));
                }
                b"explain" => {}
                _ if is_about_running(&field) => {}
                _ => {
                    explain.element(&field);
                }
            }
        }
        explain.close().string("verbosity", b"queryPlanner");
        append_fields(&mut explain, self.body, &CIRCUMSTANCES)?;
        append_fields(&mut explain, self.body, &["apiStrict", "$readPreference", "$db"])?;
        Ok(explain.finish())
    }

    /// The `aggregate` without `$merge`. If Keyward needs values of variables, each result has the document and these values.
    pub fn source(&self, stage: &MergeStage<'_>) -> Result<Vec<u8>, Malformed> {
        let variables = stage.computed_variables()?;
        let with_variables = (!variables.is_empty()).then(|| {
            let mut last = Builder::new();
            last.open(ElementType::EmbeddedDocument, b"$replaceWith")
                .string(DOCUMENT, b"$$ROOT")
                .open(ElementType::EmbeddedDocument, VARIABLES.as_bytes());
            for variable in &variables {
                last.element(variable);
            }
            last.finish()
        });
        let mut source = Builder::new();
        for field in self.body.elements() {
            let field = field?;
            match field.name {
                b"pipeline" => self.append_pipeline(&mut source, with_variables.clone()),
                b"cursor" | b"writeConcern" => {}
                _ => {
                    source.element(&field);
                }
            }
        }
        source
            .open(ElementType::EmbeddedDocument, b"cursor")
            .int32("batchSize", READ_AT_ONCE)
            .close();
        Ok(source.finish())
    }

    fn append_pipeline(&self, command: &mut Builder, last: Option<Vec<u8>>) {
        let stages = self.stages.iter().map(|stage| stage.bytes());
        command.documents("pipeline", stages.chain(last.as_deref()));
    }

    /// Fetches more results of `cursor`, which is on `collection`.
    pub fn get_more(&self, cursor: i64, collection: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut command = cursor::get_more(collection, cursor);
        command.int32("batchSize", READ_AT_ONCE);
        append_fields(&mut command, self.body, &CIRCUMSTANCES)?;
        append_fields(&mut command, self.body, &["apiStrict", "$db"])?;
        Ok(command.finish())
    }

    /// Closes `cursor`.
    pub fn kill_cursor(&self, cursor: i64, collection: &[u8]) -> Result<Vec<u8>, Malformed> {
        let mut command = cursor::kill(collection, cursor);
        append_fields(&mut command, self.body, &CIRCUMSTANCES)?;
        append_fields(&mut command, self.body, &["$db"])?;
        Ok(command.finish())
    }

    /// The body of a command that writes results, without its batch. It may take the time `left`.
    ///
    /// The statements of a `$merge` are not part of the stable API, so the command doesn't ask for `apiStrict`. The server has
    /// checked that for the client's command.
    ///
    /// # Errors
    /// [`WriteRefusal`] if the client's write concern isn't BSON.
    pub fn write_body(&self, stage: &MergeStage<'_>, left: Option<Duration>) -> Result<Vec<u8>, WriteRefusal> {
        let field = |name| self.body.get(name).map_err(WriteRefusal::Malformed);
        let mut write = Builder::new();
        write
            .string(stage.form().name(), self.target.collection)
            .boolean("ordered", false);
        let mut copied = vec!["bypassDocumentValidation", "comment"];
        if let WhenMatched::Pipeline(_) = stage.when_matched {
            copied.push("let");
        }
        // Keyward must learn which writes failed. A server's `$merge` reports them, too.
        match is_unacknowledged(field("writeConcern")?)? {
            true => {
                write
                    .open(ElementType::EmbeddedDocument, b"writeConcern")
                    .int32("w", 1)
                    .close();
            }
            false => copied.push("writeConcern"),
        }
        append_fields(&mut write, self.body, &copied).map_err(WriteRefusal::Malformed)?;
        append_fields(&mut write, self.body, &CIRCUMSTANCES).map_err(WriteRefusal::Malformed)?;
        if let Some(left) = left {
            write.int64("maxTimeMS", millis(left));
        }
        write.string("$db", self.target.database);
        Ok(write.finish())
    }
}
