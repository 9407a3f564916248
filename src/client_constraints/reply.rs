//! Composes a client's reply for a build that ended because documents violate the constraint.

use bson::{Document, Utf8Lossy, doc};

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
            // The server's text may cut a key in the middle of a character.
            let reply: Result<Utf8Lossy<Document>, _> = bson::deserialize_from_slice(&reply.finish());
            reply.map(|reply| reply.0).unwrap_or_default()
        }
        None => doc! {
            "ok": 0.0,
            "errmsg": format!("{prefix}{}", report.unindexable.first().map_or_else(String::new, ToString::to_string)),
            "code": code::CANNOT_CREATE_INDEX,
            "codeName": code::name(code::CANNOT_CREATE_INDEX).into_owned(),
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::constraint::{Constraint, IndexSpec};
    use crate::namespace::Namespace;
    use crate::prepare::Report;
    use crate::raw::Doc;

    #[test]
    fn a_long_key_whose_text_is_cut_is_reported() {
        let namespace = Namespace::new("shop", "users");
        let spec = IndexSpec {
            key: doc! { "email": 1 },
            ..IndexSpec::default()
        };
        let constraint = Constraint::new(namespace, spec).unwrap();
        let document = doc! { "email": format!("x{}", "\u{e9}".repeat(200)) }.to_vec().unwrap();
        let keys = constraint.keys(Doc::new(&document).unwrap()).unwrap();
        let report = Report {
            count: 1,
            duplicate: Some(constraint.duplicate(&keys[0])),
            ..Report::of(&constraint)
        };
        let reply = reply_of_violated(&Reports(vec![report]));
        assert_eq!(reply.get_i32("code").ok(), Some(code::DUPLICATE_KEY));
    }
}
