//! Parses OP_QUERY and composes its OP_REPLY, the legacy form that drivers still use for the handshake.
//!
//! Only the fields in front of the query document are checked here. [`OpQuery::command`] decides which commands may come
//! in this form. The server checks the bytes behind the query document.

use bson::spec::ElementType;

use super::{Header, OpCode, Rejection};
use crate::raw::Doc;

/// The commands that the server still takes as OP_QUERY; the first three are the handshake's.
const COMMANDS: [&str; 9] = [
    "hello",
    "isMaster",
    "ismaster",
    "_isSelf",
    "authenticate",
    "buildinfo",
    "buildInfo",
    "saslContinue",
    "saslStart",
];

/// A parsed OP_QUERY command that borrows the message's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpQuery<'a> {
    /// The database, taken from the namespace before `.$cmd`.
    pub database: &'a [u8],
    /// The command, without the `$query` that may have been around it.
    pub command: Doc<'a>,
    /// The command's name.
    pub name: &'static str,
}

impl<'a> OpQuery<'a> {
    /// Parses a whole message, header included.
    ///
    /// # Errors
    /// A [`Rejection`] if the message is too short, isn't a command, or isn't a command of the handshake.
    pub fn parse(message: &'a [u8]) -> Result<Self, Rejection> {
        let (namespace, rest) = Self::namespace(message)?;
        let query = rest.get(1 + 8..).ok_or(Rejection::TooShort)?;
        let database = namespace
            .strip_suffix(b".$cmd")
            .ok_or(Rejection::LegacyRead("OP_QUERY"))?;
        let (command, name) = Self::command(Doc::split(query)?.0)?;
        Ok(OpQuery {
            database,
            command,
            name,
        })
    }

    /// The namespace in a legacy message, behind four bytes of flags; and what follows it, from its zero byte on.
    ///
    /// # Errors
    /// [`Rejection::TooShort`] if there is none.
    pub fn namespace(message: &'a [u8]) -> Result<(&'a [u8], &'a [u8]), Rejection> {
        let after_flags = message.get(Header::SIZE + 4..).ok_or(Rejection::TooShort)?;
        let end = after_flags.iter().position(|byte| *byte == 0);
        end.map(|end| after_flags.split_at(end)).ok_or(Rejection::TooShort)
    }

    /// The command that `query` is, or wraps in `$query` or `query`.
    fn command(query: Doc<'a>) -> Result<(Doc<'a>, &'static str), Rejection> {
        let Some(first) = query.elements().next().transpose()? else {
            return Err(Rejection::LegacyCommand("$db".into()));
        };
        let wrapped = matches!(first.name, b"$query" | b"query") && first.kind == ElementType::EmbeddedDocument;
        let command = if wrapped { Doc::new(first.value)? } else { query };
        let name = match command.elements().next().transpose()? {
            Some(first) => first.name,
            None => b"$db",
        };
        COMMANDS
            .into_iter()
            .find(|allowed| allowed.as_bytes() == name)
            .map(|name| (command, name))
            .ok_or_else(|| Rejection::LegacyCommand(String::from_utf8_lossy(name).into_owned()))
    }
}

/// A legacy reply with one document.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpReply<'a> {
    /// The flags, unchanged.
    pub flags: i32,
    /// The first document.
    pub document: Doc<'a>,
}

impl<'a> OpReply<'a> {
    /// The reply is the answer to a query that failed.
    pub const QUERY_FAILURE: i32 = 2;
    /// The server can wait for data; set on every reply to a command.
    pub const AWAIT_CAPABLE: i32 = 8;

    /// Parses a whole message, header included.
    ///
    /// # Errors
    /// A [`Rejection`] if it doesn't hold a document.
    pub fn parse(message: &'a [u8]) -> Result<Self, Rejection> {
        let body = message.get(Header::SIZE..).ok_or(Rejection::TooShort)?;
        let flags = body.first_chunk::<4>().ok_or(Rejection::TooShort)?;
        let documents = body.get(20..).ok_or(Rejection::TooShort)?;
        Ok(OpReply {
            flags: i32::from_le_bytes(*flags),
            document: Doc::split(documents)?.0,
        })
    }

    /// The whole message.
    pub fn message(flags: i32, document: &[u8], request_id: i32, response_to: i32) -> Vec<u8> {
        let header = Header {
            length: Header::SIZE + 20 + document.len(),
            request_id,
            response_to,
            op_code: OpCode::REPLY,
        };
        let mut message = Vec::with_capacity(header.length);
        message.extend_from_slice(&header.bytes());
        message.extend_from_slice(&flags.to_le_bytes());
        message.extend_from_slice(&[0; 12]); // cursor id 0, starting from 0
        message.extend_from_slice(&1_i32.to_le_bytes());
        message.extend_from_slice(document);
        message
    }
}

#[cfg(test)]
mod tests {
    use bson::{Document, doc};

    use super::*;

    fn query(namespace: &str, command: &Document) -> Vec<u8> {
        let mut body = 0_i32.to_le_bytes().to_vec();
        body.extend_from_slice(namespace.as_bytes());
        body.extend_from_slice(b"\0\0\0\0\0\xff\xff\xff\xff");
        body.extend_from_slice(&command.to_vec().unwrap());
        let header = Header {
            length: Header::SIZE + body.len(),
            request_id: 1,
            response_to: 0,
            op_code: OpCode::QUERY,
        };
        [&header.bytes()[..], &body].concat()
    }

    #[test]
    fn takes_the_handshake_in_all_its_forms() {
        for (namespace, command, name) in [
            ("admin.$cmd", doc! { "isMaster": 1 }, "isMaster"),
            ("test.$cmd", doc! { "hello": true, "x": 1 }, "hello"),
            (
                "admin.$cmd",
                doc! { "$query": { "ismaster": 1 }, "$readPreference": {} },
                "ismaster",
            ),
            ("admin.$cmd", doc! { "query": { "saslStart": 1 } }, "saslStart"),
        ] {
            assert_eq!(OpQuery::parse(&query(namespace, &command)).unwrap().name, name);
        }
    }

    #[test]
    fn turns_down_everything_else() {
        let rejected = |namespace: &str, command: Document| OpQuery::parse(&query(namespace, &command)).unwrap_err();
        assert_eq!(
            rejected("shop.$cmd", doc! { "insert": "users" }),
            Rejection::LegacyCommand("insert".into())
        );
        assert_eq!(
            rejected("shop.$cmd", doc! { "$query": { "insert": "users" } }),
            Rejection::LegacyCommand("insert".into())
        );
        assert_eq!(
            rejected("shop.$cmd", doc! { "query": 1, "hello": 1 }),
            Rejection::LegacyCommand("query".into())
        );
        assert_eq!(rejected("shop.users", doc! {}), Rejection::LegacyRead("OP_QUERY"));
        assert_eq!(rejected("shop.$cmd.x", doc! {}), Rejection::LegacyRead("OP_QUERY"));
        let whole = query("admin.$cmd", &doc! { "hello": 1 });
        for end in 16..whole.len() {
            assert!(OpQuery::parse(&whole[..end]).is_err(), "cut at {end}");
        }
    }

    #[test]
    fn a_reply_reads_what_it_writes() {
        let document = doc! { "ok": 1.0 }.to_vec().unwrap();
        let message = OpReply::message(OpReply::AWAIT_CAPABLE, &document, 3, 7);
        let header = Header::read(&message).unwrap().unwrap();
        assert_eq!((header.length, header.response_to), (message.len(), 7));
        let reply = OpReply::parse(&message).unwrap();
        assert_eq!((reply.flags, reply.document.bytes()), (8, &document[..]));
    }
}
