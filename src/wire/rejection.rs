//! Lists why a message is rejected, and the server's reaction: it answers with an error, closes, or says nothing.
//!
//! Codes, names and texts are those measured on mongod 6.0.5. The text about a malformed document leaves out the name
//! of the element that the server adds.

use super::TooLong;
use crate::raw::Malformed;
use crate::server::code;

/// The fault of a message.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Rejection {
    /// The header gives a length that no message may have.
    #[error("a message can't have {0} bytes")]
    Length(i32),
    /// The op code is unknown, or that of a legacy write.
    #[error("op code {0} is not served")]
    OpCode(i32),
    /// Op code 0 with anything behind the header.
    #[error("op code 0 asks for nothing")]
    NothingAsked,
    /// The message ends before the fields that its op code asks for.
    #[error("the message is too short for its op code")]
    TooShort,
    /// An OP_MSG flag that must be understood is not.
    #[error("OP_MSG flags {0:#010x} hold a required flag that is unknown")]
    RequiredFlag(u32),
    /// The checksum doesn't match the bytes.
    #[error("OP_MSG checksum does not match contents")]
    Checksum,
    /// More than two document sequences.
    #[error("Too many document sequences in OP_MSG")]
    TooManySequences,
    /// A compressed message that can't be unpacked to exactly the size it states, within the limits.
    #[error("a compressed message can't be unpacked")]
    Compression,
    /// A compressed message inside a compressed one.
    #[error("a compressed message holds another one")]
    NestedCompression,
    /// The checksum flag is set, but there is no room for a section and a checksum.
    #[error("Invalid message size for an OpMsg containing a checksum")]
    ChecksumSize,
    /// Two sections of kind 0.
    #[error("Multiple body sections in message")]
    TwoBodies,
    /// No section of kind 0.
    #[error("OP_MSG messages must have a body")]
    NoBody,
    /// Two document sequences of one name.
    #[error("Duplicate document sequence: {0}")]
    DuplicateSequence(String),
    /// A document sequence and a field of the body have the same name.
    #[error("Duplicate field between body and document sequence {0}")]
    SequenceInBody(String),
    /// A section kind that doesn't exist.
    #[error("Unknown section kind {0}")]
    SectionKind(u8),
    /// A section of kind 2, which only multi-tenant servers know.
    #[error("Unsupported Security Token provided")]
    SecurityToken,
    /// A document sequence whose size or name runs past the message.
    #[error("a document sequence runs past the end of its message")]
    SequenceSize,
    /// A document that isn't BSON.
    #[error("{0}")]
    Bson(#[from] Malformed),
    /// An OP_QUERY that isn't a command, or an OP_GET_MORE.
    #[error(
        "{0} is no longer supported. The client driver may require an upgrade. For more details see \
         https://dochub.mongodb.org/core/legacy-opcode-removal"
    )]
    LegacyRead(&'static str),
    /// An OP_QUERY command other than those of a handshake.
    #[error(
        "Unsupported OP_QUERY command: {0}. The client driver may require an upgrade. For more details see \
         https://dochub.mongodb.org/core/legacy-opcode-removal"
    )]
    LegacyCommand(String),
}

/// The server's reaction to a message that it rejects.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Treatment {
    /// It replies with an error (nothing, if the client asked for no reply) and reads on.
    Answer(ServerError),
    /// It closes the connection without a reply.
    Close,
    /// It reads on without a reply.
    Ignore,
}

/// An error as a reply carries it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerError {
    /// MongoDB's error code.
    pub code: i32,
    /// The text, of [`ERROR_TEXT_BYTES_MAX`] bytes at most.
    pub message: String,
}

/// The longest text of an error. A client can choose names in it that have millions of bytes, and a reply has to hold it.
pub const ERROR_TEXT_BYTES_MAX: usize = 4 * 1024 * 1024;

impl From<TooLong> for Rejection {
    fn from(TooLong(bytes): TooLong) -> Self {
        Rejection::Length(i32::try_from(bytes).unwrap_or(i32::MAX))
    }
}

impl Rejection {
    /// The server's reaction to this fault.
    pub fn treatment(&self) -> Treatment {
        let code = match self {
            Self::Length(_)
            | Self::TooShort
            | Self::RequiredFlag(_)
            | Self::Checksum
            | Self::TooManySequences
            | Self::Compression
            | Self::OpCode(_) => return Treatment::Close,
            Self::NestedCompression | Self::NothingAsked => return Treatment::Ignore,
            Self::ChecksumSize => code::NO_ROOM_FOR_CHECKSUM,
            Self::TwoBodies => code::TWO_BODIES,
            Self::NoBody => code::NO_BODY,
            Self::DuplicateSequence(_) => code::DUPLICATE_SEQUENCE,
            Self::SequenceInBody(_) => code::SEQUENCE_IN_BODY,
            Self::SectionKind(_) => code::UNKNOWN_SECTION_KIND,
            Self::SecurityToken => code::UNAUTHORIZED,
            Self::SequenceSize | Self::Bson(Malformed::TooDeep) => code::OVERFLOW,
            Self::Bson(_) => code::INVALID_BSON,
            Self::LegacyRead(_) => code::LEGACY_READ,
            Self::LegacyCommand(_) => code::UNSUPPORTED_OP_QUERY_COMMAND,
        };
        Treatment::Answer(ServerError::new(code, self.to_string()))
    }
}
