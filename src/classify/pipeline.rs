//! Checks where the output of a pipeline, or of a `mapReduce`, may go.
//!
//! The server accepts `$out` and `$merge` only as the last stage. Here they count at any depth: each may name a collection.

use bson::spec::ElementType;

use super::command::CommandHead;
use super::target::{plain_name, visit_all};
use super::{CommandRefusal, Protection, Target, TargetKind, Verdict};
use crate::current_op::OperationCommand;
use crate::hiding::Listing;
use crate::merge::MergeCommand;
use crate::raw::{Doc, Element, Malformed};

/// The most collections that the output of a pipeline may seem to name.
const TARGETS_MAX: usize = 100;

/// An `aggregate`: where its pipeline may write, and whether it lists or watches.
pub fn aggregate<'a>(command: &CommandHead<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let Some(pipeline) = command.message.documents("pipeline")? else {
        return Ok(Verdict::Forward);
    };
    let mut outputs: Vec<Element<'a>> = Vec::new();
    for stage in pipeline.iter()?.filter_map(Result::ok) {
        visit_all(stage, |element| {
            if matches!(element.name, b"$out" | b"$merge") && outputs.len() <= TARGETS_MAX {
                outputs.push(*element);
            }
        })?;
    }
    let body = command.message.body;
    if !outputs.is_empty() && is_explained(body)? {
        return Ok(Verdict::Forward);
    }
    if outputs.len() > TARGETS_MAX {
        return Ok(too_many_targets(outputs[0].name));
    }
    let writes_later = has_empty_first_batch(body)?;
    match merge_target(&outputs, command, protection)? {
        Some(target) if !writes_later => return Ok(Verdict::Merge(target)),
        Some(_) => {}
        None => {
            for (index, out) in outputs.iter().enumerate() {
                // The server refuses one within another.
                if outputs[..index].iter().any(|other| holds(other, out)) {
                    continue;
                }
                let verdict = output(command, out.name, out, protection)?;
                if verdict != Verdict::Forward {
                    return Ok(verdict);
                }
            }
        }
    }
    if let Some(out) = outputs.first().filter(|_| writes_later) {
        let stage = String::from_utf8_lossy(out.name).into_owned();
        return Ok(Verdict::Refuse(CommandRefusal::WritesLater { stage }));
    }
    let Some(stage) = first_stage_without_collection(command)? else {
        return Ok(Verdict::Forward);
    };
    // A change stream on a whole database, or the cluster.
    if stage.get("$changeStream")?.is_some() {
        return Ok(Verdict::List(Listing::Changes));
    }
    Ok(match stage.get("$currentOp")?.is_some() {
        true => Verdict::Operation(OperationCommand::Aggregate),
        false => Verdict::Forward,
    })
}

/// The first stage of an `aggregate` that names no collection.
fn first_stage_without_collection<'a>(command: &CommandHead<'a>) -> Result<Option<Doc<'a>>, Malformed> {
    if !command.first.is_number() {
        return Ok(None);
    }
    let stages = command.message.body.nested("pipeline")?;
    let first = stages.and_then(|stages| stages.elements().next()).transpose()?;
    first.map_or(Ok(None), |first| first.as_document_or_array())
}

/// The target, if the only one of `outputs` is a `$merge` that Keyward can carry out itself, into a protected collection.
fn merge_target<'a>(
    outputs: &[Element<'a>],
    command: &CommandHead<'a>,
    protection: &impl Protection,
) -> Result<Option<Target<'a>>, Malformed> {
    let [_] = outputs else { return Ok(None) };
    let merge = MergeCommand::read(command.message.body, command.database)?;
    // Servers differ in whether the stated collation counts for these fields.
    if let Some(merge) = &merge
        && merge.is_collated()?
        && merge.states_on()?
    {
        return Ok(None);
    }
    let target = merge.map(|merge| merge.target);
    Ok(target.filter(|target| target.kind(protection) == Some(TargetKind::Protected)))
}

/// Whether the server only explains the `aggregate` `body`. It refuses a value that isn't a boolean.
fn is_explained(body: Doc<'_>) -> Result<bool, Malformed> {
    let explain = body.get("explain")?;
    Ok(explain.is_some_and(|explain| explain.kind == ElementType::Boolean && explain.is_truthy()))
}

/// Whether the server runs the pipeline of the `aggregate` `body` only at the first `getMore`. It drops the fraction of a number.
fn has_empty_first_batch(body: Doc<'_>) -> Result<bool, Malformed> {
    let size = body
        .nested("cursor")?
        .map(|cursor| cursor.get("batchSize"))
        .transpose()?
        .flatten();
    Ok(size.is_some_and(|size| size.is_number() && size.as_whole_number().is_none_or(|whole| whole == 0)))
}

fn too_many_targets<'a>(stage: &[u8]) -> Verdict<'a> {
    Verdict::Refuse(CommandRefusal::TooManyTargets {
        stage: String::from_utf8_lossy(stage).into_owned(),
        max: TARGETS_MAX,
    })
}

/// Whether `inner` lies within the value of `outer`.
fn holds(outer: &Element<'_>, inner: &Element<'_>) -> bool {
    outer.value.as_ptr_range().contains(&inner.value.as_ptr())
}

/// Refuses `stage` if its target `out`, in any reading, is a protected or a proxy collection.
pub fn output<'a>(
    command: &CommandHead<'a>,
    stage: &[u8],
    out: &Element<'a>,
    protection: &impl Protection,
) -> Result<Verdict<'a>, Malformed> {
    let found = |target: Option<(Target<'a>, TargetKind)>| {
        target.map_or(Verdict::Forward, |(target, kind)| {
            Verdict::Refuse(CommandRefusal::of(stage, target, kind, protection))
        })
    };
    if let Some(target) = only_target(out)? {
        return Ok(found(Target::find([target], protection)));
    }
    let mut collections = vec![*out];
    let mut databases = vec![command.database];
    if let Some(specification) = out.as_document_or_array()? {
        visit_all(specification, |element| match element.name {
            b"db" if databases.len() <= TARGETS_MAX => databases.extend(element.as_string_bytes()),
            b"coll" | b"into" | b"replace" | b"merge" | b"reduce" | b"normal" | b"$out" | b"$merge"
                if collections.len() <= TARGETS_MAX =>
            {
                collections.push(*element);
            }
            _ => {}
        })?;
    }
    if databases.len().saturating_mul(collections.len()) > TARGETS_MAX {
        return Ok(too_many_targets(stage));
    }
    let targets = databases.iter().flat_map(|database| {
        collections
            .iter()
            .flat_map(move |collection| Target::in_database(database, collection))
    });
    Ok(found(Target::find(targets, protection)))
}

/// The collection that `out` names together with its database, if no server can read another one.
fn only_target<'a>(out: &Element<'a>) -> Result<Option<Target<'a>>, Malformed> {
    let Some(mut namespace) = out.as_document()? else {
        return Ok(None);
    };
    if out.name == b"$merge" {
        let mut into = namespace
            .elements()
            .filter(|field| matches!(field, Ok(field) if field.name == b"into"));
        let (Some(only), None) = (into.next().transpose()?, into.next()) else {
            return Ok(None);
        };
        match only.as_document()? {
            Some(named) => namespace = named,
            None => return Ok(None),
        }
    }
    let (mut databases, mut collections) = (Vec::new(), Vec::new());
    for field in namespace.elements() {
        let field = field?;
        match field.name {
            b"db" => databases.push(plain_name(&field)),
            b"coll" | b"replace" | b"merge" | b"reduce" => collections.push(plain_name(&field)),
            b"timeseries" | b"sharded" | b"nonAtomic" => {}
            _ => return Ok(None),
        }
    }
    Ok(match (&databases[..], &collections[..]) {
        // A server reads an empty one as the command's own database.
        ([Some(database)], [Some(collection)]) if !database.is_empty() => Some(Target { database, collection }),
        _ => None,
    })
}
