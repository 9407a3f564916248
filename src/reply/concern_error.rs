//! Keeps the write concern's error of a write that is carried out in parts.
//!
//! The part with the error may not be the last one. The error's label lets the driver send the command again, so it goes with the error.

use bson::spec::ElementType;

use crate::raw::{Builder, Doc, Element, Malformed};

/// The error of the latest part that had one, and the labels of the latest part that had labels.
#[derive(Debug, Default)]
pub struct ConcernError {
    error: Option<Vec<u8>>,
    labels: Option<Vec<u8>>,
}

impl ConcernError {
    /// Takes a field of a part's reply if it belongs to the error; returns whether it does.
    pub fn take(&mut self, field: &Element<'_>) -> bool {
        match (field.name, field.kind) {
            (b"writeConcernError", ElementType::EmbeddedDocument) => self.error = Some(field.value.to_vec()),
            (b"errorLabels", ElementType::Array) => self.labels = Some(field.value.to_vec()),
            _ => return false,
        }
        true
    }

    /// Takes the fields of a part's reply that belong to the error.
    pub fn take_from(&mut self, reply: Doc<'_>) -> Result<(), Malformed> {
        for field in reply.elements() {
            self.take(&field?);
        }
        Ok(())
    }

    /// Appends the fields to the reply to the whole write.
    pub fn append_to(&self, reply: &mut Builder) -> Result<(), Malformed> {
        if let Some(error) = &self.error {
            reply.document("writeConcernError", Doc::new(error)?);
        }
        if let Some(labels) = &self.labels {
            reply.append(ElementType::Array, b"errorLabels", labels);
        }
        Ok(())
    }
}
