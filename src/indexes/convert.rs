//! Carries out a `collMod` that makes an index unique, if the server can't keep that index unique: makes a constraint of it.
//!
//! A server makes an index unique in two commands: the first one, with `prepareUnique`, refuses new duplicates, and the second one, with
//! `unique`, refuses if there are earlier ones. Keyward can refuse a new duplicate only once all documents are reserved. So either
//! command makes the constraint, and refuses if documents have duplicates. The other one then changes nothing.

use bson::{Document, RawArrayBuf, doc, rawdoc};
use tokio::sync::Semaphore;
use tokio::time::Instant;

use super::build::build;
use super::building::WantedConstraints;
use super::create::{AskedIndex, deadline, end_without_index, waiting_client, wanted_of};
use super::list::{FoundIndexes, ListedIndex, existing_indexes};
use super::refusal::IndexRefusal;
use super::unique_change::UniqueChange;
use super::{IndexContext, POLL, refused};
use crate::authorization::Actions;
use crate::classify::Target;
use crate::client_constraints::reply_of_violated;
use crate::namespace::Namespace;
use crate::prepare::{Existing, Reports, find_duplicates};
use crate::raw::{Builder, Doc};
use crate::server::{code, reply};
use crate::upstream::Connection;
use crate::write::ForwardError;

/// The most bytes of `_id`s in the error that lists duplicates.
const VIOLATION_BYTES_MAX: usize = 8 << 20;

/// How many commands may look for duplicates at once. Each takes about 100 MB of memory, and reads the collection many times.
static FINDING: Semaphore = Semaphore::const_new(2);

/// Carries out the command. Returns nothing if Keyward forwards it unchanged: the server can answer it.
pub async fn convert_index(
    context: &IndexContext<'_>,
    target: Target<'_>,
    body: Doc<'_>,
    upstream: &mut Connection,
) -> Result<Option<Vec<u8>>, ForwardError> {
    let Some(namespace) = target.namespace() else {
        return Ok(None);
    };
    let Some(change) = UniqueChange::of(body)? else {
        return Ok(None);
    };
    let Some(before) = existing_indexes(&namespace, body, upstream).await? else {
        return Ok(None);
    };
    let wanted = match wanted(context, &namespace, &change, &before).await {
        Ok(Some(wanted)) => wanted,
        Ok(None) => return Ok(None),
        Err(refusal) => return refused(context, &refusal, (Actions::COLL_MOD, target), body, upstream).await,
    };
    let deadline = deadline(body)?;
    let answer = upstream.run(&change.without_unique(body)?).await?;
    if !reply::is_ok(Doc::new(&answer)?)? {
        return Ok(Some(answer));
    }
    let waiting = waiting_client(context, body, upstream).await?;
    let first = wanted.entries.first();
    let _waiting = first.map(|entry| context.service.waiting.wait(entry.command, waiting));
    let is_made = match convert(context, &change, &wanted, (&before, deadline)).await {
        Ok(is_made) => is_made,
        Err(refusal) => return Ok(Some(refusal)),
    };
    // Another client may have dropped the index before the list had the constraint.
    if !change.is_dry_run && end_without_index(context, &wanted, body, upstream).await? {
        return Ok(first.map(|entry| IndexRefusal::dropped(&entry.constraint).error().body()));
    }
    Ok(Some(match is_made {
        true => change.noted_in(Doc::new(&answer)?)?,
        false => answer,
    }))
}

/// The constraint of the index that the command means; none if the server can keep the index unique, or must answer the command.
async fn wanted(
    context: &IndexContext<'_>,
    namespace: &Namespace,
    change: &UniqueChange<'_>,
    indexes: &[ListedIndex],
) -> Result<Option<WantedConstraints>, IndexRefusal> {
    let Some(index) = change.index_among(indexes).filter(|index| !index.is_unique) else {
        return Ok(None);
    };
    // The index on `_id` stays as it is with any option.
    let specification = index.specification.clone().filter(|one| !one.is_on_id());
    let Some(mut specification) = specification else {
        return Ok(None);
    };
    let existing = Existing::read(context.service.upstream.client(), namespace).await?;
    // The list of indexes shows a collation that an index has from its collection, and none if the index has the simple one.
    if existing.collation.is_some() && specification.collation.is_none() {
        specification.collation = Some(doc! { "locale": "simple" });
    }
    let asked = AskedIndex {
        position: 0,
        specification,
        unreadable: None,
    };
    let wanted = wanted_of(context, namespace, Some(indexes), vec![asked]).await?;
    Ok(wanted.map(|(_, wanted)| wanted))
}

/// Makes the constraint, unless the command only asks whether it could be made. Returns whether it made one. The error is the client's
/// reply.
async fn convert(
    context: &IndexContext<'_>,
    change: &UniqueChange<'_>,
    wanted: &WantedConstraints,
    (before, deadline): (&[ListedIndex], Option<Instant>),
) -> Result<bool, Vec<u8>> {
    let list = context.list.store.read().await.map_err(IndexRefusal::from);
    let list = list.map_err(|refusal| refusal.error().body())?;
    let is_new = !wanted.new_in(&list).is_empty();
    if is_new {
        // A server also looks for duplicates before it changes anything.
        check_violations(context, wanted, deadline).await?;
    }
    if change.is_dry_run {
        return Ok(false);
    }
    let found = FoundIndexes {
        before: Some(before),
        is_any_made: false,
    };
    let Err(failed) = build(&context.building(), wanted, found, deadline).await else {
        return Ok(is_new);
    };
    failed.await_ended(&context.building(), deadline).await;
    let failure = Document::from_reader(failed.reply.as_slice()).unwrap_or_default();
    if failure.get_i32("code").is_ok_and(|code| code == code::DUPLICATE_KEY) {
        check_violations(context, wanted, deadline).await?;
    }
    Err(failed.reply)
}

/// Reads all documents for duplicates. The error is the reply that lists them.
async fn check_violations(
    context: &IndexContext<'_>,
    wanted: &WantedConstraints,
    deadline: Option<Instant>,
) -> Result<(), Vec<u8>> {
    let service = context.service;
    let constraints: Vec<_> = wanted.effective.iter().cloned().map(Into::into).collect();
    let finding = async {
        let _turn = FINDING.acquire().await;
        let (client, lease) = (service.upstream.client(), service.writes.lease());
        find_duplicates(client, &constraints, lease, &service.metrics).await
    };
    let is_late = async {
        match deadline {
            Some(deadline) => tokio::time::sleep_until(deadline).await,
            None => std::future::pending().await,
        }
    };
    let found = tokio::select! {
        found = finding => found,
        () = is_late => return Err(IndexRefusal::TimeLimit.error().body()),
        () = client_left(context) => return Err(IndexRefusal::ClientLeft.error().body()),
    };
    match found {
        Ok(reports) if reports.0.is_empty() => Ok(()),
        Ok(reports) => Err(violated(&reports)),
        Err(error) => Err(IndexRefusal::from(error).error().body()),
    }
}

/// Waits until the client has closed its connection.
async fn client_left(context: &IndexContext<'_>) {
    while !context.building().has_client_left() {
        tokio::time::sleep(POLL).await;
    }
}

/// The server's error for documents that have the same key, or Keyward's for those that can't have a key.
fn violated(reports: &Reports) -> Vec<u8> {
    let keys = reports.0.iter().flat_map(|report| &report.keys);
    let (mut violations, mut bytes) = (Vec::new(), 0);
    for key in keys {
        let ids: RawArrayBuf = key.raw_ids.iter().cloned().collect();
        let violation = rawdoc! { "ids": ids }.into_bytes();
        bytes += violation.len();
        if bytes > VIOLATION_BYTES_MAX {
            break;
        }
        violations.push(violation);
    }
    if violations.is_empty() {
        return reply_of_violated(reports).to_vec().unwrap_or_default();
    }
    let mut reply = Builder::from_document(&IndexRefusal::CannotConvert.error().body());
    reply.documents("violations", &violations);
    reply.finish()
}
