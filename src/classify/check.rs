//! Checks a command by its rule: the collections that it can write to, and their kinds in the catalog.
//!
//! Keyward forwards a harmless command, and sends a write that it can protect to the write path. It refuses every other command
//! on a protected or a proxy collection. If a command has no rule, Keyward searches all of it for the name of such a
//! collection.

use std::collections::HashSet;

use bson::Document;
use bson::spec::ElementType;

use super::command::CommandHead;
use super::pipeline::{aggregate, output};
use super::rule::Rule;
use super::target::visit_all;
use super::{CommandRefusal, Protection, Target, TargetKind, Verdict, Write};
use crate::constraint::resolved_collation;
use crate::current_op::{OperationCommand, killed_build};
use crate::encrypted_fields::EncryptedFields;
use crate::fleet;
use crate::indexes::{IndexCommand, asks_for_unique, asks_to_convert};
use crate::raw::{Doc, Element, Malformed};
use crate::wire::{Documents, OpMsg};

/// The most different texts of a command without a rule. Each may name a collection, and each collection that is new goes into the
/// register of Keywards.
const TEXTS_MAX: usize = 100;

/// Applies `rule` to its command.
pub fn known<'a>(
    rule: Rule<'a>,
    command: &CommandHead<'a>,
    protection: &impl Protection,
) -> Result<Verdict<'a>, Malformed> {
    Ok(match rule {
        Rule::Hello | Rule::Authenticate | Rule::Harmless => Verdict::Forward,
        Rule::Write(to) => write(to, command, protection),
        Rule::BulkWrite => bulk_write(command, protection)?,
        Rule::Aggregate => aggregate(command, protection)?,
        Rule::MapReduce => match command.message.body.get("out")? {
            Some(out) => output(command, b"mapReduce", &out, protection)?,
            None => Verdict::Forward,
        },
        Rule::DropDatabase => drop_database(command, protection),
        Rule::Create => create(command, protection)?,
        Rule::Definition => define(encrypts(command, protection)?, command, protection),
        Rule::CollMod => match define(encrypts(command, protection)?, command, protection) {
            Verdict::Forward if asks_to_convert(command.message.body)? => {
                index_command(indexed(command), IndexCommand::Convert)
            }
            verdict => verdict,
        },
        Rule::CreateIndexes => create_indexes(command, protection)?,
        Rule::DropIndexes => match define(None, command, protection) {
            Verdict::Forward => index_command(indexed(command), IndexCommand::Drop),
            refused => refused,
        },
        Rule::ListIndexes => {
            let is_protected = |target: &Target<'_>| protection.has_constraints(target.database, target.collection);
            index_command(indexed(command).filter(is_protected), IndexCommand::List)
        }
        Rule::List(listing) => Verdict::List(listing),
        // A server answers them in this database only.
        Rule::CurrentOp | Rule::KillOp if command.database != b"admin" => Verdict::Forward,
        Rule::CurrentOp => Verdict::Operation(OperationCommand::List),
        Rule::KillOp => killed_build(command.message.body)?.map_or(Verdict::Forward, |build| {
            Verdict::Operation(OperationCommand::Kill(build))
        }),
        Rule::ShardKeyChange => shard_key_change(command, protection)?,
        Rule::Rewrite => {
            let to = command.message.body.get("toCollection")?;
            let to = to.iter().flat_map(|to| Target::in_database(command.database, to));
            let named = Target::in_database(command.database, &command.first);
            refuse_known(named.chain(to), command, protection)
        }
        Rule::RewriteOfWhole => {
            let to = command.message.body.get("to")?;
            let targets = Target::whole(&command.first).chain(to.iter().flat_map(Target::whole));
            refuse_known(targets, command, protection)
        }
        Rule::Anywhere => Verdict::Refuse(CommandRefusal::Anywhere {
            command: String::from_utf8_lossy(command.name).into_owned(),
        }),
    })
}

/// Refuses the command if one of `targets` is a protected collection, or Keyward's own.
fn refuse_known<'a>(
    targets: impl Iterator<Item = Target<'a>>,
    command: &CommandHead<'a>,
    protection: &impl Protection,
) -> Verdict<'a> {
    Target::find(targets, protection).map_or(Verdict::Forward, |(target, kind)| {
        Verdict::Refuse(CommandRefusal::of(command.name, target, kind, protection))
    })
}

fn drop_database<'a>(command: &CommandHead<'a>, protection: &impl Protection) -> Verdict<'a> {
    let register = Target {
        database: command.database,
        collection: fleet::COLLECTION.as_bytes(),
    };
    // It would also drop the register of Keywards.
    if register.kind(protection) == Some(TargetKind::KeywardsOwn) {
        return Verdict::Refuse(CommandRefusal::of(
            command.name,
            register,
            TargetKind::KeywardsOwn,
            protection,
        ));
    }
    // Whether another Keyward has constraints there, only the cluster knows.
    Verdict::Write(Write::DropDatabase {
        database: command.database,
    })
}

fn create<'a>(command: &CommandHead<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let body = command.message.body;
    if is_stated(body, b"viewOn")? || is_stated(body, b"timeseries")? || body.is_set("capped")? {
        let named = Target::in_database(command.database, &command.first);
        return Ok(refuse_known(named, command, protection));
    }
    let refusal = collates(command, protection)?
        .or(clusters(command, protection)?)
        .or(encrypts(command, protection)?);
    Ok(define(refusal, command, protection))
}

/// Why a protected collection can't be created clustered, if that is so. The server misses documents of a clustered collection by their
/// text `_id`s under any collation but its default one.
fn clusters(command: &CommandHead<'_>, protection: &impl Protection) -> Result<Option<CommandRefusal>, Malformed> {
    let body = command.message.body;
    if !is_stated(body, b"clusteredIndex")?
        || !body.any(|field| Ok(field.name == b"collation" && is_collating(field)))?
    {
        return Ok(None);
    }
    let mut named = Target::in_database(command.database, &command.first);
    let target = named.find(|target| target.kind(protection) == Some(TargetKind::Protected));
    Ok(target.map(|target| CommandRefusal::Clustered {
        namespace: target.display(),
        removal: protection.removal(target.database, target.collection),
    }))
}

/// Whether a value of `collation` may be another one than the simple one.
fn is_collating(collation: &Element<'_>) -> bool {
    let is_simple = |specification: Document| matches!(resolved_collation(Some(&specification)), Ok(None));
    !collation.is_nothing() && !collation.to_document().is_some_and(is_simple)
}

/// Whether a command states this option. The server ignores null.
fn is_stated(body: Doc<'_>, option: &[u8]) -> Result<bool, Malformed> {
    body.any(|field| Ok(field.name == option && !field.is_nothing()))
}

/// Refuses a definition for `refusal`, or because the collection is Keyward's own.
fn define<'a>(refusal: Option<CommandRefusal>, command: &CommandHead<'a>, protection: &impl Protection) -> Verdict<'a> {
    if let Some(refusal) = refusal {
        return Verdict::Refuse(refusal);
    }
    let named = Target::in_database(command.database, &command.first);
    let proxies = named.filter(|target| target.kind(protection) == Some(TargetKind::KeywardsOwn));
    refuse_known(proxies, command, protection)
}

/// A `createIndexes` with a unique index, or on a protected collection. With a unique index, the collection need not be protected yet.
fn create_indexes<'a>(command: &CommandHead<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let verdict = define(None, command, protection);
    let Some(target) = indexed(command) else {
        return Ok(verdict);
    };
    Ok(
        match verdict == Verdict::Forward
            && (protection.has_constraints(target.database, target.collection) || asks_for_unique(&command.message)?)
        {
            true => Verdict::Index(IndexCommand::Create(target)),
            false => verdict,
        },
    )
}

fn index_command<'a>(target: Option<Target<'a>>, command: fn(Target<'a>) -> IndexCommand<'a>) -> Verdict<'a> {
    target.map_or(Verdict::Forward, |target| Verdict::Index(command(target)))
}

/// The collection whose indexes the command makes, lists or drops.
fn indexed<'a>(command: &CommandHead<'a>) -> Option<Target<'a>> {
    let collection = command.first.as_string_bytes().filter(|name| !name.contains(&0))?;
    (command.first.kind == ElementType::String).then_some(Target {
        database: command.database,
        collection,
    })
}

fn shard_key_change<'a>(command: &CommandHead<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let targets = || Target::whole(&command.first);
    // It would make the collection a view of buckets, each with many documents.
    if is_stated(command.message.body, b"timeseries")? {
        return Ok(refuse_known(targets(), command, protection));
    }
    let found = Target::find(targets(), protection);
    let resharded = found.filter(|_| command.name == b"reshardCollection");
    let strict = resharded.and_then(|(target, _)| {
        Some((
            target,
            protection.strict_constraint(target.database, target.collection)?,
        ))
    });
    if let Some((target, constraint)) = strict {
        let namespace = target.display();
        return Ok(Verdict::Refuse(CommandRefusal::StrictReshard { namespace, constraint }));
    }
    Ok(match found {
        Some((_, TargetKind::Protected)) => Verdict::Write(Write::ShardKeyChange),
        None if matches!(command.name, b"shardCollection" | b"shardcollection") => Verdict::Index(IndexCommand::Shard),
        _ => refuse_known(targets(), command, protection),
    })
}

/// Why fields of a protected collection can't be encrypted in this way. If `encryptedFields` occurs several times, each counts,
/// although no server accepts that. A value that can't be read may encrypt any field.
fn encrypts(command: &CommandHead<'_>, protection: &impl Protection) -> Result<Option<CommandRefusal>, Malformed> {
    for field in command.message.body.elements() {
        let field = field?;
        if field.name != b"encryptedFields" || field.is_nothing() {
            continue;
        }
        let listed = EncryptedFields::of_element(&field);
        for target in Target::in_database(command.database, &command.first) {
            let refusal = match &listed {
                None => target
                    .kind(protection)
                    .map(|kind| CommandRefusal::of(command.name, target, kind, protection)),
                Some(fields) => protection
                    .encrypted(target.database, target.collection, fields)
                    .map(|encrypted| CommandRefusal::Encrypted {
                        command: String::from_utf8_lossy(command.name).into_owned(),
                        namespace: target.display(),
                        encrypted,
                    }),
            };
            if refusal.is_some() {
                return Ok(refusal);
            }
        }
    }
    Ok(None)
}

/// Why a protected collection can't be created in this way. If `collation` occurs several times, each counts, although no
/// server accepts that.
fn collates(command: &CommandHead<'_>, protection: &impl Protection) -> Result<Option<CommandRefusal>, Malformed> {
    let mut collations = Vec::new();
    for field in command.message.body.elements() {
        let field = field?;
        if field.name == b"collation" {
            collations.push(Some(field));
        }
    }
    if collations.is_empty() {
        collations.push(None);
    }
    for target in Target::in_database(command.database, &command.first) {
        for collation in &collations {
            let other = protection.other_collation(target.database, target.collection, collation.as_ref());
            if let Some(other) = other {
                let namespace = target.display();
                return Ok(Some(CommandRefusal::Collation { namespace, other }));
            }
        }
    }
    Ok(None)
}

fn write<'a>(to: fn(Target<'a>) -> Write<'a>, command: &CommandHead<'a>, protection: &impl Protection) -> Verdict<'a> {
    if command.first.kind == ElementType::Binary {
        return Verdict::Refuse(CommandRefusal::Uuid {
            command: String::from_utf8_lossy(command.name).into_owned(),
        });
    }
    let targets = Target::in_database(command.database, &command.first);
    match Target::find(targets, protection) {
        None => Verdict::Forward,
        Some((target, TargetKind::KeywardsOwn)) => Verdict::Refuse(CommandRefusal::of(
            command.name,
            target,
            TargetKind::KeywardsOwn,
            protection,
        )),
        // The write path composes its own commands, so the target must have only one reading.
        Some((target, TargetKind::Protected)) if command.first.as_string_bytes() != Some(target.collection) => {
            Verdict::Refuse(CommandRefusal::of(
                command.name,
                target,
                TargetKind::Protected,
                protection,
            ))
        }
        Some((target, TargetKind::Protected)) => Verdict::Write(to(target)),
    }
}

/// The positions in `nsInfo` that the operations of a `bulkWrite` name; none if one of them can't be read, which may name any.
fn bulk_namespaces(message: &OpMsg<'_>) -> Result<Option<HashSet<usize>>, Malformed> {
    let mut named = HashSet::new();
    let Some(operations) = message.documents("ops")? else {
        return Ok(Some(named));
    };
    for operation in operations.iter()?.filter_map(Result::ok) {
        let first = operation.elements().next().transpose()?;
        let first = first.filter(|first| matches!(first.name, b"insert" | b"update" | b"delete"));
        let index = first.and_then(|first| usize::try_from(first.as_whole_number()?).ok());
        let Some(index) = index else { return Ok(None) };
        named.insert(index);
    }
    Ok(Some(named))
}

fn bulk_write<'a>(command: &CommandHead<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let mut verdict = Verdict::Forward;
    let Some(batch) = command.message.documents("nsInfo")? else {
        return Ok(verdict);
    };
    let named = bulk_namespaces(&command.message)?;
    for (index, entry) in batch.iter()?.filter_map(Result::ok).enumerate() {
        let is_named = named.as_ref().is_none_or(|named| named.contains(&index));
        for field in entry.elements() {
            let field = field?;
            let targets = (field.name == b"ns")
                .then(|| Target::whole(&field))
                .into_iter()
                .flatten();
            let found = match is_named {
                true => Target::find(targets, protection),
                // No operation writes there, and the client may have no rights there.
                false => Target::find_unwritten(targets, protection),
            };
            match found {
                Some((target, TargetKind::KeywardsOwn)) => {
                    return Ok(Verdict::Refuse(CommandRefusal::of(
                        command.name,
                        target,
                        TargetKind::KeywardsOwn,
                        protection,
                    )));
                }
                Some((_, TargetKind::Protected)) => verdict = Verdict::Write(Write::BulkWrite),
                None => {}
            }
        }
    }
    Ok(verdict)
}

/// Classifies a command that isn't in the table: Keyward forwards it only if it names no protected and no proxy collection. If its texts
/// could name very many collections, Keyward refuses it.
pub fn unknown<'a>(command: &CommandHead<'a>, protection: &impl Protection) -> Result<Verdict<'a>, Malformed> {
    let mut found = None;
    let mut texts = HashSet::new();
    let mut search = |document: Doc<'a>| {
        visit_all(document, |element| {
            if found.is_none() && texts.len() <= TEXTS_MAX && is_new_text(element, &mut texts) {
                let targets = Target::in_database(command.database, element).chain(Target::whole(element));
                found = Target::find(targets, protection);
            }
        })
    };
    search(command.message.body)?;
    for sequence in command.message.sequences() {
        for document in Documents::concatenated(sequence.documents).filter_map(Result::ok) {
            search(document)?;
        }
    }
    Ok(match found {
        Some((target, kind)) => Verdict::Refuse(CommandRefusal::of(command.name, target, kind, protection)),
        None if texts.len() > TEXTS_MAX => Verdict::Refuse(CommandRefusal::TooManyTexts {
            command: String::from_utf8_lossy(command.name).into_owned(),
            max: TEXTS_MAX,
        }),
        None => Verdict::Forward,
    })
}

/// Whether this is a text that isn't one of `texts` yet. Adds it to them.
fn is_new_text<'a>(element: &Element<'a>, texts: &mut HashSet<&'a [u8]>) -> bool {
    let text = Target::readings(element).next();
    text.is_some_and(|text| texts.insert(text))
}
