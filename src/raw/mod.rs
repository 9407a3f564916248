//! Walks a document's elements as bytes, without decoding or copying them, and builds documents from such elements.
//!
//! Keyward needs it beside the `bson` crate for two reasons. The server stores strings and field names that aren't UTF-8, which
//! that crate refuses. Keyward also compares and copies keys byte for byte. Every length is checked before use; nested
//! documents are checked during a walk. Walking doesn't decode values; an element decodes its own value on request.

mod builder;
mod element;

use bson::spec::ElementType;

pub use builder::Builder;
pub use element::Element;

/// Why bytes are not a BSON document. A function returns the first fault in the parts that it reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum Malformed {
    /// A length field disagrees with the available bytes.
    #[error("Incorrect BSON length {0}")]
    Length(i64),
    /// A document or a name ends without its zero byte.
    #[error("BSON object not terminated with EOO")]
    Unterminated,
    /// An element has a type byte that BSON doesn't define.
    #[error("Unrecognized BSON type {0}")]
    UnknownType(u8),
    /// A boolean's byte isn't 0 or 1.
    #[error("BSON bool is neither false nor true")]
    Boolean(u8),
    /// Documents and arrays are nested deeper than [`NESTED_DOCUMENTS_MAX`].
    #[error("BSONObj exceeds maximum nested object depth")]
    TooDeep,
}

/// How deep documents and arrays may be nested below a document (the server's `maxBSONDepth`).
pub const NESTED_DOCUMENTS_MAX: usize = 200;

/// A document (or an array) whose outer length and terminator have been checked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Doc<'a>(&'a [u8]);

impl<'a> Doc<'a> {
    /// Checks the outer length and the terminator; `bytes` is the document exactly.
    ///
    /// # Errors
    /// [`Malformed`] if `bytes` is not one whole document.
    pub fn new(bytes: &'a [u8]) -> Result<Self, Malformed> {
        let length = read_i32(bytes)?;
        if length < 5 || length as usize != bytes.len() {
            return Err(Malformed::Length(length.into()));
        }
        if bytes[bytes.len() - 1] != 0 {
            return Err(Malformed::Unterminated);
        }
        Ok(Doc(bytes))
    }

    /// Splits off the document at the start of `bytes`, and returns it with the rest.
    ///
    /// # Errors
    /// [`Malformed`] if `bytes` doesn't start with a whole document.
    pub fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let length = read_i32(bytes)?;
        let size = usize::try_from(length).map_err(|_| Malformed::Length(length.into()))?;
        let (document, rest) = bytes.split_at_checked(size).ok_or(Malformed::Length(length.into()))?;
        Ok((Doc::new(document)?, rest))
    }

    /// The document without elements.
    pub fn empty() -> Self {
        Doc(&[5, 0, 0, 0, 0])
    }

    /// The document's bytes, its length and terminator included.
    pub fn bytes(self) -> &'a [u8] {
        self.0
    }

    /// Whether it has no element.
    pub fn is_empty(self) -> bool {
        self.0.len() == 5
    }

    /// Its elements in order.
    pub fn elements(self) -> Elements<'a> {
        Elements {
            rest: &self.0[4..self.0.len() - 1],
        }
    }

    /// The first element named `name`.
    ///
    /// # Errors
    /// [`Malformed`] if an element before it is.
    pub fn get(self, name: &str) -> Result<Option<Element<'a>>, Malformed> {
        for element in self.elements() {
            let element = element?;
            if element.name == name.as_bytes() {
                return Ok(Some(element));
            }
        }
        Ok(None)
    }

    /// The document or array named `name`; `None` if the field is missing or has another type.
    ///
    /// # Errors
    /// [`Malformed`] if an element before it is malformed, or its own bytes are.
    pub fn nested(self, name: &str) -> Result<Option<Doc<'a>>, Malformed> {
        match self.get(name)? {
            Some(element) => element.as_document_or_array(),
            None => Ok(None),
        }
    }

    /// The value at the dotted `path`, below documents only. A field with a dot in its name is at no path.
    ///
    /// # Errors
    /// [`Malformed`] if an element before it is malformed.
    pub fn value_at(self, path: &str) -> Result<Option<Element<'a>>, Malformed> {
        let Some((first, rest)) = path.split_once('.') else {
            return self.get(path);
        };
        match self.get(first)? {
            Some(nested) if nested.kind == ElementType::EmbeddedDocument => Doc::new(nested.value)?.value_at(rest),
            _ => Ok(None),
        }
    }

    /// Whether the field `name` exists and the server would treat it as true.
    ///
    /// # Errors
    /// [`Malformed`] if an element before it is.
    pub fn is_set(self, name: &str) -> Result<bool, Malformed> {
        Ok(self.get(name)?.is_some_and(|element| element.is_truthy()))
    }

    /// The whole number in the field `name`; `None` if the field is missing or has another value.
    ///
    /// # Errors
    /// [`Malformed`] if an element before it is.
    pub fn whole_number(self, name: &str) -> Result<Option<i64>, Malformed> {
        Ok(self.get(name)?.and_then(|element| element.as_whole_number()))
    }

    /// Whether any element passes `test`.
    ///
    /// # Errors
    /// [`Malformed`] if an element up to that one is, or `test` finds it so.
    pub fn any(self, mut test: impl FnMut(&Element<'a>) -> Result<bool, Malformed>) -> Result<bool, Malformed> {
        for element in self.elements() {
            if test(&element?)? {
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Whether all elements pass `test`.
    ///
    /// # Errors
    /// [`Malformed`] if an element up to the first that fails is, or `test` finds it so.
    pub fn all(self, mut test: impl FnMut(&Element<'a>) -> Result<bool, Malformed>) -> Result<bool, Malformed> {
        Ok(!self.any(|element| Ok(!test(element)?))?)
    }

    /// Whether a field of the document, or of any document or array in it, has one of these names.
    ///
    /// # Errors
    /// [`Malformed`] if a part that was read isn't BSON.
    pub fn mentions(self, names: &[&[u8]]) -> Result<bool, Malformed> {
        let mut left = vec![self];
        while let Some(document) = left.pop() {
            for element in document.elements() {
                let element = element?;
                if names.contains(&element.name) {
                    return Ok(true);
                }
                left.extend(element.as_document_or_array()?);
            }
        }
        Ok(false)
    }

    /// Checks all nested documents, as the server does for received messages.
    pub fn validate(self) -> Result<(), Malformed> {
        // Uses its own stack: the nesting comes from the network, and the limit must apply before the program's stack
        // overflows.
        let mut open = vec![self.elements()];
        while let Some(innermost) = open.last_mut() {
            let Some(element) = innermost.next() else {
                open.pop();
                continue;
            };
            if let Some(nested) = element?.checked_inside()? {
                if open.len() > NESTED_DOCUMENTS_MAX {
                    return Err(Malformed::TooDeep);
                }
                open.push(nested.elements());
            }
        }
        Ok(())
    }
}

/// The elements of a document; ends after the first malformed one.
#[derive(Debug, Clone)]
pub struct Elements<'a> {
    rest: &'a [u8],
}

impl<'a> Iterator for Elements<'a> {
    type Item = Result<Element<'a>, Malformed>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.rest.is_empty() {
            return None;
        }
        let result = Element::split(self.rest);
        match result {
            Ok((element, rest)) => {
                self.rest = rest;
                Some(Ok(element))
            }
            Err(malformed) => {
                self.rest = &[];
                Some(Err(malformed))
            }
        }
    }
}

/// 10^34: a Decimal128's coefficient is below it.
pub const COEFFICIENT_LIMIT: u128 = 10_u128.pow(34);

/// The coefficient of a Decimal128 with these bits: zero if it would have more than 34 digits, `None` if it isn't a finite
/// number.
pub fn decimal_coefficient(bits: u128) -> Option<u128> {
    match (bits >> 122) & 0x1f {
        0x1e.. => None,
        // The top two bits of the combination field set: a coefficient above 2^113, so above 34 digits.
        0x18.. => Some(0),
        _ => match bits & ((1 << 113) - 1) {
            coefficient if coefficient < COEFFICIENT_LIMIT => Some(coefficient),
            _ => Some(0),
        },
    }
}

/// The finite `double`, which isn't negative, is the first of these times two to the power of the second.
pub fn mantissa_and_exponent(double: f64) -> (u64, i32) {
    let bits = double.to_bits();
    match (bits >> 52) as i32 {
        0 => (bits, -1074),
        biased => (bits & ((1 << 52) - 1) | 1 << 52, biased - 1075),
    }
}

/// The int32 length field for `size` bytes. A size of 2 GiB is a bug: messages end at 48 MB.
pub fn length_field(size: usize) -> [u8; 4] {
    i32::try_from(size)
        .expect("a BSON document stays far below 2 GiB")
        .to_le_bytes()
}

fn read_i32(bytes: &[u8]) -> Result<i32, Malformed> {
    bytes
        .first_chunk::<4>()
        .map(|chunk| i32::from_le_bytes(*chunk))
        .ok_or(Malformed::Length(bytes.len() as i64))
}

fn split_c_string(bytes: &[u8]) -> Result<(&[u8], &[u8]), Malformed> {
    let end = first_zero(bytes).ok_or(Malformed::Unterminated)?;
    Ok((&bytes[..end], &bytes[end + 1..]))
}

/// The position of the first zero byte. Most names are short, so this looks at the first eight bytes at once.
fn first_zero(bytes: &[u8]) -> Option<usize> {
    const ONES: u64 = u64::from_le_bytes([1; 8]);
    let Some((first, rest)) = bytes.split_first_chunk::<8>() else {
        return bytes.iter().position(|byte| *byte == 0);
    };
    let first = u64::from_le_bytes(*first);
    // The highest bit of each zero byte. A byte behind a zero may count, too, so only the lowest bit says something.
    let zeros = first.wrapping_sub(ONES) & !first & (ONES << 7);
    match zeros {
        0 => rest.iter().position(|byte| *byte == 0).map(|position| position + 8),
        _ => Some(zeros.trailing_zeros() as usize / 8),
    }
}

#[cfg(test)]
mod tests {
    use bson::{Bson, doc, oid::ObjectId};

    use super::*;

    #[test]
    fn the_first_zero_is_found_at_each_place() {
        for length in 0..20 {
            for other in [1, 0x7f, 0x80, 0x81, 0xff] {
                assert_eq!(first_zero(&vec![other; length]), None);
                for (first, second) in (0..length).flat_map(|first| (first..length).map(move |second| (first, second)))
                {
                    let mut bytes = vec![other; length];
                    (bytes[first], bytes[second]) = (0, 0);
                    assert_eq!(first_zero(&bytes), Some(first), "{bytes:?}");
                }
            }
        }
    }

    #[test]
    fn every_zero_is_untrue() {
        let is_truthy = |value: Bson| {
            let bytes = doc! { "v": value }.to_vec().unwrap();
            Doc::new(&bytes).unwrap().get("v").unwrap().unwrap().is_truthy()
        };
        let decimal = |text: &str| Bson::Decimal128(text.parse().unwrap());
        let bits = |bits: u128| Bson::Decimal128(bson::Decimal128::from_bytes(bits.to_le_bytes()));
        let zeros = ["0", "-0", "0E+3", "0.00"].map(decimal);
        // More digits than allowed, in either form.
        let too_long = [(6176 << 113) | ((1 << 113) - 1), 0x18 << 122].map(bits);
        let others = [
            Bson::Int32(0),
            Bson::Int64(0),
            Bson::Double(-0.0),
            Bson::Null,
            false.into(),
        ];
        for untrue in zeros.into_iter().chain(too_long).chain(others) {
            assert!(!is_truthy(untrue.clone()), "{untrue}");
        }
        let numbers = ["1", "-1E-6000", "NaN", "Infinity", "-Infinity"].map(decimal);
        for truthy in numbers
            .into_iter()
            .chain([Bson::Double(f64::NAN), "".into(), true.into()])
        {
            assert!(is_truthy(truthy.clone()), "{truthy}");
        }
    }

    #[test]
    fn walks_every_type_and_rebuilds_the_same_bytes() {
        let bytes = doc! {
            "d": 1.5, "s": "text", "o": { "a": [1, { "b": Bson::Null }] },
            "b": Bson::Binary(bson::Binary { subtype: bson::spec::BinarySubtype::Generic, bytes: vec![1, 2] }),
            "u": Bson::Undefined, "oid": ObjectId::new(), "t": true, "n": Bson::Null,
            "re": Bson::RegularExpression(bson::Regex { pattern: "a+".try_into().unwrap(), options: "i".try_into().unwrap() }),
            "code": Bson::JavaScriptCode("f()".into()), "sym": Bson::Symbol("s".into()),
            "scope": Bson::JavaScriptCodeWithScope(bson::JavaScriptCodeWithScope { code: "f".into(), scope: doc! { "x": 1 } }),
            "i": 1_i32, "ts": Bson::Timestamp(bson::Timestamp { time: 1, increment: 2 }), "l": 1_i64,
            "dec": Bson::Decimal128("1.5".parse().unwrap()), "min": Bson::MinKey, "max": Bson::MaxKey,
        }
        .to_vec()
        .unwrap();
        let document = Doc::new(&bytes).unwrap();
        document.validate().unwrap();
        let mut builder = Builder::new();
        for element in document.elements() {
            builder.element(&element.unwrap());
        }
        assert_eq!(builder.finish(), bytes);
    }

    #[test]
    fn every_truncation_and_every_flipped_length_is_refused_or_harmless() {
        let bytes = doc! { "a": { "b": ["x", 1] }, "c": "text" }.to_vec().unwrap();
        for end in 0..bytes.len() {
            assert!(Doc::new(&bytes[..end]).is_err(), "cut at {end}");
        }
        for position in 0..bytes.len() {
            for value in [0, 1, 0x7f, 0x80, 0xff] {
                let mut broken = bytes.clone();
                broken[position] = value;
                // Must not panic; whether it is an error depends on the former byte.
                let _ = Doc::new(&broken).and_then(Doc::validate);
            }
        }
    }

    #[test]
    fn nesting_ends_at_the_limit() {
        let nested = |levels: usize| {
            let mut builder = Builder::new();
            for _ in 0..levels {
                builder.open(ElementType::EmbeddedDocument, b"a");
            }
            builder.finish()
        };
        assert_eq!(Doc::new(&nested(200)).unwrap().validate(), Ok(()));
        assert_eq!(Doc::new(&nested(201)).unwrap().validate(), Err(Malformed::TooDeep));
        assert_eq!(
            Doc::new(&nested(1_000_000)).unwrap().validate(),
            Err(Malformed::TooDeep)
        );
    }
}
