//! Names the sessions of Keyward's own transactions on clients' connections, so that no client's transaction runs in one.
//!
//! To the server, such a session belongs to the client's user. The client can find out its name (`$currentOp`), and its transaction's
//! number. By a commit of its own it could then commit a statement without its reservations.

use xxhash_rust::xxh3::xxh3_128;

/// The first bytes of the name. A driver's sessions have random names, so none of them begins so.
const MARK: [u8; 7] = *b"keyward";

/// A session of Keyward's own. The bytes behind its mark are those of `name`.
pub fn own_session(mut name: [u8; 16]) -> [u8; 16] {
    name[..MARK.len()].copy_from_slice(&MARK);
    name
}

/// The session of Keyward's own for the retryable commands of a client's session: the same one in every Keyward.
pub fn derived_session(of_client: &[u8; 16]) -> [u8; 16] {
    own_session(xxh3_128(&[b"keyward", &of_client[..]].concat()).to_be_bytes())
}

/// Whether the session of this name is one of Keyward's own.
pub fn is_own_session(name: &[u8]) -> bool {
    name.starts_with(&MARK)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_session_of_keywards_own_is_recognised() {
        let drivers = *b"\x01\x02\x03\x04\x05\x06\x47\x08\x89\x0a\x0b\x0c\x0d\x0e\x0f\x10";
        assert!(!is_own_session(&drivers));
        let own = own_session(drivers);
        assert!(is_own_session(&own));
        assert_eq!(own[7..], drivers[7..]);
        assert!(is_own_session(&derived_session(&drivers)));
        assert_ne!(derived_session(&drivers), derived_session(&[7; 16]));
    }
}
