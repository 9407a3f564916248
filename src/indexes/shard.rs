//! Explains why a collection with unique indexes can't be sharded: says that Keyward can keep them unique.

use crate::raw::{Builder, Doc, Malformed};
use crate::server::{code, reply};

/// The text in the server's reason if a unique index doesn't begin with the shard key.
const REASON: &[u8] = b"with unique index";

/// The server's `answer` to a `shardCollection`. If a unique index was in the way, the message also names the command that takes it over.
pub fn explained(answer: Vec<u8>) -> Result<Vec<u8>, Malformed> {
    let failed = Doc::new(&answer)?;
    let reason = reply::errmsg(failed)?.unwrap_or_default();
    let is_about_unique = reason.windows(REASON.len()).any(|part| part == REASON);
    if reply::is_ok(failed)? || reply::code(failed)? != Some(code::INVALID_OPTIONS) || !is_about_unique {
        return Ok(answer);
    }
    let reason = String::from_utf8_lossy(reason);
    let message = format!("{reason}; Keyward can keep such indexes unique: shard the collection with `keyward shard`");
    let mut edited = Builder::new();
    for field in failed.elements() {
        let field = field?;
        match field.name {
            b"errmsg" => edited.string("errmsg", message.as_bytes()),
            _ => edited.element(&field),
        };
    }
    Ok(edited.finish())
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn explained_message(answer: Document) -> String {
        let edited = explained(answer.to_vec().unwrap()).unwrap();
        let edited = Document::from_reader(edited.as_slice()).unwrap();
        edited.get_str("errmsg").unwrap_or_default().to_owned()
    }

    #[test]
    fn only_a_refusal_for_a_unique_index_is_explained() {
        let refusal = |code: i32, errmsg: &str| doc! { "ok": 0.0, "errmsg": errmsg, "code": code };
        let of_server = "can't shard collection 'a.b' with unique index on { x: 1 } and proposed shard key { y: 1 }";
        assert!(explained_message(refusal(code::INVALID_OPTIONS, of_server)).contains("`keyward shard`"));
        assert_eq!(explained_message(refusal(code::INVALID_OPTIONS, "other")), "other");
        assert_eq!(explained_message(refusal(13, of_server)), of_server);
        assert_eq!(explained_message(doc! { "ok": 1.0 }), "");
    }
}
