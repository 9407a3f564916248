//! States in a command how many members must have its writes before the server answers.

use bson::spec::ElementType;

use crate::raw::{Builder, Doc, Malformed};

/// The members that must have a statement's effect before the server answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acknowledged {
    /// Enough for a statement without effect: the server would wait for a majority even then.
    ByPrimary,
    /// A majority, even if the client asked for less.
    ByMajority,
}

impl Acknowledged {
    /// Appends a write concern.
    pub fn append_concern(self, command: &mut Builder) {
        command.open(ElementType::EmbeddedDocument, b"writeConcern");
        self.append_w(command);
        command.close();
    }

    /// Appends the write concern of the client's `command`, with this `w`.
    pub fn append_concern_of(self, command: Doc<'_>, with: &mut Builder) -> Result<(), Malformed> {
        with.open(ElementType::EmbeddedDocument, b"writeConcern");
        self.append_w(with);
        let of_client = command.nested("writeConcern")?.unwrap_or(Doc::empty());
        // The client's `wtimeout` applies only to the `w` that the client asked for.
        let is_raised = of_client.get("w")?.is_some_and(|w| w.as_str() != Some("majority"));
        for element in of_client.elements() {
            let element = element?;
            if element.name != b"w" && !(is_raised && element.name == b"wtimeout") {
                with.element(&element);
            }
        }
        with.close();
        Ok(())
    }

    /// Appends the `w` of a write concern.
    fn append_w(self, concern: &mut Builder) {
        match self {
            Acknowledged::ByPrimary => concern.int32("w", 1),
            Acknowledged::ByMajority => concern.string("w", b"majority"),
        };
    }
}
