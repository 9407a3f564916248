//! Checks linearizable reads, and the read and write concerns that the cluster adds to commands without one.

use bson::{Document, doc};

use super::check::{CheckError, CheckOutcome};
use super::scratch::{DOCUMENTS, Scratch};
use crate::server::driver;

/// A linearizable read answers over several shards, and shows each acknowledged document.
pub async fn linearizable(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let places = scratch.places()?;
    let documents = [places.first, places.second].map(|h| doc! { "_id": format!("linearizable {h}"), "h": h, "l": 1 });
    let insert = doc! { "insert": DOCUMENTS, "documents": documents.to_vec(), "writeConcern": { "w": "majority" } };
    scratch.run(insert).await?;
    let concern = doc! { "level": "linearizable" };
    let find = doc! { "find": DOCUMENTS, "filter": { "l": 1 }, "readConcern": concern, "maxTimeMS": 10_000 };
    let reply = scratch.run(find).await?;
    let found = driver::first_batch(&reply).map_or(0, <[_]>::len);
    Ok(CheckOutcome::of(found == 2, || {
        format!("{found} of 2 acknowledged documents are found")
    }))
}

/// The read concern that the cluster adds to clients' commands that state none.
pub async fn default_read(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let defaults = defaults(scratch).await?;
    let concern = defaults.get_document("defaultReadConcern");
    let level = concern.and_then(|concern| concern.get_str("level")).unwrap_or("local");
    Ok(match level {
        "available" => {
            CheckOutcome::Warned("clients read with `available` unless they state another read concern".to_owned())
        }
        level => CheckOutcome::Passed(level.to_owned()),
    })
}

/// The write concern that the cluster adds to clients' commands that state none.
pub async fn default_write(scratch: &Scratch) -> Result<CheckOutcome, CheckError> {
    let defaults = defaults(scratch).await?;
    let concern = defaults.get_document("defaultWriteConcern").ok();
    let w = concern.and_then(|concern| concern.get("w"));
    let shown = w.map_or("unset".to_owned(), |w| w.to_string().replace('"', ""));
    Ok(match shown.as_str() {
        "majority" => CheckOutcome::Passed(shown),
        _ => CheckOutcome::Warned(format!("w: {shown}; clients' own writes can be rolled back")),
    })
}

async fn defaults(scratch: &Scratch) -> Result<Document, CheckError> {
    super::stated(scratch.run_in("admin", doc! { "getDefaultRWConcern": 1 }).await)
}
