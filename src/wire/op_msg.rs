//! Parses OP_MSG: flags, one body, up to two document sequences in any order, and a checksum.
//!
//! [`OpMsg::parse`] checks the structure and the checksum, but not the documents. That is enough for a forwarded
//! message, because the server checks the documents itself. [`OpMsg::parse_whole`] is for the messages that Keyward
//! handles: it checks all that the server checks, in the server's order. An accepted message has only one reading.

use bson::spec::ElementType;

use super::{Batch, Documents, Header, Rejection};
use crate::raw::{Doc, Malformed};

/// The flag bits of an OP_MSG; the low 16 must be understood, the high 16 may be ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Flags(pub u32);

impl Flags {
    /// A checksum ends the message.
    pub const CHECKSUM_PRESENT: u32 = 1;
    /// Request: no reply is wanted. Reply: another one follows unasked.
    pub const MORE_TO_COME: u32 = 1 << 1;
    /// The client can take several replies to this request.
    pub const EXHAUST_ALLOWED: u32 = 1 << 16;

    const REQUIRED_UNKNOWN: u32 = 0xffff & !(Self::CHECKSUM_PRESENT | Self::MORE_TO_COME);

    /// The flags of an OP_MSG, given whole with its header.
    pub fn of(message: &[u8]) -> Option<Flags> {
        message
            .get(Header::SIZE..)?
            .first_chunk()
            .map(|bytes| Flags(u32::from_le_bytes(*bytes)))
    }

    /// Whether `bit` is set.
    pub fn has(self, bit: u32) -> bool {
        self.0 & bit != 0
    }
}

/// A section of kind 1: the documents of one array field, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sequence<'a> {
    /// The field whose value these documents are.
    pub name: &'a [u8],
    /// The documents' bytes without anything between them.
    pub documents: &'a [u8],
}

/// A parsed OP_MSG that borrows the message's bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OpMsg<'a> {
    /// The flags, unchanged.
    pub flags: Flags,
    /// The section of kind 0.
    pub body: Doc<'a>,
    sequences: [Option<Sequence<'a>>; 2],
}

/// How much of a message is checked.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scrutiny {
    Structure,
    Everything,
}

impl<'a> OpMsg<'a> {
    /// Parses a whole message, header included: structure and checksum, but only the outer bounds of documents.
    ///
    /// # Errors
    /// The [`Rejection`] that this finds first; [`OpMsg::parse_whole`] may find an earlier one.
    pub fn parse(message: &'a [u8]) -> Result<Self, Rejection> {
        Self::parse_with(message, Scrutiny::Structure)
    }

    /// Parses a whole message, header included, and checks everything that the server checks before it runs a command.
    ///
    /// # Errors
    /// The [`Rejection`] that the server would find first.
    pub fn parse_whole(message: &'a [u8]) -> Result<Self, Rejection> {
        Self::parse_with(message, Scrutiny::Everything)
    }

    fn parse_with(message: &'a [u8], scrutiny: Scrutiny) -> Result<Self, Rejection> {
        let flags = Flags::of(message).ok_or(Rejection::TooShort)?;
        if flags.has(Flags::REQUIRED_UNKNOWN) {
            return Err(Rejection::RequiredFlag(flags.0));
        }
        let (covered, checksum) = split_checksum(message, flags)?;
        let mut sections = Sections {
            scrutiny,
            body: None,
            sequences: [None; 2],
        };
        let mut rest = &covered[Header::SIZE + 4..];
        while let Some((kind, after)) = rest.split_first() {
            rest = sections.take(*kind, after)?;
        }
        let parsed = OpMsg {
            flags,
            body: sections.body.ok_or(Rejection::NoBody)?,
            sequences: sections.sequences,
        };
        if scrutiny == Scrutiny::Everything {
            parsed.check_names()?;
        }
        match checksum {
            Some(checksum) if checksum != crc32c::crc32c(covered) => Err(Rejection::Checksum),
            _ => Ok(parsed),
        }
    }

    /// The document sequences in the order in which they came.
    pub fn sequences(&self) -> impl Iterator<Item = Sequence<'a>> + use<'a> {
        self.sequences.into_iter().flatten()
    }

    /// The batch `field`, whether it came in the body as an array or as a document sequence; `None` if neither did.
    ///
    /// # Errors
    /// [`Malformed`] if the body is, before the field.
    pub fn documents(&self, field: &str) -> Result<Option<Batch<'a>>, Malformed> {
        if let Some(sequence) = self.sequences().find(|sequence| sequence.name == field.as_bytes()) {
            return Ok(Some(Batch::Sequence(sequence.documents)));
        }
        Ok(self.body.get(field)?.map(Batch::InBody))
    }

    /// No sequence may have the name of a path that the body holds, dots meaning nesting.
    fn check_names(&self) -> Result<(), Rejection> {
        for sequence in self.sequences() {
            if holds_path(self.body, sequence.name)? {
                return Err(Rejection::SequenceInBody(text(sequence.name)));
            }
        }
        Ok(())
    }
}

fn split_checksum(message: &[u8], flags: Flags) -> Result<(&[u8], Option<u32>), Rejection> {
    if !flags.has(Flags::CHECKSUM_PRESENT) {
        return Ok((message, None));
    }
    match message.split_last_chunk::<4>() {
        Some((covered, checksum)) if covered.len() > Header::SIZE + 4 => {
            Ok((covered, Some(u32::from_le_bytes(*checksum))))
        }
        _ => Err(Rejection::ChecksumSize),
    }
}

/// The sections gathered so far.
struct Sections<'a> {
    scrutiny: Scrutiny,
    body: Option<Doc<'a>>,
    sequences: [Option<Sequence<'a>>; 2],
}

impl<'a> Sections<'a> {
    /// Takes one section and returns the bytes behind it.
    fn take(&mut self, kind: u8, bytes: &'a [u8]) -> Result<&'a [u8], Rejection> {
        match kind {
            0 if self.body.is_some() => Err(Rejection::TwoBodies),
            0 => {
                let (body, rest) = Doc::split(bytes)?;
                self.check(body)?;
                self.body = Some(body);
                Ok(rest)
            }
            1 => self.take_sequence(bytes),
            2 => Err(Rejection::SecurityToken),
            other => Err(Rejection::SectionKind(other)),
        }
    }

    fn take_sequence(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Rejection> {
        let Some(free) = self.sequences.iter().position(Option::is_none) else {
            return Err(Rejection::TooManySequences);
        };
        let size = bytes.first_chunk::<4>().map(|size| i32::from_le_bytes(*size));
        let (section, rest) = size
            .and_then(|size| bytes.split_at_checked(usize::try_from(size).ok()?))
            .ok_or(Rejection::SequenceSize)?;
        let after_size = section.get(4..).ok_or(Rejection::SequenceSize)?;
        let end = after_size
            .iter()
            .position(|byte| *byte == 0)
            .ok_or(Rejection::SequenceSize)?;
        let sequence = Sequence {
            name: &after_size[..end],
            documents: &after_size[end + 1..],
        };
        if self.sequences.iter().flatten().any(|other| other.name == sequence.name) {
            return Err(Rejection::DuplicateSequence(text(sequence.name)));
        }
        if self.scrutiny == Scrutiny::Everything {
            Documents::validate_all(sequence.documents)?;
        }
        self.sequences[free] = Some(sequence);
        Ok(rest)
    }

    fn check(&self, document: Doc<'a>) -> Result<(), Malformed> {
        match self.scrutiny {
            Scrutiny::Structure => Ok(()),
            Scrutiny::Everything => document.validate(),
        }
    }
}

/// Whether the server finds a value at the dotted `path` of `document`.
///
/// As the server does, this follows the first field of each name, and any array on the way counts as a value. So the search
/// reads no part of the document twice, however deep it is.
fn holds_path(mut document: Doc<'_>, mut path: &[u8]) -> Result<bool, Malformed> {
    loop {
        let (name, below) = match path.iter().position(|byte| *byte == b'.') {
            Some(dot) => (&path[..dot], &path[dot + 1..]),
            None => (path, &[][..]),
        };
        let first = document
            .elements()
            .find(|element| element.is_err() || element.is_ok_and(|element| element.name == name));
        let Some(element) = first.transpose()? else {
            return Ok(false);
        };
        if below.is_empty() || element.kind == ElementType::Array {
            return Ok(true);
        }
        let Some(nested) = element.as_document()? else {
            return Ok(false);
        };
        (document, path) = (nested, below);
    }
}

fn text(name: &[u8]) -> String {
    String::from_utf8_lossy(name).into_owned()
}

#[cfg(test)]
mod tests {
    use bson::doc;
    use proptest::prelude::*;

    use super::*;
    use crate::wire::{Draft, OutSequence};

    /// `{ping: 1, $db: "x"}` and a sequence `d` of one empty document, with a checksum; as mongod 6.0.5 accepts it.
    const GOLDEN: &[u8] = b"\x3f\0\0\0\x07\0\0\0\0\0\0\0\xdd\x07\0\0\x01\0\0\0\
        \x01\x0b\0\0\0d\0\x05\0\0\0\0\
        \0\x1a\0\0\0\x10ping\0\x01\0\0\0\x02$db\0\x02\0\0\0x\0\0";

    fn golden() -> Vec<u8> {
        [GOLDEN, &crc32c::crc32c(GOLDEN).to_le_bytes()].concat()
    }

    /// A message of raw sections.
    fn message(flags: u32, sections: &[u8]) -> Vec<u8> {
        let header = Header {
            length: Header::SIZE + 4 + sections.len(),
            request_id: 7,
            response_to: 0,
            op_code: crate::wire::OpCode::MSG,
        };
        [&header.bytes()[..], &flags.to_le_bytes(), sections].concat()
    }

    fn body(document: &bson::Document) -> Vec<u8> {
        [&[0][..], &document.to_vec().unwrap()].concat()
    }

    fn sequence(name: &str, documents: &[u8]) -> Vec<u8> {
        let size = 4 + name.len() as i32 + 1 + documents.len() as i32;
        [&[1][..], &size.to_le_bytes(), name.as_bytes(), &[0], documents].concat()
    }

    #[test]
    fn reads_the_golden_message() {
        let bytes = golden();
        assert_eq!(bytes.len(), 0x3f);
        let parsed = OpMsg::parse_whole(&bytes).unwrap();
        assert_eq!(parsed.flags, Flags(1));
        assert_eq!(parsed.body.bytes(), doc! { "ping": 1, "$db": "x" }.to_vec().unwrap());
        let Some(Batch::Sequence(documents)) = parsed.documents("d").unwrap() else {
            panic!("the sequence is missing");
        };
        assert_eq!(documents, b"\x05\0\0\0\0");
        assert_eq!(parsed.documents("e").unwrap(), None);
    }

    #[test]
    fn every_truncation_and_every_wrong_checksum_is_refused() {
        let bytes = golden();
        for end in Header::SIZE..bytes.len() {
            assert!(OpMsg::parse(&bytes[..end]).is_err(), "cut at {end}");
        }
        for position in bytes.len() - 4..bytes.len() {
            let mut broken = bytes.clone();
            broken[position] ^= 1;
            assert_eq!(OpMsg::parse(&broken), Err(Rejection::Checksum));
        }
    }

    #[test]
    fn turns_down_what_the_server_turns_down() {
        let ping = body(&doc! { "ping": 1, "$db": "x", "a": { "b": [5, { "c": 1 }] } });
        let with = |more: &[u8]| message(0, &[&ping[..], more].concat());
        let deep_name = |name: &str| with(&sequence(name, &[]));
        for (bytes, expected) in [
            (message(1 << 2, &ping), Rejection::RequiredFlag(4)),
            (message(0, &[]), Rejection::NoBody),
            (message(0, &sequence("d", &[])), Rejection::NoBody),
            (message(1, &[]), Rejection::ChecksumSize),
            (message(1, &[1, 2, 3, 4]), Rejection::ChecksumSize),
            (with(&ping), Rejection::TwoBodies),
            (with(&[9]), Rejection::SectionKind(9)),
            (with(&[2, 0]), Rejection::SecurityToken),
            (with(&[1]), Rejection::SequenceSize),
            (with(&[1, 5, 0, 0, 0]), Rejection::SequenceSize),
            (with(&[1, 5, 0, 0, 0, b'd']), Rejection::SequenceSize),
            (with(&[1, 3, 0, 0, 0, 0]), Rejection::SequenceSize),
            (with(&[1, 0xff, 0xff, 0xff, 0xff, 0]), Rejection::SequenceSize),
            (
                with(&[sequence("d", &[]), sequence("d", &[])].concat()),
                Rejection::DuplicateSequence("d".into()),
            ),
            (
                with(&[sequence("d", &[]), sequence("e", &[]), sequence("f", &[])].concat()),
                Rejection::TooManySequences,
            ),
            (deep_name("a"), Rejection::SequenceInBody("a".into())),
            (deep_name("a.b"), Rejection::SequenceInBody("a.b".into())),
            (deep_name("a.b.0"), Rejection::SequenceInBody("a.b.0".into())),
            (deep_name("a.b.c"), Rejection::SequenceInBody("a.b.c".into())),
            (deep_name("a.b.2"), Rejection::SequenceInBody("a.b.2".into())),
            (deep_name("a.b.0.c"), Rejection::SequenceInBody("a.b.0.c".into())),
            (deep_name("a."), Rejection::SequenceInBody("a.".into())),
        ] {
            assert_eq!(OpMsg::parse_whole(&bytes), Err(expected));
        }
        for fine in ["b", "a.c", "", "ping.x", "a..b", ".a"] {
            assert!(OpMsg::parse_whole(&deep_name(fine)).is_ok(), "{fine}");
        }
    }

    #[test]
    fn a_long_name_in_nested_arrays_takes_no_time() {
        let nested = (0..90).fold(bson::Bson::Array(Vec::new()), |inner, _| bson::Bson::Array(vec![inner]));
        let name = vec!["0"; 100].join(".") + ".x";
        let sections = [body(&doc! { "ping": 1, "$db": "x", "0": nested }), sequence(&name, &[])].concat();
        let parsed = OpMsg::parse_whole(&message(0, &sections)).map(drop);
        assert_eq!(parsed, Err(Rejection::SequenceInBody(name)));
    }

    proptest! {
        #[test]
        fn parses_what_is_composed(
            flags in prop::sample::select(vec![0, 1, 2, 3, 1 << 16, 1 | 1 << 16]),
            value in ".*",
            first in prop::collection::vec(any::<i32>(), 0..20),
            second in prop::option::of(prop::collection::vec(prop::collection::vec(any::<u8>(), 0..6000), 0..4)),
        ) {
            let body = doc! { "insert": &value, "$db": "x" }.to_vec().unwrap();
            let numbers: Vec<_> = first.iter().map(|n| doc! { "n": n }.to_vec().unwrap()).collect();
            let blobs: Option<Vec<_>> = second.map(|blobs| blobs.into_iter().map(|bytes| {
                let blob = bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes };
                doc! { "b": blob }.to_vec().unwrap()
            }).collect());
            let mut draft = Draft { flags: Flags(flags), ..Draft::of_body(&body) };
            draft.sequences.push(OutSequence { name: b"n", documents: numbers.iter().map(|d| &d[..]).collect() });
            if let Some(blobs) = &blobs {
                draft.sequences.push(OutSequence { name: b"b", documents: blobs.iter().map(|d| &d[..]).collect() });
            }
            let bytes = draft.frame(3, 4).unwrap().to_vec();
            let header = Header::read(&bytes).unwrap().unwrap();
            prop_assert_eq!((header.length, header.request_id, header.response_to), (bytes.len(), 3, 4));
            let parsed = OpMsg::parse_whole(&bytes).unwrap();
            prop_assert_eq!(Ok(parsed), OpMsg::parse(&bytes));
            prop_assert_eq!((parsed.flags, parsed.body.bytes()), (Flags(flags), &body[..]));
            let found = |name| parsed.documents(name).unwrap().map(|batch| {
                batch.iter().unwrap().map(|document| document.unwrap().bytes().to_vec()).collect::<Vec<_>>()
            });
            prop_assert_eq!(found("n"), Some(numbers));
            prop_assert_eq!(found("b"), blobs);
        }

        #[test]
        fn never_panics(bytes in prop::collection::vec(any::<u8>(), 0..300), position in 16_usize..63, byte in any::<u8>()) {
            let _ = OpMsg::parse(&bytes);
            let _ = OpMsg::parse_whole(&bytes);
            let mut broken = golden();
            broken[position] = byte;
            // If the thorough parse accepts a message, the quick parse must read it alike.
            if let Ok(parsed) = OpMsg::parse_whole(&broken) {
                prop_assert_eq!(OpMsg::parse(&broken), Ok(parsed));
            }
        }
    }
}
