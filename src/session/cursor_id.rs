//! Reads from a reply, piece by piece, whether a cursor stays open.
//!
//! It reads only the heads of the few elements before the cursor id, and skips a batch by its length.

use crate::wire::{Header, OpCode};

/// Where the document `cursor` of an OP_MSG's body begins, if it is the body's first field: behind header, flags, the
/// section's kind, the body's length, and the field's type, name and length.
const FIRST: usize = Header::SIZE + 4 + 1 + 4 + 1 + "cursor\0".len() + 4;
/// More than the longest head of an element in front of `id`, its value's first bytes included.
const HEAD_MAX: usize = 64;

/// A search in one reply.
#[derive(Debug, Default)]
pub struct CursorId {
    /// The offset of the next element in the bytes that Keyward hasn't passed on; none before the first bytes are read.
    next: Option<usize>,
}

/// The result of reading a reply's head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum CursorState {
    /// Whether a cursor is open.
    Open(bool),
    /// The bytes from here on must stay until there are more of them.
    Later(usize),
}

impl CursorId {
    /// Reads the bytes `there` of the reply that Keyward hasn't passed on; `is_all` if no more will come.
    pub fn read(&mut self, there: &[u8], is_all: bool) -> CursorState {
        let later = |at: usize| match is_all {
            true => CursorState::Open(false),
            false => CursorState::Later(at.min(there.len())),
        };
        let mut at = match self.next {
            Some(next) => next,
            None if there.len() < FIRST => return later(0),
            None if !is_cursor(there) => return CursorState::Open(false),
            None => FIRST,
        };
        loop {
            self.next = Some(at);
            let Some(rest) = there.get(at..).filter(|rest| is_all || rest.len() >= HEAD_MAX) else {
                return later(at);
            };
            match element(rest) {
                Some((b"id", 0x12, value)) => return CursorState::Open(value.iter().take(8).any(|byte| *byte != 0)),
                Some((name, kind, value)) => match size(kind, value) {
                    Some(size) => at += 1 + name.len() + 1 + size,
                    None => return CursorState::Open(false),
                },
                None => return CursorState::Open(false),
            }
        }
    }

    /// Whether the last look has left anything that needn't stay.
    pub fn lets_pass(&self) -> bool {
        self.next.is_some_and(|next| next > 0)
    }

    /// Notes that `count` bytes have been passed on.
    pub fn pass(&mut self, count: usize) {
        if let Some(next) = &mut self.next {
            *next = next.saturating_sub(count);
        }
    }
}

fn is_cursor(message: &[u8]) -> bool {
    let op_code = message.get(12..16) == Some(&OpCode::MSG.0.to_le_bytes()[..]);
    op_code && message.get(20) == Some(&0) && message.get(25..33) == Some(b"\x03cursor\0")
}

/// Name, type and what follows the name of the element that `bytes` begin with.
fn element(bytes: &[u8]) -> Option<(&[u8], u8, &[u8])> {
    let (kind, rest) = bytes.split_first()?;
    let end = rest.iter().take(HEAD_MAX).position(|byte| *byte == 0)?;
    (*kind != 0).then(|| (&rest[..end], *kind, &rest[end + 1..]))
}

/// Bytes of a value of a type that may stand in front of `id`.
fn size(kind: u8, value: &[u8]) -> Option<usize> {
    let length = || {
        let length = i32::from_le_bytes(*value.first_chunk::<4>()?);
        usize::try_from(length).ok()
    };
    match kind {
        0x03 | 0x04 => length(),
        0x02 => Some(4 + length()?),
        0x08 => Some(1),
        0x10 => Some(4),
        0x01 | 0x09 | 0x11 | 0x12 => Some(8),
        0x07 => Some(12),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;
    use crate::wire::Draft;

    fn message(body: &Document) -> Vec<u8> {
        let body = body.to_vec().unwrap();
        Draft::of_body(&body).frame(1, 0).unwrap().to_vec()
    }

    /// The cursor id that is found if the reply comes in pieces of `step` bytes and all that may be passed on is.
    fn found(message: &[u8], step: usize) -> bool {
        let mut search = CursorId::default();
        let (mut passed, mut arrived) = (0, 0);
        loop {
            arrived = (arrived + step).min(message.len());
            match search.read(&message[passed..arrived], arrived == message.len()) {
                CursorState::Open(open) => return open,
                CursorState::Later(up_to) => {
                    search.pass(up_to);
                    passed += up_to;
                }
            }
        }
    }

    #[test]
    fn is_found_however_the_reply_comes() {
        let batch: Vec<_> = (0..50)
            .map(|n| doc! { "_id": n, "text": "x".repeat(n as usize) })
            .collect();
        for id in [0_i64, 1, i64::MIN, 1 << 40] {
            let mongod = doc! { "cursor": { "firstBatch": batch.clone(), "id": id, "ns": "a.b" }, "ok": 1.0 };
            let stream = doc! {
                "cursor": { "nextBatch": batch.clone(), "postBatchResumeToken": { "_data": "x" }, "id": id, "ns": "a.b" },
                "ok": 1.0,
            };
            for reply in [mongod, stream] {
                let message = message(&reply);
                for step in [1, 2, 7, 63, 64, 65, 500, 1 << 20] {
                    assert_eq!(found(&message, step), id != 0, "{id} in steps of {step}");
                }
            }
        }
    }

    #[test]
    fn other_replies_have_none() {
        for reply in [
            doc! { "ok": 1.0 },
            doc! { "cursor": 1 },
            doc! { "cursor": { "x": 1 } },
            doc! { "n": 1, "cursor": { "id": 5_i64 } },
        ] {
            for step in [1, 1 << 20] {
                assert!(!found(&message(&reply), step), "{reply}");
            }
        }
    }
}
