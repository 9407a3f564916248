//! Checks what transactions see over two shards, and how they end.
//!
//! The owner of a key and the placeholder in its place never both commit: that is tried in each of the four orders.

use bson::{Document, doc};

use super::check::{CheckError, CheckOutcome};
use super::scratch::{DOCUMENTS, Scratch};
use super::session::{ScratchAnswer, ScratchSession};
use crate::server::{code, driver};

/// A transaction reads both shards as of one moment, commits on both, and can be committed again.
pub async fn snapshot(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let places = scratch.places()?;
    let id = format!("snapshot {}", scratch.next_number());
    let places = [places.first, places.second].map(|h| doc! { "_id": format!("{id} {h}"), "h": h });
    for place in &places {
        write(scratch, insert(with(place, 1))).await?;
    }
    let mut session = scratch.session().await?;
    let first = session.start(find(&places[0]), "snapshot").await?;
    must(&first, "a read in a transaction")?;
    write(scratch, update(&places[1], 2)).await?;
    let second = session.go_on(find(&places[1])).await?;
    must(&second, "a read on another shard")?;
    must(&session.commit().await?, "the commit of a transaction that only read")?;
    let seen = value_in(&second.reply);
    if seen != Some(1) {
        return Ok(CheckOutcome::Failed(
            "a transaction reads the second shard as of a later moment".to_owned(),
        ));
    }
    must(
        &session.start(update(&places[0], 3), "snapshot").await?,
        "a write in a transaction",
    )?;
    must(&session.go_on(update(&places[1], 3)).await?, "a write on another shard")?;
    for time in ["the commit on two shards", "the same commit, sent again"] {
        must(&session.commit().await?, time)?;
    }
    for place in &places {
        if value_in(&scratch.run(find(place)).await?) != Some(3) {
            return Ok(CheckOutcome::Failed(
                "a committed transaction isn't there on both shards".to_owned(),
            ));
        }
    }
    Ok(CheckOutcome::passed())
}

/// The commit of an aborted transaction fails, and the error says that nothing took effect.
pub async fn aborted(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let places = scratch.places()?;
    let mut session = scratch.session().await?;
    let id = format!("aborted {}", scratch.next_number());
    let document = |h: i32| doc! { "_id": format!("{id} {h}"), "h": h };
    must(
        &session.start(insert(document(places.first)), "snapshot").await?,
        "an insert",
    )?;
    must(&session.go_on(insert(document(places.second))).await?, "an insert")?;
    must(&session.abort().await?, "the abort of a transaction")?;
    let answer = session.commit().await?;
    let is_right = answer.code == Some(code::NO_SUCH_TRANSACTION) && answer.is_transient;
    Ok(CheckOutcome::of(is_right, || {
        format!("the commit is answered: {}", answer.shown())
    }))
}

/// So does the commit of a transaction that the servers don't know.
pub async fn forgotten(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let places = scratch.places()?;
    let mut session = scratch.session().await?;
    let shard = scratch.shards.is_some().then_some(places.shards[0].as_str());
    let answer = session.commit_unknown(shard).await?;
    let is_right = answer.code == Some(code::NO_SUCH_TRANSACTION);
    Ok(CheckOutcome::of(is_right, || {
        format!("the commit is answered: {}", answer.shown())
    }))
}

/// Checks that only one of a write and a takeover commits, in each of four orders. The write reads the reservation on one shard and
/// inserts its owner on the other. The takeover changes the reservation and inserts a placeholder.
pub async fn conflict(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let mut failed = Vec::new();
    for (name, holds) in [
        ("the takeover commits before the insert", takeover_first(scratch).await?),
        (
            "the takeover comes after the insert",
            takeover_meanwhile(scratch).await?,
        ),
        ("the takeover comes after the commit", takeover_after(scratch).await?),
        ("the insert meets the placeholder", insert_meanwhile(scratch).await?),
    ] {
        if !holds {
            failed.push(name);
        }
    }
    Ok(CheckOutcome::of(failed.is_empty(), || {
        format!("both took effect where {}", failed.join(", and where "))
    }))
}

/// A reservation on the first shard, and its owner on the second.
struct Pair {
    reservation: Document,
    owner: Document,
}

impl Pair {
    async fn new(scratch: &Scratch) -> Result<Pair, CheckError> {
        let places = scratch.places()?;
        let number = scratch.next_number();
        let pair = Pair {
            reservation: doc! { "_id": format!("reservation {number}"), "h": places.first },
            owner: doc! { "_id": format!("owner {number}"), "h": places.second },
        };
        write(scratch, insert(with(&pair.reservation, 1))).await?;
        Ok(pair)
    }

    /// The write's first half: it reads the reservation.
    async fn begin_write(&self, session: &mut ScratchSession<'_>) -> Result<(), CheckError> {
        must(
            &session.start(find(&self.reservation), "snapshot").await?,
            "a read of a reservation",
        )
    }

    /// The takeover's first half: it changes the reservation, and inserts the placeholder.
    async fn begin_takeover(&self, session: &mut ScratchSession<'_>) -> Result<ScratchAnswer, CheckError> {
        must(
            &session.start(update(&self.reservation, 2), "local").await?,
            "a change of a reservation",
        )?;
        session.go_on(insert(self.owner.clone())).await
    }

    /// Its second half: it deletes the placeholder, and commits.
    async fn end_takeover(&self, session: &mut ScratchSession<'_>) -> Result<bool, CheckError> {
        let delete = doc! { "delete": DOCUMENTS, "deletes": [{ "q": self.owner.clone(), "limit": 1 }] };
        must(&session.go_on(delete).await?, "the deletion of a placeholder")?;
        Ok(session.commit().await?.is_ok())
    }

    /// One whose write has begun, with the sessions of the write and of the takeover.
    async fn begun(scratch: &Scratch) -> Result<(Pair, ScratchSession<'_>, ScratchSession<'_>), CheckError> {
        let pair = Pair::new(scratch).await?;
        let (mut writer, other) = (scratch.session().await?, scratch.session().await?);
        pair.begin_write(&mut writer).await?;
        Ok((pair, writer, other))
    }

    /// The write's second half. Returns whether it took effect.
    async fn end_write(&self, session: &mut ScratchSession<'_>) -> Result<bool, CheckError> {
        if !session.go_on(insert(self.owner.clone())).await?.is_ok() {
            session.abort().await?;
            return Ok(false);
        }
        Ok(session.commit().await?.is_ok())
    }
}

async fn takeover_first(scratch: &Scratch) -> Result<bool, CheckError> {
    let (pair, mut writer, mut other) = Pair::begun(scratch).await?;
    must(&pair.begin_takeover(&mut other).await?, "a placeholder")?;
    let is_taken = pair.end_takeover(&mut other).await?;
    Ok(is_taken && !pair.end_write(&mut writer).await?)
}

async fn takeover_meanwhile(scratch: &Scratch) -> Result<bool, CheckError> {
    let (pair, mut writer, mut other) = Pair::begun(scratch).await?;
    must(&writer.go_on(insert(pair.owner.clone())).await?, "an insert")?;
    let placed = pair.begin_takeover(&mut other).await?;
    other.abort().await?;
    Ok(!placed.is_ok() && writer.commit().await?.is_ok())
}

async fn takeover_after(scratch: &Scratch) -> Result<bool, CheckError> {
    let (pair, mut writer, mut other) = Pair::begun(scratch).await?;
    let is_written = pair.end_write(&mut writer).await?;
    let placed = pair.begin_takeover(&mut other).await?;
    other.abort().await?;
    Ok(is_written && placed.code == Some(code::DUPLICATE_KEY))
}

async fn insert_meanwhile(scratch: &Scratch) -> Result<bool, CheckError> {
    let (pair, mut writer, mut other) = Pair::begun(scratch).await?;
    must(&pair.begin_takeover(&mut other).await?, "a placeholder")?;
    let is_written = pair.end_write(&mut writer).await?;
    Ok(!is_written && pair.end_takeover(&mut other).await?)
}

/// How long the servers let a transaction live.
pub async fn lifetime(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let ask = doc! { "getParameter": 1, "transactionLifetimeLimitSeconds": 1 };
    if scratch.shards.is_some() {
        let why = "each shard has its own limit, and a mongos doesn't state it".to_owned();
        return Err(CheckError::Impossible(why));
    }
    let reply = super::stated(scratch.run_in("admin", ask).await)?;
    let seconds = reply.get_i32("transactionLifetimeLimitSeconds").unwrap_or_default();
    let seen = format!("{seconds} s");
    Ok(match seconds {
        ..=60 => CheckOutcome::Passed(seen),
        _ => CheckOutcome::Warned(seen),
    })
}

fn insert(document: Document) -> Document {
    doc! { "insert": DOCUMENTS, "documents": [document] }
}

fn update(place: &Document, value: i32) -> Document {
    doc! { "update": DOCUMENTS, "updates": [{ "q": place.clone(), "u": { "$set": { "v": value } } }] }
}

fn find(place: &Document) -> Document {
    doc! { "find": DOCUMENTS, "filter": place.clone() }
}

fn with(place: &Document, value: i32) -> Document {
    let mut document = place.clone();
    document.insert("v", value);
    document
}

/// A write of its own that a majority has.
async fn write(scratch: &Scratch, mut command: Document) -> Result<(), CheckError> {
    command.insert("writeConcern", doc! { "w": "majority" });
    scratch.run(command).await.map(drop)
}

fn value_in(reply: &Document) -> Option<i32> {
    driver::first_batch(reply)?.first()?.as_document()?.get_i32("v").ok()
}

/// The server must carry this out; a transaction that a conflict ended is begun anew by the check's next try.
fn must(answer: &ScratchAnswer, what: &str) -> Result<(), CheckError> {
    match answer.is_ok() {
        true => Ok(()),
        false if answer.is_transient => Err(CheckError::Transient(format!("{what}: {}", answer.shown()))),
        false => Err(CheckError::Unexpected(format!("{what}: {}", answer.shown()))),
    }
}
