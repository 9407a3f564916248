//! The forms of an `_id`, and updates that give a document an equal `_id` in another form.

use bson::{Bson, Document, doc};
use rand::Rng;

use super::forms::Forms;
use super::layout::{Layout, ShardKey};

/// What `_id`s are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ids {
    /// Numbers of one type.
    Whole,
    /// Numbers of all types.
    Numbers,
    /// Documents with such a number.
    Documents,
    /// Doubles. An equal Decimal128 may have another hash, so only updates state one: a router would look for it elsewhere.
    Fractions,
}

impl Ids {
    pub fn of(seed: u64, layout: &Layout) -> Ids {
        let has_id = layout.key.has_id();
        match seed % 6 {
            0 | 3 => Ids::Numbers,
            // A collation says how text in a document compares, so a router targets no such `_id`.
            1 if !has_id || layout.collation.is_none() => Ids::Documents,
            2 | 5 if layout.key == ShardKey::HashedIdRegion => Ids::Fractions,
            2 if has_id => Ids::Fractions,
            _ => Ids::Whole,
        }
    }
}

/// The one `_id` that the query asks for.
pub(super) fn exact_id(query: &Document) -> Option<Bson> {
    match query.get("_id") {
        Some(Bson::Document(operators)) if operators.contains_key("$eq") => operators.get("$eq").cloned(),
        Some(Bson::Document(operators)) if operators.keys().any(|name| name.starts_with('$')) => None,
        id => id.cloned(),
    }
}

impl Forms<'_> {
    /// The `_id` that was generated as a whole number, or what a query asks of it.
    pub(super) fn id(&mut self, value: &mut Bson) {
        match value {
            Bson::Int32(number) => *value = self.id_of(*number),
            Bson::Document(operators) => operators.iter_mut().for_each(|(_, operand)| self.id(operand)),
            Bson::Array(ids) => {
                // For several, a server may scan a hashed index. There it misses a Decimal128 with a fraction if it looks for an equal double.
                if self.ids == Ids::Fractions {
                    ids.truncate(1);
                }
                ids.iter_mut().for_each(|id| self.id(id));
            }
            _ => {}
        }
    }

    fn id_of(&mut self, number: i32) -> Bson {
        match self.ids {
            Ids::Whole => Bson::Int32(number),
            Ids::Numbers => self.number(number),
            Ids::Documents => Bson::Document(doc! { "x": self.number(number) }),
            Ids::Fractions => Bson::Double(f64::from(number) + 0.75),
        }
    }

    /// Now and then has an update state the `_id` that its query names, in any form.
    pub(super) fn restate_id(&mut self, statement: &mut Document) {
        let [query, update] = match statement.contains_key("q") {
            true => ["q", "u"],
            false => ["query", "update"],
        };
        let id = statement.get_document(query).ok().and_then(exact_id);
        let (Some(id), false) = (id, statement.contains_key("multi")) else {
            return;
        };
        // Elsewhere, an upsert would insert a second document with an equal `_id`.
        let id = match self.ids == Ids::Fractions && statement.contains_key("upsert") {
            true => id,
            false => self.other_form(&id),
        };
        match statement.get_mut(update) {
            Some(Bson::Array(stages)) if self.rng.random_bool(0.3) => {
                stages.push(doc! { "$set": { "_id": { "$literal": id } } }.into());
            }
            Some(Bson::Document(update)) if update.keys().any(|name| name.starts_with('$')) => {
                let is_stated = update
                    .get_document("$setOnInsert")
                    .is_ok_and(|set| set.contains_key("_id"));
                if let (Ok(set), false, true) = (update.get_document_mut("$set"), is_stated, self.rng.random_bool(0.2))
                {
                    set.insert("_id", id);
                }
            }
            Some(Bson::Document(replacement)) if self.rng.random_bool(0.5) => {
                replacement.insert("_id", id);
            }
            _ => {}
        }
    }

    /// An equal value, of any type.
    fn other_form(&mut self, id: &Bson) -> Bson {
        let whole = match id {
            Bson::Int32(number) => i64::from(*number),
            Bson::Int64(number) => *number,
            Bson::Double(number) if number.fract() == 0.0 => *number as i64,
            Bson::Decimal128(number) => number.to_string().trim_end_matches(".0").parse().unwrap(),
            Bson::Double(number) if self.rng.random_bool(0.7) => {
                return Bson::Decimal128(number.to_string().parse().unwrap());
            }
            Bson::Document(parts) => {
                let parts = parts.iter().map(|(name, part)| (name.clone(), self.other_form(part)));
                return Bson::Document(parts.collect());
            }
            other => return other.clone(),
        };
        self.number(i32::try_from(whole).unwrap())
    }
}
