//! `insert` inside a client's transaction: the reservations are written in it, before the documents, so that its commit
//! or abort carries both.

use tokio::time::Instant;

use super::batch_command::BatchCommand;
use super::clash::{Resolved, resolve};
use super::image::Image;
use super::moves::{Impossible, Moves};
use super::transaction::{Failure, Transaction, is_about_running};
use super::{Context, ForwardError, TIME_MAX};
use crate::catalog::Protected;
use crate::claims::{ConstrainedKey, keys_of_new, owner_of, with_id};
use crate::raw::{Builder, Doc, Malformed};
use crate::reply::{Refusal, WriteError, WriteReply};
use crate::reservation::{AttemptId, Token};
use crate::upstream::Connection;
use crate::wire::OutSequence;

/// Carries out the insert; gives the reply's body. A transaction's batch stops at its first error, ordered or not.
///
/// # Errors
/// [`ForwardError`] if the upstream connection is gone or garbled: the client's has to go, too.
pub async fn insert_within(
    context: &Context,
    protected: &Protected,
    command: &BatchCommand<'_>,
    mut transaction: Transaction,
    upstream: &mut Connection,
) -> Result<Vec<u8>, ForwardError> {
    match run(context, protected, command, &mut transaction, upstream).await {
        Ok(reply) => Ok(reply),
        Err(Failure::Refused(refused)) => Ok(refused.body),
        Err(Failure::Forward(error)) => Err(error),
    }
}

async fn run(
    context: &Context,
    protected: &Protected,
    command: &BatchCommand<'_>,
    transaction: &mut Transaction,
    upstream: &mut Connection,
) -> Result<Vec<u8>, Failure> {
    let token = Token {
        attempt: AttemptId(rand::random()),
        position: 0,
        operation: None,
    };
    let mut documents = Vec::with_capacity(command.documents.len());
    let mut images = Vec::with_capacity(command.documents.len());
    for document in &command.documents {
        let document = with_id(document.bytes(), token)?;
        let doc = Doc::new(&document)?;
        images.push(Image {
            id: Vec::new(),
            owner: owner_of(protected, doc)?,
            keys: keys_of_new(protected, doc),
        });
        documents.push(document);
    }
    let position_of = |key: &ConstrainedKey| {
        let holds = |image: &Image| image.keys.iter().flatten().any(|other| other == key);
        images.iter().rposition(holds).unwrap_or(0)
    };
    let moves = match Moves::between(&[], &images) {
        Ok(moves) => moves,
        Err(impossible) => {
            transaction.abort(upstream).await?;
            let (position, error) = match impossible {
                Impossible::Twice(key) => (position_of(&key), duplicate(protected, &key)),
                Impossible::Unindexable(error) => {
                    let position = images.iter().position(|image| image.keys.is_err()).unwrap_or(0);
                    (position, WriteError::unindexable(&error))
                }
            };
            return Ok(failed(protected, position, error)?);
        }
    };
    if let Some(clash) = moves.run(protected, token, transaction, upstream).await? {
        transaction.abort(upstream).await?;
        let deadline = Instant::now() + command.max_time.unwrap_or(TIME_MAX);
        return Ok(match resolve(context, protected, &clash, deadline).await {
            Resolved::Duplicate => failed(protected, position_of(&clash.key), duplicate(protected, &clash.key))?,
            _ => Refusal::Conflict.body(&protected.times()),
        });
    }
    let mut body = Builder::new();
    for element in command.body.elements() {
        let element = element?;
        if element.name != b"documents" && !is_about_running(&element) {
            body.element(&element);
        }
    }
    let sequence = OutSequence {
        name: b"documents",
        documents: documents.iter().map(|document| &**document).collect(),
    };
    transaction
        .run(upstream, &protected.namespace.database, body, Some(sequence))
        .await
}

fn duplicate(protected: &Protected, key: &ConstrainedKey) -> WriteError {
    WriteError::duplicate(&protected.constraints[key.constraint].constraint.duplicate(&key.key))
}

/// The reply of a batch that was undone at `position`; as natively, what stands before it is counted.
fn failed(protected: &Protected, position: usize, error: WriteError) -> Result<Vec<u8>, Malformed> {
    let mut reply = WriteReply::default();
    reply.count(position);
    reply.error(position, error);
    reply.advance(protected.times());
    reply.body()
}
