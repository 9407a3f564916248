//! What a driver's error says of the statements that were sent: refused for certain, or nobody knows.

use bson::Bson;
use mongodb::error::{Error, ErrorKind, RETRYABLE_WRITE_ERROR, WriteFailure};

use crate::nemesis::history::{Outcome, Verdict};
use crate::nemesis::keys::{Held, key};

/// Refusals that say that nothing was done: another document has the key, the command can't be carried out as it is, ...
const CERTAIN: [i32; 10] = [2, 9, 14, 53, 54, 66, 72, 115, DUPLICATE, 40415];
const DUPLICATE: i32 = 11000;

/// An error, judged.
pub struct Judged {
    pub outcome: Outcome,
    pub verdict: Verdict,
    pub duplicate: Option<Held>,
}

pub fn judge(error: &Error) -> Judged {
    match &*error.kind {
        ErrorKind::Write(WriteFailure::WriteError(refused)) => of_code(refused.code, &refused.message),
        ErrorKind::Command(refused) if !error.contains_label(RETRYABLE_WRITE_ERROR) => {
            of_code(refused.code, &refused.message)
        }
        ErrorKind::Command(refused) => unknown(format!("{} to be retried", refused.code)),
        ErrorKind::Write(WriteFailure::WriteConcernError(concern)) => unknown(format!("concern {}", concern.code)),
        ErrorKind::Io(_) => unknown("connection".to_owned()),
        ErrorKind::ServerSelection { .. } => unknown("no server".to_owned()),
        ErrorKind::ConnectionPoolCleared { .. } => unknown("pool cleared".to_owned()),
        _ => unknown(error.to_string()),
    }
}

/// An error of the server's with this code.
pub fn of_code(code: i32, message: &str) -> Judged {
    if !CERTAIN.contains(&code) {
        return unknown(format!("{code}: {}", message.chars().take(60).collect::<String>()));
    }
    let duplicate = (code == DUPLICATE).then(|| duplicate(message).unwrap_or_else(|| panic!("what key: {message}")));
    let outcome = match code {
        DUPLICATE => Outcome::Duplicate,
        _ => Outcome::Failed(code.to_string()),
    };
    Judged {
        outcome,
        verdict: Verdict::Nothing,
        duplicate,
    }
}

fn unknown(why: String) -> Judged {
    Judged {
        outcome: Outcome::Unknown(why),
        verdict: Verdict::Unknown,
        duplicate: None,
    }
}

/// The key that the text of a duplicate names: `… dup key: { email: "3@x" }`.
fn duplicate(message: &str) -> Option<Held> {
    let (_, shown) = message.rsplit_once("dup key: { ")?;
    let (field, value) = shown.strip_suffix(" }")?.split_once(": ")?;
    let value = match value {
        "null" => Bson::Null,
        "undefined" => Bson::Undefined,
        text => match text.strip_prefix('"') {
            Some(text) => Bson::String(text.strip_suffix('"')?.to_owned()),
            None => Bson::Int32(text.parse().ok()?),
        },
    };
    Some(key(field, &value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_key_is_read_from_the_text() {
        let text = "E11000 duplicate key error collection: d.c index: email_1 dup key: { email: \"3@x\" }";
        assert_eq!(duplicate(text), Some(key("email", &Bson::String("3@x".to_owned()))));
        assert_eq!(duplicate("… dup key: { tags: 5 }"), Some(key("tags", &Bson::Int32(5))));
    }

    #[test]
    fn what_may_have_happened_is_unknown() {
        assert_eq!(of_code(50, "operation exceeded time limit").verdict, Verdict::Unknown);
        assert_eq!(of_code(115, "").verdict, Verdict::Nothing);
    }
}
