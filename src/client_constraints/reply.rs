//! Composes a client's reply for a build that ended because documents violate the constraint.

use bson::{Document, doc};

use crate::prepare::Reports;
use crate::raw::Builder;
use crate::server::code;

/// The reply: the server's error for the first duplicate, or the first reason why a document has no key.
pub fn reply_of_violated(reports: &Reports) -> Document {
    let Some(report) = reports.0.first() else {
        return Document::new();
    };
    let prefix = format!("Index build failed: Collection {} :: caused by :: ", report.namespace);
    match &report.duplicate {
        Some(duplicate) => {
            let mut reply = Builder::new();
            duplicate.append_to_command_error(&prefix, &mut reply);
            Document::from_reader(reply.finish().as_slice()).unwrap_or_default()
        }
        None => doc! {
            "ok": 0.0,
            "errmsg": format!("{prefix}{}", report.named.first().map_or("", String::as_str)),
            "code": code::CANNOT_CREATE_INDEX,
            "codeName": "CannotCreateIndex",
        },
    }
}
