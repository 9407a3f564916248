//! Reads the documents of a command's batch, which is an array in the body or a document sequence.
//!
//! Both forms give the same documents. Each document's bounds are checked on the way, its content is not.

use bson::spec::ElementType;

use crate::raw::{Doc, Element, Elements, Malformed};
use crate::server::type_name;

/// The value of a batch field, in either form.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Batch<'a> {
    /// It came as a document sequence; these are the documents' bytes one after the other.
    Sequence(&'a [u8]),
    /// It came in the body; an array, if the client made no mistake.
    InBody(Element<'a>),
}

impl<'a> Batch<'a> {
    /// The documents in order; a field that is no array has none, see [`Batch::is_array`].
    ///
    /// # Errors
    /// [`Malformed`] if the array isn't one.
    pub fn iter(&self) -> Result<Documents<'a>, Malformed> {
        Ok(match self {
            Batch::Sequence(documents) => Documents::concatenated(documents),
            Batch::InBody(element) if element.kind == ElementType::Array => match element.as_document_or_array()? {
                Some(array) => Documents::InArray(array.elements()),
                None => Documents::concatenated(&[]),
            },
            Batch::InBody(_) => Documents::concatenated(&[]),
        })
    }

    /// Whether it has the type that a batch must have.
    pub fn is_array(&self) -> bool {
        match self {
            Batch::Sequence(_) => true,
            Batch::InBody(element) => element.kind == ElementType::Array,
        }
    }
}

/// Why the next item of a batch isn't a document.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum BatchItemError {
    /// The bytes are not a document.
    #[error(transparent)]
    Malformed(#[from] Malformed),
    /// The array's element is of another type.
    #[error("a batch holds a value of type {} where a document belongs", type_name(*.0))]
    Type(ElementType),
}

/// The documents of a batch; ends after the first error.
#[derive(Debug, Clone)]
pub enum Documents<'a> {
    /// One after the other, as in a document sequence.
    Concatenated(&'a [u8]),
    /// The elements of an array.
    InArray(Elements<'a>),
}

impl<'a> Documents<'a> {
    /// Documents that stand one after the other.
    pub fn concatenated(bytes: &'a [u8]) -> Self {
        Documents::Concatenated(bytes)
    }

    /// Checks documents that stand one after the other, down to the last nested one.
    pub fn validate_all(mut bytes: &[u8]) -> Result<(), Malformed> {
        while !bytes.is_empty() {
            let (document, rest) = Doc::split(bytes)?;
            document.validate()?;
            bytes = rest;
        }
        Ok(())
    }
}

impl<'a> Iterator for Documents<'a> {
    type Item = Result<Doc<'a>, BatchItemError>;

    fn next(&mut self) -> Option<Self::Item> {
        match self {
            Documents::Concatenated([]) => None,
            Documents::Concatenated(bytes) => match Doc::split(bytes) {
                Ok((document, rest)) => {
                    *bytes = rest;
                    Some(Ok(document))
                }
                Err(malformed) => {
                    *bytes = &[];
                    Some(Err(malformed.into()))
                }
            },
            Documents::InArray(elements) => elements.next().map(|element| {
                let element = element?;
                match element.kind {
                    ElementType::EmbeddedDocument => Ok(Doc::new(element.value)?),
                    other => Err(BatchItemError::Type(other)),
                }
            }),
        }
    }
}
