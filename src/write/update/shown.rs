//! Takes the keys after a statement from its reply, if the reply shows the whole document: a `findAndModify` with `new: true`.
//!
//! Then Keyward doesn't read the document again. That read would also show a second document with the same `_id` and, as far as Keyward
//! knows, the same shard key. So Keyward reads a second one, if any, before the statement instead. The query must name the `_id`: each shard
//! has one such document at most, and the search costs nothing.

use super::document_keys::DocumentKeys;
use crate::catalog::Protected;
use crate::command::filter_rewriting::{equality, is_fickle};
use crate::command::statement::{Selection, Statement, StatementKind};
use crate::raw::{Doc, Malformed};

impl<'a> Statement<'a> {
    /// The keys of the document that the reply shows, as it is after the statement.
    pub fn shown(self, protected: &Protected, reply: Doc<'_>) -> Result<Option<DocumentKeys>, Malformed> {
        let document = match self.shows_document()? {
            true => reply.nested("value")?,
            false => None,
        };
        document
            .map(|document| DocumentKeys::of(protected, document))
            .transpose()
    }

    /// The documents that the statement selects. If its reply shows the document, the others that it could pick are included.
    pub fn selection_with_others(self, is_collated: bool) -> Result<Selection<'a>, Malformed> {
        let query = self.query()?.unwrap_or(Doc::empty());
        let are_found = !is_collated && !is_fickle(query)? && equality(query, "_id")?.is_some();
        Ok(Selection {
            is_single: self.is_single && !(are_found && self.shows_document()?),
            ..self.selection()?
        })
    }

    /// Leaves only what the statement selects of `documents`. Whether that is one document, and no other one was at its place.
    pub fn drop_others(self, documents: &mut Vec<DocumentKeys>) -> bool {
        let is_alone = self.is_single && is_alone(documents);
        if self.is_single {
            documents.truncate(1);
        }
        is_alone
    }

    fn shows_document(self) -> Result<bool, Malformed> {
        let fields = self.raw.get("fields")?.filter(|fields| !fields.is_nothing());
        Ok(self.kind == StatementKind::FindAndModify && self.raw.is_set("new")? && fields.is_none())
    }
}

/// Whether the first of these documents is the only one at its place. Two are there if the shard key is another one than Keyward
/// knows.
fn is_alone(documents: &[DocumentKeys]) -> bool {
    let first = documents.split_first();
    first.is_some_and(|(first, others)| others.iter().all(|other| !other.is_found_at_place_of(first)))
}

#[cfg(test)]
mod tests {
    use bson::{RawBson, rawdoc};

    use super::*;
    use crate::proxy_collection::Owner;

    fn document(id: i32, region: &str) -> DocumentKeys {
        DocumentKeys {
            id: rawdoc! { "_id": id }.into_bytes(),
            owner: Owner {
                id: RawBson::Int32(id),
                route: Some(rawdoc! { "region": region }),
            },
            keys: Vec::new(),
            unindexable: None,
        }
    }

    #[test]
    fn two_documents_at_one_place_are_not_alone() {
        let [here, there] = [document(1, "a"), document(1, "z")];
        assert!(is_alone(std::slice::from_ref(&here)));
        assert!(is_alone(&[here.clone(), there.clone()]));
        let here_again = here.clone();
        assert!(!is_alone(&[here.clone(), there, here]));
        assert!(!is_alone(&[]));
        let mut same = document(1, "a");
        same.owner.id = RawBson::Double(1.0);
        assert!(!is_alone(&[here_again, same]));
    }
}
