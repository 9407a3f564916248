//! Reads one element of a document: its type, its name and its value.

use bson::spec::ElementType;
use bson::{Document, RawBson, RawDocument, RawDocumentBuf};

use super::{Builder, Doc, Malformed, decimal_coefficient, read_i32, split_c_string};

/// The largest document that is decoded, in bytes. A decoded one needs up to a hundred times as much.
const DECODED_MAX: usize = 1 << 20;

/// One element: its type, its name and the bytes of its value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Element<'a> {
    /// The BSON type.
    pub kind: ElementType,
    /// The field name, without its zero byte; any bytes but zero.
    pub name: &'a [u8],
    /// The value's bytes in the document, with its own length fields.
    pub value: &'a [u8],
}

impl<'a> Element<'a> {
    pub(super) fn split(bytes: &'a [u8]) -> Result<(Self, &'a [u8]), Malformed> {
        let (&tag, rest) = bytes.split_first().ok_or(Malformed::Unterminated)?;
        let kind = ElementType::from(tag).ok_or(Malformed::UnknownType(tag))?;
        let (name, rest) = split_c_string(rest)?;
        let size = value_size(kind, rest)?;
        let (value, rest) = rest.split_at_checked(size).ok_or(Malformed::Length(size as i64))?;
        if kind == ElementType::String && value[size - 1] != 0 {
            return Err(Malformed::Unterminated);
        }
        Ok((Element { kind, name, value }, rest))
    }

    /// The value; `None` if its bytes aren't valid, or the name isn't UTF-8.
    pub fn to_raw_bson(self) -> Option<RawBson> {
        let mut alone = Builder::new();
        alone.element(&self);
        let alone = RawDocumentBuf::from_bytes(alone.finish()).ok()?;
        let (_, value) = alone.iter().next()?.ok()?;
        Some(value.into())
    }

    /// Checks everything that the length alone doesn't prove. Returns the document inside, also the scope of a code.
    pub(super) fn checked_inside(&self) -> Result<Option<Doc<'a>>, Malformed> {
        let terminated = |text: &[u8]| match text.last() {
            Some(0) => Ok(None),
            _ => Err(Malformed::Unterminated),
        };
        match self.kind {
            ElementType::Boolean if self.value[0] > 1 => Err(Malformed::Boolean(self.value[0])),
            ElementType::String | ElementType::Symbol | ElementType::JavaScriptCode => terminated(self.value),
            ElementType::DbPointer => terminated(&self.value[..self.value.len() - 12]),
            ElementType::JavaScriptCodeWithScope => {
                let size = read_i32(&self.value[4..])?;
                let (code, scope) = usize::try_from(size)
                    .ok()
                    .and_then(|size| self.value[8..].split_at_checked(size))
                    .ok_or(Malformed::Length(size.into()))?;
                terminated(code)?;
                Doc::new(scope).map(Some)
            }
            _ => self.as_document_or_array(),
        }
    }

    /// A string's (or symbol's, or code's) bytes without length and terminator.
    pub fn as_string_bytes(&self) -> Option<&'a [u8]> {
        matches!(
            self.kind,
            ElementType::String | ElementType::Symbol | ElementType::JavaScriptCode
        )
        .then(|| &self.value[4..self.value.len() - 1])
    }

    /// The text, if it is a string and UTF-8.
    pub fn as_str(&self) -> Option<&'a str> {
        match self.kind {
            ElementType::String => std::str::from_utf8(self.as_string_bytes()?).ok(),
            _ => None,
        }
    }

    /// The nested document; `None` for an array, too.
    ///
    /// # Errors
    /// [`Malformed`] if the nested bytes are not a document.
    pub fn as_document(&self) -> Result<Option<Doc<'a>>, Malformed> {
        match self.kind {
            ElementType::EmbeddedDocument => Doc::new(self.value).map(Some),
            _ => Ok(None),
        }
    }

    /// The nested document or array.
    ///
    /// # Errors
    /// [`Malformed`] if the nested bytes are not a document.
    pub fn as_document_or_array(&self) -> Result<Option<Doc<'a>>, Malformed> {
        match self.kind {
            ElementType::EmbeddedDocument | ElementType::Array => Doc::new(self.value).map(Some),
            _ => Ok(None),
        }
    }

    /// The nested document, decoded; `None` if it is no document, is malformed, is nested deeper than the server accepts, or has more than
    /// 1 MiB.
    pub fn to_document(self) -> Option<Document> {
        if self.kind != ElementType::EmbeddedDocument || self.value.len() > DECODED_MAX {
            return None;
        }
        // Decoding recurses, so a document that is nested too deep for the stack must be rejected before.
        Doc::new(self.value).ok()?.validate().ok()?;
        Document::try_from(RawDocument::from_bytes(self.value).ok()?).ok()
    }

    /// A whole number: an int32, an int64, or a double without a fraction.
    pub fn as_whole_number(&self) -> Option<i64> {
        match self.kind {
            ElementType::Int32 => Some(i64::from(i32::from_le_bytes(self.value.try_into().ok()?))),
            ElementType::Int64 => Some(i64::from_le_bytes(self.value.try_into().ok()?)),
            ElementType::Double => {
                let number = f64::from_le_bytes(self.value.try_into().ok()?);
                (number.fract() == 0.0 && number.abs() < 9.0e18).then_some(number as i64)
            }
            _ => None,
        }
    }

    /// Whether it has one of the four types of numbers.
    pub fn is_number(&self) -> bool {
        matches!(
            self.kind,
            ElementType::Int32 | ElementType::Int64 | ElementType::Double | ElementType::Decimal128
        )
    }

    /// Whether the server treats the field as missing.
    pub fn is_nothing(&self) -> bool {
        matches!(self.kind, ElementType::Null | ElementType::Undefined)
    }

    /// Whether the server would treat the value as true: a non-zero number, or any other value except false, null and
    /// undefined.
    pub fn is_truthy(&self) -> bool {
        match self.kind {
            ElementType::Boolean => self.value != [0],
            ElementType::Int32 | ElementType::Int64 => self.value.iter().any(|byte| *byte != 0),
            ElementType::Double => self
                .value
                .try_into()
                .is_ok_and(|bytes| f64::from_le_bytes(bytes) != 0.0),
            ElementType::Decimal128 => self
                .value
                .first_chunk()
                .is_none_or(|bits| decimal_coefficient(u128::from_le_bytes(*bits)) != Some(0)),
            ElementType::Null | ElementType::Undefined => false,
            _ => true,
        }
    }
}

/// The number of bytes of the value at the start of `bytes`; the caller checks that they exist.
fn value_size(kind: ElementType, bytes: &[u8]) -> Result<usize, Malformed> {
    // The size of a value with its own length field: at least `minimum` by that field, plus `extra` bytes that it doesn't
    // count.
    let counted = |minimum: i32, extra: usize| {
        let length = read_i32(bytes)?;
        match length >= minimum {
            true => Ok(length as usize + extra),
            false => Err(Malformed::Length(length.into())),
        }
    };
    Ok(match kind {
        ElementType::Double | ElementType::DateTime | ElementType::Timestamp | ElementType::Int64 => 8,
        ElementType::Int32 => 4,
        ElementType::Boolean => 1,
        ElementType::ObjectId => 12,
        ElementType::Decimal128 => 16,
        ElementType::Null | ElementType::Undefined | ElementType::MinKey | ElementType::MaxKey => 0,
        ElementType::String | ElementType::Symbol | ElementType::JavaScriptCode => counted(1, 4)?,
        ElementType::DbPointer => counted(1, 4 + 12)?,
        ElementType::Binary => counted(0, 4 + 1)?,
        ElementType::EmbeddedDocument | ElementType::Array => counted(5, 0)?,
        ElementType::JavaScriptCodeWithScope => counted(14, 0)?,
        ElementType::RegularExpression => {
            let (pattern, rest) = split_c_string(bytes)?;
            let (options, _) = split_c_string(rest)?;
            pattern.len() + options.len() + 2
        }
    })
}
