//! Defines tokens, which identify the attempt that wrote a reservation, and retry ids, which identify a retryable statement.
//!
//! Every write has its own id, and every attempt of a write its position. So a change that names a token affects only that
//! attempt's reservations. If the client's driver may retry the statement, the token holds its retry id, too. A retry through any
//! Keyward then recognises the reservation of its first try.

/// One try of a client's command, of one of its statements, or of a batch of a backfill: random, never used again.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WriteId(pub [u8; 16]);

/// A statement of a retryable write. The server itself recognises a retry by these fields.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RetryId {
    /// `lsid.id`.
    pub session: [u8; 16],
    /// `txnNumber`.
    pub txn_number: i64,
    /// The statement's number: its position in the driver's command, unless the driver gave another.
    pub statement: i32,
}

/// Identifies the attempt that wrote a reservation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Token {
    /// The write whose document it is.
    pub write: WriteId,
    /// The document's position in the command, so that two documents of one command conflict like any others.
    pub position: u32,
    /// The retry id of the attempt's statement, if the driver may retry it.
    pub retry_id: Option<RetryId>,
}

const PLAIN: usize = 16 + 4;
const RETRYABLE: usize = PLAIN + 16 + 8 + 4;

impl Token {
    /// Represents an unknown write that has written in a transaction that is still open.
    pub const UNKNOWN: Token = Token::of(WriteId([0; 16]));

    /// The token of a write's attempt at position 0, without a retry id.
    pub const fn of(write: WriteId) -> Token {
        Token {
            write,
            position: 0,
            retry_id: None,
        }
    }

    /// The token as a reservation holds it: 20 bytes, or 48 with a retry id; numbers little-endian.
    pub fn to_bytes(self) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(RETRYABLE);
        bytes.extend_from_slice(&self.write.0);
        bytes.extend_from_slice(&self.position.to_le_bytes());
        if let Some(retry_id) = self.retry_id {
            bytes.extend_from_slice(&retry_id.session);
            bytes.extend_from_slice(&retry_id.txn_number.to_le_bytes());
            bytes.extend_from_slice(&retry_id.statement.to_le_bytes());
        }
        bytes
    }

    /// Reads a token from `bytes`; `None` if [`Token::to_bytes`] can't have written them.
    pub fn from_bytes(bytes: &[u8]) -> Option<Token> {
        let (write, rest) = bytes.split_first_chunk::<16>()?;
        let (position, rest) = rest.split_first_chunk::<4>()?;
        let retry_id = match bytes.len() {
            PLAIN => None,
            RETRYABLE => {
                let (session, rest) = rest.split_first_chunk::<16>()?;
                let (txn_number, rest) = rest.split_first_chunk::<8>()?;
                Some(RetryId {
                    session: *session,
                    txn_number: i64::from_le_bytes(*txn_number),
                    statement: i32::from_le_bytes(*rest.first_chunk::<4>()?),
                })
            }
            _ => return None,
        };
        Some(Token {
            write: WriteId(*write),
            position: u32::from_le_bytes(*position),
            retry_id,
        })
    }

    /// Whether both were written for the same statement of the same retryable write.
    pub fn is_retry_of(self, other: Token) -> bool {
        self.retry_id.is_some() && self.retry_id == other.retry_id
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_round_trip() {
        let plain = Token {
            write: WriteId([7; 16]),
            position: 3,
            retry_id: None,
        };
        let retry_id = RetryId {
            session: [9; 16],
            txn_number: -2,
            statement: 5,
        };
        let retryable = Token {
            retry_id: Some(retry_id),
            ..plain
        };
        for token in [plain, retryable] {
            assert_eq!(Token::from_bytes(&token.to_bytes()), Some(token));
        }
        assert_eq!(Token::from_bytes(&[0; 19]), None);
        assert_eq!(Token::from_bytes(&[0; 49]), None);
    }

    #[test]
    fn a_retry_has_the_retry_id_of_its_first_try() {
        let retry_id = RetryId {
            session: [9; 16],
            txn_number: 1,
            statement: 0,
        };
        let first = Token {
            write: WriteId([1; 16]),
            position: 0,
            retry_id: Some(retry_id),
        };
        let retry = Token {
            write: WriteId([2; 16]),
            ..first
        };
        let sibling = Token {
            retry_id: Some(RetryId {
                statement: 1,
                ..retry_id
            }),
            ..retry
        };
        let plain = Token {
            retry_id: None,
            ..first
        };
        assert!(retry.is_retry_of(first));
        assert!(!sibling.is_retry_of(first));
        assert!(!plain.is_retry_of(plain));
    }
}
